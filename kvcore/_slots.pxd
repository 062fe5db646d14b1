# Ids <-> dense slots.
cimport cython
from cpython.ref cimport PyObject
from kvcore._types cimport int64_t, slot_t, uint64_t

cdef enum:
    NO_NUMBER = -1


cdef enum id_kind_t:
    ID_NONE                    # the slot is free, or was taken without an id
    ID_NUMBER                  # the id writes out a number
    ID_TEXT


cdef struct id_t:
    int64_t key                # the number, or the hash of the text
    PyObject* text             # owned; of ID_NUMBER what somebody has asked to see, of this id or of an earlier one
    id_kind_t kind


@cython.final
cdef class SlotTable:
    cdef id_t* _ids            # by slot
    cdef slot_t* _free         # free slots, last freed first: a warm row is used again
    cdef slot_t _frees
    cdef slot_t _capacity      # slots that there is room for
    cdef readonly slot_t size  # slots ever made; every slot is below it
    cdef slot_t* _table        # open addressing by key; NO_SLOT: empty
    cdef int64_t _mask         # table size - 1
    cdef uint64_t _key         # of this process: numbers from outside cannot be chosen to collide
    cdef slot_t _numbers       # live ids that are numbers
    cdef slot_t _texts         # live ids that are not

    cdef slot_t get(self, str id) noexcept
    cdef slot_t get_number(self, int64_t number) noexcept nogil
    cdef slot_t add(self, str id) except -1
    cdef slot_t add_number(self, int64_t number) except -1 nogil
    cdef int remove(self, slot_t slot) except -1 nogil
    cdef int remove_held(self, slot_t slot) except -1
    cdef slot_t take(self) except -1 nogil
    cdef void give_back(self, slot_t slot) noexcept nogil
    cdef str id_of(self, slot_t slot)
    cdef int64_t number_of(self, slot_t slot) noexcept nogil
    cdef slot_t count(self)
    cdef bint all_numbers(self)
    cdef list live(self)

    cdef int _reserve(self) except -1 nogil
    cdef int64_t _home(self, const id_t* id) noexcept nogil
    cdef int64_t _place_of_number(self, int64_t number) noexcept nogil
    cdef int64_t _place_of_text(self, str id, int64_t hashed) noexcept
    cdef void _leave(self, slot_t slot) noexcept nogil
    cdef bint _rehash(self, int64_t size) noexcept nogil


cdef int64_t number_in(str id) noexcept
