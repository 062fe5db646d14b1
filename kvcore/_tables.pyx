"""Tables: the load of every rank, as it is and as one more request would make it, as numpy structured arrays.

Owns nothing; what it returns belongs to the caller. One row per present rank, in canonical order.
"""
import numpy

from libc.math cimport NAN
from kvcore._load cimport active_blocks, blocks_of, load_t, own_tokens_at, requests_of, tokens_at
from kvcore._selector cimport cached_tokens, least_tokens, query_t, rank_cost
from kvcore._types cimport int32_t, int64_t, saturated, tokens_t, uint32_t, uint64_t
from kvcore._workers cimport rank_t
from kvcore.request cimport effective_cached_tokens, prefill_delta

#: One row of `Scheduler.loads()`: own bookings and those of other replicas, what the engine has last reported (-1:
#: nothing), and how many of the requests are other replicas'.
#: prefill_tokens and held_blocks saturate at 2^63 - 1; active_blocks is rounded half up; held_blocks are whole blocks
#: that are taken or kept free (DESIGN D8). state: 0 open, 1 overloaded, 2 unavailable for a while, 3 unavailable.
LOAD_DTYPE = numpy.dtype([
    ("worker_id", "<u8"), ("dp_rank", "<u4"), ("requests", "<i4"), ("prefill_tokens", "<i8"), ("active_blocks", "<i8"),
    ("held_blocks", "<i8"), ("state", "<i8"), ("reported_requests", "<i8"), ("reported_prefill_tokens", "<i8"),
    ("reported_blocks", "<i8"), ("peer_requests", "<i8")])

#: One row of `Scheduler.potential_loads()`: what the rank's load would be, with what its engine reports beyond our
#: bookings where that counts. cached_tokens: of the prompt. eligible: it would take the request now. cost: as selection
#: sees it, in blocks (DESIGN D8); NaN where not eligible.
POTENTIAL_DTYPE = numpy.dtype([
    ("worker_id", "<u8"), ("dp_rank", "<u4"), ("eligible", "<i4"), ("requests", "<i8"), ("prefill_tokens", "<i8"),
    ("decode_blocks", "<i8"), ("cached_tokens", "<i8"), ("cost", "<f8")])


cdef packed struct load_row_t:
    uint64_t worker_id
    uint32_t dp_rank
    int32_t requests
    int64_t prefill_tokens
    int64_t active_blocks
    int64_t held_blocks
    int64_t state
    int64_t reported_requests
    int64_t reported_prefill_tokens
    int64_t reported_blocks
    int64_t peer_requests


cdef packed struct potential_row_t:
    uint64_t worker_id
    uint32_t dp_rank
    int32_t eligible
    int64_t requests
    int64_t prefill_tokens
    int64_t decode_blocks
    int64_t cached_tokens
    double cost


cdef class Tables:
    def __cinit__(self, Fleet fleet not None, Placement placement not None):
        self._fleet = fleet
        self._placement = placement

    cdef object loads(self):
        cdef slot_t i, rank
        cdef load_row_t[:] view
        cdef load_row_t* row
        cdef const load_t* load
        table = numpy.empty(self._fleet.workers.present, LOAD_DTYPE)
        if self._fleet.workers.present == 0:
            return table
        view = table
        peers = self._fleet.exchange.counts()
        for i in range(self._fleet.workers.present):
            rank = self._fleet.workers.order[i]
            load = &self._fleet.ledger.loads[rank]
            row = &view[i]
            row.worker_id = self._fleet.workers.ranks[rank].worker_id
            row.dp_rank = self._fleet.workers.ranks[rank].dp_rank
            row.requests = load.requests
            row.prefill_tokens = saturated(own_tokens_at(load, self._fleet.ledger.now_ns))
            row.active_blocks = active_blocks(load)
            row.held_blocks = saturated(load.held)
            row.state = load.state
            row.reported_requests = -1
            row.reported_prefill_tokens = -1
            row.reported_blocks = -1
            row.peer_requests = peers.get(rank, 0)
            if load.reported_sequence >= 0:
                row.reported_requests = load.reported_requests
                row.reported_prefill_tokens = load.reported_prefill
                row.reported_blocks = load.reported_blocks
        return table

    cdef object potential_loads(self, slot_t slot, Request request):
        """For a classified request that is stored nowhere."""
        cdef query_t query
        cdef potential_row_t[:] view
        cdef slot_t count
        table = numpy.empty(self._fleet.workers.present, POTENTIAL_DTYPE)
        if self._fleet.workers.present == 0:
            return table
        view = table
        try:
            self._placement.overlaps.begin(slot, request, True, &query)
            count = self._placement.eligible(slot, request)
            fill(&view[0], self._fleet, &query, self._placement.candidates, count)
        finally:
            self._placement.overlaps.end()
        return table


cdef void fill(
        potential_row_t* row, Fleet fleet, const query_t* query, const slot_t* eligible, slot_t count) noexcept:
    """All rows; `eligible` are ranks in canonical order."""
    cdef const rank_t* name
    cdef const load_t* load
    cdef tokens_t cached
    cdef int64_t least = least_tokens(fleet.ledger.loads, eligible, count, query)
    cdef slot_t i, rank
    cdef slot_t next_eligible = 0
    for i in range(fleet.workers.present):
        rank = fleet.workers.order[i]
        name = &fleet.workers.ranks[rank]
        load = &fleet.ledger.loads[rank]
        cached = effective_cached_tokens(cached_tokens(query, rank), query.prompt)
        row.worker_id = name.worker_id
        row.dp_rank = name.dp_rank
        row.requests = requests_of(load)
        row.prefill_tokens = tokens_at(load, query.now_ns)
        # Saturated loads stay so.
        row.prefill_tokens += min(
            prefill_delta(query.prompt, cached, query.track_prefill), 0x7FFFFFFFFFFFFFFF - row.prefill_tokens)
        row.decode_blocks = blocks_of(load) + query.sequence_length - query.active[rank]
        row.cached_tokens = cached
        row.eligible = next_eligible < count and eligible[next_eligible] == rank
        row.cost = NAN
        if row.eligible:
            next_eligible += 1
            row.cost = rank_cost(load, rank, query, least)
        row += 1
