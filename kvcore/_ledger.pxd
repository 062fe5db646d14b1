# Load per rank and the bookings that make it up. Receives effective prefill tokens only.
cimport cython
from kvcore._prefix cimport PrefixIndex
from kvcore._types cimport FRACTION_ONE, i128, int32_t, int64_t, slot_t, tokens_t, uint64_t


cdef struct load_t:
    # One rank.
    i128 prefill           # sum over bookings, tokens
    int64_t weight         # distinct live prompt blocks and output blocks, 2^20 = one block
    int32_t requests       # bookings
    slot_t first           # newest booking, or NO_SLOT
    slot_t taints          # number of its worker's taint set; NO_SLOT: the rank is not present


cdef struct booking_t:
    # One booking, by request slot.
    slot_t rank            # NO_SLOT: no booking
    bint prefilling        # its prefill tokens still count
    tokens_t prefill
    int32_t outputs        # output blocks with weight 2^20, added since the last fraction
    int32_t outputs_decayed
    int32_t decayed_weight  # of each of them
    slot_t next            # bookings of the same rank
    slot_t prev


@cython.final
cdef class Ledger:
    cdef load_t* loads             # by rank slot
    cdef slot_t _ranks
    cdef booking_t* bookings       # by request slot
    cdef slot_t _slots
    cdef readonly slot_t pairs     # distinct threshold pairs of the profile
    cdef list _thresholds          # (absolute or None, fraction or None) per pair
    cdef int64_t* _calm            # [rank * pairs + pair]: the largest prefill load that is not busy
    cdef int32_t* free             # per pair: present ranks that are not busy
    cdef int32_t* free_of          # [taint set * pairs + pair]: the same per taint set
    cdef slot_t _sets
    cdef PrefixIndex active        # prompt blocks of live bookings, counted

    cdef int reserve_ranks(self, slot_t ranks) except -1
    cdef int reserve_slots(self, slot_t slots) except -1
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    cdef void remove_rank(self, slot_t rank) noexcept
    cdef int configure_rank(self, slot_t rank, int64_t max_batched_tokens, slot_t taints) except -1
    cdef bint busy(self, slot_t rank, slot_t pair) noexcept nogil
    cdef int book(self, slot_t slot, slot_t rank, tokens_t prefill, const uint64_t* path, int32_t length) except -1
    cdef bint complete_prefill(self, slot_t slot) noexcept
    cdef void add_output(self, slot_t slot, int32_t weight, const uint64_t* path, int32_t length) noexcept
    cdef bint release(self, slot_t slot, const uint64_t* path, int32_t length) noexcept
    cdef void _count(self, slot_t rank, int32_t by) noexcept
    cdef void _add_prefill(self, slot_t rank, i128 tokens) noexcept


cdef inline int64_t output_weight(const booking_t* booking) noexcept nogil:
    """Weight of the output blocks of one booking, 2^20 = one block."""
    return <int64_t>booking.outputs * FRACTION_ONE + <int64_t>booking.outputs_decayed * booking.decayed_weight


cdef inline int64_t active_blocks(const load_t* load) noexcept nogil:
    """Active blocks of a rank, rounded half up (DESIGN D9)."""
    return (load.weight + FRACTION_ONE // 2) >> 20
