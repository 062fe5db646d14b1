"""Forecast: what would happen to a request if it arrived now. It changes nothing that lasts.

The request gets a row without a name for the moment, so that it stands in nobody's way.

Never here: refusals that need no row; the scheduler has them.
"""
from kvcore._drr cimport LIMIT_NONE, limit_t
from kvcore._lanes cimport ClassQueue
from kvcore._outbox cimport dispatch_of
from kvcore._placement cimport choice_t, runs_now
from kvcore._requests cimport request_t
from kvcore._types cimport NO_SLOT
from kvcore.actions cimport Dispatch, make_park, make_refresh

from kvcore.actions import ParkReason, RejectReason
from kvcore.admission import Defer, Ready, Refuse


cdef class Forecast:
    def __cinit__(self, RequestTable requests not None, Backlog backlog not None, Placement placement not None,
                  Admission admission not None, Dispatcher dispatcher not None, Tables tables not None,
                  int64_t block_size):
        self._requests = requests
        self._backlog = backlog
        self._placement = placement
        self._admission = admission
        self._dispatcher = dispatcher
        self._tables = tables
        self._block_size = block_size

    cdef object answer(self, Request request, ns_t now_ns):
        """Its Dispatch, Park, Reject or RefreshOverlap."""
        cdef slot_t slot = self._requests.open_unnamed(request, now_ns, self._block_size)
        try:
            return self._answer(slot, request)
        finally:
            self._requests.close(slot)

    cdef object _answer(self, slot_t slot, Request request):
        cdef request_t* row
        cdef uint64_t generator = self._dispatcher.generator
        cdef int64_t current = 0
        cdef int64_t bound = 0
        cdef limit_t kind = LIMIT_NONE
        cdef slot_t rank
        cdef choice_t choice
        cdef Dispatch action
        cdef bint deferred = False
        self._backlog.classify(slot, request)
        row = &self._requests.rows[slot]
        decision = self._admission.rehearse(slot)
        if decision is not None:
            deferred = isinstance(decision, Defer)
            if isinstance(decision, Refuse):
                return self._backlog.refused(slot, request.request_id, RejectReason.ADMISSION_REFUSED)
            if isinstance(decision, Ready) and self._admission.pin(slot, decision.placement):
                request = self._requests.request(slot)
                reason = self._placement.refusal(request, row.arrival_ns)
                if reason is not None:
                    return self._backlog.refused(slot, request.request_id, reason)
                self._backlog.classify(slot, request)
        if row.may_wait:
            kind = self._backlog.limit_hit(slot, &current, &bound)
            if kind != LIMIT_NONE:
                return self._backlog.queue_full(slot, request.request_id, kind, current, bound)
        if not deferred and self._runs(slot, request):
            if self._dispatcher.asks_about(slot):
                return make_refresh(request.request_id, self._dispatcher.next_ticket, request.block_hashes)
            rank = self._placement.decide(slot, &generator, &choice)
            if rank == NO_SLOT:
                return self._backlog.refused(slot, request.request_id, self._placement.nowhere(slot))
            row.attempt = self._dispatcher.next_attempt
            action = dispatch_of(
                self._requests, self._placement.fleet.workers, slot, rank, &choice, 0)
            action.request_id = request.request_id
            return action
        if row.may_wait:
            return make_park(
                request.request_id, row.class_index, ParkReason.DEFERRED if deferred else ParkReason.QUEUED)
        return self._backlog.would_queue(slot, request.request_id)

    cdef bint _runs(self, slot_t slot, Request request) except -1:
        """Whether it would run. Between steps nothing that waits may: iff its class, with it, would serve it next."""
        cdef ClassQueue queue = self._backlog.queue.queue(self._requests.rows[slot].class_index)
        cdef bint runs
        if self._placement.eligible.in_grace(request, self._requests.rows[slot].arrival_ns):
            return False
        if queue.size == 0:
            runs = runs_now(<void*>self._placement, self._requests.rows[slot].class_index, slot)
        else:
            queue.push(slot, self._requests.rows[slot].pin)
            runs = queue.candidate(runs_now, <void*>self._placement) == slot
            queue.remove(slot)
        if self._placement.failure is not None:
            raise self._placement.failure
        return runs

    cdef object potential_loads(self, Request request, ns_t now_ns):
        """What every rank would look like with it: see Tables."""
        cdef slot_t slot = self._requests.open_unnamed(request, now_ns, self._block_size)
        try:
            self._backlog.classify(slot, request)
            return self._tables.potential_loads(slot, request)
        finally:
            self._requests.close(slot)
