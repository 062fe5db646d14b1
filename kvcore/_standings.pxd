# The ranks of the fleet in canonical order, ready to be asked for the cheapest or the roomiest without a look at all.
cimport cython
from kvcore._ledger cimport Ledger
from kvcore._selector cimport query_t
from kvcore._tournament cimport tournament_t
from kvcore._types cimport int64_t, slot_t, uint64_t


@cython.final
cdef class Standings:
    cdef Ledger ledger
    cdef readonly int64_t version  # of the fleet, as told to the last rebuild; -1: never
    cdef readonly slot_t present   # positions
    cdef double best               # cost of the last settle()
    cdef int64_t _block_size
    cdef double _request_weight
    cdef int64_t _request_tokens   # the weight of a request in tokens; NO_SLOT: not a small whole number
    cdef bint _exact               # keys say what costs say
    cdef bint _strict
    cdef slot_t* _order            # by position: rank
    cdef slot_t* _position         # by rank: position, NO_SLOT if it has none
    cdef slot_t _ranks             # ranks below it have an entry in _position
    cdef slot_t _room              # positions that there is memory for
    cdef unsigned char* _loaded    # by position: an open rank with prefill tokens
    cdef slot_t _loaded_count
    cdef tournament_t _costs       # P + B * D + a * B * R of open ranks
    cdef tournament_t* _rooms      # per threshold pair and, last, without: the largest room has the least key
    cdef slot_t* _extra            # positions that tie with the tree, ascending
    cdef slot_t _extras
    cdef slot_t _tree_ties
    cdef slot_t* _tied             # scratch of the plain loop
    cdef double* _scores

    cdef int rebuild(self, const slot_t* order, slot_t present, int64_t version) except -1
    cdef void refresh(self) noexcept nogil
    cdef bint serves(self, const query_t* query) noexcept nogil
    cdef slot_t cheapest(
        self, const query_t* query, const slot_t* overlay, slot_t count, uint64_t* generator) noexcept nogil
    cdef slot_t settle(self, const query_t* query, const slot_t* overlay, slot_t count) noexcept nogil
    cdef slot_t tied(self, slot_t j) noexcept nogil
    cdef int64_t most_room(self, slot_t pair) noexcept nogil

    cdef void _place(self, slot_t position, bint build) noexcept nogil
    cdef slot_t _plain(self, const query_t* query, uint64_t* generator) noexcept nogil
