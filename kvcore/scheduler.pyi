from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvcore.actions import AnyAction, Dispatch, Park, Reject
from kvcore.config import SchedulerConfig
from kvcore.events import AnyEvent
from kvcore.request import Request

@dataclass(frozen=True)
class ClassStats:
    name: str
    waiting_requests: int
    waiting_raw_tokens: int
    waiting_cached_tokens: int
    waiting_cost_tokens: int
    deficit_tokens: int
    dispatched: int
    dispatched_cost_tokens: int
    rejected: int

@dataclass(frozen=True)
class SchedulerStats:
    arrived: int
    dispatched: int
    rejected: dict[str, int]
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
    classes: tuple[ClassStats, ...]

class Scheduler:
    def __init__(self, config: SchedulerConfig = ...) -> None: ...
    @property
    def config(self) -> SchedulerConfig: ...
    @property
    def next_deadline_ns(self) -> int | None: ...
    def step(self, event: AnyEvent, /) -> tuple[AnyAction, ...]: ...
    def step_many(self, events: Sequence[AnyEvent], /) -> tuple[AnyAction, ...]: ...
    def peek(self, request: Request, /) -> Dispatch | Park | Reject: ...
    def loads(self) -> npt.NDArray[np.void]: ...
    def stats(self) -> SchedulerStats: ...
    def digest(self) -> str: ...
    def audit(self) -> list[str]: ...
