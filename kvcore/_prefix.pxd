# Which ranks hold which blocks: a set of (block, rank) pairs, searched along a path of blocks.
cimport cython
from kvcore._blocks cimport block_t, rankset_t, table_t
from kvcore._types cimport int32_t, int64_t, slot_t, uint64_t

cdef extern from *:
    """
    #define KV_HOLE UINT64_C(0xA0761D6478BD642F)
    """
    const uint64_t HOLE "KV_HOLE"      # in a log, where a block has been removed; the block of this name is in no log


cdef struct holding_t:
    uint64_t tag           # layout-free name of the rank, for `mixed`
    uint64_t* log          # blocks that it came to hold, each at least once; some it may hold no more; holes
    int32_t length         # of the log, <= 2 * held + LOG_SLACK
    int32_t room           # > length, once there is a log
    int32_t tried          # the last entry that an addition has tried for a hole
    int32_t held           # blocks that it holds


@cython.final
cdef class PrefixIndex:
    cdef table_t _table            # blocks by hash
    cdef holding_t* _holdings      # by rank
    cdef bint unlogged             # nobody asks what a rank holds: no logs are kept
    cdef slot_t _ranks             # ranks that there may be
    cdef slot_t _capacity          # ranks that arrays by rank have room for
    cdef int32_t _words            # of a bitset of all ranks
    cdef int32_t* depth            # by rank: blocks matched by the last match() or match_on(); 0 where not matched
    cdef slot_t* matched           # ranks with depth > 0 after it, in no particular order
    cdef slot_t matches
    cdef int32_t reach             # position after the last block that it matched for any rank; 0: none
    cdef uint64_t* _alive          # while matching: ranks that hold all so far, their depth not yet written
    cdef slot_t _alive_size
    cdef uint64_t* _seen           # while matching: ranks that need no second look
    cdef slot_t* _later            # while matching: chain of ranks that begin further on
    cdef uint64_t _changes         # counts changes of the contents
    cdef uint64_t _matched_changes  # what it was at the last match()
    cdef uint64_t _matched_serial  # and whose path was asked for; 0: nobody's
    cdef readonly int64_t blocks   # distinct blocks held by anybody
    cdef readonly int64_t pairs    # (block, rank) pairs
    cdef readonly uint64_t mixed   # sum of mixed (hash, rank) pairs: equal contents, equal sum (DESIGN 6)

    cdef int reserve(self, slot_t ranks) except -1
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    cdef bint holds(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef bint add(self, uint64_t hash, slot_t rank) except -1 nogil
    cdef int enter(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef int32_t add_all(self, const uint64_t* hashes, int32_t count, slot_t rank) except -1 nogil
    cdef bint remove(self, uint64_t hash, slot_t rank) noexcept nogil
    cdef int32_t remove_all(self, const uint64_t* hashes, int32_t count, slot_t rank) noexcept nogil
    cdef int32_t purge(self, slot_t rank) noexcept nogil
    cdef const uint64_t* held_by(self, slot_t rank, int32_t* count) noexcept nogil
    cdef slot_t match(self, const uint64_t* path, int32_t length, uint64_t serial) noexcept nogil
    cdef slot_t match_on(
        self, const uint64_t* path, int32_t length, const int32_t* start, int32_t last=*) noexcept nogil

    cdef int _put(self, block_t* row, uint64_t hash, uint64_t key, slot_t rank, int32_t more) noexcept nogil
    cdef bint _lengthen(self, holding_t* holding, int32_t more) noexcept nogil
    cdef int32_t _write(self, holding_t* holding, uint64_t hash) noexcept nogil
    cdef void _shrink(self) noexcept nogil
    cdef void _drop(self, block_t* row, slot_t rank) noexcept nogil
    cdef void _count_gone(self, holding_t* holding, int32_t gone, uint64_t mixed) noexcept nogil
    cdef void _compact(self, holding_t* holding, slot_t rank) noexcept nogil
    cdef slot_t _walk(self, const uint64_t* path, int32_t length, const int32_t* start, int32_t last) noexcept nogil
    cdef void _narrow(self, const rankset_t* many, int32_t level, const int32_t* start) noexcept nogil
    cdef void _join(self, const rankset_t* many, int32_t level, const int32_t* start, slot_t* heads) noexcept nogil
