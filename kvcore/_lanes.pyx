"""ClassQueue: the waiting requests of one policy class (DESIGN D4), and WaitingTable, their rows.

Owns the order inside a class: the shared lane, one lane per exact rank that somebody is pinned to, an index of the
heads of lanes that are not blocked, remembered negative verdicts, the overtaking bound, and the class's counters.
Head-of-line blocking is local to a lane: a lane whose head may not run hides no other.

Never here: why a request may run (the judge is passed in), classes against each other (_drr), time, loads.

Invariants, most important first: a waiting request is in exactly one lane, the one that its row names; counters are
sums over rows; an exact lane lives iff it has a request; the index holds exactly the lanes that have requests and are
not blocked, each under its present head; the head of a blocked lane fails its test as things stand.

A verdict is forgotten when the head changes or when the owner announces a change that matters (recheck_*); otherwise a
head that fails is tested once per change, never once per pop. max_overtake_tokens (DESIGN D17): see `candidate`.

Cost: push, take, remove O(log n); candidate O(tests * log lanes).
"""
from libc.stdlib cimport free
from libc.string cimport memset
from kvcore._heap cimport (
    heap_before, heap_begin, heap_free, heap_holds, heap_init, heap_push, heap_remove, heap_reserve, heap_update)
from kvcore._types cimport NO_SLOT, resize


cdef class WaitingTable:
    def __dealloc__(self):
        free(self.rows)
        free(self.pos)
        free(self.age_pos)
        free(self.choosy)

    cdef int reserve(self, slot_t slots) except -1 nogil:
        """Make room for rows 0 .. slots - 1."""
        cdef slot_t capacity = max(slots, 2 * self._capacity, 16)
        if slots <= self._capacity:
            return 0
        resize(<void**>&self.rows, capacity * sizeof(waiting_t))
        resize(<void**>&self.pos, capacity * sizeof(int32_t))
        resize(<void**>&self.age_pos, capacity * sizeof(int32_t))
        resize(<void**>&self.choosy, capacity)
        memset(self.choosy + self._capacity, 0, capacity - self._capacity)
        self._capacity = capacity
        return 0


cdef class ClassQueue:
    def __cinit__(self, WaitingTable table not None, slot_t class_index, object max_overtake_tokens=None):
        self.table = table
        self.class_index = class_index
        heap_init(&self._heads)
        heap_init(&self._elders)
        self._lanes_free = NO_SLOT
        if max_overtake_tokens is not None:
            self._overtaking = Overtaking()
            self._bound = max_overtake_tokens
        self._new_lane(NO_SLOT)

    def __dealloc__(self):
        cdef slot_t lane
        for lane in range(self._lanes_size):
            heap_free(&self._lanes[lane].heap)
            heap_free(&self._lanes[lane].ages)
        heap_free(&self._heads)
        heap_free(&self._elders)
        free(self._lanes)
        free(self._head_pos)
        free(self._elder_pos)
        free(self._lane_of)

    cdef int push(self, slot_t item, slot_t rank) except -1 nogil:
        """Store a request whose row is filled, in the lane of `rank` or, for NO_SLOT, in the shared lane.

        A new head forgets the verdict on the old one. Raises MemoryError before any change that can be seen.
        """
        cdef waiting_t* row = &self.table.rows[item]
        cdef slot_t lane = SHARED if rank == NO_SLOT else self._lane_for(rank)
        cdef lane_t* lane_row = &self._lanes[lane]
        cdef key_t age
        heap_reserve(&lane_row.heap, lane_row.heap.size + 1)
        if self._overtaking is not None:
            heap_reserve(&lane_row.ages, lane_row.ages.size + 1)
            self._overtaking.enter(item)
            _fill_age(&age, self._next_age)
            self._next_age += 1
            heap_push(&lane_row.ages, &age, item, self.table.age_pos)
        heap_push(&lane_row.heap, &row.key, item, self.table.pos)
        row.lane = lane
        row.class_index = self.class_index
        self.size += 1
        self.raw += row.raw
        self.cached += row.cached
        self.cost += row.cost
        if self.table.pos[item] == 0:
            self._index(lane)
        return 0

    cdef void hold(self, slot_t item) noexcept nogil:
        """Count a request whose row is filled, and that must not run yet."""
        cdef waiting_t* row = &self.table.rows[item]
        row.class_index = self.class_index
        self.held += 1
        self.held_raw += row.raw
        self.held_cached += row.cached
        self.held_cost += row.cost

    cdef void unhold(self, slot_t item) noexcept nogil:
        """Count it no longer."""
        cdef waiting_t* row = &self.table.rows[item]
        self.held -= 1
        self.held_raw -= row.raw
        self.held_cached -= row.cached
        self.held_cost -= row.cost

    cdef list items_of(self, slot_t rank):
        """Who waits for exactly this rank, in no particular order. O(them)."""
        cdef int32_t i
        cdef lane_t* row
        if rank >= self._lane_of_size or self._lane_of[rank] == NO_SLOT:
            return []
        row = &self._lanes[self._lane_of[rank]]
        return [row.heap.nodes[i].item for i in range(row.heap.size)]

    cdef void take(self, slot_t item) noexcept nogil:
        """Take out the candidate, to be served: whoever is older has been overtaken."""
        if self._overtaking is not None:
            self._overtaking.popped(item, self.table.rows[item].cost)
        self.remove(item)

    cdef void remove(self, slot_t item) noexcept nogil:
        """Take a stored request out."""
        cdef waiting_t* row = &self.table.rows[item]
        cdef lane_t* lane = &self._lanes[row.lane]
        cdef bint matters = self.table.pos[item] == 0
        heap_remove(&lane.heap, item, self.table.pos)
        if self._overtaking is not None:
            matters = matters or (lane.indexed and self.table.age_pos[item] == 0)
            heap_remove(&lane.ages, item, self.table.age_pos)
            self._overtaking.leave(item)
        self.size -= 1
        self.raw -= row.raw
        self.cached -= row.cached
        self.cost -= row.cost
        if lane.heap.size == 0:
            self._close(row.lane)
        elif matters:
            self._index(row.lane)

    cdef slot_t candidate(self, head_test_t test, void* judge) noexcept nogil:
        """The request to serve next, or NO_SLOT: a function of what waits and of the verdicts, not of earlier looks.

        It is the best head that passes. Under an overtaking bound the oldest request of the lanes whose heads pass
        stands in once the bound would be broken; if it fails its own test, its lane is left out of this look.
        """
        cdef slot_t lane, item, elder
        cdef slot_t found = NO_SLOT
        cdef slot_t passed = NO_SLOT
        cdef slot_t aside = NO_SLOT
        if self._overtaking is None:
            while self._heads.size:
                item = self._lanes[self._heads.nodes[0].item].heap.nodes[0].item
                self.tests += 1
                if test(judge, self.class_index, item):
                    return item
                self._block(self._heads.nodes[0].item)
            return NO_SLOT
        while self._heads.size and found == NO_SLOT:
            lane = self._heads.nodes[0].item
            item = self._lanes[lane].heap.nodes[0].item
            if item != passed and not self._passes(lane, test, judge):
                continue
            passed = item
            if self._elders.nodes[0].item != lane:
                lane = self._elders.nodes[0].item
                if not self._passes(lane, test, judge):
                    continue
            elder = self._lanes[lane].ages.nodes[0].item
            if elder == item or self._overtaking.overtaken(elder) + self.table.rows[item].cost <= self._bound:
                found = item
            elif test(judge, self.class_index, elder):
                found = elder
            else:
                self._unindex(lane)
                self._lanes[lane].next_aside = aside
                aside = lane
        while aside != NO_SLOT:
            self._index(aside)
            aside = self._lanes[aside].next_aside
        return found

    cdef bint _passes(self, slot_t lane, head_test_t test, void* judge) noexcept nogil:
        """Test the head of an indexed lane; one that fails blocks its lane until something that matters changes."""
        self.tests += 1
        if test(judge, self.class_index, self._lanes[lane].heap.nodes[0].item):
            return True
        self._block(lane)
        return False

    cdef void _block(self, slot_t lane) noexcept nogil:
        """The head of an indexed lane has failed its test."""
        self._unindex(lane)
        self._lanes[lane].blocked = True
        self.blocked += 1

    cdef int32_t ahead_of(self, slot_t item, int32_t most) noexcept nogil:
        """Requests of its lane with a better key than a stored one; counting stops above `most`, at most + 1."""
        return heap_before(&self._lanes[self.table.rows[item].lane].heap, &self.table.rows[item].key, most)

    cdef slot_t head_of(self, slot_t item) noexcept nogil:
        """The head of the lane in which a request is stored."""
        return self._lanes[self.table.rows[item].lane].heap.nodes[0].item

    cdef slot_t elder_of(self, slot_t item) noexcept nogil:
        """The oldest request of that lane under an overtaking bound, else NO_SLOT."""
        return NO_SLOT if self._overtaking is None else self._lanes[self.table.rows[item].lane].ages.nodes[0].item

    cdef slot_t blocked_shared(self) noexcept nogil:
        """The head that blocks the shared lane, or NO_SLOT."""
        return self._lanes[SHARED].heap.nodes[0].item if self._lanes[SHARED].blocked else NO_SLOT

    cdef void recheck_shared(self) noexcept nogil:
        """Something that matters to the request that blocks the shared lane has changed."""
        if self._lanes[SHARED].blocked:
            self._index(SHARED)

    cdef void recheck_lane(self, slot_t rank) noexcept nogil:
        """Something that matters to the lane of this rank has changed."""
        cdef slot_t lane
        if self.blocked and rank < self._lane_of_size:
            lane = self._lane_of[rank]
            if lane != NO_SLOT and self._lanes[lane].blocked:
                self._index(lane)

    cdef void recheck_all(self) noexcept nogil:
        """Forget every verdict. O(lanes) if any is blocked."""
        cdef slot_t lane
        for lane in range(self._lanes_size if self.blocked else 0):
            if self._lanes[lane].blocked:
                self._index(lane)

    cdef bint bounds_overtaking(self) noexcept nogil:
        """Whether there is an overtaking bound; only then is there anything to the next three."""
        return self._overtaking is not None

    cdef slot_t next_by_age(self, int32_t* place) noexcept:
        """What waits, in order of becoming ready: one request a call, then NO_SLOT. `place` is 0 at first."""
        return self._overtaking.next_from(place)

    cdef i128 overtaken(self, slot_t item) noexcept:
        """Cost of younger requests popped while a stored one has been ready; kept only under an overtaking bound."""
        return self._overtaking.overtaken(item)

    cdef int pass_all(self, i128 cost) except -1:
        """So much cost goes past all that wait."""
        return self._overtaking.pass_all(cost)

    cdef int64_t heap_moves(self) noexcept:
        """Nodes moved by all heaps of the class so far: what complexity tests count."""
        cdef int64_t moves = self._heads.moves + self._elders.moves
        cdef slot_t lane
        for lane in range(self._lanes_size):
            moves += self._lanes[lane].heap.moves + self._lanes[lane].ages.moves
        return moves

    cdef str fault(self, head_test_t test, void* judge):
        """The first broken invariant, or a lane that may go on and yet waits; None if all is well at rest. O(size)."""
        cdef slot_t lane
        cdef slot_t live = 0
        cdef slot_t blocked = 0
        cdef int64_t stored = 0
        cdef lane_t* row
        if not heap_holds(&self._heads, self._head_pos) or not heap_holds(&self._elders, self._elder_pos):
            return "order of the index"
        for lane in range(self._lanes_size):
            row = &self._lanes[lane]
            stored += row.heap.size
            live += row.heap.size > 0 and lane != SHARED
            blocked += row.blocked
            if row.heap.size == 0:
                if row.blocked or row.indexed:
                    return f"lane {lane} is empty, blocked or indexed"
                continue
            if not heap_holds(&row.heap, self.table.pos) or not heap_holds(&row.ages, self.table.age_pos):
                return f"order of lane {lane}"
            if lane != SHARED and self._lane_of[row.rank] != lane:
                return f"lane {lane} is not its rank's"
            if row.indexed == row.blocked:
                return f"lane {lane} is neither indexed nor blocked, or both"
            if row.blocked and test(judge, self.class_index, row.heap.nodes[0].item):
                return f"the head that blocks lane {lane} may run"
        if stored != self.size or live != self.lanes or blocked != self.blocked:
            return "counters"
        if self.candidate(test, judge) != NO_SLOT:         # it blocks lanes that nobody has asked for yet
            return "a request may run and waits"
        return None

    cdef slot_t _lane_for(self, slot_t rank) except -1 nogil:
        """The lane of a rank, opened if need be."""
        if rank < self._lane_of_size and self._lane_of[rank] != NO_SLOT:
            return self._lane_of[rank]
        return self._open_lane(rank)

    cdef slot_t _open_lane(self, slot_t rank) except -1 nogil:
        cdef slot_t capacity, at, lane
        if rank >= self._lane_of_size:
            capacity = max(rank + 1, 2 * self._lane_of_size)
            resize(<void**>&self._lane_of, capacity * sizeof(slot_t))
            for at in range(self._lane_of_size, capacity):
                self._lane_of[at] = NO_SLOT
            self._lane_of_size = capacity
        lane = self._new_lane(rank)
        self._lane_of[rank] = lane
        self.lanes += 1
        return lane

    cdef slot_t _new_lane(self, slot_t rank) except -1 nogil:
        """An empty lane, with room for it in the index, so that _index cannot fail."""
        cdef slot_t lane, capacity
        cdef lane_t* row
        if self._lanes_free == NO_SLOT:
            heap_reserve(&self._heads, self._lanes_size + 1)
            heap_reserve(&self._elders, self._lanes_size + 1)
            if self._lanes_size == self._lanes_capacity:
                capacity = max(4, 2 * self._lanes_capacity)
                resize(<void**>&self._lanes, capacity * sizeof(lane_t))
                resize(<void**>&self._head_pos, capacity * sizeof(int32_t))
                resize(<void**>&self._elder_pos, capacity * sizeof(int32_t))
                self._lanes_capacity = capacity
            lane = self._lanes_size
            self._lanes_size += 1
            heap_init(&self._lanes[lane].heap)
            heap_init(&self._lanes[lane].ages)
        else:
            lane = self._lanes_free
            self._lanes_free = self._lanes[lane].next_free
        row = &self._lanes[lane]
        row.rank = rank
        row.blocked = False
        row.indexed = False
        return lane

    cdef void _close(self, slot_t lane) noexcept nogil:
        """A lane has become empty: an exact one vanishes."""
        cdef lane_t* row = &self._lanes[lane]
        self._unindex(lane)
        self.blocked -= row.blocked
        row.blocked = False
        if lane != SHARED:
            self._lane_of[row.rank] = NO_SLOT
            self.lanes -= 1
            row.rank = NO_SLOT
            row.next_free = self._lanes_free
            self._lanes_free = lane

    cdef void _index(self, slot_t lane) noexcept nogil:
        """Put a lane that has requests under its present head into the index, whatever it was before."""
        cdef lane_t* row = &self._lanes[lane]
        if row.indexed:
            heap_update(&self._heads, &row.heap.nodes[0].key, lane, self._head_pos)
            if self._overtaking is not None:
                heap_update(&self._elders, &row.ages.nodes[0].key, lane, self._elder_pos)
            return
        self.blocked -= row.blocked
        row.blocked = False
        row.indexed = True
        self.table.indexed += 1
        if self._heads.size:
            heap_push(&self._heads, &row.heap.nodes[0].key, lane, self._head_pos)
        else:
            heap_begin(&self._heads, &row.heap.nodes[0].key, lane, self._head_pos)
        if self._overtaking is not None:
            heap_push(&self._elders, &row.ages.nodes[0].key, lane, self._elder_pos)

    cdef void _unindex(self, slot_t lane) noexcept nogil:
        if self._lanes[lane].indexed:
            self._lanes[lane].indexed = False
            self.table.indexed -= 1
            heap_remove(&self._heads, lane, self._head_pos)
            if self._overtaking is not None:
                heap_remove(&self._elders, lane, self._elder_pos)


cdef void _fill_age(key_t* age, uint64_t order) noexcept nogil:
    age.tier = 0
    age.first = 0
    age.second = 0
    age.seq = order
