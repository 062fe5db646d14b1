# What a rank costs for a request, and which of several ranks it gets. Functions only: they read loads and overlaps, and
# write nothing but their answer and the generator that is passed in.
from kvcore._load cimport load_t
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, u128, uint64_t


cdef struct weights_t:
    # SelectionWeights, all finite and >= 0.
    double credit
    double credit_decay
    double scale
    double host
    double disk
    double shared
    double requests
    double temperature


cdef struct range_t:
    # Block positions start .. end - 1.
    int32_t start
    int32_t end


cdef struct query_t:
    # One request as a selector sees it. Arrays by rank slot; NULL: zero everywhere, if nothing else is said.
    tokens_t prompt
    int64_t block_size
    int32_t sequence_length        # complete prompt blocks with a name
    bint track_prefill
    bint decode_role
    weights_t weights
    ns_t now_ns                    # at which loads are read
    const int32_t* device          # leading prompt blocks cached on the device
    const double* effective        # a weighted sum instead of device blocks; NULL: device counts
    const int32_t* host            # blocks that go on from there
    const int32_t* disk            # and from there
    const int64_t* cached          # cached tokens as told; NULL: derived from the blocks
    const range_t* shared          # sorted and disjoint
    int32_t shared_count
    const double* multiplier       # by number of a taint set; NULL: the request prefers none, or is pinned
    const int32_t* active          # leading blocks of the sequence that run there


cdef int64_t device_blocks(const query_t* query, slot_t rank) noexcept nogil
cdef int64_t cached_tokens(const query_t* query, slot_t rank) noexcept nogil
cdef int64_t hits_beyond(const query_t* query, double depth) noexcept nogil
cdef tokens_t least_tokens(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query) noexcept nogil
cdef double rank_cost(const load_t* load, slot_t rank, const query_t* query, tokens_t least) noexcept nogil
cdef slot_t cheapest(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, slot_t* tied,
    double* best) noexcept nogil
cdef slot_t softmax(double* costs, slot_t count, double temperature, double u) noexcept nogil
cdef slot_t choose(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, uint64_t* generator,
    slot_t* tied, double* costs) noexcept nogil


cdef inline uint64_t next_random(uint64_t* state) noexcept nogil:
    """One step of WyRand, the core's generator (DESIGN D8; reference facts: selector 3.5)."""
    cdef u128 product
    state[0] += <uint64_t>0x2D358DCCAA6C78A5
    product = <u128>state[0] * (state[0] ^ <uint64_t>0x8BB84B93962EACC9)
    return <uint64_t>product ^ <uint64_t>(product >> 64)


cdef inline uint64_t draw(uint64_t* state, uint64_t n) noexcept nogil:
    """A uniform number in 0 .. n - 1, n >= 1, without bias: multiply-high with rejection (Lemire 2019)."""
    cdef u128 product = <u128>next_random(state) * n
    cdef uint64_t reject_below
    if <uint64_t>product < n:
        reject_below = (0 - n) % n
        while <uint64_t>product < reject_below:
            product = <u128>next_random(state) * n
    return <uint64_t>(product >> 64)


cdef inline double uniform(uint64_t* state) noexcept nogil:
    """A multiple of 2^-53 in [0, 1): the high 53 bits of one output."""
    return <double>(next_random(state) >> 11) * (1.0 / 9007199254740992.0)
