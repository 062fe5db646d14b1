# Requests and the admission policies of their classes: decided at arrival, held back, released.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._endings cimport Endings
from kvcore._fleet cimport Fleet
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport slot_t, tokens_t
from kvcore.request cimport Rank, Request


cdef enum entry_t:
    ENTRY_STORE            # it may queue
    ENTRY_DEFER            # it is to be held back
    ENTRY_ENDED            # it has been rejected


@cython.final
cdef class Admission:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Backlog _backlog
    cdef Endings _endings
    cdef Policies _policies

    cdef entry_t arrive(self, slot_t slot, list out) except *
    cdef object rehearse(self, slot_t slot)
    cdef int release(self, slot_t slot, Rank rank, bint by_hand, list out) except -1
    cdef int decide_anew(self, slot_t slot, list out) except -1
    cdef int hear(self, slot_t slot) except -1
    cdef int advance_context(self, slot_t slot, tokens_t tokens) except -1
    cdef int deliver(self, list out) except -1
    cdef bint deliver_all(self, list out) except -1
    cdef int on_time(self, list out) except -1

    cdef object _view(self, slot_t slot, Request request)
    cdef entry_t _carry_out(self, slot_t slot, object decision, list out) except *
    cdef bint pin(self, slot_t slot, Rank rank) except -1
    cdef int _release_all(self, slot_t class_index, list answers, list out) except -1
