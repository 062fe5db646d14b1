"""Standings: all ranks of the fleet in canonical order, kept so that a choice need not look at each (DESIGN D8).

Owns two kinds of trees over the open ranks, brought up to date from the ledger's dirty ranks:

costs: the integer P + B * D + a * B * R. Where the block size is a power of two, the prefill scale 1, a * B a small
    whole number and nothing is too large, every step of the cost formula is exact, and a rank on which the request has
    no overlap costs (key + prompt + B * sequence) / B: order and ties of the keys are order and ties of the costs. Only
    ranks with some overlap, the overlay, are costed one by one. Overlap never makes a rank dearer (where a weight makes
    it so, it is seen, and the plain loop is taken), so the least of tree and overlay is the least of all, although the
    tree knows the overlay's ranks by their cost without overlap.
rooms: under strict capacity, per pair of busy thresholds, the blocks that are free on a rank that is not busy.

Never here: who may be used, bookings, the common and the rare forms of a cost (_selector). It changes no load.

Invariants: after refresh() every key is that of the ledger's loads; the rank chosen, the number of draws and the set of
ties are those of the plain loop over all open ranks in canonical order.

Cost: rebuild O(W), the larger one of before and after; refresh O(dirty log W), at most O(W); cheapest O(log W +
overlay), the plain loop's O(W) where the overlay is large or the query is not served; most_room O(1).
"""
from libc.stdlib cimport free, qsort
from kvcore._load cimport INT64_TOP, RANK_OPEN, blocks_of, held_of, load_t, load_tokens, requests_of
from kvcore._selector cimport choose, draw, rank_cost
from kvcore._tournament cimport (
    ABSENT, tournament_build, tournament_clear, tournament_free, tournament_init, tournament_key, tournament_min,
    tournament_place, tournament_reserve, tournament_set, tournament_ties, tournament_ties_before, tournament_tied)
from kvcore._types cimport NO_SLOT, i128, resize, tokens_t

cdef extern from *:
    """
    #define KV_KEY_CAP ((int64_t)1 << 52)
    #define KV_KEY_SURE ((int64_t)1 << 51)
    """
    # Keys stop at the cap. A least key that is below half of it, request included, is told apart from all capped ones
    # even after their costs have been rounded, and all others are exact.
    const int64_t KEY_CAP "KV_KEY_CAP"
    const int64_t KEY_SURE "KV_KEY_SURE"

cdef double REQUEST_TOKENS_MAX = 1048576.0  # 2^20

cdef enum:
    # Flags of a position.
    IS_OPEN = 1
    IS_LOADED = 2          # open, and it has prefill tokens

cdef enum:
    # An overlay of at most this part of all ranks is costed one by one. One takes as long as two in the plain loop.
    OVERLAY_SHARE = 4


cdef int by_position(const void* a, const void* b) noexcept nogil:
    return (<const slot_t*>a)[0] - (<const slot_t*>b)[0]


cdef inline slot_t sorted_set(slot_t* positions, slot_t count) noexcept nogil:
    """Sort, drop repetitions. Returns how many are left."""
    cdef slot_t kept = 1
    cdef slot_t i
    if count < 2:
        return count
    qsort(positions, count, sizeof(slot_t), by_position)
    for i in range(1, count):
        if positions[i] != positions[kept - 1]:
            positions[kept] = positions[i]
            kept += 1
    return kept


cdef inline void enter(tournament_t* tree, slot_t position, int64_t key, bint play) noexcept nogil:
    if play:
        tournament_set(tree, position, key)
    else:
        tournament_place(tree, position, key)


cdef inline int64_t room_key(const load_t* load) noexcept nogil:
    """Minus the free blocks of a rank that takes one more request."""
    if requests_of(load) >= load.max_requests:
        return ABSENT
    return -INT64_TOP if load.max_blocks == INT64_TOP else held_of(load) - load.max_blocks


cdef class Standings:
    def __cinit__(self, Ledger ledger not None, int64_t block_size, double active_request_weight, bint strict):
        cdef double request_tokens = active_request_weight * <double>block_size
        cdef slot_t i
        self.ledger = ledger
        self._block_size = block_size
        self._request_weight = active_request_weight
        self._exact = (
            not ledger.decays and block_size & (block_size - 1) == 0 and request_tokens <= REQUEST_TOKENS_MAX
            and <double><int64_t>request_tokens == request_tokens)
        self._request_tokens = <int64_t>request_tokens if self._exact else 0
        self._strict = strict
        self._pairs = ledger.pairs
        tournament_init(&self._costs)
        if strict:
            resize(<void**>&self._rooms, (self._pairs + 1) * sizeof(tournament_t))
            for i in range(self._pairs + 1):
                tournament_init(&self._rooms[i])

    def __dealloc__(self):
        cdef slot_t i
        tournament_free(&self._costs)
        if self._rooms != NULL:
            for i in range(self._pairs + 1):
                tournament_free(&self._rooms[i])
        free(self._rooms)
        free(self._order)
        free(self._position)
        free(self._flags)
        free(self._extra)
        free(self._tied)

    cdef int rebuild(self, const slot_t* order, slot_t present) except -1 nogil:
        """The fleet has other ranks: all present ones in canonical order. All of it or, on MemoryError, nothing."""
        cdef slot_t position, i
        self._reserve(order, present)
        for position in range(self.present):
            self._position[self._order[position]] = NO_SLOT     # those of before, not all that have ever been
        for position in range(present):
            self._order[position] = order[position]
            self._position[order[position]] = position
            self._flags[position] = 0
        self.present = present
        self._depth = 1
        while (1 << self._depth) < present:
            self._depth += 1
        self._open = 0
        self._loaded = 0
        tournament_clear(&self._costs, present)
        if self._strict:
            for i in range(self._pairs + 1):
                tournament_clear(&self._rooms[i], present)
        for position in range(present):
            self._stand(position, False)
        self._build()
        self.ledger.clear_dirty()
        return 0

    cdef int _reserve(self, const slot_t* order, slot_t present) except -1 nogil:
        """Memory for so many positions and for the ranks named."""
        cdef slot_t room = max(present, 16)
        cdef slot_t ranks = 0
        cdef slot_t i
        for i in range(present):
            ranks = max(ranks, order[i] + 1)
        if ranks > self._ranks:
            ranks = max(ranks, 2 * self._ranks)
            resize(<void**>&self._position, ranks * sizeof(slot_t))
            for i in range(self._ranks, ranks):
                self._position[i] = NO_SLOT
            self._ranks = ranks
        tournament_reserve(&self._costs, present)
        if self._strict:
            for i in range(self._pairs + 1):
                tournament_reserve(&self._rooms[i], present)
        if room > self._room:
            room = max(room, 2 * self._room)
            resize(<void**>&self._order, room * sizeof(slot_t))
            resize(<void**>&self._flags, room)
            resize(<void**>&self._extra, room * sizeof(slot_t))
            resize(<void**>&self._tied, room * sizeof(slot_t))
            self._room = room
        return 0

    cdef int refresh(self) noexcept nogil:
        """Take in what has changed in the ledger since the last time."""
        cdef slot_t dirties = self.ledger.dirties
        cdef bint one_by_one = <int64_t>dirties * self._depth <= self.present
        cdef slot_t rank, i
        for i in range(dirties):
            rank = self.ledger.dirty_ranks[i]
            if rank < self._ranks and self._position[rank] != NO_SLOT:
                self._stand(self._position[rank], one_by_one)
        if dirties and not one_by_one:
            self._build()
        self.ledger.clear_dirty()
        return 0

    cdef void _stand(self, slot_t position, bint play) noexcept nogil:
        """Read the load of a rank; play its matches, or leave them to _build."""
        cdef slot_t rank = self._order[position]
        cdef const load_t* load = &self.ledger.loads[rank]
        cdef tokens_t tokens = load_tokens(load, self.ledger.now_ns)
        cdef unsigned char flags = 0
        cdef slot_t pair
        if load.state == RANK_OPEN:
            flags = IS_OPEN | (IS_LOADED if tokens else 0)
        self._open += (flags & IS_OPEN) - (self._flags[position] & IS_OPEN)
        self._loaded += (flags & IS_LOADED) // IS_LOADED - (self._flags[position] & IS_LOADED) // IS_LOADED
        self._flags[position] = flags
        enter(&self._costs, position, self._cost_key(load, tokens) if self._exact and flags else ABSENT, play)
        if self._strict:
            for pair in range(self._pairs):
                enter(&self._rooms[pair], position,
                      room_key(load) if flags and not self.ledger.busy(rank, pair) else ABSENT, play)
            enter(&self._rooms[self._pairs], position, room_key(load) if flags else ABSENT, play)

    cdef int64_t _cost_key(self, const load_t* load, tokens_t tokens) noexcept nogil:
        cdef i128 key = <i128>self._block_size * blocks_of(load)
        key += <i128>self._request_tokens * requests_of(load)
        key += tokens
        return KEY_CAP if key >= KEY_CAP else <int64_t>key

    cdef void _build(self) noexcept nogil:
        """All matches of all trees."""
        cdef slot_t i
        tournament_build(&self._costs)
        if self._strict:
            for i in range(self._pairs + 1):
                tournament_build(&self._rooms[i])

    cdef int64_t most_room(self, slot_t pair) noexcept nogil:
        """Free blocks of the roomiest open rank that takes one more request and, with a pair, is not busy by it.

        INT64_TOP: no bound. -INT64_TOP: no such rank. Strict capacity only.
        """
        return -tournament_min(&self._rooms[self._pairs if pair == NO_SLOT else pair])

    cdef bint serves(self, const query_t* query) noexcept nogil:
        """Whether keys say what costs say for this request, wherever it has no overlap."""
        if not self._exact or query.block_size != self._block_size:
            return False
        if query.weights.scale != 1.0 or query.weights.requests != self._request_weight:
            return False
        if query.weights.temperature > 0.0 or query.multiplier != NULL:
            return False
        if query.shared_count and query.weights.shared != 0.0:
            return False
        if query.track_prefill:
            return not query.weights.credit_decay > 0.0
        return self._loaded == 0

    cdef slot_t cheapest(
        self, const query_t* query, const slot_t* overlay, slot_t count, uint64_t* generator) noexcept nogil:
        """The rank that `choose` would take of all open ranks, for a request that is served; NO_SLOT: none is open.

        overlay: every rank on which the request has device, host, disk or effective blocks, cached tokens as told, or
        blocks that run; others and some twice do no harm.
        """
        cdef slot_t ties
        if self._open == 0:
            return NO_SLOT
        ties = self.settle(query, overlay, count)
        if ties == 0:
            return self._plain(query, generator)
        return self.tied(draw(generator, ties) if ties > 1 else 0)

    cdef slot_t settle(self, const query_t* query, const slot_t* overlay, slot_t count) noexcept nogil:
        """How many open ranks have the least cost, which is left in `best`; 0: keys cannot tell, or not in time."""
        cdef int64_t least = tournament_min(&self._costs)
        cdef int64_t base = self._block_size * query.sequence_length + (query.prompt if query.track_prefill else 0)
        cdef int64_t key
        cdef double cold, cost
        cdef slot_t position, i
        if <int64_t>count * OVERLAY_SHARE > self.present or least >= KEY_SURE or base >= KEY_SURE - least:
            return 0
        cold = <double>(least + base) / <double>self._block_size
        self.best = cold
        self._extras = 0
        for i in range(count):
            position = self._position[overlay[i]] if overlay[i] < self._ranks else NO_SLOT
            if position == NO_SLOT or not self._flags[position]:
                continue
            key = tournament_key(&self._costs, position)
            cost = rank_cost(&self.ledger.loads[overlay[i]], overlay[i], query, 0)
            if key == least and cost > cold:
                return 0
            if cost < self.best:
                self.best = cost
                self._extras = 0
            if cost == self.best and not (key == least and cost == cold):
                self._extra[self._extras] = position
                self._extras += 1
        if <int64_t>self._extras * self._depth > self.present:
            return 0
        self._extras = sorted_set(self._extra, self._extras)
        self._tree_ties = tournament_ties(&self._costs) if self.best == cold else 0
        return self._tree_ties + self._extras

    cdef slot_t tied(self, slot_t j) noexcept nogil:
        """The j-th rank, from 0 and in canonical order, of those that settle() has counted."""
        cdef slot_t low = 0
        cdef slot_t high = self._extras
        cdef slot_t middle, before
        # The first of `_extra` that is not before the j-th.
        while low < high:
            middle = (low + high) // 2
            before = middle
            if self._tree_ties:
                before += tournament_ties_before(&self._costs, self._extra[middle])
            if before == j:
                return self._order[self._extra[middle]]
            if before < j:
                low = middle + 1
            else:
                high = middle
        return self._order[tournament_tied(&self._costs, j - low)]

    cdef slot_t _plain(self, const query_t* query, uint64_t* generator) noexcept nogil:
        """The plain loop over all open ranks."""
        cdef slot_t position
        cdef slot_t count = 0
        if self._open == self.present:
            return choose(self.ledger.loads, self._order, self.present, query, generator, self._tied, NULL)
        for position in range(self.present):
            if self._flags[position]:
                self._extra[count] = self._order[position]
                count += 1
        return choose(self.ledger.loads, self._extra, count, query, generator, self._tied, NULL)
