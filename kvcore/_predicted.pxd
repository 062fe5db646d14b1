# Blocks that count as cached on a rank because a request with them was sent there: for a while, and up to a number.
cimport cython
from kvcore._prefix cimport PrefixIndex
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, uint64_t


cdef struct predicted_t:
    # One (hash, rank) pair.
    uint64_t hash
    uint64_t name          # of the pair, free of layout: hash and the rank's tag, mixed
    ns_t used_ns           # last use
    slot_t rank
    int32_t older          # neighbours in the order of use of all; `newer` also links free rows
    int32_t newer
    int32_t rank_older     # neighbours in the order of use of this rank
    int32_t rank_newer


cdef struct uses_t:
    # One rank.
    uint64_t tag           # layout-free name of the rank
    int32_t oldest         # least recently used pair, or NO_SLOT
    int32_t newest
    int32_t held           # pairs


@cython.final
cdef class PredictedBlocks:
    cdef PrefixIndex index         # the same pairs as plain sets: read it with `match`, change it never
    cdef ns_t ttl_ns
    cdef predicted_t* rows
    cdef int32_t _size             # rows in use or free
    cdef int32_t _free
    cdef int32_t* _table           # open addressing, pair -> row; NO_SLOT = empty
    cdef int64_t _mask             # table size - 1; there are 3/4 as many rows
    cdef uses_t* uses              # by rank
    cdef slot_t _ranks
    cdef int32_t _oldest
    cdef int32_t _newest
    cdef readonly uint64_t mixed   # sum over pairs and over neighbours in use: equal contents and orders, equal sum

    cdef int reserve(self, slot_t ranks) except -1
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    # capacity < 0: no bound. now_ns is never below that of an earlier call.
    cdef int touch(
        self, const uint64_t* path, int32_t length, slot_t rank, ns_t now_ns, int64_t capacity) except -1 nogil
    cdef int resume(self, uint64_t hash, slot_t rank, ns_t used_ns) except -1
    cdef void expire(self, ns_t now_ns) noexcept nogil
    cdef void purge(self, slot_t rank) noexcept nogil
    cdef int32_t find(self, uint64_t hash, slot_t rank) noexcept nogil

    cdef int32_t _make(self, uint64_t hash, slot_t rank) except -1 nogil
    cdef bint _rebuild(self, int64_t size) noexcept nogil
    cdef void _enter(self, int32_t row) noexcept nogil
    cdef void _leave(self, int32_t row) noexcept nogil
    cdef void _link(self, int32_t row, ns_t now_ns) noexcept nogil
    cdef void _unlink(self, int32_t row) noexcept nogil
    cdef void _drop(self, int32_t row) noexcept nogil
