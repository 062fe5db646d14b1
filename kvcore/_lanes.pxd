# One policy class: its waiting requests in a shared lane and in exact-rank lanes, with remembered verdicts.
cimport cython
from kvcore._heap cimport heap_t, key_t
from kvcore._overtaking cimport Overtaking
from kvcore._types cimport i128, int32_t, int64_t, slot_t, tokens_t, uint64_t


# May this request run now? `judge` is the owner of the queue; the test must not change the queue.
ctypedef bint (*head_test_t)(void* judge, slot_t class_index, slot_t item) noexcept nogil


cdef enum:
    SHARED = 0             # lane slot of the requests that are pinned to no rank


cdef struct waiting_t:
    # One waiting request, by request slot.
    key_t key
    tokens_t raw           # prompt tokens
    tokens_t cached        # of them, cached at arrival
    tokens_t cost          # charged on dispatch; immutable
    slot_t class_index
    slot_t lane            # lane slot in its class


cdef struct lane_t:
    heap_t heap            # by key
    heap_t ages            # the same requests, oldest first; kept only under an overtaking bound
    slot_t rank            # NO_SLOT: the shared lane, or a free row
    slot_t next_free
    slot_t next_aside      # lanes set aside in the present look for a candidate
    bint blocked           # its head has failed the test and nothing that matters to it has changed since
    bint indexed           # in the index of heads: has requests and is not blocked


@cython.final
cdef class WaitingTable:
    cdef waiting_t* rows
    cdef int32_t* pos      # index in its lane's heap
    cdef int32_t* age_pos  # index in its lane's ages
    cdef unsigned char* choosy  # 1: it may not use every rank. Filled like the row, 0 where nobody has done so
    cdef slot_t _capacity
    cdef int64_t indexed   # lanes of all classes that are in an index of heads: somebody may have a candidate

    cdef int reserve(self, slot_t slots) except -1 nogil


@cython.final
cdef class ClassQueue:
    cdef WaitingTable table
    cdef readonly slot_t class_index
    cdef lane_t* _lanes            # row SHARED always exists; the others live while they have requests
    cdef slot_t _lanes_size
    cdef slot_t _lanes_capacity
    cdef slot_t _lanes_free
    cdef heap_t _heads             # indexed lanes by the key of their head
    cdef int32_t* _head_pos        # by lane slot
    cdef heap_t _elders            # indexed lanes by the age of their oldest; only under an overtaking bound
    cdef int32_t* _elder_pos       # by lane slot
    cdef slot_t* _lane_of          # by rank slot: lane or NO_SLOT
    cdef slot_t _lane_of_size
    cdef Overtaking _overtaking    # None: no bound
    cdef int64_t _bound            # most cost of younger requests that may be popped before an older one (DESIGN D17)
    cdef uint64_t _next_age
    cdef readonly slot_t lanes     # exact lanes that live
    cdef readonly slot_t blocked   # blocked lanes, the shared one included
    cdef readonly int32_t size     # waiting requests
    cdef i128 raw                  # sums over waiting requests
    cdef i128 cached
    cdef i128 cost
    cdef readonly int32_t held     # deferred requests: counted here, in no lane
    cdef i128 held_raw
    cdef i128 held_cached
    cdef i128 held_cost
    cdef readonly int64_t tests    # verdicts asked for since the queue was made

    cdef int push(self, slot_t item, slot_t rank) except -1 nogil
    cdef void hold(self, slot_t item) noexcept nogil
    cdef void unhold(self, slot_t item) noexcept nogil
    cdef list items_of(self, slot_t rank)
    cdef void take(self, slot_t item) noexcept nogil
    cdef void remove(self, slot_t item) noexcept nogil
    cdef slot_t candidate(self, head_test_t test, void* judge) noexcept nogil
    cdef int32_t ahead_of(self, slot_t item, int32_t most) noexcept nogil
    cdef slot_t head_of(self, slot_t item) noexcept nogil
    cdef slot_t elder_of(self, slot_t item) noexcept nogil
    cdef slot_t blocked_shared(self) noexcept nogil
    cdef void recheck_shared(self) noexcept nogil
    cdef void recheck_lane(self, slot_t rank) noexcept nogil
    cdef void recheck_all(self) noexcept nogil
    cdef bint bounds_overtaking(self) noexcept nogil
    cdef slot_t next_by_age(self, int32_t* place) noexcept
    cdef i128 overtaken(self, slot_t item) noexcept
    cdef int pass_all(self, i128 cost) except -1
    cdef int64_t heap_moves(self) noexcept
    cdef str fault(self, head_test_t test, void* judge)

    cdef slot_t _lane_for(self, slot_t rank) except -1 nogil
    cdef slot_t _open_lane(self, slot_t rank) except -1 nogil
    cdef slot_t _new_lane(self, slot_t rank) except -1 nogil
    cdef void _close(self, slot_t lane) noexcept nogil
    cdef bint _passes(self, slot_t lane, head_test_t test, void* judge) noexcept nogil
    cdef void _block(self, slot_t lane) noexcept nogil
    cdef void _index(self, slot_t lane) noexcept nogil
    cdef void _unindex(self, slot_t lane) noexcept nogil


cdef inline int32_t open_lanes(ClassQueue queue) noexcept nogil:
    """Lanes that are not blocked: without one there is no candidate."""
    return queue._heads.size
