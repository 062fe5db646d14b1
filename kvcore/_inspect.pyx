"""Inspector: what can be read of a scheduler without changing it (DESIGN 3, item 7; DESIGN 6).

Owns the counters that nothing but statistics needs. Everything else is read from its owner.

The digest is BLAKE2b-128 over a canonical text of the state: live requests by id, ranks by (worker_id, dp_rank),
classes by index, the scheduler's counters and generator, and the incrementally kept sums of the block indexes. It
leaves out the last now_ns, statistics, remembered verdicts and memory layout. Slow and plain on purpose: it runs
rarely.
"""
import hashlib

import numpy

from kvcore._drr cimport LIMIT_CACHED_TOKENS, LIMIT_RAW_TOKENS, LIMIT_REQUESTS, WINDOW, class_t
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._ledger cimport active_blocks, booking_t, load_t, output_weight
from kvcore._requests cimport STATE_RUNNING, STATE_WAITING, request_t
from kvcore._types cimport NO_SLOT, int32_t, saturated, uint32_t, uint64_t
from kvcore._workers cimport rank_t, worker_t
from kvcore.request cimport Rank, Request

from kvcore.stats import ClassStats, SchedulerStats

#: One row of `Scheduler.loads()`. prefill_tokens saturates at 2^63 - 1; active_blocks is rounded half up.
LOAD_DTYPE = numpy.dtype([
    ("worker_id", "<u8"), ("dp_rank", "<u4"), ("requests", "<i4"), ("prefill_tokens", "<i8"), ("active_blocks", "<i8")])

cdef object INT64_TOP = 2**63 - 1


cdef packed struct load_row_t:
    uint64_t worker_id
    uint32_t dp_rank
    int32_t requests
    int64_t prefill_tokens
    int64_t active_blocks


cdef class Inspector:
    def __cinit__(self, profile not None, RequestTable requests not None, PolicyQueue queue not None,
                  Fleet fleet not None):
        self._profile = profile
        self._requests = requests
        self._queue = queue
        self._fleet = fleet
        self._rejected = {}
        self._class_rejected = [0] * queue.count

    cdef int count_reject(self, object reason, slot_t class_index) except -1:
        self._rejected[reason] = self._rejected.get(reason, 0) + 1
        if class_index >= 0:
            self._class_rejected[class_index] += 1
        return 0

    cdef object loads(self):
        cdef slot_t i, rank
        cdef load_row_t[:] view
        table = numpy.empty(self._fleet.workers.present, LOAD_DTYPE)
        if self._fleet.workers.present == 0:
            return table
        view = table
        for i in range(self._fleet.workers.present):
            rank = self._fleet.workers.order[i]
            view[i].worker_id = self._fleet.workers.ranks[rank].worker_id
            view[i].dp_rank = self._fleet.workers.ranks[rank].dp_rank
            view[i].requests = self._fleet.ledger.loads[rank].requests
            view[i].prefill_tokens = saturated(self._fleet.ledger.loads[rank].prefill)
            view[i].active_blocks = active_blocks(&self._fleet.ledger.loads[rank])
        return table

    cdef object stats(self):
        cdef slot_t i
        cdef slot_t live = self._requests.ids.count()
        cdef int64_t dispatched = 0
        cdef class_t* row
        cdef ClassQueue queue
        classes = []
        for i in range(self._queue.count):
            row = &self._queue.classes[i]
            queue = self._queue.queue(i)
            dispatched += row.dispatched
            classes.append(ClassStats(
                self._profile.classes[i].name, self._queue.usage(i, LIMIT_REQUESTS),
                self._queue.usage(i, LIMIT_RAW_TOKENS), self._queue.usage(i, LIMIT_CACHED_TOKENS),
                saturated(queue.cost), row.deficit, row.dispatched, saturated(row.dispatched_cost),
                self._class_rejected[i]))
        return SchedulerStats(
            arrived=self.arrived, dispatched=dispatched,
            rejected={reason.name: self._rejected[reason] for reason in sorted(self._rejected)},
            completed=self.completed, aborted=self.aborted, evicted=self.evicted, stale_events=self.stale,
            unknown_class_names=self.unknown_names, live_requests=live, waiting_requests=self._queue.size,
            running_requests=self._running(), workers=self._fleet.workers.count(), ranks=self._fleet.workers.present,
            index_blocks=self._fleet.cached.pairs, classes=tuple(classes))

    cdef int64_t _running(self):
        cdef slot_t i
        cdef int64_t running = 0
        for i in range(self._fleet.workers.present):
            running += self._fleet.ledger.loads[self._fleet.workers.order[i]].requests
        return running

    cdef str digest(self, tuple scalars):
        hasher = hashlib.blake2b(digest_size=16)
        hasher.update(repr((
            scalars, self._queue.cursor, <int>self._queue.visit, self._fleet.cached.mixed,
            self._fleet.ledger.active.mixed, self._class_state(), self._rank_state())).encode())
        for request_id in sorted(self._requests.ids.live()):
            hasher.update(repr((request_id, self._request_state(self._requests.find(request_id)))).encode())
        return hasher.hexdigest()

    cdef tuple _request_state(self, slot_t slot):
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting
        cdef booking_t* booking
        cdef rank_t* rank
        cdef Request request
        cdef int32_t i
        common = (<int>row.state, row.class_index, row.prompt, row.arrival_ns, row.deadline_ns, row.attempt,
                  [row.path[i] for i in range(row.path_length)], [row.sequence[i] for i in range(row.sequence_length)])
        if row.state == STATE_WAITING:
            waiting = &self._queue.waiting.rows[slot]
            pin = None
            if row.pin != NO_SLOT:
                pin = (self._fleet.workers.ranks[row.pin].worker_id, self._fleet.workers.ranks[row.pin].dp_rank)
            request = self._requests.request(slot)
            allowed = None if request.allowed_workers is None else sorted(request.allowed_workers)
            overlap = None if request.overlap is None else [
                ((<Rank>name).worker_id, (<Rank>name).dp_rank, blocks) for name, blocks in request.overlap.device]
            return (common, pin, allowed, sorted(request.required_taints), overlap, row.track_prefill,
                    waiting.key.tier, waiting.key.first, waiting.key.second, waiting.key.seq, waiting.cached,
                    waiting.cost)
        if row.state != STATE_RUNNING:
            return (common, row.progress_ns)
        booking = &self._fleet.ledger.bookings[slot]
        rank = &self._fleet.workers.ranks[booking.rank]
        return (common, row.progress_ns, rank.worker_id, rank.dp_rank, booking.prefilling, booking.prefill,
                booking.outputs, booking.outputs_decayed, booking.decayed_weight, self._weights(slot))

    cdef list _weights(self, slot_t slot):
        """Weights of a booking's prompt blocks on its rank: sticky, so part of the state."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef slot_t rank = self._fleet.ledger.bookings[slot].rank
        cdef int32_t i
        return [self._fleet.ledger.active.holders[self._fleet.ledger.active.find(row.sequence[i], rank)].weight
                for i in range(row.sequence_length)]

    cdef list _class_state(self):
        cdef slot_t i
        cdef int64_t at
        cdef class_t* row
        classes = []
        for i in range(self._queue.count):
            row = &self._queue.classes[i]
            window = [(row.times[at % WINDOW], row.costs[at % WINDOW])
                      for at in range(max(0, row.dispatched - WINDOW), row.dispatched)]
            classes.append((self._profile.classes[i].name, row.deficit, window))
        return classes

    cdef list _rank_state(self):
        cdef slot_t i, rank
        cdef load_t* load
        cdef worker_t* worker
        ranks = []
        for i in range(self._fleet.workers.present):
            rank = self._fleet.workers.order[i]
            load = &self._fleet.ledger.loads[rank]
            worker = &self._fleet.workers.workers[self._fleet.workers.ranks[rank].worker]
            ranks.append((worker.worker_id, self._fleet.workers.ranks[rank].dp_rank, worker.incarnation,
                          worker.max_batched_tokens, sorted(self._fleet.workers.taints.taints_of(worker.taints)),
                          saturated(load.prefill), load.weight, load.requests))
        return ranks

    cdef list audit(self):
        faults = []
        self._audit_ranks(faults)
        self._audit_classes(faults)
        return faults

    cdef int _audit_ranks(self, list faults) except -1:
        """Each rank's totals against the sums over live bookings; counters of free ranks against a recount."""
        cdef slot_t slot, i, rank, pair, free
        cdef request_t* row
        cdef booking_t* booking
        cdef int32_t j
        cdef load_t* load
        expected = {}
        blocks = {}
        for request_id in self._requests.ids.live():
            slot = self._requests.find(request_id)
            row = &self._requests.rows[slot]
            if row.state != STATE_RUNNING:
                continue
            booking = &self._fleet.ledger.bookings[slot]
            total = expected.setdefault(booking.rank, [0, 0, 0])
            total[0] += booking.prefill if booking.prefilling else 0
            total[1] += output_weight(booking)
            total[2] += 1
            for j in range(row.sequence_length):
                pair_key = (row.sequence[j], booking.rank)
                blocks[pair_key] = blocks.get(pair_key, 0) + 1
        for (block_hash, of_rank), count in blocks.items():
            j = self._fleet.ledger.active.find(block_hash, of_rank)
            if j == NO_SLOT or self._fleet.ledger.active.holders[j].count != count:
                faults.append(f"block {block_hash} on rank slot {of_rank}: count is not {count}")
            else:
                expected[of_rank][1] += self._fleet.ledger.active.holders[j].weight
        if len(blocks) != self._fleet.ledger.active.pairs:
            faults.append(f"active blocks: {self._fleet.ledger.active.pairs} held, {len(blocks)} in live bookings")
        for i in range(self._fleet.workers.present):
            rank = self._fleet.workers.order[i]
            load = &self._fleet.ledger.loads[rank]
            held = [saturated(load.prefill), load.weight, load.requests]
            total = expected.pop(rank, [0, 0, 0])
            if held != [min(total[0], INT64_TOP), total[1], total[2]]:
                faults.append(f"rank slot {rank}: load {held} is not the sum of its bookings")
        if expected:
            faults.append(f"bookings on absent rank slots {sorted(expected)}")
        for pair in range(self._fleet.ledger.pairs):
            free = 0
            for i in range(self._fleet.workers.present):
                free += not self._fleet.ledger.busy(self._fleet.workers.order[i], pair)
            if free != self._fleet.ledger.free[pair]:
                faults.append(f"threshold pair {pair}: {self._fleet.ledger.free[pair]} free ranks counted, {free} are")
        return 0

    cdef int _audit_classes(self, list faults) except -1:
        """Each class's counters against the sums over waiting requests; an empty class has no credit."""
        cdef slot_t slot, i
        cdef waiting_t* waiting
        cdef ClassQueue queue
        sums = [[0, 0, 0, 0] for _ in range(self._queue.count)]
        for request_id in self._requests.ids.live():
            slot = self._requests.find(request_id)
            if self._requests.rows[slot].state == STATE_WAITING:
                waiting = &self._queue.waiting.rows[slot]
                total = sums[waiting.class_index]
                for at, value in enumerate((1, waiting.raw, waiting.cached, waiting.cost)):
                    total[at] += value
        for i in range(self._queue.count):
            queue = self._queue.queue(i)
            held = [queue.size, saturated(queue.raw), saturated(queue.cached), saturated(queue.cost)]
            if held != [min(total, INT64_TOP) for total in sums[i]]:
                faults.append(f"class {i}: counters {held} are not the sums {sums[i]} of what waits")
            if queue.size == 0 and self._queue.classes[i].deficit != 0:
                faults.append(f"class {i}: empty with deficit {self._queue.classes[i].deficit}")
        return 0
