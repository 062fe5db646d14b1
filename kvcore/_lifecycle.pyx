"""Lifecycle: what becomes of live requests, from when they are stored to their one end (DESIGN D11, D12, D15).

Owns whether the scheduler drains. Everything that ends a wait or a booking goes through here, also what time does by
itself: deadlines, answers that do not come, graces, looks for overload, bookings without progress, clocks of admission
policies, the end of a drain.

Never here: arrivals, the choice of who runs and where.
"""
from kvcore._requests cimport (
    STATE_DEFERRED, STATE_EVICTED, STATE_REFRESHING, STATE_RUNNING, STATE_WAITING, TIMER_DEADLINE, TIMER_GRACE,
    TIMER_LOOK, TIMER_REFRESH, request_t)
from kvcore._types cimport NEVER_NS, NO_SLOT, tokens_t
from kvcore.actions cimport make_evict, make_ignored

from kvcore.actions import EvictReason, IgnoredReason, RejectReason

cdef object STALE = IgnoredReason.STALE
cdef tuple WAITS = (STATE_WAITING, STATE_DEFERRED, STATE_REFRESHING)


cdef class Lifecycle:
    def __cinit__(self, config not None, RequestTable requests not None, Fleet fleet not None,
                  Backlog backlog not None, Placement placement not None, Inspector inspector not None,
                  Endings endings not None, Admission admission not None, Dispatcher dispatcher not None,
                  Policies policies not None):
        self.requests = requests
        self.fleet = fleet
        self.backlog = backlog
        self.placement = placement
        self.inspector = inspector
        self.endings = endings
        self.admission = admission
        self.dispatcher = dispatcher
        self.policies = policies
        self.ttl_ns = NEVER_NS if config.booking_ttl_ns is None else config.booking_ttl_ns
        self.attempts_max = config.attempts_max
        self.drain_ns = NEVER_NS

    # Time.

    cdef ns_t _first_expiry_ns(self) noexcept nogil:
        cdef ns_t progress_ns = self.requests.first_progress_ns()
        return NEVER_NS if progress_ns == NEVER_NS or self.ttl_ns == NEVER_NS else progress_ns + self.ttl_ns

    cdef ns_t first_due_ns(self) except -1 nogil:
        """When time next does something to a request."""
        cdef ns_t due_ns = min(self._first_expiry_ns(), self.drain_ns)
        if self.policies.any:
            with gil:
                due_ns = min(due_ns, self.policies.first_due_ns())
        return min(due_ns, self.requests.first_of_all_ns())

    cdef int apply_due(self, ns_t due_ns, ns_t now_ns, list out) except -1:
        """Do what is due first, at due_ns; now_ns: of the event that lets time pass."""
        cdef slot_t slot
        if due_ns == self.requests.first_timer_ns(TIMER_DEADLINE):
            return self._give_up(self.requests.first_timer(TIMER_DEADLINE), RejectReason.DEADLINE_EXPIRED, out)
        if due_ns == self.requests.first_timer_ns(TIMER_REFRESH):
            return self.dispatcher.answer(self.requests.first_timer(TIMER_REFRESH), None, out)
        if due_ns == self.requests.first_timer_ns(TIMER_GRACE):
            reason = RejectReason.PINNED_WORKER_UNAVAILABLE
            if self.fleet.workers.present == 0:
                reason = RejectReason.NO_WORKERS
            return self._give_up(self.requests.first_timer(TIMER_GRACE), reason, out)
        if due_ns == self.requests.first_timer_ns(TIMER_LOOK):
            return self._look(self.requests.first_timer(TIMER_LOOK), now_ns, out)
        if due_ns == self._first_expiry_ns():
            slot = self.requests.first_progress()
            if self.requests.rows[slot].state == STATE_RUNNING:
                return self._evict(slot, EvictReason.BOOKING_EXPIRED, out)
            return self.endings.abort(slot)
        if due_ns == self.policies.first_due_ns():
            return self.admission.on_time(out)
        self.drain_ns = NEVER_NS
        return self._evict_all(out)

    cdef int _leave(self, slot_t slot) except -1 nogil:
        """A request that does not run leaves its class, if it is in one."""
        if self.requests.rows[slot].state != STATE_REFRESHING:
            self.backlog.withdraw(slot)
        return 0

    cdef int _give_up(self, slot_t slot, object reason, list out) except -1:
        """A request that does not run waits no longer."""
        self._leave(slot)
        return self.endings.reject(slot, self.backlog.refused(slot, self.requests.ids.id_of(slot), reason), out)

    cdef int _look(self, slot_t slot, ns_t now_ns, list out) except -1:
        """A waiting request is looked at: are all its ranks overloaded? (DESIGN D7).

        Nothing changes before the next lease ends, so the looks until then would find the same.
        """
        reason = self.placement.overload(slot)
        if reason is not None:
            return self._give_up(slot, reason, out)
        return self.backlog.look_again(slot, min(now_ns + 1, self.fleet.marks.first_end_ns()))

    # Facts about requests that run.

    cdef slot_t running(self, slot_t slot, int64_t attempt) noexcept nogil:
        """Row of the booking that a fact names, or NO_SLOT if it is not one that runs; slot: of its id."""
        slot = self.requests.with_attempt(slot, attempt)
        return slot if slot != NO_SLOT and self.requests.rows[slot].state == STATE_RUNNING else NO_SLOT

    cdef int ignore(self, str request_id, int64_t attempt, list out) except -1:
        """The fact changes nothing."""
        self.inspector.stale += 1
        out.append(make_ignored(request_id, attempt, STALE))
        return 0

    cdef bint accept(self, slot_t slot) except -1 nogil:
        """The backend has taken it. False: that was known."""
        if self.requests.rows[slot].accepted:
            return False
        self.progress(slot)
        return True

    cdef int progress(self, slot_t slot) except -1 nogil:
        """A running request has made progress: its booking lives on, and it has been taken, whoever has not said so."""
        self.requests.rows[slot].accepted = True
        self.requests.touch(slot, self.fleet.ledger.now_ns)
        if self.requests.rows[slot].policy != NO_SLOT:
            with gil:
                self.admission.hear(slot)
        return 0

    cdef bint complete_prefill(self, slot_t slot) except -1 nogil:
        """The prompt of a running request has been computed. False: that was known."""
        if not self.fleet.ledger.bookings[slot].prefilling:
            return False
        self.progress(slot)
        self.fleet.complete_prefill(slot)
        return True

    cdef int add_output(self, slot_t slot, int32_t weight) except -1 nogil:
        """A running request has filled another block; weight: see Ledger.add_output."""
        self.progress(slot)
        self.fleet.ledger.add_output(slot, weight)
        return 0

    cdef int finish(self, slot_t slot, bint completed, tokens_t context_tokens) except -1 nogil:
        """The run of a running or evicted request has ended. context_tokens: -1 where nobody has said."""
        cdef request_t* row = &self.requests.rows[slot]
        if row.state == STATE_RUNNING:
            self.fleet.touch(slot, row.path, row.path_length)
            self.fleet.release(slot, completed)
        if not completed:
            return self.endings.abort(slot)
        row.context = max(row.context, context_tokens)
        return self.endings.complete(slot)

    cdef int cancel(self, slot_t slot) except -1 nogil:
        """Nobody wants it any more, wherever it is."""
        if self.requests.rows[slot].state >= STATE_RUNNING:
            return self.finish(slot, False, -1)
        self._leave(slot)
        return self.endings.abort(slot)

    cdef int fail(self, slot_t slot, bint retry, list out) except -1:
        """The dispatch of a running or evicted request has come to nothing: undone, put back, or ended (DESIGN D11)."""
        cdef request_t* row = &self.requests.rows[slot]
        cdef Request request = self.requests.request(slot)
        if row.state == STATE_RUNNING:
            self.fleet.release(slot, False)
        if not retry:
            return self.endings.abort(slot)
        reason = self._why_no_more(slot, request)
        if reason is not None:
            return self.endings.reject(slot, self.backlog.refused(slot, request.request_id, reason), out)
        self.requests.stop_running(slot)
        self.inspector.retried += 1
        return self.backlog.put_back(slot)

    cdef object _why_no_more(self, slot_t slot, Request request):
        """Why a request is not put back, or None."""
        if self.requests.rows[slot].attempts >= self.attempts_max:
            return RejectReason.RETRIES_EXHAUSTED
        if self.draining:
            return RejectReason.SHUTTING_DOWN
        if self.requests.rows[slot].deadline_ns <= self.fleet.ledger.now_ns:
            return RejectReason.DEADLINE_EXPIRED
        return self.placement.refusal(request, self.requests.rows[slot].arrival_ns)

    # Ends.

    cdef int _evict(self, slot_t slot, object reason, list out) except -1:
        cdef slot_t rank = self.fleet.ledger.bookings[slot].rank
        out.append(make_evict(self.requests.ids.id_of(slot), self.requests.rows[slot].attempt,
                              self.fleet.workers.ranks[rank].worker_id, reason))
        self.fleet.release(slot, False)
        self.requests.rows[slot].state = STATE_EVICTED
        self.requests.touch(slot, self.fleet.ledger.now_ns)
        self.inspector.evicted += 1
        return 0

    cdef int drop_ranks(self, list ranks, list out) except -1:
        """End the bookings of these ranks, by attempt, then the ranks."""
        cdef slot_t slot
        for _, slot in sorted([(self.requests.rows[<slot_t>s].attempt, s) for s in self.fleet.bookings_on(ranks)]):
            self._evict(slot, EvictReason.WORKER_REMOVED, out)
        return self.fleet.drop_ranks(ranks)

    cdef int drain(self, ns_t deadline_ns, list out) except -1:
        """Let nothing more in, give up what waits, by seq; what still runs at the deadline is evicted."""
        cdef slot_t slot
        self.draining = True
        for _, slot in sorted([(self.requests.rows[<slot_t>s].seq, s) for state in WAITS
                               for s in self.requests.in_state(state)]):
            self._give_up(slot, RejectReason.SHUTTING_DOWN, out)
        self.drain_ns = deadline_ns
        if deadline_ns <= self.fleet.ledger.now_ns:
            self.drain_ns = NEVER_NS
            return self._evict_all(out)
        return 0

    cdef int _evict_all(self, list out) except -1:
        """The drain is over."""
        cdef slot_t slot
        for _, slot in sorted([(self.requests.rows[<slot_t>s].attempt, s)
                               for s in self.requests.in_state(STATE_RUNNING)]):
            self._evict(slot, EvictReason.DRAIN_DEADLINE, out)
        return 0
