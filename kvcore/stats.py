"""What `Scheduler.stats()` returns: counters and gauges at one moment. Reading them changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassStats:
    """One policy class. waiting_*: now, sums over waiting requests; dispatched*, rejected: since the start.

    dispatched_cost_tokens: DRR cost charged for dispatches (uncached tokens, at least 1 each).
    """

    name: str
    waiting_requests: int
    waiting_raw_tokens: int
    waiting_cached_tokens: int
    waiting_cost_tokens: int
    deficit_tokens: int
    dispatched: int
    dispatched_cost_tokens: int
    rejected: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """One scheduler. arrived = rejected + completed + aborted + live_requests, always.

    rejected: by reason name, only reasons that occurred. unknown_class_names: arrivals whose class name named nothing.
    index_blocks: blocks that engines told the KV index of, counted once per rank and tier that holds them.
    retried: requests put back after a failed dispatch, each time.
    deferred_requests: of the waiting ones, those that an admission policy holds back.
    refreshing_requests: those that wait for the answer to RefreshOverlap; they have left their class.
    over_cap_ranks: ranks whose bookings exceed their caps, by growth or because caps were lowered.
    peers: other replicas that have been heard of and are not lost. peer_bookings: theirs that count here. What peers
        run is in no other number of these but over_cap_ranks.
    """

    arrived: int
    dispatched: int
    rejected: Mapping[str, int]
    completed: int
    aborted: int
    evicted: int
    stale_events: int
    unknown_class_names: int
    live_requests: int
    waiting_requests: int
    running_requests: int
    workers: int
    ranks: int
    index_blocks: int
    over_cap_ranks: int
    retried: int
    deferred_requests: int
    refreshing_requests: int
    peers: int
    peer_bookings: int
    classes: tuple[ClassStats, ...]
