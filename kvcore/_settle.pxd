# Decisions: who that waits may go, until nobody may.
cimport cython
from kvcore._admission cimport Admission
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._endings cimport Endings
from kvcore._fleet cimport Fleet
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport slot_t


@cython.final
cdef class Settler:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Backlog _backlog
    cdef Dispatcher _dispatcher
    cdef Endings _endings
    cdef Admission _admission
    cdef Policies _policies

    cdef int settle(self, list out) except -1 nogil

    cdef int _refuse(self, slot_t slot, list out) except -1
