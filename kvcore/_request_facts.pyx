"""RequestFacts: every event about a request that has arrived, carried to who acts on it (DESIGN 3.1).

Owns nothing. A fact that names no live request, another attempt than the present one, or a state that has passed is
stale: answered with Ignored, counted, and no more.

Never here: what becomes of the request (_lifecycle, _admission, _dispatch), arrivals (_arrivals), the same facts as
rows (_batch).
"""
from libc.math cimport floor
from kvcore._requests cimport STATE_DEFERRED, STATE_REFRESHING
from kvcore._types cimport FRACTION_ONE, NO_SLOT, int32_t, slot_t

from kvcore.events import Outcome

cdef object COMPLETED = Outcome.COMPLETED


cdef class RequestFacts:
    def __cinit__(self, Lifecycle lifecycle not None):
        self._lifecycle = lifecycle
        self._requests = lifecycle.requests
        self._admission = lifecycle.admission
        self._dispatcher = lifecycle.dispatcher

    cdef int prefill_completed(self, PrefillCompleted event, list out) except -1:
        cdef slot_t slot = self._lifecycle.running(self._requests.find(event.request_id), event.attempt)
        if slot == NO_SLOT or not self._lifecycle.complete_prefill(slot):
            return self._lifecycle.ignore(event.request_id, event.attempt, out)
        return 0

    cdef int output_block_added(self, OutputBlockAdded event, list out) except -1:
        cdef slot_t slot = self._lifecycle.running(self._requests.find(event.request_id), event.attempt)
        cdef int32_t weight = -1
        if slot == NO_SLOT:
            return self._lifecycle.ignore(event.request_id, event.attempt, out)
        if event.decay_fraction is not None:
            weight = <int32_t>floor(<double>event.decay_fraction * FRACTION_ONE + 0.5)
        return self._lifecycle.add_output(slot, weight)

    cdef int finished(self, RequestFinished event, list out) except -1:
        cdef slot_t slot = self._requests.find_attempt(event.request_id, event.attempt)
        if slot == NO_SLOT:
            return self._lifecycle.ignore(event.request_id, event.attempt, out)
        return self._lifecycle.finish(
            slot, event.outcome is COMPLETED, -1 if event.context_tokens is None else event.context_tokens)

    cdef bint apply(self, Event event, list out) except -1:
        """Apply one of the others. False: the event is about no request that has arrived."""
        cdef object kind = type(event)
        if kind is RequestCancelled:
            self._cancelled(<RequestCancelled>event, out)
        elif kind is DispatchAccepted:
            self._accepted(<DispatchAccepted>event, out)
        elif kind is DispatchFailed:
            self._failed(<DispatchFailed>event, out)
        elif kind is ContextAdvanced:
            self._context_advanced(<ContextAdvanced>event, out)
        elif kind is AdmissionReleased:
            self._released(<AdmissionReleased>event, out)
        elif kind is OverlapRefreshed:
            self._refreshed(<OverlapRefreshed>event, out)
        else:
            return False
        return True

    cdef int _cancelled(self, RequestCancelled event, list out) except -1:
        cdef slot_t slot = self._requests.find(event.request_id)
        if slot == NO_SLOT:
            return self._lifecycle.ignore(event.request_id, 0, out)
        return self._lifecycle.cancel(slot)

    cdef int _accepted(self, DispatchAccepted event, list out) except -1:
        cdef slot_t slot = self._lifecycle.running(self._requests.find(event.request_id), event.attempt)
        if slot == NO_SLOT or not self._lifecycle.accept(slot):
            return self._lifecycle.ignore(event.request_id, event.attempt, out)
        return 0

    cdef int _failed(self, DispatchFailed event, list out) except -1:
        cdef slot_t slot = self._requests.find_attempt(event.request_id, event.attempt)
        if slot == NO_SLOT:
            return self._lifecycle.ignore(event.request_id, event.attempt, out)
        return self._lifecycle.fail(slot, event.retry, out)

    cdef int _context_advanced(self, ContextAdvanced event, list out) except -1:
        cdef slot_t slot = self._lifecycle.running(self._requests.find(event.request_id), event.attempt)
        if slot == NO_SLOT:
            return self._lifecycle.ignore(event.request_id, event.attempt, out)
        self._lifecycle.progress(slot)
        return self._admission.advance_context(slot, event.context_tokens)

    cdef int _released(self, AdmissionReleased event, list out) except -1:
        cdef slot_t slot = self._requests.find(event.request_id)
        if slot == NO_SLOT or self._requests.rows[slot].state != STATE_DEFERRED:
            return self._lifecycle.ignore(event.request_id, 0, out)
        return self._admission.release(slot, event.placement, True, out)

    cdef int _refreshed(self, OverlapRefreshed event, list out) except -1:
        cdef slot_t slot = self._requests.find(event.request_id)
        if slot == NO_SLOT or self._requests.rows[slot].state != STATE_REFRESHING or (
                self._requests.rows[slot].ticket != event.ticket):
            return self._lifecycle.ignore(event.request_id, 0, out)
        return self._dispatcher.answer(slot, event.overlap, out)
