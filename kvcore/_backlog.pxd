# Requests that wait: classified, stored, judged again, and who of this batch still waits.
cimport cython
from kvcore._classify cimport Classifier, meaning_t
from kvcore._drr cimport PolicyQueue, limit_t
from kvcore._fleet cimport Fleet
from kvcore._keys cimport order_t
from kvcore._lanes cimport ClassQueue, head_test_t
from kvcore._outbox cimport Outbox
from kvcore._placement cimport Placement
from kvcore._requests cimport RequestTable, request_t
from kvcore._types cimport int64_t, ns_t, slot_t, tokens_t, uint64_t
from kvcore.actions cimport Reject
from kvcore.request cimport Rank, Request


cdef struct stored_t:
    # A request stored in the present batch.
    slot_t slot
    uint64_t seq


@cython.final
cdef class Backlog:
    cdef PolicyQueue queue
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Classifier classes
    cdef order_t* _orders                  # by class
    cdef ns_t _look_every_ns               # how often a waiting request is looked at for overload; NEVER_NS: never
    cdef stored_t* _stored                 # what this batch has stored, by seq
    cdef int64_t stored
    cdef int64_t _asked                    # how many of them have been asked whether they may wait
    cdef bint _mixed                       # they do not stand by seq: some have been put back
    cdef bint _asked_anew                  # one that may not wait has been put back
    cdef int64_t _stored_room
    cdef uint64_t next_seq                 # one counter for all classes (DESIGN D3)

    cdef int adopt(self, profile) except -1
    cdef int classify(self, slot_t slot, Request request) except -1
    cdef int classify_record(self, slot_t slot) except -1 nogil
    cdef int snapshot(self, slot_t slot, Request request) except -1
    cdef int arrange(self, slot_t slot, Request request) except -1
    cdef void begin_batch(self) noexcept nogil
    cdef int store(self, slot_t slot) except -1 nogil
    cdef bint pass_by(self, slot_t slot) noexcept nogil
    cdef int defer(self, slot_t slot) except -1
    cdef int put_back(self, slot_t slot) except -1
    cdef int come_back(self, slot_t slot) except -1
    cdef int withdraw(self, slot_t slot) except -1 nogil
    cdef int rejoin(self, slot_t slot, bint deferred) except -1
    cdef int keep_pin(self, slot_t slot) except -1 nogil
    cdef int follow_fleet(self) except -1
    cdef void sort_stored(self) noexcept nogil
    cdef int look_again(self, slot_t slot, ns_t idle_until_ns) except -1
    cdef slot_t still_waiting(self, int64_t i) noexcept nogil
    cdef int park(self, Outbox outbox) except -1 nogil
    cdef slot_t next_leftover(self) noexcept nogil
    cdef limit_t limit_hit(self, slot_t slot, int64_t* current, int64_t* bound) noexcept nogil
    cdef Reject refused(self, slot_t slot, str request_id, object reason)
    cdef Reject queue_full(self, slot_t slot, str request_id, limit_t kind, int64_t current, int64_t bound)
    cdef Reject would_queue(self, slot_t slot, str request_id)
    cdef int recheck(self) except -1 nogil
    cdef list faults(self, head_test_t test, void* judge)

    cdef int _note(self, slot_t slot) except -1 nogil
    cdef int _enter(self, slot_t slot) except -1 nogil
    cdef int _set_grace(self, slot_t slot) except -1
    cdef ns_t _first_look_ns(self, const request_t* row) noexcept nogil
    cdef ns_t _next_look_ns(self, const request_t* row, ns_t last_ns) noexcept nogil
    cdef void _may_wait(self, slot_t slot) noexcept nogil
    cdef void _price(self, slot_t slot, tokens_t cached) noexcept nogil
    cdef void _arrange(self, slot_t slot, const meaning_t* meaning) noexcept nogil
    cdef int _keep_pin(self, slot_t slot) except -1
    cdef bint _relieves(self, slot_t rank, slot_t pair) noexcept nogil
    cdef bint _relieved(self, slot_t pair) noexcept nogil
    cdef int _recheck(self, ClassQueue queue, slot_t pair) except -1 nogil
    cdef bint _may_use(self, slot_t slot, slot_t rank) except -1 nogil
