# C layout of the row in rows.py, with the same fields in the same order.
cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class TraceRow:
    cdef readonly int64_t arrival_ns
    cdef readonly int64_t prompt_tokens
    cdef readonly int64_t output_tokens
    cdef readonly tuple block_hashes           # of int
    cdef readonly str session_id               # or None
    cdef readonly object delay_ns              # int or None
    cdef readonly double priority              # seconds
    cdef readonly int64_t strict_priority
    cdef readonly str policy_class             # or None
    cdef readonly int64_t file_index
    cdef readonly int64_t row
    cdef readonly tuple after                  # of int, or None
