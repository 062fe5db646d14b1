# A fleet of modelled workers, for those that turn its facts into something else than events.
cimport cython
from libc.stdint cimport int32_t, int64_t

from kvcore.drivers.replay._plan cimport fact_t, model_t, worker_t

#: Facts that are kept before they are told, not counting those of the boundary that reaches it.
cdef enum:
    FACTS_MAX = 4096

cdef struct end_t:              # a boundary that has been passed
    int64_t at_ns
    int32_t worker
    int32_t last                # its facts end before this one


@cython.final
cdef class Fleet:
    cdef model_t m
    cdef worker_t *w
    cdef int32_t n
    cdef int32_t *order         # heap of workers by (next_ns, worker)
    cdef int32_t *place         # of each worker in it
    cdef end_t *ends            # boundaries passed whose facts have not been told yet
    cdef int32_t n_ends, end_rows
    cdef bint passing           # in advance(), perhaps without the GIL
    cdef int64_t now_ns         # latest time seen
    cdef int64_t kv_blocks
    # What only submit(), cancel(), advance() and finished() know; whoever uses take(), start() and stop() does not.
    cdef dict live              # request_id -> sequence
    cdef list ids               # sequence -> request_id, or None
    cdef list hashes            # sequence -> its block_hashes
    cdef list done              # finished()

    cdef int32_t take(
        self, str name, int64_t worker, int64_t attempt, int64_t prompt_tokens, int64_t output_tokens, int64_t hashes,
        int64_t now_ns) except -1
    cdef int start(self, int32_t s, int64_t now_ns) except -1
    cdef int stop(self, int32_t s, int64_t now_ns) except -1
    cdef int _pass(self, int64_t now_ns, int32_t facts) except -1 nogil

    cdef int _check_owner(self) except -1
    cdef int _check_time(self, int64_t now_ns) except -1
    cdef int _collect(self, list events) except -1
    cdef int _tell(self, end_t end, int32_t first, list events) except -1
    cdef object _removed(self, int32_t worker, int64_t now_ns, fact_t *fact)
    cdef object _stored(self, int32_t worker, int64_t now_ns, int32_t i, int32_t last)
    cdef void _reorder(self, int32_t worker) noexcept nogil
    cdef bint _before(self, int32_t a, int32_t b) noexcept nogil
