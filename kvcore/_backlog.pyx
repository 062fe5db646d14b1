"""Backlog: from the moment an arrival has been let in until it is popped or taken out.

Owns the counter of arrival order, the queue, and the list of what the present batch has stored (who of it is left
decides about Parks and about requests that may not wait). It keeps pins of the worker table and timers of the request
table in step with what is stored, ready to run or held back by an admission policy.

It words the refusal of what may not wait, and the Parks. Never here: whether a limit refuses, what becomes of a popped
request.
"""
from libc.stdlib cimport free, qsort
from kvcore._drr cimport LIMIT_REQUESTS
from kvcore._keys cimport fill_key, order_named
from kvcore._lanes cimport ClassQueue, open_lanes, waiting_t
from kvcore._load cimport RANK_OPEN
from kvcore._placement cimport runs_now
from kvcore._requests cimport STATE_DEFERRED, STATE_WAITING, TIMER_GRACE, TIMER_LOOK, request_t
from kvcore._types cimport NEVER_NS, NO_SLOT, NS_END, ceil_div, int32_t, resize
from kvcore.actions cimport make_reject

from kvcore.actions import RejectReason

cdef tuple FULL_REASONS = (
    RejectReason.QUEUE_FULL_REQUESTS, RejectReason.QUEUE_FULL_RAW_TOKENS, RejectReason.QUEUE_FULL_CACHED_TOKENS)


cdef int by_seq(const void* one, const void* other) noexcept nogil:
    cdef uint64_t first = (<const stored_t*>one).seq
    cdef uint64_t second = (<const stored_t*>other).seq
    return (first > second) - (first < second)


cdef class Backlog:
    def __cinit__(self, config not None, RequestTable requests not None, Fleet fleet not None,
                  Placement placement not None):
        profile = config.effective_profile()
        self._look_every_ns = config.overload_wait_ns if placement.sits_out else NEVER_NS
        self.queue = PolicyQueue(profile)
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self.adopt(profile)

    def __dealloc__(self):
        free(self._orders)
        free(self._stored)

    cdef int adopt(self, profile) except -1:
        """Requests fall into these classes from now on; the queue is another's business."""
        cdef slot_t i
        self.classes = Classifier(profile)
        self.classes.learn(self._requests.names)
        resize(<void**>&self._orders, len(profile.classes) * sizeof(order_t))
        for i, item in enumerate(profile.classes):
            self._orders[i] = order_named(item.queue_policy.value)
        return 0

    cdef int classify(self, slot_t slot, Request request) except -1:
        """Snapshot, class and key of an arriving request, with the next seq. Stores nothing."""
        self._requests.rows[slot].seq = self.next_seq
        self.snapshot(slot, request)
        self.arrange(slot, request)
        self._may_wait(slot)
        return 0

    cdef int classify_record(self, slot_t slot) except -1 nogil:
        """`classify` for a request that has come as a record; the classifier knows its class's name."""
        cdef request_t* row = &self._requests.rows[slot]
        row.seq = self.next_seq
        self.queue.waiting.reserve(slot + 1)
        self._price(slot, self._placement.best_cached_anywhere(slot))
        self._arrange(slot, &self.classes.unnamed if row.class_name < 0 else &self.classes.numbered[row.class_name])
        self._may_wait(slot)
        return 0

    cdef void _may_wait(self, slot_t slot) noexcept nogil:
        """Whether an arriving request may wait in its class at all."""
        cdef request_t* row = &self._requests.rows[slot]
        row.may_wait = not (row.do_not_queue or self.queue.classes[row.class_index].never_waits)

    cdef int snapshot(self, slot_t slot, Request request) except -1:
        """What of the prompt is cached where it may run, and so its cost (DESIGN D1)."""
        cdef request_t* row = &self._requests.rows[slot]
        if request.pinned is not None and not row.keeps_pin:
            row.pin = self._fleet.workers.find_rank(request.pinned.worker_id, request.pinned.dp_rank)
        self.queue.waiting.reserve(slot + 1)
        self._price(slot, self._placement.best_cached(slot, request))
        return 0

    cdef void _price(self, slot_t slot, tokens_t cached) noexcept nogil:
        cdef waiting_t* waiting = &self.queue.waiting.rows[slot]
        waiting.raw = self._requests.rows[slot].prompt
        waiting.cached = cached
        waiting.cost = max(<tokens_t>1, waiting.raw - cached)

    cdef int arrange(self, slot_t slot, Request request) except -1:
        """Class (DESIGN D2) and key (D3) that follow from the snapshot; its place in time stays."""
        cdef meaning_t meaning = self.classes.unnamed
        if request.policy_class is not None:
            meaning = self.classes.meaning(request.policy_class)
        self._arrange(slot, &meaning)
        return 0

    cdef void _arrange(self, slot_t slot, const meaning_t* meaning) noexcept nogil:
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting = &self.queue.waiting.rows[slot]
        row.class_index = self.classes.class_of(meaning, waiting.raw - waiting.cached)
        fill_key(&waiting.key, self._orders[row.class_index], row.strict_priority, row.priority_jump,
                 row.arrival_ns, row.deadline_ns, max(<tokens_t>1, waiting.raw - waiting.cached))
        waiting.key.seq = row.seq

    cdef void begin_batch(self) noexcept nogil:
        self.stored = 0
        self._asked = 0
        self._mixed = False
        self._asked_anew = False

    cdef int store(self, slot_t slot) except -1 nogil:
        """Let a classified request wait in its class. Takes a seq; limits have been tested."""
        self.next_seq += 1
        self._note(slot)
        return self._enter(slot)

    cdef bint pass_by(self, slot_t slot) noexcept nogil:
        """Whether a classified request that is alone in its step goes straight on: nothing waits, and it may run.

        True: it has taken a seq, and all is as if it had been stored and popped.
        """
        cdef slot_t class_index = self._requests.rows[slot].class_index
        if self._fleet.graced or not self.queue.would_take(class_index):
            return False
        if not runs_now(<void*>self._placement, class_index, slot):
            return False
        self.next_seq += 1
        self.queue.pass_by(class_index)
        return True

    cdef int defer(self, slot_t slot) except -1:
        """Hold a classified request back in its class. Takes a seq; limits have been tested."""
        self.next_seq += 1
        self._note(slot)
        self.keep_pin(slot)
        self._requests.wait(slot, STATE_DEFERRED, self._requests.rows[slot].seq)
        self.queue.hold(slot, self._requests.rows[slot].class_index)
        return 0

    cdef int put_back(self, slot_t slot) except -1:
        """Let a request wait again, where it stood: with its key, seq and snapshot, free of charge (DESIGN D11)."""
        self.queue.waiting.rows[slot].cost = 0
        return self.come_back(slot)

    cdef int come_back(self, slot_t slot) except -1:
        """Let a request that is stored nowhere, and has a seq, wait in its class."""
        self._note(slot)
        self._mixed = True
        self._asked_anew = self._asked_anew or not self._requests.rows[slot].may_wait
        return self._enter(slot)

    cdef int rejoin(self, slot_t slot, bint deferred) except -1:
        """Like come_back or defer, but nobody needs to hear of it: the classes have changed, not the request."""
        if not deferred:
            return self._enter(slot)
        self._requests.wait(slot, STATE_DEFERRED, self._requests.rows[slot].seq)
        self.queue.hold(slot, self._requests.rows[slot].class_index)
        return 0

    cdef int _enter(self, slot_t slot) except -1 nogil:
        """Into its class, ready to run."""
        cdef request_t* row = &self._requests.rows[slot]
        self.keep_pin(slot)
        self._requests.wait(slot, STATE_WAITING, row.seq)
        self._requests.set_timer(slot, TIMER_LOOK, self._first_look_ns(row))
        if self._fleet.graced:
            with gil:
                self._set_grace(slot)
        self.queue.waiting.choosy[slot] = row.constrained
        return self.queue.push(slot, row.class_index, row.pin)

    cdef int _note(self, slot_t slot) except -1 nogil:
        """Into the list of what this batch has stored."""
        if self.stored == self._stored_room:
            resize(<void**>&self._stored, max(<int64_t>16, 2 * self._stored_room) * sizeof(stored_t))
            self._stored_room = max(<int64_t>16, 2 * self._stored_room)
        self._stored[self.stored].slot = slot
        self._stored[self.stored].seq = self._requests.rows[slot].seq
        self.stored += 1
        return 0

    cdef int keep_pin(self, slot_t slot) except -1 nogil:
        """The row of the rank that a request is pinned to stays what it is until the request ends."""
        if self._requests.rows[slot].constrained:
            with gil:
                self._keep_pin(slot)
        return 0

    cdef int _keep_pin(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        cdef Rank pinned = self._requests.request(slot).pinned
        if pinned is None or row.keeps_pin:
            return 0
        row.pin = self._fleet.expect_rank(pinned.worker_id, pinned.dp_rank)
        self._fleet.workers.pin(row.pin)
        row.keeps_pin = True
        return 0

    cdef int follow_fleet(self) except -1:
        """Ranks have been lost or found: start and stop the graces of those who wait for them."""
        cdef slot_t rank, slot
        cdef slot_t class_index
        if self._fleet.emptied:
            for slot in self._requests.in_state(STATE_WAITING):
                self._set_grace(slot)
        for rank in self._fleet.turned:
            for class_index in range(self.queue.count):
                for slot in self.queue.queue(class_index).items_of(rank):
                    self._set_grace(slot)
        self._fleet.emptied = False
        self._fleet.turned.clear()
        return 0

    cdef int _set_grace(self, slot_t slot) except -1:
        """The timer runs while the request waits for what the fleet has lost."""
        cdef ns_t end_ns = self._fleet.grace_end_ns(
            self._requests.request(slot).pinned, self._requests.rows[slot].arrival_ns)
        if end_ns != NEVER_NS and end_ns <= self._fleet.ledger.now_ns:
            end_ns = NEVER_NS
        return self._requests.set_timer(slot, TIMER_GRACE, end_ns)

    cdef void sort_stored(self) noexcept nogil:
        """What this batch has stored, by seq; what was put back stands where it stood, once."""
        cdef int64_t i
        cdef int64_t kept = 0
        if not self._mixed:
            return
        qsort(self._stored, self.stored, sizeof(stored_t), by_seq)
        for i in range(self.stored):
            if i == 0 or self._stored[i].seq != self._stored[kept - 1].seq:
                self._stored[kept] = self._stored[i]
                kept += 1
        self.stored = kept
        self._mixed = False

    cdef ns_t _first_look_ns(self, const request_t* row) noexcept nogil:
        """When a request that begins to wait is first looked at: a whole number of periods after its arrival."""
        cdef ns_t last_ns = row.arrival_ns
        if self._look_every_ns != NEVER_NS:
            last_ns += (self._fleet.ledger.now_ns - row.arrival_ns) // self._look_every_ns * self._look_every_ns
        return self._next_look_ns(row, last_ns)

    cdef ns_t _next_look_ns(self, const request_t* row, ns_t last_ns) noexcept nogil:
        """When a request is next looked at for overload (DESIGN D7), NEVER_NS if it is not."""
        if self._look_every_ns == NEVER_NS or not row.may_wait or not self._placement.queues(row.class_index):
            return NEVER_NS
        return last_ns + self._look_every_ns if last_ns + self._look_every_ns < NS_END else NEVER_NS

    cdef int look_again(self, slot_t slot, ns_t idle_until_ns) except -1:
        """The look that was due first has been taken; looks before idle_until_ns can be left out."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef ns_t last_ns = row.due_ns[<int>TIMER_LOOK]
        if idle_until_ns > last_ns + self._look_every_ns:
            last_ns += (ceil_div(idle_until_ns - last_ns, self._look_every_ns) - 1) * self._look_every_ns
        return self._requests.set_timer(slot, TIMER_LOOK, self._next_look_ns(row, last_ns))

    cdef int withdraw(self, slot_t slot) except -1 nogil:
        """Take a waiting or deferred request out of its class; its row stays live, in state FREE."""
        if self._requests.rows[slot].state == STATE_DEFERRED:
            self.queue.unhold(slot)
        else:
            self.queue.remove(slot)
        self._requests.stop_waiting(slot)
        return 0

    cdef slot_t still_waiting(self, int64_t i) noexcept nogil:
        """The request that this batch stored as its i-th, if it still waits or is deferred; else NO_SLOT."""
        cdef stored_t* entry = &self._stored[i]
        cdef request_t* row = &self._requests.rows[entry.slot]
        if row.state != STATE_WAITING and row.state != STATE_DEFERRED:
            return NO_SLOT
        return entry.slot if row.seq == entry.seq else NO_SLOT

    cdef int park(self, Outbox outbox) except -1 nogil:
        """Tell of everything that this batch has stored and that still waits, by seq."""
        cdef int64_t i
        cdef slot_t slot
        self.sort_stored()
        for i in range(self.stored):
            slot = self.still_waiting(i)
            if slot != NO_SLOT:
                outbox.park(slot, self._requests.rows[slot].state == STATE_DEFERRED)
        return 0

    cdef slot_t next_leftover(self) noexcept nogil:
        """The next request of this batch, by seq, that still waits and may not; or NO_SLOT. O(batch) in all."""
        cdef slot_t slot
        if self._asked_anew:
            self.sort_stored()
            self._asked = 0
            self._asked_anew = False
        while self._asked < self.stored:
            slot = self.still_waiting(self._asked)
            self._asked += 1
            if slot != NO_SLOT and not self._requests.rows[slot].may_wait:
                return slot
        return NO_SLOT

    cdef limit_t limit_hit(self, slot_t slot, int64_t* current, int64_t* bound) noexcept nogil:
        """The first limit of its class that refuses a classified request, with usage and bound; or LIMIT_NONE."""
        return self.queue.limit_hit(
            self._requests.rows[slot].class_index, self._fleet.workers.count(), current, bound)

    cdef Reject refused(self, slot_t slot, str request_id, object reason):
        """The Reject of a classified request for a reason that needs no figures."""
        return make_reject(request_id, reason, self._requests.rows[slot].class_index)

    cdef Reject queue_full(self, slot_t slot, str request_id, limit_t kind, int64_t current, int64_t bound):
        """The Reject of a request that meets a limit of its class, with a hint when to come again (DESIGN D18)."""
        cdef int64_t retry_ns = self.queue.retry_after_ns(self._requests.rows[slot].class_index, current, bound)
        cdef Reject action = self.refused(slot, request_id, FULL_REASONS[<int>kind])
        action.current = current
        action.limit = bound
        action.retry_after_ns = None if retry_ns < 0 else retry_ns
        return action

    cdef Reject would_queue(self, slot_t slot, str request_id):
        """The Reject of a request that may not wait: its class's first limit of zero, else WOULD_QUEUE (DESIGN D6)."""
        cdef slot_t class_index = self._requests.rows[slot].class_index
        cdef int kind = LIMIT_REQUESTS
        if not self.queue.classes[class_index].never_waits:
            return self.refused(slot, request_id, RejectReason.WOULD_QUEUE)
        while self.queue.classes[class_index].limits[kind] != 0:
            kind += 1
        return self.queue_full(slot, request_id, <limit_t>kind, self.queue.usage(class_index, <limit_t>kind), 0)

    cdef int recheck(self) except -1 nogil:
        """Forget verdicts that the fleet's changes may have overturned (DESIGN D15). O(1) if nothing waits.

        Only a rank that is open and not busy can overturn one, and only for heads that may use it.
        """
        cdef slot_t class_index, pair
        cdef slot_t asked = NO_SLOT - 1
        cdef bint relieved = False
        if self._fleet.changes == 0 and not self._fleet.recheck_all:
            return 0
        for class_index in range(self.queue.count if self.queue.size else 0):
            pair = self._placement.pair_of[class_index]
            if (<ClassQueue>self.queue.rows[class_index]).blocked == 0 or (
                    pair == NO_SLOT and not self._placement.strict and not self._fleet.graced):
                continue
            if self._fleet.recheck_all:
                (<ClassQueue>self.queue.rows[class_index]).recheck_all()
                continue
            if pair != asked:                  # mostly all classes have the same
                relieved = self._relieved(pair)
                asked = pair
            if relieved:
                self._recheck(<ClassQueue>self.queue.rows[class_index], pair)
        self._fleet.forget_changes()
        return 0

    cdef bint _relieves(self, slot_t rank, slot_t pair) noexcept nogil:
        """Whether a rank whose load fell is open and, by these thresholds, not busy."""
        return self._fleet.ledger.loads[rank].state == RANK_OPEN and (
            pair == NO_SLOT or not self._fleet.ledger.busy(rank, pair))

    cdef bint _relieved(self, slot_t pair) noexcept nogil:
        """Whether any does."""
        cdef int32_t i
        for i in range(self._fleet.changes):
            if self._relieves(self._fleet.changed[i], pair):
                return True
        return False

    cdef int _recheck(self, ClassQueue queue, slot_t pair) except -1 nogil:
        """The same for one class, where some rank relieves; pair: its thresholds."""
        cdef slot_t rank
        cdef slot_t blocker = queue.blocked_shared()
        cdef int32_t i
        if blocker != NO_SLOT and not self._requests.rows[blocker].constrained:
            queue.recheck_shared()
            blocker = NO_SLOT
        for i in range(self._fleet.changes):
            if queue.blocked == 0 or (blocker == NO_SLOT and queue.lanes == 0):
                return 0
            rank = self._fleet.changed[i]
            if self._relieves(rank, pair):
                queue.recheck_lane(rank)
                if blocker != NO_SLOT and self._may_use(blocker, rank):
                    queue.recheck_shared()
                    blocker = NO_SLOT
        return 0

    cdef bint _may_use(self, slot_t slot, slot_t rank) except -1 nogil:
        with gil:
            return self._placement.eligible.allows_live(slot, rank)

    cdef list faults(self, head_test_t test, void* judge):
        """Broken invariants of every class, and heads that may run and wait (work conservation). O(waiting)."""
        cdef slot_t class_index, slot
        cdef int64_t choosy = 0
        cdef int64_t indexed = 0
        found = []
        for slot in self._requests.in_state(STATE_WAITING):
            choosy += self._requests.rows[slot].constrained
        for class_index in range(self.queue.count):
            indexed += open_lanes(self.queue.queue(class_index))
        if choosy != self.queue.choosy or indexed != self.queue.waiting.indexed:
            found.append("counters of the queue")
        for class_index in range(self.queue.count):
            fault = self.queue.queue(class_index).fault(test, judge)
            if fault is not None:
                found.append(f"class {class_index}: {fault}")
        return found
