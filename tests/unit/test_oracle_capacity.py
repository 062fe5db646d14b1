"""The oracle on marks, leases, overload that is waited for, and strict room; the answers were worked out by hand."""

from __future__ import annotations

from oracle import Oracle
from stories import arrive, profile, short, upsert

from kvcore.config import OnOverload, SchedulerConfig
from kvcore.events import (
    OutputBlockAdded,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
)
from kvcore.policy import Capacity, PolicyProfile
from kvcore.request import Overlap, Rank

GONE, OVERLOADED, FINE = (False, False), (True, True), (True, False)


def mark(now_ns: int, worker_id: int, opinion, lease_ns=None, source: str = "", incarnation: int = 0):
    return WorkerStatusChanged(now_ns, worker_id, incarnation, source, *opinion, lease_ns)


def oracle(*workers: int, strict: bool = False, threshold: int | None = 0, worker: dict | None = None,
           **config) -> Oracle:
    """Block size 4; a class that waits for ranks above the threshold, or for room, or never."""
    plain = profile(10, prefill_busy_threshold=threshold)
    capacity = Capacity.STRICT if strict else Capacity.ADVISORY
    core = Oracle(SchedulerConfig(4, PolicyProfile(plain.classes, plain.buckets, "f0", capacity=capacity), **config))
    for worker_id in workers:
        core.step(upsert(0, worker_id, **(worker or {})))
    return core


def state(core: Oracle, row: int = 0) -> int:
    return core.loads()[row][6]


def test_marks_of_several_sources_are_or_ed_and_replaced_one_by_one():
    core = oracle(1)
    core.step(mark(0, 1, OVERLOADED, source="router"))
    assert state(core) == 1
    core.step(mark(0, 1, GONE, 5, source="health"))
    assert state(core) == 2
    core.step(mark(0, 1, GONE, source="third"))
    assert state(core) == 3
    core.step(mark(0, 1, FINE, source="third"))
    core.step(mark(0, 1, FINE, source="health"))
    assert (state(core), core.next_deadline_ns) == (1, None)
    core.step(mark(0, 1, FINE, source="router"))
    assert state(core) == 0


def test_a_lease_ends_at_its_end_and_not_before():
    core = oracle(1)
    core.step(mark(3, 1, GONE, 7))
    assert core.next_deadline_ns == 10
    core.step(TimerFired(9))
    assert state(core) == 2
    core.step(TimerFired(10))
    assert (state(core), core.next_deadline_ns) == (0, None)


def test_a_lease_beyond_time_never_ends_but_is_one():
    core = oracle(1)
    core.step(mark(1, 1, GONE, 2**62 - 1))
    assert (state(core), core.next_deadline_ns) == (2, None)
    core.step(TimerFired(2**62 - 1))
    assert state(core) == 2


def test_marks_of_others_are_stale_and_a_restart_forgets():
    core = oracle(1)
    core.step_many((mark(0, 9, GONE), mark(0, 1, GONE, incarnation=1)))
    assert (core.stats().stale_events, state(core)) == (2, 0)
    core.step(mark(0, 1, GONE))
    core.step(upsert(0, 1))
    assert state(core) == 3
    core.step(upsert(0, 1, 1))
    assert state(core) == 0


def test_gone_is_refused_and_leased_is_waited_for():
    core = oracle(1)
    core.step(mark(0, 1, GONE))
    assert short(core.step(arrive(0, "a"))) == "NO_ELIGIBLE_WORKER a"
    assert short(core.step(arrive(0, "b", pinned=Rank(1)))) == "PINNED_WORKER_UNAVAILABLE b"
    core.step(mark(0, 1, GONE, 5))
    assert short(core.step(arrive(1, "c"))) == "P c"
    assert short(core.step(TimerFired(5))) == "D c"


def test_a_class_that_never_waits_says_why_there_is_no_rank():
    core = oracle(1, 2, threshold=None)
    core.step_many((mark(0, 1, OVERLOADED), mark(0, 2, GONE, 9)))
    assert short(core.step(arrive(0, "a", pinned=Rank(1)))) == "PINNED_WORKER_OVERLOADED a"
    assert short(core.step(arrive(0, "b", pinned=Rank(2)))) == "PINNED_WORKER_UNAVAILABLE b"
    assert short(core.step(arrive(0, "c"))) == "ALL_ELIGIBLE_OVERLOADED c"
    assert short(core.step(arrive(0, "d", allowed_workers=frozenset({2})))) == "NO_ELIGIBLE_WORKER d"


def test_an_overloaded_rank_is_passed_over():
    core = oracle(1, 2, threshold=None)
    core.step(mark(0, 1, OVERLOADED))
    assert [core.step(arrive(0, name))[0].worker_id for name in "abc"] == [2, 2, 2]


def test_overload_is_rejected_at_once_unless_another_rank_may_come_back():
    core = oracle(1, 2)
    core.step_many((mark(0, 1, OVERLOADED), mark(0, 2, OVERLOADED)))
    assert short(core.step(arrive(0, "a"))) == "ALL_ELIGIBLE_OVERLOADED a"
    core.step(mark(0, 2, GONE, 9))
    assert short(core.step(arrive(0, "b"))) == "P b"
    core.step(mark(1, 2, FINE))
    assert core.live["b"].rank == (2, 0)


def test_overload_is_looked_at_every_period_from_arrival():
    core = oracle(1, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    core.step(arrive(3, "a"))
    assert short(core.step(arrive(4, "b"))) == "P b"
    assert core.next_deadline_ns == 14
    assert short(core.step(TimerFired(14))) == ""       # the rank is busy, not overloaded
    assert core.next_deadline_ns == 24
    core.step(mark(15, 1, OVERLOADED))
    assert short(core.step(TimerFired(23))) == ""
    assert short(core.step(TimerFired(24))) == "ALL_ELIGIBLE_OVERLOADED b"
    assert core.class_counts[0].rejected == 1


def test_looks_that_were_slept_through_are_those_of_their_times():
    core = oracle(1, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    core.step(mark(0, 1, OVERLOADED, 25))
    assert short(core.step(arrive(16, "a"))) == "P a"   # looks at 26, 36, ...: by then the lease is over
    assert short(core.step(TimerFired(60))) == "D a"
    late = oracle(1, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    late.step(mark(0, 1, OVERLOADED, 27))
    late.step(arrive(16, "a"))
    assert short(late.step(TimerFired(60))) == "ALL_ELIGIBLE_OVERLOADED a"


def test_a_lease_that_ends_unseen_can_uncover_overload():
    core = oracle(1, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    core.step_many((mark(0, 1, OVERLOADED, source="router"), mark(0, 1, GONE, 15, source="health")))
    assert short(core.step(arrive(0, "a"))) == "P a"
    assert short(core.step(TimerFired(100))) == "ALL_ELIGIBLE_OVERLOADED a"     # at 20, not at 10


def test_at_one_time_a_lease_ends_first_then_deadlines_then_looks():
    core = oracle(1, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    core.step(mark(0, 1, OVERLOADED, 10))
    core.step(arrive(0, "a"))
    assert short(core.step(TimerFired(10))) == "D a"
    core.step(mark(10, 1, OVERLOADED))
    core.step(arrive(10, "b", deadline_ns=20))
    assert short(core.step(TimerFired(20))) == "DEADLINE_EXPIRED b"


def test_strict_room_is_used_to_the_last_block():
    core = oracle(1, strict=True, threshold=None, worker={"total_kv_blocks": 4})
    assert short(core.step_many((arrive(0, "a"), arrive(0, "b"), arrive(0, "c", 1)))) == "D a, D b, P c"
    assert core.loads()[0][5] == 4
    assert short(core.step(PrefillCompleted(1, "a", 1))) == ""
    assert short(core.step(RequestFinished(2, "a", 1))) == "D c"
    assert core.loads()[0][5] == 3


def test_strict_counts_requests():
    core = oracle(1, strict=True, threshold=None, worker={"max_requests": 1})
    assert short(core.step_many((arrive(0, "a"), arrive(0, "b")))) == "D a, P b"
    assert short(core.step(RequestCancelled(1, "a"))) == "D b"


def test_a_reserve_is_held_until_outputs_outgrow_it():
    core = oracle(1, strict=True, threshold=None, worker={"total_kv_blocks": 5})
    core.step(arrive(0, "a", expected_output_tokens=5))     # 2 blocks of prompt, 2 of reserve
    assert core.loads()[0][5] == 4
    for wanted in (4, 4, 5, 6):
        core.step(OutputBlockAdded(0, "a", 1, 0.0))         # weights play no part
        assert core.loads()[0][5] == wanted
    assert core.stats().over_cap_ranks == 1
    assert short(core.step(arrive(0, "b", 1))) == "P b"


def test_a_prompt_that_runs_there_needs_no_room_of_its_own():
    core = oracle(1, strict=True, threshold=None, worker={"total_kv_blocks": 3})
    core.step(arrive(0, "a", block_hashes=(1, 2)))
    assert short(core.step(arrive(0, "b", block_hashes=(3, 4)))) == "P b"
    assert short(core.step(arrive(0, "c", 12, block_hashes=(1, 2, 5), strict_priority=1))) == "D c"
    assert core.loads()[0][5] == 3


def test_too_large_at_arrival_and_when_the_last_that_could_hold_it_leaves():
    core = oracle(1, strict=True, threshold=None, worker={"total_kv_blocks": 2})
    assert short(core.step(arrive(0, "a", 9))) == "TOO_LARGE a"
    assert short(core.step(arrive(0, "b", 8, expected_output_tokens=1))) == "TOO_LARGE b"
    core.step(upsert(0, 2, total_kv_blocks=3))
    core.step(arrive(0, "c", 9))
    assert short(core.step(arrive(0, "d", 9))) == "P d"
    assert short(core.step(WorkerRemoved(1, 2))) == "E c, TOO_LARGE d"


def test_a_mark_for_good_leaves_nobody_who_could_hold_it():
    core = oracle(1, strict=True, threshold=None, worker={"total_kv_blocks": 2})
    core.step_many((upsert(0, 2, total_kv_blocks=3), arrive(0, "c", 9), arrive(0, "d", 9)))
    assert short(core.step(mark(1, 2, GONE, 9))) == ""
    assert short(core.step(mark(2, 2, GONE))) == "TOO_LARGE d"


def test_a_lowered_cap_is_over_cap_and_gets_nothing_more():
    core = oracle(1, strict=True, threshold=None, worker={"total_kv_blocks": 4})
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    core.step(upsert(0, 1, total_kv_blocks=3))
    assert core.stats().over_cap_ranks == 1
    core.step(RequestFinished(0, "a", 1))
    assert core.stats().over_cap_ranks == 0
    assert short(core.step_many((arrive(0, "c"), arrive(0, "d", 4)))) == "P c, P d"


def test_the_snapshot_counts_only_ranks_that_may_be_used():
    core = oracle(1, 2)
    core.step_many((mark(0, 2, GONE), arrive(0, "x")))
    known = {"overlap": Overlap(((Rank(1), 1), (Rank(2), 2)))}
    core.step(arrive(0, "a", 8, **known))
    assert core.class_counts[0].rejected == 0
    assert core.live["a"].cached == 4
