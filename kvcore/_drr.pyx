"""PolicyQueue: all waiting requests, and deficit round robin between their classes (DESIGN D5).

Owns the ring of classes: quantum and deficit of each, the cursor and the state of its visit, queue limits (D6) and
the window of recent dispatches that retry hints come from (D18). Inside a class, order is _lanes' business.

Never here: loads, workers, time as a decision, request ids.

Rules: an empty class has deficit 0; a class with nothing dispatchable keeps its deficit and earns nothing; credit
is granted once per visit and only when the head is too dear; what a pop leaves behind does not depend on how often
one polls. Bound (Shreedhar & Varghese 1995, as DESIGN D5 states it): while i and j stay dispatchable, |S_i/q_i -
S_j/q_j| <= 1 + max_i/q_i + max_j/q_j.

Cost of one pop: at most 2C + 1 class visits, whatever the costs, plus the heaps' O(log n).
"""
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
from kvcore._lanes cimport open_lanes
from kvcore._types cimport NO_SLOT, saturated

cdef int64_t RETRY_MIN_NS = 1_000_000                  # DESIGN D18: 1 ms to 1 h
cdef int64_t RETRY_MAX_NS = 3_600_000_000_000


cdef class PolicyQueue:
    def __cinit__(self, object profile not None):
        """Build the ring from a PolicyProfile (class order = ring order)."""
        cdef slot_t i
        self.count = len(profile.classes)
        self.classes = <class_t*>calloc(self.count, sizeof(class_t))
        self._heads = <slot_t*>malloc(self.count * sizeof(slot_t))
        if self.classes == NULL or self._heads == NULL:
            raise MemoryError("policy queue")
        self.waiting = WaitingTable()
        self._queues = [
            ClassQueue(self.waiting, i, item.max_overtake_tokens) for i, item in enumerate(profile.classes)]
        self.rows = <void**>malloc(self.count * sizeof(void*))
        if self.rows == NULL:
            raise MemoryError("policy queue")
        for i in range(self.count):
            self.rows[i] = <void*>self._queues[i]
        self._reference = profile.arbitration.value == "reference"
        for i, item in enumerate(profile.classes):
            self.classes[i].quantum = item.quantum
            limits = (
                item.request_queue_limit_per_worker,
                item.raw_isl_token_queue_limit_per_worker,
                item.cached_token_queue_limit_per_worker,
            )
            for kind, limit in enumerate(limits):
                self.classes[i].limits[<int>kind] = LIMIT_NONE if limit is None else limit
            self.classes[i].never_waits = 0 in limits

    def __dealloc__(self):
        free(self.classes)
        free(self._heads)
        free(self.rows)

    cdef int adopt(self, object before, object profile) except -1:
        """Another ring in the place of the one that `before` describes, while nothing is stored (DESIGN D16).

        Classes match by name: they keep their deficit, in proportion to the quantum, their window and their counters.
        """
        cdef PolicyQueue ring = PolicyQueue(profile)
        cdef slot_t i, old
        cdef class_t* row
        places = {item.name: i for i, item in enumerate(profile.classes)}
        for old, item in enumerate(before.classes):
            if item.name in places:
                i = places[item.name]
                row = &ring.classes[i]
                row.deficit = saturated(<i128>self.classes[old].deficit * row.quantum // self.classes[old].quantum)
                row.dispatched = self.classes[old].dispatched
                row.charged = self.classes[old].charged
                row.dispatched_cost = self.classes[old].dispatched_cost
                memcpy(row.times, self.classes[old].times, sizeof(row.times))
                memcpy(row.costs, self.classes[old].costs, sizeof(row.costs))
                row.window_cost = self.classes[old].window_cost
        for i in range(self.count):
            old = (self.cursor + i) % self.count
            if before.classes[old].name in places:
                ring.cursor = places[before.classes[old].name]
                ring.visit = self.visit if i == 0 else VISIT_NONE
                break
        self.classes, ring.classes = ring.classes, self.classes
        self._heads, ring._heads = ring._heads, self._heads
        self.rows, ring.rows = ring.rows, self.rows
        self._queues = ring._queues
        for i in range(ring.count):
            (<ClassQueue>self.rows[i]).table = self.waiting
        self.count = ring.count
        self.size = 0
        self.choosy = 0
        self.waiting.indexed = 0               # those of the old ring have gone with it
        self.held = 0
        self.cursor = ring.cursor
        self.visit = ring.visit
        self._reference = ring._reference
        return 0

    cdef void settle_emptied(self) noexcept:
        """After a change of classes: those without a ready request bank no credit."""
        cdef slot_t i
        for i in range(self.count):
            if (<ClassQueue>self.rows[i]).size == 0:
                self.classes[i].deficit = 0
        if self.visit != VISIT_NONE and (<ClassQueue>self.rows[self.cursor]).size == 0:
            self._close_visit()

    cdef ClassQueue queue(self, slot_t class_index):
        return <ClassQueue>self._queues[class_index]

    cdef bint rests(self) noexcept nogil:
        """Whether a pop would find nothing and change nothing."""
        return self.size == 0 and not (self._reference and self.visit != VISIT_NONE)

    cdef bint would_take(self, slot_t class_index) noexcept nogil:
        """Whether a request of a class that may run would be popped as soon as it is pushed: nothing else is stored."""
        return self.size == 0 and self.visit == VISIT_NONE and not self._reference and not (
            (<ClassQueue>self.rows[class_index]).bounds_overtaking())

    cdef void pass_by(self, slot_t class_index) noexcept nogil:
        """As if such a request had been pushed and popped: what its class was granted it loses as it empties."""
        self.cursor = self._next(class_index)

    cdef int push(self, slot_t item, slot_t class_index, slot_t rank) except -1 nogil:
        """Store a request whose waiting row is filled; rank NO_SLOT is the shared heap."""
        (<ClassQueue>self.rows[class_index]).push(item, rank)
        self.size += 1
        self.choosy += self.waiting.choosy[item]
        return 0

    cdef void hold(self, slot_t item, slot_t class_index) noexcept nogil:
        """Count a deferred request, whose waiting row is filled, in its class."""
        (<ClassQueue>self.rows[class_index]).hold(item)
        self.held += 1

    cdef void unhold(self, slot_t item) noexcept nogil:
        """A deferred request leaves its class."""
        (<ClassQueue>self.rows[self.waiting.rows[item].class_index]).unhold(item)
        self.held -= 1

    cdef void remove(self, slot_t item) noexcept nogil:
        """Take a stored request out without charging it."""
        cdef slot_t class_index = self.waiting.rows[item].class_index
        (<ClassQueue>self.rows[class_index]).remove(item)
        self.size -= 1
        self.choosy -= self.waiting.choosy[item]
        if (<ClassQueue>self.rows[class_index]).size == 0:
            self._emptied(class_index)

    cdef slot_t pop(self, head_test_t test, void* judge) noexcept nogil:
        """Pick at most one request, charge its class and take it out; NO_SLOT when no head may run."""
        cdef slot_t i, start, winner
        cdef slot_t current = self.cursor
        cdef bint closes = False
        if self.waiting.indexed == 0:           # nobody waits, or all are blocked
            self.poll_in_vain()
            return NO_SLOT
        for i in range(self.count):
            self._heads[i] = NOT_ASKED if open_lanes(<ClassQueue>self.rows[i]) else NO_SLOT
        if self.visit != VISIT_NONE:
            if self._look(current, test, judge) != NO_SLOT:
                if self._cost(current) <= self.classes[current].deficit:
                    return self._take(current)
                closes = self._reference or self.visit == VISIT_PAID
            else:
                closes = True
        start = self._next(current) if closes else current
        winner = self._scan(start, closes, test, judge)
        if winner != NO_SLOT:
            return self._take(winner)
        for i in range(self.count):
            if self._heads[i] != NO_SLOT:
                return self._take(self._grant_rounds(start))
        self.poll_in_vain()
        return NO_SLOT

    cdef void poll_in_vain(self) noexcept nogil:
        """What a pop does where nobody may run. In mode `exact` nothing, so that polling cannot be observed."""
        if self._reference and self.visit != VISIT_NONE:
            self._close_visit()

    cdef void _close_visit(self) noexcept nogil:
        self.cursor = self._next(self.cursor)
        self.visit = VISIT_NONE

    cdef slot_t _next(self, slot_t class_index) noexcept nogil:
        return class_index + 1 if class_index + 1 < self.count else 0

    cdef int64_t _cost(self, slot_t class_index) noexcept nogil:
        return self.waiting.rows[self._heads[class_index]].cost

    cdef slot_t _look(self, slot_t class_index, head_test_t test, void* judge) noexcept nogil:
        """The class's candidate, asked for at most once per call."""
        if self._heads[class_index] == NOT_ASKED:
            self.visits += 1
            self._heads[class_index] = (<ClassQueue>self.rows[class_index]).candidate(test, judge)
        return self._heads[class_index]

    cdef slot_t _scan(self, slot_t start, bint closes, head_test_t test, void* judge) noexcept nogil:
        """One round from `start`: the first class that can pay, after its quantum if need be; or NO_SLOT.

        `closes`: the open visit ends as soon as some class turns out to have a candidate.
        """
        cdef slot_t i = start
        cdef class_t* row
        for _ in range(self.count):
            if self._heads[i] != NO_SLOT and self._look(i, test, judge) != NO_SLOT:
                if closes:
                    self.cursor = start
                    self.visit = VISIT_NONE
                    closes = False
                row = &self.classes[i]
                if self._cost(i) <= row.deficit:
                    self._arrive(i, VISIT_UNPAID)
                    return i
                row.deficit += row.quantum
                if self._cost(i) <= row.deficit:
                    self._arrive(i, VISIT_PAID)
                    return i
            i = self._next(i)
        return NO_SLOT

    cdef void _arrive(self, slot_t class_index, visit_t visit) noexcept nogil:
        self.cursor = class_index
        self.visit = visit

    cdef slot_t _grant_rounds(self, slot_t start) noexcept nogil:
        """Nobody could pay after one round: grant as many whole rounds as the nearest class needs, at once.

        deficit + rounds * quantum < cost + 2 * quantum <= 3 * 2^53, so nothing overflows (DESIGN D20).
        """
        cdef int64_t rounds = -1
        cdef int64_t need
        cdef slot_t winner = start
        cdef slot_t i = start
        cdef bint behind = False
        cdef class_t* row
        for _ in range(self.count):
            if self._heads[i] != NO_SLOT:
                row = &self.classes[i]
                need = (self._cost(i) - row.deficit + row.quantum - 1) // row.quantum
                if rounds < 0 or need < rounds:
                    rounds = need
                    winner = i
            i = self._next(i)
        i = start
        for _ in range(self.count):
            if self._heads[i] != NO_SLOT:
                row = &self.classes[i]
                row.deficit += (rounds - 1 if behind and not self._reference else rounds) * row.quantum
            if i == winner:
                behind = True
            i = self._next(i)
        self.visits += self.count
        self._arrive(winner, VISIT_PAID)
        return winner

    cdef slot_t _take(self, slot_t class_index) noexcept nogil:
        """Pop the candidate of the class under the cursor and charge it."""
        cdef slot_t item = self._heads[class_index]
        self.classes[class_index].deficit -= self.waiting.rows[item].cost
        (<ClassQueue>self.rows[class_index]).take(item)
        self.size -= 1
        self.choosy -= self.waiting.choosy[item]
        if (<ClassQueue>self.rows[class_index]).size == 0:
            self._emptied(class_index)
        elif self._reference and self.classes[class_index].deficit == 0:
            self._close_visit()
        return item

    cdef void _emptied(self, slot_t class_index) noexcept nogil:
        """Idling banks no credit: otherwise a class could save up a burst and break the bound.

        The reference's cursor rests before the next class to look at, so there only an open visit moves on.
        """
        self.classes[class_index].deficit = 0
        if self.cursor == class_index and not (self._reference and self.visit == VISIT_NONE):
            self._close_visit()

    cdef void charge(self, slot_t class_index, ns_t now_ns, int64_t cost) noexcept nogil:
        """Note a dispatch for retry hints and statistics. Cost 0: it was put back, and had been charged before."""
        cdef class_t* row = &self.classes[class_index]
        cdef int64_t at = row.charged % WINDOW
        row.dispatched += 1
        self.dispatched += 1
        if cost == 0:
            return
        row.window_cost += cost - row.costs[at]
        row.times[at] = now_ns
        row.costs[at] = cost
        row.charged += 1
        row.dispatched_cost += cost

    cdef int64_t usage(self, slot_t class_index, limit_t kind) noexcept nogil:
        """What waits in a class, in the unit of a limit; saturating."""
        return saturated(_used(<ClassQueue>self.rows[class_index], kind))

    cdef limit_t limit_hit(self, slot_t class_index, int64_t workers, int64_t* current, int64_t* bound) noexcept nogil:
        """The first limit that usage has reached, with usage and bound; LIMIT_NONE if there is room (DESIGN D6)."""
        cdef int kind
        cdef i128 limit
        cdef i128 used
        for kind in range(LIMIT_KINDS):
            if self.classes[class_index].limits[kind] != LIMIT_NONE:
                limit = <i128>self.classes[class_index].limits[kind] * max(1, workers)
                used = _used(<ClassQueue>self.rows[class_index], <limit_t>kind)
                if used >= limit:
                    current[0] = saturated(used)
                    bound[0] = saturated(limit)
                    return <limit_t>kind
        return LIMIT_NONE

    cdef int64_t retry_after_ns(self, slot_t class_index, int64_t current, int64_t bound) noexcept nogil:
        """Estimated time until a refused request would find room (DESIGN D18); -1: unknown."""
        cdef class_t* row = &self.classes[class_index]
        cdef int64_t first = row.charged - WINDOW if row.charged > WINDOW else 0
        cdef i128 span, served, excess, value
        cdef i128 waiting = _cost_of(<ClassQueue>self.rows[class_index])
        if row.charged < 2 or current == 0:
            return -1
        span = row.times[(row.charged - 1) % WINDOW] - row.times[first % WINDOW]
        if span == 0:
            return -1
        served = row.window_cost - row.costs[first % WINDOW]
        excess = (<i128>saturated(waiting) * (current - <i128>bound + 1) + current - 1) // current
        if excess > (<i128>RETRY_MAX_NS * served) // span:
            return RETRY_MAX_NS
        value = (excess * span + served - 1) // served
        return <int64_t>max(RETRY_MIN_NS, min(RETRY_MAX_NS, value))


cdef i128 _used(ClassQueue queue, limit_t kind) noexcept nogil:
    """What waits in a class, deferred requests included, in the unit of a limit."""
    if kind == LIMIT_REQUESTS:
        return queue.size + queue.held
    return queue.raw + queue.held_raw if kind == LIMIT_RAW_TOKENS else queue.cached + queue.held_cached


cdef i128 _cost_of(ClassQueue queue) noexcept nogil:
    """Cost of what waits in a class, deferred requests included."""
    return queue.cost + queue.held_cost
