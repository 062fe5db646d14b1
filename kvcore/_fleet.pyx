"""Fleet: workers, the load on their ranks and the blocks in their caches, kept in step with each other (DESIGN D14).

Owns the coming and going of ranks in every table that is indexed by rank, and the bounded set of ranks whose load
has fallen since waiting heads were last judged (DESIGN D15).

Never here: requests, queues, decisions. Whoever removes ranks ends their bookings first (`leaving`, `bookings_on`).

Invariants: a rank is present in the worker table iff it is in the ledger; a rank that is not present holds no
cached block and no booking; a fall of load is in `changed`, or recheck_all is set.
"""
from kvcore._types cimport NO_SLOT, mix64
from kvcore._workers cimport BATCHED_TOKENS_DEFAULT, worker_t


cdef class Fleet:
    def __cinit__(self, list thresholds not None, bint indexed):
        """thresholds: distinct pairs of busy thresholds, see Ledger. indexed: keep what engines say of their caches."""
        self.indexed = indexed
        self.workers = WorkerTable()
        self.ledger = Ledger(thresholds)
        self.cached = PrefixIndex()

    cdef bint store_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, tuple hashes) except -1:
        """An engine has cached these blocks. False: it speaks of a rank that is not the current one."""
        cdef slot_t rank = self._told_rank(worker_id, dp_rank, incarnation)
        if rank != NO_SLOT and self.indexed:
            for block_hash in hashes:
                self.cached.add(block_hash, rank)
        return rank != NO_SLOT or not self.indexed

    cdef bint remove_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, tuple hashes) except -1:
        """An engine has dropped these blocks. False: it speaks of a rank that is not the current one."""
        cdef slot_t rank = self._told_rank(worker_id, dp_rank, incarnation)
        if rank != NO_SLOT and self.indexed:
            for block_hash in hashes:
                self.cached.release(block_hash, rank)
        return rank != NO_SLOT or not self.indexed

    cdef bint clear_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation) except -1:
        """An engine has dropped all its blocks. False: it speaks of a rank that is not the current one."""
        cdef slot_t rank = self._told_rank(worker_id, dp_rank, incarnation)
        if rank != NO_SLOT:
            self.cached.purge(rank)
        return rank != NO_SLOT or not self.indexed

    cdef slot_t _told_rank(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation) except -2:
        """The present rank that an engine fact speaks of, or NO_SLOT if it is not of this incarnation."""
        cdef slot_t rank = self.workers.find_rank(worker_id, dp_rank)
        if rank != NO_SLOT and self.workers.workers[self.workers.ranks[rank].worker].incarnation != incarnation:
            return NO_SLOT
        return rank

    cdef bint is_stale(self, WorkerConfig config, int64_t incarnation):
        """Whether an upsert speaks of an incarnation that has been succeeded."""
        cdef slot_t worker = self.workers.find(config.worker_id)
        return worker != NO_SLOT and incarnation < self.workers.workers[worker].incarnation

    cdef list leaving(self, WorkerConfig config, int64_t incarnation):
        """Ranks that an upsert will remove: all of an older incarnation, else those outside the new range."""
        cdef slot_t worker = self.workers.find(config.worker_id)
        cdef worker_t* row
        cdef uint32_t i
        if worker == NO_SLOT:
            return []
        row = &self.workers.workers[worker]
        if incarnation > row.incarnation:
            return self.all_ranks(worker)
        return [row.ranks[i] for i in range(row.dp_size)
                if row.dp_start + i < config.dp_start or row.dp_start + i - config.dp_start >= config.dp_size]

    cdef list all_ranks(self, slot_t worker):
        cdef uint32_t i
        return [self.workers.workers[worker].ranks[i] for i in range(self.workers.workers[worker].dp_size)]

    cdef list bookings_on(self, list ranks):
        """Request slots booked on these ranks, in no particular order."""
        cdef slot_t rank, slot
        slots = []
        for rank in ranks:
            slot = self.ledger.loads[rank].first
            while slot != NO_SLOT:
                slots.append(slot)
                slot = self.ledger.bookings[slot].next
        return slots

    cdef int upsert(self, WorkerConfig config, int64_t incarnation) except -1:
        """Add a worker, or give it this configuration; leaving ranks have been dropped. O(ranks of the worker)."""
        cdef slot_t worker = self.workers.find(config.worker_id)
        cdef worker_t* row
        cdef uint32_t first, size, i
        cdef int64_t cap = BATCHED_TOKENS_DEFAULT if config.max_batched_tokens is None else config.max_batched_tokens
        if worker != NO_SLOT and incarnation > self.workers.workers[worker].incarnation:
            self.workers.remove_worker(worker)
            worker = NO_SLOT
        if worker == NO_SLOT:
            worker = self.workers.add_worker(config, incarnation)
        first = self.workers.workers[worker].dp_start
        size = self.workers.workers[worker].dp_size
        for i in range(config.dp_size):
            if config.dp_start + i < first or config.dp_start + i - first >= size:
                self._reserve_ranks(self.workers.ranks_size + 1)
                self._open_rank(self.workers.add_rank(worker, config.dp_start + i))
        self.workers.set_range(worker, config.dp_start, config.dp_size)
        row = &self.workers.workers[worker]
        row.max_batched_tokens = cap
        self.workers.set_taints(worker, config.taints)
        for i in range(row.dp_size):
            self.ledger.configure_rank(row.ranks[i], cap, row.taints)
        self.recheck_all = True
        return 0

    cdef int remove(self, uint64_t worker_id) except -1:
        """Forget a worker whose ranks have been dropped."""
        self.recheck_all = True
        return self.workers.remove_worker(self.workers.find(worker_id))

    cdef int drop_ranks(self, list ranks) except -1:
        """Forget ranks without bookings: their cached blocks, their place among the free, their identity."""
        cdef slot_t rank
        for rank in ranks:
            self.cached.purge(rank)
            self.ledger.remove_rank(rank)
            self.workers.remove_rank(rank)
        self.recheck_all = True
        return 0

    cdef void complete_prefill(self, slot_t slot) noexcept:
        """Release the prefill tokens of a booking, once."""
        if self.ledger.complete_prefill(slot):
            self._note(self.ledger.bookings[slot].rank)

    cdef void release(self, slot_t slot, const uint64_t* path, int32_t length) noexcept:
        """Give back all that a booking holds."""
        cdef slot_t rank = self.ledger.bookings[slot].rank
        if self.ledger.release(slot, path, length):
            self._note(rank)

    cdef void forget_changes(self) noexcept:
        self.changes = 0
        self.recheck_all = False

    cdef void _note(self, slot_t rank) noexcept:
        if self.changes == CHANGES_MAX:
            self.recheck_all = True
        else:
            self.changed[self.changes] = rank
            self.changes += 1

    cdef int _reserve_ranks(self, slot_t ranks) except -1:
        """Room in every table that is indexed by rank, before the rank exists in any."""
        self.cached.reserve(ranks)
        return self.ledger.reserve_ranks(ranks)

    cdef void _open_rank(self, slot_t rank) noexcept:
        cdef uint64_t tag = mix64(mix64(self.workers.ranks[rank].worker_id) + self.workers.ranks[rank].dp_rank)
        self.cached.name_rank(rank, tag)
        self.ledger.name_rank(rank, tag)
