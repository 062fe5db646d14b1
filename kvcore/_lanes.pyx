"""ClassQueue: the waiting requests of one policy class (DESIGN D4), and WaitingTable, their rows.

Owns the order inside a class: one shared heap, one heap per exact rank that somebody is pinned to (a lane), an
index of the heads of unblocked lanes, remembered negative verdicts, and the class's counters. Head-of-line blocking
is local to a lane: a lane whose head may not run hides neither another lane nor the shared heap.

Never here: why a head may run (the judge is passed in), classes against each other (_drr), time, loads.

Invariants, most important first: a waiting request is in exactly one heap, the one that its row names; counters are
sums over rows; a lane lives iff it has a request; the index holds exactly the unblocked lanes, each under its
head's key; a blocked heap's head has failed the test since it became head and since the last recheck that named it.

A verdict is forgotten when the head changes or when the owner announces a change that matters (recheck_*);
otherwise a head is tested once per change, never once per pop. Cost: push, remove, pop O(log n); candidate O(tests
* log lanes).
"""
from libc.stdlib cimport free
from kvcore._heap cimport heap_free, heap_holds, heap_init, heap_push, heap_remove, heap_reserve, key_less
from kvcore._types cimport NO_SLOT, resize


cdef class WaitingTable:
    def __dealloc__(self):
        free(self.rows)
        free(self.pos)

    cdef int reserve(self, slot_t slots) except -1:
        """Make room for rows 0 .. slots - 1."""
        cdef slot_t capacity = max(slots, 2 * self._capacity, 16)
        if slots <= self._capacity:
            return 0
        resize(<void**>&self.rows, capacity * sizeof(waiting_t))
        resize(<void**>&self.pos, capacity * sizeof(int32_t))
        self._capacity = capacity
        return 0


cdef class ClassQueue:
    def __cinit__(self, WaitingTable table not None, slot_t class_index):
        self.table = table
        self.class_index = class_index
        heap_init(&self._shared)
        heap_init(&self._heads)
        self._lanes_free = NO_SLOT

    def __dealloc__(self):
        cdef slot_t lane
        for lane in range(self._lanes_size):
            heap_free(&self._lanes[lane].heap)
        heap_free(&self._shared)
        heap_free(&self._heads)
        free(self._lanes)
        free(self._head_pos)
        free(self._lane_of)

    cdef int push(self, slot_t item, slot_t rank) except -1:
        """Store a request whose row is filled, in the lane of `rank` or, for NO_SLOT, in the shared heap.

        A new head forgets the verdict on the old one. Raises MemoryError before any change that can be seen.
        """
        cdef waiting_t* row = &self.table.rows[item]
        cdef slot_t lane = NO_SLOT
        cdef lane_t* lane_row
        if rank == NO_SLOT:
            heap_push(&self._shared, &row.key, item, self.table.pos)
            if self.table.pos[item] == 0:
                self._shared_blocked = False
        else:
            lane = self._lane_of[rank] if rank < self._lane_of_size else NO_SLOT
            if lane == NO_SLOT:
                lane = self._open_lane(rank)
            lane_row = &self._lanes[lane]
            heap_push(&lane_row.heap, &row.key, item, self.table.pos)
            if self.table.pos[item] == 0:
                self._index_lane(lane)
        row.lane = lane
        row.class_index = self.class_index
        self.size += 1
        self.raw += row.raw
        self.cached += row.cached
        self.cost += row.cost
        return 0

    cdef void remove(self, slot_t item) noexcept:
        """Take a stored request out: served, cancelled or expired, all the same to the queue."""
        cdef waiting_t* row = &self.table.rows[item]
        cdef bint was_head = self.table.pos[item] == 0
        cdef lane_t* lane
        if row.lane == NO_SLOT:
            heap_remove(&self._shared, item, self.table.pos)
            if was_head:
                self._shared_blocked = False
        else:
            lane = &self._lanes[row.lane]
            heap_remove(&lane.heap, item, self.table.pos)
            if lane.heap.size == 0:
                self._close_lane(row.lane)
            elif was_head:
                self._index_lane(row.lane)
        self.size -= 1
        self.raw -= row.raw
        self.cached -= row.cached
        self.cost -= row.cost

    cdef slot_t candidate(self, head_test_t test, void* judge) noexcept:
        """The best head that may run now, or NO_SLOT. Heads that fail on the way are remembered as blocked."""
        cdef slot_t item, lane, head
        while True:
            item = NO_SLOT
            lane = NO_SLOT
            if self._shared.size and not self._shared_blocked:
                item = self._shared.nodes[0].item
            if self._heads.size:
                head = self._lanes[self._heads.nodes[0].item].heap.nodes[0].item
                if item == NO_SLOT or key_less(&self._heads.nodes[0].key, &self._shared.nodes[0].key):
                    item = head
                    lane = self._heads.nodes[0].item
            if item == NO_SLOT:
                return NO_SLOT
            self.tests += 1
            if test(judge, self.class_index, item):
                return item
            if lane == NO_SLOT:
                self._shared_blocked = True
            else:
                heap_remove(&self._heads, lane, self._head_pos)
                self._lanes[lane].blocked = True
                self.blocked += 1

    cdef bint would_lead(self, slot_t item, slot_t rank) noexcept:
        """Whether a request whose row is filled would be the head of the heap that it would be stored in."""
        cdef heap_t* heap = &self._shared
        if rank != NO_SLOT:
            if rank >= self._lane_of_size or self._lane_of[rank] == NO_SLOT:
                return True
            heap = &self._lanes[self._lane_of[rank]].heap
        return heap.size == 0 or key_less(&self.table.rows[item].key, &heap.nodes[0].key)

    cdef slot_t shared_head(self) noexcept:
        return self._shared.nodes[0].item if self._shared.size else NO_SLOT

    cdef bint shared_is_blocked(self) noexcept:
        return self._shared_blocked

    cdef void recheck_shared(self) noexcept:
        """Something that matters to the shared head has changed."""
        self._shared_blocked = False

    cdef void recheck_lane(self, slot_t rank) noexcept:
        """Something that matters to the lane of this rank has changed."""
        cdef slot_t lane
        if self.blocked and rank < self._lane_of_size:
            lane = self._lane_of[rank]
            if lane != NO_SLOT and self._lanes[lane].blocked:
                self._index_lane(lane)

    cdef void recheck_all(self) noexcept:
        """Forget every verdict. O(lanes) if any is blocked."""
        cdef slot_t lane
        self._shared_blocked = False
        if self.blocked:
            for lane in range(self._lanes_size):
                if self._lanes[lane].blocked:
                    self._index_lane(lane)

    cdef int64_t heap_moves(self) noexcept:
        """Nodes moved by all heaps of the class so far: what complexity tests count."""
        cdef int64_t moves = self._shared.moves + self._heads.moves
        cdef slot_t lane
        for lane in range(self._lanes_size):
            moves += self._lanes[lane].heap.moves
        return moves

    cdef str fault(self, head_test_t test, void* judge):
        """The first broken invariant, or a head that may run and yet waits; None if all is well. O(size)."""
        cdef slot_t lane
        cdef slot_t open_lanes = 0
        cdef int64_t stored = self._shared.size
        cdef lane_t* row
        if not heap_holds(&self._shared, self.table.pos) or not heap_holds(&self._heads, self._head_pos):
            return "heap order"
        if self._shared.size and test(judge, self.class_index, self._shared.nodes[0].item):
            return "the shared head may run and waits"
        for lane in range(self._lanes_size):
            row = &self._lanes[lane]
            if row.heap.size == 0:
                continue
            stored += row.heap.size
            open_lanes += 1
            if self._lane_of[row.rank] != lane or not heap_holds(&row.heap, self.table.pos):
                return f"lane {lane}"
            if not row.blocked and self._heads.nodes[self._head_pos[lane]].key.seq != row.heap.nodes[0].key.seq:
                return f"lane {lane} is indexed under a head it no longer has"
            if test(judge, self.class_index, row.heap.nodes[0].item):
                return f"the head of lane {lane} may run and waits"
        if stored != self.size or open_lanes != self.lanes or self._heads.size + self.blocked != self.lanes:
            return "counters"
        return None

    cdef slot_t _open_lane(self, slot_t rank) except -1:
        cdef slot_t lane, capacity, at
        if rank >= self._lane_of_size:
            capacity = max(rank + 1, 2 * self._lane_of_size)
            resize(<void**>&self._lane_of, capacity * sizeof(slot_t))
            for at in range(self._lane_of_size, capacity):
                self._lane_of[at] = NO_SLOT
            self._lane_of_size = capacity
        if self._lanes_free == NO_SLOT:
            if self._lanes_size == self._lanes_capacity:
                capacity = max(8, 2 * self._lanes_capacity)
                resize(<void**>&self._lanes, capacity * sizeof(lane_t))
                resize(<void**>&self._head_pos, capacity * sizeof(int32_t))
                self._lanes_capacity = capacity
            heap_init(&self._lanes[self._lanes_size].heap)
            self._lanes[self._lanes_size].next_free = NO_SLOT
            self._lanes_free = self._lanes_size
            self._lanes_size += 1
        lane = self._lanes_free
        # The index has room for the lane before the lane exists, so that _index_lane cannot fail.
        heap_reserve(&self._heads, self.lanes + 1)
        self._lanes_free = self._lanes[lane].next_free
        self._lanes[lane].rank = rank
        self._lanes[lane].blocked = True
        self.lanes += 1
        self.blocked += 1
        self._lane_of[rank] = lane
        return lane

    cdef void _close_lane(self, slot_t lane) noexcept:
        cdef lane_t* row = &self._lanes[lane]
        if row.blocked:
            self.blocked -= 1
            row.blocked = False
        else:
            heap_remove(&self._heads, lane, self._head_pos)
        self._lane_of[row.rank] = NO_SLOT
        self.lanes -= 1
        row.next_free = self._lanes_free
        self._lanes_free = lane

    cdef void _index_lane(self, slot_t lane) noexcept:
        """Put a lane under its present head into the index, whether it was blocked or indexed under another head."""
        cdef lane_t* row = &self._lanes[lane]
        if row.blocked:
            row.blocked = False
            self.blocked -= 1
        else:
            heap_remove(&self._heads, lane, self._head_pos)
        heap_push(&self._heads, &row.heap.nodes[0].key, lane, self._head_pos)
