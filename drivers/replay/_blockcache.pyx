"""The paged KV cache of one modelled worker, after vLLM V1's block pool.

Owns the blocks, the free list and the index from names to blocks. Knows neither sequences nor time. Written by _worker.

Invariants, most important first:

- Every block is either held (refs > 0) or free, and `free` counts the free ones.
- A name leads to one block. A second block with the same content stays unnamed (vLLM keeps both under one hash, and
  announces either one's end).
- A named block that nobody holds stays in the free list and can be hit until it is evicted, at its turn.
- Order of eviction: first the blocks that were never used, then the list: freed blocks are appended, named or not, and
  taken from the front.

Undo: cache_untake, cache_unhold and cache_unrelease take back cache_take, cache_hold and cache_release in exactly the
reverse order, with no other change in between: then the free list, the names and `dropped` are as they were. (Removed
nodes of a doubly linked list know where they were: Knuth's dancing links.)
"""
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

cdef enum:
    PLACES_MIN = 16
    ROWS_MIN = 64
    MATCH_AHEAD = 4         # names on their way from memory while one is looked for
    FRESH = -2              # prev of a block that was taken when it had never been used


cdef extern from *:
    """
    /* The empty asm keeps gcc from leaving out functions that do nothing else. */
    #define replay_prefetch(address) do { __builtin_prefetch(address); __asm__ volatile(""); } while (0)
    """
    void prefetch "replay_prefetch"(const void *address) noexcept nogil


cdef inline uint32_t _hash(uint64_t name) noexcept nogil:
    """Traces may number blocks from 0, so the bits are mixed (splitmix64's finaliser)."""
    name ^= name >> 30
    name *= <uint64_t>0xBF58476D1CE4E5B9
    name ^= name >> 27
    name *= <uint64_t>0x94D049BB133111EB
    return <uint32_t>(name ^ (name >> 31))


cdef int cache_open(cache_t *cache, int32_t total) except -1:
    """An empty cache of `total` blocks. Memory grows with the blocks used, never with total."""
    cache.total = cache.free = total
    cache.head = cache.tail = NO_BLOCK
    cache.mask = PLACES_MIN - 1
    cache.index = _places(PLACES_MIN)
    return 0


cdef void cache_close(cache_t *cache) noexcept nogil:
    free(cache.blocks)
    free(cache.index)
    free(cache.dropped)


cdef entry_t *_places(uint32_t n) except NULL nogil:
    cdef entry_t *index = <entry_t *>malloc(n * sizeof(entry_t))
    cdef uint32_t i
    if index == NULL:
        with gil:
            raise MemoryError
    for i in range(n):
        index[i].block = NO_BLOCK
    return index


cdef int32_t cache_find(cache_t *cache, uint64_t name) noexcept nogil:
    """The block of this name, or NO_BLOCK."""
    cdef uint32_t hash = _hash(name), i = hash & cache.mask
    cdef entry_t entry = cache.index[i]
    while entry.block != NO_BLOCK:
        if entry.hash == hash and cache.blocks[entry.block].name == name:
            return entry.block
        i = (i + 1) & cache.mask
        entry = cache.index[i]
    return NO_BLOCK


cdef void cache_expect(cache_t *cache, uint64_t name) noexcept nogil:
    """This name will be looked for soon. In a large fleet the index is not in the processor's cache."""
    prefetch(&cache.index[_hash(name) & cache.mask])


cdef int32_t cache_match(cache_t *cache, uint64_t *names, int32_t n, int32_t *blocks, int32_t *idle) noexcept nogil:
    """Longest cached prefix of names, written to blocks. idle: how many of its blocks nobody holds."""
    cdef int32_t i, b
    idle[0] = 0
    for i in range(min(n, <int32_t>MATCH_AHEAD)):
        cache_expect(cache, names[i])
    for i in range(n):
        if i + MATCH_AHEAD < n:
            cache_expect(cache, names[i + MATCH_AHEAD])
        b = cache_find(cache, names[i])
        if b == NO_BLOCK:
            return i
        blocks[i] = b
        idle[0] += cache.blocks[b].refs == 0
    return n


cdef inline void _link(cache_t *cache, int32_t b) noexcept nogil:
    """Into the free list, between the neighbours that the block remembers."""
    cdef block_t *block = &cache.blocks[b]
    if block.prev == NO_BLOCK:
        cache.head = b
    else:
        cache.blocks[block.prev].next = b
    if block.next == NO_BLOCK:
        cache.tail = b
    else:
        cache.blocks[block.next].prev = b


cdef inline void _unlink(cache_t *cache, int32_t b) noexcept nogil:
    cdef block_t *block = &cache.blocks[b]
    if block.prev == NO_BLOCK:
        cache.head = block.next
    else:
        cache.blocks[block.prev].next = block.next
    if block.next == NO_BLOCK:
        cache.tail = block.prev
    else:
        cache.blocks[block.next].prev = block.prev


cdef void cache_hold(cache_t *cache, int32_t b) noexcept nogil:
    """One more sequence uses this block, which was a hit."""
    if cache.blocks[b].refs == 0:
        _unlink(cache, b)
        cache.free -= 1
    cache.blocks[b].refs += 1


cdef void cache_unhold(cache_t *cache, int32_t b) noexcept nogil:
    """Take back cache_hold."""
    cache.blocks[b].refs -= 1
    if cache.blocks[b].refs == 0:
        _link(cache, b)
        cache.free += 1


cdef int32_t cache_take(cache_t *cache) except -2 nogil:
    """The next free block, now held once and without a name. There must be one."""
    cdef int32_t b
    if cache.fresh < cache.total:
        if cache.fresh == cache.rows:
            _grow(cache)
        b = cache.fresh
        cache.fresh += 1
        cache.blocks[b].prev = FRESH
        cache.blocks[b].named = 0
    else:
        b = cache.head
        if cache.blocks[b].named:
            _drop(cache, b)
        _unlink(cache, b)
    cache.blocks[b].refs = 1
    cache.free -= 1
    return b


cdef void cache_expect_takes(cache_t *cache, int32_t n) noexcept nogil:
    """So many blocks will be taken, TAKES_AHEAD of them soon: the names that they lose are on their way from memory."""
    cdef int32_t b = cache.head
    if cache.fresh < cache.total:
        return
    n = min(n, <int32_t>TAKES_AHEAD)
    while n > 0 and b != NO_BLOCK:
        cache_expect(cache, cache.blocks[b].name)
        b = cache.blocks[b].next
        n -= 1


cdef int _grow(cache_t *cache) except -1 nogil:
    cdef int64_t rows = min(max(2 * <int64_t>cache.rows, ROWS_MIN), <int64_t>cache.total)
    cdef block_t *blocks = <block_t *>realloc(cache.blocks, rows * sizeof(block_t))
    if blocks == NULL:
        with gil:
            raise MemoryError
    cache.blocks = blocks
    cache.rows = <int32_t>rows
    return 0


cdef int _drop(cache_t *cache, int32_t b) except -1 nogil:
    """Evict the name of a block, and note it."""
    cdef int32_t rows
    cdef dropped_t *dropped
    if cache.n_dropped == cache.dropped_rows:
        rows = max(2 * cache.dropped_rows, PLACES_MIN)
        dropped = <dropped_t *>realloc(cache.dropped, rows * sizeof(dropped_t))
        if dropped == NULL:
            with gil:
                raise MemoryError
        cache.dropped = dropped
        cache.dropped_rows = rows
    cache.dropped[cache.n_dropped] = dropped_t(cache.blocks[b].name, b)
    cache.n_dropped += 1
    cache.blocks[b].named = 0
    _erase(cache, b)
    return 0


cdef int cache_untake(cache_t *cache, int32_t b) except -1 nogil:
    """Take back cache_take."""
    cache.blocks[b].refs = 0
    cache.free += 1
    if cache.blocks[b].prev == FRESH:
        cache.fresh -= 1
        return 0
    _link(cache, b)
    if cache.n_dropped and cache.dropped[cache.n_dropped - 1].block == b:
        cache.n_dropped -= 1
        _insert(cache, b, cache.dropped[cache.n_dropped].name)
    return 0


cdef void cache_expect_block(cache_t *cache, int32_t b) noexcept nogil:
    """This block will be looked at soon."""
    prefetch(&cache.blocks[b])


cdef void cache_release(cache_t *cache, int32_t b) noexcept nogil:
    """One sequence uses this block no more; the last one appends it to the free list."""
    cdef block_t *block = &cache.blocks[b]
    block.refs -= 1
    if block.refs == 0:
        block.prev = cache.tail
        block.next = NO_BLOCK
        _link(cache, b)
        cache.free += 1


cdef void cache_unrelease(cache_t *cache, int32_t b) noexcept nogil:
    """Take back cache_release."""
    if cache.blocks[b].refs == 0:
        _unlink(cache, b)
        cache.free -= 1
    cache.blocks[b].refs += 1


cdef int cache_store(cache_t *cache, int32_t b, uint64_t name) except -1 nogil:
    """Name a held, unnamed block. Returns 0, and does nothing, if the name is taken."""
    if cache_find(cache, name) != NO_BLOCK:
        return 0
    _insert(cache, b, name)
    cache.stores += 1
    return 1


cdef void cache_forget(cache_t *cache) noexcept nogil:
    """The dropped names have been dealt with."""
    cache.n_dropped = 0


cdef int _insert(cache_t *cache, int32_t b, uint64_t name) except -1 nogil:
    cdef entry_t *old = cache.index
    cdef uint32_t i, places = cache.mask + 1
    if 2 * <uint32_t>(cache.named + 1) > places:
        cache.index = _places(2 * places)
        cache.mask = 2 * places - 1
        for i in range(places):
            if old[i].block != NO_BLOCK:
                _put(cache, old[i])
        free(old)
    _put(cache, entry_t(_hash(name), b))
    cache.blocks[b].name = name
    cache.blocks[b].named = 1
    cache.named += 1
    return 0


cdef inline void _put(cache_t *cache, entry_t entry) noexcept nogil:
    cdef uint32_t i = entry.hash & cache.mask
    while cache.index[i].block != NO_BLOCK:
        i = (i + 1) & cache.mask
    cache.index[i] = entry


cdef void _erase(cache_t *cache, int32_t b) noexcept nogil:
    """Remove a named block: later entries of the run move up, so that no tombstones are needed."""
    cdef uint32_t hole = _hash(cache.blocks[b].name) & cache.mask, i
    while cache.index[hole].block != b:
        hole = (hole + 1) & cache.mask
    i = hole
    while True:
        i = (i + 1) & cache.mask
        if cache.index[i].block == NO_BLOCK:
            break
        # An entry may fill the hole unless its preferred place comes after the hole.
        if ((i - cache.index[i].hash) & cache.mask) >= ((i - hole) & cache.mask):
            cache.index[hole] = cache.index[i]
            hole = i
    cache.index[hole].block = NO_BLOCK
    cache.named -= 1
