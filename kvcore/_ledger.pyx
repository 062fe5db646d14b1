"""Ledger: what runs where, and the load that this makes (DESIGN D9).

Owns one booking per running request and, per rank, the totals: prefill tokens, weight of active blocks, requests;
plus, per distinct pair of busy thresholds, how many ranks are not busy, kept on every change so that an
unconstrained head is judged in O(1) (DESIGN D4).

Never here: request helpers (it is told effective prefill tokens), who may run, what is merely cached.

Invariants, most important first: every total is the sum over live bookings, so it is zero when nothing runs;
release undoes exactly what book and the facts since have added; a block counts once per rank however many bookings
share it; free[p] = the present ranks whose prefill load is at most their calm bound for pair p.

Weights are sticky: a fraction given to a block holds while the block lives, also for those who share it later.
Cost: book, release O(path); complete_prefill O(pairs); add_output O(1), with a fraction O(path).
"""
from libc.math cimport INFINITY
from libc.stdlib cimport free
from kvcore._types cimport NO_SLOT, resize

cdef int64_t INT64_TOP = 0x7FFFFFFFFFFFFFFF


cdef class Ledger:
    def __cinit__(self, list thresholds not None):
        """thresholds: distinct (absolute or None, fraction or None) pairs, at least one of the two set in each."""
        cdef slot_t pair
        self._thresholds = thresholds
        self.pairs = len(thresholds)
        self.active = PrefixIndex()
        resize(<void**>&self.free, max(1, self.pairs) * sizeof(int32_t))
        for pair in range(self.pairs):
            self.free[pair] = 0

    def __dealloc__(self):
        free(self.loads)
        free(self.bookings)
        free(self._calm)
        free(self.free)
        free(self.free_of)

    cdef int reserve_ranks(self, slot_t ranks) except -1:
        """Make room for ranks 0 .. ranks - 1."""
        cdef slot_t capacity = max(ranks, 2 * self._ranks, 16)
        cdef slot_t rank
        if ranks <= self._ranks:
            return 0
        self.active.reserve(capacity)
        resize(<void**>&self.loads, capacity * sizeof(load_t))
        resize(<void**>&self._calm, max(1, capacity * self.pairs) * sizeof(int64_t))
        for rank in range(self._ranks, capacity):
            self.loads[rank].prefill = 0
            self.loads[rank].weight = 0
            self.loads[rank].requests = 0
            self.loads[rank].first = NO_SLOT
            self.loads[rank].taints = NO_SLOT
        self._ranks = capacity
        return 0

    cdef int reserve_slots(self, slot_t slots) except -1:
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
        """A rank without load, for which room has been reserved; present once configure_rank has told its cap."""
        self.active.name_rank(rank, tag)

    cdef void remove_rank(self, slot_t rank) noexcept:
        """A rank whose bookings have been released is gone."""
        self._count(rank, -1)
        self.loads[rank].taints = NO_SLOT

    cdef int configure_rank(self, slot_t rank, int64_t max_batched_tokens, slot_t taints) except -1:
        """Turn the threshold pairs into the largest prefill load of this rank that is not busy; note its taint set."""
        cdef slot_t pair, i
        cdef int64_t calm
        if taints >= self._sets:
            resize(<void**>&self.free_of, max(1, (taints + 1) * self.pairs) * sizeof(int32_t))
            for i in range(self._sets * self.pairs, (taints + 1) * self.pairs):
                self.free_of[i] = 0
            self._sets = taints + 1
        if self.loads[rank].taints != NO_SLOT:
            self._count(rank, -1)
        for pair in range(self.pairs):
            absolute, fraction = self._thresholds[pair]
            calm = INT64_TOP if absolute is None else absolute
            if fraction is not None:
                calm = min(calm, calm_below(<double>fraction * <double>max_batched_tokens))
            self._calm[rank * self.pairs + pair] = calm
        self.loads[rank].taints = taints
        self._count(rank, 1)
        return 0

    cdef bint busy(self, slot_t rank, slot_t pair) noexcept nogil:
        """Whether a rank is above its bound for a threshold pair: strictly (DESIGN D7). INT64_TOP: never."""
        cdef int64_t calm = self._calm[rank * self.pairs + pair]
        return self.loads[rank].prefill > calm and calm != INT64_TOP

    cdef int book(self, slot_t slot, slot_t rank, tokens_t prefill, const uint64_t* path, int32_t length) except -1:
        """Book a request on a rank: all of it or, on MemoryError, nothing."""
        cdef booking_t* booking
        cdef load_t* load
        cdef int32_t i = 0
        cdef int32_t holder
        cdef int64_t weight = 0
        self.reserve_slots(slot + 1)
        try:
            while i < length:
                holder = self.active.acquire(path[i], rank)
                if self.active.holders[holder].count == 1:
                    weight += FRACTION_ONE
                i += 1
        except MemoryError:
            while i:
                i -= 1
                self.active.release(path[i], rank)
            raise
        booking = &self.bookings[slot]
        load = &self.loads[rank]
        booking.rank = rank
        booking.prefilling = True
        booking.prefill = prefill
        booking.outputs = 0
        booking.outputs_decayed = 0
        booking.decayed_weight = 0
        booking.prev = NO_SLOT
        booking.next = load.first
        if load.first != NO_SLOT:
            self.bookings[load.first].prev = slot
        load.first = slot
        load.requests += 1
        load.weight += weight
        self._add_prefill(rank, prefill)
        return 0

    cdef bint complete_prefill(self, slot_t slot) noexcept:
        """Release a booking's prefill tokens, once. True iff the rank's load fell."""
        cdef booking_t* booking = &self.bookings[slot]
        booking.prefilling = False
        if booking.prefill == 0:
            return False
        self._add_prefill(booking.rank, -<i128>booking.prefill)
        return True

    cdef void add_output(self, slot_t slot, int32_t weight, const uint64_t* path, int32_t length) noexcept:
        """One more output block; a weight >= 0 is then given to all outputs and to the prompt blocks nobody shares."""
        cdef booking_t* booking = &self.bookings[slot]
        cdef load_t* load = &self.loads[booking.rank]
        cdef int32_t i, holder
        booking.outputs += 1
        load.weight += FRACTION_ONE
        if weight < 0:
            return
        load.weight -= output_weight(booking)
        booking.outputs_decayed += booking.outputs
        booking.outputs = 0
        booking.decayed_weight = weight
        load.weight += output_weight(booking)
        for i in range(length):
            holder = self.active.find(path[i], booking.rank)
            if self.active.holders[holder].count == 1:
                load.weight += weight - self.active.holders[holder].weight
                self.active.holders[holder].weight = weight

    cdef bint release(self, slot_t slot, const uint64_t* path, int32_t length) noexcept:
        """Undo a booking and all that it has added since. True iff prefill load fell."""
        cdef booking_t* booking = &self.bookings[slot]
        cdef slot_t rank = booking.rank
        cdef load_t* load = &self.loads[rank]
        cdef bint relieved = booking.prefilling and booking.prefill > 0
        cdef int32_t i
        for i in range(length - 1, -1, -1):
            load.weight -= self.active.release(path[i], rank)
        load.weight -= output_weight(booking)
        load.requests -= 1
        if relieved:
            self._add_prefill(rank, -<i128>booking.prefill)
        if booking.next != NO_SLOT:
            self.bookings[booking.next].prev = booking.prev
        if booking.prev != NO_SLOT:
            self.bookings[booking.prev].next = booking.next
        else:
            load.first = booking.next
        booking.rank = NO_SLOT
        return relieved

    cdef void _count(self, slot_t rank, int32_t by) noexcept:
        """Count a present rank in (by 1) or out (by -1) of the free ones, per pair that it is not busy for."""
        cdef slot_t pair
        for pair in range(self.pairs):
            if not self.busy(rank, pair):
                self.free[pair] += by
                self.free_of[self.loads[rank].taints * self.pairs + pair] += by

    cdef void _add_prefill(self, slot_t rank, i128 tokens) noexcept:
        self._count(rank, -1)
        self.loads[rank].prefill += tokens
        self._count(rank, 1)


cdef int64_t calm_below(double bound) noexcept nogil:
    """The largest token count t with float(t) <= bound, for bound >= 0: busy is float(tokens) > bound (DESIGN D7)."""
    cdef int64_t low, high, middle
    if bound >= 9.2e18 or bound == INFINITY:
        return INT64_TOP
    # float(t) rounds, so a count just above the bound may still not be busy; counts up to 2^53 are exact.
    low = <int64_t>bound
    high = low + (low >> 52) + 1
    while low < high:
        middle = low + (high - low + 1) // 2
        if <double>middle <= bound:
            low = middle
        else:
            high = middle - 1
    return low
