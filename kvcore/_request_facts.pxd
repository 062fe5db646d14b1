# What is told of requests that have arrived: from events to those who act on it.
cimport cython
from kvcore._admission cimport Admission
from kvcore._dispatch cimport Dispatcher
from kvcore._lifecycle cimport Lifecycle
from kvcore._requests cimport RequestTable
from kvcore.events cimport (
    AdmissionReleased, ContextAdvanced, DispatchAccepted, DispatchFailed, Event, OutputBlockAdded, OverlapRefreshed,
    PrefillCompleted, RequestCancelled, RequestFinished)


@cython.final
cdef class RequestFacts:
    cdef RequestTable _requests
    cdef Lifecycle _lifecycle
    cdef Admission _admission
    cdef Dispatcher _dispatcher

    # The frequent ones, by name.
    cdef int prefill_completed(self, PrefillCompleted event, list out) except -1
    cdef int output_block_added(self, OutputBlockAdded event, list out) except -1
    cdef int finished(self, RequestFinished event, list out) except -1
    cdef bint apply(self, Event event, list out) except -1

    cdef int _cancelled(self, RequestCancelled event, list out) except -1
    cdef int _accepted(self, DispatchAccepted event, list out) except -1
    cdef int _failed(self, DispatchFailed event, list out) except -1
    cdef int _context_advanced(self, ContextAdvanced event, list out) except -1
    cdef int _released(self, AdmissionReleased event, list out) except -1
    cdef int _refreshed(self, OverlapRefreshed event, list out) except -1
