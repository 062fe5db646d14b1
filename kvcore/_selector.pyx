"""The cost of a rank, and the cheapest ranks of a candidate list (DESIGN D8).

Owns no state. Costs are IEEE doubles in block units, computed in one fixed order of operations and without
contraction, so that they are the same bits everywhere; lower wins. The plain loop over candidates is the
definition.

cost = max(0, raw / B - cached) + (active + additional), where raw = prefill load + max(prompt, cached tokens),
active = active blocks of the rank, additional = named prompt blocks of the request that do not run there yet.
Without prefill tracking raw is 0. Cached tokens enter raw only where they exceed the prompt: the benefit of a cache
is the credit (selector facts 3.2).
"""
from kvcore._ledger cimport active_blocks


cdef double rank_cost(const load_t* load, slot_t rank, const query_t* query) noexcept nogil:
    cdef int64_t blocks = query.cached[rank]
    cdef tokens_t cached = blocks * query.block_size
    cdef double raw = 0.0
    cdef double prefill
    if query.track_prefill:
        raw = <double>(load.prefill + max(query.prompt, cached))
    prefill = raw / <double>query.block_size - <double>blocks
    if not prefill > 0.0:
        prefill = 0.0
    return prefill + <double>(active_blocks(load) + query.sequence_length - query.active[rank])


cdef slot_t cheapest(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, slot_t* tied) noexcept nogil:
    """All candidates of least cost, in candidate order, into `tied` (room for `count`). Returns how many.

    Cost: O(count), about 3 ns a candidate.
    """
    cdef slot_t i, rank
    cdef slot_t ties = 0
    cdef double best = 0.0
    cdef double cost
    for i in range(count):
        rank = candidates[i]
        cost = rank_cost(&loads[rank], rank, query)
        if ties == 0 or cost < best:
            best = cost
            tied[0] = rank
            ties = 1
        elif cost == best:
            tied[ties] = rank
            ties += 1
    return ties
