"""WorkerTable: which workers exist, and the dense numbering of their ranks.

Owns worker rows (identity, incarnation, dp range, caps), rank rows, and the canonical order (worker_id, dp_rank) in
which every choice that could depend on order is made (DESIGN D8). A rank that is gone keeps its row while waiting
requests are pinned to it, so that a lane never changes its rank.

Never here: load (_ledger), cached blocks (_prefix), who waits (_lanes).

Invariants: `order` holds exactly the ranks that have a worker, sorted; a rank row is live iff it has a worker or a
pin; rank slots are shared with every table that is indexed by rank.
"""
from cpython.ref cimport PyObject
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset
from kvcore._types cimport NO_SLOT, mix64, read_uint64, resize


cdef class WorkerTable:
    def __cinit__(self):
        self._slots = {}
        self._free = []
        self._ghosts = {}
        self._ranks_free = NO_SLOT
        self.taints = TaintTable()

    def __dealloc__(self):
        cdef slot_t worker
        for worker in range(self._workers_size):
            free(self.workers[worker].ranks)
        free(self.workers)
        free(self.ranks)
        free(self.order)
        free(self._names.rows)

    cdef slot_t count(self) noexcept nogil:
        return self._live

    cdef slot_t find(self, object worker_id):
        """Slot of a worker, or NO_SLOT."""
        found = self._slots.get(worker_id)
        return NO_SLOT if found is None else found

    cdef slot_t find_rank(self, object worker_id, uint32_t dp_rank):
        """Slot of a present rank, or NO_SLOT."""
        cdef slot_t worker = self.find(worker_id)
        cdef worker_t* row
        if worker == NO_SLOT:
            return NO_SLOT
        row = &self.workers[worker]
        if dp_rank < row.dp_start or dp_rank - row.dp_start >= row.dp_size:
            return NO_SLOT
        return row.ranks[dp_rank - row.dp_start]

    cdef slot_t told_rank(self, object worker_id, uint32_t dp_rank, int64_t incarnation) except -2:
        """The present rank that a fact speaks of, or NO_SLOT if it is not of this incarnation."""
        cdef slot_t rank = self.find_rank(worker_id, dp_rank)
        if rank != NO_SLOT and self.workers[self.ranks[rank].worker].incarnation != incarnation:
            return NO_SLOT
        return rank

    cdef slot_t add_worker(self, WorkerConfig config, int64_t incarnation) except -1:
        """A worker without ranks; the owner adds them."""
        cdef slot_t worker
        if self._free:
            worker = self._free.pop()
        else:
            if not self._workers_size & (self._workers_size - 1):
                resize(<void**>&self.workers, max(1, 2 * self._workers_size) * sizeof(worker_t))
            worker = self._workers_size
            self._workers_size += 1
        self.workers[worker].worker_id = config.worker_id
        self.workers[worker].incarnation = incarnation
        self.workers[worker].dp_start = config.dp_start
        self.workers[worker].dp_size = 0
        self.workers[worker].ranks = NULL
        self.workers[worker].taints = NO_SLOT
        self._slots[config.worker_id] = worker
        self._live += 1
        return worker

    cdef int remove_worker(self, slot_t worker) except -1:
        """Forget a worker whose ranks have been removed."""
        del self._slots[self.workers[worker].worker_id]
        self._live -= 1
        self.taints.release(self.workers[worker].taints)
        free(self.workers[worker].ranks)
        self.workers[worker].ranks = NULL
        self._free.append(worker)
        return 0

    cdef slot_t add_rank(self, slot_t worker, uint32_t dp_rank) except -1:
        """A present rank of this worker; a row kept by waiting pins is taken up again. O(ranks) at worst."""
        cdef uint64_t worker_id = self.workers[worker].worker_id
        cdef slot_t rank, at
        ghost = self._ghosts.pop((worker_id, dp_rank), None) if self._ghosts else None
        if ghost is not None:
            rank = ghost
        else:
            rank = self._new_rank()
        self.ranks[rank].worker_id = worker_id
        self.ranks[rank].dp_rank = dp_rank
        self.ranks[rank].worker = worker
        at = self._position(worker_id, dp_rank)
        memmove(self.order + at + 1, self.order + at, (self.present - at) * sizeof(slot_t))
        self.order[at] = rank
        self.present += 1
        return rank

    cdef slot_t _new_rank(self) except -1:
        """A row that is neither present nor waited for."""
        cdef slot_t rank = self._ranks_free
        if rank != NO_SLOT:
            self._take_rank(rank)
        else:
            if self.ranks_size == self._ranks_room:
                resize(<void**>&self.ranks, max(1, 2 * self._ranks_room) * sizeof(rank_t))
                resize(<void**>&self.order, max(1, 2 * self._ranks_room) * sizeof(slot_t))
                self._ranks_room = max(1, 2 * self._ranks_room)
            rank = self.ranks_size
            self.ranks_size += 1
        self.ranks[rank].pins = 0
        self.ranks[rank].lost_ns = 0
        return rank

    cdef slot_t find_any_rank(self, object worker_id, uint32_t dp_rank):
        """Slot of a rank that is present or waited for, or NO_SLOT."""
        cdef slot_t rank = self.find_rank(worker_id, dp_rank)
        if rank != NO_SLOT:
            return rank
        found = self._ghosts.get((worker_id, dp_rank))
        return NO_SLOT if found is None else found

    cdef slot_t find_or_expect_rank(self, object worker_id, uint32_t dp_rank) except -1:
        """Slot of a rank, present or not; the caller pins it."""
        cdef slot_t rank = self.find_any_rank(worker_id, dp_rank)
        if rank != NO_SLOT:
            return rank
        rank = self._new_rank()
        self.ranks[rank].worker_id = worker_id
        self.ranks[rank].dp_rank = dp_rank
        self.ranks[rank].worker = NO_SLOT
        self._ghosts[(worker_id, dp_rank)] = rank
        return rank

    cdef int remove_rank(self, slot_t rank) except -1:
        """A rank is gone; its row lives on while requests wait for exactly this rank."""
        cdef rank_t* row = &self.ranks[rank]
        cdef slot_t at = self._position(row.worker_id, row.dp_rank)
        self.present -= 1
        memmove(self.order + at, self.order + at + 1, (self.present - at) * sizeof(slot_t))
        row.worker = NO_SLOT
        if row.pins:
            self._ghosts[(row.worker_id, row.dp_rank)] = rank
        else:
            self._free_rank(rank)
        return 0

    cdef void _free_rank(self, slot_t rank) noexcept:
        """The row may be used again. Free rows at the end are given up, so that what is indexed by rank can shrink."""
        cdef slot_t after = self._ranks_free
        self.ranks[rank].next_free = after
        self.ranks[rank].prev_free = NO_SLOT
        if after != NO_SLOT:
            self.ranks[after].prev_free = rank
        self._ranks_free = rank
        while self.ranks_size:
            rank = self.ranks_size - 1
            if self.ranks[rank].worker != NO_SLOT or self.ranks[rank].pins:
                break
            self._take_rank(rank)
            self.ranks_size -= 1

    cdef void _take_rank(self, slot_t rank) noexcept:
        """Out of the list of free rows."""
        cdef rank_t* row = &self.ranks[rank]
        if row.next_free != NO_SLOT:
            self.ranks[row.next_free].prev_free = row.prev_free
        if row.prev_free == NO_SLOT:
            self._ranks_free = row.next_free
        else:
            self.ranks[row.prev_free].next_free = row.next_free

    cdef int set_range(self, slot_t worker, uint32_t dp_start, uint32_t dp_size) except -1:
        """Note the present range of a worker whose ranks of that range have all been added or kept."""
        cdef worker_t* row = &self.workers[worker]
        cdef slot_t* ranks = <slot_t*>malloc(dp_size * sizeof(slot_t))
        cdef slot_t at = self._position(row.worker_id, dp_start)
        cdef uint32_t i
        if ranks == NULL:
            raise MemoryError("worker ranks")
        for i in range(dp_size):
            ranks[i] = self.order[at + i]
        free(row.ranks)
        row.ranks = ranks
        row.dp_start = dp_start
        row.dp_size = dp_size
        return 0

    cdef void pin(self, slot_t rank) noexcept:
        self.ranks[rank].pins += 1

    cdef int unpin(self, slot_t rank) except -1:
        cdef rank_t* row = &self.ranks[rank]
        row.pins -= 1
        if row.pins == 0 and row.worker == NO_SLOT:
            del self._ghosts[(row.worker_id, row.dp_rank)]
            self._free_rank(rank)
        return 0

    cdef int set_taints(self, slot_t worker, frozenset taints) except -1:
        """Give a worker this taint set in place of the one that it had."""
        cdef slot_t before = self.workers[worker].taints
        self.workers[worker].taints = self.taints.acquire(taints)
        if before != NO_SLOT:
            self.taints.release(before)
        return 0

    cdef slot_t ranks_of(self, frozenset allowed, frozenset required, slot_t* out) except -1:
        """Present ranks of the allowed workers (None: of all) that carry the required taints, in canonical order.

        `out` has room for all present ranks. Returns how many. O(allow-list * log) where that is short, else O(ranks).
        """
        cdef const unsigned char* fits = self.taints.satisfying(required)
        cdef slot_t count = 0
        cdef slot_t worker, i
        cdef uint32_t j
        if allowed is None:
            for i in range(self.present):
                if fits[self.workers[self.ranks[self.order[i]].worker].taints]:
                    out[count] = self.order[i]
                    count += 1
            return count
        if len(allowed) * 8 > self.present:
            return self._ranks_among(allowed, fits, out)
        for worker_id in sorted([worker_id for worker_id in allowed if worker_id in self._slots]):
            worker = self._slots[worker_id]
            for j in range(self.workers[worker].dp_size if fits[self.workers[worker].taints] else 0):
                out[count] = self.workers[worker].ranks[j]
                count += 1
        return count

    cdef slot_t _ranks_among(self, frozenset allowed, const unsigned char* fits, slot_t* out) except -1:
        """ranks_of for a long allow-list: each present rank is looked at."""
        cdef slot_t count = 0
        cdef slot_t i
        cdef names_t names
        cdef const rank_t* row
        cdef bint copied = len(allowed) <= 2 * self.present
        if copied and self._named is not allowed:
            self._name(allowed)
        names = self._names                    # a copy that no write to `out` can change
        for i in range(self.present):
            row = &self.ranks[self.order[i]]
            if fits[self.workers[row.worker].taints]:
                if is_named(&names, row.worker_id) if copied else row.worker_id in allowed:
                    out[count] = self.order[i]
                    count += 1
        return count

    cdef int _name(self, frozenset ids) except -1:
        """Copy worker ids to where C finds them: asking a frozenset takes an int object and a comparison each.

        They are kept until others are asked for, because one arrival asks several times.
        """
        cdef uint64_t size = 16
        cdef uint64_t name = 0
        cdef uint64_t at
        self._named = None
        while size < 4 * <uint64_t>len(ids):
            size *= 2
        resize(<void**>&self._names.rows, size * sizeof(uint64_t))
        memset(self._names.rows, 0, size * sizeof(uint64_t))
        self._names.mask = size - 1
        self._names.zero = False
        for worker_id in ids:
            if type(worker_id) is int and read_uint64(<PyObject*>worker_id, &name):
                self._names.zero = self._names.zero or name == 0
                at = mix64(name) & self._names.mask
                while self._names.rows[at]:
                    at = (at + 1) & self._names.mask
                self._names.rows[at] = name
        self._named = ids
        return 0

    cdef slot_t _position(self, uint64_t worker_id, uint32_t dp_rank) noexcept nogil:
        """First place in `order` whose rank is not before (worker_id, dp_rank). O(log ranks)."""
        cdef slot_t low = 0
        cdef slot_t high = self.present
        cdef slot_t middle
        cdef rank_t* row
        if high:
            row = &self.ranks[self.order[high - 1]]
            if row.worker_id < worker_id or (row.worker_id == worker_id and row.dp_rank < dp_rank):
                return high
        while low < high:
            middle = (low + high) // 2
            row = &self.ranks[self.order[middle]]
            if row.worker_id < worker_id or (row.worker_id == worker_id and row.dp_rank < dp_rank):
                low = middle + 1
            else:
                high = middle
        return low


cdef inline bint is_named(const names_t* names, uint64_t name) noexcept nogil:
    cdef uint64_t at = mix64(name) & names.mask
    if name == 0:
        return names.zero
    while names.rows[at] and names.rows[at] != name:
        at = (at + 1) & names.mask
    return names.rows[at] == name
