# Indexed 4-ary heap over small items: a struct and free functions. Whoever embeds a heap_t owns its memory and a
# position array pos[item], so that any item is removed in O(log n) without a search.
from kvcore._types cimport int32_t, int64_t, slot_t, u128, uint32_t, uint64_t


cdef packed struct key_t:
    # Total order, smaller first: (tier, first, second, seq). seq is unique, so equal keys do not exist. Packed, so that
    # a node takes 32 bytes and two of its children share a cache line.
    uint64_t first
    uint64_t second
    uint64_t seq
    uint32_t tier


cdef struct node_t:
    key_t key
    slot_t item


cdef struct heap_t:
    node_t* nodes          # NULL until the first push
    int32_t size
    int32_t capacity
    int64_t moves          # nodes moved since the heap was made: the counter that complexity tests assert


cdef inline bint key_less(const key_t* a, const key_t* b) noexcept nogil:
    # Which of two keys is less cannot be predicted, whether their scores differ can: only that is a branch.
    if a.first != b.first:
        return (<u128>a.tier << 64 | a.first) < (<u128>b.tier << 64 | b.first)
    if a.tier != b.tier:
        return a.tier < b.tier
    return (<u128>a.second << 64 | a.seq) < (<u128>b.second << 64 | b.seq)


cdef void heap_init(heap_t* heap) noexcept nogil
cdef void heap_free(heap_t* heap) noexcept nogil
cdef int heap_grow(heap_t* heap, int32_t size) except -1 nogil
cdef int heap_push(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) except -1 nogil
cdef void heap_update(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) noexcept nogil
cdef bint heap_holds(const heap_t* heap, const int32_t* pos) noexcept nogil
cdef void heap_remove(heap_t* heap, slot_t item, int32_t* pos) noexcept nogil
cdef int32_t heap_before(const heap_t* heap, const key_t* key, int32_t most) noexcept nogil


cdef inline int heap_reserve(heap_t* heap, int32_t size) except -1 nogil:
    """Make room for `size` items, so that pushing up to there cannot fail. Raises MemoryError before any change."""
    return 0 if size <= heap.capacity else heap_grow(heap, size)


cdef inline void heap_begin(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) noexcept nogil:
    """heap_push into an empty heap that has room."""
    heap.nodes[0].key = key[0]
    heap.nodes[0].item = item
    heap.size = 1
    heap.moves += 1
    pos[item] = 0
