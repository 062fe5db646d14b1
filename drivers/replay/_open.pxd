# Arrivals at the times of the trace, for the loop over rows.
cimport cython
from libc.stdint cimport int64_t

from kvcore.drivers.replay._packed cimport PackedRow
from kvcore.drivers.replay._window cimport Feed


@cython.final
cdef class OpenRows:
    cdef Feed feed
    cdef object paths, ratio
    cdef int64_t kv_tokens
    cdef bint skip_unfit, scaled
    cdef readonly int64_t unfit
    cdef PackedRow row              # the next one; None: there is none
    cdef int64_t next_ns            # when it is due

    cdef PackedRow take_row(self)

    cdef PackedRow _fitting(self)
    cdef int _read(self) except -1
