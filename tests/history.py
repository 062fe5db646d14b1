"""What can be read off a recorded run without knowing the scheduler: who waits, who runs, which ranks exist.

The checkers share these readings. Where a batch leaves open what happened (an id that is cancelled and comes back
inside one batch), the reading says None and the checkers leave that request alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from oracle_ledger import leading
from oracle_queue import sort_key
from recording import Run

from kvcore.actions import AnyAction, Dispatch, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    RequestArrived,
    RequestCancelled,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import PolicyClass
from kvcore.request import Rank, Request, WorkerConfig

LIMITS = (
    "request_queue_limit_per_worker", "raw_isl_token_queue_limit_per_worker", "cached_token_queue_limit_per_worker",
)


@dataclass(frozen=True)
class Arrival:
    """One RequestArrived: its request, its time, its place among all arrivals, what the caches held of it then."""

    request: Request
    now_ns: int
    order: int
    cached_tokens: int

    @property
    def lane(self):
        return self.request.pinned

    @property
    def cost(self) -> int:
        return max(1, self.request.prompt_tokens - self.cached_tokens)

    def key(self, item: PolicyClass) -> tuple:
        """Its key in a class (DESIGN D3): the least goes first. Its place among all arrivals stands for its seq."""
        request = self.request
        return sort_key(item.queue_policy, request.strict_priority, request.priority_jump, self.now_ns,
                        request.deadline_ns, self.cost, self.order)


#: request_id -> (class_index, its arrival, None if the record does not tell which).
Stored = dict[str, tuple[int, Arrival | None]]


@dataclass
class Moment:
    """One action of a step, or its end (action None).

    subject: the arrival that the action is about, or None. waiting: who has been parked and not yet left, before the
    action. coming: who else has been let in by this batch (all that get an action in it from here on).
    """

    step: int
    events: tuple[AnyEvent, ...]
    action: AnyAction | None
    subject: Arrival | None
    waiting: Stored
    coming: Stored


def moments(run: Run) -> Iterator[Moment]:
    """Walk through all actions of a run."""
    waiting: Stored = {}
    caches = Caches(run.config)
    order = 0
    for step, (events, actions) in enumerate(run.steps):
        arrivals: dict[str, list[Arrival]] = defaultdict(list)
        cancelled = {event.request_id for event in events if isinstance(event, RequestCancelled)}
        for event in events:
            caches.apply(event)
            if isinstance(event, RequestArrived):
                cached = caches.cached_tokens(event.request)
                arrivals[event.request.request_id].append(Arrival(event.request, event.now_ns, order, cached))
                order += 1
        for request_id in cancelled:
            waiting.pop(request_id, None)
        known = {name: found[0] for name, found in arrivals.items() if len(found) == 1 and name not in cancelled}
        coming = {action.request_id: (action.class_index, known.get(action.request_id)) for action in actions
                  if action.request_id in arrivals and was_let_in(action)}
        coming |= {name: (coming[name][0], None) for name in coming.keys() & waiting.keys()}
        for action in actions:
            request_id = action.request_id
            subject = waiting[request_id][1] if request_id in waiting else known.get(request_id)
            yield Moment(step, events, action, subject, waiting, coming)
            if isinstance(action, Park):
                waiting[request_id] = (action.class_index, subject)
            elif isinstance(action, Dispatch) or is_end(action):
                waiting.pop(request_id, None)
            if was_let_in(action):
                coming.pop(request_id, None)
        yield Moment(step, events, None, None, waiting, coming)


def was_let_in(action: AnyAction) -> bool:
    """Whether the request of an action has been stored: it was not refused at the door nor for a limit above 0."""
    if isinstance(action, Reject):
        return is_end(action) and action.class_index >= 0 and action.limit == 0
    return isinstance(action, (Dispatch, Park))


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

    def incarnations(self) -> dict[tuple[int, int], int]:
        return {rank: self.workers[rank[0]][1] for rank in self.ranks()}

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


def costs_its_prompt(request: Request, config: SchedulerConfig) -> bool:
    """Whether no cache can make it cheaper."""
    return request.overlap is None and (config.index is IndexMode.OFF or not request.block_hashes)


@dataclass
class Caches:
    """Which prompt blocks are cached on each rank, by the events alone."""

    config: SchedulerConfig
    fleet: Fleet = field(default_factory=Fleet)
    blocks: dict[tuple[int, int], set[int]] = field(default_factory=dict)

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, (WorkerUpserted, WorkerRemoved)):
            before = self.fleet.incarnations()
            self.fleet.apply(event)
            self.blocks = {rank: self.blocks[rank] if before.get(rank) == incarnation else set()
                           for rank, incarnation in self.fleet.incarnations().items()}
        elif isinstance(event, (BlocksStored, BlocksRemoved, BlocksCleared)) and self.config.index is not IndexMode.OFF:
            rank = (event.worker_id, event.dp_rank)
            if self.fleet.incarnations().get(rank) != event.incarnation:
                return
            if isinstance(event, BlocksStored):
                self.blocks[rank].update(event.block_hashes)
            else:
                self.blocks[rank] -= self.blocks[rank] if isinstance(event, BlocksCleared) else set(event.block_hashes)

    def overlap_blocks(self, request: Request, rank: tuple[int, int]) -> int:
        if request.overlap is not None:
            return {rank_of(pair): blocks for pair, blocks in request.overlap.device}.get(rank, 0)
        return leading(request.block_hashes, self.blocks[rank])

    def cached_tokens(self, request: Request, rank: tuple[int, int] | None = None) -> int:
        """Cached tokens of its prompt on a rank; without one on the best that it may use."""
        ranks = [rank] if rank is not None else eligible(request, self.fleet)
        blocks = max((self.overlap_blocks(request, rank) for rank in ranks), default=0)
        return min(blocks * self.config.block_size, request.prompt_tokens)
