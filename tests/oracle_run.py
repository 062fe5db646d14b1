"""The oracle's running requests: progress, context, the end, and bookings that are taken away (DESIGN 3.1, D9).

A part of `Oracle`. A fact about an attempt that is not the present one is ignored.
"""

from __future__ import annotations

from oracle_state import Live

from kvcore.actions import Evict, EvictReason
from kvcore.events import (
    ContextAdvanced,
    DispatchAccepted,
    Outcome,
    OutputBlockAdded,
    RequestCancelled,
    RequestFinished,
)
from kvcore.replica import FactKind


class Runs:
    """The part of Oracle that knows what happens to requests on workers."""

    def _holder(self, event, *states: str) -> Live | None:
        """The request that this fact is about, if it is in one of these states under exactly this attempt."""
        live = self.live.get(event.request_id)
        if live is not None and live.state in states and live.attempt == event.attempt:
            return live
        self._ignore(event.request_id, event.attempt)
        return None

    def _accepted(self, event: DispatchAccepted) -> None:
        live = self._holder(event, "running")
        if live is None:
            return
        if live.accepted:
            self._ignore(event.request_id, event.attempt)
            return
        self._moves_on(live)

    def _progressed(self, event) -> None:
        live = self._holder(event, "running")
        if live is None:
            return
        load = self.loads_by_rank[live.rank]
        if isinstance(event, OutputBlockAdded):
            load.add_output(live.booking, event.decay_fraction)
        elif live.booking.prefill_done:
            self._ignore(event.request_id, event.attempt)
            return
        else:
            load.complete_prefill(live.booking, self.now_ns, self._rate(live.rank))
            self._publish(FactKind.PREFILL_COMPLETED, live)
        self._moves_on(live)

    def _context_advanced(self, event: ContextAdvanced) -> None:
        live = self._holder(event, "running")
        if live is None:
            return
        self._moves_on(live)
        if self._raise_context(live, event.context_tokens):
            self._tell(live, "advanced", live.context_tokens)

    def _moves_on(self, live: Live) -> None:
        """A worker has it, and works."""
        live.accepted, live.progress_ns = True, self.now_ns
        self._tell_dispatched(live)

    def _raise_context(self, live: Live, tokens: int | None) -> bool:
        """The most that anybody has said counts."""
        if tokens is None or (live.context_tokens is not None and tokens <= live.context_tokens):
            return False
        live.context_tokens = tokens
        return True

    def _finished(self, event: RequestFinished) -> None:
        live = self._holder(event, "running", "evicted")
        if live is not None:
            self._raise_context(live, event.context_tokens)
            self._end(live, event.outcome)

    def _cancelled(self, event: RequestCancelled) -> None:
        live = self.live.get(event.request_id)
        if live is None:
            self._ignore(event.request_id, 0)
        elif live.state in ("running", "evicted"):
            self._end(live, Outcome.ABORTED)
        else:
            self._unqueue(live)
            self.counts.aborted += 1
            self._tell(live, "aborted")

    def _evict(self, live: Live, reason: EvictReason) -> None:
        """The booking is gone; the request stays until the driver answers or a second booking_ttl_ns has passed."""
        self.actions.append(Evict(live.request.request_id, live.attempt, live.rank[0], reason))
        self._release(live, completed=False)
        live.state, live.progress_ns = "evicted", self.now_ns
        self.counts.evicted += 1

    def _release(self, live: Live, completed: bool) -> None:
        self.loads_by_rank[live.rank].release(live.booking, self.now_ns, self._rate(live.rank), completed)
        live.booking = None
        self._publish(FactKind.RELEASED, live, completed=completed)

    def _end(self, live: Live, outcome: Outcome) -> None:
        if live.state == "running":
            self._release(live, outcome == Outcome.COMPLETED)
            self._use_blocks(live)
        del self.live[live.request.request_id]
        if outcome == Outcome.COMPLETED:
            self.counts.completed += 1
            self._tell_dispatched(live)
            self._tell(live, "completed", live.context_tokens)
        else:
            self.counts.aborted += 1
            self._tell(live, "aborted")
