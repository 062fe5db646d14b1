"""SnapshotWriter: the whole of a scheduler as bytes, from which _restore makes one that goes on alike (DESIGN 6).

    head                   another layout of what follows, or of the values in it, is another version
    configuration, profile in force                                      JSON, as in a journal
    time, generator, counters, drain, states of admission policies      the latter as JSON
    statistics
    classes, by index       deficit, window of dispatches, statistics; cursor and visit of the ring
    workers, by id          configuration, incarnation, marks by source; of each rank: since when it is lost, the blocks
                            that it holds by tier, sorted, and the predicted ones with their last use, oldest first
    requests, by id         the Request as JSON, and its row
    other replicas          by name, what is known of their attempts; then their bookings
    bookings, by attempt    each is an index into the requests, and a rank
    loads, by rank          since when its front prefills, its last report, what that adds
    ages                    under an overtaking bound: who waits, by age, and what has gone past
    digest                  of the state
    checksum                of all bytes before

Numbers are little-endian. The bytes are canonical: the same state gives the same, whatever road led there, and a
restored scheduler gives those that it was made of. So that is how _restore proves that it has understood them.

Left out: what follows from the rest (heaps, totals, states of ranks, crossings of decay), remembered verdicts, which
are found anew, the order of leases and reports that end together, which shows nowhere, and memory layout.

Owns the format. A new field of a row must be written here and read there, or be named in
tests/meta/test_state_fields.py with the reason why not.

Cost: O(state), times the logarithm for what is sorted.
"""
import json

from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy
from kvcore._digest cimport put_peers, put_weights, put_window
from kvcore._drr cimport class_t
from kvcore._frame cimport DIGEST_BYTES, put_head, sealed
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._load cimport INT64_TOP, booking_t, load_t
from kvcore._predicted cimport predicted_t
from kvcore._requests cimport STATE_RUNNING, request_t
from kvcore._types cimport NO_SLOT, int64_t, uint64_t
from kvcore._wire cimport (
    buffer_free, buffer_init, put, put_i32, put_i64, put_i128, put_text, put_u8, put_u32, put_u64)
from kvcore._workers cimport rank_t, worker_t

from kvcore._journal_values import CONFIG, PROFILE, REQUEST, WORKER
from kvcore.request import WorkerConfig


cdef int by_hash(const void* one, const void* other) noexcept nogil:
    # Bytes in a buffer are not aligned.
    cdef uint64_t first, second
    memcpy(&first, one, sizeof(first))
    memcpy(&second, other, sizeof(second))
    return (first > second) - (first < second)


cdef class SnapshotWriter:
    def __cinit__(self, Lifecycle lifecycle not None):
        """lifecycle: of the scheduler; it knows the other parts."""
        self._lifecycle = lifecycle
        self._requests = lifecycle.requests
        self._backlog = lifecycle.backlog
        self._queue = lifecycle.backlog.queue
        self._fleet = lifecycle.fleet
        self._inspector = lifecycle.inspector
        self._dispatcher = lifecycle.dispatcher
        self._policies = lifecycle.policies
        buffer_init(&self._buffer)

    def __dealloc__(self):
        buffer_free(&self._buffer)
        free(self._order)

    cdef bytes write(self, object config, object profile, ns_t now_ns, str digest):
        """The snapshot of a scheduler at rest. Raises what an admission policy raises that cannot be dumped."""
        cdef bytes told = bytes.fromhex(digest)
        put_head(&self._buffer)
        self._put_json(CONFIG.encode(config))
        self._put_json(PROFILE.encode(profile))
        put_i64(&self._buffer, now_ns)
        put_u64(&self._buffer, self._dispatcher.generator)
        put_i64(&self._buffer, self._dispatcher.next_attempt)
        put_i64(&self._buffer, self._dispatcher.next_ticket)
        put_u64(&self._buffer, self._backlog.next_seq)
        put_u8(&self._buffer, self._lifecycle.draining)
        put_i64(&self._buffer, self._lifecycle.drain_ns)
        self._put_json(self._policies.dump())
        self._put_counters()
        self._put_classes()
        self._put_workers()
        self._put_requests()
        put_peers(&self._buffer, self._fleet.exchange)
        self._put_bookings()
        self._put_loads()
        self._put_ages()
        put(&self._buffer, <const char*>told, DIGEST_BYTES)
        return sealed(&self._buffer)

    cdef int _put_json(self, object value) except -1:
        return put_text(&self._buffer, json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")))

    cdef int _put_counters(self) except -1:
        put_i64(&self._buffer, self._queue.dispatched)
        put_i64(&self._buffer, self._inspector.arrived)
        put_i64(&self._buffer, self._inspector.completed)
        put_i64(&self._buffer, self._inspector.aborted)
        put_i64(&self._buffer, self._inspector.evicted)
        put_i64(&self._buffer, self._inspector.retried)
        put_i64(&self._buffer, self._inspector.stale)
        put_i64(&self._buffer, self._inspector.unknown_names)
        put_i64(&self._buffer, len(self._inspector.rejected))
        for reason in sorted(self._inspector.rejected):
            put_i64(&self._buffer, reason)
            put_i64(&self._buffer, self._inspector.rejected[reason])
        return 0

    cdef int _put_classes(self) except -1:
        cdef class_t* ring
        cdef slot_t i
        put_i32(&self._buffer, self._queue.cursor)
        put_i32(&self._buffer, <int32_t>self._queue.visit)
        for i in range(self._queue.count):
            ring = &self._queue.classes[i]
            put_i64(&self._buffer, ring.deficit)
            put_i64(&self._buffer, ring.dispatched)
            put_i128(&self._buffer, ring.dispatched_cost)
            put_i64(&self._buffer, self._inspector.class_rejected[i])
            put_window(&self._buffer, ring)
        return 0

    # Workers.

    cdef int _put_workers(self) except -1:
        cdef slot_t i, slot
        cdef slot_t before = NO_SLOT
        cdef rank_t* rank
        put_i64(&self._buffer, self._fleet.empty_ns if self._fleet.graced else 0)
        put_i64(&self._buffer, self._fleet.workers.count())
        for i in range(self._fleet.workers.present):
            slot = self._fleet.workers.order[i]
            rank = &self._fleet.workers.ranks[slot]
            if rank.worker != before:
                before = rank.worker
                self._put_worker(before)
            put_i64(&self._buffer, rank.lost_ns if self._fleet.graced else 0)
            self._put_blocks(self._fleet.device, slot)
            self._put_blocks(self._fleet.host, slot)
            self._put_blocks(self._fleet.disk, slot)
            self._put_predicted(slot)
        return 0

    cdef int _put_worker(self, slot_t slot) except -1:
        """What stands before the first rank of a worker; its caps are those of each rank."""
        cdef worker_t* worker = &self._fleet.workers.workers[slot]
        cdef load_t* load = &self._fleet.ledger.loads[worker.ranks[0]]
        self._put_json(WORKER.encode(WorkerConfig(
            worker.worker_id, worker.dp_start, worker.dp_size, load.max_batched_tokens, _cap(load.max_blocks),
            _cap(load.max_requests), self._fleet.workers.taints.taints_of(worker.taints), load.prefill_rate or None)))
        put_i64(&self._buffer, worker.incarnation)
        marks = self._fleet.marks.marks_of(slot)
        put_i64(&self._buffer, len(marks))
        for source, available, overloaded, end_ns in marks:
            put_text(&self._buffer, source)
            put_u8(&self._buffer, available)
            put_u8(&self._buffer, overloaded)
            put_i64(&self._buffer, end_ns)
        return 0

    cdef int _put_blocks(self, PrefixIndex index, slot_t slot) except -1:
        """What a rank holds of a tier."""
        cdef int32_t count
        cdef size_t start
        cdef const uint64_t* blocks = index.held_by(slot, &count)
        put_i64(&self._buffer, count)
        start = self._buffer.size
        put(&self._buffer, blocks, count * sizeof(uint64_t))
        qsort(self._buffer.data + start, count, sizeof(uint64_t), by_hash)
        return 0

    cdef int _put_predicted(self, slot_t slot) except -1:
        """What a rank is thought to hold, the least recently used first."""
        cdef predicted_t* block
        cdef int32_t at
        if self._fleet.predicted is None:
            return put_i64(&self._buffer, 0)
        put_i64(&self._buffer, self._fleet.predicted.uses[slot].held)
        at = self._fleet.predicted.uses[slot].oldest
        while at != NO_SLOT:
            block = &self._fleet.predicted.rows[at]
            put_u64(&self._buffer, block.hash)
            put_i64(&self._buffer, block.used_ns)
            at = block.rank_newer
        return 0

    # Requests.

    cdef int _put_requests(self) except -1:
        cdef int32_t i = 0
        cdef slot_t slot
        free(self._order)
        self._order = <int32_t*>malloc((self._requests.ids.size + 1) * sizeof(int32_t))
        if self._order == NULL:
            raise MemoryError("snapshot")
        request_ids = sorted(self._requests.ids.live())
        put_i64(&self._buffer, len(request_ids))
        for request_id in request_ids:
            slot = self._requests.find(request_id)
            self._order[slot] = i
            i += 1
            self._put_request(slot)
        return 0

    cdef int _put_request(self, slot_t slot) except -1:
        """Everything about a request but its booking and its age. What does not apply to its state is left empty."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting = &self._queue.waiting.rows[slot]
        cdef bint runs = row.state >= STATE_RUNNING
        self._put_json(REQUEST.encode(self._requests.request(slot)))
        put_i32(&self._buffer, <int32_t>row.state)
        put_u8(&self._buffer, row.may_wait)
        put_u8(&self._buffer, row.accepted and row.state == STATE_RUNNING)
        put_u8(&self._buffer, row.heard)
        put_i32(&self._buffer, row.attempts)
        put_i32(&self._buffer, row.policy)
        put_i32(&self._buffer, row.class_index)
        put_i64(&self._buffer, row.arrival_ns)
        put_u64(&self._buffer, row.seq)
        put_i64(&self._buffer, row.known_ns)
        put_i64(&self._buffer, row.ticket)
        put_i64(&self._buffer, row.context)
        put_i64(&self._buffer, row.attempt)
        put(&self._buffer, row.due_ns, sizeof(row.due_ns))
        put_i64(&self._buffer, row.progress_ns if runs else 0)
        put_i64(&self._buffer, self._fleet.workers.ranks[row.pin].lost_ns
                if row.keeps_pin and self._fleet.graced else 0)
        put_u32(&self._buffer, waiting.key.tier)
        put_u64(&self._buffer, waiting.key.first)
        put_u64(&self._buffer, waiting.key.second)
        put_i64(&self._buffer, waiting.cached)
        return put_i64(&self._buffer, waiting.cost)

    cdef int _put_bookings(self) except -1:
        cdef slot_t slot
        cdef booking_t* booking
        cdef rank_t* rank
        slots = [slot for _, slot in sorted([(self._requests.rows[<slot_t>s].attempt, s)
                                             for s in self._requests.in_state(STATE_RUNNING)])]
        put_i64(&self._buffer, len(slots))
        for slot in slots:
            booking = &self._fleet.ledger.bookings[slot]
            rank = &self._fleet.workers.ranks[booking.rank]
            put_i32(&self._buffer, self._order[slot])
            put_u64(&self._buffer, rank.worker_id)
            put_u32(&self._buffer, rank.dp_rank)
            put_u8(&self._buffer, booking.prefilling)
            put_i64(&self._buffer, booking.prefill)
            put_i32(&self._buffer, booking.outputs)
            put_i32(&self._buffer, booking.outputs_decayed)
            put_i32(&self._buffer, booking.decayed_weight)
            put_weights(&self._buffer, self._fleet.ledger, slot)
        return 0

    cdef int _put_loads(self) except -1:
        cdef slot_t i, slot
        cdef load_t* load
        for i in range(self._fleet.workers.present):
            slot = self._fleet.workers.order[i]
            load = &self._fleet.ledger.loads[slot]
            put_i64(&self._buffer, load.anchor_ns)
            put_i64(&self._buffer, load.reported_sequence)
            put_i64(&self._buffer, load.reported_prefill)
            put_i64(&self._buffer, load.reported_blocks)
            put_i64(&self._buffer, load.reported_requests)
            put_i64(&self._buffer, load.foreign_prefill)
            put_i64(&self._buffer, load.foreign_blocks)
            put_i64(&self._buffer, load.foreign_requests)
            put_i64(&self._buffer, self._fleet.report_end_ns(slot))
        return 0

    cdef int _put_ages(self) except -1:
        cdef slot_t i, slot
        cdef int32_t place
        cdef ClassQueue queue
        for i in range(self._queue.count):
            queue = self._queue.queue(i)
            if not queue.bounds_overtaking():
                continue
            put_i64(&self._buffer, queue.size)
            place = 0
            slot = queue.next_by_age(&place)
            while slot != NO_SLOT:
                put_i32(&self._buffer, self._order[slot])
                put_i128(&self._buffer, queue.overtaken(slot))
                slot = queue.next_by_age(&place)
        return 0


cdef object _cap(int64_t cap):
    return None if cap == INT64_TOP else cap
