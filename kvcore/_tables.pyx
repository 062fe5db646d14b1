"""Tables: the load of every rank, as it is and as one more request would make it, as numpy structured arrays.

Owns nothing; what it returns belongs to the caller. One row per present rank, in canonical order.
"""
import numpy

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport NAN
from kvcore._load cimport (
    INT64_TOP, RANK_OPEN, active_blocks, blocks_of, load_t, load_tokens, own_tokens_at, requests_of)
from kvcore._selector cimport (
    cached_tokens, common_cached, common_cost, common_of, common_t, is_common, least_tokens, query_t, rank_cost)
from kvcore._types cimport NO_SLOT, int32_t, int64_t, saturated, tokens_t, uint32_t, uint64_t
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


# That rows and types say the same is checked here, once: to ask for memory without its format is far cheaper.
cdef load_row_t[:] _loads = numpy.empty(0, LOAD_DTYPE)
cdef potential_row_t[:] _potential_loads = numpy.empty(0, POTENTIAL_DTYPE)


cdef class Tables:
    def __cinit__(self, Fleet fleet not None, Placement placement not None):
        self._fleet = fleet
        self._placement = placement

    cdef object loads(self):
        cdef slot_t i, rank
        cdef load_row_t* row
        cdef const load_t* load
        cdef Py_buffer memory
        table = numpy.empty(self._fleet.workers.present, LOAD_DTYPE)
        peers = self._fleet.exchange.counts()
        PyObject_GetBuffer(table, &memory, PyBUF_WRITABLE)
        try:
            row = <load_row_t*>memory.buf
            for i in range(self._fleet.workers.present):
                rank = self._fleet.workers.order[i]
                load = &self._fleet.ledger.loads[rank]
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
                row.peer_requests = 0
                if load.reported_sequence >= 0:
                    row.reported_requests = load.reported_requests
                    row.reported_prefill_tokens = load.reported_prefill
                    row.reported_blocks = load.reported_blocks
                if peers:
                    row.peer_requests = peers.get(rank, 0)
                row += 1
        finally:
            PyBuffer_Release(&memory)
        return table

    cdef object potential_loads(self, slot_t slot, Request request):
        """For a classified request that is stored nowhere."""
        cdef query_t query
        cdef Py_buffer memory
        cdef const slot_t* eligible = NULL
        cdef slot_t count = NO_SLOT
        table = numpy.empty(self._fleet.workers.present, POTENTIAL_DTYPE)
        if self._fleet.workers.present == 0:
            return table
        try:
            self._placement.overlaps.begin(slot, request, True, &query)
            if not is_common(&query) or not takes_any_open(self._placement, request):
                count = self._placement.willing(slot, request)
                eligible = self._placement.eligible.ranks
            PyObject_GetBuffer(table, &memory, PyBUF_WRITABLE)
            fill(<potential_row_t*>memory.buf, self._fleet, &query, eligible, count)
            PyBuffer_Release(&memory)
        finally:
            self._placement.overlaps.end()
        return table


cdef bint takes_any_open(Placement placement, Request request):
    """Whether every open rank would take it: no room to be kept, and nothing that it asks of a rank."""
    return (
        not placement.strict and request.pinned is None and request.allowed_workers is None
        and not request.required_taints)


cdef void fill(
        potential_row_t* row, Fleet fleet, const query_t* query, const slot_t* eligible, slot_t count) noexcept nogil:
    """All rows; `eligible` are so many ranks in canonical order. NO_SLOT: all that are open, for a common query."""
    cdef const rank_t* names = fleet.workers.ranks
    cdef const load_t* loads = fleet.ledger.loads
    cdef const slot_t* order = fleet.workers.order
    cdef slot_t present = fleet.workers.present
    cdef common_t own = common_of(query)
    cdef bint common = is_common(query)
    cdef bint track_prefill = query.track_prefill
    cdef tokens_t least = 0 if common else least_tokens(loads, eligible, count, query)
    cdef const load_t* load
    cdef tokens_t tokens, cached, more
    cdef slot_t i, rank
    cdef int32_t depth = 0
    cdef slot_t next_eligible = 0
    for i in range(present):
        rank = order[i]
        load = &loads[rank]
        tokens = load_tokens(load, own.now_ns)
        if common:
            depth = own.device[rank]
            cached = common_cached(&own, depth)
        else:
            cached = cached_tokens(query, rank)
        if count == NO_SLOT:
            row.eligible = load.state == RANK_OPEN
        else:
            row.eligible = next_eligible < count and eligible[next_eligible] == rank
            next_eligible += row.eligible
        if not row.eligible:
            row.cost = NAN
        elif common:
            row.cost = common_cost(&own, load, tokens, cached, depth, own.active[rank])
        else:
            row.cost = rank_cost(load, rank, query, least)
        cached = effective_cached_tokens(cached, own.prompt)
        more = prefill_delta(own.prompt, cached, track_prefill)
        row.worker_id = names[rank].worker_id
        row.dp_rank = names[rank].dp_rank
        row.requests = requests_of(load)
        # Saturated loads stay so.
        row.prefill_tokens = tokens + more if tokens <= INT64_TOP - more else INT64_TOP
        row.decode_blocks = blocks_of(load) + own.length - own.active[rank]
        row.cached_tokens = cached
        row += 1
