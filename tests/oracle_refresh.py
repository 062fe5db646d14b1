"""The oracle's questions about caches: a popped request that has waited long asks an outside index first (DESIGN D13).

A part of `Oracle`. While it waits for the answer it is in no class; its charge has been made.
"""

from __future__ import annotations

from dataclasses import replace

from oracle_state import Live

from kvcore.actions import RefreshOverlap
from kvcore.config import IndexMode
from kvcore.events import OverlapRefreshed
from kvcore.policy import Capacity


class Refreshes:
    """The part of Oracle that knows how old its knowledge of caches is."""

    def _is_worth_asking(self, live: Live) -> bool:
        after_ns = self.config.refresh_after_ns
        if self.config.index is not IndexMode.OFF or after_ns is None or not live.request.block_hashes:
            return False
        return self.now_ns - live.age_ns >= after_ns

    def _ask(self, live: Live) -> None:
        live.state, live.ticket = "refreshing", self.next_ticket
        self.next_ticket += 1
        live.refresh_end_ns = self.now_ns + self.config.refresh_timeout_ns
        self.actions.append(RefreshOverlap(live.request.request_id, live.ticket, live.request.block_hashes))

    def _refreshed(self, event: OverlapRefreshed) -> None:
        live = self.live.get(event.request_id)
        if live is None or live.state != "refreshing" or live.ticket != event.ticket:
            self._ignore(event.request_id, 0)
            return
        if event.overlap is not None:
            live.request = replace(live.request, overlap=event.overlap)
        self._go_on(live)

    def _go_on(self, live: Live) -> None:
        """An answer, or none in time: it is placed at once, or goes back where it can only wait."""
        live.age_ns = self.now_ns
        if self.profile.capacity is Capacity.STRICT:
            placed = self._can_run(live.entry)
        else:
            placed = not self._is_grace(live.request, live.arrival_ns)
        if placed:
            self._place(live)
        else:
            self._back_to_class(live)
