"""The oracle on retries that are refused, on what a failure undoes, on hints and draining; worked out by hand."""

from __future__ import annotations

import pytest
from oracle import Oracle
from retry_stories import fail, leave, oracle
from stories import arrive, profile, short, upsert

from kvcore.actions import Evict, EvictReason, Reject, RejectReason
from kvcore.config import IndexMode, OnOverload, PrefillDecay, SchedulerConfig
from kvcore.events import (
    CapacityHinted,
    DispatchAccepted,
    Drained,
    Outcome,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
)
from kvcore.policy import Capacity, PolicyProfile
from kvcore.request import Overlap, Rank

R = RejectReason
WAIT = {"on_overload": OnOverload.WAIT, "overload_wait_ns": 10}


# Refusals of a retry.


def test_attempts_run_out():
    core = oracle(attempts_max=2)
    core.step(arrive(0, "a"))
    assert short(core.step(fail(1, "a", 1))) == "D a"
    assert core.step(fail(2, "a", 2)) == (Reject("a", R.RETRIES_EXHAUSTED, 0),)
    assert (core.stats().rejected, core.stats().classes[0].rejected) == ({"RETRIES_EXHAUSTED": 1}, 1)
    assert core.loads()[0][2:6] == (0, 0, 0, 0)


def test_refusals_in_order():
    """Each of them is met by a request to which all that follow apply too."""
    core = oracle(attempts_max=1)
    core.step_many((arrive(0, "a", deadline_ns=5), Drained(0, 50), WorkerRemoved(0, 1)))
    assert core.stats().rejected == {"SHUTTING_DOWN": 1}
    wanted = {"RETRIES_EXHAUSTED": (1, 6, True), "SHUTTING_DOWN": (8, 6, True), "DEADLINE_EXPIRED": (8, 6, False),
              "NO_WORKERS": (8, 4, False)}
    for reason, (attempts, now_ns, drain) in wanted.items():
        core = oracle(attempts_max=attempts)
        core.step(arrive(0, "a", deadline_ns=5))
        assert short(core.step(WorkerRemoved(1, 1))) == "E a"
        core.step_many((Drained(1, 50),) if drain else (TimerFired(1),))
        assert core.step(fail(now_ns, "a", 1)) == (Reject("a", R[reason], 0),)


def test_deadline_is_over_when_it_is_reached():
    for now_ns, wanted in ((4, "P a"), (5, "DEADLINE_EXPIRED a")):
        core = oracle()
        core.step(arrive(0, "a", deadline_ns=5))
        assert short(core.step_many((leave(now_ns), fail(now_ns, "a", 1)))) == wanted


def test_refusals_of_the_fleet_as_it_is_now():
    core = oracle(workers=2)
    core.step_many((arrive(0, "a", pinned=Rank(1)), arrive(0, "b", allowed_workers=frozenset({2}))))
    batch = (leave(1, 1, None), leave(1, 2, None), fail(1, "a", 1), fail(1, "b", 2))
    assert core.step_many(batch) == (Reject("a", R.PINNED_WORKER_UNAVAILABLE, 0), Reject("b", R.NO_ELIGIBLE_WORKER, 0))
    made = profile(10)
    strict = PolicyProfile(made.classes, made.buckets, "f0", made.arbitration, Capacity.STRICT)
    small = Oracle(SchedulerConfig(4, strict))
    small.step(upsert(0, 1, total_kv_blocks=2))
    small.step(arrive(0, "a"))
    batch = (upsert(1, 1, total_kv_blocks=1), fail(1, "a", 1))
    assert small.step_many(batch) == (Reject("a", R.TOO_LARGE, 0),)


def test_refused_in_the_place_of_the_event():
    core = oracle(attempts_max=1)
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    batch = (RequestCancelled(1, "nobody"), fail(1, "a", 1), RequestCancelled(1, "nobody"))
    assert short(core.step_many(batch)) == "I nobody, RETRIES_EXHAUSTED a, I nobody, D b"


# What is undone, and what goes on.


def test_evicted_requests_come_back():
    core = oracle(workers=2, booking_ttl_ns=10)
    core.step(arrive(0, "a", pinned=Rank(1)))
    core.step(arrive(0, "b", overlap=Overlap(((Rank(2), 1),))))
    assert short(core.step(TimerFired(10))) == "E a, E b"
    assert short(core.step(fail(11, "b", 2))) == "D b"
    assert short(core.step_many((leave(12), fail(12, "a", 1)))) == "P a"
    assert core.next_deadline_ns == 21
    assert (core.stats().evicted, core.stats().retried) == (2, 2)


def test_a_failed_prefill_has_not_run():
    """1 token a ns. The second one fails: the first goes on from its own start. The first fails: the second starts."""
    core = oracle(worker={"prefill_tokens_per_s": 10**9}, keys={"prefill_busy_threshold": None},
                  prefill_decay=PrefillDecay.LINEAR)
    core.step_many((arrive(0, "a", 20), arrive(0, "b", 10)))
    core.step_many((leave(5), fail(5, "b", 2, retry=False)))
    assert core.loads()[0][3] == 20 - 5
    other = oracle(worker={"prefill_tokens_per_s": 10**9}, keys={"prefill_busy_threshold": None},
                   prefill_decay=PrefillDecay.LINEAR)
    other.step_many((arrive(0, "a", 20), arrive(0, "b", 10)))
    other.step(fail(5, "a", 1, retry=False))
    assert other.loads()[0][3] == 10


def test_a_failed_dispatch_touches_no_prediction():
    core = oracle(index=IndexMode.APPROXIMATE, predict_ttl_ns=10)
    core.step(arrive(0, "a", block_hashes=(1, 2)))
    core.step(fail(5, "a", 1, retry=False))
    assert core.index[1, 0].expected == {2: 0, 1: 0}
    core.step(arrive(6, "b", block_hashes=(1, 2)))
    core.step(RequestFinished(9, "b", 2, Outcome.ABORTED))
    assert core.index[1, 0].expected == {2: 9, 1: 9}


def test_looks_at_overload_go_on_in_step_with_the_arrival():
    core = oracle(**WAIT)
    core.step(arrive(3, "a"))
    overloaded = WorkerStatusChanged(33, 1, 0, "s", overloaded=True)
    assert short(core.step_many((overloaded, fail(33, "a", 1)))) == "P a"
    assert core.next_deadline_ns == 43
    assert core.step(TimerFired(43)) == (Reject("a", R.ALL_ELIGIBLE_OVERLOADED, 0),)


def test_deadline_counts_again():
    core = oracle()
    core.step(arrive(0, "a", deadline_ns=20))
    assert core.next_deadline_ns is None
    core.step_many((leave(1), fail(1, "a", 1)))
    assert core.next_deadline_ns == 20
    assert core.step(TimerFired(20)) == (Reject("a", R.DEADLINE_EXPIRED, 0),)


def test_old_attempts_of_what_waits_again_are_stale():
    core = oracle()
    core.step(arrive(0, "a"))
    core.step_many((leave(1), fail(1, "a", 1)))
    batch = (fail(2, "a", 1), RequestFinished(2, "a", 1), PrefillCompleted(2, "a", 1), DispatchAccepted(2, "a", 1))
    assert short(core.step_many(batch)) == "I a, I a, I a, I a"
    assert core.step(RequestCancelled(2, "a")) == ()
    assert (core.stats().aborted, core.stats().live_requests) == (1, 0)


# Hints and draining.


@pytest.mark.parametrize("ranks", [None, (), (Rank(1),), (Rank(1), Rank(7, 3))])
def test_hints_change_nothing(ranks):
    core = oracle()
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    before = core.stats()
    assert core.step(CapacityHinted(1, ranks)) == ()
    assert core.stats() == before


def test_drain_rejects_what_waits_by_seq_and_what_comes():
    core = oracle(quanta=(10, 10))
    core.step_many((arrive(0, "a"), arrive(0, "c", policy_class="f1"), arrive(0, "b")))
    batch = (arrive(1, "d"), Drained(1, 100), arrive(1, "d"), arrive(1, "a"))
    assert core.step_many(batch) == (
        Reject("c", R.SHUTTING_DOWN, 1), Reject("b", R.SHUTTING_DOWN, 0), Reject("d", R.SHUTTING_DOWN, 0),
        Reject("d", R.SHUTTING_DOWN), Reject("a", R.DUPLICATE_ID))
    assert (core.stats().running_requests, core.next_deadline_ns) == (1, 100)
    assert short(core.step(RequestFinished(2, "a", 1))) == ""


def test_who_still_runs_at_the_deadline_is_evicted_once():
    core = oracle(workers=2)
    core.step_many((arrive(0, "b", pinned=Rank(2)), arrive(0, "a", pinned=Rank(1))))
    core.step(Drained(1, 9))
    assert core.step(TimerFired(8)) == ()
    assert core.step(TimerFired(9)) == (
        Evict("b", 1, 2, EvictReason.DRAIN_DEADLINE), Evict("a", 2, 1, EvictReason.DRAIN_DEADLINE))
    assert core.next_deadline_ns is None
    assert core.step(TimerFired(10)) == ()
    assert short(core.step_many((fail(11, "b", 1), RequestFinished(11, "a", 2)))) == "SHUTTING_DOWN b"
    assert (core.stats().live_requests, core.stats().evicted, core.stats().completed) == (0, 2, 1)


def test_a_deadline_in_the_past_is_now_and_a_later_one_replaces_it():
    core = oracle()
    core.step_many((arrive(5, "a"), arrive(5, "b")))
    batch = (Drained(6, 5), RequestCancelled(6, "nobody"))
    assert short(core.step_many(batch)) == "SHUTTING_DOWN b, E a, I nobody"
    for second, due_ns in ((20, 20), (6, 6)):
        other = oracle()
        other.step(arrive(0, "a"))
        other.step(Drained(1, 9))
        other.step(Drained(2, second))
        assert other.next_deadline_ns == due_ns
        assert other.step(TimerFired(due_ns - 1)) == ()
        assert short(other.step(TimerFired(due_ns))) == "E a"


def test_drain_is_the_last_thing_due_at_its_time():
    core = oracle(workers=2, booking_ttl_ns=10)
    core.step_many((arrive(0, "a", pinned=Rank(1)), arrive(0, "b", pinned=Rank(2))))
    core.step(PrefillCompleted(5, "a", 1))
    core.step(Drained(6, 10))
    assert core.step(TimerFired(10)) == (
        Evict("b", 2, 2, EvictReason.BOOKING_EXPIRED), Evict("a", 1, 1, EvictReason.DRAIN_DEADLINE))


def test_no_retry_while_draining():
    core = oracle()
    core.step(arrive(0, "a"))
    assert core.step_many((Drained(1, 100), fail(1, "a", 1))) == (Reject("a", R.SHUTTING_DOWN, 0),)
    assert core.next_deadline_ns == 100
