# The door: context-free checks of a batch of events.
from kvcore._types cimport int64_t, ns_t

cdef int accept(tuple events, ns_t last_ns, int64_t block_size) except -1
