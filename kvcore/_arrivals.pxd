# The way in: from a request that arrives to one that waits, or to its refusal.
cimport cython
from kvcore._admission cimport Admission
from kvcore._backlog cimport Backlog
from kvcore._drr cimport limit_t
from kvcore._endings cimport Endings
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable, plain_t
from kvcore._settle cimport Settler
from kvcore._types cimport int32_t, int64_t, slot_t, uint64_t
from kvcore.request cimport Request


@cython.final
cdef class Arrivals:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Backlog _backlog
    cdef Endings _endings
    cdef Admission _admission
    cdef Lifecycle _lifecycle
    cdef Policies _policies
    cdef Settler _settler
    cdef Inspector _inspector
    cdef int64_t _block_size

    cdef object refusal(self, Request request)
    cdef int arrive(self, Request request, list out) except -1
    cdef bint arrive_plainly(
        self, int64_t number, const plain_t* plain, const uint64_t* hashes, int32_t length) except -1 nogil

    cdef bint _is_over_limit(self, slot_t slot, limit_t* kind, int64_t* current, int64_t* bound) noexcept nogil
