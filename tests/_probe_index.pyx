"""Doors for tests and benchmarks to the block indexes: sets of (block, rank) pairs, and counted ones. Never shipped.

A door converts and does nothing else: NO_SLOT becomes None, C rows become tuples, sequences become C arrays. Paths may
be array.array("Q") to begin with; what the methods in plural do with them is one loop in C, for benchmarks.
"""
from cpython cimport array
from kvcore._active cimport ActiveBlocks, pair_t
from kvcore._blocks cimport NO_PLACE, block_t, table_find
from kvcore._prefix cimport HOLE, PrefixIndex, holding_t
from kvcore._types cimport NO_SLOT, int32_t, int64_t, mix64, slot_t, uint64_t

import array

#: The name that no log holds.
HOLE_NAME = HOLE


cdef array.array hashes_of(path):
    return path if isinstance(path, array.array) else array.array("Q", path)


cdef dict depths_of(PrefixIndex index, slot_t count):
    """Rank -> depth of what has matched; that all others are 0 is checked."""
    cdef slot_t i
    found = {index.matched[i]: index.depth[index.matched[i]] for i in range(count)}
    assert len(found) == count == index.matches
    assert sum(1 for i in range(index._ranks) if index.depth[i]) == count
    assert all(index._alive[i] == 0 for i in range(index._words))
    return found


cdef dict memory_of(PrefixIndex index):
    """Bytes that the index has asked for, by what for: its table, sets beyond the table, logs."""
    cdef int64_t at
    cdef int32_t room
    cdef slot_t rank
    cdef int64_t sets = 0
    cdef int64_t logs = 0
    for at in range(index._table.mask + 1):
        room = index._table.rows[at].holders.room
        sets += room * sizeof(slot_t) if room > 0 else -room * sizeof(uint64_t)
    for rank in range(index._capacity):
        logs += index._holdings[rank].room * sizeof(uint64_t)
    return {"table": (index._table.mask + 1) * sizeof(block_t), "sets": sets, "logs": logs}


cdef class Prefix:
    """PrefixIndex."""

    cdef PrefixIndex index

    def __cinit__(self):
        self.index = PrefixIndex()

    @property
    def blocks(self):
        return self.index.blocks

    @property
    def pairs(self):
        return self.index.pairs

    @property
    def mixed(self):
        return self.index.mixed

    @property
    def reach(self):
        return self.index.reach

    def reserve(self, slot_t ranks):
        self.index.reserve(ranks)

    def name_rank(self, slot_t rank, uint64_t tag):
        self.index.name_rank(rank, tag)

    def holds(self, uint64_t hash, slot_t rank):
        return bool(self.index.holds(hash, rank))

    def add(self, uint64_t hash, slot_t rank):
        return bool(self.index.add(hash, rank))

    def remove(self, uint64_t hash, slot_t rank):
        return bool(self.index.remove(hash, rank))

    def purge(self, slot_t rank):
        return self.index.purge(rank)

    def match(self, path, uint64_t serial=0):
        """Rank -> leading blocks of the path that it holds, where that is not 0. serial: a name for the path, or 0."""
        cdef array.array hashes = hashes_of(path)
        return depths_of(
            self.index, self.index.match(<const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), serial))

    def match_on(self, path, start, last=None):
        """Rank -> blocks of the path that it holds from start[rank] on. last: no rank begins after it."""
        cdef array.array hashes = hashes_of(path)
        cdef array.array begins = array.array("i", start)
        cdef const uint64_t* data = <const uint64_t*>hashes.data.as_ulonglongs
        cdef int32_t length = <int32_t>len(hashes)
        if last is None:
            return depths_of(self.index, self.index.match_on(data, length, <const int32_t*>begins.data.as_ints))
        return depths_of(self.index, self.index.match_on(data, length, <const int32_t*>begins.data.as_ints, last))

    def match_below(self, Prefix above, path):
        """match_on where the last match of another tier has ended, at its own word."""
        cdef array.array hashes = hashes_of(path)
        return depths_of(self.index, self.index.match_on(
            <const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), above.index.depth, above.index.reach))

    def depths(self, slot_t ranks):
        """Depth by rank after the last match."""
        cdef slot_t rank
        return [self.index.depth[rank] for rank in range(ranks)]

    def shape(self, uint64_t hash):
        """How the holders of a block are kept: None (nobody), "few", "some" or "many"."""
        row = table_find(&self.index._table, mix64(hash)).holders
        if row.size == 0:
            return None
        return "few" if row.room == 0 else "some" if row.room > 0 else "many"

    def memory(self):
        return memory_of(self.index)

    def held_by(self, slot_t rank):
        """Blocks that the rank holds, in the order in which they stand in its log."""
        cdef int32_t count, i
        cdef const uint64_t* held = self.index.held_by(rank, &count)
        return [held[i] for i in range(count)]

    def log(self, slot_t rank):
        """What stands in its log; None: a hole."""
        cdef int32_t i
        cdef const holding_t* holding = &self.index._holdings[rank]
        return [None if holding.log[i] == HOLE else holding.log[i] for i in range(holding.length)]

    def place(self, uint64_t hash):
        """The place in the log of the one rank that holds a block, or None."""
        row = table_find(&self.index._table, mix64(hash)).holders
        return row.ranks.few[1] if row.size == 1 and row.ranks.few[1] != NO_PLACE else None

    def adds(self, path, slot_t rank):
        """How many were new."""
        cdef array.array hashes = hashes_of(path)
        cdef int64_t i
        cdef int64_t count = 0
        for i in range(len(hashes)):
            count += self.index.add(hashes.data.as_ulonglongs[i], rank)
        return count

    def removes(self, path, slot_t rank):
        """How many it held."""
        cdef array.array hashes = hashes_of(path)
        cdef int64_t i
        cdef int64_t count = 0
        for i in range(len(hashes)):
            count += self.index.remove(hashes.data.as_ulonglongs[i], rank)
        return count

    def add_all(self, path, slot_t rank):
        """How many were new."""
        cdef array.array hashes = hashes_of(path)
        return self.index.add_all(<const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), rank)

    def remove_all(self, path, slot_t rank):
        """How many it held."""
        cdef array.array hashes = hashes_of(path)
        return self.index.remove_all(<const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), rank)

    def adds_all(self, paths, slot_t length, slot_t rank):
        """Add path after path of this length, laid end to end; how many blocks were new."""
        cdef array.array hashes = hashes_of(paths)
        cdef int64_t i
        cdef int64_t count = 0
        for i in range(0, len(hashes), length):
            count += self.index.add_all(<const uint64_t*>hashes.data.as_ulonglongs + i, length, rank)
        return count

    def removes_all(self, paths, slot_t length, slot_t rank):
        """Remove path after path of this length, laid end to end; how many blocks it held."""
        cdef array.array hashes = hashes_of(paths)
        cdef int64_t i
        cdef int64_t count = 0
        for i in range(0, len(hashes), length):
            count += self.index.remove_all(<const uint64_t*>hashes.data.as_ulonglongs + i, length, rank)
        return count

    def matches(self, paths, slot_t length):
        """Match path after path of this length, laid end to end; the sum of the numbers of ranks."""
        cdef array.array hashes = hashes_of(paths)
        cdef int64_t i
        cdef int64_t count = 0
        for i in range(0, len(hashes), length):
            count += self.index.match(<const uint64_t*>hashes.data.as_ulonglongs + i, length, 0)
        return count


cdef class Active:
    """ActiveBlocks."""

    cdef ActiveBlocks blocks

    def __cinit__(self):
        self.blocks = ActiveBlocks()

    @property
    def pairs(self):
        return self.blocks.pairs

    @property
    def mixed(self):
        return self.blocks.index.mixed

    def reserve(self, slot_t ranks):
        self.blocks.reserve(ranks)

    def name_rank(self, slot_t rank, uint64_t tag):
        self.blocks.name_rank(rank, tag)

    def find(self, uint64_t hash, slot_t rank):
        """Row of the pair, or None."""
        cdef int32_t row = self.blocks.find(hash, rank)
        return None if row == NO_SLOT else row

    def row(self, int32_t row):
        """(hash, rank, count, weight, owner) of a row."""
        cdef pair_t* pair = &self.blocks.rows[row]
        return pair.hash, pair.rank, pair.count, pair.weight, None if pair.owner == NO_SLOT else pair.owner

    def write(self, int32_t row, int32_t weight, slot_t owner, int32_t at):
        """What the ledger writes."""
        self.blocks.rows[row].weight = weight
        self.blocks.rows[row].owner = owner
        self.blocks.rows[row].at = at

    def acquire(self, uint64_t hash, slot_t rank):
        cdef int32_t row = self.blocks.acquire(hash, rank)
        if row == NO_SLOT:
            raise MemoryError
        return row

    def release(self, int32_t row):
        return bool(self.blocks.release(row))

    def match(self, path, uint64_t serial=0):
        """Rank -> leading blocks of the path that are live on it, where that is not 0."""
        cdef array.array hashes = hashes_of(path)
        return depths_of(self.blocks.index, self.blocks.index.match(
            <const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), serial))

    def memory(self):
        """Bytes by what for, those of the index included."""
        return memory_of(self.blocks.index) | {
            "rows": self.blocks._capacity * sizeof(pair_t), "pairs": (self.blocks._mask + 1) * 8}

    def acquires(self, path, slot_t rank):
        cdef array.array hashes = hashes_of(path)
        cdef int64_t i
        for i in range(len(hashes)):
            self.acquire(hashes.data.as_ulonglongs[i], rank)

    def releases(self, path, slot_t rank):
        cdef array.array hashes = hashes_of(path)
        cdef int64_t i
        for i in range(len(hashes)):
            self.blocks.release(self.blocks.find(hashes.data.as_ulonglongs[i], rank))
