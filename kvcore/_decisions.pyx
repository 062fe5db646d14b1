"""DecisionRing: the last so many dispatches, each with the table of costs that it was chosen from.

Owns copies only. It is told of a choice just before the booking and looks at the same loads and overlaps as the choice,
but always by the plain loop over all candidates, which is the definition of a cost (_selector): where a choice was made
by trees (_standings), the table shows that they were right.

Never here: choices, bookings. It is no part of the state: not in the digest, and nothing is decided by it.

Cost: O(candidates) per decision, and at most some 4 kB of memory each; nothing where no decisions are kept.
"""
from libc.math cimport INFINITY
from libc.stdlib cimport calloc, free
from kvcore._load cimport blocks_of, load_t, requests_of
from kvcore._requests cimport request_t
from kvcore._selector cimport cached_tokens, device_blocks, least_tokens, rank_cost
from kvcore._types cimport DEBUG_CHECKS, NO_SLOT, resize
from kvcore._workers cimport rank_t
from kvcore.request cimport Rank, Request, effective_cached_tokens


cdef class DecisionRing:
    def __cinit__(self, int32_t kept, RequestTable requests not None, Fleet fleet not None,
                  Placement placement not None):
        """kept: how many decisions, at least 1."""
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self._rows = <decision_t*>calloc(kept, sizeof(decision_t))
        if self._rows == NULL:
            raise MemoryError("decisions")
        self._room = kept
        self._ids = []
        self._classes = []
        self._last = {}
        self.names = []

    def __dealloc__(self):
        cdef int64_t at
        if self._rows != NULL:
            for at in range(min(self._noted, <int64_t>self._room)):
                free(self._rows[at].scores)
        free(self._rows)

    cdef int note(self, slot_t slot, slot_t chosen, int64_t attempt) except -1:
        """A classified request is about to be booked on this rank."""
        cdef Request request = self._requests.request(slot)
        cdef request_t* live = &self._requests.rows[slot]
        cdef decision_t* row = self._next_row(request.request_id, live.class_index)
        cdef query_t query
        row.attempt = attempt
        row.now_ns = self._fleet.ledger.now_ns
        row.class_index = live.class_index
        row.worker_id = self._fleet.workers.ranks[chosen].worker_id
        row.dp_rank = self._fleet.workers.ranks[chosen].dp_rank
        row.pinned = live.pin != NO_SLOT
        try:
            self._placement.overlaps.begin(slot, request, True, &query)
            row.temperature = query.weights.temperature
            return self._weigh(row, &query, self._placement.willing(slot, request), chosen)
        finally:
            self._placement.overlaps.end()

    cdef decision_t* _next_row(self, str request_id, slot_t class_index) except NULL:
        """The row of the oldest decision, for another one."""
        cdef int32_t at = <int32_t>(self._noted % self._room)
        if self._noted < self._room:
            self._ids.append(request_id)
            self._classes.append(self.names[class_index])
        else:
            if self._last.get(self._ids[at]) == at:
                del self._last[self._ids[at]]
            self._ids[at] = request_id
            self._classes[at] = self.names[class_index]
        self._last[request_id] = at
        self._noted += 1
        self._rows[at].kept = 0
        return &self._rows[at]

    cdef int _weigh(self, decision_t* row, const query_t* query, slot_t count, slot_t chosen) except -1:
        """The costs of all candidates; the cheapest of them, and always the chosen one, are kept."""
        cdef const load_t* loads = self._fleet.ledger.loads
        cdef const slot_t* candidates = self._placement.eligible.ranks
        cdef int64_t least = least_tokens(loads, candidates, count, query)
        cdef weighed_t best[SCORES_MAX]
        cdef double chosen_cost = INFINITY
        cdef double other_cost = INFINITY
        cdef double cost
        cdef int32_t kept = 0
        cdef int32_t at
        cdef slot_t i
        row.ties = 0
        for i in range(count):
            cost = rank_cost(&loads[candidates[i]], candidates[i], query, least)
            if candidates[i] == chosen:
                chosen_cost = cost
            elif cost < other_cost:
                other_cost = cost
            if kept == 0 or cost < best[0].cost:
                row.ties = 0
            row.ties += kept == 0 or cost <= best[0].cost
            kept = enter(best, kept, candidates[i], cost)
        if DEBUG_CHECKS:
            assert row.pinned or row.temperature > 0.0 or chosen_cost == best[0].cost
        at = 0
        while at < kept and best[at].rank != chosen:
            at += 1
        if at == kept:
            best[kept - 1].rank = chosen
            best[kept - 1].cost = chosen_cost
        row.margin = 0.0 if other_cost == chosen_cost else other_cost - chosen_cost
        row.count = count
        if kept > row.room:
            resize(<void**>&row.scores, kept * sizeof(score_t))
            row.room = kept
        for at in range(kept):
            self._fill(&row.scores[at], query, &best[at])
        row.kept = kept
        return 0

    cdef void _fill(self, score_t* score, const query_t* query, const weighed_t* entry) noexcept:
        cdef const load_t* load = &self._fleet.ledger.loads[entry.rank]
        cdef const rank_t* name = &self._fleet.workers.ranks[entry.rank]
        score.worker_id = name.worker_id
        score.dp_rank = name.dp_rank
        score.cost = entry.cost
        score.overlap = device_blocks(query, entry.rank)
        score.cached = effective_cached_tokens(cached_tokens(query, entry.rank), query.prompt)
        score.prefill = self._fleet.ledger.tokens(entry.rank)
        score.decode = blocks_of(load) + query.sequence_length - query.active[entry.rank]
        score.requests = requests_of(load)

    # Reading.

    cdef Decision find(self, str request_id):
        """The last decision about this id, if it is still kept, or None."""
        cdef object at = self._last.get(request_id)
        return None if at is None else self._decision(at)

    cdef tuple all(self):
        """Every decision that is kept, the newest last."""
        cdef int64_t number
        return tuple([self._decision(<int32_t>(number % self._room))
                      for number in range(max(0, self._noted - self._room), self._noted)])

    cdef Decision _decision(self, int32_t at):
        cdef decision_t* row = &self._rows[at]
        cdef Decision decision = Decision.__new__(Decision)
        cdef int32_t i
        decision.request_id = self._ids[at]
        decision.attempt = row.attempt
        decision.now_ns = row.now_ns
        decision.class_index = row.class_index
        decision.class_name = self._classes[at]
        decision.rank = named(row.worker_id, row.dp_rank)
        decision.candidates = tuple([score_of(&row.scores[i]) for i in range(row.kept)])
        decision.candidates_count = row.count
        decision.margin = None if row.count == 1 else row.margin
        decision.rule = rule_of(row)
        return decision


cdef int32_t enter(weighed_t* best, int32_t kept, slot_t rank, double cost) noexcept nogil:
    """Put a candidate among the cheapest so far, behind its equals, if it is one. Returns how many these are now."""
    cdef int32_t at = kept
    if kept == SCORES_MAX:
        if cost >= best[kept - 1].cost:
            return kept
        at = kept - 1
    while at and best[at - 1].cost > cost:
        best[at] = best[at - 1]
        at -= 1
    best[at].rank = rank
    best[at].cost = cost
    return min(kept + 1, <int32_t>SCORES_MAX)


cdef str rule_of(const decision_t* row):
    """Why the chosen one and no other, see Decision."""
    if row.pinned:
        return "pinned"
    if row.count == 1:
        return "only one"
    if row.temperature > 0.0:
        return f"sampled at temperature {row.temperature!r}"
    return f"tie of {row.ties}, drawn" if row.ties > 1 else "cheapest"


cdef Score score_of(const score_t* row):
    cdef Score score = Score.__new__(Score)
    score.rank = named(row.worker_id, row.dp_rank)
    score.cost = row.cost
    score.overlap_blocks = row.overlap
    score.cached_tokens = row.cached
    score.prefill_tokens = row.prefill
    score.decode_blocks = row.decode
    score.requests = row.requests
    return score


cdef Rank named(uint64_t worker_id, uint32_t dp_rank):
    cdef Rank rank = Rank.__new__(Rank)
    rank.worker_id = worker_id
    rank.dp_rank = dp_rank
    return rank
