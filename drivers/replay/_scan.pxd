# The fast way through the plainest rows, for C.
from libc.stdint cimport int64_t, uint64_t

cdef enum plain_kind_t:
    NOT_PLAIN                   # every line goes to the parser
    PLAIN_JSON                  # of Mooncake
    PLAIN_WALL                  # CSV of a date and time, prompt_tokens, output_tokens
    PLAIN_SECONDS               # CSV of seconds, prompt_tokens, output_tokens

cdef struct shape_t:
    int64_t trace_block_size    # a multiple of block_size
    int64_t block_size
    int64_t names_max           # a row of more blocks is not plain

cdef struct plain_t:
    int64_t time_ns
    int64_t prompt_tokens
    int64_t output_tokens
    uint64_t *ids               # given: room for ids_max
    int64_t n_ids


cdef inline int64_t ids_max(Py_ssize_t size) noexcept nogil:
    """No id is shorter than "0,": so many fit into a line of this size."""
    return size // 2 + 1


# Whether these bytes, behind which stands a zero byte or a newline, are a plain row of this kind; its facts.
cdef bint scan_row(
    plain_kind_t kind, const char *at, Py_ssize_t size, const shape_t *shape, plain_t *row) noexcept nogil
