"""RequestReader: live requests out of a snapshot, with their bookings, their ranks' loads and their order.

A part of SnapshotReader, apart for its length; what holds for that holds here. It comes after workers and classes.
Slots of requests are their places by id, because their table is new.
"""
from kvcore._accept cimport accept
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._ledger_resume cimport resume_booking, resume_load, resume_path
from kvcore._requests cimport (
    STATE_DEFERRED, STATE_EVICTED, STATE_REFRESHING, STATE_RUNNING, STATE_WAITING, TIMER_GRACE, TIMER_LOOK,
    TIMER_REFRESH, TIMERS, request_t)
from kvcore._types cimport FRACTION_ONE, NO_SLOT, i128, int32_t, ns_t, uint64_t
from kvcore._wire cimport (
    take_count, take_flag, take_i32, take_i64, take_i128, take_number, take_u32, take_u64)
from kvcore.request cimport Request

from kvcore._journal_values import REQUEST
from kvcore.events import RequestArrived

cdef int64_t TOKENS_MAX = <int64_t>1 << 53

cdef enum:
    I32_MAX = 0x7FFFFFFF
    REQUEST_BYTES = 100            # less than any request takes
    BOOKING_BYTES = 40             # than any booking


cdef class RequestReader:
    def __cinit__(self, SnapshotFrame frame not None, Lifecycle lifecycle not None):
        self._frame = frame
        self._requests = lifecycle.requests
        self._backlog = lifecycle.backlog
        self._queue = lifecycle.backlog.queue
        self._fleet = lifecycle.fleet
        self._dispatcher = lifecycle.dispatcher
        self._policies = lifecycle.policies
        self._peers = PeerReader(frame, lifecycle.fleet, lifecycle.policies)
        self._seqs = set()
        self._waiting = {}
        self._started = []

    cdef int fill(self, int64_t block_size) except -1:
        cdef slot_t slot
        for _ in range(take_count(&self._frame.reader, REQUEST_BYTES)):
            slot = self._take_request(block_size)
            self._take_row(slot)
        self._start()
        self._peers.take()
        self._take_bookings()
        self._take_loads()
        return self._take_ages()

    cdef slot_t _take_request(self, int64_t block_size) except -1:
        """A row of its own for the next request, in state FREE."""
        cdef Request request = REQUEST.decode(self._frame.take_json(list))
        accept((RequestArrived(0, request),), 0, block_size, self._policies)
        if self._requests.find(request.request_id) != NO_SLOT:
            raise ValueError(f"request {request.request_id!r} is there twice")
        return self._requests.open(request, 0, block_size)

    cdef int _take_row(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef int32_t state = take_i32(&self._frame.reader, STATE_WAITING, STATE_EVICTED)
        cdef bint runs = state >= STATE_RUNNING
        cdef bint accepted
        cdef int32_t attempts
        cdef ns_t due_ns[TIMERS]
        cdef ns_t progress_ns
        cdef int i
        row.may_wait = take_flag(&self._frame.reader)
        accepted = take_flag(&self._frame.reader)
        row.heard = take_flag(&self._frame.reader)
        attempts = take_i32(&self._frame.reader, runs, I32_MAX)
        row.policy = take_i32(&self._frame.reader, NO_SLOT, self._queue.count - 1)
        if row.policy != NO_SLOT and not self._policies.manages(row.policy):
            raise ValueError("a request is managed by a policy that there is not")
        row.class_index = take_i32(&self._frame.reader, 0, self._queue.count - 1)
        row.arrival_ns = self._frame.take_past()
        row.seq = take_number(&self._frame.reader, 0, <int64_t>self._backlog.next_seq - 1)
        row.known_ns = self._frame.take_past()
        row.ticket = take_number(&self._frame.reader, 0, self._dispatcher.next_ticket - 1)
        row.context = take_number(&self._frame.reader, -1, TOKENS_MAX)
        row.attempt = take_number(&self._frame.reader, runs, self._dispatcher.next_attempt - 1)
        row.attempts = attempts
        for i in range(TIMERS):
            due_ns[i] = self._frame.take_due()
        progress_ns = self._frame.take_past()
        if row.seq in self._seqs:
            raise ValueError("two requests have the same place in time")
        if not runs and row.deadline_ns <= self._frame.now_ns:
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
        cdef ns_t lost_ns = take_i64(&self._frame.reader)
        if not self._fleet.graced or not row.keeps_pin or self._fleet.workers.ranks[row.pin].worker != NO_SLOT:
            return 0
        if not 0 <= lost_ns <= self._frame.now_ns:
            raise ValueError(f"a rank was lost at {lost_ns} ns, and it is {self._frame.now_ns} ns")
        self._fleet.workers.ranks[row.pin].lost_ns = lost_ns
        return 0

    cdef int _take_key(self, slot_t slot) except -1:
        """What was found when it came, and its place among those that wait."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting
        self._queue.waiting.reserve(slot + 1)
        waiting = &self._queue.waiting.rows[slot]
        waiting.key.tier = take_u32(&self._frame.reader)
        waiting.key.first = take_u64(&self._frame.reader)
        waiting.key.second = take_u64(&self._frame.reader)
        waiting.key.seq = row.seq
        waiting.raw = row.prompt
        waiting.cached = take_number(&self._frame.reader, 0, row.prompt)
        waiting.cost = take_number(&self._frame.reader, 0, max(1, row.prompt - waiting.cached))
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
        cdef int64_t count = take_count(&self._frame.reader, BOOKING_BYTES)
        if count != len(self._requests.in_state(STATE_RUNNING)):
            raise ValueError("there are not as many bookings as requests that run")
        self._fleet.ledger.reserve_slots(self._requests.ids.size)
        for _ in range(count):
            slot = take_i32(&self._frame.reader, 0, self._requests.ids.size - 1)
            if self._requests.rows[slot].state != STATE_RUNNING or self._requests.rows[slot].attempt <= last:
                raise ValueError("a booking is none of a request that runs, or not in its place")
            last = self._requests.rows[slot].attempt
            self._take_booking(slot)
        return self._peers.finish()

    cdef int _take_booking(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef uint64_t worker_id = take_u64(&self._frame.reader)
        cdef slot_t rank = self._fleet.workers.find_rank(worker_id, take_u32(&self._frame.reader))
        cdef bint prefilling = take_flag(&self._frame.reader)
        cdef int64_t prefill = take_number(&self._frame.reader, 0, row.prompt)
        cdef int32_t outputs = take_i32(&self._frame.reader, 0, I32_MAX)
        cdef int32_t outputs_decayed = take_i32(&self._frame.reader, 0, I32_MAX)
        cdef int32_t decayed_weight = take_i32(&self._frame.reader, 0, FRACTION_ONE)
        cdef int32_t at = 0
        cdef int32_t run, weight
        if rank == NO_SLOT:
            raise ValueError("a booking is on no rank")
        if prefilling and prefill > 0:
            self._peers.make_way(rank)
            row = &self._requests.rows[slot]   # the table may have grown
        self._fleet.ledger.book(
            slot, rank, prefill if prefilling else 0, row.sequence, row.sequence_length, row.outside, row.reserve)
        resume_booking(
            self._fleet.ledger, slot, prefilling, prefill, outputs, outputs_decayed, decayed_weight)
        while True:
            run = take_i32(&self._frame.reader, 0, row.sequence_length - at)
            weight = take_i32(&self._frame.reader, 0, FRACTION_ONE)
            for _ in range(run):
                resume_path(self._fleet.ledger, slot, at, weight)
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
            anchor_ns = self._frame.take_past()
            sequence = take_number(&self._frame.reader, -1, TOKENS_MAX)
            for j in range(3):
                reported[j] = take_number(&self._frame.reader, -1, TOKENS_MAX)
            for j in range(3):
                foreign[j] = take_number(&self._frame.reader, 0, TOKENS_MAX)
            resume_load(self._fleet.ledger, rank, anchor_ns, sequence, reported, foreign)
            self._fleet.start_report(rank, self._frame.take_due())
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
            for _ in range(take_count(&self._frame.reader, sizeof(int32_t) + sizeof(i128))):
                slot = take_i32(&self._frame.reader, 0, self._requests.ids.size - 1)
                take_i128(&self._frame.reader, &passed)
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
