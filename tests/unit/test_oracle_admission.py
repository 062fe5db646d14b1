"""Stories of admission policies: what becomes of arrivals, of deferred ones, and of those that are let go (DESIGN D10).

Worked out by hand. Unless said otherwise worker 1 is busy while the prompt of one request is computed.
"""

from __future__ import annotations

import pytest
from scripted import MAKERS, Play, classes, held, holding, script
from stories import arrive, short, upsert

from kvcore.actions import Dispatch, Ignored, Park, ParkReason, Reject, RejectReason
from kvcore.admission import AdmissionView
from kvcore.config import OnOverload
from kvcore.events import AdmissionReleased, Drained, WorkerStatusChanged
from kvcore.policy import AdmissionSpec, CacheBucket, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.request import Overlap, Rank

R = RejectReason
DEFERRED = ParkReason.DEFERRED
pytestmark = pytest.mark.parametrize("make", MAKERS)


def bucketed(make, spec: AdmissionSpec, **large) -> Play:
    """Class `small` below five uncached tokens, with this policy; from there on `large`, with these keys."""
    cells = [PolicyClass(name, 10, policy_family="f0", cache_bucket=name, prefill_busy_threshold=0, **keys)
             for name, keys in (("small", {"admission": spec}), ("large", large))]
    buckets = (CacheBucket("small", 0), CacheBucket("large", 5))
    return Play(make, 1, 2, profile=PolicyProfile(tuple(cells), buckets, "f0"))


def cached(*pairs: tuple[int, int]) -> Overlap:
    """(worker_id, blocks) that it has of a prompt."""
    return Overlap(tuple((Rank(worker_id), blocks) for worker_id, blocks in pairs))


# What becomes of an arrival.


def test_it_sees_what_there_is_to_see(make):
    story = held(make, 1, keys={"admission": holding("b")}).at(7)
    story.arrive("a", 9, overlap=cached((1, 1)))
    assert story.views == [AdmissionView("a", None, "c0", 9, 4, None, 0, None, 7)]
    story.arrive("b", 3, session_id="s", expected_output_tokens=6, strict_priority=2, pinned=Rank(1))
    assert story.views[1] == AdmissionView("b", "s", "c0", 3, 0, 6, 2, Rank(1), 7)


def test_ready_and_bypass_queue_like_any_other(make):
    story = held(make, 1, keys={"admission": script(decide={"b": "bypass"})})
    assert [short(story.arrive(name)) for name in "abc"] == ["D a", "P b", "P c"]
    assert story.waiting() == (2, 0, 16, 0, 16)
    assert [short(story.prefill(*run)) for run in (("a", 1), ("b", 2))] == ["D b", "D c"]
    assert story.heard() == "decide a @0, decide b @0, decide c @0, dispatched a @0"


def test_who_is_not_asked_about(make):
    """Requests without a lifecycle, and those of classes without a policy."""
    story = held(make, 1, keys={"admission": holding("a", "b")})
    assert short(story.arrive("a", lifecycle=False)) == "D a"
    assert story.heard() == ""
    other = Play(make, 1, profile=classes(PolicyClass("other", 10, prefill_busy_threshold=0), admission=holding("b")))
    assert short(other.arrive("b", policy_class="other")) == "D b"
    assert other.heard() == ""


def test_refusals_of_the_door_come_first(make):
    story = held(make, 1, keys={"admission": script()})
    story.arrive("a")
    story.heard()
    for name, fields in (("a", {}), ("d", {"deadline_ns": 0}), ("p", {"pinned": Rank(9)}),
                         ("n", {"allowed_workers": frozenset()})):
        story.arrive(name, **fields)
    story.drain(5)
    story.arrive("s")
    assert story.heard() == ""
    assert set(story.core.stats().rejected) == {
        "DUPLICATE_ID", "DEADLINE_EXPIRED", "PINNED_WORKER_UNAVAILABLE", "NO_ELIGIBLE_WORKER", "SHUTTING_DOWN"}


def test_refuse_is_an_end_of_which_it_hears_nothing(make):
    story = held(make, 1, keys={"admission": script(decide={"a": "refuse"})})
    assert story.arrive("a") == (Reject("a", R.ADMISSION_REFUSED, 0),)
    assert story.heard() == "decide a @0"
    assert (story.core.stats().rejected, story.core.stats().classes[0].rejected) == ({"ADMISSION_REFUSED": 1}, 1)


def test_a_deferred_one_counts_and_never_runs(make):
    story = held(make, 1, keys={"admission": holding("a")})
    assert story.arrive("a", 9, overlap=cached((1, 1))) == (Park("a", 0, DEFERRED),)
    assert story.waiting() == (1, 1, 9, 4, 5)
    assert story.core.next_deadline_ns is None
    assert story.core.stats().classes[0].deficit_tokens == 0
    assert short(story.arrive("b")) == "D b"        # nobody stands before it
    assert short(story.hint()) == ""
    assert story.heard() == "decide a @0, decide b @0"


def test_who_may_not_wait_is_not_deferred(make):
    story = held(make, 1, keys={"admission": holding("a", "b")})
    assert story.arrive("a", do_not_queue=True) == (Reject("a", R.WOULD_QUEUE, 0),)
    assert story.heard() == "decide a @0, aborted a @0"
    keys = {"admission": holding("a", "b"), "raw_isl_token_queue_limit_per_worker": 0}
    zero = held(make, 1, keys=keys)
    assert zero.arrive("a") == (Reject("a", R.QUEUE_FULL_RAW_TOKENS, 0, 0, 0, None),)
    assert zero.heard() == "decide a @0, aborted a @0"


def test_deferred_ones_fill_their_class(make):
    story = held(make, 1, keys={"admission": holding("a", "b"), "request_queue_limit_per_worker": 1})
    assert short(story.arrive("a")) == "H a"
    assert story.arrive("b") == (Reject("b", R.QUEUE_FULL_REQUESTS, 0, 1, 1, None),)
    assert story.arrive("c") == (Reject("c", R.QUEUE_FULL_REQUESTS, 0, 1, 1, None),)
    assert story.heard() == "decide a @0, decide b @0, aborted b @0, decide c @0, aborted c @0"


def test_the_test_of_a_limit_settles_first(make):
    """x may not wait; what the policy makes of its end lets a run, and leaves room for b."""
    keys = {"admission": holding("a", "b", on={"aborted x": "a"}), "request_queue_limit_per_worker": 1}
    story = held(make, 1, 2, keys=keys)
    story.arrive("run", lifecycle=False, pinned=Rank(1))
    story.arrive("a")
    story.arrive("p", lifecycle=False, pinned=Rank(1))
    batch = (arrive(1, "x", do_not_queue=True, pinned=Rank(1)), arrive(1, "b"))
    assert short(story.many(*batch)) == "WOULD_QUEUE x, D a, H b"
    assert story.heard() == "decide a @0, decide x @1, aborted x @1, decide b @1"


def test_who_is_not_stored_yet_cannot_be_let_go(make):
    """Where a limit would refuse b, the batch so far is settled before its policy is asked: x ends before."""
    keys = {"admission": holding("b", on={"aborted x": "b, b"}), "request_queue_limit_per_worker": 1}
    batch = (arrive(1, "x", do_not_queue=True), arrive(1, "b"))
    story = held(make, 1, keys=keys)
    story.arrive("run", lifecycle=False)
    assert short(story.many(*batch)) == "WOULD_QUEUE x, H b"
    assert story.waiting()[:2] == (1, 1)
    assert story.heard() == "decide x @1, aborted x @1, decide b @1"
    full = held(make, 1, keys=keys)
    full.arrive("run", lifecycle=False)
    full.arrive("w", lifecycle=False)
    assert short(full.many(*batch)) == "WOULD_QUEUE x, QUEUE_FULL_REQUESTS b"
    assert full.heard() == "decide x @1, aborted x @1, decide b @1, aborted b @1"


# Placement.


def test_ready_with_a_rank_is_a_pin(make):
    story = held(make, 1, 2, keys={"admission": script(decide={"a": "ready 2", "b": "ready 2", "c": "ready 2"})})
    assert story.arrive("a", 9, overlap=cached((1, 2), (2, 1)))[0] == Dispatch("a", 1, 2, 0, 0, 4, 1, 5, 3, 0)
    assert short(story.arrive("b")) == "P b"
    assert story.arrive("c", pinned=Rank(1))[0].worker_id == 1      # it has a pin of its own
    assert story.views[0].cached_tokens == 8


def test_ready_with_a_rank_may_be_of_another_class(make):
    """The best rank has all of it: `small`. Worker 2 has none: `large`; its policy hears nothing of that."""
    story = bucketed(make, script(who="s ", decide={"a": "ready 2"}), admission=script(who="l "))
    assert story.arrive("a", 8, overlap=cached((1, 2)))[0] == Dispatch("a", 1, 2, 0, 1, 0, 0, 8, 2, 0)
    story.accept("a", 1)
    assert story.heard() == "s decide a @0, s dispatched a @0"
    assert story.core.stats().unknown_class_names == 0


def test_a_placement_is_refused_like_a_pin(make):
    story = held(make, 1, 2, keys={"admission": script(decide={"a": "ready 9", "b": "ready 2"})})
    assert story.arrive("a") == (Reject("a", R.PINNED_WORKER_UNAVAILABLE, 0),)
    assert story.arrive("b", allowed_workers=frozenset({1})) == (Reject("b", R.PINNED_WORKER_NOT_ALLOWED, 0),)
    assert story.heard() == "decide a @0, aborted a @0, decide b @0, aborted b @0"


def test_limits_are_those_of_the_class_in_which_it_ends(make):
    story = bucketed(make, script(decide={"a": "ready 2"}), request_queue_limit_per_worker=1)
    story.arrive("run", 8, pinned=Rank(2))
    for name in ("x", "y"):
        story.arrive(name, 8, pinned=Rank(2))
    told = story.arrive("a", 8, overlap=cached((1, 2)))
    assert told == (Reject("a", R.QUEUE_FULL_REQUESTS, 1, 2, 2, None),)
    assert story.heard() == "decide a @0, aborted a @0"


# Deferred ones end, or go ahead.


def test_a_deadline_ends_it(make):
    story = held(make, 1, keys={"admission": holding("a")})
    story.arrive("a", deadline_ns=10)
    assert story.core.next_deadline_ns == 10
    assert story.tick(9) == ()
    assert story.tick(10) == (Reject("a", R.DEADLINE_EXPIRED, 0),)
    assert story.heard() == "decide a @0, aborted a @10"


def test_it_can_be_cancelled_and_drained(make):
    story = held(make, 1, keys={"admission": holding("a", "b")})
    story.arrive("a")
    story.arrive("b")
    assert story.at(3).cancel("a") == ()
    assert story.drain(100) == (Reject("b", R.SHUTTING_DOWN, 0),)
    assert story.heard() == "decide a @0, decide b @0, aborted a @3, aborted b @3"
    assert story.waiting() == (0, 0, 0, 0, 0)


def test_somebody_outside_lets_it_go(make):
    story = held(make, 1, keys={"admission": holding("a")})
    story.arrive("a")
    assert short(story.at(4).release("a")) == "D a"
    assert story.heard() == "decide a @0, released a @4"
    for name in ("a", "nobody"):
        assert story.release(name) == (Ignored(name, 0),)
    story.arrive("b")
    assert story.release("b", Rank(1)) == (Ignored("b", 0),)        # it waits, but for room
    assert story.core.stats().stale_events == 3


def test_with_its_old_place(make):
    """Seq and arrival stay: it is before those that came later."""
    story = held(make, 1, keys={"admission": holding("a")})
    story.arrive("a")
    assert [short(story.at(1).arrive(name)) for name in "xb"] == ["D x", "P b"]
    assert short(story.at(2).release("a")) == "P a"
    assert short(story.prefill("x", 1)) == "D a"


def test_who_is_let_go_is_the_youngest(make):
    """D17 with M = 9: nobody has overtaken it while it was held back."""
    keys = {"admission": holding("a"), "queue_policy": QueuePolicy.LCFS, "max_overtake_tokens": 9}
    story = held(make, 1, keys={**keys})
    story.arrive("a")
    for now, name in enumerate("xbc", 1):
        story.at(now).arrive(name)
    assert short(story.at(5).prefill("x", 1)) == "D c"
    story.at(6).release("a")
    assert short(story.at(7).arrive("d")) == "P d"
    assert short(story.at(8).prefill("c", 2)) == "D b"      # d would go past b by sixteen
    assert short(story.at(9).prefill("b", 3)) == "D d"      # and past a by eight


def test_a_rank_makes_it_another_request(make):
    """Deferred with all of it cached on worker 1; on worker 2 it is a request of class `large` that costs eight."""
    story = bucketed(make, holding("a"), queue_policy=QueuePolicy.WSPT, request_queue_limit_per_worker=1)
    story.arrive("run", 8, pinned=Rank(2))
    story.arrive("a", 8, overlap=cached((1, 2)))
    for name, prompt in (("x", 9), ("y", 7)):
        story.at(1).arrive(name, prompt, pinned=Rank(2))
    assert [row.waiting_requests for row in story.core.stats().classes] == [1, 2]
    assert short(story.at(2).release("a", Rank(2))) == "P a"        # its limits are not tested
    assert [(row.waiting_requests, row.waiting_cached_tokens, row.waiting_cost_tokens)
            for row in story.core.stats().classes] == [(0, 0, 0), (3, 0, 24)]
    assert short(story.prefill("run", 1)) == "D y"
    told = story.prefill("y", 2)
    assert told == (Dispatch("a", 3, 2, 0, 1, 0, 0, 8, 2, 2),)
    story.accept("a", 3)
    assert story.heard() == "decide a @0, released a @2, dispatched a @2"


def test_its_own_pin_wins_over_a_rank(make):
    story = held(make, 1, 2, keys={"admission": holding("a")})
    story.arrive("a", pinned=Rank(1))
    assert story.release("a", Rank(2))[0].worker_id == 1


def test_the_fleet_may_refuse_it(make):
    story = held(make, 1, 2, keys={"admission": holding("a", "b", "c")})
    story.arrive("a", allowed_workers=frozenset({1}))
    story.arrive("b")
    story.arrive("c", allowed_workers=frozenset({2}))
    assert story.release("a", Rank(2)) == (Reject("a", R.PINNED_WORKER_NOT_ALLOWED, 0),)
    assert story.release("b", Rank(1, 7)) == (Reject("b", R.PINNED_WORKER_UNAVAILABLE, 0),)
    story.remove(2)
    assert story.release("c") == (Reject("c", R.NO_ELIGIBLE_WORKER, 0),)
    assert story.heard() == "decide a @0, decide b @0, decide c @0, aborted a @0, aborted b @0, aborted c @0"


def test_looks_go_on_in_step_with_its_arrival(make):
    story = held(make, 1, keys={"admission": holding("a")}, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    story.at(3).arrive("a")
    assert story.core.next_deadline_ns is None
    story.at(33).many(WorkerStatusChanged(33, 1, 0, "s", overloaded=True))
    assert short(story.release("a")) == "P a"
    assert story.core.next_deadline_ns == 43
    assert story.tick(43) == (Reject("a", R.ALL_ELIGIBLE_OVERLOADED, 0),)
    assert story.heard() == "decide a @3, released a @33, aborted a @43"


def test_one_park_a_batch_by_seq(make):
    story = held(make, keys={"admission": holding("a", "b", "c")})
    batch = (upsert(0, 1), arrive(0, "run"), arrive(0, "a"), arrive(0, "b"), arrive(0, "x"), AdmissionReleased(0, "b"))
    assert short(story.many(*batch)) == "D run, H a, P b, P x"
    assert short(story.release("a")) == "P a"
    assert story.tick(1) == ()
    batch = (arrive(1, "c"), AdmissionReleased(1, "c"), Drained(1, 5))
    assert short(story.many(*batch)) == "SHUTTING_DOWN a, SHUTTING_DOWN b, SHUTTING_DOWN x, SHUTTING_DOWN c"


def test_limits_are_not_tested_on_a_move(make):
    """Its rank makes it one of a class with a limit of zero, where it waits all the same."""
    story = bucketed(make, holding("a", "b"), request_queue_limit_per_worker=0)
    for name in "ab":
        story.arrive(name, 8, overlap=cached((1, 2)))
    assert short(story.release("a", Rank(2))) == "D a"
    assert short(story.release("b", Rank(2))) == "P b"
