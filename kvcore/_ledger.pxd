# Load per rank and the bookings that make it up, at the time set by `advance`. Receives effective prefill tokens only.
cimport cython
from kvcore._active cimport ActiveBlocks, pair_t
from kvcore._heap cimport heap_t
from kvcore._types cimport FRACTION_ONE, NO_SLOT, i128, int32_t, int64_t, ns_t, saturated, slot_t, tokens_t, uint64_t

cdef extern from *:
    """
    #define KV_INT64_TOP INT64_MAX
    """
    const int64_t INT64_TOP "KV_INT64_TOP"         # of a cap or a bound: there is none


cdef enum rank_state_t:
    RANK_OPEN              # new requests may go there
    RANK_OVERLOADED        # said to be overloaded
    RANK_LEASED            # unavailable for a while
    RANK_GONE              # unavailable until told otherwise

cdef enum:
    RANK_STATES = 4


cdef struct load_t:
    # One rank. Own load is what its bookings add up to; foreign load is what its engine reports beyond them.
    i128 prefill           # sum over bookings that still prefill, tokens, before decay
    int64_t weight         # distinct live prompt blocks and output blocks, 2^20 = one block
    int64_t foreign_prefill  # tokens; foreign loads are 0 unless a report counts at present
    int64_t foreign_blocks
    int64_t foreign_requests
    int32_t requests       # bookings
    slot_t taints          # number of its worker's taint set; NO_SLOT: the rank is not present
    unsigned char state    # rank_state_t
    bint dirty             # it stands in dirty_ranks
    tokens_t front_tokens  # prefill of the booking at the front of the FIFO; 0: none, or no decay
    i128 front_ns          # how long that takes, >= 1; 0: no decay
    ns_t anchor_ns         # when it began, as far as one can tell; kept without a rate too, 0 while the FIFO is empty
    i128 held              # whole blocks: distinct live prompt blocks, private ones, reserves or outputs
    int64_t max_blocks     # caps of its worker; INT64_TOP: none
    int64_t max_requests
    int64_t prefill_rate   # tokens per second; 0: unknown, no decay
    int64_t reported_sequence  # of the last report, -1: none; it and what it said, as told
    int64_t reported_prefill
    int64_t reported_blocks
    int64_t reported_requests
    slot_t first           # newest booking, or NO_SLOT
    slot_t fifo_first      # oldest booking with prefill tokens to go, or NO_SLOT; always NO_SLOT without decay
    slot_t fifo_last


cdef struct booking_t:
    # One booking, by request slot. `path` belongs to the request and stays where it is until the release.
    slot_t rank            # NO_SLOT: no booking
    bint prefilling        # its prefill tokens still count
    tokens_t prefill
    const uint64_t* path   # prompt blocks, root to leaf
    int32_t length
    int32_t bound_from     # path[bound_from:] is bound to this booking, see the .pyx
    int32_t path_weight    # of each of these
    int32_t outputs        # output blocks with weight 2^20, added since the last fraction
    int32_t outputs_decayed
    int32_t decayed_weight  # of each of them
    int64_t private_blocks  # blocks of the prompt that have no name, so nobody shares them
    int64_t reserve_blocks  # kept for outputs
    slot_t next            # bookings of the same rank
    slot_t prev
    slot_t fifo_next       # FIFO of the same rank
    slot_t fifo_prev


@cython.final
cdef class Ledger:
    cdef load_t* loads             # by rank slot
    cdef slot_t _ranks
    cdef booking_t* bookings       # by request slot
    cdef slot_t _slots
    cdef readonly slot_t pairs     # distinct threshold pairs of the profile
    cdef int64_t* _absolute        # per pair; INT64_TOP: none
    cdef double* _fraction         # per pair; infinite: none
    cdef int64_t* _calm            # [rank * pairs + pair]: the largest prefill load that is not busy
    cdef int32_t* free             # per pair: present ranks in state OPEN that are not busy
    cdef int32_t* free_of          # [taint set * pairs + pair]: the same per taint set
    cdef int32_t in_state[RANK_STATES]  # present ranks
    cdef int32_t* in_state_of      # [taint set * RANK_STATES + state]: the same per taint set
    cdef slot_t _sets
    cdef ActiveBlocks active       # prompt blocks of live bookings, counted
    cdef readonly bint decays      # prefill loads shrink with time where the rate is known
    cdef ns_t now_ns               # the time at which loads are read
    cdef slot_t* dirty_ranks       # ranks whose load, caps or state changed since clear_dirty(), each once
    cdef slot_t dirties
    cdef slot_t* crossed           # ranks that the last advance() made less busy; crossed_count is the reader's to eat
    cdef slot_t crossed_count
    cdef heap_t _crossings         # ranks by the time at which decay alone makes them less busy
    cdef int32_t* _crossing_pos    # by rank; NO_SLOT: not foreseen

    cdef int reserve_ranks(self, slot_t ranks) except -1
    cdef int reserve_slots(self, slot_t slots) except -1
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    cdef int configure_rank(
        self, slot_t rank, int64_t max_batched_tokens, int64_t max_blocks, int64_t max_requests,
        int64_t prefill_rate, slot_t taints) except -1
    cdef void set_state(self, slot_t rank, rank_state_t state) noexcept
    cdef void remove_rank(self, slot_t rank) noexcept

    cdef bint busy(self, slot_t rank, slot_t pair) noexcept nogil
    cdef int64_t tokens(self, slot_t rank) noexcept nogil
    cdef int64_t blocks(self, slot_t rank) noexcept nogil

    cdef int book(
        self, slot_t slot, slot_t rank, tokens_t prefill, const uint64_t* path, int32_t length,
        int64_t private_blocks, int64_t reserve_blocks) except -1
    cdef bint complete_prefill(self, slot_t slot) noexcept
    cdef void add_output(self, slot_t slot, int32_t weight) noexcept
    cdef bint release(self, slot_t slot, bint completed) noexcept

    cdef bint report(
        self, slot_t rank, int64_t sequence, int64_t prefill, int64_t blocks, int64_t requests, bint counts) noexcept
    cdef void forget_report(self, slot_t rank) noexcept
    cdef ns_t next_crossing_ns(self) noexcept nogil
    cdef void advance(self, ns_t now_ns) noexcept
    cdef void clear_dirty(self) noexcept nogil
    cdef list audit(self)

    cdef void _count(self, slot_t rank, int32_t by, ns_t now_ns) noexcept nogil
    cdef void _stand(self, slot_t rank, int32_t by) noexcept nogil
    cdef void _changed(self, slot_t rank) noexcept nogil
    cdef void _settle(self, slot_t rank) noexcept
    cdef ns_t _crossing_ns(self, slot_t rank) noexcept nogil
    cdef void _enter_fifo(self, slot_t slot) noexcept nogil
    cdef void _leave_fifo(self, slot_t slot, bint completed) noexcept nogil
    cdef void _set_front(self, load_t* load) noexcept nogil
    cdef void _finish_prefill(self, slot_t slot, bint completed) noexcept
    cdef void _unbind(self, slot_t slot, int32_t at) noexcept


cdef inline int64_t output_weight(const booking_t* booking) noexcept nogil:
    """Weight of the output blocks of one booking, 2^20 = one block."""
    return <int64_t>booking.outputs * FRACTION_ONE + <int64_t>booking.outputs_decayed * booking.decayed_weight


cdef inline int32_t weight_of(const booking_t* bookings, const pair_t* pair) noexcept nogil:
    """What a live prompt block weighs on its rank, 2^20 = one block."""
    return pair.weight if pair.owner == NO_SLOT else bookings[pair.owner].path_weight


cdef inline i128 prefill_ns(tokens_t prefill, int64_t prefill_rate) noexcept nogil:
    """How long a prefill takes, rounded up; the rate is known. It may be longer than any time."""
    return (<i128>prefill * 1_000_000_000 + (prefill_rate - 1)) // prefill_rate


cdef inline i128 own_tokens_at(const load_t* load, ns_t now_ns) noexcept nogil:
    """Prefill tokens of the bookings of a rank, of which the front one has run since the anchor (DESIGN D9)."""
    cdef i128 done = load.front_tokens
    if load.front_ns == 0:
        return load.prefill
    if now_ns - load.anchor_ns < load.front_ns:
        done = done * (now_ns - load.anchor_ns) // load.front_ns
    return load.prefill - done


cdef inline int64_t tokens_at(const load_t* load, ns_t now_ns) noexcept nogil:
    """Effective prefill tokens: own and foreign; saturated."""
    return saturated(own_tokens_at(load, now_ns) + load.foreign_prefill)


cdef inline int64_t active_blocks(const load_t* load) noexcept nogil:
    """Own active blocks of a rank, rounded half up (DESIGN D9)."""
    return (load.weight + FRACTION_ONE // 2) >> 20


cdef inline int64_t blocks_of(const load_t* load) noexcept nogil:
    """Effective active blocks: own and foreign."""
    return active_blocks(load) + load.foreign_blocks


cdef inline int64_t requests_of(const load_t* load) noexcept nogil:
    """Effective requests: own and foreign."""
    return load.requests + load.foreign_requests


cdef inline int64_t held_of(const load_t* load) noexcept nogil:
    """Effective blocks that are taken or spoken for; saturated."""
    return saturated(load.held + load.foreign_blocks)


cdef inline bint has_room(const load_t* load, int64_t need) noexcept nogil:
    """Whether a request that needs so many blocks keeps both caps."""
    if load.requests + load.foreign_requests >= load.max_requests:
        return False
    return load.max_blocks == INT64_TOP or load.held + load.foreign_blocks + need <= load.max_blocks
