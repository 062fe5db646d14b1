# The paged KV cache of one modelled worker: blocks, the free list in eviction order, and the index of named blocks.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef enum:
    NO_BLOCK = -1
    TAKES_AHEAD = 32    # blocks that cache_expect_takes looks at: more at a time are not on their way together

cdef struct block_t:
    uint64_t name       # valid iff named
    int32_t prev        # neighbours in the free list, towards eviction and away from it; NO_BLOCK: none. They stay as
    int32_t next        # they were while the block is out of the list, so that the last steps can be taken back
    int32_t refs        # sequences that hold it; 0 iff it is in the free list
    int32_t named       # 1: the index leads from name to this block

cdef struct entry_t:
    uint32_t hash       # of the name; its low bits are the preferred place
    int32_t block       # NO_BLOCK: an empty place

cdef struct dropped_t:
    uint64_t name
    int32_t block       # that had the name

cdef struct cache_t:
    block_t *blocks     # those used so far
    int32_t rows        # allocated
    int32_t total       # blocks of the cache
    int32_t fresh       # never used blocks start here: the front of the free list
    int32_t head        # free list of used blocks, next to be evicted first; NO_BLOCK: empty
    int32_t tail
    int32_t free        # fresh ones and those of the list
    entry_t *index      # open addressing, linear probing
    uint32_t mask       # places - 1
    int32_t named       # blocks in the index; at most half of the places
    int64_t stores      # names entered so far
    dropped_t *dropped  # names lost to eviction, in order, since the last cache_forget
    int32_t dropped_rows
    int32_t n_dropped

cdef int cache_open(cache_t *cache, int32_t total) except -1
cdef void cache_close(cache_t *cache) noexcept nogil
cdef int32_t cache_find(cache_t *cache, uint64_t name) noexcept nogil
cdef int32_t cache_match(cache_t *cache, uint64_t *names, int32_t n, int32_t *blocks, int32_t *idle) noexcept nogil
cdef void cache_hold(cache_t *cache, int32_t b) noexcept nogil
cdef void cache_unhold(cache_t *cache, int32_t b) noexcept nogil
cdef int32_t cache_take(cache_t *cache) except -2 nogil
cdef int cache_untake(cache_t *cache, int32_t b) except -1 nogil
cdef void cache_release(cache_t *cache, int32_t b) noexcept nogil
cdef void cache_unrelease(cache_t *cache, int32_t b) noexcept nogil
cdef int cache_store(cache_t *cache, int32_t b, uint64_t name) except -1 nogil
cdef void cache_expect(cache_t *cache, uint64_t name) noexcept nogil
cdef void cache_expect_takes(cache_t *cache, int32_t n) noexcept nogil
cdef void cache_expect_block(cache_t *cache, int32_t b) noexcept nogil
cdef void cache_forget(cache_t *cache) noexcept nogil
