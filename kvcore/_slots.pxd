# id <-> dense slot.
cimport cython
from kvcore._types cimport slot_t


@cython.final
cdef class SlotTable:
    cdef dict _slots           # id -> slot
    cdef list _ids             # slot -> id, None while it has none
    cdef list _free            # free slots, last freed first: a warm row is used again
    cdef readonly slot_t size  # slots ever made; every slot is below it

    cdef slot_t get(self, object id)
    cdef slot_t add(self, object id) except -1
    cdef int remove(self, slot_t slot) except -1
    cdef slot_t take(self) except -1
    cdef int give_back(self, slot_t slot) except -1
    cdef object id_of(self, slot_t slot)
    cdef slot_t count(self)
    cdef list live(self)
