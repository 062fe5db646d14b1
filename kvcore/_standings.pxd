# The ranks of the fleet in canonical order, ready to be asked for the cheapest or the roomiest without a look at all.
cimport cython
from kvcore._ledger cimport Ledger
from kvcore._load cimport load_t
from kvcore._selector cimport query_t
from kvcore._tournament cimport tournament_t
from kvcore._types cimport int64_t, slot_t, tokens_t, uint64_t


@cython.final
cdef class Standings:
    cdef Ledger ledger
    cdef readonly slot_t present   # positions
    cdef double best               # cost that the last settle() found
    cdef int64_t _block_size
    cdef double _request_weight
    cdef int64_t _request_tokens   # a * B
    cdef bint _exact               # keys say what costs say
    cdef bint _strict
    cdef slot_t _pairs             # threshold pairs that the ledger had when this was made
    cdef slot_t* _order            # by position: rank
    cdef slot_t* _position         # by rank: position, NO_SLOT if it has none
    cdef slot_t _ranks             # ranks below it have an entry there
    cdef slot_t _room              # positions that there is memory for
    cdef slot_t _depth             # levels of a tree, at least 1
    cdef unsigned char* _flags     # by position
    cdef slot_t _open              # open ranks
    cdef slot_t _loaded            # open ranks with prefill tokens
    cdef tournament_t _costs       # P + B * D + a * B * R of open ranks
    cdef tournament_t* _rooms      # per threshold pair and, last, without: the key is minus the room
    cdef slot_t* _extra            # positions that tie with the tree's without being found there, ascending
    cdef slot_t _extras
    cdef slot_t _tree_ties
    cdef slot_t* _tied             # scratch of the plain loop

    cdef int rebuild(self, const slot_t* order, slot_t present) except -1 nogil
    cdef int refresh(self) noexcept nogil
    cdef bint serves(self, const query_t* query) noexcept nogil
    cdef slot_t cheapest(
        self, const query_t* query, const slot_t* overlay, slot_t count, uint64_t* generator) noexcept nogil
    cdef int64_t most_room(self, slot_t pair) noexcept nogil
    cdef slot_t settle(self, const query_t* query, const slot_t* overlay, slot_t count) noexcept nogil
    cdef slot_t tied(self, slot_t j) noexcept nogil

    cdef int _reserve(self, const slot_t* order, slot_t present) except -1 nogil
    cdef void _stand(self, slot_t position, bint play) noexcept nogil
    cdef int64_t _cost_key(self, const load_t* load, tokens_t tokens) noexcept nogil
    cdef void _build(self) noexcept nogil
    cdef slot_t _plain(self, const query_t* query, uint64_t* generator) noexcept nogil
