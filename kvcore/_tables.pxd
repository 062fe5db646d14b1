# Loads and potential loads as numpy arrays.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._placement cimport Placement
from kvcore._types cimport slot_t
from kvcore.request cimport Request


@cython.final
cdef class Tables:
    cdef Fleet _fleet
    cdef Placement _placement

    cdef object loads(self)
    cdef object potential_loads(self, slot_t slot, Request request)
