# May a request run, and where. Reads the fleet and live requests; writes nothing but its scratch memory.
cimport cython
from kvcore._eligible cimport Eligible
from kvcore._fleet cimport Fleet
from kvcore._overlaps cimport Overlaps
from kvcore._requests cimport RequestTable, request_t
from kvcore._selector cimport query_t
from kvcore._standings cimport Standings
from kvcore._types cimport int64_t, ns_t, slot_t, tokens_t, uint64_t
from kvcore.request cimport Request


cdef struct prospects_t:
    # What the ranks are like that a request may use.
    bint any               # there are some
    bint runs              # one of them is open and would take it now
    bint open              # one is open
    bint leased            # one comes back by itself
    bint holds             # one could ever hold it


cdef struct choice_t:
    # What a request finds on the rank that it gets.
    int64_t overlap_blocks
    tokens_t cached_tokens         # that serve its prompt
    tokens_t prefill_tokens        # that its booking adds
    int64_t potential_decode_blocks


# The dispatch test as a queue asks for it; `placement` is a Placement. What it raises is kept in `failure`.
cdef bint runs_now(void* placement, slot_t class_index, slot_t slot) noexcept nogil


@cython.final
cdef class Placement:
    cdef Fleet fleet
    cdef RequestTable requests
    cdef Eligible eligible         # who may be used; whom it has found is filtered where it stands
    cdef Overlaps overlaps
    cdef Standings standings
    cdef int64_t block_size
    cdef double _request_weight
    cdef bint strict
    cdef bint sits_out             # a request whose ranks are all overloaded waits
    cdef slot_t* pair_of           # class -> threshold pair of the ledger, NO_SLOT: none
    cdef slot_t* _tied             # of the ranks in question the cheapest
    cdef double* _costs
    cdef slot_t _room
    cdef int64_t _largest          # most blocks that a rank can hold which is not gone
    cdef int64_t _largest_version
    cdef int64_t _ranked_version
    cdef object failure            # what a dispatch test has raised, or None
    cdef bint failed               # it has raised something
    cdef bint bounded              # every class has thresholds

    cdef int adopt(self, list pairs) except -1
    cdef bint queues(self, slot_t class_index) noexcept nogil
    cdef object refusal(self, Request request, ns_t arrival_ns)
    cdef tokens_t best_cached(self, slot_t slot, Request request) except -1
    cdef tokens_t best_cached_anywhere(self, slot_t slot) except -1 nogil
    cdef bint may_run(self, slot_t class_index, slot_t slot) except -1
    cdef object overload(self, slot_t slot)
    cdef slot_t willing(self, slot_t slot, Request request) except -1
    cdef slot_t decide(self, slot_t slot, uint64_t* generator, choice_t* choice) except -2 nogil
    cdef object nowhere(self, slot_t slot)

    cdef int _reserve(self) except -1 nogil
    cdef bint _any_usable(self, Request request) except -1
    cdef bint _could_hold(self, Request request, slot_t pin) except -1
    cdef int _look(self, slot_t slot, Request request, slot_t pair, prospects_t* found) except -1
    cdef int _look_anywhere(self, slot_t slot, Request request, slot_t pair, prospects_t* found) except -1
    cdef void _match_active(self, slot_t slot) noexcept nogil
    cdef int _look_by_taints(self, Request request, slot_t pair, prospects_t* found) except -1
    cdef bint _takes(self, slot_t rank, slot_t pair, int64_t needed) noexcept nogil
    cdef int64_t _needed(self, Request request) except -1
    cdef int64_t largest_rank(self) noexcept nogil
    cdef int _rank(self) except -1 nogil
    cdef slot_t _decide(self, slot_t slot, Request request, uint64_t* generator, choice_t* choice) except -2
    cdef bint _ranked(self, const request_t* row) noexcept nogil
    cdef slot_t _cheapest(self, slot_t slot, const query_t* query, uint64_t* generator) noexcept nogil
    cdef slot_t _open_to(self, slot_t slot) noexcept nogil
    cdef void _measure(
        self, const request_t* row, slot_t rank, const query_t* query, choice_t* choice) noexcept nogil
