# How much younger cost has gone past each waiting request of one class.
cimport cython
from kvcore._types cimport i128, int32_t, int64_t, slot_t, uint64_t


@cython.final
cdef class Overtaking:
    cdef i128* _sums               # Fenwick tree over places: cost popped from each place
    cdef slot_t* _items            # place -> request that became ready there, NO_SLOT once it has left
    cdef int32_t _places           # capacity of both
    cdef int32_t _next             # next place; places rise in order of becoming ready
    cdef int32_t _live
    cdef int32_t* _place_of        # by item
    cdef slot_t _items_capacity

    cdef int enter(self, slot_t item) except -1 nogil
    cdef void leave(self, slot_t item) noexcept nogil
    cdef void popped(self, slot_t item, int64_t cost) noexcept nogil
    cdef int pass_all(self, i128 cost) except -1 nogil
    cdef i128 overtaken(self, slot_t item) noexcept nogil
    cdef slot_t next_from(self, int32_t* place) noexcept nogil

    cdef int _renumber(self) except -1 nogil
    cdef void _add(self, int32_t place, i128 cost) noexcept nogil
    cdef i128 _up_to(self, int32_t place) noexcept nogil
