"""Stories of admission policies that live on or die when the policy is replaced (DESIGN D16). Worked out by hand."""

from __future__ import annotations

import pytest
from scripted import MAKERS, Play, classes, held, holding, script
from stories import arrive, short

from kvcore.actions import Park, ParkReason, Reject, RejectReason
from kvcore.events import AdmissionReleased, PolicyReplaced, TimerFired
from kvcore.policy import AdmissionSpec, CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Rank

R = RejectReason
pytestmark = pytest.mark.parametrize("make", MAKERS)
OLD = holding("a", "b", "c", "d", who="o ")


def story_of(make, *workers: int, admission: AdmissionSpec = OLD, **config) -> Play:
    """`a` and `b` are held back by the policy of class c0, which has let `run` go; worker 1 is busy with it."""
    story = held(make, *(workers or (1,)), keys={"admission": admission}, **config)
    assert short(story.arrive("run", pinned=Rank(1))) == "D run"
    assert [short(story.arrive(name)) for name in "ab"] == ["H a", "H b"]
    story.heard()
    return story.at(5)


# It lives on.


def test_where_class_and_parameters_are_the_same(make):
    """The same object: its timer of 1 has been called, and `run` is its own."""
    parameters = {"at": [1, 50], "on": {"completed run": "b"}}
    story = story_of(make, admission=holding("a", "b", **parameters))
    story.tick(5)
    story.heard()
    assert story.reload(classes(admission=holding("a", "b", **parameters), request_queue_limit_per_worker=1)) == ()
    assert story.core.next_deadline_ns == 50
    assert short(story.finish("run", 1)) == "D b"
    assert story.heard() == "dispatched run @5, completed run None @5"
    assert story.waiting()[:2] == (1, 1)


def test_whom_it_holds_back_stays_so_in_another_class(make):
    """The policy of c0 keeps them, though they are of `rest` now, whose policy would let them go."""
    story = Play(make, 1, profile=classes(PolicyClass("x", 5, admission=holding("a", who="x ")), admission=None))
    assert short(story.arrive("a", policy_class="x")) == "H a"
    moved = PolicyClass("x", 5, policy_family="g", cache_bucket="all", admission=holding("a", who="x "))
    story.reload(classes(moved, admission=script(who="c0 ")))
    rows = story.core.stats().classes
    assert [(row.name, row.waiting_requests) for row in rows] == [("c0", 1), ("x", 0)]
    assert story.core.stats().deferred_requests == 1
    assert short(story.release("a")) == "D a"
    story.accept("a", 1)
    assert story.heard() == "x decide a @0, x released a @0, x dispatched a @0"


# It dies.


def test_whom_it_held_back_is_decided_anew_in_its_turn(make):
    """Held back again, refused, placed, let by; who may run does, and of the others who is ready is parked."""
    story = story_of(make, 1, 2)
    for name in "dc":
        assert short(story.arrive(name)) == f"H {name}"
    story.heard()
    new = script(who="n ", decide={"a": "defer", "b": "refuse", "d": "ready 2", "c": "bypass"})
    told = story.at(7).reload(classes(admission=new))
    assert short(told) == "ADMISSION_REFUSED b, D d, P c"
    assert (told[0], told[1].worker_id) == (Reject("b", R.ADMISSION_REFUSED, 0), 2)
    assert story.heard() == "n decide a @7, n decide b @7, n decide d @7, n decide c @7"
    assert story.views[-4].class_name == "c0"
    assert story.waiting()[:2] == (2, 1)
    story.accept("d", 2)
    assert short(story.prefill("run", 1)) == "D c"
    story.finish("c", 3)
    story.cancel("a")
    assert story.heard() == "n dispatched d @7, n aborted a @7"     # of c it hears nothing, `run` was another's


def test_without_a_new_one_they_go_ahead(make):
    story = story_of(make)
    assert story.reload(classes()) == (Park("a", 0), Park("b", 0))
    assert story.waiting()[:2] == (2, 0)
    assert short(story.prefill("run", 1)) == "D a"
    assert short(story.release("b")) == "I b"
    assert story.heard() == ""


def test_other_parameters_are_another_policy(make):
    """And so is another name of the class, or another type; nobody tells the dead of an end."""
    story = story_of(make)
    assert story.reload(classes(admission=holding("a", "b", "c", "d", who="n "))) == ()
    assert story.heard() == "n decide a @5, n decide b @5"
    story.finish("run", 1)
    assert story.heard() == ""
    renamed = PolicyClass("c1", 10, policy_family="f0", cache_bucket="all", prefill_busy_threshold=0,
                          admission=holding("a", "b", "c", "d", who="n "))
    assert story.reload(PolicyProfile((renamed,), (CacheBucket("all", 0),), "f0")) == ()
    assert story.heard() == "n decide a @5, n decide b @5"
    assert story.waiting()[:2] == (2, 2)


def test_their_fleet_may_refuse_them(make):
    """Whoever was ready by the new policy is one that it hears of; who was let by is not."""
    new = script(who="n ", decide={"a": "ready 9", "b": "bypass"}, on={"aborted a": "b"})
    story = story_of(make)
    story.remove(1)
    story.heard()
    assert story.reload(classes(admission=new)) == (Reject("a", R.NO_WORKERS, 0), Reject("b", R.NO_WORKERS, 0))
    assert story.heard() == "n decide a @5, n decide b @5, n aborted a @5"


def test_the_new_one_is_told_after_all_are_decided(make):
    """The end of a would let b go: b is held back by then, and goes."""
    new = script(who="n ", decide={"a": "ready 9", "b": "defer"}, on={"aborted a": "b"})
    story = story_of(make, 1, 2)
    assert short(story.reload(classes(admission=new))) == "PINNED_WORKER_UNAVAILABLE a, D b"
    assert story.heard() == "n decide a @5, n decide b @5, n aborted a @5"


def test_who_was_let_go_before_and_waits_is_managed_by_nobody(make):
    story = story_of(make)
    story.release("a")
    assert story.heard() == "o released a @5"
    story.reload(classes(admission=script(who="n ")))
    story.cancel("a")
    assert story.heard() == "n decide b @5"


def test_timers_are_those_of_the_new_one(make):
    story = story_of(make, admission=holding("a", "b", at=[9]))
    new = holding("a", "b", who="n ", at=[20], on={"on_time 20": "a"})
    assert story.reload(classes(admission=new)) == ()
    story.heard()
    assert story.core.next_deadline_ns == 20
    assert short(story.many(TimerFired(20))) == "P a"
    assert story.heard() == "n on_time @20"


def test_a_deferred_one_of_this_batch_is_parked_as_what_it_is_at_the_end(make):
    story = held(make, 1, keys={"admission": OLD})
    story.arrive("run", lifecycle=False)
    replaced = PolicyReplaced(0, classes(admission=holding("a")))
    assert story.many(arrive(0, "a"), arrive(0, "b"), replaced) == (Park("a", 0, ParkReason.DEFERRED), Park("b", 0))
    assert story.many(AdmissionReleased(0, "a", Rank(1))) == (Park("a", 0),)
