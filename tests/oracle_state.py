"""What the oracle remembers: live requests, registered workers, counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from oracle_ledger import Booking
from oracle_queue import Entry

from kvcore.request import Request, WorkerConfig


@dataclass(eq=False)
class Live:
    """A live request. state: waiting, running or evicted."""

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

    @property
    def may_wait(self) -> bool:
        return not self.request.do_not_queue


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
    classes: tuple[ClassStats, ...] = ()


@dataclass
class Worker:
    """A registered worker."""

    config: WorkerConfig
    incarnation: int

    def ranks(self) -> list[tuple[int, int]]:
        first = self.config.dp_start
        return [(self.config.worker_id, rank) for rank in range(first, first + self.config.dp_size)]
