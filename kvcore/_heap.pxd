# Indexed 4-ary heap over small items: a struct and free functions. Whoever embeds a heap_t owns its memory and a
# position array pos[item], so that any item is removed in O(log n) without a search.
from kvcore._types cimport int32_t, int64_t, slot_t, uint32_t, uint64_t


cdef struct key_t:
    # Total order, smaller first: (tier, first, second, seq). seq is unique, so equal keys do not exist.
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
    if a.tier != b.tier:
        return a.tier < b.tier
    if a.first != b.first:
        return a.first < b.first
    if a.second != b.second:
        return a.second < b.second
    return a.seq < b.seq


cdef void heap_init(heap_t* heap) noexcept nogil
cdef void heap_free(heap_t* heap) noexcept nogil
cdef int heap_reserve(heap_t* heap, int32_t size) except -1 nogil
cdef int heap_push(heap_t* heap, const key_t* key, slot_t item, int32_t* pos) except -1 nogil
cdef bint heap_holds(const heap_t* heap, const int32_t* pos) noexcept nogil
cdef void heap_remove(heap_t* heap, slot_t item, int32_t* pos) noexcept nogil
cdef int32_t heap_before(const heap_t* heap, const key_t* key, int32_t most) noexcept nogil
