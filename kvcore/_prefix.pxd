# Which ranks hold which blocks, counted: a multiset of (block, rank) pairs, searched along a path of blocks.
cimport cython
from kvcore._types cimport int32_t, int64_t, slot_t, uint64_t


cdef struct block_t:
    uint64_t hash          # name of the block and of everything before it
    int32_t first          # newest holder, or NO_SLOT: the row is free
    int32_t next_free


cdef struct holder_t:
    int32_t block          # row of its block
    slot_t rank
    int32_t count          # references, >= 1
    int32_t weight         # 2^20 = 1.0; sticky while the holder lives
    int32_t next           # other holders of this block
    int32_t prev
    int32_t rank_next      # other blocks of this rank
    int32_t rank_prev


@cython.final
cdef class PrefixIndex:
    cdef int32_t* _table           # open addressing, hash -> block row; NO_SLOT = empty
    cdef int64_t _mask             # table size - 1
    cdef block_t* _blocks
    cdef int32_t _blocks_size
    cdef int32_t _blocks_capacity
    cdef int32_t _blocks_free
    cdef holder_t* holders
    cdef int32_t _holders_size
    cdef int32_t _holders_capacity
    cdef int32_t _holders_free
    cdef int32_t* _rank_first      # by rank: newest block it holds
    cdef uint64_t* _tags           # by rank: layout-free name of the rank, for `mixed`
    cdef slot_t _ranks
    cdef int32_t* depth            # by rank: leading blocks matched by the last match(); 0 where not matched
    cdef slot_t* matched           # ranks with depth > 0 after the last match()
    cdef slot_t matches
    cdef uint64_t _changes         # counts changes of the contents
    cdef uint64_t _matched_changes  # what it was at the last match()
    cdef uint64_t _matched_serial  # and whose path was asked for; 0: nobody's
    cdef readonly int64_t blocks   # distinct blocks held by anybody
    cdef readonly int64_t pairs    # (block, rank) pairs
    cdef readonly uint64_t mixed   # sum of mixed (hash, rank) pairs: equal contents, equal sum (DESIGN 6)

    cdef int reserve(self, slot_t ranks) except -1
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    cdef int32_t find(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef int32_t acquire(self, uint64_t hash, slot_t rank) except -1
    cdef int32_t release(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef bint add(self, uint64_t hash, slot_t rank) except -1
    cdef int32_t purge(self, slot_t rank) noexcept nogil
    cdef slot_t match(self, const uint64_t* path, int32_t length, uint64_t serial) noexcept nogil

    cdef int32_t _find_block(self, uint64_t hash) noexcept nogil
    cdef int32_t _make_block(self, uint64_t hash) except -1
    cdef int _grow_table(self) except -1
    cdef void _drop_block(self, int32_t block) noexcept nogil
    cdef void _drop_holder(self, int32_t holder) noexcept nogil
