"""The oracle's second attempts and its end: dispatches that are accepted or fail, and draining (DESIGN 3.1, D11).

A part of `Oracle`. A request that is put back has its old place in its class and costs nothing any more. What holds
for those that come back from a worker holds for those that no rank has taken after a refresh.
"""

from __future__ import annotations

from oracle_state import Live

from kvcore.actions import EvictReason, RejectReason
from kvcore.events import DispatchFailed, Drained

R = RejectReason


class Retries:
    """The part of Oracle that knows what happens after a dispatch that comes to nothing, and at the end."""

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
        self._tell(live, "aborted")

    def _refusal_of_retry(self, live: Live) -> RejectReason | None:
        if live.dispatches >= self.config.attempts_max:
            return R.RETRIES_EXHAUSTED
        if self.draining:
            return R.SHUTTING_DOWN
        if live.request.deadline_ns is not None and live.request.deadline_ns <= self.now_ns:
            return R.DEADLINE_EXPIRED
        return self._refusal(live.request, live.arrival_ns)

    def _put_back(self, live: Live) -> None:
        self._back_to_class(live)
        self.counts.retried += 1

    def _back_to_class(self, live: Live) -> None:
        """It waits with its old key and seq, has been overtaken by nobody, and is looked at when its turn comes."""
        live.entry.cost, live.entry.overtaken = 0, 0
        self._enqueue(live)

    def _drained(self, event: Drained) -> None:
        self.draining, self.drain_ns = True, event.deadline_ns
        for live in self._in("waiting", "deferred", "refreshing"):
            self._turn_away(live, R.SHUTTING_DOWN)
        if event.deadline_ns <= self.now_ns:
            self._drain_is_over()

    def _drain_is_over(self) -> None:
        """Who still runs has had time enough."""
        self.drain_ns = None
        running = [live for live in self.live.values() if live.state == "running"]
        for live in sorted(running, key=lambda x: x.attempt):
            self._evict(live, EvictReason.DRAIN_DEADLINE)
