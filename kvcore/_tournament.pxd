# A min-tree over positions: least key, how many have it, which is the j-th of them. Free functions on a C struct.
from kvcore._types cimport int64_t, slot_t

cdef extern from *:
    """
    #define KV_ABSENT INT64_MAX
    """
    const int64_t ABSENT "KV_ABSENT"   # key of a position that does not take part


cdef struct match_t:
    int64_t key                # least key below, or ABSENT
    slot_t ties                # leaves below that have it; 0 if ABSENT


cdef struct tournament_t:
    match_t* nodes             # nodes[1] is the root; the leaf of position p is nodes[width + p]
    slot_t room                # leaves that there is memory for
    slot_t width               # leaves: a power of two >= positions, so that leaves stand in the order of positions
    slot_t positions


cdef void tournament_init(tournament_t* tree) noexcept nogil
cdef void tournament_free(tournament_t* tree) noexcept nogil
cdef int tournament_reserve(tournament_t* tree, slot_t positions) except -1 nogil
cdef void tournament_clear(tournament_t* tree, slot_t positions) noexcept nogil
cdef void tournament_place(tournament_t* tree, slot_t position, int64_t key) noexcept nogil
cdef void tournament_build(tournament_t* tree) noexcept nogil
cdef void tournament_set(tournament_t* tree, slot_t position, int64_t key) noexcept nogil
cdef slot_t tournament_tied(const tournament_t* tree, slot_t j) noexcept nogil
cdef slot_t tournament_ties_before(const tournament_t* tree, slot_t position) noexcept nogil


cdef inline int64_t tournament_min(const tournament_t* tree) noexcept nogil:
    """The least key; ABSENT if there is none."""
    return tree.nodes[1].key if tree.positions else ABSENT


cdef inline slot_t tournament_ties(const tournament_t* tree) noexcept nogil:
    """How many positions have the least key."""
    return tree.nodes[1].ties if tree.positions else 0


cdef inline int64_t tournament_key(const tournament_t* tree, slot_t position) noexcept nogil:
    """The key of a position, 0 <= position < positions."""
    return tree.nodes[tree.width + position].key
