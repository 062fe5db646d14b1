"""What can be read off a recorded run without knowing the scheduler: who waits, who runs, which ranks exist.

The checkers share these readings. Where a batch leaves open what happened (an id that is cancelled and comes back
inside one batch), the reading says None and the checkers leave that request alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from recording import Run

from kvcore.actions import AnyAction, Dispatch, Evict, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Rank, Request, WorkerConfig

LIMITS = (
    "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker", "cached_token_queue_limit_per_worker",
)


@dataclass(frozen=True)
class Arrival:
    """One RequestArrived: its request, its time, its place among all arrivals."""

    request: Request
    now_ns: int
    order: int

    @property
    def lane(self):
        return self.request.pinned

    def cost(self, config: SchedulerConfig) -> int | None:
        """Its cost, where no cache can have made it smaller."""
        request = self.request
        if request.overlap is None and (config.index is IndexMode.OFF or not request.block_hashes):
            return request.prompt_tokens
        return None


@dataclass
class Moment:
    """One action of a step, or its end (action None); waiting: who has been parked and not yet left, before it.

    waiting: request_id -> (class_index, arrival or None). subject: the arrival that the action is about, or None.
    """

    step: int
    events: tuple[AnyEvent, ...]
    action: AnyAction | None
    subject: Arrival | None
    waiting: dict[str, tuple[int, Arrival | None]]


def moments(run: Run) -> Iterator[Moment]:
    """Walk through all actions of a run."""
    waiting: dict[str, tuple[int, Arrival | None]] = {}
    order = 0
    for step, (events, actions) in enumerate(run.steps):
        arrivals: dict[str, list[Arrival]] = defaultdict(list)
        cancelled = {event.request_id for event in events if isinstance(event, RequestCancelled)}
        for event in events:
            if isinstance(event, RequestArrived):
                arrivals[event.request.request_id].append(Arrival(event.request, event.now_ns, order))
                order += 1
        for request_id in cancelled:
            waiting.pop(request_id, None)
        for action in actions:
            request_id = action.request_id
            subject = None
            if request_id in waiting:
                subject = waiting[request_id][1]
            elif len(arrivals[request_id]) == 1 and request_id not in cancelled:
                subject = arrivals[request_id][0]
            yield Moment(step, events, action, subject, waiting)
            if isinstance(action, Park):
                waiting[request_id] = (action.class_index, subject)
            elif isinstance(action, Dispatch) or is_end(action):
                waiting.pop(request_id, None)
        yield Moment(step, events, None, None, waiting)


def is_end(action: AnyAction) -> bool:
    """A Reject that ends the request which bears this id; DUPLICATE_ID ends only its newest arrival."""
    return isinstance(action, Reject) and action.reason is not RejectReason.DUPLICATE_ID


@dataclass
class Fleet:
    """The registered workers, by the events alone."""

    workers: dict[int, tuple[WorkerConfig, int]] = field(default_factory=dict)

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, WorkerRemoved):
            self.workers.pop(event.worker_id, None)
        elif isinstance(event, WorkerUpserted):
            known = self.workers.get(event.config.worker_id)
            if known is None or event.incarnation >= known[1]:
                self.workers[event.config.worker_id] = (event.config, event.incarnation)

    def ranks(self) -> set[tuple[int, int]]:
        return {(config.worker_id, rank) for config, _ in self.workers.values()
                for rank in range(config.dp_start, config.dp_start + config.dp_size)}

    def max_batched_tokens(self, rank: tuple[int, int]) -> int:
        return self.workers[rank[0]][0].max_batched_tokens or 10_000_000


def fleets(run: Run) -> Iterator[list[Fleet]]:
    """For each step the fleet before it and after each of its events."""
    fleet = Fleet()
    for events, _ in run.steps:
        seen = [Fleet(dict(fleet.workers))]
        for event in events:
            fleet.apply(event)
            seen.append(Fleet(dict(fleet.workers)))
        yield seen


def rank_of(pin: Rank) -> tuple[int, int]:
    return pin.worker_id, pin.dp_rank


def eligible(request: Request, fleet: Fleet) -> set[tuple[int, int]]:
    """The ranks that a request may use."""
    ranks = {rank for rank in fleet.ranks() if request.required_taints <= fleet.workers[rank[0]][0].taints}
    if request.pinned is not None:
        return ranks & {rank_of(request.pinned)}
    allowed = request.allowed_workers
    return {rank for rank in ranks if allowed is None or rank[0] in allowed}


def settles_once(run: Run) -> bool:
    """Whether no arrival can have settled in the middle of a batch: all dispatches of a batch come after its facts."""
    bounded = any(getattr(item, name) for item in run.config.effective_profile().classes for name in LIMITS)
    return not bounded or all(len(events) == 1 for events, _ in run.steps)


@dataclass
class Prefill:
    """Prefill tokens of a run that settles once per batch, by dispatches and facts alone."""

    bookings: dict[int, Dispatch] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def facts(self, events: tuple[AnyEvent, ...], actions: tuple[AnyAction, ...]) -> None:
        """Everything of a batch but its dispatches."""
        for event in events:
            if isinstance(event, PrefillCompleted) and self._held(event):
                self.done.add(event.attempt)
            elif isinstance(event, RequestFinished) and self._held(event):
                del self.bookings[event.attempt]
            elif isinstance(event, RequestCancelled):
                self.bookings = {a: d for a, d in self.bookings.items() if d.request_id != event.request_id}
        for action in actions:
            if isinstance(action, Evict):
                self.bookings.pop(action.attempt, None)

    def _held(self, event) -> bool:
        held = self.bookings.get(event.attempt)
        return held is not None and held.request_id == event.request_id

    def dispatched(self, action: Dispatch) -> None:
        self.bookings[action.attempt] = action

    def tokens(self, rank: tuple[int, int]) -> int:
        return sum(d.prefill_tokens for attempt, d in self.bookings.items()
                   if (d.worker_id, d.dp_rank) == rank and attempt not in self.done)
