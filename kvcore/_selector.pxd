# What a rank costs for a request, and which of several ranks it gets. Functions only: they read loads and overlaps, and
# write nothing but their answer and the generator that is passed in.
from kvcore._load cimport INT64_TOP, blocks_of, load_t, requests_of
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, u128, uint64_t

cdef extern from *:
    """
    #define KV_TOKENS_MAX ((int64_t)1 << 53)
    """
    const int64_t TOKENS_MAX "KV_TOKENS_MAX"


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


cdef struct common_t:
    # What a common query makes of a rank's load: the query once more, where a compiler may keep it in registers.
    tokens_t prompt
    int64_t block_size
    int64_t length
    double size
    double per_size
    bint shifts            # division by a power of two is multiplication by its inverse, to the bit
    double credit
    double scale
    double requests
    ns_t now_ns
    const int32_t* device
    const int32_t* active


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


cdef inline double at_least_zero(double x) noexcept nogil:
    return x if x > 0.0 else 0.0


cdef inline int64_t whole_tokens(double blocks, int64_t block_size) noexcept nogil:
    """Tokens of so many blocks, half up, at most 2^53."""
    cdef double tokens = blocks * <double>block_size + 0.5
    return TOKENS_MAX if tokens >= <double>TOKENS_MAX else <int64_t>tokens


cdef inline double raw_tokens(tokens_t tokens, tokens_t prompt, int64_t cached) noexcept nogil:
    """The saturating sum of a rank's load and what the request would add to it."""
    cdef int64_t more = prompt if prompt > cached else cached
    return <double>(tokens + more if tokens <= INT64_TOP - more else INT64_TOP)


cdef inline bint is_common(const query_t* query) noexcept nogil:
    """Whether common_cost will do: prompts are tracked, and nothing but device blocks gives credit."""
    if not query.track_prefill or query.weights.credit_decay > 0.0 or query.multiplier != NULL:
        return False
    if query.effective != NULL or query.host != NULL or query.disk != NULL or query.cached != NULL:
        return False
    return query.shared_count == 0 or query.weights.shared == 0.0


cdef inline common_t common_of(const query_t* query) noexcept nogil:
    cdef common_t own
    own.prompt = query.prompt
    own.block_size = query.block_size
    own.length = query.sequence_length
    own.size = <double>query.block_size
    own.per_size = 1.0 / own.size
    own.shifts = query.block_size & (query.block_size - 1) == 0
    own.credit = query.weights.credit
    own.scale = query.weights.scale
    own.requests = query.weights.requests
    own.now_ns = query.now_ns
    own.device = query.device
    own.active = query.active
    return own


cdef inline int64_t common_cached(const common_t* own, int32_t depth) noexcept nogil:
    """cached_tokens of a common query."""
    return whole_tokens(<double>depth, own.block_size) if depth else 0


cdef inline double common_cost(
        const common_t* own, const load_t* load, tokens_t tokens, int64_t cached, int32_t depth,
        int32_t active) noexcept nogil:
    """rank_cost of a common query without the steps that change no bit. tokens: of load_tokens."""
    cdef double blocks = raw_tokens(tokens, own.prompt, cached)
    cdef double cost
    blocks = blocks * own.per_size if own.shifts else blocks / own.size
    blocks = own.scale * at_least_zero(blocks - own.credit * <double>depth)
    cost = blocks + <double>(blocks_of(load) + (own.length - active))
    if own.requests != 0.0:
        cost = cost + own.requests * <double>requests_of(load)
    return cost
