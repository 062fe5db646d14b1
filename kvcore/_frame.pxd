# What stands around the content of a snapshot, and how single values in it are read.
cimport cython
from kvcore._types cimport ns_t
from kvcore._wire cimport buffer_t, reader_t

cdef enum:
    VERSION = 1
    DIGEST_BYTES = 16


cdef int put_head(buffer_t* buffer) except -1
cdef bytes sealed(const buffer_t* buffer)


@cython.final
cdef class SnapshotFrame:
    cdef bytes data                # all of it
    cdef reader_t reader           # of the content; it moves on
    cdef ns_t now_ns               # of the state, as soon as that is known

    cdef object take_json(self, object kind)
    cdef ns_t take_past(self) except? -1
    cdef ns_t take_due(self) except? -1
