# May a request run, and where. Reads the fleet and live requests; writes nothing but its scratch memory.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._requests cimport RequestTable
from kvcore._selector cimport query_t
from kvcore._types cimport int32_t, int64_t, slot_t, tokens_t, uint64_t
from kvcore.actions cimport Dispatch
from kvcore.request cimport Request


@cython.final
cdef class Placement:
    cdef Fleet fleet
    cdef RequestTable requests
    cdef int64_t block_size
    cdef bint indexed              # cached prefixes come from engine events
    cdef slot_t* pair_of           # class -> threshold pair of the ledger, NO_SLOT: the class never waits
    cdef int32_t* _told            # by rank: blocks of Request.overlap, zero between uses
    cdef slot_t* _allowed          # candidates of a constrained request
    cdef slot_t* _tied             # cheapest candidates
    cdef slot_t _room

    cdef object refusal(self, Request request)
    cdef tokens_t best_cached(self, slot_t slot, Request request) except -1
    cdef bint may_use(self, slot_t slot, slot_t rank)
    cdef bint may_run(self, slot_t class_index, slot_t slot)
    cdef object decide(self, slot_t slot, Request request, uint64_t* generator, slot_t* chosen)

    cdef bint _fits(self, Request request, slot_t worker) except -1
    cdef bint _any_eligible(self, Request request) except -1
    cdef bint _any_free(self, Request request, slot_t pair) except -1
    cdef int _reserve(self) except -1
    cdef const int32_t* _overlap(self, slot_t slot, Request request) except NULL
    cdef int _forget_overlap(self, Request request) except -1
    cdef Dispatch _dispatch(self, slot_t slot, slot_t rank, const query_t* query)
