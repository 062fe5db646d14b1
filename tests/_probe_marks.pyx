"""Doors for tests to compiled internals: marks of workers, predicted blocks. Never shipped.

A door converts and does nothing else: NO_SLOT and NEVER_NS become None, C rows become tuples, sequences become arrays.
"""
from cpython cimport array
from kvcore._heap cimport heap_holds
from kvcore._load cimport RANK_GONE, RANK_LEASED, RANK_OPEN, RANK_OVERLOADED
from kvcore._marks cimport MarkTable
from kvcore._predicted cimport PredictedBlocks
from kvcore._types cimport NEVER_NS, NO_SLOT, int32_t, int64_t, ns_t, slot_t, uint64_t

import array

STATES = (RANK_OPEN, RANK_OVERLOADED, RANK_LEASED, RANK_GONE)


cdef class Marks:
    """MarkTable."""

    cdef MarkTable table

    def __cinit__(self):
        self.table = MarkTable()

    def set(self, slot_t worker, str source, bint available, bint overloaded, end_ns=None):
        self.table.set(worker, source, available, overloaded, NEVER_NS if end_ns is None else end_ns)

    def forget_worker(self, slot_t worker):
        self.table.forget_worker(worker)

    def state(self, slot_t worker):
        return self.table.state(worker)

    def first_end_ns(self):
        cdef ns_t end_ns = self.table.first_end_ns()
        return None if end_ns == NEVER_NS else end_ns

    def end_first(self):
        return self.table.end_first()

    def marks_of(self, slot_t worker):
        return [(source, available, overloaded, None if end_ns == NEVER_NS else end_ns)
                for source, available, overloaded, end_ns in self.table.marks_of(worker)]

    @property
    def marks(self):
        return self.table.marks

    @property
    def workers(self):
        """Workers that have a row."""
        return self.table._workers

    def counts(self, slot_t worker):
        """(unavailable without lease, unavailable with one, overloaded)."""
        return (self.table._counts[worker].gone, self.table._counts[worker].leased,
                self.table._counts[worker].overloaded)

    def leases(self):
        """How many leases will end; the heap is checked on the way."""
        assert heap_holds(&self.table._leases, self.table._pos)
        return self.table._leases.size

    def footprint(self):
        """(rows ever made, room for rows, room for leases, free rows, sources kept, dicts kept)."""
        cdef int32_t row = self.table._rows_free
        cdef int32_t free = 0
        while row != NO_SLOT:
            free += 1
            row = self.table._rows[row].next_free
        return (self.table._rows_size, self.table._rows_capacity, self.table._leases.capacity, free,
                sum(source is not None for source in self.table._sources),
                sum(told is not None for told in self.table._by_worker))


cdef class Predicted:
    """PredictedBlocks."""

    cdef PredictedBlocks blocks

    def __cinit__(self, ns_t ttl_ns):
        self.blocks = PredictedBlocks(ttl_ns)

    def reserve(self, slot_t ranks):
        self.blocks.reserve(ranks)

    def name_rank(self, slot_t rank, uint64_t tag):
        self.blocks.name_rank(rank, tag)

    def touch(self, path, slot_t rank, ns_t now_ns, int64_t capacity=-1):
        cdef array.array hashes = path if isinstance(path, array.array) else array.array("Q", path)
        self.blocks.touch(
            <const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), rank, now_ns, capacity)

    def expire(self, ns_t now_ns):
        self.blocks.expire(now_ns)

    def purge(self, slot_t rank):
        self.blocks.purge(rank)

    def used_ns(self, uint64_t hash, slot_t rank):
        """Last use of a pair, or None."""
        cdef int32_t row = self.blocks.find(hash, rank)
        return None if row == NO_SLOT else self.blocks.rows[row].used_ns

    def order(self):
        """(hash, rank, used_ns) of all, least recently used first."""
        found = []
        cdef int32_t row = self.blocks._oldest
        while row != NO_SLOT:
            found.append((self.blocks.rows[row].hash, self.blocks.rows[row].rank, self.blocks.rows[row].used_ns))
            row = self.blocks.rows[row].newer
        return found

    def order_back(self):
        """The same walked from the other end, most recently used first."""
        found = []
        cdef int32_t row = self.blocks._newest
        while row != NO_SLOT:
            found.append((self.blocks.rows[row].hash, self.blocks.rows[row].rank, self.blocks.rows[row].used_ns))
            row = self.blocks.rows[row].older
        return found

    def order_of(self, slot_t rank):
        """(hash, rank, used_ns) of one rank, least recently used first."""
        found = []
        cdef int32_t row = self.blocks.uses[rank].oldest
        while row != NO_SLOT:
            found.append((self.blocks.rows[row].hash, self.blocks.rows[row].rank, self.blocks.rows[row].used_ns))
            row = self.blocks.rows[row].rank_newer
        return found

    def order_of_back(self, slot_t rank):
        found = []
        cdef int32_t row = self.blocks.uses[rank].newest
        while row != NO_SLOT:
            found.append((self.blocks.rows[row].hash, self.blocks.rows[row].rank, self.blocks.rows[row].used_ns))
            row = self.blocks.rows[row].rank_older
        return found

    def held(self, slot_t rank):
        return self.blocks.uses[rank].held

    def match(self, path):
        """Rank -> leading blocks of the path that it is predicted to hold, where that is not 0."""
        cdef array.array hashes = array.array("Q", path)
        cdef slot_t count = self.blocks.index.match(
            <const uint64_t*>hashes.data.as_ulonglongs, <int32_t>len(hashes), 0)
        cdef slot_t i
        return {self.blocks.index.matched[i]: self.blocks.index.depth[self.blocks.index.matched[i]]
                for i in range(count)}

    @property
    def pairs(self):
        """Pairs in the index."""
        return self.blocks.index.pairs

    @property
    def mixed(self):
        return self.blocks.mixed

    @property
    def index_mixed(self):
        return self.blocks.index.mixed

    def footprint(self):
        """(rows in use or free, table size, table entries, free rows)."""
        cdef int32_t row = self.blocks._free
        cdef int32_t free = 0
        cdef int64_t at
        while row != NO_SLOT:
            free += 1
            row = self.blocks.rows[row].newer
        entries = sum(self.blocks._table[at] != NO_SLOT for at in range(self.blocks._mask + 1))
        return (self.blocks._size, self.blocks._mask + 1, entries, free)
