"""Bookings and load, by the record alone: what each rank carries just before each decision.

The load of a rank is the oracle's own RankLoad, so it is defined in one place; what is booked and released when is read
off the events, and from the actions only what was dispatched where.

A batch decides once, after all its facts; but the test of a limit decides in the middle of it too (DESIGN 3, item 5),
and the record does not tell which dispatches those were. Such a batch is not `sharp`: nothing is said of its dispatches
one by one. If one of its facts may be about one of its own dispatches, the reading ends there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from history import LIMITS, Arrival, Caches, Moment, eligible, moments
from oracle_ledger import Booking, RankLoad, sequence_hashes
from recording import Run

from kvcore.actions import AnyAction, Dispatch, Evict, EvictReason
from kvcore.config import SchedulerConfig
from kvcore.events import (
    AnyEvent,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import PolicyClass

RankName = tuple[int, int]


@dataclass
class Held:
    """A booking that is held. progress_ns: its last sign of life, None while the record does not tell."""

    dispatch: Dispatch
    booking: Booking
    progress_ns: int | None

    @property
    def rank(self) -> RankName:
        return self.dispatch.worker_id, self.dispatch.dp_rank


@dataclass
class World:
    """Workers, their caches and their load. blurred: ranks whose prompt blocks in use are not all known.

    sharp: whether the dispatches of the present batch come after all its facts. evictions: what the facts of the
    present batch make of bookings, by attempt.
    """

    config: SchedulerConfig
    caches: Caches
    loads: dict[RankName, RankLoad] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    blurred: set[RankName] = field(default_factory=set)
    evictions: dict[int, EvictReason] = field(default_factory=dict)
    sharp: bool = True

    def facts(self, events: tuple[AnyEvent, ...]) -> None:
        """Everything of a batch but its dispatches."""
        self.evictions = {}
        self.sharp = decides_once(self.config, events)
        for event in events:
            self._time(event.now_ns)
            if isinstance(event, (WorkerUpserted, WorkerRemoved)):
                self._fleet(event)
            elif isinstance(event, (PrefillCompleted, OutputBlockAdded, RequestFinished)):
                held = self.held.get(event.attempt)
                if held is not None and held.dispatch.request_id == event.request_id:
                    self._fact(held, event)
            elif isinstance(event, RequestCancelled):
                for attempt in [a for a, held in self.held.items() if held.dispatch.request_id == event.request_id]:
                    self._release(attempt)
            else:
                self.caches.apply(event)

    def _time(self, now_ns: int) -> None:
        ttl_ns = self.config.booking_ttl_ns
        for attempt, held in list(self.held.items()):
            if ttl_ns is not None and held.progress_ns is not None and held.progress_ns + ttl_ns <= now_ns:
                self._release(attempt)
                self.evictions[attempt] = EvictReason.BOOKING_EXPIRED

    def _fleet(self, event: AnyEvent) -> None:
        before = self.caches.fleet.incarnations()
        self.caches.apply(event)
        after = self.caches.fleet.incarnations()
        self.loads = {rank: self.loads[rank] if before.get(rank) == incarnation else RankLoad()
                      for rank, incarnation in after.items()}
        for attempt, held in list(self.held.items()):
            if before.get(held.rank) != after.get(held.rank):
                del self.held[attempt]
                self.blurred.discard(held.rank)
                self.evictions[attempt] = EvictReason.WORKER_REMOVED

    def _fact(self, held: Held, event: AnyEvent) -> None:
        if isinstance(event, RequestFinished):
            self._release(event.attempt)
        elif isinstance(event, OutputBlockAdded):
            self.loads[held.rank].add_output(held.booking, event.decay_fraction)
            held.progress_ns = event.now_ns
        elif not held.booking.prefill_done:
            held.booking.prefill_done = True
            held.progress_ns = event.now_ns

    def _release(self, attempt: int) -> None:
        held = self.held.pop(attempt)
        self.loads[held.rank].release(held.booking)
        if not self.loads[held.rank].bookings:
            self.blurred.discard(held.rank)

    def dispatched(self, action: Dispatch, subject: Arrival | None, now_ns: int) -> None:
        rank = (action.worker_id, action.dp_rank)
        if rank not in self.loads or action.attempt in self.held:
            return
        blocks = () if subject is None else sequence_hashes(subject.request, self.config.block_size)
        if subject is None or not self.sharp:
            # Its blocks, or the order in which others came and went: both decide what a shared block weighs.
            self.blurred.add(rank)
        if not self.sharp:
            now_ns = None if subject is None else subject.now_ns + action.wait_ns
        self.held[action.attempt] = Held(action, self.loads[rank].book(action.prefill_tokens, blocks), now_ns)

    def busy(self, item: PolicyClass, rank: RankName) -> bool:
        """DESIGN D7."""
        tokens, frac = self.loads[rank].prefill_tokens, item.prefill_busy_threshold_frac
        if item.prefill_busy_threshold is not None and tokens > item.prefill_busy_threshold:
            return True
        return frac is not None and float(tokens) > frac * float(self.caches.fleet.max_batched_tokens(rank))

    def can_run(self, item: PolicyClass, arrival: Arrival) -> bool:
        """Whether a head would be popped: a rank that it may use is not busy, or there is none and it is answered."""
        ranks = eligible(arrival.request, self.caches.fleet)
        return not ranks or not all(self.busy(item, rank) for rank in ranks)


def decides_once(config: SchedulerConfig, events: tuple[AnyEvent, ...]) -> bool:
    """Whether every dispatch of a batch follows all its facts: no arrival but the last event may meet a limit."""
    bounded = any(getattr(item, name) for item in config.effective_profile().classes for name in LIMITS)
    return not bounded or not any(isinstance(event, RequestArrived) for event in events[:-1])


def readings(run: Run) -> Iterator[tuple[Moment, World]]:
    """The moments of a run, and the world just before each."""
    world, step = World(run.config, Caches(run.config)), -1
    for moment in moments(run):
        if moment.step != step:
            step = moment.step
            world.facts(moment.events)
            if not world.sharp and may_be_about_its_own_dispatches(*run.steps[step]):
                return
        yield moment, world
        if isinstance(moment.action, Dispatch):
            world.dispatched(moment.action, moment.subject, moment.events[-1].now_ns)


def may_be_about_its_own_dispatches(events: tuple[AnyEvent, ...], actions: tuple[AnyAction, ...]) -> bool:
    """Whether something that a batch dispatched may have changed or ended in the same batch."""
    dispatched = [action for action in actions if isinstance(action, Dispatch)]
    names = {action.request_id for action in dispatched}
    attempts = {action.attempt for action in dispatched}
    return any(
        fact.request_id in names if isinstance(fact, RequestCancelled) else getattr(fact, "attempt", None) in attempts
        for fact in (*events, *(action for action in actions if isinstance(action, Evict))))
