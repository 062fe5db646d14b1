# Load per rank and the bookings that make it up, at the time set by `advance`. Receives effective prefill tokens only.
cimport cython
from kvcore._active cimport ActiveBlocks
from kvcore._heap cimport heap_t
from kvcore._load cimport (
    INT64_TOP, RANK_GONE, RANK_LEASED, RANK_OPEN, RANK_OVERLOADED, RANK_STATES, active_blocks, blocks_of, booking_t,
    has_room, held_of, load_t, output_weight, own_tokens_at, rank_state_t, requests_of, tokens_at, weight_of)
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, uint64_t


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
    cdef bint faded                # a prompt block may weigh other than 1.0: a fraction has been told while one lived
    cdef readonly bint decays      # prefill loads shrink with time where the rate is known
    cdef ns_t now_ns               # the time at which loads are read
    cdef slot_t* dirty_ranks       # ranks whose load, caps or state changed since clear_dirty(), each once
    cdef slot_t dirties
    cdef slot_t* crossed           # ranks that the last advance() made less busy; crossed_count is the reader's to eat
    cdef slot_t crossed_count
    cdef heap_t _crossings         # ranks by the time at which decay alone makes them less busy
    cdef int32_t* _crossing_pos    # by rank; NO_SLOT: not foreseen

    cdef int reserve_ranks(self, slot_t ranks) except -1
    cdef int reserve_slots(self, slot_t slots) except -1 nogil
    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept
    cdef int configure_rank(
        self, slot_t rank, int64_t max_batched_tokens, int64_t max_blocks, int64_t max_requests,
        int64_t prefill_rate, slot_t taints) except -1
    cdef int replace_thresholds(self, list thresholds, const slot_t* ranks, slot_t count) except -1
    cdef void set_state(self, slot_t rank, rank_state_t state) noexcept
    cdef void remove_rank(self, slot_t rank) noexcept

    cdef bint busy(self, slot_t rank, slot_t pair) noexcept nogil
    cdef int64_t calm(self, slot_t rank, slot_t pair) noexcept nogil
    cdef int64_t tokens(self, slot_t rank) noexcept nogil
    cdef int64_t blocks(self, slot_t rank) noexcept nogil

    cdef int book(
        self, slot_t slot, slot_t rank, tokens_t prefill, const uint64_t* path, int32_t length,
        int64_t private_blocks, int64_t reserve_blocks) except -1 nogil
    cdef bint complete_prefill(self, slot_t slot) noexcept nogil
    cdef void add_output(self, slot_t slot, int32_t weight) noexcept nogil
    cdef bint release(self, slot_t slot, bint completed) noexcept nogil
    cdef int32_t path_weight(self, slot_t slot, int32_t at) noexcept nogil

    cdef bint report(
        self, slot_t rank, int64_t sequence, int64_t prefill, int64_t blocks, int64_t requests, bint counts) noexcept
    cdef void forget_report(self, slot_t rank) noexcept nogil
    cdef ns_t next_crossing_ns(self) noexcept nogil
    cdef void advance(self, ns_t now_ns) noexcept nogil
    cdef void clear_dirty(self) noexcept nogil

    cdef int _set_thresholds(self, list thresholds) except -1
    cdef void _rate(self, slot_t rank) noexcept
    cdef void _recount(self, slot_t rank, tokens_t before, ns_t now_ns) noexcept nogil
    cdef void _stand(self, slot_t rank, int32_t by) noexcept nogil
    cdef void _changed(self, slot_t rank) noexcept nogil
    cdef void _settle(self, slot_t rank) noexcept nogil
    cdef ns_t _crossing_ns(self, slot_t rank) noexcept nogil
    cdef void _finish_prefill(self, slot_t slot, bint completed) noexcept nogil
    cdef int32_t _count_blocks(self, const uint64_t* path, int32_t length, slot_t rank) except -1 nogil
    cdef void _unbind(self, slot_t slot, int32_t at) noexcept nogil
    cdef void _set_foreign(self, slot_t rank, int64_t prefill, int64_t blocks, int64_t requests) noexcept nogil
