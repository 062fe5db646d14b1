"""What can be read of a scheduler: loads, statistics, digest, audit."""

from __future__ import annotations

import dataclasses

import numpy
import pytest
from stories import Story, arrive, profile

from kvcore.events import Outcome, RequestFinished
from kvcore.request import Rank
from kvcore.scheduler import LOAD_DTYPE, Scheduler
from kvcore.stats import SchedulerStats

WAITS = {"profile": profile(2, 3, prefill_busy_threshold=0)}


def test_a_new_scheduler_is_empty():
    scheduler = Scheduler()
    assert dataclasses.asdict(scheduler.stats()) == {
        "arrived": 0, "dispatched": 0, "rejected": {}, "completed": 0, "aborted": 0, "evicted": 0, "stale_events": 0,
        "unknown_class_names": 0, "live_requests": 0, "waiting_requests": 0, "running_requests": 0, "workers": 0,
        "ranks": 0, "index_blocks": 0, "over_cap_ranks": 0, "retried": 0, "deferred_requests": 0,
        "refreshing_requests": 0, "peers": 0, "peer_bookings": 0,
        "classes": ({"name": "default", "waiting_requests": 0, "waiting_raw_tokens": 0, "waiting_cached_tokens": 0,
                     "waiting_cost_tokens": 0, "deficit_tokens": 0, "dispatched": 0, "dispatched_cost_tokens": 0,
                     "rejected": 0},)}
    assert scheduler.loads().tolist() == []
    assert scheduler.loads().dtype == LOAD_DTYPE
    assert scheduler.audit() == []
    assert scheduler.next_deadline_ns is None


def test_loads_are_a_table_in_canonical_order():
    story = Story()
    story.upsert(2**64 - 1)
    story.upsert(3, dp_start=2**32 - 2, dp_size=2)
    story.arrive("a", 10, pinned=Rank(3, 2**32 - 1), block_hashes=(1, 2))
    loads = story.core.loads()
    assert isinstance(loads, numpy.ndarray)
    assert (loads.dtype, loads.shape) == (LOAD_DTYPE, (3,))
    assert loads["worker_id"].tolist() == [3, 3, 2**64 - 1]
    assert loads["dp_rank"].tolist() == [2**32 - 2, 2**32 - 1, 0]
    assert loads["requests"].tolist() == [0, 1, 0]
    assert loads["prefill_tokens"].tolist() == [0, 10, 0]
    assert loads["active_blocks"].tolist() == [0, 2, 0]
    loads["requests"] = 99
    assert story.core.loads()["requests"].tolist() == [0, 1, 0]


def test_loads_and_counters_saturate():
    story = Story(1)
    story.many(*[arrive(0, str(number), 2**53) for number in range(1_100)])
    assert story.loads() == [(1, 0, 1_100, 2**63 - 1, 0)]
    assert story.core.stats().classes[0].dispatched_cost_tokens == 2**63 - 1
    story.many(*[RequestFinished(1, str(number), number + 1) for number in range(1_100)])
    assert story.core.loads().tolist() == [(1, 0, 0, 0, 0, 0, 0, -1, -1, -1, 0)]


def test_waiting_counters_saturate():
    story = Story(1, profile=profile(2**53, prefill_busy_threshold=0))
    story.arrive("x")
    story.many(*[arrive(0, str(number), 2**53) for number in range(1_100)])
    row = story.core.stats().classes[0]
    assert (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cost_tokens) == (1_100, 2**63 - 1, 2**63 - 1)


def test_every_end_is_counted_once():
    """arrived = rejected + completed + aborted + live."""
    story = Story(1, booking_ttl_ns=100, **WAITS)
    story.arrive("done")
    story.prefill("done", 1)
    story.finish("done", 1, context_tokens=5)
    story.arrive("aborted")
    story.prefill("aborted", 2)
    story.finish("aborted", 2, outcome=Outcome.ABORTED)
    story.arrive("cancelled")
    story.cancel("cancelled")
    story.arrive("running", policy_class="f1")
    story.arrive("waiting")
    story.arrive("gone", policy_class="f1")
    story.cancel("gone")
    story.arrive("late", deadline_ns=0)
    story.arrive("dead", deadline_ns=5)
    story.arrive("now", do_not_queue=True, policy_class="f1")
    story.arrive("running")
    story.tick(5)
    stats = story.core.stats()
    assert isinstance(stats, SchedulerStats)
    assert (stats.arrived, stats.completed, stats.aborted, stats.live_requests) == (10, 1, 3, 2)
    assert stats.rejected == {"DUPLICATE_ID": 1, "DEADLINE_EXPIRED": 2, "WOULD_QUEUE": 1}
    assert (stats.dispatched, stats.waiting_requests, stats.running_requests) == (4, 1, 1)
    assert [row.dispatched for row in stats.classes] == [3, 1]
    assert [row.dispatched_cost_tokens for row in stats.classes] == [24, 8]
    assert [row.rejected for row in stats.classes] == [1, 1]
    story.tick(100)
    stats = story.core.stats()
    assert (stats.evicted, stats.live_requests, stats.running_requests, stats.waiting_requests) == (1, 2, 1, 0)
    story.tick(300)
    stats = story.core.stats()
    assert (stats.evicted, stats.aborted, stats.live_requests) == (2, 5, 0)
    assert stats.arrived == sum(stats.rejected.values()) + stats.completed + stats.aborted


def test_statistics_are_of_their_moment():
    story = Story(1)
    before = story.core.stats()
    story.arrive("a")
    assert (before.arrived, story.core.stats().arrived) == (0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.arrived = 5


def test_workers_ranks_and_blocks():
    story = Story()
    story.upsert(1, dp_size=3)
    story.upsert(2)
    story.store(1, 5, 6)
    story.store(1, 5, dp_rank=2)
    story.store(2, 5)
    stats = story.core.stats()
    assert (stats.workers, stats.ranks, stats.index_blocks) == (2, 4, 4)
    story.remove(1)
    stats = story.core.stats()
    assert (stats.workers, stats.ranks, stats.index_blocks) == (1, 1, 1)


def test_a_deficit_shows():
    story = Story(1, **WAITS)
    story.arrive("x", 1)
    story.many(*[arrive(0, f"r{number}", 7) for number in range(2)])
    assert story.core.stats().classes[0].deficit_tokens == 0
    story.prefill("x", 1)
    assert story.core.stats().classes[0].deficit_tokens == 1  # four rounds of two


def test_the_digest_leaves_out_statistics():
    story, twin = Story(1), Story(1)
    digest = story.core.digest()
    story.cancel("nobody")
    story.remove(7)
    story.arrive("a", allowed_workers=frozenset())
    assert story.core.stats() != twin.core.stats()
    assert story.core.digest() == twin.core.digest() == digest


def test_the_digest_knows_whether_a_visit_has_been_paid():
    """The big request waits in class 0 or in class 2; in class 0 it leaves a quantum behind, in class 2 nothing."""
    digests = []
    for family in ("f0", "f2"):
        story = Story(1, profile=profile(10, 10, 10, prefill_busy_threshold=0))
        story.arrive("x", 1, policy_class="f1")
        story.arrive("big", 15, policy_class=family, strict_priority=1)
        story.arrive("y", 5, policy_class="f1")
        story.prefill("x", 1)
        story.arrive("a", 5)
        story.arrive("b", 20)
        story.cancel("big")
        story.prefill("y", 2)
        stats = story.core.stats()
        assert [row.deficit_tokens for row in stats.classes] == [5, 0, 0]
        assert (stats.waiting_requests, stats.running_requests, stats.dispatched) == (1, 3, 3)
        digests.append(story.core.digest())
    assert digests[0] != digests[1]


@pytest.mark.parametrize("late", [False, True])
def test_the_digest_knows_what_hints_come_from(late):
    digests = set()
    for now_ns in (10, 11):
        story = Story(1, **WAITS)
        story.arrive("x")
        story.at(5).arrive("a")
        story.at(now_ns if late else 11).prefill("x", 1)
        for attempt, name in enumerate("xa", 1):
            story.at(20).finish(name, attempt)
        digests.add(story.core.digest())
    assert len(digests) == 1 + late


def test_the_digest_knows_the_generator():
    digests = set()
    for pin in (None, Rank(1)):
        story = Story(1, 2)
        story.arrive("a", pinned=pin)
        story.finish("a", 1)
        digests.add(story.core.digest())
    assert len(digests) == 2


def test_the_digest_knows_what_a_booking_will_give_back():
    """The same load, made up otherwise."""
    digests = set()
    for fractions in ((None, 0.5), (0.5, None), (0.25, None), (None, None)):
        story = Story(1)
        story.arrive("a", 8, block_hashes=(1, 2))
        for fraction in fractions:
            story.output("a", 1, fraction)
        digests.add(story.core.digest())
    assert len(digests) == 4
