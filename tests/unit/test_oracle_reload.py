"""Stories of policies that are replaced while requests wait and run (DESIGN D16). Worked out by hand.

Worker 1 is busy while the prompt of one request is computed; requests have eight tokens.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted import MAKERS, Play, script
from stories import arrive, short

from kvcore.actions import Dispatch, Reject, RejectReason
from kvcore.config import IndexMode, OnOverload
from kvcore.errors import InvalidEvent
from kvcore.events import PolicyReplaced, PrefillCompleted, RequestFinished, WorkerStatusChanged
from kvcore.policy import AdmissionSpec, Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy

R = RejectReason
pytestmark = pytest.mark.parametrize("make", MAKERS)


def made(*named: tuple[str, int], order=QueuePolicy.FCFS, family: str | None = None, **keys) -> PolicyProfile:
    """Explicit classes (name, quantum) behind the class `rest` of the default family."""
    rest = PolicyClass("rest", 10, policy_family="f", cache_bucket="all", prefill_busy_threshold=0)
    others = [PolicyClass(name, quantum, order, prefill_busy_threshold=0, **keys) for name, quantum in named]
    return PolicyProfile((rest, *others), (CacheBucket("all", 0),), "f")


def busy(make, *named: tuple[str, int], **config) -> Play:
    """Worker 1 runs `run`, of class `rest`."""
    story = Play(make, 1, **{"profile": made(*named), **config})
    assert short(story.arrive("run")) == "D run"
    return story


def served(story: Play, attempt: int = 1, name: str = "run") -> str:
    """Who runs, one after the other, until nobody waits."""
    names = []
    while told := story.prefill(name, attempt):
        assert len(told) == 1
        name, attempt = told[0].request_id, told[0].attempt
        names.append(name)
    return " ".join(names)


def credits(story: Play) -> dict[str, int]:
    return {row.name: row.deficit_tokens for row in story.core.stats().classes}


# Nothing, or nothing at all.


def test_the_policy_in_force_changes_nothing(make):
    story = busy(make, ("a", 5), capacity=Capacity.ADVISORY)
    story.arrive("x", policy_class="a")
    before, stats = story.core.digest(), story.core.stats()
    assert story.reload(made(("a", 5))) == ()
    assert story.reload(replace(made(("a", 5)), capacity=Capacity.STRICT)) == ()       # the configuration has its say
    assert (story.core.digest(), story.core.stats()) == (before, stats)


@pytest.mark.parametrize("spec", [AdmissionSpec("nobody's"), script(decide=1)])
def test_policies_that_cannot_be_built_refuse_the_batch(make, spec):
    story = busy(make)
    before = story.core.digest()
    with pytest.raises(InvalidEvent) as caught:
        story.core.step_many((arrive(1, "x"), PolicyReplaced(1, made(("a", 5), admission=spec))))
    assert (caught.value.index, story.core.digest()) == (1, before)
    with pytest.raises(InvalidEvent) as caught:
        story.core.step_many((PolicyReplaced(1, made(("a", 5), admission=spec)), arrive(1, "")))
    assert caught.value.index == 0


# Classes.


def test_counters_follow_names(make):
    story = busy(make, ("a", 5), ("b", 5))
    for name, policy_class in (("x", "a"), ("y", "a"), ("z", "b")):
        story.arrive(name, policy_class=policy_class)
    story.arrive("no", policy_class="b", deadline_ns=1)
    assert short(story.tick(1)) == "DEADLINE_EXPIRED no"
    assert story.reload(made(("b", 7), ("c", 7))) == ()
    rows = story.core.stats().classes
    assert [(row.name, row.waiting_requests, row.dispatched, row.rejected) for row in rows] == [
        ("rest", 2, 1, 0), ("b", 1, 0, 1), ("c", 0, 0, 0)]
    assert story.core.stats().unknown_class_names == 0
    assert short(story.arrive("w", policy_class="a")) == "P w"
    assert story.core.stats().unknown_class_names == 1


def test_credit_in_proportion(make):
    """Class a has 1 of its quantum 3 left, and three quarters of that are nothing; then ten times as much is none."""
    story = busy(make, ("a", 3), ("b", 20))
    for name, policy_class in (("w", "a"), ("x", "a"), ("y", "b"), ("z", "b")):
        story.arrive(name, policy_class=policy_class)
    assert short(story.prefill("run", 1)) == "D y"              # the first that can pay
    assert credits(story) == {"rest": 0, "a": 3, "b": 12}
    story.reload(made(("a", 7), ("b", 5)))
    assert credits(story) == {"rest": 0, "a": 7, "b": 3}
    story.reload(made(("a", 1), ("new", 5)))
    assert credits(story) == {"rest": 0, "a": 1, "new": 0}


def test_credit_has_a_ceiling(make):
    """Two thousand quanta of one are two thousand of 2^53 then: more than 64 bits hold."""
    story = busy(make, ("a", 1), ("b", 1))
    story.arrive("x", 5_000, policy_class="a")
    story.arrive("y", 2_000, policy_class="b")
    assert short(story.prefill("run", 1)) == "D y"
    assert credits(story)["a"] == 2_000
    story.reload(made(("a", 2**53), ("b", 1)))
    assert credits(story)["a"] == 2**63 - 1
    assert served(story, 2, "y") == "x"


def test_the_cursor_follows_its_class(make):
    """b is being served and has credit for another one; it is served on, wherever it stands now."""
    for after in ((("a", 8), ("b", 17)), (("a", 8), ("new", 8), ("b", 16)), (("b", 16), ("a", 8))):
        story = busy(make, ("a", 8), ("b", 16))
        for name, policy_class in (("x0", "a"), ("x1", "a"), ("y1", "b"), ("y2", "b"), ("y3", "b")):
            story.arrive(name, policy_class=policy_class)
        assert short(story.prefill("run", 1)) == "D x0"
        assert short(story.prefill("x0", 2)) == "D y1"
        story.reload(made(*after))
        assert served(story, 3, "y1") == "y2 x1 y3"


def test_the_next_one_that_is_left_is_next(make):
    """b was being served and is gone: a new round begins behind it, with c, not with a."""
    story = busy(make, ("a", 8), ("b", 16), ("c", 8))
    for name, policy_class in (("y1", "b"), ("y2", "b")):
        story.arrive(name, policy_class=policy_class)
    assert short(story.prefill("run", 1)) == "D y1"
    for name, policy_class in (("x", "a"), ("z", "c")):
        story.arrive(name, policy_class=policy_class)
    story.reload(made(("a", 8), ("c", 8)))
    assert served(story, 2, "y1") == "z y2 x"


def test_a_class_left_empty_gives_its_credit_back(make):
    """By the move of its requests; the visit is over."""
    story = busy(make, ("a", 8), ("b", 16))
    for name in ("y1", "y2", "y3"):
        story.arrive(name, policy_class="b")
    story.arrive("x", policy_class="a")
    assert short(story.prefill("run", 1)) == "D x"
    assert short(story.prefill("x", 2)) == "D y1"
    moved = PolicyProfile((*made(("a", 8)).classes, PolicyClass("b", 16, policy_family="g", cache_bucket="all",
                                                                 prefill_busy_threshold=0)),
                          (CacheBucket("all", 0),), "f")
    story.reload(moved)
    assert credits(story) == {"rest": 0, "a": 0, "b": 0}
    assert [row.waiting_requests for row in story.core.stats().classes] == [2, 0, 0]
    assert served(story, 3, "y1") == "y2 y3"


def test_between_both_kinds_of_arbitration(make):
    """b is being visited and has credit for another one. Mode reference ends a visit when nobody can run."""
    exact = made(("a", 8), ("b", 16))
    reference = replace(exact, arbitration=Arbitration.REFERENCE)
    done = PrefillCompleted(0, "y1", 3)
    for before, after, together, wanted in ((exact, reference, True, "y2"), (exact, reference, False, "x2"),
                                            (reference, exact, True, "x2")):
        story = busy(make, profile=before)
        for name, policy_class in (("x1", "a"), ("x2", "a"), ("y1", "b"), ("y2", "b")):
            story.arrive(name, policy_class=policy_class)
        assert short(story.prefill("run", 1)) == "D x1"
        assert short(story.prefill("x1", 2)) == "D y1"
        replaced = PolicyReplaced(0, after)
        told = story.many(replaced, done) if together else story.many(replaced) + story.many(done)
        assert short(told) == f"D {wanted}"


# Requests that wait.


@pytest.mark.parametrize(("orders", "wanted"), [
    ((QueuePolicy.LCFS,), "z y x"), ((QueuePolicy.WSPT,), "y z x"), ((QueuePolicy.WSPT, QueuePolicy.FCFS), "x y z"),
    ((QueuePolicy.EDF,), "z x y")])
def test_keys_are_made_anew_of_the_same_inputs(make, orders, wanted):
    story = busy(make, ("a", 100))
    for now, (name, prompt, deadline_ns) in enumerate((("x", 9, None), ("y", 7, None), ("z", 8, 99)), 1):
        story.at(now).arrive(name, prompt, policy_class="a", deadline_ns=deadline_ns)
    for order in orders:
        assert story.reload(made(("a", 100), order=order)) == ()
    assert served(story) == wanted


def test_by_the_snapshot_of_their_arrival(make):
    """x costs two tokens, by what was cached then; that is gone, and does not matter."""
    small = PolicyProfile(
        tuple(PolicyClass(name, 10, policy_family="f", cache_bucket=name, prefill_busy_threshold=0)
              for name in ("small", "large")), (CacheBucket("small", 0), CacheBucket("large", 3)), "f")
    story = busy(make, ("a", 10))
    story.store(1, 11, 12)
    story.arrive("x", 10, block_hashes=(11, 12), policy_class="a")
    story.clear(1)
    story.reload(small)
    rows = story.core.stats().classes
    assert [(row.waiting_requests, row.waiting_cached_tokens, row.waiting_cost_tokens) for row in rows] == [
        (1, 8, 2), (0, 0, 0)]
    assert served(story) == "x"


def test_nobody_is_rejected_for_a_limit(make):
    """Not even where nothing may wait any more; later arrivals are."""
    story = busy(make)
    for name in "xy":
        story.arrive(name)
    bounded = made()
    bounded = replace(bounded, classes=(replace(bounded.classes[0], request_queue_limit_per_worker=0),))
    assert story.reload(bounded) == ()
    assert story.arrive("z") == (Reject("z", R.QUEUE_FULL_REQUESTS, 0, 2, 0, None),)
    assert served(story) == "x y"


def test_who_might_not_wait_still_may_not(make):
    """The limit that said so is gone within the same batch."""
    bounded = replace(made().classes[0], request_queue_limit_per_worker=0)
    story = busy(make, profile=replace(made(), classes=(bounded,)))
    told = story.many(arrive(1, "x"), PolicyReplaced(1, made()), arrive(1, "y"))
    assert told[0] == Reject("x", R.WOULD_QUEUE, 0)
    assert short(told) == "WOULD_QUEUE x, P y"


def test_a_class_that_does_not_wait_any_more_runs_at_once(make):
    story = busy(make)
    for name in "xy":
        story.arrive(name)
    free = replace(made().classes[0], prefill_busy_threshold=None)
    assert short(story.reload(replace(made(), classes=(free,)))) == "D x, D y"


def test_another_capacity(make):
    """Two blocks are too many for a rank of one: advisory does not count, strict does."""
    story = Play(make, profile=made())
    story.upsert(1, total_kv_blocks=1)
    story.arrive("run", 4)
    assert short(story.arrive("x")) == "P x"
    assert story.reload(replace(made(), capacity=Capacity.STRICT)) == (Reject("x", R.TOO_LARGE, 0),)


def test_what_was_put_back_costs_nothing_still(make):
    story = busy(make)
    told = story.many(WorkerStatusChanged(0, 1, 0, available=False, lease_ns=50))
    assert told == ()
    assert short(story.fail("run", 1, retry=True)) == "P run"
    story.reload(made(("a", 5), order=QueuePolicy.WSPT))
    assert story.core.stats().classes[0].waiting_cost_tokens == 0
    assert short(story.tick(50)) == "D run"


def test_nobody_has_overtaken_anybody_yet(make):
    """M = 9: y would go past x by sixteen tokens in all, had they been counted on."""
    bound = {"order": QueuePolicy.LCFS, "max_overtake_tokens": 9}
    story = busy(make, profile=made(("a", 100), **bound))
    for now, name in enumerate("xw", 1):
        story.at(now).arrive(name, policy_class="a")
    assert short(story.prefill("run", 1)) == "D w"
    story.at(3).arrive("y", policy_class="a")
    story.reload(made(("a", 50), **bound))
    assert served(story, 2, "w") == "y x"


def test_looks_for_overload_are_those_of_the_new_class(make):
    free = replace(made().classes[0], prefill_busy_threshold=None)
    story = busy(make, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    story.at(3).arrive("x")
    assert story.core.next_deadline_ns == 13
    story.many(WorkerStatusChanged(3, 1, 0, overloaded=True))
    story.at(25).reload(made(("a", 5)))
    assert story.core.stats().rejected == {"ALL_ELIGIBLE_OVERLOADED": 1}
    other = busy(make, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    other.at(3).arrive("x")
    assert other.at(25).reload(made(("a", 5))) == ()
    assert other.core.next_deadline_ns == 33
    other.many(WorkerStatusChanged(25, 1, 0, overloaded=True))
    assert short(other.reload(replace(made(), classes=(free,)))) == "ALL_ELIGIBLE_OVERLOADED x"


# Requests that do not wait.


def test_who_runs_comes_back_into_its_new_class(make):
    story = busy(make, ("a", 5))
    story.finish("run", 1)
    assert short(story.arrive("x", 9, policy_class="a")) == "D x"
    story.reload(made(("b", 5), ("a", 5), order=QueuePolicy.WSPT))
    assert story.fail("x", 2, retry=True) == (Dispatch("x", 3, 1, 0, 2, 0, 0, 9, 3, 0),)
    story.reload(made(("b", 5)))
    assert short(story.many(RequestFinished(0, "nobody", 1))) == "I nobody"
    assert story.fail("x", 3, retry=True)[0].class_index == 0


def test_who_is_asked_about_is_placed_as_one_of_its_new_class(make):
    story = Play(make, 1, profile=made(("a", 5)), index=IndexMode.OFF, refresh_after_ns=0)
    story.arrive("x", policy_class="a", block_hashes=(1,))
    story.reload(made(("b", 5), ("a", 5)))
    assert story.refreshed("x", 1) == (Dispatch("x", 1, 1, 0, 2, 0, 0, 8, 2, 0),)
    assert [row.dispatched for row in story.core.stats().classes] == [0, 0, 1]
