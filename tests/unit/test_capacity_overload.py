"""Overload that is waited for: looks at multiples of overload_wait_ns after the arrival (DESIGN D7)."""

from __future__ import annotations

import pytest
from capacity_stories import FOREVER, GONE, LEASED, OPEN, OVERLOADED, FleetStory, in_states
from stories import arrive, profile, short

from kvcore.actions import Reject, RejectReason
from kvcore.config import OnOverload
from kvcore.events import PrefillCompleted, RequestFinished, TimerFired, WorkerRemoved
from kvcore.request import Rank

R = RejectReason
WAITS = {"profile": profile(prefill_busy_threshold=0)}
NEVER_WAITS = {"profile": profile(prefill_busy_threshold=0, request_queue_limit_per_worker=0)}
OUT = {"on_overload": OnOverload.WAIT, "overload_wait_ns": 10}
SITS_OUT = {**WAITS, **OUT}


@pytest.mark.parametrize("fields", [{}, {"pinned": Rank(1)}, {"allowed_workers": frozenset({1})}])
def test_who_waits_for_overload_to_end_is_looked_at_and_given_up(fields):
    story = FleetStory(1, **SITS_OUT)
    story.overload(1)
    story.at(5)
    assert short(story.arrive("a", **fields)) == "P a"
    assert story.core.next_deadline_ns == 15
    assert story.tick(14) == ()
    reason = R.PINNED_WORKER_OVERLOADED if "pinned" in fields else R.ALL_ELIGIBLE_OVERLOADED
    assert story.tick(15) == (Reject("a", reason, 0),)
    assert story.core.next_deadline_ns is None


@pytest.mark.parametrize("ends_ns", [1, 9])
def test_overload_that_ends_in_time_is_forgiven(ends_ns):
    story = FleetStory(1, **SITS_OUT)
    story.overload(1, lease_ns=ends_ns)
    story.arrive("a")
    assert story.core.next_deadline_ns == ends_ns
    assert short(story.tick(ends_ns)) == "D a"


def test_overload_that_ends_at_the_look_is_forgiven():
    """Leases end before anybody is looked at."""
    story = FleetStory(1, **SITS_OUT)
    story.overload(1, lease_ns=10)
    story.arrive("a")
    assert short(story.tick(10)) == "D a"


def test_looks_come_at_multiples_after_the_arrival():
    story = FleetStory(1, **SITS_OUT)
    story.run("x")
    story.at(3).arrive("a")
    for look_ns in (13, 23, 33):
        assert story.core.next_deadline_ns == look_ns
        assert story.tick(look_ns) == ()
    story.at(34).overload(1, lease_ns=8)
    assert story.core.next_deadline_ns == 42
    assert story.tick(42) == story.tick(43) == ()   # between two looks it may be overloaded without harm
    story.at(50).overload(1, lease_ns=100)
    assert story.core.next_deadline_ns == 53
    assert short(story.tick(53)) == "ALL_ELIGIBLE_OVERLOADED a"


def test_looks_that_nobody_stepped_for_are_made_up_for():
    story = FleetStory(1, **SITS_OUT)
    story.run("x")
    story.at(3).arrive("a")
    story.tick(1000)
    assert story.core.next_deadline_ns == 1003
    story.overload(1, lease_ns=5)
    assert short(story.tick(1003)) == "ALL_ELIGIBLE_OVERLOADED a"


@pytest.mark.parametrize(("from_ns", "to_ns", "wanted"), [(9, 12, "ALL_ELIGIBLE_OVERLOADED a"), (11, 19, ""),
                                                          (11, 20, ""), (11, 21, "ALL_ELIGIBLE_OVERLOADED a")])
def test_a_long_step_looks_at_every_time_that_was_due(from_ns, to_ns, wanted):
    """Overload from one time to another, and no step until much later: looks are at 10, 20, 30, ..."""
    story = FleetStory(1, **SITS_OUT)
    story.run("x")
    story.arrive("a")
    story.at(from_ns).overload(1, lease_ns=to_ns - from_ns)
    assert short(story.tick(99)) == wanted


def test_a_deadline_comes_before_a_look_of_the_same_time():
    story = FleetStory(1, **SITS_OUT)
    story.overload(1)
    story.arrive("a", deadline_ns=10)
    assert short(story.tick(10)) == "DEADLINE_EXPIRED a"


def test_a_look_comes_before_a_booking_expires():
    story = FleetStory(1, 2, booking_ttl_ns=10, **SITS_OUT)
    story.run("x", pinned=Rank(2))
    story.overload(1)
    story.arrive("a", pinned=Rank(1))
    assert short(story.tick(10)) == "PINNED_WORKER_OVERLOADED a, E x"


def test_looks_of_the_same_time_go_by_order_of_arrival():
    story = FleetStory(1, **SITS_OUT)
    story.overload(1)
    story.many(arrive(0, "b"), arrive(0, "a", strict_priority=9))
    assert short(story.tick(10)) == "ALL_ELIGIBLE_OVERLOADED b, ALL_ELIGIBLE_OVERLOADED a"


@pytest.mark.parametrize("other", [OPEN, LEASED, OVERLOADED, GONE])
def test_one_rank_that_is_not_overloaded_is_enough_to_go_on(other):
    story = FleetStory(1, 2, **SITS_OUT)
    for worker_id in (1, 2):
        story.run(f"x{worker_id}", pinned=Rank(worker_id))
    story.arrive("a")
    in_states(story, (OVERLOADED, other))
    assert short(story.tick(10)) == ("" if other in (OPEN, LEASED) else "ALL_ELIGIBLE_OVERLOADED a")


def test_other_workers_do_not_count_at_a_look():
    story = FleetStory(1, 2, **SITS_OUT)
    story.run("x", pinned=Rank(1))
    story.run("y", pinned=Rank(2))
    story.overload(1)
    story.arrive("a", allowed_workers=frozenset({1}))
    story.arrive("b")
    assert short(story.tick(10)) == "ALL_ELIGIBLE_OVERLOADED a"


def test_classes_that_never_wait_do_not_wait_for_overload_either():
    story = FleetStory(1, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    story.overload(1)
    assert short(story.arrive("a")) == "ALL_ELIGIBLE_OVERLOADED a"
    assert short(story.arrive("b", pinned=Rank(1))) == "PINNED_WORKER_OVERLOADED b"
    assert story.core.next_deadline_ns is None


def test_who_may_not_wait_does_not_wait_for_overload_either():
    story = FleetStory(1, **SITS_OUT)
    story.overload(1)
    assert short(story.arrive("a", do_not_queue=True)) == "WOULD_QUEUE a"
    story = FleetStory(1, **NEVER_WAITS, **OUT)
    story.overload(1)
    assert short(story.arrive("a")) == "QUEUE_FULL_REQUESTS a"
    assert story.core.next_deadline_ns is None


def test_under_reject_nobody_is_looked_at():
    story = FleetStory(1, **WAITS)
    story.run("x")
    story.arrive("a")
    assert story.core.next_deadline_ns is None


def test_whoever_leaves_the_queue_is_not_looked_at():
    story = FleetStory(1, **SITS_OUT)
    story.overload(1)
    for name in "abc":
        story.arrive(name)
    story.cancel("a")
    assert short(story.at(4).say(1)) == "D b"
    assert story.many(PrefillCompleted(5, "b", 1), RequestFinished(5, "b", 1), WorkerRemoved(5, 1)) == (
        Reject("c", R.NO_WORKERS, 0),)
    assert story.core.next_deadline_ns is None
    assert story.many(TimerFired(10)) == ()


def test_looks_beyond_all_time_never_come():
    story = FleetStory(1, **{**SITS_OUT, "overload_wait_ns": FOREVER})
    story.overload(1)
    story.at(1).arrive("a")
    assert story.core.next_deadline_ns is None
    assert story.tick(FOREVER) == ()
