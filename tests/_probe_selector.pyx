"""Doors for tests to selection: elementary functions, generator, costs, choices, tournament, standings. Never shipped.

A door converts and does nothing else: sequences become C arrays, NO_SLOT becomes None.
"""
from cpython cimport array
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from kvcore._elementary cimport kv_exp, kv_tanh
from kvcore._ledger cimport Ledger
from kvcore._load cimport INT64_TOP, RANK_OPEN, load_t, rank_state_t
from kvcore._selector cimport (
    cached_tokens, cheapest, choose, device_blocks, draw, hits_beyond, least_tokens, next_random, query_t, range_t,
    rank_cost, softmax, uniform)
from kvcore._standings cimport Standings
from kvcore._tournament cimport (
    tournament_build, tournament_clear, tournament_free, tournament_init, tournament_key, tournament_min,
    tournament_place, tournament_reserve, tournament_set, tournament_t, tournament_ties, tournament_ties_before,
    tournament_tied)
from kvcore._types cimport NO_SLOT, i128, int32_t, int64_t, ns_t, slot_t, uint64_t

import array


cdef object or_none(slot_t slot):
    return None if slot == NO_SLOT else slot


cdef slot_t* slots_of(array.array made):
    return <slot_t*>made.data.as_ints


cdef i128 wide(number):
    return (<i128><int64_t>(number >> 64) << 64) + <i128><uint64_t>(number & 0xFFFFFFFFFFFFFFFF)


def exp(double x):
    return kv_exp(x)


def tanh(double x):
    return kv_tanh(x)


def randoms(uint64_t seed, int64_t count):
    """The first outputs of the generator."""
    cdef uint64_t state = seed
    return [next_random(&state) for _ in range(count)]


def draws(uint64_t seed, uint64_t n, int64_t count):
    """The first draws from 0 .. n - 1, and the state after them."""
    cdef uint64_t state = seed
    return [draw(&state, n) for _ in range(count)], state


def uniforms(uint64_t seed, int64_t count):
    """The first uniforms, and the state after them."""
    cdef uint64_t state = seed
    return [uniform(&state) for _ in range(count)], state


def softmax_index(costs, double temperature, double u):
    """Index on which u falls."""
    cdef array.array scratch = array.array("d", costs)
    return softmax(scratch.data.as_doubles, <slot_t>len(scratch), temperature, u)


cdef class Query:
    """query_t. By rank: device, host, disk, effective, cached, active; by taint set: multiplier; None: not there.

    weights: the eight fields of SelectionWeights in their order.
    """

    cdef query_t query
    cdef list _kept

    def __init__(self, int64_t prompt, int64_t block_size, weights, *, int32_t sequence_length=0,
                 bint track_prefill=True, bint decode_role=False, ns_t now_ns=0, device=None, effective=None,
                 host=None, disk=None, cached=None, shared=(), multiplier=None, active=None):
        cdef query_t* query = &self.query
        self._kept = []
        memset(query, 0, sizeof(query_t))
        query.prompt = prompt
        query.block_size = block_size
        query.sequence_length = sequence_length
        query.track_prefill = track_prefill
        query.decode_role = decode_role
        (query.weights.credit, query.weights.credit_decay, query.weights.scale, query.weights.host,
         query.weights.disk, query.weights.shared, query.weights.requests, query.weights.temperature) = weights
        query.now_ns = now_ns
        query.device = <const int32_t*>self._array("i", device)
        query.effective = <const double*>self._array("d", effective)
        query.host = <const int32_t*>self._array("i", host)
        query.disk = <const int32_t*>self._array("i", disk)
        query.cached = <const int64_t*>self._array("q", cached)
        query.active = <const int32_t*>self._array("i", active)
        query.multiplier = <const double*>self._array("d", multiplier)
        query.shared = <const range_t*>self._array("i", [at for pair in shared for at in pair] or None)
        query.shared_count = <int32_t>len(shared)

    cdef void* _array(self, str code, values):
        cdef array.array made
        if values is None:
            return NULL
        made = array.array(code, [*values, 0])  # never empty: NULL would mean None
        self._kept.append(made)
        return <void*>made.data.as_chars

    def cached_tokens(self, slot_t rank):
        return cached_tokens(&self.query, rank)

    def device_blocks(self, slot_t rank):
        return device_blocks(&self.query, rank)

    def hits_beyond(self, double depth):
        return hits_beyond(&self.query, depth)


cdef class Loads:
    """load_t by rank: (prefill tokens, weight, requests, taint set, foreign prefill, foreign blocks, foreign requests).

    The last of them may lack: they are 0.
    """

    cdef load_t* rows

    def __cinit__(self, rows):
        cdef slot_t rank
        self.rows = <load_t*>calloc(max(1, len(rows)), sizeof(load_t))
        for rank in range(<slot_t>len(rows)):
            row = [*rows[rank], 0, 0, 0, 0, 0, 0][:7]
            self.rows[rank].prefill = wide(row[0])
            self.rows[rank].weight, self.rows[rank].requests, self.rows[rank].taints = row[1:4]
            self.rows[rank].foreign_prefill, self.rows[rank].foreign_blocks = row[4:6]
            self.rows[rank].foreign_requests = row[6]

    def __dealloc__(self):
        free(self.rows)

    def costs(self, candidates, Query query):
        """rank_cost of each candidate."""
        cdef array.array ranks = array.array("i", candidates)
        cdef int64_t least = least_tokens(self.rows, slots_of(ranks), <slot_t>len(ranks), &query.query)
        return [rank_cost(&self.rows[rank], rank, &query.query, least) for rank in candidates]

    def least_tokens(self, candidates, Query query):
        cdef array.array ranks = array.array("i", candidates)
        return least_tokens(self.rows, slots_of(ranks), <slot_t>len(ranks), &query.query)

    def cheapest(self, candidates, Query query):
        """(tied candidates, their cost)."""
        cdef array.array ranks = array.array("i", candidates)
        cdef array.array tied = array.array("i", candidates)
        cdef double best
        cdef slot_t ties = cheapest(
            self.rows, slots_of(ranks), <slot_t>len(ranks), &query.query, slots_of(tied), &best)
        return list(tied[:ties]), best

    def choose(self, candidates, Query query, uint64_t seed):
        """(rank, generator state afterwards)."""
        cdef array.array ranks = array.array("i", candidates)
        cdef array.array tied = array.array("i", candidates)
        cdef array.array costs = array.array("d", candidates)
        cdef uint64_t state = seed
        cdef slot_t rank = choose(
            self.rows, slots_of(ranks), <slot_t>len(ranks), &query.query, &state, slots_of(tied),
            costs.data.as_doubles)
        return or_none(rank), state

    def repeat(self, candidates, Query query, int64_t times):
        """So many choices. The last one, and the generator's state after them, from 1."""
        cdef array.array ranks = array.array("i", candidates)
        cdef array.array tied = array.array("i", candidates)
        cdef array.array costs = array.array("d", candidates)
        cdef uint64_t state = 1
        cdef slot_t count = <slot_t>len(ranks)
        cdef slot_t rank = NO_SLOT
        cdef int64_t _i
        for _i in range(times):
            rank = choose(
                self.rows, slots_of(ranks), count, &query.query, &state, slots_of(tied), costs.data.as_doubles)
        return or_none(rank), state


cdef class Tree:
    """tournament_t. Keys are integers; the largest of 64 bits is absent."""

    cdef tournament_t tree

    def __cinit__(self):
        tournament_init(&self.tree)

    def __dealloc__(self):
        tournament_free(&self.tree)

    def build(self, keys):
        """Positions 0 .. len(keys) - 1, all at once."""
        cdef slot_t position
        tournament_reserve(&self.tree, <slot_t>len(keys))
        tournament_clear(&self.tree, <slot_t>len(keys))
        for position in range(<slot_t>len(keys)):
            tournament_place(&self.tree, position, keys[position])
        tournament_build(&self.tree)

    def set(self, slot_t position, int64_t key):
        tournament_set(&self.tree, position, key)

    def key(self, slot_t position):
        return tournament_key(&self.tree, position)

    def least(self):
        """(least key, positions that have it, those before each position)."""
        cdef slot_t ties = tournament_ties(&self.tree)
        return (
            tournament_min(&self.tree), [tournament_tied(&self.tree, j) for j in range(ties)],
            [tournament_ties_before(&self.tree, position) for position in range(self.tree.positions)])


cdef class Fleet:
    """Ledger and Standings of ranks that stand in the order of their slots, where no other order is given.

    thresholds: (absolute, fraction) pairs. Caps: None is no bound.
    """

    cdef Ledger ledger
    cdef Standings standings
    cdef slot_t ranks
    cdef int64_t reports

    def __cinit__(self, ranks, int64_t block_size=16, double request_weight=0.0, bint strict=False, thresholds=(),
                  bint decays=False):
        cdef slot_t rank
        self.ledger = Ledger(list(thresholds), decays)
        self.standings = Standings(self.ledger, block_size, request_weight, strict)
        self.ranks = ranks
        self.ledger.reserve_ranks(self.ranks)
        for rank in range(self.ranks):
            self.ledger.name_rank(rank, rank + 1)
            self.set_caps(rank, None, None)
        self.rebuild()

    def rebuild(self, order=None):
        cdef array.array ranks = array.array("i", range(self.ranks) if order is None else order)
        self.standings.rebuild(slots_of(ranks), <slot_t>len(ranks))

    def rebuild_huge(self, slot_t positions):
        """Rank 0 so often. Only where it raises."""
        cdef slot_t* order = <slot_t*>calloc(positions, sizeof(slot_t))
        if order == NULL:
            raise MemoryError()
        try:
            self.standings.rebuild(order, positions)
        finally:
            free(order)

    def remove(self, slot_t rank):
        self.ledger.remove_rank(rank)

    def set_caps(self, slot_t rank, max_blocks, max_requests, int64_t prefill_rate=0):
        self.ledger.configure_rank(
            rank, 10_000_000, INT64_TOP if max_blocks is None else max_blocks,
            INT64_TOP if max_requests is None else max_requests, prefill_rate, 0)

    def set_state(self, slot_t rank, int state):
        self.ledger.set_state(rank, <rank_state_t>state)

    def report(self, slot_t rank, int64_t prefill, int64_t blocks, int64_t requests):
        self.reports += 1
        self.ledger.report(rank, self.reports, prefill, blocks, requests, True)

    def book(self, slot_t slot, slot_t rank, int64_t prefill, int64_t private_blocks):
        self.ledger.book(slot, rank, prefill, NULL, 0, private_blocks, 0)

    def release(self, slot_t slot):
        return bool(self.ledger.release(slot, True))

    def advance(self, ns_t now_ns):
        self.ledger.advance(now_ns)

    def dirty(self):
        return sorted(self.ledger.dirty_ranks[i] for i in range(self.ledger.dirties))

    def refresh(self):
        self.standings.refresh()

    def serves(self, Query query):
        return bool(self.standings.serves(&query.query))

    def open(self, order=None):
        """Open ranks, in the order given."""
        return [rank for rank in (range(self.ranks) if order is None else order)
                if self.ledger.loads[rank].state == RANK_OPEN]

    def busy(self, slot_t rank, slot_t pair):
        return bool(self.ledger.busy(rank, pair))

    def most_room(self, pair=None):
        return self.standings.most_room(NO_SLOT if pair is None else pair)

    def cheapest(self, Query query, overlay, uint64_t seed):
        """(rank, generator state afterwards) of the standings."""
        cdef array.array ranks = array.array("i", overlay)
        cdef uint64_t state = seed
        cdef slot_t rank = self.standings.cheapest(
            &query.query, slots_of(ranks), <slot_t>len(ranks), &state)
        return or_none(rank), state

    def settle(self, Query query, overlay):
        """(tied ranks, their cost) as the trees know them; None: they do not."""
        cdef array.array ranks = array.array("i", overlay)
        cdef slot_t ties = self.standings.settle(&query.query, slots_of(ranks), <slot_t>len(ranks))
        return ([self.standings.tied(j) for j in range(ties)], self.standings.best) if ties else None

    def plain(self, Query query, candidates, uint64_t seed):
        """(rank, generator state afterwards, tied ranks, their cost) of the plain loop."""
        cdef array.array ranks = array.array("i", candidates)
        cdef array.array tied = array.array("i", candidates)
        cdef array.array costs = array.array("d", candidates)
        cdef uint64_t state = seed
        cdef double best
        cdef slot_t count = <slot_t>len(ranks)
        cdef slot_t rank = choose(self.ledger.loads, slots_of(ranks), count, &query.query, &state,
                                  slots_of(tied), costs.data.as_doubles)
        cdef slot_t ties = cheapest(
            self.ledger.loads, slots_of(ranks), count, &query.query, slots_of(tied), &best)
        return or_none(rank), state, list(tied[:ties]), best

    def repeat(self, Query query, overlay, changed, int64_t times):
        """So many choices of the standings, before each of which the ranks named have changed.

        The last one, and the generator's state after them, from 1.
        """
        cdef array.array ranks = array.array("i", overlay)
        cdef array.array others = array.array("i", changed)
        cdef uint64_t state = 1
        cdef slot_t count = <slot_t>len(ranks)
        cdef slot_t changes = <slot_t>len(others)
        cdef slot_t rank = NO_SLOT
        cdef slot_t j
        cdef int64_t i
        for i in range(times):
            for j in range(changes):
                self.reports += 1
                self.ledger.report(slots_of(others)[j], self.reports, 16 * (i & 1), 0, 1, True)
            self.standings.refresh()
            rank = self.standings.cheapest(&query.query, slots_of(ranks), count, &state)
        return or_none(rank), state

    def repeat_plain(self, Query query, int64_t times):
        """So many choices of the plain loop over all ranks. The last one, and the generator's state, from 1."""
        cdef array.array ranks = array.array("i", range(self.ranks))
        cdef array.array tied = array.array("i", ranks)
        cdef uint64_t state = 1
        cdef slot_t rank = NO_SLOT
        cdef int64_t _i
        for _i in range(times):
            rank = choose(self.ledger.loads, slots_of(ranks), self.ranks, &query.query, &state, slots_of(tied), NULL)
        return or_none(rank), state
