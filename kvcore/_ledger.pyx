"""Ledger: what runs where, and the load that this makes (DESIGN D9).

Owns one booking per running request and, per rank, the totals, the caps, the state and the last report of its engine;
plus counters of ranks by state and, per distinct pair of busy thresholds, of ranks that are open and not busy, kept on
every change so that an unconstrained head is judged in O(1) (DESIGN D4).

Never here: request helpers (it is told effective prefill tokens), who may run, what is merely cached, when a report
ends, why a rank is in its state.

Invariants, most important first: every total is the sum over live bookings, so it is zero when nothing runs;
release undoes exactly what book and the facts since have added; a block counts once per rank however many bookings
share it; free[p] = the present open ranks whose effective prefill load at now_ns is at most their calm bound for p.

Weights are sticky: a fraction given to a block holds while the block lives, also for those who share it later. A
fraction goes to all blocks, from the tail up, that only this booking counts. These are *bound* to it: the pair names
its owner, the weight stands once in the booking, and so the next fraction costs one multiplication, plus one look-up
per block that has come to be unshared. Somebody who shares a bound block unbinds it and all before it, at their weight.
Invariant: path[bound_from:] and no other pairs name the booking, each counts 1.

Decay: the front of each rank's FIFO of prefills runs since the anchor. A heap foresees when that makes a rank less
busy; a rise needs an event. Without decay the FIFOs and the heap stay empty.

Cost: book, release O(path); complete_prefill, report, state O(pairs), with decay and O(log ranks); add_output O(1)
amortised; advance O(crossings).
"""
from libc.math cimport INFINITY
from libc.stdlib cimport free
from kvcore._active cimport EXPECTED_MAX, pair_t
from kvcore._heap cimport heap_free, heap_init, heap_push, heap_remove, heap_reserve, key_t
from kvcore._load cimport (
    beyond, calm_below, enter_fifo, forget_rank, leave_fifo, load_tokens, set_front, time_of_tokens)
from kvcore._types cimport FRACTION_ONE, NEVER_NS, NO_SLOT, i128, resize


cdef class Ledger:
    def __cinit__(self, list thresholds not None, bint decays=False):
        """thresholds: distinct (absolute or None, fraction or None) pairs, at least one of the two set in each."""
        heap_init(&self._crossings)
        self.decays = decays
        self.active = ActiveBlocks()
        self._set_thresholds(thresholds)

    def __dealloc__(self):
        free(self.loads)
        free(self.bookings)
        free(self._absolute)
        free(self._fraction)
        free(self._calm)
        free(self.free)
        free(self.free_of)
        free(self.in_state_of)
        free(self.dirty_ranks)
        free(self.crossed)
        free(self._crossing_pos)
        heap_free(&self._crossings)

    cdef int _set_thresholds(self, list thresholds) except -1:
        cdef slot_t i
        resize(<void**>&self.free, max(1, len(thresholds)) * sizeof(int32_t))
        resize(<void**>&self._absolute, max(1, len(thresholds)) * sizeof(int64_t))
        resize(<void**>&self._fraction, max(1, len(thresholds)) * sizeof(double))
        resize(<void**>&self._calm, max(1, self._ranks * len(thresholds)) * sizeof(int64_t))
        resize(<void**>&self.free_of, max(1, self._sets * len(thresholds)) * sizeof(int32_t))
        self.pairs = 0
        for absolute, fraction in thresholds:
            self.free[self.pairs] = 0
            self._absolute[self.pairs] = INT64_TOP if absolute is None else absolute
            self._fraction[self.pairs] = INFINITY if fraction is None else fraction
            self.pairs += 1
        for i in range(self._sets * self.pairs):
            self.free_of[i] = 0
        return 0

    cdef int replace_thresholds(self, list thresholds, const slot_t* ranks, slot_t count) except -1:
        """Judge the present ranks by other pairs of thresholds from now on. O(ranks * pairs)."""
        cdef slot_t i
        for i in range(count):
            self._stand(ranks[i], -1)
        self._set_thresholds(thresholds)
        for i in range(count):
            self._rate(ranks[i])
            self._stand(ranks[i], 1)
            self._settle(ranks[i])
        return 0

    # Ranks.

    cdef int reserve_ranks(self, slot_t ranks) except -1:
        """Make room for ranks 0 .. ranks - 1."""
        cdef slot_t capacity = max(ranks, 2 * self._ranks, 16)
        cdef slot_t rank
        if ranks <= self._ranks:
            return 0
        self.active.reserve(capacity)
        heap_reserve(&self._crossings, capacity)
        resize(<void**>&self.loads, capacity * sizeof(load_t))
        resize(<void**>&self._calm, max(1, capacity * self.pairs) * sizeof(int64_t))
        resize(<void**>&self.dirty_ranks, capacity * sizeof(slot_t))
        resize(<void**>&self.crossed, capacity * sizeof(slot_t))
        resize(<void**>&self._crossing_pos, capacity * sizeof(int32_t))
        for rank in range(self._ranks, capacity):
            self.loads[rank].prefill = 0
            self.loads[rank].weight = 0
            self.loads[rank].held = 0
            self.loads[rank].requests = 0
            self.loads[rank].dirty = False
            self.loads[rank].front_tokens = 0
            self.loads[rank].front_ns = 0
            self.loads[rank].anchor_ns = 0
            self.loads[rank].first = NO_SLOT
            self.loads[rank].fifo_first = NO_SLOT
            self.loads[rank].fifo_last = NO_SLOT
            self._crossing_pos[rank] = NO_SLOT
            forget_rank(&self.loads[rank])
        self._ranks = capacity
        return 0

    cdef int reserve_slots(self, slot_t slots) except -1 nogil:
        """Make room for bookings of request slots 0 .. slots - 1."""
        cdef slot_t capacity = max(slots, 2 * self._slots, 16)
        cdef slot_t slot
        if slots <= self._slots:
            return 0
        resize(<void**>&self.bookings, capacity * sizeof(booking_t))
        for slot in range(self._slots, capacity):
            self.bookings[slot].rank = NO_SLOT
        self._slots = capacity
        return 0

    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept:
        """A rank without load, for which room has been reserved; present once configure_rank has told its caps."""
        self.active.name_rank(rank, tag)

    cdef int configure_rank(
            self, slot_t rank, int64_t max_batched_tokens, int64_t max_blocks, int64_t max_requests,
            int64_t prefill_rate, slot_t taints) except -1:
        """What its worker is like: a rank that is new is open, one that is not keeps its load, state and report."""
        cdef load_t* load = &self.loads[rank]
        cdef slot_t i
        if taints >= self._sets:
            resize(<void**>&self.free_of, max(1, (taints + 1) * self.pairs) * sizeof(int32_t))
            resize(<void**>&self.in_state_of, (taints + 1) * RANK_STATES * sizeof(int32_t))
            for i in range(self._sets * self.pairs, (taints + 1) * self.pairs):
                self.free_of[i] = 0
            for i in range(self._sets * RANK_STATES, (taints + 1) * RANK_STATES):
                self.in_state_of[i] = 0
            self._sets = taints + 1
        self._stand(rank, -1)
        load.max_batched_tokens = max_batched_tokens
        self._rate(rank)
        load.max_blocks = max_blocks
        load.max_requests = max_requests
        load.taints = taints
        if load.prefill_rate != prefill_rate:
            load.prefill_rate = prefill_rate
            set_front(load, self.bookings)
        self._stand(rank, 1)
        self._settle(rank)
        return 0

    cdef void _rate(self, slot_t rank) noexcept:
        """The threshold pairs become the largest prefill load of this rank that is not busy."""
        cdef slot_t pair
        for pair in range(self.pairs):
            self._calm[rank * self.pairs + pair] = min(
                self._absolute[pair], calm_below(self._fraction[pair] * <double>self.loads[rank].max_batched_tokens))

    cdef void set_state(self, slot_t rank, rank_state_t state) noexcept:
        """Whether new requests may go to a present rank, and if not, why."""
        if self.loads[rank].state != state:
            self._stand(rank, -1)
            self.loads[rank].state = state
            self._stand(rank, 1)
            self._changed(rank)

    cdef void remove_rank(self, slot_t rank) noexcept:
        """A rank whose bookings have been released is gone, with all that its engine has told."""
        self._stand(rank, -1)
        forget_rank(&self.loads[rank])
        self._settle(rank)

    cdef bint busy(self, slot_t rank, slot_t pair) noexcept nogil:
        """Whether a rank is above its bound for a threshold pair: strictly (DESIGN D7). INT64_TOP: never."""
        cdef int64_t calm = self._calm[rank * self.pairs + pair]
        return calm != INT64_TOP and load_tokens(&self.loads[rank], self.now_ns) > calm

    cdef int64_t calm(self, slot_t rank, slot_t pair) noexcept nogil:
        """The largest prefill load of a rank that is not busy for a threshold pair; INT64_TOP: it never is."""
        return self._calm[rank * self.pairs + pair]

    cdef int64_t tokens(self, slot_t rank) noexcept nogil:
        return tokens_at(&self.loads[rank], self.now_ns)

    cdef int64_t blocks(self, slot_t rank) noexcept nogil:
        return blocks_of(&self.loads[rank])

    # Bookings.

    cdef int book(
            self, slot_t slot, slot_t rank, tokens_t prefill, const uint64_t* path, int32_t length,
            int64_t private_blocks, int64_t reserve_blocks) except -1 nogil:
        """Book a request on a rank: all of it or, on MemoryError, nothing. The path must stay until the release."""
        cdef booking_t* booking
        cdef load_t* load
        cdef tokens_t before
        cdef int32_t fresh = 0
        self.reserve_slots(slot + 1)
        if length:
            fresh = self._count_blocks(path, length, rank)
        booking = &self.bookings[slot]
        load = &self.loads[rank]
        booking.rank = rank
        booking.prefilling = True
        booking.prefill = prefill
        booking.path = path
        booking.length = length
        booking.bound_from = length
        booking.path_weight = FRACTION_ONE
        booking.outputs = 0
        booking.outputs_decayed = 0
        booking.decayed_weight = 0
        booking.private_blocks = private_blocks
        booking.reserve_blocks = reserve_blocks
        booking.prev = NO_SLOT
        booking.next = load.first
        if load.first != NO_SLOT:
            self.bookings[load.first].prev = slot
        load.first = slot
        load.requests += 1
        load.weight += <int64_t>fresh * FRACTION_ONE
        load.held += <i128>private_blocks + reserve_blocks + fresh
        if prefill > 0:
            before = load_tokens(load, self.now_ns)
            load.prefill += prefill
            if self.decays:
                enter_fifo(load, self.bookings, slot, self.now_ns)
            self._recount(rank, before, self.now_ns)
        self._settle(rank)
        return 0

    cdef int32_t _count_blocks(self, const uint64_t* path, int32_t length, slot_t rank) except -1 nogil:
        """One more reference to each block of a path: all or, on MemoryError, none. Returns how many are new there."""
        cdef pair_t* pair
        cdef int32_t row, fresh = 0, i = 0
        while i < length:
            if i % EXPECTED_MAX == 0:
                self.active.expect(path + i, length - i, rank)
            row = self.active.acquire(path[i], rank)
            if row == NO_SLOT:
                while i:
                    i -= 1
                    self.active.release(self.active.find(path[i], rank))
                with gil:
                    raise MemoryError("active blocks")
            pair = &self.active.rows[row]
            if pair.count == 1:
                fresh += 1
            elif pair.owner != NO_SLOT:
                self._unbind(pair.owner, pair.at)   # moves no total, so a MemoryError later need not undo it
            i += 1
        return fresh

    cdef bint complete_prefill(self, slot_t slot) noexcept nogil:
        """Release a booking's prefill tokens, once. True iff there were any."""
        cdef booking_t* booking = &self.bookings[slot]
        if not booking.prefilling:
            return False
        booking.prefilling = False
        if booking.prefill == 0:
            return False
        self._finish_prefill(slot, True)
        self._settle(booking.rank)
        return True

    cdef void add_output(self, slot_t slot, int32_t weight) noexcept nogil:
        """One more output block; a weight >= 0 is then given to all outputs and to the prompt's unshared suffix."""
        cdef booking_t* booking = &self.bookings[slot]
        cdef load_t* load = &self.loads[booking.rank]
        cdef int32_t at = booking.bound_from
        cdef pair_t* pair
        booking.outputs += 1
        load.weight += FRACTION_ONE
        if <int64_t>booking.outputs + booking.outputs_decayed > booking.reserve_blocks:
            load.held += 1
        self._changed(booking.rank)
        if weight < 0:
            return
        self.faded = True
        load.weight -= output_weight(booking)
        booking.outputs_decayed += booking.outputs
        booking.outputs = 0
        booking.decayed_weight = weight
        load.weight += output_weight(booking)
        load.weight += (<int64_t>booking.length - at) * (weight - booking.path_weight)
        booking.path_weight = weight
        while at:
            pair = &self.active.rows[self.active.find(booking.path[at - 1], booking.rank)]
            if pair.count > 1:
                break
            at -= 1
            load.weight += weight - pair.weight
            pair.owner = slot
            pair.at = at
        booking.bound_from = at

    cdef bint release(self, slot_t slot, bint completed) noexcept nogil:
        """Undo a booking and all that it has added since. True iff prefill tokens were left.

        completed: it has run to its end, so what was left of its prefill has been computed, not dropped.
        """
        cdef booking_t* booking = &self.bookings[slot]
        cdef slot_t rank = booking.rank
        cdef load_t* load = &self.loads[rank]
        cdef bint relieved = booking.prefilling and booking.prefill > 0
        cdef int32_t i, weight
        cdef int64_t at
        for i in range(booking.length - 1, -1, -1):
            if i == booking.length - 1 or i % EXPECTED_MAX == EXPECTED_MAX - 1:
                self.active.expect(booking.path + i - i % EXPECTED_MAX, i % EXPECTED_MAX + 1, rank)
            at = self.active.entry(booking.path[i], rank)
            weight = weight_of(self.bookings, self.active.pair_at(at))
            if self.active.release_at(at):
                load.weight -= weight
                load.held -= 1
        load.weight -= output_weight(booking)
        load.held -= booking.private_blocks
        load.held -= max(booking.reserve_blocks, <int64_t>booking.outputs + booking.outputs_decayed)
        load.requests -= 1
        if relieved:
            self._finish_prefill(slot, completed)
        if booking.next != NO_SLOT:
            self.bookings[booking.next].prev = booking.prev
        if booking.prev != NO_SLOT:
            self.bookings[booking.prev].next = booking.next
        else:
            load.first = booking.next
        booking.rank = NO_SLOT
        self.faded = self.faded and self.active.pairs > 0
        self._settle(rank)
        return relieved

    cdef int32_t path_weight(self, slot_t slot, int32_t at) noexcept nogil:
        """What a block of a booking's path weighs, 2^20 = one block."""
        cdef const booking_t* booking = &self.bookings[slot]
        if at >= booking.bound_from:
            return booking.path_weight
        return weight_of(self.bookings, &self.active.rows[self.active.find(booking.path[at], booking.rank)])

    # Reports and time.

    cdef bint report(
            self, slot_t rank, int64_t sequence, int64_t prefill, int64_t blocks, int64_t requests,
            bint counts) noexcept:
        """What the engine says of itself. Not newer than its last report: no effect, False.

        counts: what it says beyond the rank's bookings is foreign load from now on.
        """
        cdef load_t* load = &self.loads[rank]
        if sequence <= load.reported_sequence:
            return False
        load.reported_sequence = sequence
        load.reported_prefill = prefill
        load.reported_blocks = blocks
        load.reported_requests = requests
        if counts:
            self._set_foreign(rank, beyond(prefill, own_tokens_at(load, self.now_ns)),
                              beyond(blocks, active_blocks(load)), beyond(requests, load.requests))
        else:
            self._set_foreign(rank, 0, 0, 0)
        return True

    cdef void forget_report(self, slot_t rank) noexcept nogil:
        """The last report counts no longer; what it said stays."""
        self._set_foreign(rank, 0, 0, 0)

    cdef ns_t next_crossing_ns(self) noexcept nogil:
        """When decay alone next makes a rank not busy that was, for some pair: after now_ns, or NEVER_NS."""
        return <ns_t>self._crossings.nodes[0].key.first if self._crossings.size else NEVER_NS

    cdef void advance(self, ns_t now_ns) noexcept nogil:
        """Loads are read at now_ns from here on; never back. `crossed` tells whom that has made less busy."""
        cdef ns_t before_ns = self.now_ns
        cdef slot_t rank
        self.crossed_count = 0
        self.now_ns = now_ns
        while self._crossings.size and <ns_t>self._crossings.nodes[0].key.first <= now_ns:
            rank = self._crossings.nodes[0].item
            self._recount(rank, load_tokens(&self.loads[rank], before_ns), now_ns)
            self._settle(rank)
            self.crossed[self.crossed_count] = rank
            self.crossed_count += 1

    cdef void clear_dirty(self) noexcept nogil:
        cdef slot_t i
        for i in range(self.dirties):
            self.loads[self.dirty_ranks[i]].dirty = False
        self.dirties = 0

    # Inside.

    cdef void _recount(self, slot_t rank, tokens_t before, ns_t now_ns) noexcept nogil:
        """Its prefill load was `before`: count a rank in or out where it has crossed a bound since."""
        cdef load_t* load = &self.loads[rank]
        cdef const int64_t* calm = &self._calm[rank * self.pairs]
        cdef tokens_t tokens
        cdef int32_t by
        cdef slot_t pair
        if self.pairs == 0 or load.taints == NO_SLOT or load.state != RANK_OPEN:
            return
        tokens = load_tokens(load, now_ns)
        for pair in range(self.pairs):
            by = (tokens <= calm[pair]) - (before <= calm[pair])
            if by:
                self.free[pair] += by
                self.free_of[load.taints * self.pairs + pair] += by

    cdef void _stand(self, slot_t rank, int32_t by) noexcept nogil:
        """Count a rank, if it is present, in or out of all counters: of the free ones per pair it is not busy for."""
        cdef load_t* load = &self.loads[rank]
        cdef tokens_t tokens
        cdef slot_t pair
        if load.taints == NO_SLOT:
            return
        self.in_state[load.state] += by
        self.in_state_of[load.taints * RANK_STATES + load.state] += by
        if load.state == RANK_OPEN and self.pairs:
            tokens = load_tokens(load, self.now_ns)
            for pair in range(self.pairs):
                if tokens <= self._calm[rank * self.pairs + pair]:
                    self.free[pair] += by
                    self.free_of[load.taints * self.pairs + pair] += by

    cdef void _changed(self, slot_t rank) noexcept nogil:
        if not self.loads[rank].dirty:
            self.loads[rank].dirty = True
            self.dirty_ranks[self.dirties] = rank
            self.dirties += 1

    cdef void _settle(self, slot_t rank) noexcept nogil:
        """A rank's load or bounds have changed: say so, and foresee anew when decay makes it less busy."""
        cdef key_t key
        cdef ns_t crossing_ns
        self._changed(rank)
        if not self.decays:
            return
        if self._crossing_pos[rank] != NO_SLOT:
            heap_remove(&self._crossings, rank, self._crossing_pos)
            self._crossing_pos[rank] = NO_SLOT
        crossing_ns = self._crossing_ns(rank)
        if crossing_ns != NEVER_NS:
            key.tier = 0
            key.first = crossing_ns
            key.second = 0
            key.seq = rank
            heap_push(&self._crossings, &key, rank, self._crossing_pos)    # room has been reserved

    cdef ns_t _crossing_ns(self, slot_t rank) noexcept nogil:
        """The first time after now at which a rank stops to be busy for a pair, if nothing happens; or NEVER_NS."""
        cdef load_t* load = &self.loads[rank]
        cdef const int64_t* calm = &self._calm[rank * self.pairs]
        cdef int64_t tokens
        cdef int64_t bound = -1
        cdef slot_t pair
        if load.front_ns == 0 or load.taints == NO_SLOT:
            return NEVER_NS
        tokens = tokens_at(load, self.now_ns)
        for pair in range(self.pairs):
            if bound < calm[pair] < tokens:
                bound = calm[pair]
        return NEVER_NS if bound < 0 else time_of_tokens(load, bound)

    cdef void _finish_prefill(self, slot_t slot, bint completed) noexcept nogil:
        """Take a booking's prefill tokens, of which there are some, out of its rank's load."""
        cdef slot_t rank = self.bookings[slot].rank
        cdef tokens_t before = load_tokens(&self.loads[rank], self.now_ns)
        self.loads[rank].prefill -= self.bookings[slot].prefill
        if self.decays:
            leave_fifo(&self.loads[rank], self.bookings, slot, completed, self.now_ns)
        self._recount(rank, before, self.now_ns)

    cdef void _set_foreign(self, slot_t rank, int64_t prefill, int64_t blocks, int64_t requests) noexcept nogil:
        cdef load_t* load = &self.loads[rank]
        cdef tokens_t before = load_tokens(load, self.now_ns)
        load.foreign_prefill = prefill
        load.foreign_blocks = blocks
        load.foreign_requests = requests
        self._recount(rank, before, self.now_ns)
        self._settle(rank)

    cdef void _unbind(self, slot_t slot, int32_t at) noexcept nogil:
        """Blocks up to path[at] are shared from now on, or may be later: each keeps its weight for itself."""
        cdef booking_t* booking = &self.bookings[slot]
        cdef pair_t* pair
        cdef int32_t i
        for i in range(booking.bound_from, at + 1):
            pair = &self.active.rows[self.active.find(booking.path[i], booking.rank)]
            pair.weight = booking.path_weight
            pair.owner = NO_SLOT
        booking.bound_from = at + 1
