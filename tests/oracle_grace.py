"""The oracle's graces: how long requests wait for a pinned rank that is lost, and for a fleet that is empty (D14).

A part of `Oracle`. A rank can be used if it is registered and its worker is not gone; lost_ns holds since when it
cannot, for ranks that once could. Only an event that finds a rank of use and leaves it of none is a loss.
"""

from __future__ import annotations

from oracle_capacity import RankName, rank_of
from oracle_state import Live, RankState

from kvcore.actions import RejectReason
from kvcore.request import Request

NEVER = -1      # before any arrival


class Graces:
    """The part of Oracle that waits for workers."""

    def _usable_ranks(self) -> set[RankName]:
        return {rank for rank in self.loads_by_rank if self._state(rank) is not RankState.GONE}

    def _note_losses(self, before: set[RankName]) -> None:
        """An event has changed the fleet: what is lost now, what is there again, and who waits for it till when."""
        usable = self._usable_ranks()
        for rank in before - usable:
            self.lost_ns[rank] = self.now_ns
        for rank in usable:
            self.lost_ns.pop(rank, None)
        if self.loads_by_rank:
            self.empty_since_ns = None
        elif self.empty_since_ns is None:
            self.empty_since_ns = self.now_ns
        for live in self._waiting():
            live.grace_ns = self._grace_timer_ns(live)

    def _grace_end_ns(self, request: Request, arrival_ns: int) -> int | None:
        """Until when it waits for what is missing; None: nothing is, or nobody waits for it."""
        ends = []
        if self.empty_since_ns is not None and self.config.empty_fleet_wait_ns > 0:
            ends.append(max(arrival_ns, self.empty_since_ns) + self.config.empty_fleet_wait_ns)
        rank = None if request.pinned is None else rank_of(request.pinned)
        if self.config.pin_grace_ns > 0 and rank is not None and rank not in self._usable_ranks():
            ends.append(max(arrival_ns, self.lost_ns.get(rank, NEVER)) + self.config.pin_grace_ns)
        return max(ends, default=None)

    def _is_grace(self, request: Request, arrival_ns: int) -> bool:
        end_ns = self._grace_end_ns(request, arrival_ns)
        return end_ns is not None and end_ns > self.now_ns

    def _grace_timer_ns(self, live: Live) -> int | None:
        """When a request that waits in grace from now on is told that it has waited in vain."""
        if not self._is_grace(live.request, live.arrival_ns):
            return None
        return self._grace_end_ns(live.request, live.arrival_ns)

    def _grace_is_over(self, live: Live) -> None:
        lost = RejectReason.PINNED_WORKER_UNAVAILABLE
        self._turn_away(live, lost if self.loads_by_rank else RejectReason.NO_WORKERS)
