# The physical lines of an opened file, one at a time, for readers that look at their bytes in place.
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class LineReader:
    cdef str file
    cdef object readline, long_first, fault
    cdef tuple faults
    cdef int64_t limit, document_max
    cdef object ask                 # what readline is asked for
    cdef bint ended
    cdef readonly int64_t number    # of the line in hand, from 1
    cdef bytes line                 # in hand
    cdef const char *at             # its bytes without the blanks around
    cdef Py_ssize_t size
    cdef str reason                 # why there is none; None: there is one

    cdef bint next_line(self) except -1
    cdef object content(self)
    cdef object address(self)

    cdef bint _next(self) except -1
    cdef int _lengthen(self) except -1
    cdef int _strip(self) noexcept
