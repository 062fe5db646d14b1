"""Digester: 128 bits over all state that decides what comes later (DESIGN 6).

BLAKE2b-128 over a canonical encoding: the scheduler's own counters and generator, the incrementally kept sums of the
block indexes, classes by index, workers and ranks by (worker_id, dp_rank), live requests by id, other replicas by name
(where one has ever been heard of). A number stands as its little-endian bytes, an enum as its number, a text or
sequence behind its length; what is absent stands apart from any value. So two states have the same bytes iff they are
the same, whatever road led there: no slot number, no order of insertion and no size of a table is in it. A request
enters whole, since a retry or another policy looks at it again.

It leaves out the last now_ns, statistics, remembered verdicts, memory layout, and what follows from the rest by rules
of the present code alone (order of the heaps, states of ranks, counters).

Owns the buffer only. A new field of a row must be written here, or be named in tests/meta/test_state_fields.py with
the reason why not.

Cost: O(live requests + their blocks + ranks + classes), some 0.4 us a request and 1 ns a byte.
"""
import hashlib
import json

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.string cimport memcmp
from kvcore._drr cimport WINDOW
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._load cimport booking_t, load_t
from kvcore._requests cimport STATE_RUNNING, request_t
from kvcore._types cimport FRACTION_ONE, NO_SLOT, int32_t, int64_t, uint64_t
from kvcore._wire cimport (
    buffer_free, buffer_init, put, put_f64, put_i32, put_i64, put_i128, put_text, put_u8, put_u32, put_u64)
from kvcore._workers cimport rank_t, worker_t
from kvcore.request cimport Overlap, Rank, SelectionWeights

from kvcore._journal_values import PROFILE

cdef enum:
    FLUSH_BYTES = 65536            # hashed in pieces that stay in the cache


cdef class Digester:
    def __cinit__(self, RequestTable requests not None, PolicyQueue queue not None, Fleet fleet not None):
        self._requests = requests
        self._queue = queue
        self._fleet = fleet
        buffer_init(&self._buffer)

    def __dealloc__(self):
        buffer_free(&self._buffer)

    cdef str digest(self, object profile, tuple scalars, list policies):
        """The digest as hexadecimal digits.

        profile: in force. scalars: numbers of its own that the scheduler has, each -2^63 .. 2^64 - 1. policies: states
        of the admission policies, as JSON values, or None: there are none.
        """
        self._hasher = hashlib.blake2b(digest_size=16)
        self._buffer.size = 0
        for value in scalars:
            put_u64(&self._buffer, <uint64_t>(value & 0xFFFFFFFFFFFFFFFF))
        put_u64(&self._buffer, self._fleet.device.mixed)
        put_u64(&self._buffer, self._fleet.host.mixed)
        put_u64(&self._buffer, self._fleet.disk.mixed)
        put_u64(&self._buffer, 0 if self._fleet.predicted is None else self._fleet.predicted.mixed)
        put_u64(&self._buffer, self._fleet.ledger.active.index.mixed)
        put_i64(&self._buffer, self._fleet.empty_ns if self._fleet.graced else 0)
        put_text(&self._buffer, None if policies is None else json.dumps(policies, sort_keys=True))
        self._put_profile(profile)
        self._put_classes()
        self._put_ranks()
        # Code points sort like the bytes of their UTF-8.
        request_ids = sorted(self._requests.ids.live())
        put_i64(&self._buffer, len(request_ids))
        for request_id in request_ids:
            put_text(&self._buffer, request_id)
            self._put_request(self._requests.find(request_id))
        if self._fleet.exchange.board.heard_of_any():
            put_peers(&self._buffer, self._fleet.exchange)
        self._hasher.update(PyMemoryView_FromMemory(self._buffer.data, self._buffer.size, PyBUF_READ))
        told = self._hasher.hexdigest()
        self._hasher = None
        return told

    cdef int _flush(self) except -1:
        """Hash what has been written, where it is much."""
        if self._buffer.size >= FLUSH_BYTES:
            self._hasher.update(PyMemoryView_FromMemory(self._buffer.data, self._buffer.size, PyBUF_READ))
            self._buffer.size = 0
        return 0

    # Classes.

    cdef int _put_profile(self, object profile) except -1:
        """What another profile would have changed: it may have been replaced, so that it is no configuration."""
        if self._profile is not profile:
            self._profile = profile
            self._profile_text = json.dumps(PROFILE.encode(profile), sort_keys=True)
        return put_text(&self._buffer, self._profile_text)

    cdef int _put_classes(self) except -1:
        cdef slot_t i
        cdef class_t* ring
        put_i32(&self._buffer, self._queue.count)
        put_i32(&self._buffer, self._queue.cursor)
        put_u8(&self._buffer, <unsigned char>self._queue.visit)
        for i in range(self._queue.count):
            ring = &self._queue.classes[i]
            put_i64(&self._buffer, ring.deficit)
            put_window(&self._buffer, ring)
            self._put_ages(i)
        return 0

    cdef int _put_ages(self, slot_t class_index) except -1:
        """Under an overtaking bound: who waits, by seq, in order of becoming ready, and how much has gone past each."""
        cdef ClassQueue queue = self._queue.queue(class_index)
        cdef int32_t place = 0
        cdef slot_t slot
        if not queue.bounds_overtaking():
            return put_i32(&self._buffer, -1)
        put_i32(&self._buffer, queue.size)
        slot = queue.next_by_age(&place)
        while slot != NO_SLOT:
            put_u64(&self._buffer, self._queue.waiting.rows[slot].key.seq)
            put_i128(&self._buffer, queue.overtaken(slot))
            slot = queue.next_by_age(&place)
        return self._flush()

    # Ranks.

    cdef int _put_ranks(self) except -1:
        cdef slot_t i, slot
        cdef slot_t before = NO_SLOT
        cdef rank_t* rank
        put_i32(&self._buffer, self._fleet.workers.present)
        for i in range(self._fleet.workers.present):
            slot = self._fleet.workers.order[i]
            rank = &self._fleet.workers.ranks[slot]
            if rank.worker != before:
                before = rank.worker
                self._put_worker(before)
            put_u32(&self._buffer, rank.dp_rank)
            put_i64(&self._buffer, rank.lost_ns if self._fleet.graced else 0)
            self._put_load(slot)
            self._put_fifo(slot)
            self._flush()
        return 0

    cdef int _put_worker(self, slot_t slot) except -1:
        """What stands before the first rank of a worker."""
        cdef worker_t* worker = &self._fleet.workers.workers[slot]
        put_u64(&self._buffer, worker.worker_id)
        put_u32(&self._buffer, worker.dp_size)
        put_i64(&self._buffer, worker.incarnation)
        _put_texts(&self._buffer, self._fleet.workers.taints.taints_of(worker.taints))
        marks = self._fleet.marks.marks_of(slot)
        put_i64(&self._buffer, len(marks))
        for source, available, overloaded, end_ns in marks:
            put_text(&self._buffer, source)
            put_u8(&self._buffer, available)
            put_u8(&self._buffer, overloaded)
            put_i64(&self._buffer, end_ns)
        return 0

    cdef int _put_load(self, slot_t slot) except -1:
        cdef load_t* load = &self._fleet.ledger.loads[slot]
        put_i64(&self._buffer, load.max_batched_tokens)
        put_i64(&self._buffer, load.max_blocks)
        put_i64(&self._buffer, load.max_requests)
        put_i64(&self._buffer, load.prefill_rate)
        put_i128(&self._buffer, load.prefill)
        put_i64(&self._buffer, load.weight)
        put_i32(&self._buffer, load.requests)
        put_i128(&self._buffer, load.held)
        put_i64(&self._buffer, load.anchor_ns)
        put_i64(&self._buffer, self._fleet.report_end_ns(slot))
        put_i64(&self._buffer, load.reported_sequence)
        put_i64(&self._buffer, load.reported_prefill)
        put_i64(&self._buffer, load.reported_blocks)
        put_i64(&self._buffer, load.reported_requests)
        put_i64(&self._buffer, load.foreign_prefill)
        put_i64(&self._buffer, load.foreign_blocks)
        return put_i64(&self._buffer, load.foreign_requests)

    cdef int _put_fifo(self, slot_t slot) except -1:
        """Attempts that prefill on a rank whose load decays, the one in front first; -1: a peer's, see put_peers."""
        cdef load_t* load = &self._fleet.ledger.loads[slot]
        cdef booking_t* booking
        cdef slot_t at = load.fifo_first
        while at != NO_SLOT:
            booking = &self._fleet.ledger.bookings[at]
            put_i64(&self._buffer, -1 if self._fleet.exchange.owns(at) else self._requests.rows[at].attempt)
            at = booking.fifo_next
        return put_i64(&self._buffer, 0)

    # Requests.

    cdef int _put_request(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting = &self._queue.waiting.rows[slot]
        put_u8(&self._buffer, <unsigned char>row.state)
        put_u8(&self._buffer, row.track_prefill)
        put_u8(&self._buffer, row.may_wait)
        put_i32(&self._buffer, row.class_index)
        put_i64(&self._buffer, row.prompt)
        put_i64(&self._buffer, row.arrival_ns)
        put_i64(&self._buffer, row.deadline_ns)
        put_i64(&self._buffer, row.attempt)
        put_i32(&self._buffer, row.attempts)
        put_i64(&self._buffer, row.outside)
        put_i64(&self._buffer, row.reserve)
        put_u32(&self._buffer, waiting.key.tier)
        put_u64(&self._buffer, waiting.key.first)
        put_u64(&self._buffer, waiting.key.second)
        put_u64(&self._buffer, row.seq)
        put_i64(&self._buffer, waiting.cached)
        put_i64(&self._buffer, waiting.cost)
        self._put_path(slot)
        self._put_wishes(self._requests.request(slot))
        put_i32(&self._buffer, row.policy)
        put_u8(&self._buffer, row.heard)
        put_i64(&self._buffer, row.context)
        put_i64(&self._buffer, row.known_ns)
        self._put_pin(slot)
        if row.state < STATE_RUNNING:
            put(&self._buffer, row.due_ns, sizeof(row.due_ns))
            put_i64(&self._buffer, row.ticket)
        else:
            put_i64(&self._buffer, row.progress_ns)
            if row.state == STATE_RUNNING:
                put_u8(&self._buffer, row.accepted)
                self._put_booking(slot)
        return self._flush()

    cdef int _put_pin(self, slot_t slot) except -1:
        """Since when the rank has been lost that a request is pinned to; its name is among the wishes."""
        cdef request_t* row = &self._requests.rows[slot]
        if not self._fleet.graced or not row.keeps_pin:
            return put_i64(&self._buffer, -1)
        return put_i64(&self._buffer, self._fleet.workers.ranks[row.pin].lost_ns)

    cdef int _put_path(self, slot_t slot) except -1:
        """The names of its blocks, and of its complete ones where they are not the first of these."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef size_t size = row.sequence_length * sizeof(uint64_t)
        cdef bint apart = row.sequence_length > row.path_length or (size and memcmp(row.sequence, row.path, size) != 0)
        put_i32(&self._buffer, row.path_length)
        put_i32(&self._buffer, row.sequence_length)
        put_u8(&self._buffer, apart)
        put(&self._buffer, row.path, row.path_length * sizeof(uint64_t))
        return put(&self._buffer, row.sequence, size) if apart else 0

    cdef int _put_booking(self, slot_t slot) except -1:
        cdef booking_t* booking = &self._fleet.ledger.bookings[slot]
        self._put_rank(booking.rank)
        put_u8(&self._buffer, booking.prefilling)
        put_i64(&self._buffer, booking.prefill)
        put_i32(&self._buffer, booking.outputs)
        put_i32(&self._buffer, booking.outputs_decayed)
        put_i32(&self._buffer, booking.decayed_weight)
        put_i64(&self._buffer, booking.private_blocks)
        put_i64(&self._buffer, booking.reserve_blocks)
        return put_weights(&self._buffer, self._fleet.ledger, slot)

    cdef int _put_rank(self, slot_t slot) except -1:
        """A rank by its name; NO_SLOT stands for none."""
        cdef rank_t* rank = &self._fleet.workers.ranks[slot]
        put_u8(&self._buffer, slot != NO_SLOT)
        if slot == NO_SLOT:
            return 0
        put_u64(&self._buffer, rank.worker_id)
        return put_u32(&self._buffer, rank.dp_rank)

    cdef int _put_wishes(self, Request request) except -1:
        """What its sender has said of it, but for what stands in its row already."""
        put_text(&self._buffer, request.policy_class)
        put_text(&self._buffer, request.session_id)
        put_u32(&self._buffer, request.strict_priority)
        # Not a number and less than nothing count as nothing (DESIGN D3).
        put_f64(&self._buffer, request.priority_jump if request.priority_jump > 0.0 else 0.0)
        put_u8(&self._buffer, request.do_not_queue)
        put_u8(&self._buffer, request.lifecycle)
        put_i64(&self._buffer, -1 if request.expected_output_tokens is None else request.expected_output_tokens)
        _put_name(&self._buffer, request.pinned)
        _put_ids(&self._buffer, request.allowed_workers)
        _put_texts(&self._buffer, request.required_taints)
        put_i64(&self._buffer, len(request.preferred_taints))
        for taint, share in request.preferred_taints:
            put_text(&self._buffer, taint)
            put_f64(&self._buffer, share)
        _put_selection(&self._buffer, request.weights)
        return _put_overlap(&self._buffer, request.overlap)


cdef int put_window(buffer_t* buffer, const class_t* ring) except -1:
    """The last charged dispatches of a class, from which retry hints come: how many, then times and costs."""
    cdef int64_t at
    cdef int64_t first = max(0, ring.charged - WINDOW)
    put_i64(buffer, ring.charged - first)
    for at in range(first, ring.charged):
        put_i64(buffer, ring.times[at % WINDOW])
        put_i64(buffer, ring.costs[at % WINDOW])
    return 0


cdef int put_weights(buffer_t* buffer, Ledger ledger, slot_t slot) except -1:
    """Weights of a booking's prompt blocks on its rank: sticky, so part of the state. Runs (length, weight)."""
    cdef booking_t* booking = &ledger.bookings[slot]
    cdef int32_t run = 0 if ledger.faded else booking.length
    cdef int32_t weight = FRACTION_ONE
    cdef int32_t i, other
    for i in range(booking.length if ledger.faded else 0):
        other = ledger.path_weight(slot, i)
        if other != weight:
            put_i32(buffer, run)
            put_i32(buffer, weight)
            run = 0
            weight = other
        run += 1
    put_i32(buffer, run)
    return put_i32(buffer, weight)


cdef int put_peers(buffer_t* buffer, Exchange exchange) except -1:
    """Other replicas by name, with what is known of their attempts; then their bookings by name and attempt."""
    cdef slot_t slot
    cdef dict places = exchange.places()
    peers = exchange.board.dump()
    put_i64(buffer, len(peers))
    for name, generation, lost, floor, adrift, over, prefilled in peers:
        put_text(buffer, name)
        put_i64(buffer, generation)
        put_u8(buffer, lost)
        put_i64(buffer, floor)
        for attempts in (adrift, over, prefilled):
            put_i64(buffer, len(attempts))
            for attempt in attempts:
                put_i64(buffer, attempt)
    put_i64(buffer, exchange.board.bookings())
    for name, attempt, slot in exchange.board.live():
        put_text(buffer, name)
        put_i64(buffer, attempt)
        put_i64(buffer, places.get(slot, -1))
        _put_peer_booking(buffer, exchange, slot)
    return 0


cdef int _put_peer_booking(buffer_t* buffer, Exchange exchange, slot_t slot) except -1:
    """A booking of a peer, whose outputs are not told. Of a prefill that is over no number matters any more."""
    cdef request_t* row = &exchange.requests.rows[slot]
    cdef booking_t* booking = &exchange.ledger.bookings[slot]
    cdef rank_t* rank = &exchange.workers.ranks[booking.rank]
    put_u64(buffer, rank.worker_id)
    put_u32(buffer, rank.dp_rank)
    put_u8(buffer, booking.prefilling)
    put_i64(buffer, booking.prefill if booking.prefilling else 0)
    put_i64(buffer, booking.private_blocks)
    put_i64(buffer, booking.reserve_blocks)
    put_i32(buffer, row.sequence_length)
    put(buffer, row.sequence, row.sequence_length * sizeof(uint64_t))
    return put_weights(buffer, exchange.ledger, slot)


cdef int _put_texts(buffer_t* buffer, frozenset texts) except -1:
    put_i64(buffer, len(texts))
    if texts:
        for text in sorted(texts):
            put_text(buffer, text)
    return 0


cdef int _put_ids(buffer_t* buffer, frozenset worker_ids) except -1:
    """Worker ids in their order; None is not the same as none."""
    if worker_ids is None:
        return put_i64(buffer, -1)
    put_i64(buffer, len(worker_ids))
    for worker_id in sorted(worker_ids):
        put_u64(buffer, worker_id)
    return 0


cdef int _put_name(buffer_t* buffer, Rank rank) except -1:
    put_u8(buffer, rank is not None)
    if rank is not None:
        put_u64(buffer, rank.worker_id)
        put_u32(buffer, rank.dp_rank)
    return 0


cdef int _put_selection(buffer_t* buffer, SelectionWeights weights) except -1:
    put_u8(buffer, weights is not None)
    if weights is not None:
        put_f64(buffer, weights.overlap_score_credit)
        put_f64(buffer, weights.overlap_score_credit_decay)
        put_f64(buffer, weights.prefill_load_scale)
        put_f64(buffer, weights.host_cache_hit_weight)
        put_f64(buffer, weights.disk_cache_hit_weight)
        put_f64(buffer, weights.shared_cache_multiplier)
        put_f64(buffer, weights.active_request_weight)
        put_f64(buffer, weights.temperature)
    return 0


cdef int _put_overlap(buffer_t* buffer, Overlap overlap) except -1:
    put_u8(buffer, overlap is not None)
    if overlap is None:
        return 0
    for pairs in (overlap.device, overlap.host, overlap.disk, overlap.cached_tokens):
        put_i64(buffer, len(pairs))
        for rank, count in pairs:
            _put_name(buffer, rank)
            put_i64(buffer, count)
    put_i64(buffer, len(overlap.effective))
    for rank, blocks in overlap.effective:
        _put_name(buffer, rank)
        put_f64(buffer, blocks)
    put_i64(buffer, len(overlap.shared))
    for start, end in overlap.shared:
        put_i64(buffer, start)
        put_i64(buffer, end)
    return 0
