"""PrefixIndex: which ranks hold which KV blocks, and how long a path of blocks each rank holds from its root.

Owns blocks (by hash) and holders (block, rank, count, weight) in two pools of C rows. A hash names a block and
everything before it, so one flat table replaces a trie: a rank holds a prefix iff it holds each of its hashes. The
scheduler keeps two: cached blocks told by engines (`add`, `release`), and prompt blocks of running requests
(`acquire`, `release`, counted).

Never here: what a worker is, what a request is, which rank is better.

Invariants: a block row exists iff it has a holder; a (block, rank) pair has at most one holder; `pairs` = number of
holders; `mixed` = sum over holders of mix64(mix64(hash) + tag of the rank).

Cost: find, acquire, release O(holders of that block); match O(pairs touched); purge O(blocks of the rank).
Memory: 16 bytes a block, 32 a holder, 4 to 8 of table a block.
"""
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kvcore._types cimport FRACTION_ONE, NO_SLOT, mix64, resize


cdef class PrefixIndex:
    def __cinit__(self):
        self._mask = 63
        self._table = <int32_t*>malloc(64 * sizeof(int32_t))
        if self._table == NULL:
            raise MemoryError("prefix index")
        memset(self._table, 0xFF, 64 * sizeof(int32_t))
        self._blocks_free = NO_SLOT
        self._holders_free = NO_SLOT

    def __dealloc__(self):
        free(self._table)
        free(self._blocks)
        free(self.holders)
        free(self._rank_first)
        free(self._tags)
        free(self.depth)
        free(self.matched)

    cdef int reserve(self, slot_t ranks) except -1:
        """Make room for ranks 0 .. ranks - 1."""
        cdef slot_t capacity = max(ranks, 2 * self._ranks)
        cdef slot_t rank
        if ranks <= self._ranks:
            return 0
        resize(<void**>&self._rank_first, capacity * sizeof(int32_t))
        resize(<void**>&self._tags, capacity * sizeof(uint64_t))
        resize(<void**>&self.depth, capacity * sizeof(int32_t))
        resize(<void**>&self.matched, capacity * sizeof(slot_t))
        for rank in range(self._ranks, capacity):
            self._rank_first[rank] = NO_SLOT
            self._tags[rank] = 0
            self.depth[rank] = 0
        self._ranks = capacity
        return 0

    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept:
        """Give a rank, which holds nothing, its layout-free name."""
        self._tags[rank] = tag

    cdef int32_t find(self, uint64_t hash, slot_t rank) noexcept nogil:
        """The holder of this pair, or NO_SLOT."""
        cdef int32_t block = self._find_block(hash)
        cdef int32_t holder
        if block == NO_SLOT:
            return NO_SLOT
        holder = self._blocks[block].first
        while holder != NO_SLOT and self.holders[holder].rank != rank:
            holder = self.holders[holder].next
        return holder

    cdef int32_t acquire(self, uint64_t hash, slot_t rank) except -1:
        """Count one reference of the rank to the block; returns the holder."""
        cdef int32_t holder = self.find(hash, rank)
        cdef int32_t block, capacity
        cdef holder_t* row
        if holder != NO_SLOT:
            self.holders[holder].count += 1
            return holder
        if self._holders_free == NO_SLOT and self._holders_size == self._holders_capacity:
            capacity = self._holders_capacity * 2 if self._holders_capacity else 64
            resize(<void**>&self.holders, capacity * sizeof(holder_t))
            self._holders_capacity = capacity
        block = self._find_block(hash)
        if block == NO_SLOT:
            block = self._make_block(hash)
        if self._holders_free != NO_SLOT:
            holder = self._holders_free
            self._holders_free = self.holders[holder].next
        else:
            holder = self._holders_size
            self._holders_size += 1
        row = &self.holders[holder]
        row.block = block
        row.rank = rank
        row.count = 1
        row.weight = FRACTION_ONE
        row.prev = NO_SLOT
        row.next = self._blocks[block].first
        if row.next != NO_SLOT:
            self.holders[row.next].prev = holder
        self._blocks[block].first = holder
        row.rank_prev = NO_SLOT
        row.rank_next = self._rank_first[rank]
        if row.rank_next != NO_SLOT:
            self.holders[row.rank_next].rank_prev = holder
        self._rank_first[rank] = holder
        self.pairs += 1
        self._changes += 1
        self.mixed += mix64(mix64(hash) + self._tags[rank])
        return holder

    cdef int32_t release(self, uint64_t hash, slot_t rank) noexcept nogil:
        """Drop one reference. Returns the weight that left with the last one, else 0. Unknown pair: no change."""
        cdef int32_t holder = self.find(hash, rank)
        cdef int32_t weight
        if holder == NO_SLOT:
            return 0
        self.holders[holder].count -= 1
        if self.holders[holder].count:
            return 0
        weight = self.holders[holder].weight
        self._drop_holder(holder)
        return weight

    cdef bint add(self, uint64_t hash, slot_t rank) except -1:
        """Set semantics: the rank holds the block once, however often it is told. True iff that is new."""
        if self.find(hash, rank) != NO_SLOT:
            return False
        self.acquire(hash, rank)
        return True

    cdef int32_t purge(self, slot_t rank) noexcept nogil:
        """Forget everything that the rank holds; returns how many blocks that were."""
        cdef int32_t dropped = 0
        while self._rank_first[rank] != NO_SLOT:
            self._drop_holder(self._rank_first[rank])
            dropped += 1
        return dropped

    cdef slot_t match(self, const uint64_t* path, int32_t length, uint64_t serial) noexcept nogil:
        """How many leading blocks of the path each rank holds: depth[rank], and matched[0 .. result - 1] where > 0.

        Stops at the first block that no rank still matching holds. Results are valid until the next call. `serial`
        names the path for ever (0: nothing does): asked again with nothing changed, the answer is there already.
        """
        cdef int32_t level, block, holder, survivors
        cdef slot_t i, rank
        if serial and serial == self._matched_serial and self._changes == self._matched_changes:
            return self.matches
        self._matched_serial = serial
        self._matched_changes = self._changes
        for i in range(self.matches):
            self.depth[self.matched[i]] = 0
        self.matches = 0
        for level in range(length):
            block = self._find_block(path[level])
            if block == NO_SLOT:
                break
            survivors = 0
            holder = self._blocks[block].first
            while holder != NO_SLOT:
                rank = self.holders[holder].rank
                if self.depth[rank] == level:
                    if level == 0:
                        self.matched[self.matches] = rank
                        self.matches += 1
                    self.depth[rank] = level + 1
                    survivors += 1
                holder = self.holders[holder].next
            if survivors == 0:
                break
        return self.matches

    cdef int32_t _find_block(self, uint64_t hash) noexcept nogil:
        cdef int64_t at = mix64(hash) & self._mask
        cdef int32_t block
        while True:
            block = self._table[at]
            if block == NO_SLOT or self._blocks[block].hash == hash:
                return block
            at = (at + 1) & self._mask

    cdef int32_t _make_block(self, uint64_t hash) except -1:
        cdef int32_t block, capacity
        cdef int64_t at
        if (self.blocks + 1) * 4 > (self._mask + 1) * 3:
            self._grow_table()
        if self._blocks_free != NO_SLOT:
            block = self._blocks_free
            self._blocks_free = self._blocks[block].next_free
        else:
            if self._blocks_size == self._blocks_capacity:
                capacity = self._blocks_capacity * 2 if self._blocks_capacity else 64
                resize(<void**>&self._blocks, capacity * sizeof(block_t))
                self._blocks_capacity = capacity
            block = self._blocks_size
            self._blocks_size += 1
        self._blocks[block].hash = hash
        self._blocks[block].first = NO_SLOT
        at = mix64(hash) & self._mask
        while self._table[at] != NO_SLOT:
            at = (at + 1) & self._mask
        self._table[at] = block
        self.blocks += 1
        return block

    cdef int _grow_table(self) except -1:
        cdef int64_t size = (self._mask + 1) * 2
        cdef int64_t old, at
        cdef int32_t block
        cdef int32_t* table = <int32_t*>malloc(size * sizeof(int32_t))
        if table == NULL:
            raise MemoryError("prefix index")
        memset(table, 0xFF, size * sizeof(int32_t))
        for old in range(self._mask + 1):
            block = self._table[old]
            if block != NO_SLOT:
                at = mix64(self._blocks[block].hash) & (size - 1)
                while table[at] != NO_SLOT:
                    at = (at + 1) & (size - 1)
                table[at] = block
        free(self._table)
        self._table = table
        self._mask = size - 1
        return 0

    cdef void _drop_block(self, int32_t block) noexcept nogil:
        """Remove a block row without holders; entries behind it move up, so that no tombstone slows later look-ups."""
        cdef int64_t hole = mix64(self._blocks[block].hash) & self._mask
        cdef int64_t at, home
        while self._table[hole] != block:
            hole = (hole + 1) & self._mask
        at = hole
        while True:
            at = (at + 1) & self._mask
            if self._table[at] == NO_SLOT:
                break
            home = mix64(self._blocks[self._table[at]].hash) & self._mask
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._table[hole] = self._table[at]
                hole = at
        self._table[hole] = NO_SLOT
        self._blocks[block].next_free = self._blocks_free
        self._blocks_free = block
        self.blocks -= 1

    cdef void _drop_holder(self, int32_t holder) noexcept nogil:
        cdef holder_t* row = &self.holders[holder]
        self.mixed -= mix64(mix64(self._blocks[row.block].hash) + self._tags[row.rank])
        self.pairs -= 1
        self._changes += 1
        if row.next != NO_SLOT:
            self.holders[row.next].prev = row.prev
        if row.prev != NO_SLOT:
            self.holders[row.prev].next = row.next
        else:
            self._blocks[row.block].first = row.next
            if row.next == NO_SLOT:
                self._drop_block(row.block)
        if row.rank_next != NO_SLOT:
            self.holders[row.rank_next].rank_prev = row.rank_prev
        if row.rank_prev != NO_SLOT:
            self.holders[row.rank_prev].rank_next = row.rank_next
        else:
            self._rank_first[row.rank] = row.rank_next
        row.next = self._holders_free
        self._holders_free = holder
