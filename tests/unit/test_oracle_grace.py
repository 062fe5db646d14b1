"""Stories of requests that wait for ranks that are lost, and for a fleet that is empty (DESIGN D14).

Worked out by hand. Graces: 10 ns for a pin, 30 ns for an empty fleet, unless said otherwise.
"""

from __future__ import annotations

import pytest
from scripted import MAKERS, Play, classes, holding
from stories import arrive, short, upsert

from kvcore.actions import Dispatch, Park, Reject, RejectReason
from kvcore.config import IndexMode
from kvcore.events import DispatchFailed, RequestCancelled, WorkerRemoved, WorkerStatusChanged
from kvcore.policy import Capacity, QueuePolicy
from kvcore.request import Rank

R = RejectReason
LOST = R.PINNED_WORKER_UNAVAILABLE
pytestmark = pytest.mark.parametrize("make", MAKERS)


def waiting(make, *workers: int, keys: dict | None = None, **config) -> Play:
    return Play(make, *workers, profile=classes(**(keys or {})),
                **{"pin_grace_ns": 10, "empty_fleet_wait_ns": 30, **config})


def gone(now_ns: int, worker_id: int = 1, source: str = "s", **mark) -> WorkerStatusChanged:
    return WorkerStatusChanged(now_ns, worker_id, 0, source, **{"available": False, **mark})


# Pins.


def test_without_a_grace_nobody_waits(make):
    story = waiting(make, 1, pin_grace_ns=0, empty_fleet_wait_ns=0)
    assert story.arrive("a", pinned=Rank(2)) == (Reject("a", LOST),)
    story.remove(1)
    assert story.arrive("b") == (Reject("b", R.NO_WORKERS),)


def test_a_rank_never_seen_is_waited_for_from_the_arrival(make):
    story = waiting(make, 1).at(5)
    for name, pin in (("a", Rank(2)), ("b", Rank(1, 1))):
        assert story.arrive(name, pinned=pin) == (Park(name, 0),)
    assert story.core.next_deadline_ns == 15
    assert story.at(14).upsert(2) == (Dispatch("a", 1, 2, 0, 0, 0, 0, 8, 2, 9),)
    assert story.tick(15) == (Reject("b", LOST, 0),)
    assert story.core.stats().classes[0].deficit_tokens == 0


def test_a_loss_is_waited_for_from_its_own_time(make):
    """Or from the arrival if that is later."""
    story = waiting(make, 1, 2)
    story.arrive("run", pinned=Rank(1))
    story.arrive("a", pinned=Rank(1))
    assert short(story.at(20).remove(1)) == "E run"
    story.at(24).arrive("b", pinned=Rank(1))
    assert story.core.next_deadline_ns == 30
    assert story.tick(30) == (Reject("a", LOST, 0),)
    assert story.tick(34) == (Reject("b", LOST, 0),)
    assert short(story.at(40).arrive("c", pinned=Rank(1))) == "P c"
    assert short(story.upsert(1)) == "D c"


def test_a_loss_is_not_renewed(make):
    """A worker that is gone is marked again, and removed."""
    story = waiting(make, 1, 2)
    assert story.many(gone(5)) == ()
    for now, event in ((7, gone(7, source="t")), (8, gone(8)), (9, WorkerRemoved(9, 1))):
        story.many(event)
        assert short(story.arrive(f"r{now}", pinned=Rank(1))) == f"P r{now}"
    assert story.core.next_deadline_ns == 17
    story.at(10).upsert(1)
    assert story.core.next_deadline_ns is None
    story.at(12).remove(1)
    assert story.core.next_deadline_ns == 22


def test_marks_that_end_a_loss(make):
    story = waiting(make, 1, 2)
    story.many(gone(5))
    assert short(story.arrive("a", pinned=Rank(1))) == "P a"
    assert short(story.at(9).many(gone(9, available=True))) == "D a"
    story.arrive("b", pinned=Rank(1))
    story.at(20).many(gone(20))
    assert story.core.next_deadline_ns == 30
    assert story.tick(30) == (Reject("b", LOST, 0),)


def test_a_lease_is_no_loss(make):
    story = waiting(make, 1, 2)
    story.many(gone(0, lease_ns=100))
    assert short(story.arrive("a", pinned=Rank(1))) == "P a"
    assert story.core.next_deadline_ns == 100
    assert short(story.tick(100)) == "D a"


def test_a_range_that_shrinks_and_grows(make):
    story = waiting(make)
    story.upsert(1, dp_size=2)
    story.arrive("run", pinned=Rank(1, 1))
    story.arrive("a", pinned=Rank(1, 1))
    assert short(story.at(4).upsert(1)) == "E run"
    assert story.core.next_deadline_ns == 14
    assert short(story.at(13).upsert(1, dp_size=2)) == "D a"


def test_a_restart_is_no_loss(make):
    story = waiting(make, 1)
    story.arrive("run")
    story.arrive("a", pinned=Rank(1))
    assert short(story.at(4).upsert(1, 1)) == "E run, D a"


def test_what_is_not_waited_for(make):
    """Allow-lists are looked at first; taints, marks of an unpinned request and sizes are no loss."""
    story = waiting(make, 1, keys={"capacity": Capacity.STRICT})
    assert short(story.arrive("a", pinned=Rank(9), allowed_workers=frozenset({1}))) == "PINNED_WORKER_NOT_ALLOWED a"
    assert short(story.arrive("b", required_taints=frozenset({"x"}))) == "NO_ELIGIBLE_WORKER b"
    assert short(story.arrive("c", pinned=Rank(1), required_taints=frozenset({"x"}))) == "NO_ELIGIBLE_WORKER c"
    story.upsert(1, total_kv_blocks=1)
    assert short(story.arrive("d")) == "TOO_LARGE d"
    assert short(story.arrive("e", pinned=Rank(9))) == "P e"        # and TOO_LARGE for worker 1, if it went there
    story.many(gone(0))
    assert short(story.arrive("f")) == "NO_ELIGIBLE_WORKER f"


# Fleets.


def test_an_empty_fleet_is_waited_for_from_the_start(make):
    story = waiting(make)
    story.at(5).arrive("a")
    story.at(6).arrive("b", deadline_ns=20)
    assert story.core.next_deadline_ns == 20
    assert short(story.tick(20)) == "DEADLINE_EXPIRED b"
    assert story.tick(35) == (Reject("a", R.NO_WORKERS, 0),)
    assert short(story.arrive("c")) == "P c"
    assert short(story.at(64).upsert(1)) == "D c"


def test_an_emptied_fleet_is_waited_for_from_its_end(make):
    story = waiting(make, 1)
    story.arrive("run")
    story.arrive("a")
    assert short(story.at(50).remove(1)) == "E run"
    assert story.core.next_deadline_ns == 80
    assert story.tick(80) == (Reject("a", R.NO_WORKERS, 0),)


def test_of_two_graces_the_later_one_counts(make):
    story = waiting(make).at(5)
    story.arrive("a", pinned=Rank(1))
    assert story.core.next_deadline_ns == 35
    short_wait = waiting(make, empty_fleet_wait_ns=3).at(5)
    short_wait.arrive("a", pinned=Rank(1))
    assert short_wait.core.next_deadline_ns == 15
    assert short_wait.tick(15) == (Reject("a", R.NO_WORKERS, 0),)


def test_what_is_over_is_judged_like_anything_else(make):
    """Worker 2 comes; nobody waits for an empty fleet any more, and the grace of the pin has long passed."""
    story = waiting(make)
    story.arrive("a", pinned=Rank(1))
    story.at(16).arrive("b", pinned=Rank(1))
    assert story.at(20).upsert(2) == (Reject("a", LOST, 0),)
    assert story.core.next_deadline_ns == 26
    assert story.tick(26) == (Reject("b", LOST, 0),)


def test_a_grace_beyond_all_time_never_ends(make):
    story = waiting(make, pin_grace_ns=2**62 - 1, empty_fleet_wait_ns=2**62 - 5).at(5)
    assert [short(story.arrive("a")), short(story.arrive("b", pinned=Rank(1)))] == ["P a", "P b"]
    assert story.core.next_deadline_ns is None
    assert story.tick(2**62 - 1) == ()
    assert short(story.arrive("c")) == "P c"


# Who waits, and how.


def test_who_may_not_wait_is_left_over(make):
    story = waiting(make, keys={"request_queue_limit_per_worker": None})
    assert story.arrive("a", do_not_queue=True) == (Reject("a", R.WOULD_QUEUE, 0),)
    zero = waiting(make, 1, keys={"request_queue_limit_per_worker": 0})
    assert zero.arrive("a", pinned=Rank(2)) == (Reject("a", R.QUEUE_FULL_REQUESTS, 0, 0, 0, None),)


def test_classes_without_thresholds_wait_too_and_limits_hold(make):
    story = waiting(make, keys={"prefill_busy_threshold": None, "request_queue_limit_per_worker": 1})
    assert short(story.arrive("a")) == "P a"
    assert story.arrive("b") == (Reject("b", R.QUEUE_FULL_REQUESTS, 0, 1, 1, None),)
    assert short(story.core.step(upsert(9, 1))) == "D a"


def test_a_head_in_grace_hides_its_own_lane_only(make):
    """b is the best of all, c waits behind it for the same rank."""
    story = waiting(make, 1, 2, keys={"queue_policy": QueuePolicy.LCFS})
    story.many(gone(3, 2))
    for now, name in ((4, "c"), (5, "b")):
        assert short(story.at(now).arrive(name, pinned=Rank(2))) == f"P {name}"
    assert short(story.arrive("a")) == "D a"
    assert short(story.tick(14)) == f"{LOST.name} c"
    assert short(story.tick(15)) == f"{LOST.name} b"


def test_waiting_for_a_rank_is_no_visit(make):
    """Nobody of its class earns credit for one that may not run."""
    story = waiting(make, 1)
    story.arrive("a", 100, pinned=Rank(2))
    story.arrive("x")
    assert story.core.stats().classes[0].deficit_tokens == 2
    assert short(story.prefill("x", 1)) == ""
    assert story.core.stats().classes[0].deficit_tokens == 2


def test_an_attempt_that_fails_waits_for_its_rank_again(make):
    story = waiting(make, 1, 2)
    story.arrive("a", pinned=Rank(1))
    assert short(story.at(40).remove(1)) == "E a"
    assert short(story.at(45).many(DispatchFailed(45, "a", 1, True))) == "P a"
    assert story.core.next_deadline_ns == 50
    assert story.tick(50) == (Reject("a", LOST, 0),)
    late = waiting(make, 1, 2)
    late.arrive("a", pinned=Rank(1))
    late.at(40).remove(1)
    assert short(late.at(50).many(DispatchFailed(50, "a", 1, True))) == f"{LOST.name} a"


def test_a_deferred_one_has_no_timer_and_may_go_ahead_in_grace(make):
    story = waiting(make, 1, 2, keys={"admission": holding("a", "b")})
    story.arrive("a", pinned=Rank(1))
    story.arrive("b")
    story.at(5).remove(1)
    assert story.core.next_deadline_ns is None
    assert short(story.at(9).release("a")) == "P a"
    assert story.core.next_deadline_ns == 15
    assert short(story.at(12).release("b", Rank(1))) == "P b"
    assert short(story.tick(15)) == f"{LOST.name} a, {LOST.name} b"
    late = waiting(make, 1, 2, keys={"admission": holding("a")})
    late.arrive("a", pinned=Rank(1))
    late.at(5).remove(1)
    assert late.at(15).release("a") == (Reject("a", LOST, 0),)


def test_an_answer_about_caches_puts_it_back_in_grace(make):
    story = waiting(make, 1, 2, index=IndexMode.OFF, refresh_after_ns=0, refresh_timeout_ns=20)
    story.arrive("a", pinned=Rank(1), block_hashes=(1,))
    story.arrive("b", block_hashes=(1,))
    story.at(15).remove(1)
    story.remove(2)
    assert story.core.next_deadline_ns == 20        # of the questions, not of the graces
    assert story.tick(20) == (Park("a", 0), Park("b", 0))
    assert story.core.next_deadline_ns == 45        # as for an empty fleet
    assert short(story.at(21).upsert(1)) == "R a, R b"


def test_events_of_one_batch_are_one_after_the_other(make):
    """Gone and back within a batch: the later loss counts."""
    story = waiting(make, 1, 2)
    story.arrive("run", pinned=Rank(1))
    story.arrive("a", pinned=Rank(1))
    story.many(gone(5), gone(6, available=True), gone(8), RequestCancelled(8, "run"))
    assert story.core.next_deadline_ns == 18


def test_a_peek_knows_graces(make):
    story = waiting(make, 1)
    assert story.core.peek(arrive(0, "a", pinned=Rank(2)).request) == Park("a", 0)
    assert short([story.core.peek(arrive(0, "a", pinned=Rank(2), do_not_queue=True).request)]) == "WOULD_QUEUE a"
