# A fleet of modelled workers.
from libc.stdint cimport int32_t, int64_t

from kvcore.drivers.replay._plan cimport fact_t, model_t, worker_t
from kvcore.events cimport BlocksRemoved, BlocksStored


cdef class Fleet:
    cdef model_t m
    cdef worker_t *w
    cdef int32_t n
    cdef int32_t *order         # heap of workers by (next_ns, worker)
    cdef int32_t *place         # of each worker in it
    cdef int64_t now_ns         # latest time seen
    cdef int64_t kv_blocks
    cdef dict live              # request_id -> sequence
    cdef list ids               # sequence -> request_id, or None
    cdef list hashes            # sequence -> its block_hashes
    cdef list done              # finished()

    cpdef object submit(
        self, int64_t worker, str request_id, int64_t attempt, int64_t prompt_tokens, int64_t output_tokens,
        tuple block_hashes, int64_t now_ns,
    )
    cpdef bint cancel(self, str request_id, int64_t now_ns) except -1
    cdef int64_t next_at(self) noexcept
    cpdef list advance(self, int64_t now_ns)
    cpdef list finished(self)
    cdef int _check_time(self, int64_t now_ns) except -1
    cdef int _collect(self, int32_t worker, int64_t now_ns, list events) except -1
    cdef BlocksRemoved _removed(self, int32_t worker, int64_t now_ns)
    cdef BlocksStored _stored(self, int32_t worker, int64_t now_ns, int32_t i)
    cdef void _reorder(self, int32_t worker) noexcept
    cdef bint _before(self, int32_t a, int32_t b) noexcept
