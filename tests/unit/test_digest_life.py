"""The digest knows who is held back, asked about outside, or waits for what is lost; and the policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from digests import Pairs
from stories import Story, arrive, profile

from kvcore.admission import AdmissionPolicy, Bypass, Defer, Ready
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import ContextAdvanced, OverlapRefreshed, PolicyReplaced, WorkerStatusChanged
from kvcore.policy import AdmissionSpec
from kvcore.request import Rank
from kvcore.scheduler import Scheduler

REFRESH = {"profile": profile(10, prefill_busy_threshold=0), "index": IndexMode.OFF, "refresh_after_ns": 1}


class Same(AdmissionPolicy):
    """Decides about all alike, and remembers a number."""

    def __init__(self, decision, number: int) -> None:
        self.decision, self.number = decision, number

    def decide(self, view):
        return self.decision

    def dump(self):
        return {"number": self.number}

    def load(self, value):
        self.number = value["number"]


state = Pairs({"same": lambda parameters: Same(Bypass(), 0)})


def managed(decision, *, number: int = 0, quanta=(10,)) -> Story:
    """A worker, and classes of which the first has a policy that decides so."""
    story = Story()
    plain = profile(*quanta, prefill_busy_threshold=0)
    classes = (replace(plain.classes[0], admission=AdmissionSpec("same")), *plain.classes[1:])
    story.core = Scheduler(SchedulerConfig(4, replace(plain, classes=classes)),
                           admission={"same": lambda parameters: Same(decision, number)})
    story.upsert(1)
    return story


def asked(at_ns: int = 3) -> Story:
    """`a` has been asked about when `x` made room."""
    story = Story(1, **REFRESH)
    story.arrive("x")
    story.arrive("a", block_hashes=(1,))
    story.at(at_ns).prefill("x", 1)
    story.at(9).finish("x", 1)
    return story


@state
def state_of_a_policy(other):
    return managed(Ready(), number=5 + other)


@state
def profile_in_force(other):
    story = Story(1, profile=profile(10, prefill_busy_threshold=5))
    if other:
        story.many(PolicyReplaced(0, profile(10, prefill_busy_threshold=6)))
    return story


@state
def next_ticket(other):
    """`a` is cancelled before its turn comes, or when it has come."""
    story = Story(1, **REFRESH)
    story.arrive("x")
    story.arrive("a", block_hashes=(1,))
    story.at(5)
    if other:
        story.prefill("x", 1)
        story.cancel("a")
    else:
        story.cancel("a")
        story.prefill("x", 1)
    story.finish("x", 1)
    return story


@state
def ticket(other):
    """Which of two was asked about first."""
    story = Story(1, 2, **REFRESH)
    for name, worker_id in (("x", 1), ("y", 2), ("a", 1), ("b", 2)):
        story.arrive(name, pinned=Rank(worker_id), block_hashes=(1,))
    story.at(5)
    for attempt in (2, 1) if other else (1, 2):
        story.prefill("xy"[attempt - 1], attempt)
    return story


@state
def end_of_a_question(other):
    return asked(at_ns=3 + other)


@state
def known_ns(other):
    """It has run before, so that its second dispatch is free."""
    story = Story(1, **REFRESH)
    story.arrive("a", block_hashes=(1,))
    story.prefill("a", 1)
    story.arrive("x")
    story.fail("a", 1, retry=True)
    story.at(3).prefill("x", 2)
    story.at(5 + other).many(OverlapRefreshed(5 + other, "a", 1, None))
    story.at(9).accept("a", 3)
    return story


@state
def refreshing(other):
    story = asked()
    if other:
        story.many(OverlapRefreshed(9, "a", 1, None))
    return story


@state
def deferred(other):
    story = managed(Ready() if other else Defer())
    story.arrive("x", policy_class="f1")
    story.arrive("a")
    return story


@state
def policy_that_manages_it(other):
    story = managed(Ready() if other else Bypass())
    story.arrive("a")
    return story


@state
def heard(other):
    """Its first attempt was taken, or not; its second is not yet."""
    story = managed(Ready())
    story.arrive("a")
    if other:
        story.accept("a", 1)
    story.fail("a", 1, retry=True)
    return story


@state
def context(other):
    story = Story(1)
    story.arrive("a")
    story.many(ContextAdvanced(0, "a", 1, 20 + other))
    return story


@state
def lost_ns_of_a_rank(other):
    story = Story(1, pin_grace_ns=100)
    story.at(5 + other).many(WorkerStatusChanged(5 + other, 1, 0, "health", False, False, None))
    return story


@state
def lost_ns_of_a_pin(other):
    """Its rank is gone; it has been evicted at another time, and says so."""
    story = Story(1, pin_grace_ns=100)
    story.arrive("a", pinned=Rank(1))
    story.at(5 + other).many(WorkerStatusChanged(5 + other, 1, 0, "health", False, False, None))
    story.at(7).remove(1)
    return story


@state
def end_of_a_grace(other):
    story = Story(2, pin_grace_ns=100 + other)
    story.arrive("a", pinned=Rank(1))
    return story


@state
def empty_ns(other):
    story = Story(1, empty_fleet_wait_ns=100)
    story.at(5 + other).remove(1)
    return story


@pytest.mark.parametrize("name", state)
def test_it_is_in_the_digest(name):
    state.check(name)


@pytest.mark.parametrize("config", [{}, {"pin_grace_ns": 5}])
def test_losses_matter_where_somebody_may_wait_for_them(config):
    digests = set()
    for now_ns in (5, 6):
        story = Story(1, **config)
        story.at(now_ns).many(WorkerStatusChanged(now_ns, 1, 0, "health", False, False, None))
        story.at(9).remove(1)
        story.upsert(2)
        story.many(WorkerStatusChanged(9, 2, 0, "health", False, False, None))
        digests.add(story.core.digest())
    assert len(digests) == 1
    empty = [Story(1, **config), Story(**config)]
    empty[0].at(5).remove(1)
    assert (empty[0].core.digest() == empty[1].core.digest()) == (not config)


def test_the_same_profile_leaves_the_digest():
    story = Story(1, profile=profile(2, 3))
    story.many(arrive(0, "a"))
    before = story.core.digest()
    story.many(PolicyReplaced(0, profile(2, 3)))
    assert story.core.digest() == before
