# The ring of policy classes: deficits, cursor, limits, back-pressure estimates.
cimport cython
from kvcore._lanes cimport ClassQueue, WaitingTable, head_test_t
from kvcore._types cimport i128, int32_t, int64_t, ns_t, slot_t, tokens_t


cdef enum visit_t:
    VISIT_NONE             # the cursor's class has not been served in this visit
    VISIT_UNPAID           # served from its deficit, no quantum granted yet
    VISIT_PAID             # its quantum of this visit has been granted


cdef enum:
    NOT_ASKED = -2         # in place of a candidate


cdef enum limit_t:
    LIMIT_NONE = -1
    LIMIT_REQUESTS
    LIMIT_RAW_TOKENS
    LIMIT_CACHED_TOKENS


cdef enum:
    LIMIT_KINDS = 3
    WINDOW = 32            # charged dispatches remembered per class (DESIGN D18)


cdef struct class_t:
    int64_t quantum                # credit per round, >= 1
    int64_t deficit                # credit that may be spent now; 0 while the class is empty
    int64_t limits[LIMIT_KINDS]    # per worker, LIMIT_NONE = no limit
    bint never_waits               # some limit is 0: dispatch or refuse (DESIGN D6)
    int64_t dispatched             # dispatches so far
    int64_t charged                # of them, those that cost something; they stand in the window
    i128 dispatched_cost
    ns_t times[WINDOW]             # ring of the last charged dispatches
    int64_t costs[WINDOW]
    i128 window_cost               # sum of costs in the ring


@cython.final
cdef class PolicyQueue:
    cdef WaitingTable waiting
    cdef list _queues              # of ClassQueue, by class index
    cdef void** rows               # the same, for code that holds no interpreter lock
    cdef class_t* classes
    cdef readonly slot_t count
    cdef readonly slot_t cursor
    cdef visit_t visit             # of the class under the cursor
    cdef bint _reference           # arbitration mode (DESIGN D5)
    cdef slot_t* _heads            # by class: candidate found in this call, or NO_SLOT
    cdef readonly int32_t size     # requests that are ready, in all classes
    cdef readonly int32_t choosy   # of them, those that may not use every rank
    cdef readonly int32_t held     # deferred ones
    cdef readonly int64_t dispatched   # by all classes there have been
    cdef readonly int64_t visits   # classes looked at since the queue was made

    cdef ClassQueue queue(self, slot_t class_index)
    cdef bint rests(self) noexcept nogil
    cdef bint would_take(self, slot_t class_index) noexcept nogil
    cdef void pass_by(self, slot_t class_index) noexcept nogil
    cdef int adopt(self, object before, object profile) except -1
    cdef int push(self, slot_t item, slot_t class_index, slot_t rank) except -1 nogil
    cdef void hold(self, slot_t item, slot_t class_index) noexcept nogil
    cdef void unhold(self, slot_t item) noexcept nogil
    cdef void settle_emptied(self) noexcept
    cdef void remove(self, slot_t item) noexcept nogil
    cdef slot_t pop(self, head_test_t test, void* judge) noexcept nogil
    cdef void poll_in_vain(self) noexcept nogil
    cdef void charge(self, slot_t class_index, ns_t now_ns, int64_t cost) noexcept nogil
    cdef limit_t limit_hit(self, slot_t class_index, int64_t workers, int64_t* current, int64_t* bound) noexcept nogil
    cdef int64_t usage(self, slot_t class_index, limit_t kind) noexcept nogil
    cdef int64_t retry_after_ns(self, slot_t class_index, int64_t current, int64_t bound) noexcept nogil

    cdef void _close_visit(self) noexcept nogil
    cdef slot_t _next(self, slot_t class_index) noexcept nogil
    cdef int64_t _cost(self, slot_t class_index) noexcept nogil
    cdef void _arrive(self, slot_t class_index, visit_t visit) noexcept nogil
    cdef slot_t _look(self, slot_t class_index, head_test_t test, void* judge) noexcept nogil
    cdef slot_t _scan(self, slot_t start, bint closes, head_test_t test, void* judge) noexcept nogil
    cdef slot_t _grant_rounds(self, slot_t start) noexcept nogil
    cdef slot_t _take(self, slot_t class_index) noexcept nogil
    cdef void _emptied(self, slot_t class_index) noexcept nogil
