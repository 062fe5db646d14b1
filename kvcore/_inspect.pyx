"""Inspector: statistics, and the audit of all totals (DESIGN 3, item 7; DESIGN 6).

Owns the counters that nothing but statistics needs. Everything else is read from its owner. The digest is another's
business (_digest).
"""
from kvcore._drr cimport LIMIT_CACHED_TOKENS, LIMIT_RAW_TOKENS, LIMIT_REQUESTS, class_t
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._ledger_audit cimport ledger_faults
from kvcore._load cimport booking_t, load_t
from kvcore._requests cimport STATE_DEFERRED, STATE_RUNNING, STATE_WAITING, request_t
from kvcore._types cimport NO_SLOT, saturated

from kvcore.stats import ClassStats, SchedulerStats

cdef object INT64_TOP = 2**63 - 1


cdef class Inspector:
    def __cinit__(self, profile not None, RequestTable requests not None, PolicyQueue queue not None,
                  Fleet fleet not None):
        self._profile = profile
        self._requests = requests
        self._queue = queue
        self._fleet = fleet
        self.rejected = {}
        self.class_rejected = [0] * queue.count

    cdef int adopt(self, object before, object profile) except -1:
        """Other classes from now on; those of the same name keep their counters."""
        rejected = {item.name: count for item, count in zip(before.classes, self.class_rejected, strict=True)}
        self.class_rejected = [rejected.get(item.name, 0) for item in profile.classes]
        self._profile = profile
        return 0

    cdef int count_reject(self, object reason, slot_t class_index) except -1:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1
        if class_index >= 0:
            self.class_rejected[class_index] += 1
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
                self.class_rejected[i]))
        return SchedulerStats(
            arrived=self.arrived, dispatched=self._queue.dispatched,
            rejected={reason.name: self.rejected[reason] for reason in sorted(self.rejected)},
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
