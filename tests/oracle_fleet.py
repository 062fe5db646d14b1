"""The oracle's fleet: what workers and their engines tell, and what becomes of it (DESIGN D13, D14, D15).

A part of `Oracle`: each method applies one kind of fact; one that is not about the present fleet is counted only.
"""

from __future__ import annotations

from oracle_capacity import RankName
from oracle_index import RankCache
from oracle_ledger import RankLoad, Report
from oracle_state import Mark, Worker

from kvcore.actions import EvictReason
from kvcore.config import IndexMode
from kvcore.events import (
    BlocksRemoved,
    BlocksStored,
    LoadReported,
    Tier,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)


class FleetFacts:
    """The part of Oracle that knows what is told of workers."""

    def _upserted(self, event: WorkerUpserted) -> None:
        known = self.workers.get(event.config.worker_id)
        if known is not None and event.incarnation < known.incarnation:
            self.counts.stale_events += 1
            return
        worker = Worker(event.config, event.incarnation)
        if known is not None:
            restarted = event.incarnation > known.incarnation
            self._remove_ranks([r for r in known.ranks() if restarted or r not in worker.ranks()])
            worker.marks = {} if restarted else known.marks
        self.workers[event.config.worker_id] = worker
        for rank in worker.ranks():
            self.loads_by_rank.setdefault(rank, RankLoad())
            self.index.setdefault(rank, RankCache())

    def _removed(self, event: WorkerRemoved) -> None:
        if event.worker_id in self.workers:
            self._remove_ranks(self.workers[event.worker_id].ranks())
            del self.workers[event.worker_id]
        else:
            self.counts.stale_events += 1

    def _remove_ranks(self, ranks: list[RankName]) -> None:
        lost = [x for x in self.live.values() if x.state == "running" and x.rank in ranks]
        for live in sorted(lost, key=lambda x: x.attempt):
            self._evict(live, EvictReason.WORKER_REMOVED)
        self._strand(ranks)
        for rank in ranks:
            del self.loads_by_rank[rank]
            del self.index[rank]

    def _status_changed(self, event: WorkerStatusChanged) -> None:
        """One source has changed its mind; the best that it can say is nothing."""
        worker = self.workers.get(event.worker_id)
        if worker is None or event.incarnation != worker.incarnation:
            self.counts.stale_events += 1
            return
        worker.marks.pop(event.source, None)
        if not event.available or event.overloaded:
            leased = event.lease_ns is not None
            end_ns = self.now_ns + event.lease_ns if leased else 0
            worker.marks[event.source] = Mark(event.available, event.overloaded, leased, end_ns)

    def _is_current(self, rank: RankName, incarnation: int) -> bool:
        """Whether an engine speaks of a rank that is there."""
        return rank in self.loads_by_rank and incarnation == self.workers[rank[0]].incarnation

    def _load_reported(self, event: LoadReported) -> None:
        rank = (event.worker_id, event.dp_rank)
        load = self.loads_by_rank.get(rank)
        if not self._is_current(rank, event.incarnation) or (load.report and event.sequence <= load.report.sequence):
            self.counts.stale_events += 1
            return
        load.report = Report(event.sequence, event.prefill_tokens, event.blocks, event.requests)
        if self.config.reported_load_ttl_ns is not None:
            load.report.foreign = (
                max(0, event.prefill_tokens - self._own_tokens(rank)), max(0, event.blocks - load.active_blocks),
                max(0, event.requests - load.requests))
            load.report.end_ns = self.now_ns + self.config.reported_load_ttl_ns

    def _blocks_changed(self, event) -> None:
        if self.config.index is not IndexMode.EVENTS:
            return
        rank = (event.worker_id, event.dp_rank)
        if not self._is_current(rank, event.incarnation):
            self.counts.stale_events += 1
            return
        told = self.index[rank].told
        if isinstance(event, BlocksStored):
            told[event.tier].update(event.block_hashes)
        elif isinstance(event, BlocksRemoved):
            told[event.tier].difference_update(event.block_hashes)
        else:
            for tier in Tier if event.tier is None else (event.tier,):
                told[tier].clear()
