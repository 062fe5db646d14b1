"""The oracle's time: what comes due without an event, in which order, and when the next of it will (DESIGN 3, item 3).

A part of `Oracle`. Due things are looked for anew after each one that has been applied; a crossing of a threshold has
no effect of its own, since every head is tested in every drain, and is foreseen only so that there is a drain.
"""

from __future__ import annotations

from oracle_ledger import ceil_div
from oracle_state import Live, RankState

from kvcore.actions import EvictReason, RejectReason
from kvcore.config import IndexMode
from kvcore.events import Outcome

NS_END = 2**62  # no event can carry this time, nor a later one
PREDICT_TTL_NS = 120 * 10**9
LEASE, CROSSING, REPORT, DEADLINE, REFRESH, GRACE, LOOK, BOOKING, POLICY, DRAIN = range(10)


class Time:
    """The part of Oracle that knows what time does."""

    @property
    def next_deadline_ns(self) -> int | None:
        times = [due_ns for due_ns, *_ in self._dues()]
        if any(queue.entries for queue in self.queue.classes):
            times += self._crossings()
        return min((due_ns for due_ns in times if due_ns < NS_END), default=None)

    def _dues(self) -> list[tuple]:
        """Everything that time will do: (due time, kind, order among equals, of what)."""
        dues = []
        for worker_id, worker in self.workers.items():
            dues += [(mark.end_ns, LEASE, (worker_id, source), (worker, source))
                     for source, mark in worker.marks.items() if mark.leased]
        for rank, load in self.loads_by_rank.items():
            if load.report is not None and load.report.end_ns is not None:
                dues.append((load.report.end_ns, REPORT, rank, load.report))
        for live in self.live.values():
            dues += self._dues_of(live)
        for index, host in enumerate(self.hosts):
            due_ns = None if host is None else self._timer_of(host)
            if due_ns is not None:
                dues.append((max(due_ns, self.now_ns), POLICY, index, host))
        if self.drain_ns is not None:
            dues.append((self.drain_ns, DRAIN, 0, None))
        return dues

    def _dues_of(self, live: Live) -> list[tuple]:
        if live.state in ("running", "evicted"):
            ttl_ns = self.config.booking_ttl_ns
            return [] if ttl_ns is None else [(live.progress_ns + ttl_ns, BOOKING, live.attempt, live)]
        dues = []
        if live.request.deadline_ns is not None:
            dues.append((live.request.deadline_ns, DEADLINE, live.seq, live))
        if live.state == "refreshing":
            dues.append((live.refresh_end_ns, REFRESH, live.seq, live))
        if live.state == "waiting" and live.grace_ns is not None:
            dues.append((live.grace_ns, GRACE, live.seq, live))
        if live.state == "waiting" and live.look_ns is not None:
            dues.append((live.look_ns, LOOK, live.seq, live))
        return dues

    def _advance(self, now_ns: int) -> None:
        """Time goes on, from one due thing to the next; a policy may be late, time never goes back for it."""
        while True:
            dues = [due for due in self._dues() if due[0] <= min(now_ns, NS_END - 1)]
            if not dues:
                break
            due_ns, kind, _, what = min(dues, key=lambda due: due[:3])
            self.now_ns = max(self.now_ns, due_ns)
            self._fall_due(kind, what, now_ns)
            self._deliver()
        self.now_ns = now_ns

    def _fall_due(self, kind: int, what, until_ns: int) -> None:
        if kind == LEASE:
            worker, source = what
            del worker.marks[source]
        elif kind == REPORT:
            what.foreign, what.end_ns = (0, 0, 0), None
        elif kind == DEADLINE:
            self._turn_away(what, RejectReason.DEADLINE_EXPIRED)
        elif kind == REFRESH:
            self._go_on(what)
        elif kind == GRACE:
            self._grace_is_over(what)
        elif kind == LOOK:
            self._look_for_overload(what, until_ns)
        elif kind == POLICY:
            self._policy_is_due(what)
        elif kind == DRAIN:
            self._drain_is_over()
        elif what.state == "running":
            self._evict(what, EvictReason.BOOKING_EXPIRED)
        else:
            self._end(what, Outcome.ABORTED)

    def _look_for_overload(self, live: Live, until_ns: int) -> None:
        """A request that waits for overload to end has waited long enough once all its ranks are found overloaded."""
        states = {self._state(rank) for rank in self._eligible(live.request)}
        if states == {RankState.OVERLOADED}:
            pinned = live.request.pinned is not None
            overloaded = RejectReason.PINNED_WORKER_OVERLOADED if pinned else RejectReason.ALL_ELIGIBLE_OVERLOADED
            self._turn_away(live, overloaded)
            return
        # Nobody's state changes before the next lease ends: the looks until then would find the same.
        ends = [due_ns for due_ns, kind, *_ in self._dues() if kind == LEASE]
        idle_until_ns = min([until_ns + 1, *ends])
        period_ns = self.config.overload_wait_ns
        live.look_ns += period_ns * max(1, ceil_div(idle_until_ns - live.look_ns, period_ns))

    def _crossings(self) -> list[int]:
        """Times at which a rank that is busy for a class will be so no longer, if nothing else happens."""
        found = []
        for rank in self.loads_by_rank:
            for item in self.profile.classes:
                due_ns = self._crossing_ns(item, rank)
                if due_ns is not None:
                    found.append(due_ns)
        return found

    def _crossing_ns(self, item, rank) -> int | None:
        """The first time at which the rank is not busy, by halving the time that its oldest prefill still takes."""
        load, rate = self.loads_by_rank[rank], self._rate(rank)
        if rate is None or not load.prefilling or not self._busy(item, rank):
            return None
        busy_ns, calm_ns = self.now_ns, min(NS_END, load.anchor_ns + load.front_ns(rate))
        if calm_ns <= busy_ns or self._busy(item, rank, calm_ns):
            return None
        while calm_ns - busy_ns > 1:
            middle_ns = (busy_ns + calm_ns) // 2
            if self._busy(item, rank, middle_ns):
                busy_ns = middle_ns
            else:
                calm_ns = middle_ns
        return calm_ns

    def _expect_ns(self) -> int | None:
        """How long a dispatched prompt counts as cached."""
        if self.config.index is IndexMode.APPROXIMATE and self.config.predict_ttl_ns is None:
            return PREDICT_TTL_NS
        return None if self.config.index is IndexMode.OFF else self.config.predict_ttl_ns

    def _forget_expected(self, rank) -> None:
        """What has been expected for too long is forgotten as soon as somebody looks."""
        ttl_ns = self._expect_ns()
        if ttl_ns is not None:
            self.index[rank].forget(self.now_ns - ttl_ns)

    def _use_blocks(self, live: Live) -> None:
        """The prompt of a booking has been sent to its rank, or leaves it."""
        if self._expect_ns() is None:
            return
        self._forget_expected(live.rank)
        approximate = self.config.index is IndexMode.APPROXIMATE
        bound = self.workers[live.rank[0]].config.total_kv_blocks if approximate else None
        self.index[live.rank].use(live.request.block_hashes, self.now_ns, bound)
