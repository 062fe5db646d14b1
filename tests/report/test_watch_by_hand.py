"""What no sample trace shows: blocks that one of several holders drops, refusals after a wait, evictions."""

from __future__ import annotations

import numpy as np
import pytest
from kvcore.drivers.replay._table import RequestTable
from kvcore.drivers.report.meters import Grid
from kvcore.drivers.report.tables import _Sums
from kvcore.drivers.report.watch import Watch

from kvcore.actions import Dispatch, Evict, EvictReason, Park, Reject, RejectReason
from kvcore.events import BlocksRemoved, BlocksStored, RequestArrived, TimerFired
from kvcore.request import Request

NAMES = (11, 12, 13, 14)


@pytest.fixture
def watch():
    """Two workers, two classes, blocks of 10 tokens, time 0 .. 99 in ten bins."""
    return Watch(Grid.over(0, 99, 10), 2, 2, 10)


def dispatch(name, worker, cached=0):
    """A request goes to a worker."""
    return Dispatch(name, 1, worker, 0, 0, cached, 0, 0, 0, 0)


def arrive(watch, now_ns, name, *actions, prompt=40):
    """A request with four named blocks, and what the core answers."""
    watch.tap([RequestArrived(now_ns, Request(name, prompt, block_hashes=NAMES[: -(-prompt // 10)]))], actions, None)


def test_a_block_stays_reachable_while_somebody_holds_it(watch):
    watch.tap([BlocksStored(0, 0, 0, 0, NAMES), BlocksStored(0, 1, 0, 0, NAMES[:2])], (), None)
    watch.tap([BlocksRemoved(1, 0, 0, 0, NAMES[1:])], (), None)
    arrive(watch, 2, "a", dispatch("a", 0))
    watch.tap([BlocksRemoved(3, 1, 0, 0, NAMES[:2])], (), None)
    arrive(watch, 4, "b", dispatch("b", 0))
    watch.tap([BlocksRemoved(5, 0, 0, 0, NAMES[:1])], (), None)
    arrive(watch, 6, "c", dispatch("c", 0))
    assert list(watch.reachable) == [20, 10, 0]


def test_blocks_of_two_workers_are_not_one_prefix(watch):
    watch.tap([BlocksStored(0, 0, 0, 0, NAMES[:1]), BlocksStored(0, 1, 0, 0, NAMES[1:])], (), None)
    arrive(watch, 1, "a", dispatch("a", 0))
    assert list(watch.reachable) == [10]


def test_the_last_token_is_always_computed(watch):
    watch.tap([BlocksStored(0, 0, 0, 0, NAMES)], (), None)
    arrive(watch, 1, "a", dispatch("a", 0), prompt=40)
    arrive(watch, 1, "b", dispatch("b", 0), prompt=39)
    arrive(watch, 1, "c", Reject("c", RejectReason.TOO_LARGE, -1))
    assert list(watch.reachable) == [30, 30, -1]


def test_a_refusal_after_a_wait_leaves_the_queue(watch):
    arrive(watch, 5, "a", Park("a", 1))
    watch.tap([TimerFired(25)], [Reject("a", RejectReason.DEADLINE_EXPIRED, 1)], None)
    watch.finish(99)
    assert watch.queued[1].area == [5, 10, 5, 0, 0, 0, 0, 0, 0, 0]
    assert watch.queued_tokens[1].peak == [40, 40, 40, 0, 0, 0, 0, 0, 0, 0]


def test_an_eviction_takes_all_load_away(watch):
    arrive(watch, 5, "a", dispatch("a", 1, cached=10))
    watch.tap([TimerFired(15)], [Evict("a", 1, 1, EvictReason.BOOKING_EXPIRED)], None)
    watch.finish(99)
    assert sum(watch.running[1].area) == 10
    assert sum(watch.prefill[1].area) == 300
    assert (watch.running[1].level, watch.prefill[1].level) == (0, 0)


def test_what_is_found_beyond_what_was_reachable_makes_up_for_nothing():
    """Blocks may be stored between the dispatch and the admission; each request loses by itself."""
    table, more = RequestTable(), {"class_index": 0, "outcome": 1, "worker": 0, "wait_ns": 0}
    for found in (30, 0):
        table.add(0, 1, 0, 40, 5, more | {"engine_cached_tokens": found})
    sums = _Sums(Grid.over(0, 9, 1), 1)
    sums.add(table.rows(), np.array([10, 20]))
    assert sums.hits[:, 0].tolist() == [80, 0, 30, 30, 20]
