"""The door of `step` for capacity, selection and retries: weights, tiers, overlaps, status, load, failures."""

from __future__ import annotations

import math

import pytest

from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidEvent
from kvcore.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    LoadReported,
    RequestArrived,
    Tier,
    TimerFired,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig
from kvcore.scheduler import Scheduler

NOW = 100
TWO_53, TWO_62 = 2**53, 2**62
RANK = Rank(1)


def arrive(**fields) -> RequestArrived:
    return RequestArrived(NOW, Request("a", 17, **fields))


def overlap(**fields) -> RequestArrived:
    return arrive(overlap=Overlap(**fields))


def report(*counts: int) -> LoadReported:
    return LoadReported(NOW, 1, 0, 0, *counts)


BROKEN = [
    (overlap(host=((RANK, -1),)), "overlap.host must hold 0..2147483647, not -1"),
    (overlap(disk=None), "overlap.disk must be a tuple"),
    (overlap(disk=((RANK, 1.0),)), "overlap.disk must hold 0..2147483647, not 1.0"),
    (overlap(cached_tokens=((RANK, TWO_53 + 1),)),
     "overlap.cached_tokens must hold 0..9007199254740992, not 9007199254740993"),
    (overlap(cached_tokens=((1, 1),)), "overlap.cached_tokens must hold pairs (Rank, count), not (1, 1)"),
    (overlap(effective=None), "overlap.effective must be a tuple"),
    (overlap(effective=((RANK, math.nan),)), "overlap.effective must hold 0..2^31-1, not nan"),
    (overlap(effective=((RANK, -0.5),)), "overlap.effective must hold 0..2^31-1, not -0.5"),
    (overlap(effective=((RANK, True),)), "overlap.effective must hold 0..2^31-1, not True"),
    (overlap(effective=(RANK,)), "overlap.effective must hold pairs (Rank, blocks), not Rank(worker_id=1, dp_rank=0)"),
    (overlap(shared=None), "overlap.shared must be a tuple"),
    (overlap(shared=((1, 1),)), "overlap.shared must be sorted and disjoint, within 0..2^31-1, not ((1, 1),)"),
    (overlap(shared=((0, 4), (3, 5))),
     "overlap.shared must be sorted and disjoint, within 0..2^31-1, not ((0, 4), (3, 5))"),
    (overlap(shared=((0, 2**31),)),
     "overlap.shared must be sorted and disjoint, within 0..2^31-1, not ((0, 2147483648),)"),
    (overlap(shared=((0, 1.0),)), "overlap.shared must hold pairs (start, end), not (0, 1.0)"),
    (arrive(preferred_taints=None), "preferred_taints must be a tuple"),
    (arrive(preferred_taints=(("x", math.inf),)),
     "preferred_taints must hold pairs (text, finite number), not ('x', inf)"),
    (arrive(preferred_taints=((b"x", 1.0),)),
     "preferred_taints must hold pairs (text, finite number), not (b'x', 1.0)"),
    (arrive(preferred_taints=(("\ud800", 1.0),)), "preferred_taints is not encodable as UTF-8: '\\ud800'"),
    (arrive(preferred_taints=(("x", 1.0), ("x", 2.0))),
     "preferred_taints must name each taint once, not (('x', 1.0), ('x', 2.0))"),
    (arrive(weights=SelectionWeights(prefill_load_scale=math.nan)),
     "weights: prefill_load_scale must be finite and >= 0, not nan"),
    (arrive(weights=SelectionWeights(disk_cache_hit_weight=1.5)),
     "weights: disk_cache_hit_weight must be 0..1, not 1.5"),
    (BlocksStored(NOW, 1, 0, 0, (), 1), "tier must be a Tier, not 1"),
    (BlocksRemoved(NOW, 1, 0, 0, (), None), "tier must be a Tier, not None"),
    (BlocksCleared(NOW, 1, 0, 0, "host"), "tier must be a Tier, not 'host'"),
    (WorkerStatusChanged(NOW, 1, -1), "incarnation must be >= 0, not -1"),
    (WorkerStatusChanged(NOW, 1, 0, None), "source must be text"),
    (WorkerStatusChanged(NOW, 1, 0, "\ud800"), "source is not encodable as UTF-8: '\\ud800'"),
    (WorkerStatusChanged(NOW, 1, 0, "x", False, False, 0), "lease_ns must be None or 1..2^62-1, not 0"),
    (WorkerStatusChanged(NOW, 1, 0, "x", False, False, TWO_62),
     "lease_ns must be None or 1..2^62-1, not 4611686018427387904"),
    (WorkerStatusChanged(NOW, 1, 0, "x", False, False, 1.0), "lease_ns must be None or 1..2^62-1, not 1.0"),
    (DispatchAccepted(NOW, "", 1), "request_id must be non-empty text"),
    (DispatchAccepted(NOW, "a", 0), "attempt must be >= 1, not 0"),
    (DispatchFailed(NOW, "\ud800", 1), "request_id is not encodable as UTF-8: '\\ud800'"),
    (DispatchFailed(NOW, "a", -1, True), "attempt must be >= 1, not -1"),
    (CapacityHinted(NOW, (RANK, 1)), "ranks must hold Ranks, not 1"),
    (Drained(NOW, -1), "deadline_ns must be 0..2^62-1, not -1"),
    (Drained(NOW, TWO_62), "deadline_ns must be 0..2^62-1, not 4611686018427387904"),
    (LoadReported(NOW, 1, 0, -1, 0), "incarnation must be >= 0, not -1"),
    (report(-1), "sequence must be 0..2^53, not -1"),
    (report(0, -1), "prefill_tokens must be 0..2^53, not -1"),
    (report(0, 0, TWO_53 + 1), "blocks must be 0..2^53, not 9007199254740993"),
    (report(0, 0, 0, -5), "requests must be 0..2^53, not -5"),
    (WorkerUpserted(NOW, WorkerConfig(1, prefill_tokens_per_s=0)),
     "prefill_tokens_per_s must be None or 1..2^53, not 0"),
    (WorkerUpserted(NOW, WorkerConfig(1, prefill_tokens_per_s=1.5)),
     "prefill_tokens_per_s must be None or 1..2^53, not 1.5"),
]

ACCEPTED = [
    overlap(device=((RANK, 1),), host=((RANK, 2**31 - 1),), disk=((RANK, 0),), cached_tokens=((RANK, TWO_53),)),
    overlap(effective=((RANK, 2**31 - 1), (Rank(9, 9), 0.5))), overlap(shared=((0, 1), (1, 2**31 - 1))),
    arrive(preferred_taints=(("", -3), ("ä", 0.5))), arrive(weights=SelectionWeights(overlap_score_credit=1.5)),
    BlocksStored(NOW, 1, 0, 0, (1,), Tier.DISK), BlocksCleared(NOW, 1, 0, 0), BlocksCleared(NOW, 1, 0, 0, Tier.HOST),
    WorkerStatusChanged(NOW, 1, 0, "", False, True, TWO_62 - 1), WorkerStatusChanged(NOW, 9, 2**63 - 1),
    DispatchAccepted(NOW, "a", 2**63 - 1), DispatchFailed(NOW, "a", 1, True), CapacityHinted(NOW, ()),
    CapacityHinted(NOW, (RANK, Rank(9, 9))), Drained(NOW, 0), Drained(NOW, TWO_62 - 1),
    report(TWO_53, TWO_53, TWO_53, TWO_53), WorkerUpserted(NOW, WorkerConfig(1, prefill_tokens_per_s=TWO_53)),
]


def made() -> Scheduler:
    scheduler = Scheduler(SchedulerConfig(8, reported_load_ttl_ns=50))
    scheduler.step(WorkerUpserted(NOW, WorkerConfig(1)))
    return scheduler


@pytest.mark.parametrize(("event", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])
def test_a_broken_event_is_refused_and_nothing_of_its_batch_is_applied(event, message):
    scheduler = made()
    before = scheduler.digest()
    with pytest.raises(InvalidEvent) as caught:
        scheduler.step_many((WorkerUpserted(NOW, WorkerConfig(2)), event))
    assert (caught.value.index, caught.value.reason) == (1, message)
    assert scheduler.digest() == before


@pytest.mark.parametrize("event", ACCEPTED, ids=lambda event: type(event).__name__)
def test_edges_are_accepted(event):
    scheduler = made()
    scheduler.step(event)
    assert scheduler.audit() == []
    scheduler.step(TimerFired(TWO_62 - 1))
    assert scheduler.audit() == []
