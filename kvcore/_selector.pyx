"""The cost of a rank, and the choice among candidates (DESIGN D8).

Owns no state. Costs are IEEE doubles in block units, computed in one fixed order of operations and without
contraction, so that they are the same bits everywhere; lower wins. The plain loop over all candidates is the
definition; what is faster (_standings) must give the same answer and is tested against it.

cost = scale * max(0, raw / B - credit) + (D + A) + weight * R, where raw = P + max(prompt, cached tokens); P, D, R =
prefill tokens, active blocks and requests of the rank; A = named prompt blocks of the request that do not run there
yet. credit = device, host, disk and shared blocks, weighted; with a decay, device blocks count less the more prefill
load the rank has above the least loaded candidate. Cached tokens enter raw only where they exceed the prompt: the
benefit of a cache is the credit (selector facts 3.2). Without prefill tracking raw is 0; on a decode fleet that gives
credit, the credit is then taken from the decode term.

Never here: who is a candidate. Invariants: no cost is NaN or negative; a selector writes nothing but the generator.

Cost: O(candidates). The common request (device blocks only, no decay of credit, no taints) has a loop of its own.
"""
from libc.math cimport INFINITY, isfinite
from kvcore._elementary cimport kv_exp
from kvcore._load cimport INT64_TOP, blocks_of, load_tokens, requests_of
from kvcore._types cimport NO_SLOT, ceil_div


cdef inline int64_t whole_blocks(double blocks) noexcept nogil:
    return TOKENS_MAX if blocks >= <double>TOKENS_MAX else <int64_t>blocks


cdef inline double device_depth(const query_t* query, slot_t rank) noexcept nogil:
    if query.effective != NULL:
        return query.effective[rank]
    return <double>query.device[rank] if query.device != NULL else 0.0


cdef int64_t device_blocks(const query_t* query, slot_t rank) noexcept nogil:
    """Whole blocks cached on the device, at most 2^53."""
    return whole_blocks(device_depth(query, rank))


cdef int64_t hits_beyond(const query_t* query, double depth) noexcept nogil:
    """Shared positions beyond a device depth, which counts in whole blocks, half up. O(ranges that reach beyond)."""
    cdef int64_t first = 0x7FFFFFFF if depth >= 2147483647.0 else <int64_t>(depth + 0.5)
    cdef int64_t found = 0
    cdef int32_t i = query.shared_count
    while i > 0 and query.shared[i - 1].end > first:
        i -= 1
        found += query.shared[i].end - max(first, <int64_t>query.shared[i].start)
    return found


cdef int64_t cached_tokens(const query_t* query, slot_t rank) noexcept nogil:
    """What counts as cached there for class, cost and booking, not cut to the prompt: as told, or derived."""
    cdef double blocks
    if query.cached != NULL:
        return query.cached[rank]
    blocks = device_depth(query, rank)
    if query.host != NULL and query.weights.host != 0.0:
        blocks = blocks + <double>query.host[rank] * query.weights.host
    if query.disk != NULL and query.weights.disk != 0.0:
        blocks = blocks + <double>query.disk[rank] * query.weights.disk
    return whole_tokens(blocks, query.block_size)


cdef tokens_t least_tokens(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query) noexcept nogil:
    """The least prefill load of all candidates, where their costs depend on it; else 0."""
    cdef tokens_t least = INT64_TOP
    cdef slot_t i
    if count == 0 or not query.track_prefill or not query.weights.credit_decay > 0.0:
        return 0
    for i in range(count):
        least = min(least, load_tokens(&loads[candidates[i]], query.now_ns))
    return least


cdef inline bint credits_decode(const query_t* query) noexcept nogil:
    """Whether the credit is taken from the decode term, because there is no prefill term."""
    return query.decode_role and not query.track_prefill and query.weights.credit > 0.0


cdef double rank_cost(const load_t* load, slot_t rank, const query_t* query, tokens_t least) noexcept nogil:
    """The definition. least: of least_tokens over all candidates; for a pin its own load."""
    cdef const weights_t* weights = &query.weights
    cdef double size = <double>query.block_size
    cdef int32_t depth = query.active[rank] if query.active != NULL else 0
    cdef double device = device_depth(query, rank)
    cdef double dcost = <double>(blocks_of(load) + (query.sequence_length - depth))
    cdef double rcost = weights.requests * <double>requests_of(load)
    cdef double decay = 1.0
    cdef double raw = 0.0
    cdef double credit, cost
    cdef tokens_t tokens
    if query.track_prefill:
        tokens = load_tokens(load, query.now_ns)
        raw = raw_tokens(tokens, query.prompt, cached_tokens(query, rank))
        if weights.credit_decay > 0.0:
            decay = 1.0 / (1.0 + weights.credit_decay * (
                (<double>max(<tokens_t>0, tokens - least) / size)
                / <double>ceil_div(query.prompt, query.block_size)))
    credit = (weights.credit * decay) * device
    # Adding 0.0 to what is not negative changes no bit, so an absent tier may be left out.
    if query.host != NULL:
        credit = credit + weights.host * <double>query.host[rank]
    if query.disk != NULL:
        credit = credit + weights.disk * <double>query.disk[rank]
    if query.shared_count and weights.shared != 0.0:
        credit = credit + weights.shared * <double>hits_beyond(query, device)
    if credits_decode(query):
        cost = at_least_zero(dcost - credit) + rcost
    else:
        cost = (weights.scale * at_least_zero(raw / size - credit) + dcost) + rcost
    if query.multiplier != NULL:
        cost = cost * query.multiplier[load.taints]
    return cost


cdef slot_t cheapest_common(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, slot_t* tied,
    double* best) noexcept nogil:
    """`cheapest` for a common query: without the steps of rank_cost that change no bit."""
    cdef common_t own = common_of(query)
    cdef double least_cost = INFINITY
    cdef slot_t ties = 0
    cdef const load_t* load
    cdef int32_t depth
    cdef double cost
    cdef slot_t i, rank
    for i in range(count):
        rank = candidates[i]
        load = &loads[rank]
        depth = own.device[rank] if own.device != NULL else 0
        cost = common_cost(
            &own, load, load_tokens(load, own.now_ns), common_cached(&own, depth), depth,
            own.active[rank] if own.active != NULL else 0)
        if cost < least_cost:
            least_cost = cost
            ties = 0
        if cost == least_cost:
            tied[ties] = rank
            ties += 1
    best[0] = least_cost
    return ties


cdef slot_t cheapest(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, slot_t* tied,
    double* best) noexcept nogil:
    """All candidates of least cost, in candidate order, into `tied`, which has room for all. Returns how many."""
    cdef tokens_t least
    cdef double least_cost = INFINITY
    cdef double cost
    cdef slot_t ties = 0
    cdef slot_t i, rank
    if is_common(query):
        return cheapest_common(loads, candidates, count, query, tied, best)
    least = least_tokens(loads, candidates, count, query)
    for i in range(count):
        rank = candidates[i]
        cost = rank_cost(&loads[rank], rank, query, least)
        if cost < least_cost:
            least_cost = cost
            ties = 0
        if cost == least_cost:
            tied[ties] = rank
            ties += 1
    best[0] = least_cost
    return ties


cdef slot_t softmax(double* costs, slot_t count, double temperature, double u) noexcept nogil:
    """Index of the candidate on which u falls, when the costs are given shares exp(-relative cost / temperature).

    The relative cost is 0 for the least and 1 for the largest. Where the temperature is so small, or the costs so
    large, that it cannot be told, the first of least cost is taken. Overwrites the costs.
    """
    cdef double least = costs[0]
    cdef double largest = costs[0]
    cdef double mag = 1.0
    cdef double total = 0.0
    cdef double cumulative = 0.0
    cdef double k, base
    cdef slot_t i
    cdef slot_t first = 0
    for i in range(1, count):
        if costs[i] < least:
            least = costs[i]
            first = i
        if costs[i] > largest:
            largest = costs[i]
    if least == largest:
        for i in range(count):
            costs[i] = 1.0
        total = <double>count
    else:
        if not isfinite(largest - least):
            mag = max(abs_of(least), abs_of(largest))
        k = -1.0 / ((largest / mag - least / mag) * temperature)
        base = (least / mag) * k
        if not isfinite(base) or not isfinite((largest / mag) * k):
            return first
        for i in range(count):
            costs[i] = kv_exp((costs[i] if mag == 1.0 else costs[i] / mag) * k - base)
            total += costs[i]
    for i in range(count):
        cumulative += costs[i] / total
        if u <= cumulative:
            return i
    return count - 1


cdef inline double abs_of(double x) noexcept nogil:
    return -x if x < 0.0 else x


cdef slot_t choose(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, uint64_t* generator,
    slot_t* tied, double* costs) noexcept nogil:
    """The rank that the request gets, of candidates in canonical order; NO_SLOT if there is none.

    Temperature 0: the cheapest; two or more that tie are settled by one draw. Above: softmax, by one uniform. A single
    candidate, as a pin is, is taken without either. tied, costs: scratch for `count`; costs only above 0.
    """
    cdef slot_t ties, i
    cdef tokens_t least
    cdef double best
    if count <= 1:
        return candidates[0] if count else NO_SLOT
    if not query.weights.temperature > 0.0:
        ties = cheapest(loads, candidates, count, query, tied, &best)
        return tied[draw(generator, ties) if ties > 1 else 0]
    least = least_tokens(loads, candidates, count, query)
    for i in range(count):
        costs[i] = rank_cost(&loads[candidates[i]], candidates[i], query, least)
    return candidates[softmax(costs, count, query.weights.temperature, uniform(generator))]
