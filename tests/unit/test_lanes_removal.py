"""Removal from a queue: any entry, at once, O(log n); what makes a whole scheduler judge a blocked head again."""

from __future__ import annotations

import math
import random

import pytest
from probe_build import load
from stories import Story, profile, short, upsert

from kvcore.request import Rank

probe = load("_probe_queue")
SIZES = (10, 1_000, 100_000)


def at(time: int, seq: int) -> tuple:
    return (0, time, 0, seq)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("lanes", [1, 7, SIZES[-1]])
@pytest.mark.parametrize("bound", [None, 10**6])
def test_any_entry_leaves_with_logarithmically_many_moves(count, lanes, bound):
    """Heads, leaves, the middle; its lane's heap and the index of heads, and both again by age under a bound."""
    queue = probe.Lanes(0, bound)
    for item in range(count):
        queue.push(item, at(item * 7919 % count, item), None if lanes == 1 else item % lanes, raw=3, cached=2, cost=1)
    items = random.Random(count).sample(range(count), min(count, 3_000))
    limit = (4 if bound is None else 8) * (math.log2(count) / 2 + 2)
    for left, item in enumerate(items, 1):
        before = queue.moves
        queue.remove(item)
        assert queue.moves - before <= limit
        size = count - left
        assert queue.counts() == (size, 3 * size, 2 * size, size)
    assert queue.tests == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_limits_see_a_removal_at_once(workers):
    queue = probe.Queue(profile(1, request_queue_limit_per_worker=2))
    for item in range(2 * workers):
        assert queue.limit_hit(0, workers) is None
        queue.push(item, 0, at(0, item), item)
    assert queue.limit_hit(0, workers) == ("requests", 2 * workers, 2 * workers)
    queue.remove(0)
    assert queue.limit_hit(0, workers) is None


def test_a_hundred_thousand_lanes_vanish():
    """Blocked or not: nothing is left of a lane whose last request has gone."""
    count = SIZES[-1]
    queue = probe.Lanes()
    for item in range(count):
        queue.push(item, at(item, item), item)
    assert queue.candidate(lambda _, item: item == count - 1) == count - 1
    assert (queue.tests, len(queue.blocked())) == (count, count - 1)
    for item in range(count):
        queue.remove(item)
    assert (queue.lanes(), queue.blocked(), queue.indexed(), queue.counts()) == ({}, {}, {}, (0, 0, 0, 0))


#: Events that make `next` run: it waits behind `head`, which may use worker 1 only and blocks the shared lane.
EVENTS = {
    "the head is cancelled": lambda story: story.cancel("head"),
    "the head's time is up": lambda story: story.tick(50),
    "time goes past it with any event": lambda story: story.at(60).cancel("nobody"),
    "its rank is free": lambda story: story.prefill("one", 1),
    "its rank is lost": lambda story: story.remove(1),
    "its rank may batch more": lambda story: story.upsert(1, max_batched_tokens=1_000),
    "its rank starts anew": lambda story: story.upsert(1, 1),
    "a new worker may serve it": lambda story: story.upsert(1, dp_size=2),
    "a better one comes": lambda story: story.arrive("best", strict_priority=2),
}
RUNS = {"its rank is lost": "E one, NO_ELIGIBLE_WORKER head, D next", "its rank may batch more": "D head, D next",
        "its rank starts anew": "E one, D head, D next", "a new worker may serve it": "D head, D next",
        "its rank is free": "D head, D next", "a better one comes": "D best",
        "the head is cancelled": "D next", "the head's time is up": "DEADLINE_EXPIRED head, D next",
        "time goes past it with any event": "DEADLINE_EXPIRED head, I nobody, D next"}


@pytest.mark.parametrize("event", EVENTS)
def test_what_judges_a_blocked_head_again(event):
    story = Story(1, 2, profile=profile(prefill_busy_threshold_frac=0.1))
    story.many(upsert(0, 1, max_batched_tokens=20), upsert(0, 2, max_batched_tokens=100))
    story.arrive("one", 8, pinned=Rank(1))
    story.arrive("head", 8, strict_priority=1, allowed_workers=frozenset({1}), deadline_ns=50)
    assert short(story.arrive("next", 8)) == "P next"
    assert short(story.tick()) == ""
    assert short(EVENTS[event](story)) == RUNS[event]
