"""SnapshotReader: from the bytes of a snapshot to the state of a scheduler that has just been made (DESIGN 6).

Owns nothing that lasts. Whatever the bytes are, nothing is done that the parts do not bear: each number is checked
against what it counts, indexes or bounds, each value as if it came in an event, each time against the present. What is
wrong is a ValueError or its like, and the scheduler is to be thrown away.

The checks keep the parts safe; they do not make sure that such a state can come about. That is proven at the end by
the scheduler itself: its totals are right, and its own snapshot is what has been read, digest and all.

Cost: O(state), times the logarithm for what is kept in order.
"""
from libc.stdlib cimport free, qsort
from kvcore._accept cimport accept
from kvcore._drr cimport WINDOW, visit_t
from kvcore._frame cimport DIGEST_BYTES
from kvcore._load cimport RANK_GONE
from kvcore._restore_requests cimport RequestReader
from kvcore._types cimport NEVER_NS, NO_SLOT, NS_END, resize, uint32_t
from kvcore._wire cimport (
    left, take_count, take_flag, take_i32, take_i64, take_i128, take_number, take_text, take_u64)
from kvcore.request cimport WorkerConfig

from kvcore._journal_values import CONFIG, PROFILE, WORKER
from kvcore.actions import RejectReason
from kvcore.errors import AdmissionError
from kvcore.events import WorkerUpserted

cdef int64_t COUNT_MAX = <int64_t>1 << 62          # of a counter
cdef int64_t TOKENS_MAX = <int64_t>1 << 53

cdef tuple DAMAGE = (
    ValueError, OverflowError, RecursionError, TypeError, LookupError, AttributeError, ArithmeticError, AdmissionError)

cdef enum:
    RANK_BYTES = 40                # least that a rank takes: a time and four counts


cdef int by_time(const void* one, const void* other) noexcept nogil:
    cdef const use_t* first = <const use_t*>one
    cdef const use_t* second = <const use_t*>other
    if first.used_ns != second.used_ns:
        return 1 if first.used_ns > second.used_ns else -1
    return (first.order > second.order) - (first.order < second.order)


cdef class SnapshotReader:
    def __cinit__(self, bytes data not None):
        """Look at what stands around the content, and at the configuration."""
        self._frame = SnapshotFrame(data)
        self.config = CONFIG.decode(self._frame.take_json(dict))
        self.profile = PROFILE.decode(self._frame.take_json(dict))

    def __dealloc__(self):
        free(self._uses)

    cdef int fill(self, Lifecycle lifecycle) except -1:
        """Read the state into the parts of a scheduler with this configuration and profile, at time 0."""
        self._lifecycle = lifecycle
        self._backlog = lifecycle.backlog
        self._queue = lifecycle.backlog.queue
        self._fleet = lifecycle.fleet
        self._inspector = lifecycle.inspector
        self._dispatcher = lifecycle.dispatcher
        self._policies = lifecycle.policies
        self._take_numbers()
        self._take_counters()
        self._take_classes()
        self._take_workers()
        self._predict()
        RequestReader(self._frame, lifecycle).fill(self.config.block_size)
        if left(&self._frame.reader) != DIGEST_BYTES:
            raise ValueError("something stands behind its end")
        return 0

    cdef int check(self, list faults, bytes snapshot) except -1:
        """Whether what has been made of it is sound, and is what it was made of: its audit, and its own snapshot."""
        if faults or snapshot != self._frame.data:
            raise ValueError("it is of no state that can be")
        return 0

    cdef int _take_numbers(self) except -1:
        """What belongs to no class, rank or request."""
        self._frame.now_ns = take_number(&self._frame.reader, 0, NS_END - 1)
        self._fleet.advance(self._frame.now_ns)
        self._dispatcher.generator = take_u64(&self._frame.reader)
        self._dispatcher.next_attempt = take_number(&self._frame.reader, 1, COUNT_MAX)
        self._dispatcher.next_ticket = take_number(&self._frame.reader, 1, COUNT_MAX)
        self._backlog.next_seq = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._lifecycle.draining = take_flag(&self._frame.reader)
        self._lifecycle.drain_ns = self._frame.take_due()
        self._policies.load(self._frame.take_json(list))
        if self._policies.first_due_ns() < self._frame.now_ns:
            raise ValueError("an admission policy wanted to be called before now")
        return 0

    cdef int _take_counters(self) except -1:
        self._queue.dispatched = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.arrived = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.completed = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.aborted = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.evicted = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.retried = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.stale = take_number(&self._frame.reader, 0, COUNT_MAX)
        self._inspector.unknown_names = take_number(&self._frame.reader, 0, COUNT_MAX)
        for _ in range(take_count(&self._frame.reader, 2 * sizeof(int64_t))):
            reason = RejectReason(take_i64(&self._frame.reader))
            self._inspector.rejected[reason] = take_number(&self._frame.reader, 1, COUNT_MAX)
        return 0

    # Classes.

    cdef int _take_classes(self) except -1:
        cdef class_t* ring
        cdef slot_t i
        self._queue.cursor = take_i32(&self._frame.reader, 0, self._queue.count - 1)
        self._queue.visit = <visit_t>take_i32(&self._frame.reader, 0, 2)
        for i in range(self._queue.count):
            ring = &self._queue.classes[i]
            ring.deficit = take_number(&self._frame.reader, 0, COUNT_MAX)
            ring.dispatched = take_number(&self._frame.reader, 0, COUNT_MAX)
            take_i128(&self._frame.reader, &ring.dispatched_cost)
            self._inspector.class_rejected[i] = take_number(&self._frame.reader, 0, COUNT_MAX)
            self._take_window(ring)
        return 0

    cdef int _take_window(self, class_t* ring) except -1:
        """What is older than the window does not matter: it begins at its first place."""
        cdef int64_t i
        ring.charged = take_number(&self._frame.reader, 0, WINDOW)
        for i in range(ring.charged):
            ring.times[i] = self._frame.take_past()
            ring.costs[i] = take_number(&self._frame.reader, 1, TOKENS_MAX)
            ring.window_cost += ring.costs[i]
            if i and ring.times[i] < ring.times[i - 1]:
                raise ValueError("dispatches do not follow each other")
        return 0

    # Workers.

    cdef int _take_workers(self) except -1:
        cdef ns_t empty_ns = take_i64(&self._frame.reader)
        for _ in range(take_count(&self._frame.reader, RANK_BYTES)):
            self._take_worker()
        # Nobody waits yet who would have to hear of these ranks.
        self._backlog.follow_fleet()
        if self._fleet.graced:
            if empty_ns != NEVER_NS and not 0 <= empty_ns <= self._frame.now_ns:
                raise ValueError(f"the fleet has been empty since {empty_ns} ns, and it is {self._frame.now_ns} ns")
            if (empty_ns == NEVER_NS) != (self._fleet.workers.present > 0):
                raise ValueError("the fleet is empty, or it is not")
            self._fleet.empty_ns = empty_ns
        return 0

    cdef int _take_worker(self) except -1:
        cdef WorkerConfig config = WORKER.decode(self._frame.take_json(list))
        cdef int64_t incarnation = take_i64(&self._frame.reader)
        cdef slot_t rank
        cdef uint32_t i
        accept((WorkerUpserted(0, config, incarnation),), 0, self.config.block_size, self._policies)
        if self._fleet.workers.find(config.worker_id) != NO_SLOT:
            raise ValueError(f"worker {config.worker_id} is there twice")
        if left(&self._frame.reader) // RANK_BYTES < config.dp_size:
            raise ValueError("it breaks off")
        self._fleet.upsert(config, incarnation)
        self._take_marks(config.worker_id, incarnation)
        for i in range(config.dp_size):
            rank = self._fleet.workers.find_rank(config.worker_id, config.dp_start + i)
            self._take_loss(rank)
            self._take_blocks(self._fleet.device, rank)
            self._take_blocks(self._fleet.host, rank)
            self._take_blocks(self._fleet.disk, rank)
            self._take_uses(rank)
        return 0

    cdef int _take_marks(self, uint64_t worker_id, int64_t incarnation) except -1:
        cdef bint available, overloaded
        cdef str source
        for _ in range(take_count(&self._frame.reader, sizeof(int64_t))):
            source = take_text(&self._frame.reader)
            if source is None:
                raise ValueError("nobody says so")
            available = take_flag(&self._frame.reader)
            overloaded = take_flag(&self._frame.reader)
            self._fleet.set_mark(worker_id, incarnation, source, available, overloaded, self._frame.take_due())
        return 0

    cdef int _take_loss(self, slot_t rank) except -1:
        """Since when a rank is lost, where anybody may wait for it."""
        cdef ns_t lost_ns = take_i64(&self._frame.reader)
        cdef bint gone = self._fleet.ledger.loads[rank].state == RANK_GONE
        if not self._fleet.graced:
            return 0
        if (lost_ns != NEVER_NS) != gone or (gone and not 0 <= lost_ns <= self._frame.now_ns):
            raise ValueError(f"a rank was lost at {lost_ns} ns, and it is {self._frame.now_ns} ns")
        self._fleet.workers.ranks[rank].lost_ns = lost_ns
        return 0

    cdef int _take_blocks(self, PrefixIndex index, slot_t rank) except -1:
        cdef int64_t count = take_count(&self._frame.reader, sizeof(uint64_t))
        if count and not self._fleet.indexed:
            raise ValueError("there are blocks and no index")
        for _ in range(count):
            index.add(take_u64(&self._frame.reader), rank)
        return 0

    cdef int _take_uses(self, slot_t rank) except -1:
        """Predicted blocks, to be used again in order of time when those of all ranks are known."""
        cdef int64_t count = take_count(&self._frame.reader, 2 * sizeof(uint64_t))
        cdef use_t* use
        if count and self._fleet.predicted is None:
            raise ValueError("there are predictions, and none are made")
        if self._uses_size + count > self._uses_room:
            self._uses_room = max(self._uses_size + count, 2 * self._uses_room)
            resize(<void**>&self._uses, self._uses_room * sizeof(use_t))
        for _ in range(count):
            use = &self._uses[self._uses_size]
            use.hash = take_u64(&self._frame.reader)
            use.used_ns = self._frame.take_past()
            use.order = self._uses_size
            use.rank = rank
            self._uses_size += 1
        return 0

    cdef int _predict(self) except -1:
        cdef int64_t i
        if self._uses_size:
            qsort(self._uses, self._uses_size, sizeof(use_t), by_time)
        for i in range(self._uses_size):
            self._fleet.predicted.resume(self._uses[i].hash, self._uses[i].rank, self._uses[i].used_ns)
        return 0
