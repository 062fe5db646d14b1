# What becomes of live requests after they have been stored: release, eviction, return, rejection, end.
cimport cython
from kvcore._admission cimport Admission
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._endings cimport Endings
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t
from kvcore.request cimport Request


@cython.final
cdef class Lifecycle:
    cdef RequestTable requests
    cdef Fleet fleet
    cdef Backlog backlog
    cdef Placement placement
    cdef Inspector inspector
    cdef Endings endings
    cdef Admission admission
    cdef Dispatcher dispatcher
    cdef Policies policies
    cdef ns_t ttl_ns               # NEVER_NS: bookings do not expire
    cdef int32_t attempts_max
    cdef bint draining
    cdef ns_t drain_ns             # when what still runs is evicted; NEVER_NS: not to come

    cdef ns_t first_due_ns(self) except -1 nogil
    cdef int apply_due(self, ns_t due_ns, ns_t now_ns, list out) except -1

    cdef slot_t running(self, slot_t slot, int64_t attempt) noexcept nogil
    cdef int ignore(self, str request_id, int64_t attempt, list out) except -1
    cdef bint accept(self, slot_t slot) except -1 nogil
    cdef int progress(self, slot_t slot) except -1 nogil
    cdef bint complete_prefill(self, slot_t slot) except -1 nogil
    cdef int add_output(self, slot_t slot, int32_t weight) except -1 nogil
    cdef int finish(self, slot_t slot, bint completed, tokens_t context_tokens) except -1 nogil
    cdef int cancel(self, slot_t slot) except -1 nogil
    cdef int fail(self, slot_t slot, bint retry, list out) except -1
    cdef int drop_ranks(self, list ranks, list out) except -1
    cdef int drain(self, ns_t deadline_ns, list out) except -1

    cdef ns_t _first_expiry_ns(self) noexcept nogil
    cdef int _give_up(self, slot_t slot, object reason, list out) except -1
    cdef int _look(self, slot_t slot, ns_t now_ns, list out) except -1
    cdef int _evict(self, slot_t slot, object reason, list out) except -1
    cdef int _evict_all(self, list out) except -1
    cdef object _why_no_more(self, slot_t slot, Request request)
    cdef int _leave(self, slot_t slot) except -1 nogil
