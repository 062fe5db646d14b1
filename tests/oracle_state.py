"""What the oracle remembers: live requests, registered workers and what is said of them, counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from oracle_ledger import Booking
from oracle_queue import Entry

from kvcore.admission import AdmissionPolicy
from kvcore.policy import AdmissionSpec
from kvcore.request import Request, WorkerConfig


@dataclass(eq=False)
class Host:
    """An admission policy at work, and the class that it is the policy of."""

    class_name: str
    spec: AdmissionSpec
    policy: AdmissionPolicy


@dataclass(eq=False)
class Live:
    """A live request. state: waiting, deferred, refreshing, running or evicted.

    may_wait: whether it may be left over at the end of a step. look_ns: when it is next looked at for overload, or
    None. grace_ns: when a grace in which it waits ends, or None. dispatches: so far. accepted: the last one, by its
    worker. host: the policy that manages it, or None; told_dispatched: whether that has heard of a dispatch;
    context_tokens: the most that has been said, or None. age_ns: when somebody outside last knew of its caches, or
    when it came. ticket: of the last question; refresh_end_ns: until when an answer to that is waited for.
    """

    request: Request
    class_index: int
    seq: int
    arrival_ns: int
    cached: int
    entry: Entry
    state: str = "waiting"
    attempt: int = 0
    rank: tuple[int, int] | None = None
    booking: Booking | None = None
    progress_ns: int = 0
    may_wait: bool = True
    look_ns: int | None = None
    grace_ns: int | None = None
    dispatches: int = 0
    accepted: bool = False
    host: Host | None = None
    told_dispatched: bool = False
    context_tokens: int | None = None
    age_ns: int = 0
    ticket: int = 0
    refresh_end_ns: int = 0


@dataclass
class ClassStats:
    """Counters of one class; the names are the core's."""

    name: str
    waiting_requests: int = 0
    waiting_raw_tokens: int = 0
    waiting_cached_tokens: int = 0
    waiting_cost_tokens: int = 0
    deficit_tokens: int = 0
    dispatched: int = 0
    dispatched_cost_tokens: int = 0
    rejected: int = 0


@dataclass
class Stats:
    """Counters of the scheduler; the names are the core's."""

    arrived: int = 0
    dispatched: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    completed: int = 0
    aborted: int = 0
    evicted: int = 0
    stale_events: int = 0
    unknown_class_names: int = 0
    live_requests: int = 0
    waiting_requests: int = 0
    running_requests: int = 0
    workers: int = 0
    ranks: int = 0
    index_blocks: int = 0
    over_cap_ranks: int = 0
    retried: int = 0
    deferred_requests: int = 0
    refreshing_requests: int = 0
    peers: int = 0
    peer_bookings: int = 0
    classes: tuple[ClassStats, ...] = ()


class RankState(IntEnum):
    """What all marks of a worker together make of its ranks; the numbers are those of `loads`."""

    OPEN = 0
    OVERLOADED = 1
    LEASED = 2
    GONE = 3


@dataclass(frozen=True)
class Mark:
    """What one source says of a worker. leased: only until end_ns."""

    available: bool
    overloaded: bool
    leased: bool
    end_ns: int = 0


@dataclass
class Worker:
    """A registered worker. marks: by source."""

    config: WorkerConfig
    incarnation: int
    marks: dict[str, Mark] = field(default_factory=dict)

    def ranks(self) -> list[tuple[int, int]]:
        first = self.config.dp_start
        return [(self.config.worker_id, rank) for rank in range(first, first + self.config.dp_size)]

    @property
    def state(self) -> RankState:
        """The worst opinion counts; one that has an end is not the worst (DESIGN D14)."""
        marks = self.marks.values()
        if any(not mark.available and not mark.leased for mark in marks):
            return RankState.GONE
        if any(not mark.available for mark in marks):
            return RankState.LEASED
        if any(mark.overloaded for mark in marks):
            return RankState.OVERLOADED
        return RankState.OPEN
