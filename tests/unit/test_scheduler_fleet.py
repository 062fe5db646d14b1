"""Workers come, change, restart and go while requests wait and run (DESIGN D14, D15)."""

from __future__ import annotations

import pytest
from stories import Story, arrive, profile, short, upsert

from kvcore.actions import Dispatch, Evict, EvictReason, Reject, RejectReason
from kvcore.events import PrefillCompleted, WorkerRemoved
from kvcore.request import Rank

WAITS = {"profile": profile(prefill_busy_threshold=0)}


def test_a_first_worker_takes_nobody_who_has_been_refused():
    story = Story(**WAITS)
    assert short(story.arrive("a")) == "NO_WORKERS a"
    assert story.upsert(1) == ()
    assert short(story.arrive("a")) == "D a"


def test_removal_evicts_in_order_of_attempt():
    story = Story()
    story.upsert(1, dp_size=3)
    story.upsert(2)
    for name, dp_rank in (("d", 2), ("a", 0), ("c", 1), ("b", 0)):
        story.arrive(name, pinned=Rank(1, dp_rank))
    story.arrive("e", pinned=Rank(2))
    assert story.remove(1) == tuple(
        Evict(name, attempt, 1, EvictReason.WORKER_REMOVED) for attempt, name in enumerate("dacb", 1))
    assert story.loads() == [(2, 0, 1, 8, 0)]
    assert story.core.stats().workers == 1
    assert story.core.stats().live_requests == 5


def test_the_evicted_may_still_end_and_nothing_else():
    story = Story(1)
    for name in "abc":
        story.arrive(name)
    story.remove(1)
    assert short(story.prefill("a", 1)) == "I a"
    assert short(story.output("a", 1)) == "I a"
    assert short(story.arrive("a")) == "DUPLICATE_ID a"
    assert short(story.finish("a", 1)) == ""
    assert short(story.cancel("b")) == ""
    assert story.tick(10**15) == ()  # without a time to live it waits for its answer for ever
    stats = story.core.stats()
    assert (stats.completed, stats.aborted, stats.evicted, stats.live_requests) == (1, 1, 3, 1)
    story.upsert(1)
    assert short(story.arrive("a")) == "D a"


def test_eviction_and_time_to_live():
    story = Story(1, booking_ttl_ns=100)
    story.arrive("a")
    story.at(30).remove(1)
    assert story.core.next_deadline_ns == 130
    assert story.tick(130) == ()
    assert story.core.stats().aborted == 1


def test_pins_of_a_gone_worker_are_rejected_and_others_go_on():
    story = Story(1, 2, **WAITS)
    for worker_id in (1, 2):
        story.arrive(f"x{worker_id}", pinned=Rank(worker_id))
    story.arrive("pin", pinned=Rank(1))
    story.arrive("pin2", pinned=Rank(1), strict_priority=1)
    story.arrive("other", pinned=Rank(2))
    story.arrive("any")
    assert short(story.remove(1)) == "E x1, PINNED_WORKER_UNAVAILABLE pin2, PINNED_WORKER_UNAVAILABLE pin"
    assert short(story.prefill("x2", 2)) == "D other"


def test_a_restart_evicts_and_keeps_who_waits():
    story = Story(1, **WAITS)
    story.arrive("x", block_hashes=(1, 2))
    story.store(1, 1, 2)
    story.arrive("pin", pinned=Rank(1))
    story.arrive("any")
    assert story.core.stats().index_blocks == 2
    assert short(story.upsert(1, incarnation=5)) == "E x, D pin"
    assert story.core.stats().index_blocks == 0
    assert story.loads() == [(1, 0, 1, 8, 0)]


def test_a_restart_may_lose_the_rank_that_somebody_waits_for():
    story = Story(**WAITS)
    story.upsert(1, dp_size=2)
    for dp_rank in (0, 1):
        story.arrive(f"x{dp_rank}", pinned=Rank(1, dp_rank))
        story.arrive(f"w{dp_rank}", pinned=Rank(1, dp_rank))
    assert short(story.upsert(1, incarnation=1, dp_start=1)) == (
        "E x0, E x1, PINNED_WORKER_UNAVAILABLE w0, D w1")


def test_removed_and_added_in_one_batch_is_a_restart():
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("pin", pinned=Rank(1))
    assert short(story.many(WorkerRemoved(1, 1), upsert(1, 1))) == "E x, D pin"
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("pin", pinned=Rank(1))
    assert short(story.many(WorkerRemoved(1, 1), arrive(1, "late"), upsert(1, 1))) == "E x, NO_WORKERS late, D pin"


def test_the_same_incarnation_replaces_the_configuration():
    story = Story(profile=profile(prefill_busy_threshold_frac=1.0))
    story.upsert(1, max_batched_tokens=4)
    story.arrive("x", 8)
    story.arrive("a", 8)
    assert story.core.stats().waiting_requests == 1
    assert short(story.upsert(1, max_batched_tokens=7)) == ""
    assert short(story.upsert(1, max_batched_tokens=8)) == "D a"
    assert short(story.arrive("b")) == "P b"
    assert short(story.upsert(1)) == "D b"  # no cap counts as ten million
    assert story.core.stats().stale_events == 0


def test_a_shrinking_range_evicts_its_own_ranks_only():
    story = Story()
    story.upsert(1, dp_size=4)
    for dp_rank in range(4):
        story.arrive(f"r{dp_rank}", pinned=Rank(1, dp_rank))
        story.store(1, dp_rank, dp_rank=dp_rank)
    assert short(story.upsert(1, dp_start=1, dp_size=2)) == "E r0, E r3"
    assert [row[:3] for row in story.loads()] == [(1, 1, 1), (1, 2, 1)]
    assert story.core.stats().index_blocks == 2
    assert short(story.upsert(1, dp_size=4)) == ""
    assert [row[2] for row in story.loads()] == [0, 1, 1, 0]
    assert short(story.finish("r1", 2)) == ""


def test_a_new_worker_serves_who_waits():
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("pin", pinned=Rank(1))
    story.arrive("a")
    story.arrive("b")
    (action,) = story.upsert(2)
    assert (action.request_id, action.worker_id) == ("a", 2)
    assert short(story.upsert(3, dp_size=2)) == "D b"


def test_stale_facts_are_counted_and_nothing_else():
    story = Story()
    story.upsert(1, incarnation=3, dp_start=1)
    story.store(1, 7, dp_rank=1, incarnation=3)
    before = story.core.digest()
    for number, fact in enumerate((
            lambda: story.upsert(1, incarnation=2, dp_size=9), lambda: story.remove(2),
            lambda: story.store(1, 8, dp_rank=1, incarnation=2), lambda: story.store(1, 8, dp_rank=1, incarnation=4),
            lambda: story.store(1, 8, dp_rank=0, incarnation=3), lambda: story.store(2, 8, incarnation=0),
            lambda: story.drop(1, 7, dp_rank=1, incarnation=2), lambda: story.drop(1, 7, dp_rank=2, incarnation=3),
            lambda: story.clear(1, dp_rank=1, incarnation=4), lambda: story.clear(9)), 1):
        assert fact() == ()
        assert story.core.stats().stale_events == number
    assert story.core.digest() == before
    assert story.drop(1, 7, 99, dp_rank=1, incarnation=3) == story.drop(1, 7, dp_rank=1, incarnation=3) == ()
    assert story.core.stats().stale_events == 10
    assert story.core.stats().index_blocks == 0


def test_an_incarnation_that_was_forgotten_may_come_back():
    """Only of a worker that is known can a fact be old."""
    story = Story()
    story.upsert(1, incarnation=9)
    story.remove(1)
    assert story.upsert(1, incarnation=2) == ()
    assert story.core.stats().stale_events == 0
    assert short(story.arrive("a")) == "D a"


def test_limits_count_workers_and_not_ranks():
    story = Story(profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=2))
    story.upsert(1, dp_size=3)
    for number in range(3):
        story.arrive(f"x{number}")
    for name in "ab":
        assert short(story.arrive(name)) == f"P {name}"
    assert story.arrive("c") == (Reject("c", RejectReason.QUEUE_FULL_REQUESTS, 0, 2, 2, None),)


def test_a_shrinking_fleet_evicts_nobody_who_waits():
    story = Story(1, 2, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=1))
    for worker_id in (1, 2):
        story.arrive(f"x{worker_id}", pinned=Rank(worker_id))
    for name in "ab":
        assert short(story.arrive(name)) == f"P {name}"
    assert short(story.remove(2)) == "E x2"
    assert story.core.stats().waiting_requests == 2
    assert story.arrive("c")[0].limit == 1
    assert short(story.upsert(2)) == "D a"


@pytest.mark.parametrize("falls", [1, 255, 256, 257, 600])
def test_the_right_lanes_are_judged_again_however_many_ranks_changed(falls):
    """DESIGN D15: up to 256 changes are remembered one by one, more mean a full recheck."""
    story = Story(**WAITS)
    story.upsert(1, dp_size=600)
    story.many(*[arrive(1, f"x{i}", pinned=Rank(1, i)) for i in range(600)])
    story.many(*[arrive(2, f"w{i}", pinned=Rank(1, i)) for i in range(600)])
    assert story.core.stats().waiting_requests == 600
    chosen = range(600 - falls, 600)
    actions = story.many(*[PrefillCompleted(3, f"x{i}", i + 1) for i in reversed(chosen)])
    assert [action.request_id for action in actions] == [f"w{i}" for i in chosen]
    assert all(isinstance(action, Dispatch) for action in actions)


def test_an_older_pin_competes_before_a_later_arrival():
    """Capacity that comes with the arrival itself goes to the best who waits."""
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("pin", pinned=Rank(1))
    assert short(story.many(PrefillCompleted(1, "x", 1), arrive(1, "new"))) == "D pin, P new"
    assert short(story.many(PrefillCompleted(2, "pin", 2), arrive(2, "newer", strict_priority=1))) == "D newer"
