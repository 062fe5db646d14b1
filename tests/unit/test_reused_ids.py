"""Ids that are used again: late facts about an earlier use of an id hit nothing, whatever its new use is about.

Every event that names request_id and attempt, whatever the earlier use came to, in every state of the new one. Only
RequestCancelled names no attempt, so it is about whoever bears the id now: drivers mint ids of their own (DESIGN 3.1).
"""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from itertools import product

import pytest
from capacity_stories import FleetStory, status
from stories import profile, short

import kvcore
from kvcore.actions import Dispatch, Ignored
from kvcore.events import DispatchFailed, Outcome, TimerFired

#: Values of the fields that come after request_id and attempt, by their names.
VALUES = {
    "retry": (False, True), "decay_fraction": (None, 0.5), "outcome": tuple(Outcome), "context_tokens": (100,),
}


def kinds() -> list[type]:
    """The events that name a request and an attempt."""
    events = [kind for _, kind in inspect.getmembers(kvcore, inspect.isclass) if issubclass(kind, kvcore.Event)]
    return [kind for kind in events if [item.name for item in fields(kind)][1:3] == ["request_id", "attempt"]]


def facts(kind: type, attempt: int) -> list:
    """The facts of a kind about an attempt of a, at time 0."""
    more = [item.name for item in fields(kind)][3:]
    return [kind(0, "a", attempt, *values) for values in product(*(VALUES[name] for name in more))]


def test_the_events_that_name_an_attempt_are_known():
    assert {kind.__name__ for kind in kinds()} >= {
        "DispatchAccepted", "DispatchFailed", "PrefillCompleted", "OutputBlockAdded", "RequestFinished"}


def evicted_and(answer):
    """Its worker goes, its driver answers, the worker comes back."""
    def end(story: FleetStory) -> None:
        assert short(story.remove(1)) == "E a"
        answer(story)
        story.upsert(1)
    return end


#: How the use of attempt 1 ends.
ENDS = {
    "completed": lambda story: story.finish("a", 1),
    "aborted": lambda story: story.finish("a", 1, outcome=Outcome.ABORTED),
    "cancelled": lambda story: story.cancel("a"),
    "failed": lambda story: story.fail("a", 1),
    "attempts used up": lambda story: (story.fail("a", 1, True), story.fail("a", 2, True)),
    "evicted and finished": evicted_and(lambda story: story.finish("a", 1)),
    "evicted and failed": evicted_and(lambda story: story.fail("a", 1)),
    "evicted, no answer": lambda story: (story.tick(100), story.tick(200)),
}


def leave(story: FleetStory):
    """The worker takes nobody for a while."""
    return status(story.now, 1, "router", available=False, lease_ns=10**6)


def waiting(story: FleetStory) -> None:
    story.many(leave(story))
    assert short(story.arrive("a", 16, block_hashes=(1, 2, 3))) == "P a"


def running(story: FleetStory, *progress: str) -> int:
    """Returns the attempt."""
    (action,) = story.arrive("a", 16, block_hashes=(1, 2, 3))
    assert isinstance(action, Dispatch)
    for fact in progress:
        getattr(story, fact)("a", action.attempt)
    return action.attempt


def evicted(story: FleetStory) -> None:
    running(story, "prefill")
    assert short(story.remove(1)) == "E a"


def put_back(story: FleetStory) -> None:
    attempt = running(story, "prefill")
    assert short(story.many(leave(story), DispatchFailed(story.now, "a", attempt, True))) == "P a"


#: Where the new use is.
STATES = {
    "waiting": waiting, "running": running, "accepted": lambda story: running(story, "accept"),
    "decoding": lambda story: running(story, "prefill", "output"), "evicted": evicted, "put back": put_back,
}


def used_again(end: str, state: str) -> tuple[FleetStory, list[int]]:
    """A story in which a has ended and is there again, and the attempts that are over."""
    story = FleetStory(1, profile=profile(prefill_busy_threshold=1000), booking_ttl_ns=100, attempts_max=2)
    story.run("a", 24, block_hashes=(1, 2, 5))
    story.accept("a", 1)
    ENDS[end](story)
    assert story.core.stats().live_requests == 0
    STATES[state](story)
    stats = story.core.stats()
    assert (stats.live_requests, stats.running_requests) == (1, state in ("running", "accepted", "decoding"))
    # The attempt of a request that has been put back is over as well; that of a running or evicted one is not.
    return story, list(range(1, stats.dispatched + (state in ("waiting", "put back"))))


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("end", ENDS)
def test_late_facts_of_an_earlier_use_hit_nothing(end, state, kind):
    """Alone, all together in one batch, and in front of what comes next."""
    story, over = used_again(end, state)
    assert over
    late = [replace(fact, now_ns=story.now) for attempt in over for fact in facts(kind, attempt)]
    before, due_ns, stats = story.core.digest(), story.core.next_deadline_ns, story.core.stats()
    for fact in late:
        assert story.many(fact) == (Ignored("a", fact.attempt),)
        assert (story.core.digest(), story.core.next_deadline_ns) == (before, due_ns)
    assert story.many(*late) == tuple([Ignored("a", fact.attempt) for fact in late])
    assert story.core.digest() == before
    assert replace(story.core.stats(), stale_events=0) == replace(stats, stale_events=0)
    assert story.core.stats().stale_events - stats.stale_events == 2 * len(late)
    twin, _ = used_again(end, state)
    told = story.many(*late, TimerFired(due_ns))
    assert told[len(late):] == twin.tick(due_ns)
    assert story.core.digest() == twin.core.digest()


@pytest.mark.parametrize("state", STATES)
def test_a_cancel_is_about_whoever_bears_the_id_now(state):
    """It names no attempt: why no two clients' ids may meet in one scheduler."""
    story, _ = used_again("completed", state)
    assert story.cancel("a") == ()
    assert (story.core.stats().live_requests, story.core.stats().aborted) == (0, 1)
