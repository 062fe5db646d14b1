# A row of a trace on its way through a replay: TraceRow with its names as C numbers.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvcore.drivers.replay.rows cimport TraceRow


@cython.final
cdef class PackedRow:
    cdef int64_t arrival_ns, prompt_tokens, output_tokens, strict_priority, file_index, row
    cdef double priority
    cdef str session_id, policy_class
    cdef object delay_ns
    cdef tuple after
    cdef uint64_t *names            # NULL: none
    cdef int64_t n_names

    cdef TraceRow unpacked(self)


cdef PackedRow packed(TraceRow row)
