"""Explainer: where one request stands and why, what waits, what has been decided. It changes nothing.

Owns no state. It reads what the step left behind: between steps no head may run, so for every request that waits there
is a request, itself or another of its lane, that fails its own test, and that is what is told.

Never here: decisions; what keeps a request from a rank (_obstacles).

Cost: O(ranks that the request may use) and, for its position, at most some thousand nodes of a heap.
"""
from libc.stdlib cimport free, malloc
from kvcore._drr cimport class_t
from kvcore._heap cimport heap_free, heap_init, heap_push, heap_remove, heap_reserve, heap_t, key_t
from kvcore._lanes cimport ClassQueue, waiting_t
from kvcore._requests cimport (
    STATE_DEFERRED, STATE_FREE, STATE_REFRESHING, STATE_RUNNING, STATE_WAITING, TIMER_GRACE, TIMER_LOOK,
    TIMER_REFRESH, request_t)
from kvcore._types cimport NEVER_NS, NO_SLOT, NS_END, ceil_div, int32_t, saturated
from kvcore._workers cimport rank_t
from kvcore.request cimport Rank, Request

from kvcore._explanation_text import named, span

cdef tuple STATES = ("", "waiting", "deferred", "refreshing", "running", "evicted")

cdef enum:
    POSITION_MAX = 1000            # positions beyond it are not counted out


cdef class Explainer:
    def __cinit__(self, config not None, object profile not None, RequestTable requests not None,
                  Fleet fleet not None, Placement placement not None, Backlog backlog not None,
                  Policies policies not None, Dispatcher dispatcher not None):
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self._backlog = backlog
        self._policies = policies
        self._ring = dispatcher.ring
        self._obstacles = Obstacles(requests, fleet, placement)
        self._ttl_ns = NEVER_NS if config.booking_ttl_ns is None else config.booking_ttl_ns
        self.adopt(profile)

    cdef int adopt(self, object profile) except -1:
        """These classes from now on."""
        self._names = [item.name for item in profile.classes]
        self._bounds = [item.max_overtake_tokens for item in profile.classes]
        if self._ring is not None:
            self._ring.names = self._names
        return 0

    cdef Explanation explain(self, str request_id):
        cdef slot_t slot = self._requests.find(request_id)
        cdef Explanation told
        if slot == NO_SLOT:
            return self._without_row(request_id)
        told = blank(request_id, STATES[self._requests.rows[slot].state], self._fleet.ledger.now_ns)
        self._tell_identity(slot, told)
        if self._requests.rows[slot].state < STATE_RUNNING:
            self._tell_place(slot, told)
            self._obstacles.look(slot)
            told.ranks = self._obstacles.views()
            told.ranks_count = self._obstacles.usable
        self._tell_run(slot, told)
        told.reasons = tuple(self._why(slot, told))
        return told

    cdef Explanation _without_row(self, str request_id):
        """For a request that is not live."""
        cdef Explanation told = blank(request_id, "unknown", self._fleet.ledger.now_ns)
        if self._ring is not None:
            told.decision = self._ring.find(request_id)
        if told.decision is None:
            told.reasons = ("no such request is live, and no decision about it is kept",)
            return told
        told.state = "ended"
        told.reasons = ("it has ended; the last decision about it is still kept",)
        told.class_name = told.decision.class_name
        told.class_index = told.decision.class_index
        told.attempt = told.decision.attempt
        return told

    cdef int _tell_identity(self, slot_t slot, Explanation told) except -1:
        """What holds in every state."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef waiting_t* waiting = &self._backlog.queue.waiting.rows[slot]
        cdef Request request = self._requests.request(slot)
        told.class_index = row.class_index
        told.class_name = self._names[row.class_index]
        told.lane = request.pinned
        told.key = self._key(slot)
        told.strict_priority = request.strict_priority
        told.seq = row.seq
        told.arrival_ns = row.arrival_ns
        told.deadline_ns = request.deadline_ns
        told.prompt_tokens = row.prompt
        told.cached_tokens = waiting.cached
        told.cost_tokens = waiting.cost
        return 0

    cdef int _tell_place(self, slot_t slot, Explanation told) except -1:
        """Of a request that does not run: how long it has waited, its place and its timers."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef ClassQueue queue = self._backlog.queue.queue(row.class_index)
        cdef int32_t ahead
        told.wait_ns = told.now_ns - row.arrival_ns
        told.grace_end_ns = time_or_none(row.due_ns[<int>TIMER_GRACE])
        told.next_look_ns = time_or_none(row.due_ns[<int>TIMER_LOOK])
        if row.state == STATE_REFRESHING:
            told.ticket = row.ticket
            told.refresh_end_ns = time_or_none(row.due_ns[<int>TIMER_REFRESH])
            return 0
        if row.state == STATE_DEFERRED:
            told.deferred_by = self._policies.type_of(row.policy)
        else:
            ahead = queue.ahead_of(slot, POSITION_MAX - 1)
            told.position = min(ahead + 1, <int32_t>POSITION_MAX)
            told.position_is_exact = ahead < POSITION_MAX
            if self._bounds[row.class_index] is not None:
                told.max_overtake_tokens = self._bounds[row.class_index]
                told.overtaken_tokens = saturated(queue.overtaken(slot))
        return self._tell_price(slot, told)

    cdef int _tell_price(self, slot_t slot, Explanation told) except -1:
        """What its class can pay, and how far that is from its cost."""
        cdef class_t* row = &self._backlog.queue.classes[told.class_index]
        told.deficit_tokens = row.deficit
        told.quantum = row.quantum
        told.rounds_to_go = ceil_div(max(<int64_t>0, told.cost_tokens - row.deficit), row.quantum)
        return 0

    cdef int _tell_run(self, slot_t slot, Explanation told) except -1:
        """Its dispatches so far."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef const rank_t* rank
        told.attempts = row.attempts
        if row.attempts == 0:
            return 0
        told.attempt = row.attempt
        if self._ring is not None:
            told.decision = self._ring.find(told.request_id)
        if row.state == STATE_RUNNING:
            rank = &self._fleet.workers.ranks[self._fleet.ledger.bookings[slot].rank]
            told.rank = Rank(rank.worker_id, rank.dp_rank)
        return 0

    # Why.

    cdef list _why(self, slot_t slot, Explanation told):
        cdef request_t* row = &self._requests.rows[slot]
        cdef list reasons = []
        if row.state == STATE_WAITING:
            self._why_waiting(slot, told, reasons)
        elif row.state == STATE_DEFERRED:
            reasons.append(f"admission policy {named(told.deferred_by)} holds it back")
        elif row.state == STATE_REFRESHING:
            asked = f"it waits for the answer to RefreshOverlap, ticket {row.ticket}"
            if told.refresh_end_ns is not None:
                asked += f", another {span(told.refresh_end_ns - told.now_ns)} at most"
            reasons.append(asked)
        else:
            reasons.append(self._why_running(slot))
        return reasons

    cdef int _why_waiting(self, slot_t slot, Explanation told, list reasons) except -1:
        """Its lane's head fails its own test; or, under an overtaking bound, the oldest of its lane does."""
        cdef ClassQueue queue = self._backlog.queue.queue(told.class_index)
        cdef slot_t first = queue.head_of(slot)
        cdef slot_t elder = queue.elder_of(slot)
        cdef str name = named(self._requests.ids.id_of(first))
        if first != slot:
            more = "" if told.position_is_exact else "more than "
            go = "goes" if told.position == 2 else "go"
            reasons.append(f"{more}{told.position - 1:,} of its lane {go} before it, {name} first")
        if elder != NO_SLOT and self._placement.may_run(told.class_index, first):
            # The head might run, but not before the oldest, which may not.
            first = elder
            name = "it" if elder == slot else named(self._requests.ids.id_of(elder))
            reasons.append(f"{name} is the oldest of its lane and has to go first: it was overtaken by "
                           f"{saturated(queue.overtaken(elder)):,} of at most {told.max_overtake_tokens:,} tokens")
        self._why_not(first, "" if first == slot else f"{name} waits: ", reasons)
        if told.rounds_to_go and len(self._names) > 1:
            reasons.append(f"class {named(told.class_name)} has a deficit of {told.deficit_tokens:,} tokens: it can "
                           f"pay {told.cost_tokens:,} after {told.rounds_to_go:,} more of its quantum of "
                           f"{told.quantum:,}")
        return 0

    cdef int _why_not(self, slot_t slot, str whose, list reasons) except -1:
        """Why a waiting request may not run, were it its class's first. whose: stands before each sentence."""
        cdef request_t* row = &self._requests.rows[slot]
        if row.due_ns[<int>TIMER_GRACE] != NEVER_NS:
            reasons.append(whose + self._why_grace(slot))
            return 0
        self._obstacles.look(slot)
        return self._obstacles.tell(self._names[row.class_index], whose, reasons)

    cdef str _why_grace(self, slot_t slot):
        cdef ns_t end_ns = self._requests.rows[slot].due_ns[<int>TIMER_GRACE]
        cdef Rank pinned = self._requests.request(slot).pinned
        cdef str lost = "the fleet has no workers"
        if pinned is not None and self._fleet.workers.present:
            lost = f"worker {pinned.worker_id} rank {pinned.dp_rank}, to which it is pinned, is lost"
        until = "without end" if end_ns >= NS_END else f"another {span(end_ns - self._fleet.ledger.now_ns)}"
        return f"{lost}; it waits {until} for that to change"

    cdef str _why_running(self, slot_t slot):
        """Of a request that has an attempt."""
        cdef request_t* row = &self._requests.rows[slot]
        cdef ns_t left_ns
        if row.state == STATE_RUNNING:
            return f"attempt {row.attempt} runs"
        if self._ttl_ns == NEVER_NS or row.progress_ns >= NS_END - self._ttl_ns:
            return f"the booking of attempt {row.attempt} is gone, and its driver has not answered the Evict"
        left_ns = row.progress_ns + self._ttl_ns - self._fleet.ledger.now_ns
        return (f"the booking of attempt {row.attempt} is gone, and its driver has {span(left_ns)} left to answer the "
                "Evict")

    # All of them.

    cdef tuple queue_dump(self, int64_t limit):
        """The first by seq of all that do not run. O(live requests * log limit), less as a rule."""
        cdef int32_t most = <int32_t>min(max(limit, <int64_t>0), <int64_t>self._requests.ids.size)
        cdef int32_t* pos = <int32_t*>malloc(max(1, self._requests.ids.size) * sizeof(int32_t))
        cdef list found = []
        cdef heap_t heap
        cdef key_t key
        cdef slot_t slot
        if pos == NULL:
            raise MemoryError("queue dump")
        heap_init(&heap)
        try:
            heap_reserve(&heap, most + 1)
            key.tier = 0
            key.second = 0
            key.seq = 0
            for slot in range(self._requests.ids.size):
                # The last by seq stands first: it goes when there are too many.
                key.first = ~self._requests.rows[slot].seq
                if STATE_FREE < self._requests.rows[slot].state < STATE_RUNNING and not (
                        heap.size == most and (most == 0 or key.first < heap.nodes[0].key.first)):
                    heap_push(&heap, &key, slot, pos)
                    if heap.size > most:
                        heap_remove(&heap, heap.nodes[0].item, pos)
            while heap.size:
                slot = heap.nodes[0].item
                heap_remove(&heap, slot, pos)
                found.append(self._entry(slot))
        finally:
            heap_free(&heap)
            free(pos)
        return tuple(found[::-1])

    cdef QueueEntry _entry(self, slot_t slot):
        cdef request_t* row = &self._requests.rows[slot]
        cdef QueueEntry entry = QueueEntry.__new__(QueueEntry)
        entry.request_id = self._requests.ids.id_of(slot)
        entry.state = STATES[row.state]
        entry.class_index = row.class_index
        entry.class_name = self._names[row.class_index]
        entry.lane = self._requests.request(slot).pinned
        entry.key = self._key(slot)
        entry.seq = row.seq
        entry.wait_ns = self._fleet.ledger.now_ns - row.arrival_ns
        entry.cost_tokens = self._backlog.queue.waiting.rows[slot].cost
        return entry

    cdef tuple _key(self, slot_t slot):
        cdef const key_t* key = &self._backlog.queue.waiting.rows[slot].key
        return (key.tier, key.first, key.second, key.seq)

    cdef tuple decisions(self):
        """What the ring holds, the newest last."""
        return () if self._ring is None else self._ring.all()


cdef Explanation blank(str request_id, str state, ns_t now_ns):
    """What is not an object or a number by itself, is not None."""
    cdef Explanation told = Explanation.__new__(Explanation)
    told.request_id = request_id
    told.state = state
    told.now_ns = now_ns
    told.reasons = ()
    told.ranks = ()
    told.class_index = -1
    told.position_is_exact = True
    return told


cdef object time_or_none(ns_t time_ns):
    """The time of a timer; None: it does not run."""
    return None if time_ns == NEVER_NS else time_ns
