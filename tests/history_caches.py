"""What is cached where, by the record alone: blocks that engines tell of, and blocks of dispatched prompts.

A cache of one rank is the oracle's own RankCache; what is told, touched and forgotten when is read off the record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from history import Fleet, RankName, eligible
from oracle_index import NOTHING, Found, RankCache, indexed, told

from kvcore.config import PREDICT_TTL_NS_DEFAULT, IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Tier,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Request


def predict_ns(config: SchedulerConfig) -> int | None:
    """How long a dispatched prompt counts as cached; None: not at all."""
    if config.index is IndexMode.APPROXIMATE and config.predict_ttl_ns is None:
        return PREDICT_TTL_NS_DEFAULT
    return None if config.index is IndexMode.OFF else config.predict_ttl_ns


@dataclass
class Caches:
    """The fleet, and which blocks are cached on each rank."""

    config: SchedulerConfig
    fleet: Fleet = field(default_factory=Fleet)
    ranks: dict[RankName, RankCache] = field(default_factory=dict)
    now_ns: int = 0

    def apply(self, event: AnyEvent) -> None:
        self.now_ns = event.now_ns
        before = self.fleet.incarnations()
        self.fleet.apply(event)
        if isinstance(event, (WorkerUpserted, WorkerRemoved)):
            self.ranks = {rank: self.ranks[rank] if before.get(rank) == incarnation else RankCache()
                          for rank, incarnation in self.fleet.incarnations().items()}
        elif isinstance(event, (BlocksStored, BlocksRemoved, BlocksCleared)) and self.config.index is IndexMode.EVENTS:
            rank = (event.worker_id, event.dp_rank)
            if before.get(rank) == event.incarnation:
                self._tell(self.ranks[rank].told, event)

    @staticmethod
    def _tell(cache: dict[Tier, set[int]], event: AnyEvent) -> None:
        if isinstance(event, BlocksStored):
            cache[event.tier].update(event.block_hashes)
        elif isinstance(event, BlocksRemoved):
            cache[event.tier].difference_update(event.block_hashes)
        else:
            for tier in Tier if event.tier is None else (event.tier,):
                cache[tier].clear()

    def touch(self, request: Request, rank: RankName) -> None:
        """A prompt is sent to a rank, or its run ends there."""
        if predict_ns(self.config) is not None:
            bounded = self.config.index is IndexMode.APPROXIMATE
            self._current(rank).use(request.block_hashes, self.now_ns,
                                    self.fleet.config(rank).total_kv_blocks if bounded else None)

    def _current(self, rank: RankName) -> RankCache:
        """The cache of a rank, without what has been predicted for too long."""
        if (ttl_ns := predict_ns(self.config)) is not None:
            self.ranks[rank].forget(self.now_ns - ttl_ns)
        return self.ranks[rank]

    def found(self, request: Request, rank: RankName) -> Found:
        """What a request finds on a rank."""
        weights = request.weights if request.weights is not None else self.config.weights
        if request.overlap is not None:
            return told(request.overlap, rank, weights, self.config.block_size)
        if self.config.index is IndexMode.OFF:
            return NOTHING
        return indexed(self._current(rank), request.block_hashes, weights, self.config.block_size)

    def cached_tokens(self, request: Request) -> int:
        """Cached tokens of its prompt on the best rank that it may use."""
        tokens = max((self.found(request, rank).cached for rank in eligible(request, self.fleet)), default=0)
        return min(tokens, request.prompt_tokens)
