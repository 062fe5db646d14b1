"""Fleet: workers, what is said of them, the load on their ranks and the blocks in their caches, kept in step (D14).

Owns the coming and going of ranks in every table that is indexed by rank, and the bounded set of ranks whose load
has fallen since waiting heads were last judged (DESIGN D15). Own bookings end through it, so that replicas are told.
What time alone changes about ranks, `advance` applies: ends of leases and of reports, decay, expiry of predictions.

Never here: requests, queues, decisions. Whoever removes ranks ends their bookings first (`leaving`, `bookings_on`).

Invariants: a rank is present in the worker table iff it is in the ledger; a rank that is not present holds no
cached block and no booking; a fall of load is in `changed`, or recheck_all is set; the ledger's state of a rank is
that of its worker's marks.
"""
from cpython.ref cimport PyObject
from libc.stdlib cimport free
from kvcore._heap cimport heap_free, heap_init, heap_push, heap_remove, heap_reserve, key_t
from kvcore._load cimport INT64_TOP, RANK_GONE, rank_state_t
from kvcore._types cimport NEVER_NS, NO_SLOT, NS_END, mix64, read_uint64, resize
from kvcore._workers cimport BATCHED_TOKENS_DEFAULT, worker_t
from kvcore.request cimport Rank

from kvcore.config import PREDICT_TTL_NS_DEFAULT, IndexMode, PrefillDecay
from kvcore.policy import Capacity

cdef extern from "Python.h":
    Py_ssize_t PyTuple_GET_SIZE(object items) noexcept
    PyObject* PyTuple_GET_ITEM(object items, Py_ssize_t i) noexcept

cdef enum:
    TOLD_MAX = 64              # blocks of an event that an index is told of at a time


cdef class Fleet:
    def __cinit__(self, config not None, list thresholds not None, RequestTable requests not None):
        """config: SchedulerConfig. thresholds: distinct pairs of busy thresholds, see Ledger."""
        self.indexed = config.index is IndexMode.EVENTS
        self.bounded = config.index is IndexMode.APPROXIMATE
        self.strict = config.effective_profile().capacity is Capacity.STRICT
        self.workers = WorkerTable()
        self.marks = MarkTable()
        self.ledger = Ledger(thresholds, config.prefill_decay is PrefillDecay.LINEAR)
        self.exchange = Exchange(config, requests, self.workers, self.ledger)
        self.device = PrefixIndex()
        self.host = PrefixIndex()
        self.disk = PrefixIndex()
        ttl_ns = PREDICT_TTL_NS_DEFAULT if self.bounded and config.predict_ttl_ns is None else config.predict_ttl_ns
        if ttl_ns is not None and config.index is not IndexMode.OFF:
            self.predicted = PredictedBlocks(ttl_ns)
        self._report_ttl_ns = NEVER_NS if config.reported_load_ttl_ns is None else config.reported_load_ttl_ns
        heap_init(&self._report_ends)
        self._pin_grace_ns = config.pin_grace_ns
        self._empty_wait_ns = config.empty_fleet_wait_ns
        self.graced = config.pin_grace_ns > 0 or config.empty_fleet_wait_ns > 0
        self.turned = []

    def __dealloc__(self):
        heap_free(&self._report_ends)
        free(self._report_pos)

    cdef int adopt(self, list thresholds, bint strict) except -1:
        """Other busy thresholds and another meaning of capacity from now on (DESIGN D16)."""
        self.strict = strict
        self.recheck_all = True
        return self.ledger.replace_thresholds(thresholds, self.workers.order, self.workers.present)

    # What is lost and may come back.

    cdef slot_t expect_rank(self, uint64_t worker_id, uint32_t dp_rank) except -1:
        """Slot of a rank, present or not, that somebody is about to wait for; the caller pins it."""
        self._reserve_ranks(self.workers.ranks_size + 1)
        return self.workers.find_or_expect_rank(worker_id, dp_rank)

    cdef ns_t grace_end_ns(self, Rank pinned, ns_t arrival_ns) except -1:
        """Until when a request waits for what the fleet has lost (DESIGN D14).

        NEVER_NS: it has lost nothing that this request waits for. NS_END: for ever.
        """
        cdef ns_t end_ns = -1
        cdef ns_t lost_ns = 0
        cdef slot_t rank
        if not self.graced:
            return NEVER_NS
        if self.workers.present == 0 and self._empty_wait_ns:
            end_ns = max(arrival_ns, self.empty_ns) + self._empty_wait_ns
        if pinned is not None and self._pin_grace_ns:
            rank = self.workers.find_any_rank(pinned.worker_id, pinned.dp_rank)
            if rank != NO_SLOT:
                lost_ns = self.workers.ranks[rank].lost_ns
            if lost_ns != NEVER_NS:
                end_ns = max(end_ns, max(arrival_ns, lost_ns) + self._pin_grace_ns)
        return NEVER_NS if end_ns < 0 else min(end_ns, NS_END)

    cdef int _lose(self, slot_t rank) except -1:
        """A rank cannot be used from now on, nor could perhaps before."""
        if self.workers.ranks[rank].lost_ns == NEVER_NS:
            self.workers.ranks[rank].lost_ns = self.ledger.now_ns
            if self.graced:
                self.turned.append(rank)
        return 0

    cdef int _find(self, slot_t rank) except -1:
        """A rank can be used."""
        if self.workers.ranks[rank].lost_ns != NEVER_NS:
            self.workers.ranks[rank].lost_ns = NEVER_NS
            if self.graced:
                self.turned.append(rank)
        return 0

    # What engines and others say.

    cdef bint store_blocks(
            self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int tier, tuple hashes) except -1:
        """An engine has cached these blocks. False: it speaks of a rank that is not the current one."""
        cdef slot_t rank
        if not self.indexed:
            return True
        rank = self.workers.told_rank(worker_id, dp_rank, incarnation)
        if rank == NO_SLOT:
            return False
        self._tell(self.tier(tier), hashes, rank, True)
        return True

    cdef bint remove_blocks(
            self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int tier, tuple hashes) except -1:
        """An engine has dropped these blocks. False: it speaks of a rank that is not the current one."""
        cdef slot_t rank
        if not self.indexed:
            return True
        rank = self.workers.told_rank(worker_id, dp_rank, incarnation)
        if rank == NO_SLOT:
            return False
        self._tell(self.tier(tier), hashes, rank, False)
        return True

    cdef int _tell(self, PrefixIndex index, tuple hashes, slot_t rank, bint stored) except -1:
        """What a rank has stored or dropped, some blocks at a time: so the index can look for them all at once."""
        cdef uint64_t some[TOLD_MAX]
        cdef Py_ssize_t size = PyTuple_GET_SIZE(hashes)
        cdef Py_ssize_t first, i
        cdef int32_t count
        for first in range(0, size, TOLD_MAX):
            count = <int32_t>min(<Py_ssize_t>TOLD_MAX, size - first)
            for i in range(count):
                read_uint64(PyTuple_GET_ITEM(hashes, first + i), &some[i])
            if stored:
                index.add_all(some, count, rank)
            else:
                index.remove_all(some, count, rank)
        return 0

    cdef bint clear_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int tier) except -1:
        """An engine has dropped all its blocks of a tier (-1: of all). False: not the current rank."""
        cdef slot_t rank
        cdef int i
        if not self.indexed:
            return True
        rank = self.workers.told_rank(worker_id, dp_rank, incarnation)
        if rank == NO_SLOT:
            return False
        for i in range(TIERS):
            if tier == i or tier == -1:
                self.tier(i).purge(rank)
        return True

    cdef PrefixIndex tier(self, int tier):
        return self.device if tier == 0 else self.host if tier == 1 else self.disk

    cdef bint set_mark(
            self, uint64_t worker_id, int64_t incarnation, str source, bint available, bint overloaded,
            ns_t end_ns) except -1:
        """What a source says of a worker from now on. False: it speaks of a worker that is not the current one."""
        cdef slot_t worker = self.workers.find(worker_id)
        if worker == NO_SLOT or self.workers.workers[worker].incarnation != incarnation:
            return False
        self.marks.set(worker, source, available, overloaded, end_ns)
        self._restate(worker)
        return True

    cdef int _restate(self, slot_t worker) except -1:
        """Carry what is said of a worker over to its ranks."""
        cdef worker_t* row = &self.workers.workers[worker]
        cdef uint32_t i
        cdef rank_state_t state = <rank_state_t>self.marks.state(worker)
        for i in range(row.dp_size):
            self.ledger.set_state(row.ranks[i], state)
            if state == RANK_GONE:
                self._lose(row.ranks[i])
            else:
                self._find(row.ranks[i])
        self.version += 1
        self.recheck_all = True
        return 0

    cdef bint report(
            self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int64_t sequence, int64_t prefill,
            int64_t blocks, int64_t requests) except -1:
        """What an engine says of its load. False: stale."""
        cdef slot_t rank = self.workers.told_rank(worker_id, dp_rank, incarnation)
        if rank == NO_SLOT:
            return False
        heap_reserve(&self._report_ends, self._report_ends.size + 1)
        if not self.ledger.report(rank, sequence, prefill, blocks, requests, self._report_ttl_ns != NEVER_NS):
            return False
        if self._report_ttl_ns == NEVER_NS:
            return True
        self.start_report(rank, self.ledger.now_ns + self._report_ttl_ns)
        self.note(rank)
        return True

    cdef int start_report(self, slot_t rank, ns_t end_ns) except -1:
        """The report of a rank counts until then; NS_END or later: until there is another."""
        cdef key_t key
        self._end_report(rank)
        if end_ns < NS_END:
            self._reports += 1
            key.tier = 0
            key.first = end_ns
            key.second = 0
            key.seq = self._reports
            heap_push(&self._report_ends, &key, rank, self._report_pos)
        return 0

    cdef void _end_report(self, slot_t rank) noexcept nogil:
        """The end of a rank's report need not be waited for any more."""
        if self._report_pos[rank] != NO_SLOT:
            heap_remove(&self._report_ends, rank, self._report_pos)
            self._report_pos[rank] = NO_SLOT

    # Time.

    cdef int advance(self, ns_t now_ns) except -1 nogil:
        """Apply what time has changed about ranks up to now_ns, which is the time of everything that follows."""
        cdef slot_t rank
        if self.marks.first_end_ns() <= now_ns:
            with gil:
                self._end_marks(now_ns)
        while self._report_ends.size and <ns_t>self._report_ends.nodes[0].key.first <= now_ns:
            rank = self._report_ends.nodes[0].item
            self._end_report(rank)
            self.ledger.forget_report(rank)
            self.note(rank)
        if self.predicted is not None:
            self.predicted.expire(now_ns)
        self.ledger.advance(now_ns)
        while self.ledger.crossed_count:
            self.ledger.crossed_count -= 1
            self.note(self.ledger.crossed[self.ledger.crossed_count])
        return 0

    cdef int _end_marks(self, ns_t now_ns) except -1:
        while self.marks.first_end_ns() <= now_ns:
            self._restate(self.marks.end_first())
        return 0

    cdef ns_t next_due_ns(self, bint awaited) noexcept nogil:
        """When `advance` next has something to do that may let a request run; awaited: something waits."""
        cdef ns_t due_ns = self.marks.first_end_ns()
        if self._report_ends.size:
            due_ns = min(due_ns, <ns_t>self._report_ends.nodes[0].key.first)
        return min(due_ns, self.ledger.next_crossing_ns()) if awaited else due_ns

    cdef ns_t report_end_ns(self, slot_t rank) noexcept:
        """Until when the report of a rank counts, NEVER_NS: nothing to wait for."""
        cdef int32_t at = self._report_pos[rank]
        return NEVER_NS if at == NO_SLOT else <ns_t>self._report_ends.nodes[at].key.first

    cdef bint knows_blocks(self) noexcept nogil:
        """Whether cached prefixes can be known without being told on the request."""
        return self.indexed or self.predicted is not None

    # Workers.

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
        """Slots of own requests booked on these ranks, in no particular order."""
        cdef slot_t rank, slot
        slots = []
        for rank in ranks:
            slot = self.ledger.loads[rank].first
            while slot != NO_SLOT:
                if not self.exchange.owns(slot):
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
            self.marks.forget_worker(worker)
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
        self.workers.set_taints(worker, config.taints)
        for i in range(row.dp_size):
            self.ledger.configure_rank(
                row.ranks[i], cap, _bound(config.total_kv_blocks), _bound(config.max_requests),
                0 if config.prefill_tokens_per_s is None else config.prefill_tokens_per_s, row.taints)
        if self.empty_ns != NEVER_NS:
            self.empty_ns = NEVER_NS
            self.emptied = True
        return self._restate(worker)

    cdef int remove(self, uint64_t worker_id) except -1:
        """Forget a worker whose ranks have been dropped."""
        cdef slot_t worker = self.workers.find(worker_id)
        self.recheck_all = True
        self.version += 1
        self.marks.forget_worker(worker)
        return self.workers.remove_worker(worker)

    cdef int drop_ranks(self, list ranks) except -1:
        """Forget ranks without own bookings: what peers run there, cached blocks, place among the free, identity."""
        cdef slot_t rank
        for rank in ranks:
            self.device.purge(rank)
            self.host.purge(rank)
            self.disk.purge(rank)
            if self.predicted is not None:
                self.predicted.purge(rank)
            self._end_report(rank)
            self.exchange.drop_rank(rank)
            self.ledger.remove_rank(rank)
            self._lose(rank)
            self.workers.remove_rank(rank)
        if self.workers.present == 0 and self.empty_ns == NEVER_NS:
            self.empty_ns = self.ledger.now_ns
            self.emptied = True
        self.recheck_all = True
        self.version += 1
        return 0

    # Load.

    cdef int touch(self, slot_t slot, const uint64_t* path, int32_t length) except -1 nogil:
        """The rank that a request is booked on has its prompt in its cache now, as far as one can tell."""
        cdef slot_t rank = self.ledger.bookings[slot].rank
        cdef int64_t room = -1
        if self.predicted is None:
            return 0
        if self.bounded and self.ledger.loads[rank].max_blocks != INT64_TOP:
            room = self.ledger.loads[rank].max_blocks
        return self.predicted.touch(path, length, rank, self.ledger.now_ns, room)

    cdef int complete_prefill(self, slot_t slot) except -1 nogil:
        """Release the prefill tokens of an own booking, once."""
        if self.exchange.speaks and self.ledger.bookings[slot].prefilling:
            with gil:
                self.exchange.prefill_completed(slot)
        if self.ledger.complete_prefill(slot):
            self.note(self.ledger.bookings[slot].rank)
        return 0

    cdef int release(self, slot_t slot, bint completed) except -1 nogil:
        """Give back all that an own booking holds."""
        cdef slot_t rank = self.ledger.bookings[slot].rank
        if self.exchange.speaks:
            with gil:
                self.exchange.released(slot, completed)
        if self.ledger.release(slot, completed) or self.strict:
            self.note(rank)
        return 0

    cdef int64_t heard(self, object event) except -1:
        """Another replica has told something. Returns how many of its facts are stale."""
        cdef int64_t stale = self.exchange.apply(event)
        cdef slot_t rank
        for rank in self.exchange.relieved:
            self.note(rank)
        return stale

    cdef int hint(self, tuple ranks) except -1:
        """Somebody has seen room on these ranks; None: anywhere. An unknown rank may be any (DESIGN D15)."""
        cdef slot_t rank
        self.recheck_all = self.recheck_all or ranks is None
        for name in ranks or ():
            rank = self.workers.find_rank((<Rank>name).worker_id, (<Rank>name).dp_rank)
            if rank == NO_SLOT:
                self.recheck_all = True
            else:
                self.note(rank)
        return 0

    cdef void forget_changes(self) noexcept nogil:
        self.changes = 0
        self.recheck_all = False

    cdef void note(self, slot_t rank) noexcept nogil:
        """Heads that may use this rank are to be judged again."""
        if self.changes == CHANGES_MAX:
            self.recheck_all = True
        else:
            self.changed[self.changes] = rank
            self.changes += 1

    cdef int _reserve_ranks(self, slot_t ranks) except -1:
        """Room in every table that is indexed by rank, before the rank exists in any."""
        cdef slot_t capacity = max(ranks, 2 * self._ranks, 16)
        cdef slot_t rank
        self.device.reserve(ranks)
        self.host.reserve(ranks)
        self.disk.reserve(ranks)
        if self.predicted is not None:
            self.predicted.reserve(ranks)
        if ranks > self._ranks:
            resize(<void**>&self._report_pos, capacity * sizeof(int32_t))
            for rank in range(self._ranks, capacity):
                self._report_pos[rank] = NO_SLOT
            self._ranks = capacity
        return self.ledger.reserve_ranks(ranks)

    cdef void _open_rank(self, slot_t rank) noexcept:
        cdef uint64_t tag = mix64(mix64(self.workers.ranks[rank].worker_id) + self.workers.ranks[rank].dp_rank)
        self.device.name_rank(rank, tag)
        self.host.name_rank(rank, tag)
        self.disk.name_rank(rank, tag)
        if self.predicted is not None:
            self.predicted.name_rank(rank, tag)
        self.ledger.name_rank(rank, tag)


cdef int64_t _bound(object value) except -1:
    """A cap of a worker; None: there is none."""
    return INT64_TOP if value is None else value
