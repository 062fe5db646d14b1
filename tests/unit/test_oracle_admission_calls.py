"""Stories of what admission policies are told, in which order, and what their answers do (DESIGN D10).

Worked out by hand. The log reads `call request_id [tokens] @time`.
"""

from __future__ import annotations

import pytest
from scripted import MAKERS, Play, classes, held, holding, script
from stories import arrive, short, upsert

from kvcore.actions import Evict, EvictReason, Ignored, Reject, RejectReason
from kvcore.admission import AdmissionPolicy, MakeReady, Ready
from kvcore.config import SchedulerConfig
from kvcore.errors import AdmissionError, InvalidPolicy
from kvcore.events import DispatchAccepted, Outcome, RequestFinished, TimerFired
from kvcore.policy import AdmissionSpec, PolicyClass
from kvcore.request import Rank

R = RejectReason
pytestmark = pytest.mark.parametrize("make", MAKERS)
FREE = {"prefill_busy_threshold": None}


def managed(make, **config) -> Play:
    """Worker 1 runs `a`, of which a policy is told; what it has decided is not in the log."""
    story = held(make, 1, keys={"admission": script()}, **config)
    assert short(story.arrive("a")) == "D a"
    story.heard()
    return story.at(5)


# Dispatched, advanced, completed.


@pytest.mark.parametrize(("fact", "told"), [
    (lambda story: story.accept("a", 1), "dispatched a @5"),
    (lambda story: story.prefill("a", 1), "dispatched a @5"),
    (lambda story: story.output("a", 1), "dispatched a @5"),
    (lambda story: story.context("a", 1, 9), "dispatched a @5, advanced a 9 @5"),
    (lambda story: story.finish("a", 1), "dispatched a @5, completed a None @5"),
    (lambda story: story.finish("a", 1, context_tokens=12), "dispatched a @5, completed a 12 @5"),
    (lambda story: story.finish("a", 1, outcome=Outcome.ABORTED, context_tokens=12), "aborted a @5"),
    (lambda story: story.fail("a", 1), "aborted a @5"),
    (lambda story: story.cancel("a"), "aborted a @5"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_the_first_sign_of_life(make, fact, told):
    story = managed(make)
    assert fact(story) == ()
    assert story.heard() == told


def test_dispatched_is_told_once_whatever_comes_after(make):
    story = managed(make)
    story.accept("a", 1)
    story.prefill("a", 1)
    assert short(story.fail("a", 1, retry=True)) == "D a"       # and it is not decided again
    story.accept("a", 2)
    story.output("a", 2)
    assert story.finish("a", 2) == ()
    assert story.heard() == "dispatched a @5, completed a None @5"


def test_the_largest_context_counts(make):
    story = managed(make)
    for tokens in (0, 10, 9, 10, 11):
        assert story.context("a", 1, tokens) == ()
    assert story.heard() == "dispatched a @5, advanced a 0 @5, advanced a 10 @5, advanced a 11 @5"
    story.fail("a", 1, retry=True)
    story.context("a", 2, 7)
    story.finish("a", 2, context_tokens=8)
    assert story.heard() == "completed a 11 @5"


def test_context_that_does_not_grow_is_progress_and_no_other_attempt_is(make):
    story = managed(make, booking_ttl_ns=10)
    assert story.context("a", 1, 9) == ()
    assert story.core.next_deadline_ns == 15
    assert story.at(8).context("a", 1, 3) == ()
    assert story.core.next_deadline_ns == 18
    assert story.at(9).accept("a", 1) == (Ignored("a", 1),)
    assert story.context("a", 2, 50) == (Ignored("a", 2),)
    assert story.tick(18) == (Evict("a", 1, 1, EvictReason.BOOKING_EXPIRED),)
    assert story.context("a", 1, 50) == (Ignored("a", 1),)
    assert story.finish("a", 1) == ()
    assert story.heard() == "dispatched a @5, advanced a 9 @5, completed a 9 @18"


def test_an_evicted_one_may_complete_unseen(make):
    story = managed(make)
    assert short(story.remove(1)) == "E a"
    story.at(6).finish("a", 1, context_tokens=3)
    assert story.heard() == "dispatched a @6, completed a 3 @6"


def test_an_eviction_without_answer_and_a_retry_refused_are_ends(make):
    story = managed(make, booking_ttl_ns=10)
    story.tick(10)
    assert story.heard() == ""
    assert story.tick(20) == ()
    assert story.heard() == "aborted a @20"
    other = managed(make, attempts_max=1)
    assert other.fail("a", 1, retry=True) == (Reject("a", R.RETRIES_EXHAUSTED, 0),)
    assert other.heard() == "aborted a @5"


def test_a_pop_that_finds_no_worker_is_an_end(make):
    story = managed(make)
    story.arrive("b")
    assert short(story.at(6).remove(1)) == "E a, NO_WORKERS b"
    assert story.heard() == "decide b @5, aborted b @6"


# Answers.


def test_an_end_lets_others_go_in_its_own_step(make):
    story = held(make, 1, keys={"admission": holding("b", "c", on={"completed a": "c, b"})})
    for name in "abc":
        story.arrive(name)
    assert short(story.at(3).finish("a", 1)) == "D b, P c"
    assert story.heard().endswith("dispatched a @3, completed a None @3")       # not released: it has said so itself


def test_answers_about_others_are_passed_over(make):
    """Of nobody, of what runs, of what waits for room, of what another policy holds back."""
    spec = holding("b", on={"completed a": "nobody, r, w, x, a, b, b"})
    other = PolicyClass("other", 10, prefill_busy_threshold=0, admission=holding("x", who="o "))
    story = Play(make, 1, 2, profile=classes(other, admission=spec))
    story.arrive("a", pinned=Rank(1))
    story.arrive("r", pinned=Rank(2))
    story.arrive("w", pinned=Rank(2))
    story.arrive("b")
    story.arrive("x", policy_class="other")
    assert short(story.finish("a", 1)) == "D b"
    assert story.waiting()[:2] == (2, 1)


def test_what_follows_is_told_first_in_first_out(make):
    """Whom the end of `a` lets go to a lost rank ends too, after all that is on the list already."""
    spec = holding("b", "c", "d", on={"completed a": "b 9, c 9", "aborted b": "d 9", "aborted d": "a"})
    story = held(make, 1, keys={"admission": spec})
    for name in "abcd":
        story.arrive(name)
    story.heard()
    lost = "PINNED_WORKER_UNAVAILABLE"
    assert short(story.finish("a", 1)) == f"{lost} b, {lost} c, {lost} d"
    assert story.heard() == "dispatched a @0, completed a None @0, aborted b @0, aborted c @0, aborted d @0"


def test_told_when_all_is_undone(make):
    """The end of a drain: every Reject comes before the first policy hears of one."""
    story = held(make, 1, keys={"admission": holding("a", "b", on={"aborted a": "b"})})
    for name in "axbw":
        story.arrive(name)
    assert short(story.at(1).drain(9)) == "SHUTTING_DOWN a, SHUTTING_DOWN b, SHUTTING_DOWN w"
    assert story.heard().endswith("aborted a @1, aborted b @1, aborted w @1")


def test_each_event_of_a_batch_tells_at_its_own_end_and_time(make):
    story = held(make, 1, 2, keys={"admission": holding("b", on={"completed a": "b"})})
    story.arrive("a")
    story.arrive("b")
    story.heard()
    batch = (RequestFinished(2, "a", 1), RequestFinished(3, "a", 1), arrive(4, "c"))
    assert short(story.many(*batch)) == "I a, D b, D c"
    assert story.heard() == "dispatched a @2, completed a None @2, decide c @4"


def test_the_settle_goes_on_with_answers(make):
    """x is left over; the policy lets a go, who may not find room and waits; then the step ends."""
    story = held(make, 1, 2, keys={"admission": holding("a", "b", on={"aborted x": "a, b 2"})})
    for name in ("run", "a", "b"):
        story.arrive(name, pinned=Rank(1) if name == "run" else None)
    assert short(story.arrive("x", do_not_queue=True, pinned=Rank(1))) == "WOULD_QUEUE x, D a, P b"


# Time.


def test_policies_have_timers(make):
    story = held(make, 1, keys={"admission": holding("a", at=[10, 12, 30], on={"on_time 12": "a"})})
    story.arrive("a")
    assert story.core.next_deadline_ns == 10
    assert story.tick(9) == ()
    assert story.tick(10) == ()
    assert short(story.tick(25)) == "D a"
    assert story.heard() == "decide a @0, on_time @10, on_time @12"
    assert story.core.next_deadline_ns == 30


def test_what_is_due_at_one_time(make):
    """Deadlines come before policies, policies by class, and what one lets go another deadline finds."""
    other = PolicyClass("other", 10, prefill_busy_threshold=0,
                        admission=holding("x", who="o ", at=[10], on={"on_time 10": "x"}))
    spec = holding("a", "b", at=[10], on={"on_time 10": "a, b 9", "aborted a": "b"})
    story = Play(make, 1, profile=classes(other, admission=spec), booking_ttl_ns=10)
    story.arrive("run", lifecycle=False)
    story.arrive("a", deadline_ns=10)
    story.arrive("b")
    story.arrive("x", policy_class="other")
    story.heard()
    assert short(story.many(TimerFired(10))) == "DEADLINE_EXPIRED a, E run, D x, P b"
    assert story.heard() == "aborted a @10, on_time @10, o on_time @10"


def test_a_timer_that_is_never_due(make):
    story = held(make, 1, keys={"admission": script(at=[2**62])})
    assert story.core.next_deadline_ns is None
    assert story.tick(2**62 - 1) == ()
    assert story.heard() == ""


def test_a_timer_must_move_on(make):
    story = held(make, keys={"admission": script(at=[10, 10])})
    with pytest.raises(AdmissionError) as caught:
        story.core.step(TimerFired(10))
    assert (caught.value.class_name, caught.value.call) == ("c0", "on_time")


# Policies that fail.


class Fails(AdmissionPolicy):
    """Does what it should not, as the request's name says."""

    def __init__(self, parameters) -> None:
        self.due_ns: object = None

    def decide(self, view):
        if view.request_id == "raise":
            raise ZeroDivisionError
        self.due_ns = {"float": 99.5}.get(view.request_id)
        return {"none": None, "text": "ready", "pair": Ready((1, 0))}.get(view.request_id, Ready())

    def dispatched(self, request_id, now_ns):
        raises = (1 // number for number in (0,))
        return {"number": 5, "id": ["b"], "rank": [MakeReady("b", (1, 0))], "raises": raises}[request_id]

    def next_deadline_ns(self):
        return self.due_ns


@pytest.mark.parametrize(("name", "call"), [
    ("raise", "decide"), ("none", "decide"), ("text", "decide"), ("pair", "decide"), ("number", "dispatched"),
    ("id", "dispatched"), ("rank", "dispatched"), ("raises", "dispatched"), ("float", "next_deadline_ns")])
def test_a_policy_that_fails_poisons_the_scheduler(make, name, call):
    profile = classes(admission=AdmissionSpec("fails"), **FREE)
    core = make(SchedulerConfig(4, profile), {"fails": Fails})
    core.step(upsert(0, 1))
    batch = (arrive(0, name), DispatchAccepted(1, name, 1))
    with pytest.raises(AdmissionError) as caught:
        core.step_many(batch) if call == "decide" else [core.step(event) for event in batch]
    assert (caught.value.policy_type, caught.value.class_name, caught.value.call) == ("fails", "c0", call)
    with pytest.raises(RuntimeError, match="cannot be trusted"):
        core.step(TimerFired(3))


# Reads, and policies that are none.


def test_a_peek_asks_a_copy(make):
    story = held(make, 1, keys={"admission": script(decide={"a": "defer", "b": "refuse"}, at=[5])})
    before = story.core.digest()
    told = [story.core.peek(arrive(0, name, **fields).request) for name, fields in (
        ("a", {}), ("a", {"do_not_queue": True}), ("b", {}), ("c", {}))]
    assert short(told) == "H a, WOULD_QUEUE a, ADMISSION_REFUSED b, D c"
    assert (story.core.digest(), story.heard(), story.core.next_deadline_ns) == (before, "", 5)


@pytest.mark.parametrize("spec", [AdmissionSpec("nobody's"), script(decide=1)])
def test_policies_that_cannot_be_built(make, spec):
    with pytest.raises(InvalidPolicy) as caught:
        held(make, keys={"admission": spec})
    assert (caught.value.location, caught.value.key) == ('root, class "c0"', "admission")
