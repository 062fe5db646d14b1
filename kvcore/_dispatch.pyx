"""Dispatcher: from the pop to the booking, the only way there is (DESIGN D13, D15).

Owns the generator that breaks ties, the counters of attempts and tickets. A popped request is placed at once, or asked
about outside first, if it has waited so long that what is known of its overlap may be out of date; then it is placed
when the answer comes, or the time for it is over.

Never here: who is popped, when an answer is late.
"""
from dataclasses import replace

from kvcore._placement cimport choice_t
from kvcore._requests cimport STATE_REFRESHING, TIMER_REFRESH, request_t
from kvcore._types cimport NEVER_NS, NO_SLOT, NS_END
from kvcore.actions cimport make_refresh
from kvcore.request cimport Request

from kvcore.config import IndexMode


cdef class Dispatcher:
    def __cinit__(self, config not None, RequestTable requests not None, Fleet fleet not None,
                  Placement placement not None, Backlog backlog not None, Endings endings not None,
                  Outbox outbox not None):
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self._backlog = backlog
        self._endings = endings
        self._outbox = outbox
        if config.decisions_kept:
            self.ring = DecisionRing(config.decisions_kept, requests, fleet, placement)
        asks = config.index is IndexMode.OFF and config.refresh_after_ns is not None
        self._refresh_after_ns = config.refresh_after_ns if asks else NEVER_NS
        self._refresh_timeout_ns = config.refresh_timeout_ns
        self.generator = config.seed
        self.next_attempt = 1
        self.next_ticket = 1

    cdef bint asks_about(self, slot_t slot) noexcept nogil:
        """Whether what is known of a request's overlap is so old that an outside index is asked before it is placed."""
        cdef request_t* row = &self._requests.rows[slot]
        return self._refresh_after_ns != NEVER_NS and row.path_length > 0 and (
            self._fleet.ledger.now_ns - row.known_ns >= self._refresh_after_ns)

    cdef int place(self, slot_t slot, list out) except -1 nogil:
        """A request has been popped: Dispatch, Reject with the reason why not, or RefreshOverlap first."""
        if self.asks_about(slot):
            with gil:
                return self._ask(slot, out)
        return self._decide(slot, out)

    cdef int _ask(self, slot_t slot, list out) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef ns_t due_ns = self._fleet.ledger.now_ns + self._refresh_timeout_ns
        self._requests.stop_waiting(slot)
        row.ticket = self.next_ticket
        self.next_ticket += 1
        self._requests.wait(slot, STATE_REFRESHING, row.seq)
        self._requests.set_timer(slot, TIMER_REFRESH, due_ns if due_ns < NS_END else NEVER_NS)
        out.append(make_refresh(
            self._requests.ids.id_of(slot), row.ticket, self._requests.request(slot).block_hashes))
        return 0

    cdef int answer(self, slot_t slot, Overlap overlap, list out) except -1:
        """A refreshing request is placed now, with this overlap or (None) with what was known before.

        Where it may not run any more it is put back; under advisory capacity it may, however busy its ranks are by now.
        """
        cdef request_t* row = &self._requests.rows[slot]
        cdef Request request = self._requests.request(slot)
        self._requests.stop_waiting(slot)
        row.ticket = 0
        row.known_ns = self._fleet.ledger.now_ns
        if overlap is not None:
            self._requests.replace(slot, replace(request, overlap=overlap))
        if self._placement.eligible.in_grace(request, row.arrival_ns) or (
                self._placement.strict and not self._placement.may_run(row.class_index, slot)):
            return self._backlog.put_back(slot)
        return self._decide(slot, out)

    cdef int _decide(self, slot_t slot, list out) except -1 nogil:
        """Project, select, book, Dispatch; or the reason why not."""
        cdef choice_t choice
        cdef slot_t rank = self._placement.decide(slot, &self.generator, &choice)
        if rank == NO_SLOT:
            with gil:
                return self._endings.reject(
                    slot, self._backlog.refused(
                        slot, self._requests.ids.id_of(slot), self._placement.nowhere(slot)), out)
        if self.ring is not None:
            with gil:
                self.ring.note(slot, rank, self.next_attempt)
        self._book(slot, rank, choice.prefill_tokens)
        self._outbox.dispatch(
            slot, rank, &choice, self._fleet.ledger.now_ns - self._requests.rows[slot].arrival_ns)
        if self._fleet.exchange.speaks:
            with gil:
                self._fleet.exchange.booked(slot, choice.prefill_tokens)
        return 0

    cdef int _book(self, slot_t slot, slot_t rank, tokens_t prefill_tokens) except -1 nogil:
        """The request runs there from now on."""
        cdef const request_t* row = &self._requests.rows[slot]
        self._fleet.ledger.book(
            slot, rank, prefill_tokens, row.sequence, row.sequence_length, row.outside, row.reserve)
        self._fleet.touch(slot, row.path, row.path_length)
        if self._fleet.strict and row.sequence_length:
            self._fleet.note(rank)             # who shares its blocks needs less room there from now on
        self._requests.start_running(slot, self.next_attempt, self._fleet.ledger.now_ns)
        self._backlog.queue.charge(
            row.class_index, self._fleet.ledger.now_ns, self._backlog.queue.waiting.rows[slot].cost)
        self.next_attempt += 1
        return 0
