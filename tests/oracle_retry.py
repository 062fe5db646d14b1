"""The oracle's second attempts and its end: dispatches that are accepted or fail, and draining (DESIGN 3.1, D11).

A part of `Oracle`. A request that is put back has its old place in its class and costs nothing any more.
"""

from __future__ import annotations

from oracle_state import Live

from kvcore.actions import EvictReason, RejectReason
from kvcore.events import DispatchAccepted, DispatchFailed, Drained

R = RejectReason


class Retries:
    """The part of Oracle that knows what happens after a dispatch that comes to nothing, and at the end."""

    def _accepted(self, event: DispatchAccepted) -> None:
        live = self._holder(event, "running")
        if live is None:
            return
        if live.accepted:
            self._ignore(event.request_id, event.attempt)
            return
        live.accepted, live.progress_ns = True, self.now_ns

    def _failed(self, event: DispatchFailed) -> None:
        live = self._holder(event, "running", "evicted")
        if live is None:
            return
        if live.state == "running":
            self._release(live, completed=False)
        reason = self._refusal_of_retry(live) if event.retry else None
        if event.retry and reason is None:
            self._put_back(live)
            return
        del self.live[event.request_id]
        if event.retry:
            self._reject(live.request, reason, live.class_index)
        else:
            self.counts.aborted += 1

    def _refusal_of_retry(self, live: Live) -> RejectReason | None:
        if live.dispatches >= self.config.attempts_max:
            return R.RETRIES_EXHAUSTED
        if self.draining:
            return R.SHUTTING_DOWN
        if live.request.deadline_ns is not None and live.request.deadline_ns <= self.now_ns:
            return R.DEADLINE_EXPIRED
        return self._refusal_of_fleet(live.request)

    def _put_back(self, live: Live) -> None:
        """It waits with its old key and seq, has been overtaken by nobody, and is looked at when its turn comes."""
        live.state, live.entry.cost, live.entry.overtaken = "waiting", 0, 0
        if live.look_ns is not None:
            looks = (self.now_ns - live.arrival_ns) // self.config.overload_wait_ns + 1
            live.look_ns = live.arrival_ns + looks * self.config.overload_wait_ns
        self._enqueue(live)
        self.counts.retried += 1

    def _drained(self, event: Drained) -> None:
        self.draining, self.drain_ns = True, event.deadline_ns
        for live in self._waiting():
            self._unqueue(live)
            self._reject(live.request, R.SHUTTING_DOWN, live.class_index)
        if event.deadline_ns <= self.now_ns:
            self._drain_is_over()

    def _drain_is_over(self) -> None:
        """Who still runs has had time enough."""
        self.drain_ns = None
        running = [live for live in self.live.values() if live.state == "running"]
        for live in sorted(running, key=lambda x: x.attempt):
            self._evict(live, EvictReason.DRAIN_DEADLINE)
