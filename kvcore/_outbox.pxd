# The actions of a step on their way out: as objects or as rows.
cimport cython
from kvcore._placement cimport choice_t
from kvcore._requests cimport RequestTable
from kvcore._types cimport int64_t, ns_t, slot_t
from kvcore._workers cimport WorkerTable
from kvcore.actions cimport Dispatch
from kvcore.records cimport action_record_t


@cython.final
cdef class Outbox:
    cdef RequestTable _requests
    cdef WorkerTable _workers
    cdef list actions              # of the present step, in order; always the same list
    cdef bint recording            # dispatches, Parks and stale facts become rows at once
    cdef object _table             # the rows, an array
    cdef action_record_t* _records  # its memory
    cdef int64_t size
    cdef int64_t _room
    cdef int64_t event             # index of the row that is being applied

    cdef void begin(self) noexcept
    cdef int begin_records(self, int64_t expected) except -1
    cdef int begin_rows(self) except -1
    cdef int64_t rows(self, const action_record_t** first) except -1
    cdef int _grow(self, int64_t room) except -1
    cdef tuple taken(self)
    cdef int dispatch(self, slot_t slot, slot_t rank, const choice_t* choice, ns_t wait_ns) except -1 nogil
    cdef int park(self, slot_t slot, bint deferred) except -1 nogil
    cdef int ignore(self, int64_t request, int64_t attempt) except -1 nogil
    cdef int settle(self) except -1
    cdef object table(self)

    cdef action_record_t* _next(self) except NULL nogil


cdef Dispatch dispatch_of(
    RequestTable requests, WorkerTable workers, slot_t slot, slot_t rank, const choice_t* choice, ns_t wait_ns)
