"""The oracle's decisions: who may use which rank, whether there is room now, what a rank costs (DESIGN D7, D8).

A part of `Oracle`: these methods read its state and change nothing, but for the generator when a choice is made.
Own load is what bookings add up to; effective load has what engines report beyond it.
"""

from __future__ import annotations

import math

from oracle_cost import choose, multiplier, rank_cost
from oracle_index import NOTHING, Found, indexed, told
from oracle_ledger import ceil_div, leading, sequence_hashes
from oracle_state import RankState

from kvcore.actions import RejectReason
from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role
from kvcore.policy import Capacity, PolicyClass
from kvcore.request import Rank, Request, SelectionWeights

DEFAULT_MAX_BATCHED_TOKENS = 10_000_000
INT64_TOP = 2**63 - 1
R = RejectReason
RankName = tuple[int, int]


def rank_of(pin: Rank) -> RankName:
    return pin.worker_id, pin.dp_rank


def queues(item: PolicyClass, capacity: Capacity) -> bool:
    """Whether requests of this class wait for room."""
    thresholds = (item.prefill_busy_threshold, item.prefill_busy_threshold_frac)
    return capacity is Capacity.STRICT or thresholds != (None, None)


class Decisions:
    """The part of Oracle that judges ranks."""

    # Load, as it counts now.

    def _rate(self, rank: RankName) -> int | None:
        """Prefill tokens a second, where they are to be taken off."""
        if self.config.prefill_decay is PrefillDecay.NONE:
            return None
        return self.workers[rank[0]].config.prefill_tokens_per_s

    def _own_tokens(self, rank: RankName, now_ns: int | None = None) -> int:
        at_ns = self.now_ns if now_ns is None else now_ns
        return self.loads_by_rank[rank].prefill_tokens_at(at_ns, self._rate(rank))

    def _tokens(self, rank: RankName, now_ns: int | None = None) -> int:
        """Effective prefill tokens."""
        foreign = self.loads_by_rank[rank].foreign[0]
        return min(INT64_TOP, self._own_tokens(rank, now_ns) + foreign)

    def _blocks(self, rank: RankName) -> int:
        load = self.loads_by_rank[rank]
        return load.active_blocks + load.foreign[1]

    def _held(self, rank: RankName) -> int:
        load = self.loads_by_rank[rank]
        return load.held_blocks + load.foreign[1]

    def _requests(self, rank: RankName) -> int:
        load = self.loads_by_rank[rank]
        return load.requests + load.foreign[2]

    def _is_over_cap(self, rank: RankName) -> bool:
        load, config = self.loads_by_rank[rank], self.workers[rank[0]].config
        return (load.requests > (config.max_requests or math.inf)
                or load.held_blocks > (config.total_kv_blocks or math.inf))

    def loads(self) -> list[tuple[int, ...]]:
        """By rank: (worker_id, dp_rank, requests, prefill_tokens, active_blocks, held_blocks, state, reported ...).

        Own load and that of peers now; the last report: prefill_tokens, blocks, requests, -1 where there is none; how
        many of the requests are peers'.
        """
        rows = []
        for rank, load in sorted(self.loads_by_rank.items()):
            report = load.report
            told = (-1, -1, -1) if report is None else (report.prefill_tokens, report.blocks, report.requests)
            rows.append((*rank, load.requests, self._own_tokens(rank), load.active_blocks, load.held_blocks,
                         int(self._state(rank)), *told, self._peer_requests(rank)))
        return rows

    # Who may be used, and is there room.

    def _state(self, rank: RankName) -> RankState:
        return self.workers[rank[0]].state

    def _eligible(self, request: Request) -> list[RankName]:
        """Ranks that this request may use now or later, in canonical order."""
        pin, allowed = request.pinned, request.allowed_workers
        return [
            rank for rank in sorted(self.loads_by_rank)
            if (pin is None or rank == rank_of(pin)) and (allowed is None or rank[0] in allowed)
            and request.required_taints <= self.workers[rank[0]].config.taints
            and self._state(rank) is not RankState.GONE]

    def _refusal_of_fleet(self, request: Request) -> RejectReason | None:
        """Why no rank may ever take it, as the fleet is now."""
        pin = request.pinned
        if not self.workers:
            return R.NO_WORKERS
        if pin is not None and (rank_of(pin) not in self.loads_by_rank or self._state(rank_of(pin)) is RankState.GONE):
            return R.PINNED_WORKER_UNAVAILABLE
        ranks = self._eligible(request)
        if not ranks:
            return R.NO_ELIGIBLE_WORKER
        return None if self._fits_somewhere(request, ranks) else R.TOO_LARGE

    def _fits_somewhere(self, request: Request, ranks: list[RankName]) -> bool:
        strict = self.profile.capacity is Capacity.STRICT
        return not strict or any(self._could_hold(request, rank) for rank in ranks)

    def _could_hold(self, request: Request, rank: RankName) -> bool:
        """Whether an empty rank would be large enough."""
        return self._need(request) <= (self.workers[rank[0]].config.total_kv_blocks or math.inf)

    def _need(self, request: Request) -> int:
        """Blocks of the prompt and of the answer as foreseen."""
        return ceil_div(request.prompt_tokens, self.config.block_size) + self._reserve(request)

    def _reserve(self, request: Request) -> int:
        return ceil_div(request.expected_output_tokens or 0, self.config.block_size)

    def _depth(self, request: Request, rank: RankName) -> int:
        """Leading blocks of its prompt that run on a rank already."""
        return leading(sequence_hashes(request, self.config.block_size), self.loads_by_rank[rank].live)

    def _has_room(self, request: Request, rank: RankName) -> bool:
        config = self.workers[rank[0]].config
        need = self._need(request) - self._depth(request, rank)
        return (self._requests(rank) < (config.max_requests or math.inf)
                and self._held(rank) + need <= (config.total_kv_blocks or math.inf))

    def _busy(self, item: PolicyClass, rank: RankName, now_ns: int | None = None) -> bool:
        tokens = self._tokens(rank, now_ns)
        cap = self.workers[rank[0]].config.max_batched_tokens or DEFAULT_MAX_BATCHED_TOKENS
        if item.prefill_busy_threshold is not None and tokens > item.prefill_busy_threshold:
            return True
        frac = item.prefill_busy_threshold_frac
        return frac is not None and float(tokens) > frac * float(cap)

    def _takes(self, item: PolicyClass, request: Request, rank: RankName) -> bool:
        """Whether a rank that is open would take it now."""
        strict = self.profile.capacity is Capacity.STRICT
        return not self._busy(item, rank) and (not strict or self._has_room(request, rank))

    def _can_run(self, entry) -> bool:
        """The dispatch test of a head; what would fail for good passes too, so that it is answered."""
        live, request = entry.payload, entry.payload.request
        item = self.profile.classes[live.class_index]
        if self._is_grace(request, live.arrival_ns):
            return False
        if not queues(item, self.profile.capacity):
            return True
        ranks = self._eligible(request)
        states = [self._state(rank) for rank in ranks]
        if any(state is RankState.OPEN and self._takes(item, request, rank)
               for rank, state in zip(ranks, states, strict=True)):
            return True
        if not ranks or not self._fits_somewhere(request, ranks):
            return True
        if RankState.OPEN in states or RankState.LEASED in states:
            return False
        return self.config.on_overload is OnOverload.REJECT

    def _candidates(self, request: Request, item: PolicyClass) -> list[RankName]:
        """Ranks that it could be placed on now; only the queue can make it wait for others (advisory)."""
        if self._refusal_of_fleet(request) is not None:
            return []
        strict = self.profile.capacity is Capacity.STRICT
        return [rank for rank in self._eligible(request)
                if self._state(rank) is RankState.OPEN and (not strict or self._takes(item, request, rank))]

    def _refusal_without_candidates(self, request: Request) -> RejectReason:
        states = [self._state(rank) for rank in self._eligible(request)]
        if request.pinned is not None:
            return R.PINNED_WORKER_UNAVAILABLE if RankState.LEASED in states else R.PINNED_WORKER_OVERLOADED
        return R.ALL_ELIGIBLE_OVERLOADED if RankState.OVERLOADED in states else R.NO_ELIGIBLE_WORKER

    # What a rank costs, and which one is taken.

    def _weights(self, request: Request) -> SelectionWeights:
        return request.weights if request.weights is not None else self.config.weights

    def _found(self, request: Request, rank: RankName) -> Found:
        """Cached blocks of this request on a rank (DESIGN D13)."""
        weights, size = self._weights(request), self.config.block_size
        if request.overlap is not None:
            return told(request.overlap, rank, weights, size)
        if self.config.index is IndexMode.OFF:
            return NOTHING
        self._forget_expected(rank)
        return indexed(self.index[rank], request.block_hashes, weights, size)

    def _costs(self, request: Request, ranks: list[RankName]) -> list[float]:
        """Cost of each of the candidates."""
        least = min((self._tokens(rank) for rank in ranks), default=0)
        return [self._cost(request, rank, least) for rank in ranks]

    def _cost(self, request: Request, rank: RankName, least_tokens: int) -> float:
        found = self._found(request, rank)
        factor = None
        if request.preferred_taints and request.pinned is None:
            factor = multiplier(request.preferred_taints, self.workers[rank[0]].config.taints)
        return rank_cost(
            prompt=request.prompt_tokens, block_size=self.config.block_size,
            sequence_length=len(sequence_hashes(request, self.config.block_size)), depth=self._depth(request, rank),
            dev=found.device, host=found.host, disk=found.disk, beyond=found.beyond, cached=found.cached,
            tokens=self._tokens(rank), blocks=self._blocks(rank), requests=self._requests(rank),
            least_tokens=least_tokens, weights=self._weights(request), track_prefill=request.track_prefill,
            decode_role=self.config.role is Role.DECODE, multiplier=factor)

    def _select(self, request: Request, ranks: list[RankName]) -> RankName:
        """The candidate that gets it."""
        costs = self._costs(request, ranks)
        temperature = self._weights(request).temperature
        return ranks[choose(costs, temperature, self.generator, request.pinned is not None)]

    def potential_loads(self, request: Request) -> list[tuple]:
        """By rank: (worker_id, dp_rank, requests, prefill_tokens, decode_blocks, cached_tokens, eligible, cost).

        What it would find on each rank now, and make of it; the cost is NaN where it could not be placed.
        """
        self._check_request(request)
        class_index = self._class_of(request, self._snapshot(request))
        candidates = self._candidates(request, self.profile.classes[class_index])
        costs = dict(zip(candidates, self._costs(request, candidates), strict=True))
        names = len(sequence_hashes(request, self.config.block_size))
        rows = []
        for rank in sorted(self.loads_by_rank):
            cached = min(self._found(request, rank).cached, request.prompt_tokens)
            added = request.prompt_tokens - cached if request.track_prefill else 0
            rows.append((
                *rank, self._requests(rank), min(INT64_TOP, self._tokens(rank) + added),
                self._blocks(rank) + names - self._depth(request, rank), cached, rank in costs,
                costs.get(rank, math.nan)))
        return rows
