# Steps of a whole array of events, without Python objects where there need be none.
cimport cython
from kvcore._arrivals cimport Arrivals
from kvcore._backlog cimport Backlog
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._outbox cimport Outbox
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._settle cimport Settler
from kvcore._types cimport int32_t, int64_t, slot_t, uint64_t
from kvcore.records cimport batch_t, event_record_t

# Applies row i of the batch the long way, as an event object; -1: checks the invariants of a debug build.
ctypedef int (*aside_t)(void* owner, int64_t i) except -1 nogil


@cython.final
cdef class Batch:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Backlog _backlog
    cdef Lifecycle _lifecycle
    cdef Arrivals _arrivals
    cdef Settler _settler
    cdef Outbox _outbox
    cdef Inspector _inspector
    cdef Policies _policies
    cdef batch_t given             # of the present call
    cdef object _kept              # what `given` points into
    cdef tuple names

    cdef int begin(self, object events, object hashes, object names) except -1
    cdef int play(self, list out, aside_t aside, void* owner) except -1 nogil
    cdef int learn(self, tuple names) except -1
    cdef void take(self, const event_record_t* events, int64_t count, const uint64_t* hashes, int64_t size) noexcept
    cdef int apply_all(self, list out, aside_t aside, void* owner) except -1 nogil
    cdef int end(self) except -1

    cdef bint _apply(self, const event_record_t* record, list out) except -1 nogil
    cdef bint _arrive(self, const event_record_t* record, list out) except -1 nogil
    cdef bint _store(self, const event_record_t* record) except -1
