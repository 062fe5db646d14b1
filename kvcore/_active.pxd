# Prompt blocks of running requests: a counted multiset of (block, rank) pairs.
cimport cython
from kvcore._prefix cimport PrefixIndex
from kvcore._types cimport int32_t, int64_t, slot_t, uint32_t, uint64_t


cdef enum:
    EXPECTED_MAX = 32      # more at a time are not on their way together


cdef struct pair_t:
    uint64_t hash
    slot_t rank
    int32_t count          # references, >= 1; 0: the row is free
    int32_t weight         # 2^20 = 1.0; sticky; meaningless while owner != NO_SLOT (then the owner's weight counts)
    slot_t owner           # request slot whose exclusive suffix it belongs to, or NO_SLOT (written by the ledger only)
    int32_t at             # index in the owner's path
    int32_t next_free


cdef struct entry_t:
    uint32_t tag           # high half of the mixed key: most look-ups touch no row but the right one
    int32_t row            # NO_SLOT: the entry is empty


@cython.final
cdef class ActiveBlocks:
    cdef pair_t* rows
    cdef PrefixIndex index             # the same pairs as sets: `match`
    cdef readonly int64_t pairs        # rows in use
    cdef entry_t* _table               # open addressing by (hash, rank)
    cdef int64_t _mask                 # table size - 1
    cdef int32_t _size                 # rows ever used
    cdef int32_t _capacity
    cdef int32_t _free                 # chain of free rows

    cdef int reserve(self, slot_t ranks) except -1
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    cdef int64_t entry(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef void expect(self, const uint64_t* path, int32_t length, slot_t rank) noexcept nogil
    cdef int32_t find(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef pair_t* pair_at(self, int64_t at) noexcept nogil
    cdef int32_t acquire(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef bint release(self, int32_t row) noexcept nogil   # True: the row is gone, do not read it
    cdef bint release_at(self, int64_t hole) noexcept nogil

    cdef bint _rehash(self, int64_t size) noexcept nogil
    cdef void _shrink(self) noexcept nogil
