# The one end of every request.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport slot_t
from kvcore.actions cimport Reject


@cython.final
cdef class Endings:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Inspector _inspector
    cdef Policies _policies

    cdef int reject(self, slot_t slot, Reject action, list out) except -1
    cdef int complete(self, slot_t slot) except -1 nogil
    cdef int abort(self, slot_t slot) except -1 nogil

    cdef int _tell_completed(self, slot_t slot) except -1
    cdef int _give_up(self, slot_t slot) except -1 nogil
    cdef int _close(self, slot_t slot) except -1 nogil
