"""Failed dispatches, acceptance, hints and drain through the scheduler (DESIGN D11, 3.1)."""

from __future__ import annotations

import pytest
from stories import Story, arrive, profile, short

from kvcore.actions import Dispatch, Evict, EvictReason, Ignored, Reject, RejectReason
from kvcore.events import (
    DispatchFailed,
    OutputBlockAdded,
    RequestFinished,
    WorkerStatusChanged,
)
from kvcore.policy import QueuePolicy
from kvcore.request import Rank

QUEUE = {"profile": profile(prefill_busy_threshold=0)}


def test_acceptance_is_told_once():
    story = Story(1, booking_ttl_ns=100)
    story.arrive("a")
    story.tick(60)
    assert story.accept("a", 1) == ()
    assert story.core.next_deadline_ns == 160  # it is progress
    assert story.accept("a", 1) == (Ignored("a", 1),)
    assert story.accept("a", 2) == (Ignored("a", 2),)
    story.arrive("b")
    story.prefill("b", 2)
    assert story.accept("b", 2) == (Ignored("b", 2),)  # progress has said it


def test_a_failed_dispatch_is_undone_exactly():
    """FIELD-REPORTS E4: what a delivery that failed had reserved comes back, to the last block."""
    story = Story(1)
    story.arrive("x", 9, block_hashes=(1, 2))
    before = story.core.loads().tolist()
    story.arrive("a", 40, block_hashes=(1, 2, 3), expected_output_tokens=50)
    story.output("a", 2, 0.25)
    assert story.fail("a", 2) == ()
    assert story.core.loads().tolist() == before
    assert story.core.stats().aborted == 1
    assert story.fail("a", 2) == (Ignored("a", 2),)


def test_put_back_it_stands_where_it_stood():
    """FIELD-REPORTS E53: a request that comes back keeps its key; it is not queued behind those that came later."""
    story = Story(1, **QUEUE)
    story.arrive("first")
    assert short(story.many(*[arrive(5, name) for name in "ab"])) == "P a, P b"
    assert short(story.many(DispatchFailed(9, "first", 1, True))) == "D first"
    action = story.many(DispatchFailed(12, "first", 2, True))[0]
    assert (action.attempt, action.wait_ns) == (3, 12)
    assert story.core.stats().retried == 2
    assert short(story.finish("first", 3)) == "D a"


def test_a_lease_in_the_same_batch_keeps_it_from_running_straight_back():
    story = Story(1, 2, **QUEUE)
    worker = story.arrive("a")[0].worker_id
    gone = WorkerStatusChanged(5, worker, 0, "router", False, False, 100)
    (action,) = story.many(gone, DispatchFailed(5, "a", 1, True))
    assert isinstance(action, Dispatch)
    assert action.worker_id == 3 - worker
    other = WorkerStatusChanged(6, 3 - worker, 0, "router", False, False, 200)
    assert short(story.many(other, DispatchFailed(6, "a", 2, True))) == "P a"
    assert short(story.tick(105)) == "D a"


def test_it_costs_nothing_again():
    """Neither deficit nor retry-after window notice it: the charge of the first dispatch stands."""
    story = Story(1, **QUEUE)
    story.arrive("a", 100)
    before = story.core.stats().classes[0]
    assert short(story.fail("a", 1, True)) == "D a"
    after = story.core.stats().classes[0]
    assert after.dispatched == before.dispatched + 1
    assert after.dispatched_cost_tokens == before.dispatched_cost_tokens
    assert after.deficit_tokens == before.deficit_tokens == 0


def test_limits_are_not_tested_again_but_it_counts():
    story = Story(1, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=1))
    story.arrive("a")
    story.arrive("x", pinned=Rank(1))
    hold = arrive(1, "hold", strict_priority=1)
    assert short(story.many(hold)) == "QUEUE_FULL_REQUESTS hold"
    mark = WorkerStatusChanged(2, 1, 0, "router", False, False, 50)
    assert short(story.many(mark, DispatchFailed(2, "a", 1, True))) == "P a"
    assert story.core.stats().waiting_requests == 2
    assert story.core.stats().classes[0].waiting_cost_tokens == 8  # of x; a is free


def test_attempts_come_to_an_end():
    story = Story(1, attempts_max=3)
    story.arrive("a")
    for attempt in (1, 2):
        assert short(story.fail("a", attempt, True)) == "D a"
    assert story.fail("a", 3, True) == (Reject("a", RejectReason.RETRIES_EXHAUSTED, 0),)
    assert story.core.stats().live_requests == 0


def test_an_evict_may_be_answered_with_a_retry():
    story = Story(1, 2)
    worker = story.arrive("a")[0].worker_id
    assert short(story.remove(worker)) == "E a"
    assert short(story.fail("a", 1, True)) == "D a"
    assert story.finish("a", 1) == (Ignored("a", 1),)  # E22: the attempt before is over
    assert story.finish("a", 2) == ()


@pytest.mark.parametrize("late", [
    DispatchFailed(1, "a", 1, True), DispatchFailed(1, "a", 1), RequestFinished(1, "a", 1), OutputBlockAdded(1, "a", 1),
])
def test_facts_about_the_attempt_before_hit_nothing(late):
    story = Story(1)
    story.arrive("a")
    story.fail("a", 1, True)
    before = story.core.digest()
    assert story.many(late) == (Ignored("a", 1),)
    assert story.core.digest() == before


def test_why_it_is_not_put_back():
    story = Story(1, 2)
    story.arrive("late", deadline_ns=50)
    story.arrive("pin", pinned=Rank(2))
    story.arrive("only", allowed_workers=frozenset({1}), pinned=Rank(1))
    assert story.many(DispatchFailed(50, "late", 1, True)) == (Reject("late", RejectReason.DEADLINE_EXPIRED, 0),)
    story.remove(2)
    assert story.fail("pin", 2, True) == (Reject("pin", RejectReason.PINNED_WORKER_UNAVAILABLE, 0),)
    story.remove(1)
    assert story.fail("only", 3, True) == (Reject("only", RejectReason.NO_WORKERS, 0),)


def test_what_may_not_wait_runs_again_or_is_refused():
    story = Story(1, 2, **QUEUE)
    story.arrive("x", pinned=Rank(2))
    story.arrive("now", do_not_queue=True)
    assert short(story.fail("now", 2, True)) == "D now"
    mark = WorkerStatusChanged(3, 1, 0, "router", False, False, 50)
    assert short(story.many(mark, DispatchFailed(3, "now", 3, True))) == "WOULD_QUEUE now"


def test_one_park_a_batch_and_by_seq():
    story = Story(1, **QUEUE)
    story.arrive("old")
    mark = WorkerStatusChanged(1, 1, 0, "router", False, False, 50)
    actions = story.many(arrive(1, "new"), mark, DispatchFailed(1, "old", 1, True), arrive(1, "newer"))
    assert short(actions) == "P old, P new, P newer"


def test_a_shortest_first_queue_keeps_its_order():
    story = Story(1, profile=profile(prefill_busy_threshold=0, queue_policy=QueuePolicy.WSPT))
    story.arrive("long", 100)
    story.arrive("short", 5)
    assert short(story.fail("long", 1, True)) == "D short, P long"
    assert short(story.finish("short", 2)) == "D long"


def test_hints_bring_nothing_that_would_not_have_come():
    story = Story(1, 2, **QUEUE)
    story.arrive("x", pinned=Rank(1))
    story.arrive("y", pinned=Rank(2))
    story.arrive("a")
    before = story.core.digest()
    assert story.hint() == story.hint(Rank(1)) == story.hint(Rank(9)) == ()
    assert story.core.digest() == before


def test_a_drain_lets_the_running_finish_until_its_deadline():
    """FIELD-REPORTS E79: every request gets a terminal answer."""
    story = Story(1, **QUEUE)
    story.arrive("a")
    for name in ("b", "c"):
        story.arrive(name, strict_priority=1)
    assert short(story.drain(100)) == "SHUTTING_DOWN b, SHUTTING_DOWN c"
    assert story.arrive("d") == (Reject("d", RejectReason.SHUTTING_DOWN),)
    assert story.arrive("a") == (Reject("a", RejectReason.DUPLICATE_ID),)
    assert story.core.next_deadline_ns == 100
    assert story.tick(99) == ()
    assert story.tick(100) == (Evict("a", 1, 1, EvictReason.DRAIN_DEADLINE),)
    assert story.core.next_deadline_ns is None
    assert story.fail("a", 1, True) == (Reject("a", RejectReason.SHUTTING_DOWN, 0),)
    assert story.core.stats().live_requests == 0


def test_a_later_drain_replaces_the_deadline_and_a_past_one_is_now():
    story = Story(1)
    story.arrive("b")
    story.arrive("a")
    assert story.drain(100) == ()
    assert story.drain(200) == ()
    assert story.tick(150) == ()
    assert short(story.drain(150)) == "E b, E a"
    assert story.core.next_deadline_ns is None
