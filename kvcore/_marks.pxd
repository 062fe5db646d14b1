# What sources say of workers: marks, some with a lease, and what they add up to per worker.
cimport cython
from kvcore._heap cimport heap_t
from kvcore._types cimport int32_t, ns_t, slot_t, uint64_t


cdef struct mark_t:
    # One source's word on one worker.
    slot_t worker          # NO_SLOT: the row is free
    bint available
    bint overloaded
    int32_t next_free
    ns_t end_ns            # NEVER_NS: no lease; NS_END: a lease that no time reaches


cdef struct counts_t:
    # The marks of one worker, by what they say.
    int32_t gone           # unavailable, without a lease
    int32_t leased         # unavailable, with a lease
    int32_t overloaded


@cython.final
cdef class MarkTable:
    cdef mark_t* _rows
    cdef int32_t _rows_size        # rows ever made
    cdef int32_t _rows_capacity
    cdef int32_t _rows_free
    cdef list _sources             # by row: who says so, None while the row is free
    cdef heap_t _leases            # rows whose lease ends, in order of (end, when it was told)
    cdef int32_t* _pos             # by row: place in _leases
    cdef uint64_t _told            # leases ever told; orders those that end together
    cdef counts_t* _counts         # by worker slot
    cdef list _by_worker           # by worker slot: {source: row}, None where nobody says anything
    cdef slot_t _workers
    cdef readonly int32_t marks    # live marks

    # NEVER_NS: no lease. NS_END or later: a lease that never ends. Available and not overloaded takes the mark away.
    cdef int set(self, slot_t worker, str source, bint available, bint overloaded, ns_t end_ns) except -1
    cdef int forget_worker(self, slot_t worker) except -1
    cdef int state(self, slot_t worker) noexcept nogil      # rank_state_t, as an int
    cdef ns_t first_end_ns(self) noexcept nogil             # exact; NEVER_NS: no lease ends
    cdef slot_t end_first(self) except -1                   # its worker; call only while first_end_ns() < NEVER_NS
    cdef list marks_of(self, slot_t worker)                 # [(source, available, overloaded, end_ns)] by source

    cdef int _reserve_worker(self, slot_t worker) except -1
    cdef int _reserve_row(self) except -1
    cdef int _drop(self, int32_t row) except -1
    cdef void _count(self, const mark_t* mark, int32_t by) noexcept nogil
