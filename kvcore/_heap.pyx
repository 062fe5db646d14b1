"""Indexed 4-ary heap: push, look at the first, remove any item by its number, each O(log n).

Owns nothing but the algorithm: heap_t is embedded by its users, positions live in the user's pos[item] array. It knows
no request, class or event. Four children per node: half the depth of a binary heap, and the children of a node lie in
two cache lines.

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


cdef int heap_reserve(heap_t* heap, int32_t size) except -1 nogil:
    """Make room for `size` items, so that pushing up to there cannot fail. Raises MemoryError before any change."""
    cdef int32_t capacity = heap.capacity * 2 if heap.capacity else 4
    if size <= heap.capacity:
        return 0
    capacity = max(size, capacity)
    resize(<void**>&heap.nodes, capacity * sizeof(node_t))
    heap.capacity = capacity
    return 0


cdef int heap_push(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) except -1 nogil:
    """Add an item that is not in the heap. Raises MemoryError before any change."""
    heap_reserve(heap, heap.size + 1)
    heap.nodes[heap.size].key = key[0]
    heap.nodes[heap.size].item = item
    heap.size += 1
    _sift_up(heap, heap.size - 1, pos)
    return 0


cdef void heap_remove(heap_t* heap, slot_t item, int32_t* pos) noexcept nogil:
    """Take an item out that is in the heap."""
    cdef int32_t hole = pos[item]
    cdef int32_t last = heap.size - 1
    heap.size = last
    if hole == last:
        return
    heap.nodes[hole] = heap.nodes[last]
    pos[heap.nodes[hole].item] = hole
    if hole and key_less(&heap.nodes[hole].key, &heap.nodes[(hole - 1) // ARITY].key):
        _sift_up(heap, hole, pos)
    else:
        _sift_down(heap, hole, pos)


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


cdef void _sift_up(heap_t* heap, int32_t at, int32_t* pos) noexcept nogil:
    cdef node_t moving = heap.nodes[at]
    cdef int32_t parent
    while at:
        parent = (at - 1) // ARITY
        if not key_less(&moving.key, &heap.nodes[parent].key):
            break
        heap.nodes[at] = heap.nodes[parent]
        pos[heap.nodes[at].item] = at
        heap.moves += 1
        at = parent
    heap.nodes[at] = moving
    pos[moving.item] = at
    heap.moves += 1


cdef void _sift_down(heap_t* heap, int32_t at, int32_t* pos) noexcept nogil:
    cdef node_t moving = heap.nodes[at]
    cdef int32_t child, best, end
    while True:
        child = at * ARITY + 1
        if child >= heap.size:
            break
        end = min(child + ARITY, heap.size)
        best = child
        child += 1
        while child < end:
            if key_less(&heap.nodes[child].key, &heap.nodes[best].key):
                best = child
            child += 1
        if not key_less(&heap.nodes[best].key, &moving.key):
            break
        heap.nodes[at] = heap.nodes[best]
        pos[heap.nodes[at].item] = at
        heap.moves += 1
        at = best
    heap.nodes[at] = moving
    pos[moving.item] = at
    heap.moves += 1
