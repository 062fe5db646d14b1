"""PredictedBlocks: prompts that were sent to a rank and so count as cached there for a while (DESIGN D13).

Owns (hash, rank) pairs with the time of their last use, in two orders of use: of all pairs, for the time to live, and
of each rank, for its capacity. `index` holds the same pairs as sets, for `match`.

One use of a path touches its leaf first and its root last. So of one path the deepest block is the least recently
used, and what is left of it after an eviction is a prefix, which still matches.

Never here: what engines say they hold, requests, when time passes.

Invariants: a pair has one row, one place in the table, one in `index`; used_ns never decreases along either order;
`mixed` = sum over pairs of mix64(name + used_ns) plus sum over neighbours in a rank's order of use of
mix64(mix64(name of the older) + name of the newer). It depends on contents and orders only, not on how they came to
be. The order of pairs of different ranks used at one time is not in it, and shows nowhere: they expire together.
MemoryError in `touch`: the deeper part of the path has been used, the rest has not, nothing has been evicted.

Cost: touch O(length + evicted), expire O(expired), purge O(pairs of the rank), all amortised. Memory: 48 bytes a row,
5 of table; 1 to 2 rows a pair while they grow, up to 6 while they go, and what `index` takes. A rebuild puts the rows
that live into their order of use, in new memory of the right size.
"""
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kvcore._types cimport NO_SLOT, mix64, resize

cdef enum:
    TABLE_MIN = 64


cdef class PredictedBlocks:
    def __cinit__(self, ns_t ttl_ns):
        """ttl_ns: a pair is gone this long after its last use."""
        self.ttl_ns = ttl_ns
        self.index = PrefixIndex()
        self.index.unlogged = True             # a rank's pairs stand in its chain
        self._free = NO_SLOT
        self._oldest = NO_SLOT
        self._newest = NO_SLOT
        if not self._rebuild(TABLE_MIN):
            raise MemoryError("predicted blocks")

    def __dealloc__(self):
        free(self._table)
        free(self.rows)
        free(self.uses)

    cdef int reserve(self, slot_t ranks) except -1:
        """Make room for ranks 0 .. ranks - 1."""
        cdef slot_t capacity = max(ranks, 2 * self._ranks)
        cdef slot_t rank
        self.index.reserve(ranks)
        if ranks <= self._ranks:
            return 0
        resize(<void**>&self.uses, capacity * sizeof(uses_t))
        for rank in range(self._ranks, capacity):
            self.uses[rank].tag = 0
            self.uses[rank].oldest = NO_SLOT
            self.uses[rank].newest = NO_SLOT
            self.uses[rank].held = 0
        self._ranks = capacity
        return 0

    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept:
        """Give a rank, which holds nothing, its layout-free name."""
        self.uses[rank].tag = tag
        self.index.name_rank(rank, tag)

    cdef int touch(
            self, const uint64_t* path, int32_t length, slot_t rank, ns_t now_ns, int64_t capacity) except -1 nogil:
        """The rank uses every block of the path now; then it forgets the least recently used above its capacity."""
        cdef int32_t level, row
        for level in range(length - 1, -1, -1):
            row = self.find(path[level], rank)
            if row == NO_SLOT:
                row = self._make(path[level], rank)
            else:
                self._unlink(row)
            self._link(row, now_ns)
        if capacity >= 0:
            while self.uses[rank].held > capacity:
                self._drop(self.uses[rank].oldest)
        return 0

    cdef int resume(self, uint64_t hash, slot_t rank, ns_t used_ns) except -1:
        """The rank has last used this block then, not before any other that is here."""
        if self.find(hash, rank) == NO_SLOT:
            self._link(self._make(hash, rank), used_ns)
        return 0

    cdef void expire(self, ns_t now_ns) noexcept nogil:
        """Forget what was last used ttl_ns ago or longer. Times are not negative, so nothing overflows."""
        while self._oldest != NO_SLOT and now_ns - self.rows[self._oldest].used_ns >= self.ttl_ns:
            self._drop(self._oldest)

    cdef void purge(self, slot_t rank) noexcept nogil:
        """Forget everything of this rank."""
        while self.uses[rank].oldest != NO_SLOT:
            self._drop(self.uses[rank].oldest)

    cdef int32_t find(self, uint64_t hash, slot_t rank) noexcept nogil:
        """The row of this pair, or NO_SLOT. Good until the next change: rows move."""
        cdef int64_t at = name_of(hash, self.uses[rank].tag) & self._mask
        cdef int32_t row
        while True:
            row = self._table[at]
            if row == NO_SLOT or (self.rows[row].hash == hash and self.rows[row].rank == rank):
                return row
            at = (at + 1) & self._mask

    cdef int32_t _make(self, uint64_t hash, slot_t rank) except -1 nogil:
        """A row for a new pair, still outside the orders of use."""
        cdef int32_t row
        if self._free == NO_SLOT and self._size == rows_of(self._mask + 1):
            if not self._rebuild((self._mask + 1) * 2):
                with gil:
                    raise MemoryError("predicted blocks")
        self.index.add(hash, rank)
        if self._free != NO_SLOT:
            row = self._free
            self._free = self.rows[row].newer
        else:
            row = self._size
            self._size += 1
        self.rows[row].hash = hash
        self.rows[row].name = name_of(hash, self.uses[rank].tag)
        self.rows[row].rank = rank
        self._enter(row)
        self.uses[rank].held += 1
        return row

    cdef bint _rebuild(self, int64_t size) noexcept nogil:
        """A table of this size and as many rows as it carries, all pairs in it. False: no memory, all is as it was."""
        cdef int32_t* table = <int32_t*>malloc(size * sizeof(int32_t))
        cdef predicted_t* rows = <predicted_t*>malloc(rows_of(size) * sizeof(predicted_t))
        cdef predicted_t* pair
        cdef uses_t* uses
        cdef int32_t old = self._oldest
        cdef int32_t row = 0
        if table == NULL or rows == NULL:
            free(table)
            free(rows)
            return False
        memset(table, 0xFF, size * sizeof(int32_t))
        while old != NO_SLOT:
            pair = &rows[row]
            pair[0] = self.rows[old]
            old = pair.newer
            pair.older = row - 1
            pair.newer = row + 1
            uses = &self.uses[pair.rank]
            if pair.rank_older == NO_SLOT:
                uses.oldest = row
            else:
                pair.rank_older = uses.newest
                rows[uses.newest].rank_newer = row
            uses.newest = row
            row += 1
        free(self._table)
        free(self.rows)
        self._table = table
        self._mask = size - 1
        self.rows = rows
        self._size = row
        self._free = NO_SLOT
        self._oldest = NO_SLOT
        self._newest = NO_SLOT
        if row:
            self._oldest = 0
            self._newest = row - 1
            rows[self._newest].newer = NO_SLOT
        for row in range(self._size):
            self._enter(row)
        return True

    cdef void _enter(self, int32_t row) noexcept nogil:
        """Into the table."""
        cdef int64_t at = self.rows[row].name & self._mask
        while self._table[at] != NO_SLOT:
            at = (at + 1) & self._mask
        self._table[at] = row

    cdef void _leave(self, int32_t row) noexcept nogil:
        """Out of the table; entries behind it move up, so that no tombstone slows later look-ups."""
        cdef int64_t hole = self.rows[row].name & self._mask
        cdef int64_t at, home
        while self._table[hole] != row:
            hole = (hole + 1) & self._mask
        at = hole
        while True:
            at = (at + 1) & self._mask
            if self._table[at] == NO_SLOT:
                break
            home = self.rows[self._table[at]].name & self._mask
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._table[hole] = self._table[at]
                hole = at
        self._table[hole] = NO_SLOT

    cdef void _link(self, int32_t row, ns_t now_ns) noexcept nogil:
        """To the newest end of both orders of use."""
        cdef predicted_t* pair = &self.rows[row]
        cdef uses_t* uses = &self.uses[pair.rank]
        pair.used_ns = now_ns
        pair.older = self._newest
        pair.newer = NO_SLOT
        if pair.older != NO_SLOT:
            self.rows[pair.older].newer = row
        else:
            self._oldest = row
        self._newest = row
        pair.rank_older = uses.newest
        pair.rank_newer = NO_SLOT
        if pair.rank_older != NO_SLOT:
            self.rows[pair.rank_older].rank_newer = row
            self.mixed += in_order(&self.rows[pair.rank_older], pair)
        else:
            uses.oldest = row
        uses.newest = row
        self.mixed += mix64(pair.name + <uint64_t>now_ns)

    cdef void _unlink(self, int32_t row) noexcept nogil:
        cdef predicted_t* pair = &self.rows[row]
        cdef uses_t* uses = &self.uses[pair.rank]
        self.mixed -= mix64(pair.name + <uint64_t>pair.used_ns)
        if pair.older != NO_SLOT:
            self.rows[pair.older].newer = pair.newer
        else:
            self._oldest = pair.newer
        if pair.newer != NO_SLOT:
            self.rows[pair.newer].older = pair.older
        else:
            self._newest = pair.older
        if pair.rank_older != NO_SLOT:
            self.mixed -= in_order(&self.rows[pair.rank_older], pair)
            self.rows[pair.rank_older].rank_newer = pair.rank_newer
        else:
            uses.oldest = pair.rank_newer
        if pair.rank_newer != NO_SLOT:
            self.mixed -= in_order(pair, &self.rows[pair.rank_newer])
            self.rows[pair.rank_newer].rank_older = pair.rank_older
            if pair.rank_older != NO_SLOT:
                self.mixed += in_order(&self.rows[pair.rank_older], &self.rows[pair.rank_newer])
        else:
            uses.newest = pair.rank_older

    cdef void _drop(self, int32_t row) noexcept nogil:
        cdef predicted_t* pair = &self.rows[row]
        self._unlink(row)
        self._leave(row)
        self.index.remove(pair.hash, pair.rank)
        self.uses[pair.rank].held -= 1
        pair.newer = self._free
        self._free = row
        if self._mask >= TABLE_MIN and self.index.pairs * 8 < self._mask:
            self._rebuild(max(TABLE_MIN, (self._mask + 1) // 4))


cdef inline int64_t rows_of(int64_t size) noexcept nogil:
    """Rows for a table of this size."""
    return size // 4 * 3


cdef inline uint64_t name_of(uint64_t hash, uint64_t tag) noexcept nogil:
    return mix64(mix64(hash) + tag)


cdef inline uint64_t in_order(const predicted_t* older, const predicted_t* newer) noexcept nogil:
    """The part of `mixed` that says: this one was used just before that one."""
    return mix64(mix64(older.name) + newer.name)
