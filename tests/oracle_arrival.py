"""The oracle's arrivals: what refuses a request at the door, what its policy says, how it is stored (DESIGN D6, D10).

A part of `Oracle`. A request that comes in is stored in a class, ready or deferred; only the settle lets it run.
"""

from __future__ import annotations

from dataclasses import replace

from oracle_queue import Entry, sort_key
from oracle_state import Host, Live

from kvcore.actions import RejectReason
from kvcore.admission import Bypass, Defer, Ready, Refuse
from kvcore.config import OnOverload
from kvcore.request import Request

R = RejectReason


class Arrivals:
    """The part of Oracle that knows how requests come in."""

    def _arrived(self, request: Request) -> None:
        self.counts.arrived += 1
        reason = self._refusal_at_arrival(request)
        if reason is not None:
            self._reject(request, reason)
            return
        cached = self._snapshot(request)
        class_index = self._class_of(request, cached)
        self.counts.unknown_class_names += not self._knows(request.policy_class)
        if self._over_limit(request, class_index) is not None:
            self._settle()      # what its policy answers meanwhile must not be about a request that is not stored yet
        host = self._host_of(request, class_index)
        answer = Bypass() if host is None else self._decide(host, request, class_index, cached)
        match answer:
            case Bypass():
                self._let_in(request, class_index, cached, None)
            case Ready():
                self._place_arrival(request, class_index, cached, host, answer)
            case Defer():
                self._defer(request, class_index, cached, host)
            case Refuse():
                self._reject(request, R.ADMISSION_REFUSED, class_index)

    def _refusal_at_arrival(self, request: Request) -> RejectReason | None:
        if request.request_id in self.live:
            return R.DUPLICATE_ID
        if self.draining:
            return R.SHUTTING_DOWN
        if request.deadline_ns is not None and request.deadline_ns <= self.now_ns:
            return R.DEADLINE_EXPIRED
        return self._refusal(request, self.now_ns)

    def _refusal(self, request: Request, arrival_ns: int) -> RejectReason | None:
        """Why it may not even wait: for good, or because no grace is left."""
        pin, allowed = request.pinned, request.allowed_workers
        if pin is not None and allowed is not None and pin.worker_id not in allowed:
            return R.PINNED_WORKER_NOT_ALLOWED
        return None if self._is_grace(request, arrival_ns) else self._refusal_of_fleet(request)

    def _place_arrival(self, request: Request, class_index: int, cached: int, host: Host, answer: Ready) -> None:
        """Its policy lets it go ahead, and may say where; then it is another request, of another class perhaps."""
        if answer.placement is not None and request.pinned is None:
            request = replace(request, pinned=answer.placement)
            reason = self._refusal(request, self.now_ns)
            if reason is not None:
                self._reject(request, reason, class_index)
                self._call(host, "aborted", request.request_id)
                return
            cached = self._snapshot(request)
            class_index = self._class_of(request, cached)
        self._let_in(request, class_index, cached, host)

    def _let_in(self, request: Request, class_index: int, cached: int, host: Host | None,
                state: str = "waiting") -> None:
        """Stored, if its class has room."""
        over = self._over_limit(request, class_index)
        if over is not None and state == "waiting":
            self._settle()      # its policy may have moved it to another class
            over = self._over_limit(request, class_index)
        if over is not None:
            self._reject(request, over[0], class_index, *over[1:])
            if host is not None:
                self._call(host, "aborted", request.request_id)
            return
        self._store(request, class_index, cached, max(1, request.prompt_tokens - cached), host, state)

    def _defer(self, request: Request, class_index: int, cached: int, host: Host) -> None:
        """Held back, if it may wait."""
        if not self._may_wait(request, class_index):
            self._reject(request, *self._would_queue(class_index))
            self._call(host, "aborted", request.request_id)
            return
        self._let_in(request, class_index, cached, host, "deferred")

    def _store(self, request: Request, class_index: int, cached: int, cost: int, host: Host | None = None,
               state: str = "waiting") -> None:
        live = Live(request, class_index, self.next_seq, self.now_ns, cached, Entry((), cost, request.pinned), state)
        self.next_seq += 1
        live.entry.payload = live
        live.entry.key = self._key(live)
        live.may_wait = self._may_wait(request, class_index)
        live.host, live.age_ns = host, self.now_ns
        self.live[request.request_id] = live
        if state == "deferred":
            self.queued.add(live)
        else:
            self._enqueue(live)

    def _key(self, live: Live) -> tuple:
        """Its place in its class, from what it was at arrival."""
        request = live.request
        return sort_key(
            self.profile.classes[live.class_index].queue_policy, request.strict_priority, request.priority_jump,
            live.arrival_ns, request.deadline_ns, max(1, request.prompt_tokens - live.cached), live.seq)

    def _may_wait(self, request: Request, class_index: int) -> bool:
        return not request.do_not_queue and not self._never_queues(class_index)

    def _enqueue(self, live: Live) -> None:
        """Ready, anew or again: from now on it is looked at, waits in grace, and is parked if the batch leaves it."""
        live.state = "waiting"
        live.look_ns = self._next_look_ns(live)
        live.grace_ns = self._grace_timer_ns(live)
        self.queue.push(live.class_index, live.entry)
        self.queued.add(live)

    def _next_look_ns(self, live: Live) -> int | None:
        """When it is next looked at for overload: in step with its arrival."""
        looks = self.config.on_overload is OnOverload.WAIT and live.may_wait and self._queues(live.class_index)
        if not looks:
            return None
        period_ns = self.config.overload_wait_ns
        return live.arrival_ns + ((self.now_ns - live.arrival_ns) // period_ns + 1) * period_ns
