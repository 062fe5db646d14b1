# One policy class: its waiting requests in a shared heap and in exact-rank lanes, with remembered verdicts.
cimport cython
from kvcore._heap cimport heap_t, key_t
from kvcore._types cimport i128, int32_t, int64_t, slot_t, tokens_t


# May this head run now? `judge` is the owner of the queue; called for heads only, must not change the queue.
ctypedef bint (*head_test_t)(void* judge, slot_t class_index, slot_t item) noexcept


cdef struct waiting_t:
    # One waiting request, by request slot.
    key_t key
    tokens_t raw           # prompt tokens
    tokens_t cached        # of them, cached at arrival
    tokens_t cost          # charged on dispatch; immutable
    slot_t class_index
    slot_t lane            # lane slot in its class, or NO_SLOT: the shared heap


cdef struct lane_t:
    heap_t heap            # never empty while the lane lives
    slot_t rank
    slot_t next_free
    bint blocked           # its head failed the test and nothing that matters to it has changed since


@cython.final
cdef class WaitingTable:
    cdef waiting_t* rows
    cdef int32_t* pos      # index in the heap that the row is in
    cdef slot_t _capacity

    cdef int reserve(self, slot_t slots) except -1


@cython.final
cdef class ClassQueue:
    cdef WaitingTable table
    cdef readonly slot_t class_index
    cdef heap_t _shared
    cdef bint _shared_blocked
    cdef lane_t* _lanes
    cdef slot_t _lanes_size
    cdef slot_t _lanes_capacity
    cdef slot_t _lanes_free
    cdef heap_t _heads             # lanes that are not blocked, by the key of their head
    cdef int32_t* _head_pos        # by lane slot
    cdef slot_t* _lane_of          # by rank slot: lane or NO_SLOT
    cdef slot_t _lane_of_size
    cdef readonly slot_t lanes     # live lanes
    cdef readonly slot_t blocked   # of them, blocked
    cdef readonly int32_t size     # waiting requests
    cdef i128 raw                  # sums over waiting requests
    cdef i128 cached
    cdef i128 cost
    cdef readonly int64_t tests    # verdicts asked for since the queue was made

    cdef int push(self, slot_t item, slot_t rank) except -1
    cdef void remove(self, slot_t item) noexcept
    cdef slot_t candidate(self, head_test_t test, void* judge) noexcept
    cdef bint would_lead(self, slot_t item, slot_t rank) noexcept
    cdef slot_t shared_head(self) noexcept
    cdef bint shared_is_blocked(self) noexcept
    cdef void recheck_shared(self) noexcept
    cdef void recheck_lane(self, slot_t rank) noexcept
    cdef void recheck_all(self) noexcept
    cdef int64_t heap_moves(self) noexcept
    cdef str fault(self, head_test_t test, void* judge)

    cdef slot_t _open_lane(self, slot_t rank) except -1
    cdef void _close_lane(self, slot_t lane) noexcept
    cdef void _index_lane(self, slot_t lane) noexcept
