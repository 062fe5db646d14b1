# The one path from the queue to a booking.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._decisions cimport DecisionRing
from kvcore._endings cimport Endings
from kvcore._fleet cimport Fleet
from kvcore._outbox cimport Outbox
from kvcore._placement cimport Placement
from kvcore._requests cimport RequestTable
from kvcore._types cimport int64_t, ns_t, slot_t, tokens_t, uint64_t
from kvcore.request cimport Overlap


@cython.final
cdef class Dispatcher:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Backlog _backlog
    cdef Endings _endings
    cdef Outbox _outbox
    cdef DecisionRing ring             # hears of every decision; None: nobody asks for them
    cdef ns_t _refresh_after_ns        # NEVER_NS: never
    cdef ns_t _refresh_timeout_ns
    cdef uint64_t generator            # breaks ties (DESIGN D8)
    cdef int64_t next_attempt
    cdef int64_t next_ticket

    cdef bint asks_about(self, slot_t slot) noexcept nogil
    cdef int place(self, slot_t slot, list out) except -1 nogil
    cdef int answer(self, slot_t slot, Overlap overlap, list out) except -1

    cdef int _ask(self, slot_t slot, list out) except -1
    cdef int _decide(self, slot_t slot, list out) except -1 nogil
    cdef int _book(self, slot_t slot, slot_t rank, tokens_t prefill_tokens) except -1 nogil
