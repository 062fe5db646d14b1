"""Doors for tests to compiled internals: lanes, overtaking, round robin.

Never shipped. A door converts and does nothing else: NO_SLOT becomes None, C rows become tuples, 128-bit sums become
ints, a Python function becomes the dispatch test.
"""
from cpython cimport array
from kvcore._drr cimport LIMIT_NONE, VISIT_NONE, VISIT_PAID, PolicyQueue, limit_t
from kvcore._heap cimport heap_t
from kvcore._keys cimport ORDER_FCFS, fill_key
from kvcore._lanes cimport SHARED, ClassQueue, WaitingTable, waiting_t
from kvcore._overtaking cimport Overtaking
from kvcore._types cimport NO_SLOT, i128, int32_t, int64_t, ns_t, slot_t, uint64_t

import array

LIMITS = ("requests", "raw", "cached")


cdef object or_none(slot_t slot):
    return None if slot == NO_SLOT else slot


cdef object wide(i128 value):
    """All 128 bits."""
    return int(<int64_t>(value >> 64)) * 2**64 + int(<uint64_t>value)


cdef int fill(WaitingTable table, slot_t item, tuple key, int64_t raw, int64_t cached, int64_t cost) except -1:
    cdef waiting_t* row
    table.reserve(item + 1)
    row = &table.rows[item]
    row.key.tier, row.key.first, row.key.second, row.key.seq = key
    row.raw = raw
    row.cached = cached
    row.cost = cost
    return 0


cdef class Judge:
    """A Python function as a dispatch test; what it raises is raised when the call is over."""

    cdef object function
    cdef object error

    def __cinit__(self, function):
        self.function = function

    cdef int settle(self) except -1:
        if self.error is not None:
            raise self.error
        return 0


cdef bint ask(void* judge, slot_t class_index, slot_t item) noexcept with gil:
    try:
        return (<Judge>judge).function(class_index, item)
    except BaseException as error:
        (<Judge>judge).error = error
        return False


cdef list items_of(const heap_t* heap):
    cdef int32_t i
    return [heap.nodes[i].item for i in range(heap.size)]


cdef class Lanes:
    """ClassQueue: a lone one, or one of a Queue. Tests are functions (class_index, item) -> may it run."""

    cdef ClassQueue queue

    def __cinit__(self, slot_t class_index=0, max_overtake_tokens=None):
        self.queue = ClassQueue(WaitingTable(), class_index, max_overtake_tokens)

    def push(self, slot_t item, tuple key, rank=None, int64_t raw=1, int64_t cached=0, int64_t cost=1):
        fill(self.queue.table, item, key, raw, cached, cost)
        self.queue.push(item, NO_SLOT if rank is None else rank)

    def remove(self, slot_t item):
        self.queue.remove(item)

    def take(self, slot_t item):
        """Take the candidate out."""
        self.queue.take(item)

    def candidate(self, test):
        judge = Judge(test)
        found = self.queue.candidate(ask, <void*>judge)
        judge.settle()
        return or_none(found)

    def recheck_shared(self):
        self.queue.recheck_shared()

    def recheck_lane(self, slot_t rank):
        self.queue.recheck_lane(rank)

    def recheck_all(self):
        self.queue.recheck_all()

    def fault(self, test):
        """The first broken invariant of a queue at rest, or None."""
        judge = Judge(test)
        found = self.queue.fault(ask, <void*>judge)
        judge.settle()
        return found

    @property
    def tests(self):
        return self.queue.tests

    @property
    def moves(self):
        return self.queue.heap_moves()

    def counts(self):
        """(requests, raw, cached, cost) of what waits."""
        return self.queue.size, wide(self.queue.raw), wide(self.queue.cached), wide(self.queue.cost)

    def lanes(self):
        """Rank, None for the shared lane -> items in heap order, of the lanes that have any."""
        cdef slot_t lane
        found = {None: items_of(&self.queue._lanes[SHARED].heap)} if self.queue._lanes[SHARED].heap.size else {}
        for rank in range(self.queue._lane_of_size):
            lane = self.queue._lane_of[<slot_t>rank]
            if lane != NO_SLOT:
                assert self.queue._lanes[lane].rank == rank
                found[rank] = items_of(&self.queue._lanes[lane].heap)
        assert len(found) - (None in found) == self.queue.lanes
        return found

    def blocked(self):
        """Rank, None for the shared lane -> item whose failed test blocks the lane."""
        cdef slot_t lane
        found = {}
        for lane in range(self.queue._lanes_size):
            if self.queue._lanes[lane].blocked:
                found[or_none(self.queue._lanes[lane].rank)] = self.queue._lanes[lane].heap.nodes[0].item
        assert len(found) == self.queue.blocked
        assert found.get(None) == or_none(self.queue.blocked_shared())
        return found

    def indexed(self):
        """Rank, None for the shared lane -> seq under which the lane stands in the index of heads."""
        cdef heap_t* heads = &self.queue._heads
        cdef int32_t i
        return {or_none(self.queue._lanes[heads.nodes[i].item].rank): heads.nodes[i].key.seq
                for i in range(heads.size)}


cdef class Passed:
    """Overtaking: cost of younger requests popped while a request waits."""

    cdef Overtaking table

    def __cinit__(self):
        self.table = Overtaking()

    def enter(self, slot_t item):
        self.table.enter(item)

    def leave(self, slot_t item):
        self.table.leave(item)

    def popped(self, slot_t item, int64_t cost):
        self.table.popped(item, cost)

    def overtaken(self, slot_t item):
        return wide(self.table.overtaken(item))

    @property
    def places(self):
        return self.table._places


cdef class Queue:
    """PolicyQueue."""

    cdef PolicyQueue queue

    def __cinit__(self, profile):
        self.queue = PolicyQueue(profile)

    def push(self, slot_t item, slot_t class_index, tuple key, rank=None, int64_t raw=1, int64_t cached=0,
             int64_t cost=1):
        fill(self.queue.waiting, item, key, raw, cached, cost)
        self.queue.push(item, class_index, NO_SLOT if rank is None else rank)

    def adopt(self, before, profile):
        """Another ring; what was stored is the caller's to store again."""
        self.queue.adopt(before, profile)

    def open_lanes(self):
        """Lanes that are not blocked, in all classes, as they are counted."""
        return self.queue.waiting.indexed

    def remove(self, slot_t item):
        self.queue.remove(item)

    def pop(self, test):
        judge = Judge(test)
        found = self.queue.pop(ask, <void*>judge)
        judge.settle()
        return or_none(found)

    def lanes(self, slot_t class_index):
        """The ClassQueue of a class."""
        door = Lanes(class_index)
        (<Lanes>door).queue = self.queue.queue(class_index)
        return door

    def deficits(self):
        cdef slot_t i
        return [self.queue.classes[i].deficit for i in range(self.queue.count)]

    @property
    def size(self):
        return self.queue.size

    @property
    def cursor(self):
        return self.queue.cursor

    @property
    def visit(self):
        """None, "unpaid" or "paid"."""
        if self.queue.visit == VISIT_NONE:
            return None
        return "paid" if self.queue.visit == VISIT_PAID else "unpaid"

    @property
    def visits(self):
        return self.queue.visits

    def charge(self, slot_t class_index, ns_t now_ns, int64_t cost):
        self.queue.charge(class_index, now_ns, cost)

    def charged(self, slot_t class_index):
        """(dispatches, their cost) since the start."""
        return self.queue.classes[class_index].dispatched, wide(self.queue.classes[class_index].dispatched_cost)

    def usage(self, slot_t class_index):
        """By kind of limit."""
        cdef int kind
        return [self.queue.usage(class_index, <limit_t>kind) for kind in range(len(LIMITS))]

    def limit_hit(self, slot_t class_index, int64_t workers):
        """(kind, current, limit) of the first limit that is reached, or None."""
        cdef int64_t current = 0
        cdef int64_t bound = 0
        cdef limit_t kind = self.queue.limit_hit(class_index, workers, &current, &bound)
        return None if kind == LIMIT_NONE else (LIMITS[<int>kind], current, bound)

    def retry_after_ns(self, slot_t class_index, int64_t current, int64_t bound):
        cdef int64_t value = self.queue.retry_after_ns(class_index, current, bound)
        return None if value == -1 else value


cdef bint passes(void* judge, slot_t class_index, slot_t item) noexcept nogil:
    """The dispatch test of benchmarks: a byte per request."""
    return (<const unsigned char*>judge)[item]


cdef class Stock:
    """Equal PolicyQueues that begin empty, for benchmarks: a method is one loop in C over all of them.

    Request i of each arrives at time i, costs 1, is of class i modulo the classes, and is pinned to rank ranks[i], -1:
    to none. It may run iff may_run[i].
    """

    cdef list queues
    cdef array.array ranks
    cdef array.array may_run

    def __cinit__(self, profile, copies, ranks, may_run):
        self.queues = [PolicyQueue(profile) for _ in range(copies)]
        self.ranks = array.array("i", ranks)
        self.may_run = array.array("B", may_run)

    def store(self):
        """All requests into each queue."""
        cdef PolicyQueue queue
        cdef waiting_t* row
        cdef slot_t i
        for queue in self.queues:
            for i in range(<slot_t>len(self.ranks)):
                queue.waiting.reserve(i + 1)
                row = &queue.waiting.rows[i]
                fill_key(&row.key, ORDER_FCFS, 0, 0.0, i, 0, 1)
                row.key.seq = i
                row.raw = 1
                row.cached = 0
                row.cost = 1
                queue.push(i, i % queue.count, self.ranks.data.as_ints[i])

    def pop(self, int64_t polls):
        """So many polls of each queue. Returns how many requests they have given."""
        cdef PolicyQueue queue
        cdef void* judge = <void*>self.may_run.data.as_uchars
        cdef int64_t count = 0
        cdef int64_t _i
        for queue in self.queues:
            for _i in range(polls):
                count += queue.pop(passes, judge) != NO_SLOT
        return count

    def popped(self, int64_t polls):
        """The same of the first queue alone: what each poll gives, and what is left in it."""
        cdef PolicyQueue queue = self.queues[0]
        cdef int64_t _i
        return [or_none(queue.pop(passes, <void*>self.may_run.data.as_uchars)) for _i in range(polls)], queue.size
