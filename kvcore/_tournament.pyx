"""A tournament: the least of many keys, kept while single keys change (Knuth, TAOCP 3, 5.2.3).

Owns the nodes of each tree: a complete binary tree in an array. Beside the least key every node counts the leaves that
have it, so that all ties are known at the root and the j-th of them, in the order of positions, is found on the way
down.

Never here: what keys mean. Invariants: an inner node is the match of its two children; a leaf beyond the positions is
ABSENT. Cost: min and ties O(1); set, tied, ties_before O(log n); clear, build O(n); 16 bytes a node, two nodes a leaf.
"""
from libc.stdlib cimport free
from kvcore._types cimport resize


cdef inline match_t met(const match_t* a, const match_t* b) noexcept nogil:
    """What two children come to."""
    cdef match_t won
    won.key = a.key if a.key < b.key else b.key
    won.ties = (a.ties if a.key == won.key else 0) + (b.ties if b.key == won.key else 0)
    return won


cdef inline slot_t width_for(slot_t positions) noexcept nogil:
    """Leaves of a tree with so many positions."""
    cdef slot_t width = 1
    while width < positions:
        width *= 2
    return width


cdef void tournament_init(tournament_t* tree) noexcept nogil:
    """Without positions, without memory."""
    tree.nodes = NULL
    tree.room = 0
    tree.width = 0
    tree.positions = 0


cdef void tournament_free(tournament_t* tree) noexcept nogil:
    """Give the memory back."""
    free(tree.nodes)
    tournament_init(tree)


cdef int tournament_reserve(tournament_t* tree, slot_t positions) except -1 nogil:
    """Make room for tournament_clear. The tree stays as it is."""
    cdef slot_t width = width_for(positions)
    if width > tree.room:
        resize(<void**>&tree.nodes, 2 * <size_t>width * sizeof(match_t))
        tree.room = width
    return 0


cdef void tournament_clear(tournament_t* tree, slot_t positions) noexcept nogil:
    """So many positions, for which there is room, all ABSENT."""
    cdef slot_t i
    tree.positions = positions
    tree.width = width_for(positions)
    for i in range(2 * tree.width):
        tree.nodes[i].key = ABSENT
        tree.nodes[i].ties = 0


cdef void tournament_place(tournament_t* tree, slot_t position, int64_t key) noexcept nogil:
    """Give a position its key; tournament_build must follow before anything is asked."""
    cdef match_t* leaf = &tree.nodes[tree.width + position]
    leaf.key = key
    leaf.ties = key != ABSENT


cdef void tournament_build(tournament_t* tree) noexcept nogil:
    """All matches anew."""
    cdef slot_t i
    for i in range(tree.width - 1, 0, -1):
        tree.nodes[i] = met(&tree.nodes[2 * i], &tree.nodes[2 * i + 1])


cdef void tournament_set(tournament_t* tree, slot_t position, int64_t key) noexcept nogil:
    """Give a position its key and play its matches again, up to the first that ends as before."""
    cdef slot_t i = (tree.width + position) // 2
    cdef match_t won
    tournament_place(tree, position, key)
    while i > 0:
        won = met(&tree.nodes[2 * i], &tree.nodes[2 * i + 1])
        if won.key == tree.nodes[i].key and won.ties == tree.nodes[i].ties:
            return
        tree.nodes[i] = won
        i //= 2


cdef slot_t tournament_tied(const tournament_t* tree, slot_t j) noexcept nogil:
    """The j-th position, from 0, that has the least key; j < ties.

    In arithmetic, not in branches: among many ties each turn is a coin toss, which no processor foresees.
    """
    cdef int64_t key = tree.nodes[1].key
    cdef slot_t width = tree.width
    cdef slot_t i = 1
    cdef slot_t left, right
    while i < width:
        i *= 2
        left = tree.nodes[i].ties & -<slot_t>(tree.nodes[i].key == key)
        right = j >= left
        j -= left & -right
        i += right
    return i - width


cdef slot_t tournament_ties_before(const tournament_t* tree, slot_t position) noexcept nogil:
    """How many positions before this one have the least key."""
    cdef int64_t key = tree.nodes[1].key
    cdef slot_t i = tree.width + position
    cdef slot_t found = 0
    while i > 1:
        if i & 1 and tree.nodes[i - 1].key == key:
            found += tree.nodes[i - 1].ties
        i //= 2
    return found
