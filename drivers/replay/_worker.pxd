# One modelled worker: sequences in, facts out. Its state is the worker_t of _plan.pxd.
from libc.stdint cimport int32_t, int64_t

from kvcore.drivers.replay._plan cimport model_t, worker_t

cdef enum:                      # kinds of fact_t, in the order of delivery
    REMOVED, STORED, PREFILLED, GREW, FINISHED

cdef int worker_open(worker_t *w, int32_t blocks) except -1
cdef void worker_close(worker_t *w) noexcept nogil
cdef int worker_submit(model_t *m, worker_t *w, int32_t s, int64_t now_ns) except -1 nogil
cdef int worker_cancel(model_t *m, worker_t *w, int32_t s, int64_t now_ns) except -1 nogil
cdef int64_t worker_pass(model_t *m, worker_t *w) except -1 nogil
