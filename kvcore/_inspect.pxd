# Reading the state: statistics, audit. Owns the counters that only statistics need.
cimport cython
from kvcore._drr cimport PolicyQueue
from kvcore._fleet cimport Fleet
from kvcore._requests cimport RequestTable
from kvcore._types cimport int64_t, slot_t


@cython.final
cdef class Inspector:
    cdef object _profile
    cdef RequestTable _requests
    cdef PolicyQueue _queue
    cdef Fleet _fleet
    cdef dict rejected                    # reason -> count
    cdef list class_rejected              # by class
    cdef int64_t arrived
    cdef int64_t completed
    cdef int64_t aborted
    cdef int64_t evicted
    cdef int64_t retried
    cdef int64_t stale
    cdef int64_t unknown_names

    cdef int adopt(self, object before, object profile) except -1
    cdef int count_reject(self, object reason, slot_t class_index) except -1
    cdef object stats(self)
    cdef list audit(self)

    cdef int64_t _running(self)
    cdef int64_t _over_caps(self)
    cdef int _audit_ranks(self, list faults) except -1
    cdef int _audit_classes(self, list faults) except -1
