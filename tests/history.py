"""What can be read off a recorded run without knowing the scheduler: which ranks exist, who may use them, who waits.

The checkers share these readings. Bookings and caches are in history_load and history_caches, the walk through a run is
in history_moments. Where a batch leaves open what happened (an id that is cancelled and comes back inside one batch),
the reading says None and the checkers leave that request alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from oracle_ledger import ceil_div
from oracle_queue import sort_key
from oracle_state import RankState
from recording import Run

from kvcore.actions import AnyAction, Dispatch, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import AnyEvent, DispatchFailed, WorkerRemoved, WorkerStatusChanged, WorkerUpserted
from kvcore.policy import Capacity, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.request import Rank, Request, WorkerConfig

RankName = tuple[int, int]

LIMITS = (
    "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker", "cached_token_queue_limit_per_worker",
)


@dataclass(frozen=True)
class Arrival:
    """One RequestArrived: its request, its time, its place among all arrivals, what the caches held of it then.

    cached_tokens: None where the record does not tell. since_ns: since when it waits: its arrival, or when it was put
    back. age: the (step, event) of that.
    """

    request: Request
    now_ns: int
    order: int
    cached_tokens: int | None
    since_ns: int
    age: tuple[int, int]

    @property
    def lane(self):
        return self.request.pinned

    def has_key(self, item: PolicyClass) -> bool:
        """Whether the record tells its key in a class."""
        return self.cached_tokens is not None or item.queue_policy is not QueuePolicy.WSPT

    def key(self, item: PolicyClass) -> tuple:
        """Its key in a class (DESIGN D3): the least goes first. Its place among all arrivals stands for its seq."""
        request = self.request
        cost = max(1, request.prompt_tokens - (self.cached_tokens or 0))
        return sort_key(item.queue_policy, request.strict_priority, request.priority_jump, self.now_ns,
                        request.deadline_ns, cost, self.order)


#: request_id -> (class_index, its arrival, None if the record does not tell which).
Stored = dict[str, tuple[int, Arrival | None]]


def was_let_in(action: AnyAction) -> bool:
    """Whether the request of an action has been stored: it was not refused at the door nor for a limit above 0."""
    if isinstance(action, Reject):
        return is_end(action) and action.class_index >= 0 and action.limit == 0
    return isinstance(action, (Dispatch, Park))


def is_end(action: AnyAction) -> bool:
    """A Reject that ends the request which bears this id; DUPLICATE_ID ends only its newest arrival."""
    return isinstance(action, Reject) and action.reason is not RejectReason.DUPLICATE_ID


class LastAttempts(dict[str, int]):
    """The last attempt of each request, and so the only one that can still fail."""

    def note(self, actions: tuple[AnyAction, ...]) -> None:
        self.update({action.request_id: action.attempt for action in actions if isinstance(action, Dispatch)})

    def may_return(self, event: AnyEvent) -> bool:
        """Whether a fact may put a request back into its queue."""
        return isinstance(event, DispatchFailed) and event.retry and self.get(event.request_id) == event.attempt


def is_strict(profile: PolicyProfile) -> bool:
    return profile.capacity is Capacity.STRICT


def queues(item: PolicyClass, profile: PolicyProfile) -> bool:
    """Whether requests of a class are held back until there is room for them (DESIGN D7)."""
    return is_strict(profile) or (item.prefill_busy_threshold, item.prefill_busy_threshold_frac) != (None, None)


def may_wait(item: PolicyClass, profile: PolicyProfile) -> bool:
    """Whether a class can have requests that wait from batch to batch."""
    return queues(item, profile) and all(getattr(item, name) != 0 for name in LIMITS)


@dataclass(frozen=True)
class Opinion:
    """What one source says of a worker: one that lets it get nothing. end_ns: None if it has no end."""

    available: bool
    overloaded: bool
    end_ns: int | None


@dataclass
class Fleet:
    """The registered workers, and what is said of them, by the events alone. opinions: by worker and source."""

    workers: dict[int, tuple[WorkerConfig, int]] = field(default_factory=dict)
    opinions: dict[tuple[int, str], Opinion] = field(default_factory=dict)

    def apply(self, event: AnyEvent) -> None:
        self.opinions = self.at(event.now_ns).opinions
        if isinstance(event, WorkerRemoved):
            self.workers.pop(event.worker_id, None)
            self._forget(event.worker_id)
        elif isinstance(event, WorkerUpserted):
            known = self.workers.get(event.config.worker_id)
            if known is None or event.incarnation >= known[1]:
                self.workers[event.config.worker_id] = (event.config, event.incarnation)
            if known is not None and event.incarnation > known[1]:
                self._forget(event.config.worker_id)
        elif isinstance(event, WorkerStatusChanged):
            known = self.workers.get(event.worker_id)
            if known is not None and known[1] == event.incarnation:
                end_ns = None if event.lease_ns is None else event.now_ns + event.lease_ns
                self.opinions[event.worker_id, event.source] = Opinion(event.available, event.overloaded, end_ns)

    def _forget(self, worker_id: int) -> None:
        self.opinions = {name: opinion for name, opinion in self.opinions.items() if name[0] != worker_id}

    def copy(self) -> Fleet:
        return Fleet(dict(self.workers), dict(self.opinions))

    def at(self, now_ns: int) -> Fleet:
        """The fleet at a later time if nothing but time happens to it."""
        return Fleet(dict(self.workers), {
            name: opinion for name, opinion in self.opinions.items()
            if opinion.end_ns is None or opinion.end_ns > now_ns})

    def changes(self, after_ns: int, until_ns: int) -> list[int]:
        """Times in (after_ns, until_ns] at which an opinion ends."""
        ends = {opinion.end_ns for opinion in self.opinions.values()} - {None}
        return sorted(end_ns for end_ns in ends if after_ns < end_ns <= until_ns)

    def ranks(self) -> set[RankName]:
        return {(config.worker_id, rank) for config, _ in self.workers.values()
                for rank in range(config.dp_start, config.dp_start + config.dp_size)}

    def incarnations(self) -> dict[RankName, int]:
        return {rank: self.workers[rank[0]][1] for rank in self.ranks()}

    def config(self, rank: RankName) -> WorkerConfig:
        return self.workers[rank[0]][0]

    def state(self, rank: RankName) -> RankState:
        """DESIGN D14: what is unavailable for good is gone; the worst of the other opinions counts."""
        said = [opinion for (worker_id, _), opinion in self.opinions.items() if worker_id == rank[0]]
        if any(not opinion.available and opinion.end_ns is None for opinion in said):
            return RankState.GONE
        if not all(opinion.available for opinion in said):
            return RankState.LEASED
        return RankState.OVERLOADED if any(opinion.overloaded for opinion in said) else RankState.OPEN

    def could_hold(self, request: Request, rank: RankName, block_size: int) -> bool:
        """Whether a rank would be large enough if it were empty."""
        return blocks_needed(request, block_size) <= (self.config(rank).total_kv_blocks or math.inf)


def blocks_needed(request: Request, block_size: int) -> int:
    """Blocks of the prompt, and of the answer as far as it is foreseen."""
    return ceil_div(request.prompt_tokens, block_size) + reserve(request, block_size)


def reserve(request: Request, block_size: int) -> int:
    return ceil_div(request.expected_output_tokens or 0, block_size)


def fleets(run: Run) -> Iterator[list[Fleet]]:
    """For each step the fleet before it and after each of its events."""
    fleet = Fleet()
    for events, _ in run.steps:
        seen = [fleet.copy()]
        for event in events:
            fleet.apply(event)
            seen.append(fleet.copy())
        yield seen


@dataclass(frozen=True)
class Stretch:
    """Times at which the fleet is the same: after_ns < now_ns <= until_ns, before the events of until_ns."""

    after_ns: int
    until_ns: int
    fleet: Fleet


def stretches(run: Run) -> Iterator[list[Stretch]]:
    """For each step the time that passes until each of its events, cut where an opinion ends."""
    now_ns = -1
    for (events, _), seen in zip(run.steps, fleets(run), strict=True):
        found = []
        for event, before in zip(events, seen, strict=False):
            for end_ns in (*before.changes(now_ns, event.now_ns), event.now_ns + 1):
                if end_ns - 1 > now_ns:
                    found.append(Stretch(now_ns, end_ns - 1, before.at(now_ns + 1)))
                    now_ns = end_ns - 1
        yield found


def rank_of(pin: Rank) -> RankName:
    return pin.worker_id, pin.dp_rank


def eligible(request: Request, fleet: Fleet) -> set[RankName]:
    """The ranks that a request may use, now or later."""
    ranks = {rank for rank in fleet.ranks() if request.required_taints <= fleet.config(rank).taints
             and fleet.state(rank) is not RankState.GONE}
    if request.pinned is not None:
        ranks &= {rank_of(request.pinned)}
    allowed = request.allowed_workers
    return {rank for rank in ranks if allowed is None or rank[0] in allowed}


def costs_its_prompt(request: Request, config: SchedulerConfig) -> bool:
    """Whether no cache can make it cheaper."""
    return request.overlap is None and (config.index is IndexMode.OFF or not request.block_hashes)
