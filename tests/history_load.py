"""Bookings and load, by the record alone: what each rank carries just before each decision, and what that allows.

The load of a rank is the oracle's own RankLoad, so it is defined in one place; what is booked, released, reported and
expired when is read off the events, and from the actions only what was dispatched where.

A batch decides once, after all its facts; but the test of a limit decides in the middle of it too (DESIGN 3, item 5),
and the record does not tell which dispatches those were. Such a batch is not `sharp`: nothing is said of its dispatches
one by one. Where what comes later depends on their times, or one of its facts may be about one of them, the reading
ends: the world is not `known` from there on, but for its fleet and what engines tell of their caches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from history import LIMITS, Arrival, Fleet, RankName, blocks_needed, eligible, is_strict, queues, reserve
from history_caches import Caches, predict_ns
from oracle_cost import multiplier, rank_cost
from oracle_ledger import Booking, RankLoad, Report, ceil_div, leading, sequence_hashes
from oracle_state import RankState

from kvcore.actions import AnyAction, Dispatch, Evict, EvictReason
from kvcore.config import OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import PolicyClass
from kvcore.request import Request

INT64_TOP = 2**63 - 1


@dataclass
class Held:
    """A booking that is held. request: None where the record does not tell. progress_ns: its last sign of life.

    accepted: there has been one since its dispatch, so that its worker has taken it.
    """

    dispatch: Dispatch
    booking: Booking
    request: Request | None
    progress_ns: int
    accepted: bool = False

    @property
    def rank(self) -> RankName:
        return self.dispatch.worker_id, self.dispatch.dp_rank


@dataclass
class World:
    """Workers, their caches and their load. blurred: ranks whose blocks in use are not all known.

    sharp: whether the dispatches of the present batch come after all its facts. evictions: what the facts of the
    present batch make of bookings, by attempt. drain_ns: when those that still run are evicted, or None.
    """

    config: SchedulerConfig
    caches: Caches
    loads: dict[RankName, RankLoad] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    blurred: set[RankName] = field(default_factory=set)
    evictions: dict[int, EvictReason] = field(default_factory=dict)
    drain_ns: int | None = None
    sharp: bool = True
    known: bool = True

    @property
    def fleet(self) -> Fleet:
        return self.caches.fleet

    # What happens.

    def facts(self, events: tuple[AnyEvent, ...], actions: tuple[AnyAction, ...]) -> list[int | None]:
        """Everything of a batch but its dispatches; for each arrival what is cached of it, None: not known."""
        self.evictions = {}
        self.sharp = decides_once(self.config, events)
        self.known = self.known and (self.sharp or not self._depends_on_order(events, actions))
        cached = []
        for event in events:
            if self.known:
                self._time(event.now_ns)
            before = self.fleet.incarnations()
            self.caches.apply(event)
            if self.known:
                self._apply(event, before)
            if isinstance(event, RequestArrived):
                cached.append(self._snapshot(event.request))
        return cached

    def _depends_on_order(self, events: tuple[AnyEvent, ...], actions: tuple[AnyAction, ...]) -> bool:
        """Whether it matters when exactly this batch dispatched what it did."""
        timed = (self.config.prefill_decay is not PrefillDecay.NONE or self.config.reported_load_ttl_ns is not None
                 or predict_ns(self.config) is not None)
        dispatches = any(isinstance(action, Dispatch) for action in actions)
        return (timed and dispatches) or may_be_about_its_own_dispatches(events, actions)

    def _snapshot(self, request: Request) -> int | None:
        predicted = predict_ns(self.config) is not None and request.overlap is None and request.block_hashes
        return None if predicted and not self.known else self.caches.cached_tokens(request)

    def _time(self, now_ns: int) -> None:
        for load in self.loads.values():
            if load.report is not None and load.report.end_ns is not None and load.report.end_ns <= now_ns:
                load.report.foreign, load.report.end_ns = (0, 0, 0), None
        if self.drain_ns is not None and self.drain_ns <= now_ns:
            self._expire(self.drain_ns)
            self._drain_is_over(self.drain_ns)
        self._expire(now_ns)

    def _expire(self, now_ns: int) -> None:
        """Bookings that have made no progress for booking_ttl_ns."""
        ttl_ns = self.config.booking_ttl_ns
        ends = [(held.progress_ns + ttl_ns, attempt) for attempt, held in self.held.items() if ttl_ns is not None]
        for end_ns, attempt in sorted(end for end in ends if end[0] <= now_ns):
            self._evict(attempt, end_ns, EvictReason.BOOKING_EXPIRED)

    def _drain_is_over(self, now_ns: int) -> None:
        self.drain_ns = None
        for attempt in sorted(self.held):
            self._evict(attempt, now_ns, EvictReason.DRAIN_DEADLINE)

    def _evict(self, attempt: int, now_ns: int, reason: EvictReason) -> None:
        self._release(attempt, now_ns)
        self.evictions[attempt] = reason

    def _apply(self, event: AnyEvent, before: dict[RankName, int]) -> None:
        if isinstance(event, (WorkerUpserted, WorkerRemoved)):
            self._fleet_changed(before)
        elif isinstance(event, LoadReported):
            self._reported(event)
        elif isinstance(event, Drained):
            self.drain_ns = event.deadline_ns
            if event.deadline_ns <= event.now_ns:
                self._drain_is_over(event.now_ns)
        elif isinstance(event, (DispatchAccepted, DispatchFailed, PrefillCompleted, OutputBlockAdded, RequestFinished)):
            held = self.held.get(event.attempt)
            if held is not None and held.dispatch.request_id == event.request_id:
                self._progress(held, event)
        elif isinstance(event, RequestCancelled):
            for attempt in [a for a, held in self.held.items() if held.dispatch.request_id == event.request_id]:
                self._end(attempt, completed=False)

    def _fleet_changed(self, before: dict[RankName, int]) -> None:
        after = self.fleet.incarnations()
        self.loads = {rank: self.loads[rank] if before.get(rank) == incarnation else RankLoad()
                      for rank, incarnation in after.items()}
        for attempt, held in list(self.held.items()):
            if before.get(held.rank) != after.get(held.rank):
                del self.held[attempt]
                self.blurred.discard(held.rank)
                self.evictions[attempt] = EvictReason.WORKER_REMOVED

    def _reported(self, event: LoadReported) -> None:
        rank = (event.worker_id, event.dp_rank)
        load = self.loads.get(rank)
        if load is None or self.fleet.incarnations()[rank] != event.incarnation:
            return
        if load.report is not None and event.sequence <= load.report.sequence:
            return
        load.report = Report(event.sequence, event.prefill_tokens, event.blocks, event.requests)
        if self.config.reported_load_ttl_ns is not None:
            self.known = rank not in self.blurred
            load.report.foreign = (
                max(0, event.prefill_tokens - self.own_tokens(rank)), max(0, event.blocks - load.active_blocks),
                max(0, event.requests - load.requests))
            load.report.end_ns = event.now_ns + self.config.reported_load_ttl_ns

    def _progress(self, held: Held, event: AnyEvent) -> None:
        load = self.loads[held.rank]
        if isinstance(event, RequestFinished):
            self._end(event.attempt, event.outcome is Outcome.COMPLETED)
        elif isinstance(event, DispatchFailed):
            self._release(event.attempt, event.now_ns)
        elif isinstance(event, DispatchAccepted):
            if not held.accepted:
                self._alive(held, event.now_ns)
        elif isinstance(event, OutputBlockAdded):
            load.add_output(held.booking, event.decay_fraction)
            self._alive(held, event.now_ns)
        elif not held.booking.prefill_done:
            load.complete_prefill(held.booking, event.now_ns, self._rate(held.rank))
            self._alive(held, event.now_ns)

    @staticmethod
    def _alive(held: Held, now_ns: int) -> None:
        held.progress_ns, held.accepted = now_ns, True

    def _end(self, attempt: int, completed: bool) -> None:
        held = self.held[attempt]
        self._release(attempt, self.caches.now_ns, completed)
        if held.request is not None:
            self.caches.touch(held.request, held.rank)

    def _release(self, attempt: int, now_ns: int, completed: bool = False) -> None:
        held = self.held.pop(attempt)
        load = self.loads[held.rank]
        load.release(held.booking, now_ns, self._rate(held.rank), completed)
        if not load.bookings:
            self.blurred.discard(held.rank)

    def dispatched(self, action: Dispatch, subject: Arrival | None) -> None:
        rank = (action.worker_id, action.dp_rank)
        if not self.known or rank not in self.loads or action.attempt in self.held:
            return
        if subject is None or not self.sharp:
            # Its blocks, or the order in which others came and went: both decide what a shared block weighs.
            self.blurred.add(rank)
        if subject is None:
            untimed = not self.sharp and self.config.booking_ttl_ns is not None
            self.known = not untimed and predict_ns(self.config) is None
            booking = self.loads[rank].book(action.prefill_tokens, (), now_ns=self.caches.now_ns)
            self.held[action.attempt] = Held(action, booking, None, self.caches.now_ns)
            return
        request, size = subject.request, self.config.block_size
        names = sequence_hashes(request, size)
        private = ceil_div(request.prompt_tokens, size) - len(names)
        booking = self.loads[rank].book(action.prefill_tokens, names, private, reserve(request, size),
                                        self.caches.now_ns)
        now_ns = self.caches.now_ns if self.sharp else subject.now_ns + action.wait_ns
        self.held[action.attempt] = Held(action, booking, request, now_ns)
        self.caches.touch(request, rank)

    # Load, as it counts now.

    def _rate(self, rank: RankName) -> int | None:
        if self.config.prefill_decay is PrefillDecay.NONE:
            return None
        return self.fleet.config(rank).prefill_tokens_per_s

    def own_tokens(self, rank: RankName) -> int:
        return self.loads[rank].prefill_tokens_at(self.caches.now_ns, self._rate(rank))

    def tokens(self, rank: RankName) -> int:
        return min(INT64_TOP, self.own_tokens(rank) + self.loads[rank].foreign[0])

    def busy(self, item: PolicyClass, rank: RankName) -> bool:
        """DESIGN D7."""
        tokens, frac = self.tokens(rank), item.prefill_busy_threshold_frac
        if item.prefill_busy_threshold is not None and tokens > item.prefill_busy_threshold:
            return True
        cap = self.fleet.config(rank).max_batched_tokens or 10_000_000
        return frac is not None and float(tokens) > frac * float(cap)

    def has_room(self, request: Request, rank: RankName) -> bool | None:
        """Whether a rank stays within its caps with this request; None: not known."""
        load, config = self.loads[rank], self.fleet.config(rank)
        if load.requests + load.foreign[2] >= (config.max_requests or math.inf):
            return False
        if config.total_kv_blocks is None:
            return True
        if rank in self.blurred:
            return None
        shared = leading(sequence_hashes(request, self.config.block_size), load.live)
        need = blocks_needed(request, self.config.block_size) - shared
        return load.held_blocks + load.foreign[1] + need <= config.total_kv_blocks

    # Decisions.

    def takes(self, item: PolicyClass, request: Request, rank: RankName) -> bool | None:
        """Whether an open rank would take it now; None: not known."""
        if self.busy(item, rank):
            return False
        return self.has_room(request, rank) if is_strict(self.config.effective_profile()) else True

    def open_ranks(self, request: Request) -> list[RankName]:
        return [rank for rank in sorted(eligible(request, self.fleet)) if self.fleet.state(rank) is RankState.OPEN]

    def fits_nowhere(self, request: Request) -> bool:
        """Whether all ranks that it may use are too small for it."""
        return is_strict(self.config.effective_profile()) and not any(
            self.fleet.could_hold(request, rank, self.config.block_size) for rank in eligible(request, self.fleet))

    def can_run(self, item: PolicyClass, request: Request) -> bool | None:
        """Whether a head would be popped: an open rank takes it, or it is answered; None: not known."""
        if not queues(item, self.config.effective_profile()):
            return True
        verdicts = {self.takes(item, request, rank) for rank in self.open_ranks(request)}
        states = {self.fleet.state(rank) for rank in eligible(request, self.fleet)}
        if True in verdicts or not states or self.fits_nowhere(request):
            return True
        if None in verdicts:
            return None
        return states == {RankState.OVERLOADED} and self.config.on_overload is OnOverload.REJECT

    def candidates(self, item: PolicyClass, request: Request) -> dict[RankName, bool | None]:
        """Open ranks that it could be placed on; those of which it is not known are None."""
        strict = is_strict(self.config.effective_profile())
        found = {rank: self.takes(item, request, rank) if strict else True for rank in self.open_ranks(request)}
        return {rank: takes for rank, takes in found.items() if takes is not False}

    def cost(self, request: Request, rank: RankName, least_tokens: int) -> float:
        """What a rank costs (DESIGN D8); it must not be blurred."""
        load, found = self.loads[rank], self.caches.found(request, rank)
        names = sequence_hashes(request, self.config.block_size)
        factor = None
        if request.preferred_taints and request.pinned is None:
            factor = multiplier(request.preferred_taints, self.fleet.config(rank).taints)
        return rank_cost(
            prompt=request.prompt_tokens, block_size=self.config.block_size, sequence_length=len(names),
            depth=leading(names, load.live), dev=found.device, host=found.host, disk=found.disk, beyond=found.beyond,
            cached=found.cached, tokens=self.tokens(rank), blocks=load.active_blocks + load.foreign[1],
            requests=load.requests + load.foreign[2], least_tokens=least_tokens, weights=self.weights(request),
            track_prefill=request.track_prefill, decode_role=self.config.role is Role.DECODE, multiplier=factor)

    def weights(self, request: Request):
        return request.weights if request.weights is not None else self.config.weights


def decides_once(config: SchedulerConfig, events: tuple[AnyEvent, ...]) -> bool:
    """Whether every dispatch of a batch follows all its facts: no arrival but the last event may meet a limit."""
    bounded = any(getattr(item, name) for item in config.effective_profile().classes for name in LIMITS)
    return not bounded or not any(isinstance(event, RequestArrived) for event in events[:-1])


def may_be_about_its_own_dispatches(events: tuple[AnyEvent, ...], actions: tuple[AnyAction, ...]) -> bool:
    """Whether something that a batch dispatched may have changed or ended in the same batch."""
    dispatched = [action for action in actions if isinstance(action, Dispatch)]
    names = {action.request_id for action in dispatched}
    attempts = {action.attempt for action in dispatched}
    return any(
        fact.request_id in names if isinstance(fact, RequestCancelled) else getattr(fact, "attempt", None) in attempts
        for fact in (*events, *(action for action in actions if isinstance(action, Evict))))
