# Ids <-> dense slots.
cimport cython
from kvcore._types cimport int64_t, slot_t, uint64_t

cdef enum:
    NO_NUMBER = -1


@cython.final
cdef class SlotTable:
    cdef dict _texts           # id that writes out no number -> slot
    cdef list _ids             # slot -> id; None: it has none, or a number that nobody has asked to see as text
    cdef int64_t* _numbers     # slot -> the number that its id writes out, or NO_NUMBER
    cdef slot_t* _free         # free slots, last freed first: a warm row is used again
    cdef slot_t _frees
    cdef slot_t _capacity      # slots that there is room for
    cdef readonly slot_t size  # slots ever made; every slot is below it
    cdef slot_t* _table        # open addressing by number; NO_SLOT: empty
    cdef int64_t _mask         # table size - 1
    cdef uint64_t _key         # of this process: numbers from outside cannot be chosen to collide
    cdef slot_t numbered       # live ids that are numbers

    cdef slot_t get(self, str id)
    cdef slot_t get_number(self, int64_t number) noexcept nogil
    cdef slot_t add(self, str id) except -1
    cdef slot_t add_number(self, int64_t number) except -1 nogil
    cdef int remove(self, slot_t slot) except -1 nogil
    cdef int remove_text(self, slot_t slot) except -1
    cdef slot_t take(self) except -1 nogil
    cdef void give_back(self, slot_t slot) noexcept nogil
    cdef str id_of(self, slot_t slot)
    cdef int64_t number_of(self, slot_t slot) noexcept nogil
    cdef slot_t count(self)
    cdef bint all_numbers(self)
    cdef list live(self)

    cdef int64_t _place(self, int64_t number) noexcept nogil
    cdef void _leave(self, int64_t number) noexcept nogil
    cdef bint _rehash(self, int64_t size) noexcept nogil


cdef int64_t number_in(str id) noexcept
