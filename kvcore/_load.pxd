# What one rank bears: its bookings and their load, the caps, the state and the last report; and the arithmetic on that.
# No functions but these inline ones: there is no module to it.
from libc.math cimport INFINITY
from kvcore._active cimport pair_t
from kvcore._types cimport (
    FRACTION_ONE, NEVER_NS, NO_SLOT, NS_END, i128, int32_t, int64_t, ns_t, saturated, slot_t, tokens_t, uint64_t)

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
    int64_t max_batched_tokens
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


cdef inline tokens_t load_tokens(const load_t* load, ns_t now_ns) noexcept nogil:
    """tokens_at without 128 bits in the usual case: no decay, and sums that fit."""
    cdef uint64_t low = <uint64_t>load.prefill
    cdef uint64_t foreign = <uint64_t>load.foreign_prefill
    if load.front_ns == 0 and <uint64_t>(load.prefill >> 64) == 0 and (low | foreign) < (<uint64_t>1 << 62):
        return <tokens_t>(low + foreign)
    return tokens_at(load, now_ns)


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


cdef inline int64_t beyond(int64_t reported, i128 own) noexcept nogil:
    """What an engine runs that has not been booked here."""
    return 0 if own >= reported else reported - <int64_t>own


cdef inline void forget_rank(load_t* load) noexcept nogil:
    """A rank that is not present: nothing is known of it. What its bookings make of it is not touched."""
    load.taints = NO_SLOT
    load.state = RANK_OPEN
    load.foreign_prefill = 0
    load.foreign_blocks = 0
    load.foreign_requests = 0
    load.max_blocks = INT64_TOP
    load.max_requests = INT64_TOP
    load.prefill_rate = 0
    load.reported_sequence = -1
    load.reported_prefill = -1
    load.reported_blocks = -1
    load.reported_requests = -1


cdef inline int64_t calm_below(double bound) noexcept nogil:
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


cdef inline ns_t time_of_tokens(const load_t* load, int64_t bound) noexcept nogil:
    """The first time at which decay has brought the effective prefill tokens down to a bound; NEVER_NS: it does not.

    The load is above the bound and decays.
    """
    cdef i128 excess = load.prefill + load.foreign_prefill - bound
    cdef i128 at_ns = load.anchor_ns
    if excess > load.front_tokens:
        return NEVER_NS
    # floor(A * e / d) >= excess first holds at e = ceil(excess * d / A): d = A * q + r keeps the products below 2^127.
    at_ns += excess * (load.front_ns // load.front_tokens)
    at_ns += (excess * (load.front_ns % load.front_tokens) + load.front_tokens - 1) // load.front_tokens
    return NEVER_NS if at_ns >= NS_END else <ns_t>at_ns


cdef inline void set_front(load_t* load, const booking_t* bookings) noexcept nogil:
    """The front of the FIFO or the rate is another one; the anchor is right."""
    load.front_tokens = 0
    load.front_ns = 0
    if load.fifo_first != NO_SLOT and load.prefill_rate:
        load.front_tokens = bookings[load.fifo_first].prefill
        load.front_ns = prefill_ns(load.front_tokens, load.prefill_rate)


cdef inline void enter_fifo(load_t* load, booking_t* bookings, slot_t slot, ns_t now_ns) noexcept nogil:
    """A booking with prefill tokens is the newest; the only one begins now."""
    bookings[slot].fifo_next = NO_SLOT
    bookings[slot].fifo_prev = load.fifo_last
    load.fifo_last = slot
    if bookings[slot].fifo_prev != NO_SLOT:
        bookings[bookings[slot].fifo_prev].fifo_next = slot
    else:
        load.fifo_first = slot
        load.anchor_ns = now_ns
        set_front(load, bookings)


cdef inline void leave_fifo(
        load_t* load, booking_t* bookings, slot_t slot, bint completed, ns_t now_ns) noexcept nogil:
    """A new front begins now. Tokens computed behind the front were no progress of the front: its anchor moves on."""
    cdef booking_t* booking = &bookings[slot]
    cdef i128 anchor_ns
    if booking.fifo_next != NO_SLOT:
        bookings[booking.fifo_next].fifo_prev = booking.fifo_prev
    else:
        load.fifo_last = booking.fifo_prev
    if booking.fifo_prev == NO_SLOT:
        load.fifo_first = booking.fifo_next
        load.anchor_ns = 0 if load.fifo_first == NO_SLOT else now_ns
        set_front(load, bookings)
        return
    bookings[booking.fifo_prev].fifo_next = booking.fifo_next
    if completed and load.prefill_rate:
        anchor_ns = load.anchor_ns + prefill_ns(booking.prefill, load.prefill_rate)
        load.anchor_ns = now_ns if anchor_ns > now_ns else <ns_t>anchor_ns
