"""Inspector: what can be read of a scheduler without changing it (DESIGN 3, item 7; DESIGN 6).

Owns the counters that nothing but statistics needs. Everything else is read from its owner.

The digest is BLAKE2b-128 over a canonical text of the state: live requests by id, ranks by (worker_id, dp_rank),
classes by index, the scheduler's counters and generator, the incrementally kept sums of the block indexes, and what is
known of other replicas, by name and attempt. It leaves out the last now_ns, statistics, remembered verdicts and memory
layout. Slow and plain on purpose: it runs rarely.
"""
import hashlib

from kvcore._drr cimport LIMIT_CACHED_TOKENS, LIMIT_RAW_TOKENS, LIMIT_REQUESTS, WINDOW, class_t
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._ledger cimport Ledger
from kvcore._ledger_audit cimport ledger_faults
from kvcore._load cimport booking_t, load_t, weight_of
from kvcore._requests cimport (
    STATE_DEFERRED, STATE_RUNNING, STATE_WAITING, TIMERS, request_t)
from kvcore._types cimport NO_SLOT, int32_t, saturated
from kvcore._workers cimport rank_t, worker_t
from kvcore.request cimport Overlap, Rank, Request, SelectionWeights

from kvcore.stats import ClassStats, SchedulerStats

cdef object INT64_TOP = 2**63 - 1


cdef class Inspector:
    def __cinit__(self, profile not None, RequestTable requests not None, PolicyQueue queue not None,
                  Fleet fleet not None):
        self._profile = profile
        self._requests = requests
        self._queue = queue
        self._fleet = fleet
        self._rejected = {}
        self._class_rejected = [0] * queue.count

    cdef int adopt(self, object before, object profile) except -1:
        """Other classes from now on; those of the same name keep their counters."""
        rejected = {item.name: count for item, count in zip(before.classes, self._class_rejected, strict=True)}
        self._class_rejected = [rejected.get(item.name, 0) for item in profile.classes]
        self._profile = profile
        return 0

    cdef int count_reject(self, object reason, slot_t class_index) except -1:
        self._rejected[reason] = self._rejected.get(reason, 0) + 1
        if class_index >= 0:
            self._class_rejected[class_index] += 1
        return 0

    cdef object stats(self):
        cdef slot_t i
        cdef slot_t live = self._requests.ids.count()
        cdef class_t* row
        cdef ClassQueue queue
        classes = []
        for i in range(self._queue.count):
            row = &self._queue.classes[i]
            queue = self._queue.queue(i)
            classes.append(ClassStats(
                self._profile.classes[i].name, self._queue.usage(i, LIMIT_REQUESTS),
                self._queue.usage(i, LIMIT_RAW_TOKENS), self._queue.usage(i, LIMIT_CACHED_TOKENS),
                saturated(queue.cost + queue.held_cost), row.deficit, row.dispatched, saturated(row.dispatched_cost),
                self._class_rejected[i]))
        return SchedulerStats(
            arrived=self.arrived, dispatched=self._queue.dispatched,
            rejected={reason.name: self._rejected[reason] for reason in sorted(self._rejected)},
            completed=self.completed, aborted=self.aborted, evicted=self.evicted, stale_events=self.stale,
            unknown_class_names=self.unknown_names, live_requests=live,
            waiting_requests=self._queue.size + self._queue.held,
            running_requests=self._running(), workers=self._fleet.workers.count(), ranks=self._fleet.workers.present,
            index_blocks=self._fleet.device.pairs + self._fleet.host.pairs + self._fleet.disk.pairs,
            retried=self.retried, over_cap_ranks=self._over_caps(), deferred_requests=self._queue.held,
            refreshing_requests=self._requests.refreshing, peers=self._fleet.exchange.board.count(),
            peer_bookings=self._fleet.exchange.board.bookings(), classes=tuple(classes))

    cdef int64_t _over_caps(self):
        """Ranks whose bookings exceed their caps: growth beyond reserves, or caps that were lowered (DESIGN D8)."""
        cdef slot_t i
        cdef int64_t over = 0
        cdef load_t* load
        for i in range(self._fleet.workers.present):
            load = &self._fleet.ledger.loads[self._fleet.workers.order[i]]
            over += load.requests > load.max_requests or saturated(load.held) > load.max_blocks
        return over

    cdef int64_t _running(self):
        cdef slot_t i
        cdef int64_t running = -self._fleet.exchange.board.bookings()
        for i in range(self._fleet.workers.present):
            running += self._fleet.ledger.loads[self._fleet.workers.order[i]].requests
        return running

    cdef str digest(self, tuple scalars):
        hasher = hashlib.blake2b(digest_size=16)
        hasher.update(repr((
            scalars, self._queue.cursor, <int>self._queue.visit, self._fleet.device.mixed, self._fleet.host.mixed,
            self._fleet.disk.mixed, 0 if self._fleet.predicted is None else self._fleet.predicted.mixed,
            self._fleet.ledger.active.index.mixed, self._fleet.empty_ns, self._class_state(),
            self._rank_state())).encode())
        for request_id in sorted(self._requests.ids.live()):
            hasher.update(repr((request_id, self._request_state(self._requests.find(request_id)))).encode())
        for row in (*self._fleet.exchange.board.dump(), *self._fleet.exchange.dump()):
            hasher.update(repr(row).encode())
        return hasher.hexdigest()

    cdef tuple _request_state(self, slot_t slot):
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting
        cdef booking_t* booking
        cdef rank_t* rank
        cdef int32_t i
        waiting = &self._queue.waiting.rows[slot]
        common = (<int>row.state, row.class_index, row.prompt, row.arrival_ns, row.deadline_ns, row.attempt,
                  row.attempts, [row.path[i] for i in range(row.path_length)],
                  [row.sequence[i] for i in range(row.sequence_length)],
                  _wishes(self._requests.request(slot)), row.track_prefill, row.outside, row.reserve, waiting.key.tier,
                  waiting.key.first, waiting.key.second, row.seq, waiting.cached, waiting.cost, row.policy, row.heard,
                  row.context, row.known_ns, self._pin_state(slot))
        if row.state < STATE_RUNNING:
            return (common, [row.due_ns[i] for i in range(TIMERS)], row.ticket)
        if row.state != STATE_RUNNING:
            return (common, row.progress_ns)
        booking = &self._fleet.ledger.bookings[slot]
        rank = &self._fleet.workers.ranks[booking.rank]
        return (common, row.progress_ns, row.accepted, rank.worker_id, rank.dp_rank, booking.prefilling,
                booking.prefill, booking.outputs, booking.outputs_decayed, booking.decayed_weight,
                booking.private_blocks, booking.reserve_blocks, self._weights(slot))

    cdef tuple _pin_state(self, slot_t slot):
        """The rank that a request is pinned to, and since when it is lost."""
        cdef rank_t* rank
        if self._requests.rows[slot].pin == NO_SLOT:
            return ()
        rank = &self._fleet.workers.ranks[self._requests.rows[slot].pin]
        return (rank.worker_id, rank.dp_rank, rank.lost_ns)

    cdef list _weights(self, slot_t slot):
        """Weights of a booking's prompt blocks on its rank: sticky, so part of the state."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef Ledger ledger = self._fleet.ledger
        cdef slot_t rank = ledger.bookings[slot].rank
        cdef int32_t i
        return [weight_of(ledger.bookings, &ledger.active.rows[ledger.active.find(row.sequence[i], rank)])
                for i in range(row.sequence_length)]

    cdef list _class_state(self):
        cdef slot_t i
        cdef int64_t at
        cdef class_t* row
        classes = []
        for i in range(self._queue.count):
            row = &self._queue.classes[i]
            window = [(row.times[at % WINDOW], row.costs[at % WINDOW])
                      for at in range(max(0, row.charged - WINDOW), row.charged)]
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
            ranks.append((
                worker.worker_id, self._fleet.workers.ranks[rank].dp_rank, worker.incarnation,
                load.max_batched_tokens, load.max_blocks, load.max_requests, load.prefill_rate,
                sorted(self._fleet.workers.taints.taints_of(worker.taints)), saturated(load.prefill), load.weight,
                load.requests, saturated(load.held), self._fleet.marks.marks_of(self._fleet.workers.ranks[rank].worker),
                load.anchor_ns, self._fifo(rank), self._fleet.report_end_ns(rank), load.reported_sequence,
                load.reported_prefill, load.reported_blocks, load.reported_requests, load.foreign_prefill,
                load.foreign_blocks, load.foreign_requests))
        return ranks

    cdef list _fifo(self, slot_t rank):
        """Attempts that prefill on a rank whose load decays, the one in front first; of peers with their names."""
        cdef slot_t slot = self._fleet.ledger.loads[rank].fifo_first
        attempts = []
        while slot != NO_SLOT:
            attempts.append(self._fleet.exchange.name_of(slot) or self._requests.rows[slot].attempt)
            slot = self._fleet.ledger.bookings[slot].fifo_next
        return attempts

    cdef list audit(self):
        faults = []
        self._audit_ranks(faults)
        self._audit_classes(faults)
        return faults

    cdef int _audit_ranks(self, list faults) except -1:
        """The ledger against itself; its bookings against the requests that run; states of ranks against marks."""
        cdef slot_t slot, i, rank
        cdef request_t* row
        cdef booking_t* booking
        cdef int64_t running = 0
        faults.extend(ledger_faults(self._fleet.ledger))
        faults.extend(self._fleet.exchange.faults())
        for request_id in self._requests.ids.live():
            slot = self._requests.find(request_id)
            row = &self._requests.rows[slot]
            if row.state != STATE_RUNNING:
                continue
            running += 1
            booking = &self._fleet.ledger.bookings[slot]
            if booking.rank == NO_SLOT or self._fleet.workers.ranks[booking.rank].worker == NO_SLOT:
                faults.append(f"{request_id!r} runs and is booked nowhere")
            elif booking.path != row.sequence or booking.length != row.sequence_length:
                faults.append(f"{request_id!r} is booked with blocks that are not its own")
        if running != self._running():
            faults.append(f"{self._running()} bookings, {running} requests run")
        for i in range(self._fleet.workers.present):
            rank = self._fleet.workers.order[i]
            if self._fleet.ledger.loads[rank].state != self._fleet.marks.state(self._fleet.workers.ranks[rank].worker):
                faults.append(f"rank slot {rank}: its state is not what is said of its worker")
        return 0

    cdef int _audit_classes(self, list faults) except -1:
        """Each class's counters against the sums over waiting requests; an empty class has no credit."""
        cdef slot_t slot, i
        cdef waiting_t* waiting
        cdef ClassQueue queue
        sums = [[0, 0, 0, 0] for _ in range(self._queue.count)]
        for request_id in self._requests.ids.live():
            slot = self._requests.find(request_id)
            if self._requests.rows[slot].state in (STATE_WAITING, STATE_DEFERRED):
                waiting = &self._queue.waiting.rows[slot]
                total = sums[waiting.class_index]
                for at, value in enumerate((1, waiting.raw, waiting.cached, waiting.cost)):
                    total[at] += value
        for i in range(self._queue.count):
            queue = self._queue.queue(i)
            held = [queue.size + queue.held, saturated(queue.raw + queue.held_raw),
                    saturated(queue.cached + queue.held_cached), saturated(queue.cost + queue.held_cost)]
            if held != [min(total, INT64_TOP) for total in sums[i]]:
                faults.append(f"class {i}: counters {held} are not the sums {sums[i]} of what waits")
            if queue.size == 0 and self._queue.classes[i].deficit != 0:
                faults.append(f"class {i}: empty with deficit {self._queue.classes[i].deficit}")
        return 0


cdef tuple _wishes(Request request):
    """What a waiting request asks of ranks."""
    cdef SelectionWeights weights = request.weights
    allowed = None if request.allowed_workers is None else sorted(request.allowed_workers)
    return (allowed, sorted(request.required_taints), request.preferred_taints, None if weights is None else (
        weights.overlap_score_credit, weights.overlap_score_credit_decay, weights.prefill_load_scale,
        weights.host_cache_hit_weight, weights.disk_cache_hit_weight, weights.shared_cache_multiplier,
        weights.active_request_weight, weights.temperature), _told(request.overlap))


cdef tuple _told(Overlap overlap):
    if overlap is None:
        return None
    return (*[
        [((<Rank>name).worker_id, (<Rank>name).dp_rank, value) for name, value in pairs]
        for pairs in (overlap.device, overlap.host, overlap.disk, overlap.effective, overlap.cached_tokens)
    ], overlap.shared)
