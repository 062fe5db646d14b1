# What a request finds on each rank: cached blocks by tier, blocks that run there already, and how both are weighed.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._requests cimport RequestTable, request_t
from kvcore._selector cimport query_t, range_t, weights_t
from kvcore._types cimport int32_t, int64_t, slot_t
from kvcore.request cimport Overlap, Request, SelectionWeights


@cython.final
cdef class Overlaps:
    cdef Fleet _fleet
    cdef RequestTable _requests
    cdef int64_t _block_size
    cdef weights_t _weights        # of the configuration
    cdef bint _decode_role
    cdef int32_t* _device          # by rank, each zero between end() and begin()
    cdef int32_t* _host
    cdef int32_t* _disk
    cdef int32_t* _start           # device and host blocks together
    cdef double* _effective
    cdef int64_t* _cached
    cdef unsigned char* _listed    # by rank: it is in `ranks`
    cdef slot_t* ranks             # those that differ from a rank on which nothing of the request is known
    cdef slot_t count
    cdef slot_t _room
    cdef bint _written             # more than `_listed` has been written since begin()
    cdef range_t* _shared
    cdef int32_t _shared_room
    cdef double* _multiplier       # by taint set
    cdef slot_t _multiplier_room

    cdef int begin(self, slot_t slot, Request request, bint running, query_t* query) except -1
    cdef int begin_plain(self, slot_t slot, bint running, query_t* query) except -1 nogil
    cdef void end(self) noexcept nogil

    cdef int _reserve(self) except -1 nogil
    cdef void _list(self, slot_t rank) noexcept nogil
    cdef int _blank(self, const request_t* row, query_t* query) except -1 nogil
    cdef void _match_running(self, const request_t* row) noexcept nogil
    cdef int _ask_index(self, const request_t* row, query_t* query) except -1 nogil
    cdef int _take_told(self, Overlap overlap, query_t* query) except -1
    cdef slot_t _rank_of(self, object name) except -2
    cdef bint _take(self, tuple pairs, int32_t* into) except -1
    cdef int _weigh(self, Request request, query_t* query) except -1


cdef void copy_weights(SelectionWeights source, weights_t* target) noexcept


cdef inline slot_t room_for(slot_t size, slot_t room) noexcept nogil:
    """Room for so many rows: doubled as needed from 16 on, halved where three quarters stand empty."""
    room = max(16, room)
    while room < size:
        room *= 2
    while room > 16 and size <= room // 4:
        room //= 2
    return room
