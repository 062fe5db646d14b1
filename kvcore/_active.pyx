"""ActiveBlocks: prompt blocks of running requests, a counted multiset of (block, rank) pairs.

Owns pairs (hash, rank, references, weight) in a pool of C rows, found by a table over both. Beside them stands a
PrefixIndex of the same pairs, which answers how much of a path is live on each rank. Fields of a row that say whose
exclusive suffix it is in are storage for the ledger and mean nothing here.

Never here: what a request is, what a weight adds up to, cached blocks.

Invariants: a row is in use iff its count is > 0, iff it is in the table, iff the index has the pair; `pairs` = rows in
use. A row keeps its number and its place among others while it lives; `rows` moves when it grows.

Cost: find O(1) expected, whatever the number of holders of a block; acquire and release the same, plus what the index
takes for a pair that comes or goes. Memory: 32 bytes a pair, 11 to 24 of table, and the index. It is given back: the
table as it empties, the rows when there are none.
"""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset
from kvcore._blocks cimport prefetch, table_ask
from kvcore._types cimport FRACTION_ONE, NO_SLOT, grown, mix64

cdef enum:
    TABLE_MIN = 64
    ROWS_MIN = 64


cdef inline uint64_t key_of(uint64_t hash, slot_t rank) noexcept nogil:
    return mix64(mix64(hash) + <uint64_t>rank)


cdef class ActiveBlocks:
    def __cinit__(self):
        self.index = PrefixIndex()
        self.index.unlogged = True             # a rank's pairs end with its bookings
        self._free = NO_SLOT
        self._mask = -1
        if not self._rehash(TABLE_MIN):
            raise MemoryError("active blocks")

    def __dealloc__(self):
        free(self.rows)
        free(self._table)

    cdef int reserve(self, slot_t ranks) except -1:
        """Make room for ranks 0 .. ranks - 1."""
        return self.index.reserve(ranks)

    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept:
        """Give a rank, which holds nothing, its layout-free name."""
        self.index.name_rank(rank, tag)

    cdef void expect(self, const uint64_t* path, int32_t length, slot_t rank) noexcept nogil:
        """The first EXPECTED_MAX of these pairs will be looked for: have what they stand in on its way from memory."""
        cdef int64_t at[EXPECTED_MAX]
        cdef int32_t count = min(length, <int32_t>EXPECTED_MAX)
        cdef int32_t i, row
        for i in range(count):
            at[i] = key_of(path[i], rank) & self._mask
            prefetch(&self._table[at[i]])
            table_ask(&self.index._table, path[i])
        for i in range(count):
            row = self._table[at[i]].row
            if row != NO_SLOT:
                prefetch(&self.rows[row])

    cdef int32_t find(self, uint64_t hash, slot_t rank) noexcept nogil:
        """The row of this pair, or NO_SLOT."""
        return self._table[self.entry(hash, rank)].row

    cdef pair_t* pair_at(self, int64_t at) noexcept nogil:
        """The pair of an entry that is in use."""
        return &self.rows[self._table[at].row]

    cdef int32_t acquire(self, uint64_t hash, slot_t rank) noexcept nogil:
        """Count one reference of the rank to the block; returns the row. NO_SLOT: no memory, and all is as it was."""
        cdef int64_t at = self.entry(hash, rank)
        cdef int32_t row = self._table[at].row
        cdef int32_t capacity
        cdef pair_t* pair
        if row != NO_SLOT:
            self.rows[row].count += 1
            return row
        if self._free == NO_SLOT and self._size == self._capacity:
            capacity = self._capacity + self._capacity // 2 + ROWS_MIN
            if not grown(<void**>&self.rows, capacity * sizeof(pair_t)):
                return NO_SLOT
            self._capacity = capacity
        if (self.pairs + 1) * 3 > (self._mask + 1) * 2:
            if not self._rehash((self._mask + 1) * 2):
                return NO_SLOT
            at = self.entry(hash, rank)
        if self.index.enter(hash, rank) < 0:
            return NO_SLOT
        row = self._free
        if row != NO_SLOT:
            self._free = self.rows[row].next_free
        else:
            row = self._size
            self._size += 1
        pair = &self.rows[row]
        pair.hash = hash
        pair.rank = rank
        pair.count = 1
        pair.weight = FRACTION_ONE
        pair.owner = NO_SLOT
        pair.at = 0
        pair.next_free = NO_SLOT
        self._table[at].tag = key_of(hash, rank) >> 32
        self._table[at].row = row
        self.pairs += 1
        return row

    cdef bint release(self, int32_t row) noexcept nogil:
        """Drop one reference. True iff it was the last: the pair is gone, and its row must not be read any more."""
        return self.release_at(self.entry(self.rows[row].hash, self.rows[row].rank))

    cdef bint release_at(self, int64_t hole) noexcept nogil:
        """The same by the entry of a pair. Entries behind it move up, so that no tombstone slows later look-ups."""
        cdef int32_t row = self._table[hole].row
        cdef pair_t* pair = &self.rows[row]
        cdef pair_t* other
        cdef int64_t at = hole
        cdef int64_t home
        pair.count -= 1
        if pair.count:
            return False
        while True:
            at = (at + 1) & self._mask
            if self._table[at].row == NO_SLOT:
                break
            other = &self.rows[self._table[at].row]
            home = key_of(other.hash, other.rank) & self._mask
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._table[hole] = self._table[at]
                hole = at
        self._table[hole].row = NO_SLOT
        self.index.remove(pair.hash, pair.rank)
        pair.next_free = self._free
        self._free = row
        self.pairs -= 1
        self._shrink()
        return True

    cdef int64_t entry(self, uint64_t hash, slot_t rank) noexcept nogil:
        """The entry of a pair, or the empty one where it would be put."""
        cdef uint64_t key = key_of(hash, rank)
        cdef uint32_t tag = key >> 32
        cdef int64_t at = key & self._mask
        cdef int32_t row
        while True:
            row = self._table[at].row
            if row == NO_SLOT:
                return at
            if self._table[at].tag == tag and self.rows[row].hash == hash and self.rows[row].rank == rank:
                return at
            at = (at + 1) & self._mask

    cdef bint _rehash(self, int64_t size) noexcept nogil:
        """Move to a table of this size. False, and nothing has changed: no memory."""
        cdef entry_t* old = self._table
        cdef int64_t old_size = self._mask + 1
        cdef int64_t at
        cdef pair_t* pair
        cdef entry_t* table = <entry_t*>malloc(size * sizeof(entry_t))
        if table == NULL:
            return False
        memset(table, 0xFF, size * sizeof(entry_t))
        self._table = table
        self._mask = size - 1
        for at in range(old_size):
            if old[at].row != NO_SLOT:
                pair = &self.rows[old[at].row]
                table[self.entry(pair.hash, pair.rank)] = old[at]
        free(old)
        return True

    cdef void _shrink(self) noexcept nogil:
        """Give up a table that is far too large, and rows when none is in use; no memory for less is no harm."""
        cdef int64_t size = self._mask + 1
        cdef void* less
        if size > TABLE_MIN and 8 * self.pairs < size:
            self._rehash(max(size // 4, <int64_t>TABLE_MIN))
        if self.pairs == 0 and self._capacity > ROWS_MIN:
            less = realloc(self.rows, ROWS_MIN * sizeof(pair_t))
            if less != NULL:
                self.rows = <pair_t*>less
                self._capacity = ROWS_MIN
                self._size = 0
                self._free = NO_SLOT
