# Which rank is the cheapest for a request. Functions only: they read loads and overlaps, and write nothing but their
# answer.
from kvcore._ledger cimport load_t
from kvcore._types cimport int32_t, int64_t, slot_t, tokens_t, u128, uint64_t


cdef struct query_t:
    tokens_t prompt
    int64_t block_size
    int32_t sequence_length        # complete prompt blocks with a name
    bint track_prefill
    const int32_t* cached          # by rank: leading blocks cached there
    const int32_t* active          # by rank: leading blocks of the sequence that run there


cdef slot_t cheapest(
    const load_t* loads, const slot_t* candidates, slot_t count, const query_t* query, slot_t* tied) noexcept nogil


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
