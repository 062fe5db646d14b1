# What would happen to a request if it arrived now.
cimport cython
from kvcore._admission cimport Admission
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._placement cimport Placement
from kvcore._requests cimport RequestTable
from kvcore._tables cimport Tables
from kvcore._types cimport int64_t, ns_t, slot_t, uint64_t
from kvcore.request cimport Request


@cython.final
cdef class Forecast:
    cdef RequestTable _requests
    cdef Backlog _backlog
    cdef Placement _placement
    cdef Admission _admission
    cdef Dispatcher _dispatcher
    cdef Tables _tables
    cdef int64_t _block_size

    cdef object answer(self, Request request, ns_t now_ns)
    cdef object potential_loads(self, Request request, ns_t now_ns)

    cdef bint _runs(self, slot_t slot, Request request) except -1
    cdef object _answer(self, slot_t slot, Request request)
