"""MarkTable: what each source says of each worker, and what that adds up to (DESIGN D14).

Owns marks, one per (worker, source) that says anything but "available and not overloaded", and the heap of leases that
will end. A source speaks for itself only: its new word replaces its old one, lease and all, and no other source's. A
lease ends by time alone, so a source that falls silent marks nobody for ever.

State of a worker: GONE if a mark without lease says unavailable; else LEASED if one with a lease does; else OVERLOADED
if any mark says so; else OPEN. A lease that no time reaches is a lease all the same.

Never here: events, incarnations (whoever calls knows them), load, requests, what a state means for a choice.

Invariants: the counts of a worker are those of its marks; a mark's lease is in the heap iff it ends before NS_END; a
dict of sources exists iff it is not empty. Every failure to allocate comes before the first change.

Cost: state and first_end_ns O(1); set and end_first O(log leases); forget_worker that per mark. Memory: 40 bytes a
mark, 40 a lease, a dict entry; 12 bytes a worker. Rows are used again, dicts are given back.
"""
from libc.stdlib cimport free
from kvcore._heap cimport heap_free, heap_holds, heap_init, heap_push, heap_remove, heap_reserve, key_t
from kvcore._types cimport DEBUG_CHECKS, NEVER_NS, NO_SLOT, NS_END, resize


cdef class MarkTable:
    def __cinit__(self):
        heap_init(&self._leases)
        self._rows_free = NO_SLOT
        self._sources = []
        self._by_worker = []

    def __dealloc__(self):
        heap_free(&self._leases)
        free(self._rows)
        free(self._pos)
        free(self._counts)

    cdef int set(self, slot_t worker, str source, bint available, bint overloaded, ns_t end_ns) except -1:
        """This source's word on the worker, in place of its earlier one. MemoryError: as if nothing had been said."""
        cdef int32_t row
        cdef dict told
        cdef mark_t* mark
        cdef key_t key
        cdef bint is_new
        if available and not overloaded:
            told = self._by_worker[worker] if worker < self._workers else None
            if told is not None and source in told:
                self._drop(told[source])
            return 0
        self._reserve_worker(worker)
        heap_reserve(&self._leases, self._leases.size + 1)
        told = self._by_worker[worker]
        is_new = told is None or source not in told
        if is_new:
            self._reserve_row()
            row = self._rows_free
            if told is None:
                self._by_worker[worker] = {source: row}
            else:
                told[source] = row
            self._rows_free = self._rows[row].next_free
            self._sources[row] = source
            self.marks += 1
        else:
            row = told[source]
        mark = &self._rows[row]
        if not is_new:
            self._count(mark, -1)
            if mark.end_ns < NS_END:
                heap_remove(&self._leases, row, self._pos)
        mark.worker = worker
        mark.available = available
        mark.overloaded = overloaded
        mark.end_ns = end_ns if end_ns < NS_END or end_ns == NEVER_NS else NS_END
        self._count(mark, 1)
        if mark.end_ns < NS_END:
            key.tier = 0
            key.first = <uint64_t>mark.end_ns
            key.second = 0
            key.seq = self._told
            self._told += 1
            heap_push(&self._leases, &key, row, self._pos)
        if DEBUG_CHECKS:
            assert heap_holds(&self._leases, self._pos)
        return 0

    cdef int forget_worker(self, slot_t worker) except -1:
        """Nobody has said anything of this worker: it has left, or a new one has its place."""
        if worker < self._workers and self._by_worker[worker] is not None:
            for row in list((<dict>self._by_worker[worker]).values()):
                self._drop(row)
        return 0

    cdef int state(self, slot_t worker) noexcept nogil:
        """Of every rank of the worker, in the numbers of rank_state_t; a test holds the two together."""
        cdef const counts_t* counts
        if worker >= self._workers:
            return 0               # RANK_OPEN
        counts = &self._counts[worker]
        if counts.gone:
            return 3               # RANK_GONE
        if counts.leased:
            return 2               # RANK_LEASED
        return counts.overloaded > 0  # RANK_OVERLOADED, RANK_OPEN

    cdef ns_t first_end_ns(self) noexcept nogil:
        """When the next lease ends; it is to be ended then (`end_first`) by whoever keeps the time."""
        return <ns_t>self._leases.nodes[0].key.first if self._leases.size else NEVER_NS

    cdef slot_t end_first(self) except -1:
        """Take away the mark whose lease ends first, of equal ones the one told first. Returns its worker."""
        cdef int32_t row = self._leases.nodes[0].item
        cdef slot_t worker = self._rows[row].worker
        self._drop(row)
        return worker

    cdef list marks_of(self, slot_t worker):
        """Every mark of the worker, sorted by source: (source, available, overloaded, end_ns)."""
        if worker >= self._workers or self._by_worker[worker] is None:
            return []
        return [
            (source, bool(self._rows[<int32_t>row].available), bool(self._rows[<int32_t>row].overloaded),
             self._rows[<int32_t>row].end_ns)
            for source, row in sorted((<dict>self._by_worker[worker]).items())]

    cdef int _reserve_worker(self, slot_t worker) except -1:
        """The worker has a place."""
        cdef slot_t capacity = max(worker + 1, 2 * self._workers)
        cdef slot_t i
        if worker < self._workers:
            return 0
        self._by_worker.extend([None] * (capacity - len(self._by_worker)))
        resize(<void**>&self._counts, capacity * sizeof(counts_t))
        for i in range(self._workers, capacity):
            self._counts[i].gone = 0
            self._counts[i].leased = 0
            self._counts[i].overloaded = 0
        self._workers = capacity
        return 0

    cdef int _reserve_row(self) except -1:
        """At least one row is free."""
        cdef int32_t capacity = self._rows_capacity * 2 if self._rows_capacity else 8
        if self._rows_free != NO_SLOT:
            return 0
        if self._rows_size == self._rows_capacity:
            resize(<void**>&self._rows, capacity * sizeof(mark_t))
            resize(<void**>&self._pos, capacity * sizeof(int32_t))
            self._rows_capacity = capacity
        self._sources.append(None)
        self._rows[self._rows_size].worker = NO_SLOT
        self._rows[self._rows_size].next_free = NO_SLOT
        self._rows_free = self._rows_size
        self._rows_size += 1
        return 0

    cdef int _drop(self, int32_t row) except -1:
        """Take a mark away."""
        cdef mark_t* mark = &self._rows[row]
        cdef dict told = self._by_worker[mark.worker]
        del told[self._sources[row]]
        if not told:
            self._by_worker[mark.worker] = None
        self._sources[row] = None
        self._count(mark, -1)
        if mark.end_ns < NS_END:
            heap_remove(&self._leases, row, self._pos)
        mark.worker = NO_SLOT
        mark.next_free = self._rows_free
        self._rows_free = row
        self.marks -= 1
        if DEBUG_CHECKS:
            assert heap_holds(&self._leases, self._pos)
        return 0

    cdef void _count(self, const mark_t* mark, int32_t by) noexcept nogil:
        """Into the counts of its worker, or out of them (-1)."""
        cdef counts_t* counts = &self._counts[mark.worker]
        if not mark.available:
            if mark.end_ns == NEVER_NS:
                counts.gone += by
            else:
                counts.leased += by
        if mark.overloaded:
            counts.overloaded += by
