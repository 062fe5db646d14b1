"""SnapshotReader: from the bytes of a snapshot to the state of a scheduler that has just been made (DESIGN 6).

Owns nothing that lasts. Whatever the bytes are, nothing is done that the parts do not bear: each number is checked
against what it counts, indexes or bounds, each value as if it came in an event, each time against the present. What is
wrong is a ValueError or its like, and the scheduler is to be thrown away.

The checks keep the parts safe; they do not make sure that such a state can come about. That is proven at the end by
the scheduler itself: its totals are right, and its own snapshot is what has been read, digest and all.

Cost: O(state), times the logarithm for what is kept in order.
"""
import json

from libc.stdlib cimport free, qsort
from kvcore._accept cimport accept
from kvcore._drr cimport WINDOW, visit_t
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._load cimport RANK_GONE
from kvcore._requests cimport (
    STATE_DEFERRED, STATE_EVICTED, STATE_REFRESHING, STATE_RUNNING, STATE_WAITING, TIMER_GRACE, TIMER_LOOK,
    TIMER_REFRESH, TIMERS, request_t)
from kvcore._snapshot cimport CHECKSUM_BYTES, DIGEST_BYTES, MAGIC, VERSION, checksum
from kvcore._types cimport FRACTION_ONE, NEVER_NS, NO_SLOT, NS_END, i128, resize, uint32_t
from kvcore._wire cimport (
    left, take, take_count, take_flag, take_i32, take_i64, take_i128, take_number, take_text, take_u32, take_u64)
from kvcore.request cimport Request, WorkerConfig

from kvcore._journal_values import CONFIG, PROFILE, REQUEST, WORKER
from kvcore.actions import RejectReason
from kvcore.events import RequestArrived, WorkerUpserted

cdef int64_t COUNT_MAX = <int64_t>1 << 62          # of a counter
cdef int64_t TOKENS_MAX = <int64_t>1 << 53

cdef enum:
    I32_MAX = 0x7FFFFFFF
    RANK_BYTES = 40                # least that a rank takes: a time and four counts
    REQUEST_BYTES = 100            # less than any request takes
    BOOKING_BYTES = 40


cdef int by_time(const void* one, const void* other) noexcept nogil:
    cdef const use_t* first = <const use_t*>one
    cdef const use_t* second = <const use_t*>other
    if first.used_ns != second.used_ns:
        return 1 if first.used_ns > second.used_ns else -1
    return (first.order > second.order) - (first.order < second.order)


def _no_constant(str text):
    raise ValueError(f"{text} is no JSON")


cdef class SnapshotReader:
    def __cinit__(self, bytes data not None):
        """Look at what stands around the content, and at the configuration."""
        cdef Py_ssize_t head = len(MAGIC)
        if not data.startswith(MAGIC):
            raise ValueError("not a snapshot of kvcore")
        if len(data) < head + <Py_ssize_t>sizeof(uint32_t) + CHECKSUM_BYTES:
            raise ValueError("it breaks off")
        self._data = data
        self._reader.at = <const char*>data + head
        self._reader.end = <const char*>data + len(data) - CHECKSUM_BYTES
        version = take_u32(&self._reader)
        if version != VERSION:
            raise ValueError(f"format version {version}; this version reads {VERSION}")
        if checksum(data[:len(data) - CHECKSUM_BYTES]) != data[len(data) - CHECKSUM_BYTES:]:
            raise ValueError("its checksum is wrong")
        self.config = CONFIG.decode(self._take_json(dict))
        self.profile = PROFILE.decode(self._take_json(dict))
        self._block_size = self.config.block_size
        self._seqs = set()
        self._waiting = {}
        self._started = []

    def __dealloc__(self):
        free(self._uses)

    cdef int fill(self, Lifecycle lifecycle) except -1:
        """Read the state into the parts of a scheduler with this configuration and profile, at time 0."""
        self._lifecycle = lifecycle
        self._requests = lifecycle.requests
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
        self._take_requests()
        self._start()
        self._take_bookings()
        self._take_loads()
        self._take_ages()
        if left(&self._reader) != DIGEST_BYTES:
            raise ValueError("something stands behind its end")
        return 0

    cdef object _take_json(self, object kind):
        text = take_text(&self._reader)
        value = None if text is None else json.loads(text, parse_constant=_no_constant)
        if type(value) is not kind:
            raise ValueError(f"JSON must be of type {kind.__name__}, not {type(value).__name__}")
        return value

    cdef ns_t _take_past(self) except? -1:
        """A time that has been."""
        return take_number(&self._reader, 0, self.now_ns)

    cdef ns_t _take_due(self) except? -1:
        """A time to come, or never."""
        cdef ns_t due_ns = take_i64(&self._reader)
        if due_ns != NEVER_NS and not self.now_ns < due_ns <= NS_END:
            raise ValueError(f"something was due at {due_ns} ns, and it is {self.now_ns} ns")
        return due_ns

    cdef int _take_numbers(self) except -1:
        """What belongs to no class, rank or request."""
        self.now_ns = take_number(&self._reader, 0, NS_END - 1)
        self._fleet.advance(self.now_ns)
        self._dispatcher.generator = take_u64(&self._reader)
        self._dispatcher.next_attempt = take_number(&self._reader, 1, COUNT_MAX)
        self._dispatcher.next_ticket = take_number(&self._reader, 1, COUNT_MAX)
        self._backlog.next_seq = take_number(&self._reader, 0, COUNT_MAX)
        self._lifecycle.draining = take_flag(&self._reader)
        self._lifecycle.drain_ns = self._take_due()
        self._policies.load(self._take_json(list))
        if self._policies.first_due_ns() <= self.now_ns:
            raise ValueError("an admission policy wanted to be called before now")
        return 0

    cdef int _take_counters(self) except -1:
        self._inspector.arrived = take_number(&self._reader, 0, COUNT_MAX)
        self._inspector.completed = take_number(&self._reader, 0, COUNT_MAX)
        self._inspector.aborted = take_number(&self._reader, 0, COUNT_MAX)
        self._inspector.evicted = take_number(&self._reader, 0, COUNT_MAX)
        self._inspector.retried = take_number(&self._reader, 0, COUNT_MAX)
        self._inspector.stale = take_number(&self._reader, 0, COUNT_MAX)
        self._inspector.unknown_names = take_number(&self._reader, 0, COUNT_MAX)
        for _ in range(take_count(&self._reader, 2 * sizeof(int64_t))):
            reason = RejectReason(take_i64(&self._reader))
            self._inspector.rejected[reason] = take_number(&self._reader, 1, COUNT_MAX)
        return 0

    # Classes.

    cdef int _take_classes(self) except -1:
        cdef class_t* ring
        cdef slot_t i
        self._queue.cursor = take_i32(&self._reader, 0, self._queue.count - 1)
        self._queue.visit = <visit_t>take_i32(&self._reader, 0, 2)
        for i in range(self._queue.count):
            ring = &self._queue.classes[i]
            ring.deficit = take_number(&self._reader, 0, COUNT_MAX)
            ring.dispatched = take_number(&self._reader, 0, COUNT_MAX)
            take_i128(&self._reader, &ring.dispatched_cost)
            self._inspector.class_rejected[i] = take_number(&self._reader, 0, COUNT_MAX)
            self._take_window(ring)
        return 0

    cdef int _take_window(self, class_t* ring) except -1:
        """What is older than the window does not matter: it begins at its first place."""
        cdef int64_t i
        ring.charged = take_number(&self._reader, 0, WINDOW)
        for i in range(ring.charged):
            ring.times[i] = self._take_past()
            ring.costs[i] = take_number(&self._reader, 1, TOKENS_MAX)
            ring.window_cost += ring.costs[i]
            if i and ring.times[i] < ring.times[i - 1]:
                raise ValueError("dispatches do not follow each other")
        return 0

    # Workers.

    cdef int _take_workers(self) except -1:
        cdef ns_t empty_ns = take_i64(&self._reader)
        for _ in range(take_count(&self._reader, RANK_BYTES)):
            self._take_worker()
        # Nobody waits yet who would have to hear of these ranks.
        self._backlog.follow_fleet()
        if self._fleet.graced:
            if empty_ns != NEVER_NS and not 0 <= empty_ns <= self.now_ns:
                raise ValueError(f"the fleet has been empty since {empty_ns} ns, and it is {self.now_ns} ns")
            if (empty_ns == NEVER_NS) != (self._fleet.workers.present > 0):
                raise ValueError("the fleet is empty, or it is not")
            self._fleet.empty_ns = empty_ns
        return 0

    cdef int _take_worker(self) except -1:
        cdef WorkerConfig config = WORKER.decode(self._take_json(list))
        cdef int64_t incarnation = take_i64(&self._reader)
        cdef slot_t rank
        cdef uint32_t i
        accept((WorkerUpserted(0, config, incarnation),), 0, self._block_size, self._policies)
        if self._fleet.workers.find(config.worker_id) != NO_SLOT:
            raise ValueError(f"worker {config.worker_id} is there twice")
        if left(&self._reader) // RANK_BYTES < config.dp_size:
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
        for _ in range(take_count(&self._reader, sizeof(int64_t))):
            source = take_text(&self._reader)
            if source is None:
                raise ValueError("nobody says so")
            available = take_flag(&self._reader)
            overloaded = take_flag(&self._reader)
            self._fleet.set_mark(worker_id, incarnation, source, available, overloaded, self._take_due())
        return 0

    cdef int _take_loss(self, slot_t rank) except -1:
        """Since when a rank is lost, where anybody may wait for it."""
        cdef ns_t lost_ns = take_i64(&self._reader)
        cdef bint gone = self._fleet.ledger.loads[rank].state == RANK_GONE
        if not self._fleet.graced:
            return 0
        if (lost_ns != NEVER_NS) != gone or (gone and not 0 <= lost_ns <= self.now_ns):
            raise ValueError(f"a rank was lost at {lost_ns} ns, and it is {self.now_ns} ns")
        self._fleet.workers.ranks[rank].lost_ns = lost_ns
        return 0

    cdef int _take_blocks(self, PrefixIndex index, slot_t rank) except -1:
        cdef int64_t count = take_count(&self._reader, sizeof(uint64_t))
        if count and not self._fleet.indexed:
            raise ValueError("there are blocks and no index")
        for _ in range(count):
            index.add(take_u64(&self._reader), rank)
        return 0

    cdef int _take_uses(self, slot_t rank) except -1:
        """Predicted blocks, to be used again in order of time when those of all ranks are known."""
        cdef int64_t count = take_count(&self._reader, 2 * sizeof(uint64_t))
        cdef use_t* use
        if count and self._fleet.predicted is None:
            raise ValueError("there are predictions, and none are made")
        if self._uses_size + count > self._uses_room:
            self._uses_room = max(self._uses_size + count, 2 * self._uses_room)
            resize(<void**>&self._uses, self._uses_room * sizeof(use_t))
        for _ in range(count):
            use = &self._uses[self._uses_size]
            use.hash = take_u64(&self._reader)
            use.used_ns = self._take_past()
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

    # Requests. Their slots are their places by id.

    cdef int _take_requests(self) except -1:
        cdef slot_t slot
        for _ in range(take_count(&self._reader, REQUEST_BYTES)):
            slot = self._take_request()
            self._take_row(slot)
        return 0

    cdef slot_t _take_request(self) except -1:
        """A row of its own for the next request, in state FREE."""
        cdef Request request = REQUEST.decode(self._take_json(list))
        accept((RequestArrived(0, request),), 0, self._block_size, self._policies)
        if self._requests.find(request.request_id) != NO_SLOT:
            raise ValueError(f"request {request.request_id!r} is there twice")
        return self._requests.open(request, 0, self._block_size)

    cdef int _take_row(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef int32_t state = take_i32(&self._reader, STATE_WAITING, STATE_EVICTED)
        cdef bint runs = state >= STATE_RUNNING
        cdef bint accepted
        cdef int32_t attempts
        cdef ns_t due_ns[TIMERS]
        cdef ns_t progress_ns
        cdef int i
        row.may_wait = take_flag(&self._reader)
        accepted = take_flag(&self._reader)
        row.heard = take_flag(&self._reader)
        attempts = take_i32(&self._reader, runs, I32_MAX)
        row.policy = take_i32(&self._reader, NO_SLOT, self._queue.count - 1)
        if row.policy != NO_SLOT and not self._policies.manages(row.policy):
            raise ValueError("a request is managed by a policy that there is not")
        row.class_index = take_i32(&self._reader, 0, self._queue.count - 1)
        row.arrival_ns = self._take_past()
        row.seq = take_number(&self._reader, 0, <int64_t>self._backlog.next_seq - 1)
        row.known_ns = self._take_past()
        row.ticket = take_number(&self._reader, 0, self._dispatcher.next_ticket - 1)
        row.context = take_number(&self._reader, -1, TOKENS_MAX)
        row.attempt = take_number(&self._reader, runs, self._dispatcher.next_attempt - 1)
        row.attempts = attempts
        for i in range(TIMERS):
            due_ns[i] = self._take_due()
        progress_ns = self._take_past()
        if row.seq in self._seqs:
            raise ValueError("two requests have the same place in time")
        if not runs and row.deadline_ns <= self.now_ns:
            raise ValueError("a request waits beyond its deadline")
        self._seqs.add(row.seq)
        self._backlog.keep_pin(slot)
        self._take_grace(slot)
        self._take_key(slot)
        if runs:
            self._started.append((progress_ns, row.attempt, slot, attempts, accepted, state))
        elif state == STATE_WAITING:
            self._waiting[slot] = (due_ns[<int>TIMER_GRACE], due_ns[<int>TIMER_LOOK])
        elif state == STATE_DEFERRED:
            self._backlog.rejoin(slot, True)
        else:
            self._requests.wait(slot, STATE_REFRESHING, row.seq)
            self._requests.set_timer(slot, TIMER_REFRESH, due_ns[<int>TIMER_REFRESH])
        return 0

    cdef int _take_grace(self, slot_t slot) except -1:
        """Since when the rank is lost that a request is pinned to, where only such requests remember it."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef ns_t lost_ns = take_i64(&self._reader)
        if not self._fleet.graced or not row.keeps_pin or self._fleet.workers.ranks[row.pin].worker != NO_SLOT:
            return 0
        if not 0 <= lost_ns <= self.now_ns:
            raise ValueError(f"a rank was lost at {lost_ns} ns, and it is {self.now_ns} ns")
        self._fleet.workers.ranks[row.pin].lost_ns = lost_ns
        return 0

    cdef int _take_key(self, slot_t slot) except -1:
        """What was found when it came, and its place among those that wait."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting
        self._queue.waiting.reserve(slot + 1)
        waiting = &self._queue.waiting.rows[slot]
        waiting.key.tier = take_u32(&self._reader)
        waiting.key.first = take_u64(&self._reader)
        waiting.key.second = take_u64(&self._reader)
        waiting.key.seq = row.seq
        waiting.raw = row.prompt
        waiting.cached = take_number(&self._reader, 0, row.prompt)
        waiting.cost = take_number(&self._reader, 0, max(1, row.prompt - waiting.cached))
        return 0

    cdef int _start(self) except -1:
        """Let those run, or be evicted, that do: in the order of their timers."""
        cdef slot_t slot
        for progress_ns, attempt, slot, attempts, accepted, state in sorted(self._started):
            self._requests.start_running(slot, attempt, progress_ns)
            self._requests.rows[slot].attempts = attempts
            self._requests.rows[slot].accepted = accepted
            if state == STATE_EVICTED:
                self._requests.rows[slot].state = STATE_EVICTED
        return 0

    cdef int _take_bookings(self) except -1:
        """Bookings by attempt, which is the order in which they prefill."""
        cdef int64_t last = 0
        cdef slot_t slot
        cdef int64_t count = take_count(&self._reader, BOOKING_BYTES)
        if count != len(self._requests.in_state(STATE_RUNNING)):
            raise ValueError("there are not as many bookings as requests that run")
        self._fleet.ledger.reserve_slots(self._requests.ids.size)
        for _ in range(count):
            slot = take_i32(&self._reader, 0, self._requests.ids.size - 1)
            if self._requests.rows[slot].state != STATE_RUNNING or self._requests.rows[slot].attempt <= last:
                raise ValueError("a booking is none of a request that runs, or not in its place")
            last = self._requests.rows[slot].attempt
            self._take_booking(slot)
        return 0

    cdef int _take_booking(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef uint64_t worker_id = take_u64(&self._reader)
        cdef slot_t rank = self._fleet.workers.find_rank(worker_id, take_u32(&self._reader))
        cdef bint prefilling = take_flag(&self._reader)
        cdef int64_t prefill = take_number(&self._reader, 0, row.prompt)
        cdef int32_t outputs = take_i32(&self._reader, 0, I32_MAX)
        cdef int32_t outputs_decayed = take_i32(&self._reader, 0, I32_MAX)
        cdef int32_t decayed_weight = take_i32(&self._reader, 0, FRACTION_ONE)
        cdef int32_t at = 0
        cdef int32_t run, weight
        if rank == NO_SLOT:
            raise ValueError("a booking is on no rank")
        self._fleet.ledger.book(
            slot, rank, prefill if prefilling else 0, row.sequence, row.sequence_length, row.outside, row.reserve)
        self._fleet.ledger.resume_booking(
            slot, prefilling, prefill, outputs, outputs_decayed, decayed_weight)
        while True:
            run = take_i32(&self._reader, 0, row.sequence_length - at)
            weight = take_i32(&self._reader, 0, FRACTION_ONE)
            for _ in range(run):
                self._fleet.ledger.set_path_weight(slot, at, weight)
                at += 1
            if at == row.sequence_length:
                return 0

    cdef int _take_loads(self) except -1:
        cdef slot_t i, rank
        cdef ns_t anchor_ns
        cdef int64_t sequence
        cdef int64_t reported[3]
        cdef int64_t foreign[3]
        cdef int j
        for i in range(self._fleet.workers.present):
            rank = self._fleet.workers.order[i]
            anchor_ns = self._take_past()
            sequence = take_number(&self._reader, -1, TOKENS_MAX)
            for j in range(3):
                reported[j] = take_number(&self._reader, -1, TOKENS_MAX)
            for j in range(3):
                foreign[j] = take_number(&self._reader, 0, TOKENS_MAX)
            self._fleet.ledger.resume_load(rank, anchor_ns, sequence, reported, foreign)
            self._fleet.start_report(rank, self._take_due())
        return 0

    # Who waits, in order of becoming ready where that matters.

    cdef int _take_ages(self) except -1:
        cdef slot_t i, slot
        cdef i128 passed, before
        cdef ClassQueue queue
        for i in range(self._queue.count):
            queue = self._queue.queue(i)
            if not queue.bounds_overtaking():
                continue
            before = -1
            for _ in range(take_count(&self._reader, sizeof(int32_t) + sizeof(i128))):
                slot = take_i32(&self._reader, 0, self._requests.ids.size - 1)
                take_i128(&self._reader, &passed)
                if slot not in self._waiting or self._requests.rows[slot].class_index != i:
                    raise ValueError("a request has an age, and does not wait in that class")
                if passed < 0 or (before >= 0 and passed > before):
                    raise ValueError("more has gone past a younger request")
                if before >= 0:
                    queue.pass_all(before - passed)
                before = passed
                self._wait(slot, self._waiting.pop(slot))
            if before > 0:
                queue.pass_all(before)
        for slot, timers in self._waiting.items():
            if self._queue.queue(self._requests.rows[slot].class_index).bounds_overtaking():
                raise ValueError("a request waits and has no age")
            self._wait(slot, timers)
        return 0

    cdef int _wait(self, slot_t slot, tuple timers) except -1:
        """Into its class, with the timers that it had."""
        self._backlog.rejoin(slot, False)
        self._requests.set_timer(slot, TIMER_GRACE, timers[0])
        return self._requests.set_timer(slot, TIMER_LOOK, timers[1])
