"""Indexed 4-ary heap: push, look at the first, remove any item by its number, each O(log n).

Owns nothing but the algorithm: heap_t is embedded by its users, positions live in the user's pos[item] array. It knows
no request, class or event. Four children per node: half the depth of a binary heap, and the children of a node lie in
two or three cache lines.

What takes the place of a removed node comes from the end and mostly belongs there again. So the hole goes down to a
leaf first, from least child to least child, and what fills it rises from there (Floyd): a comparison less per level,
and none of them decides a branch.

Invariants: nodes[i].key is not less than its parent's; pos[nodes[i].item] == i for every i < size.
"""
from libc.stdlib cimport free
from kvcore._types cimport resize


cdef enum:
    ARITY = 4


cdef void heap_init(heap_t* heap) noexcept nogil:
    heap.nodes = NULL
    heap.size = 0
    heap.capacity = 0
    heap.moves = 0


cdef void heap_free(heap_t* heap) noexcept nogil:
    free(heap.nodes)
    heap_init(heap)


cdef int heap_grow(heap_t* heap, int32_t size) except -1 nogil:
    """heap_reserve of more than there is room for."""
    # Of ten thousand lanes most hold one request: a node each, where four would take three times the pages.
    cdef int32_t capacity = max(size, 2 * heap.capacity, 4) if heap.capacity else size
    resize(<void**>&heap.nodes, capacity * sizeof(node_t))
    heap.capacity = capacity
    return 0


cdef int heap_push(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) except -1 nogil:
    """Add an item that is not in the heap. Raises MemoryError before any change."""
    cdef node_t moving
    heap_reserve(heap, heap.size + 1)
    moving.key = key[0]
    moving.item = item
    heap.size += 1
    _rise(heap, heap.size - 1, &moving, pos)
    return 0


cdef void heap_update(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) noexcept nogil:
    """Give an item that is in the heap another key."""
    cdef node_t moving
    moving.key = key[0]
    moving.item = item
    _fill(heap, pos[item], &moving, pos)


cdef void heap_remove(heap_t* heap, slot_t item, int32_t* pos) noexcept nogil:
    """Take an item out that is in the heap."""
    cdef int32_t hole = pos[item]
    cdef node_t moving
    heap.size -= 1
    if hole != heap.size:
        moving = heap.nodes[heap.size]
        _fill(heap, hole, &moving, pos)


cdef int32_t heap_before(const heap_t* heap, const key_t* key, int32_t most) noexcept nogil:
    """How many items have a smaller key; counting stops above `most`, at most + 1. O(most), whatever the size."""
    return _count_before(heap, 0, key, most)


cdef bint heap_holds(const heap_t* heap, const int32_t* pos) noexcept nogil:
    """Whether the invariants hold. O(size), for debug builds."""
    cdef int32_t i
    for i in range(heap.size):
        if pos[heap.nodes[i].item] != i:
            return False
        if i and key_less(&heap.nodes[i].key, &heap.nodes[(i - 1) // ARITY].key):
            return False
    return True


cdef int32_t _count_before(const heap_t* heap, int32_t at, const key_t* key, int32_t most) noexcept nogil:
    """Of the subtree below a node: what is not smaller has nothing smaller below it."""
    cdef int32_t found = 1
    cdef int32_t child = at * ARITY + 1
    cdef int32_t end = child + ARITY
    if at >= heap.size or not key_less(&heap.nodes[at].key, key):
        return 0
    while child < end and found <= most:
        found += _count_before(heap, child, key, most - found)
        child += 1
    return found


cdef inline node_t* _lesser(node_t* a, node_t* b) noexcept nogil:
    """Of two nodes the one with the smaller key, without a branch."""
    return <node_t*>(<size_t>a ^ ((<size_t>a ^ <size_t>b) & -<size_t>key_less(&b.key, &a.key)))


cdef void _fill(heap_t* heap, int32_t hole, const node_t* moving, int32_t* pos) noexcept nogil:
    """Put a node into the place of one that has gone, or where the order then wants it."""
    cdef node_t* nodes = heap.nodes
    cdef int64_t size = heap.size
    cdef int64_t at = hole
    cdef int64_t child = at * ARITY + 1
    cdef int64_t moves = 1
    cdef node_t* best
    while child + ARITY <= size:
        best = &nodes[child]
        best = _lesser(best + key_less(&best[1].key, &best[0].key), best + 2 + key_less(&best[3].key, &best[2].key))
        # Read where it comes from: what has just been written takes a while to be seen.
        pos[best.item] = <int32_t>at
        nodes[at] = best[0]
        at = best - nodes
        child = at * ARITY + 1
        moves += 1
    if child < size:
        best = &nodes[child]
        for child in range(child + 1, size):
            best = _lesser(best, &nodes[child])
        pos[best.item] = <int32_t>at
        nodes[at] = best[0]
        at = best - nodes
        moves += 1
    heap.moves += moves
    if at and key_less(&moving.key, &nodes[(at - 1) // ARITY].key):
        _rise(heap, <int32_t>at, moving, pos)
        return
    nodes[at] = moving[0]
    pos[moving.item] = <int32_t>at


cdef inline void _rise(heap_t* heap, int32_t at, const node_t* moving, int32_t* pos) noexcept nogil:
    """Put a node into a free place, or as far above it as the order wants."""
    cdef int64_t moves = 1
    cdef int32_t parent
    while at:
        parent = (at - 1) // ARITY
        if not key_less(&moving.key, &heap.nodes[parent].key):
            break
        pos[heap.nodes[parent].item] = at
        heap.nodes[at] = heap.nodes[parent]
        moves += 1
        at = parent
    heap.nodes[at] = moving[0]
    pos[moving.item] = at
    heap.moves += moves
