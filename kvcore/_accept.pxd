# The door: context-free checks of a batch of events.
from kvcore._policies cimport Policies
from kvcore._types cimport int64_t, ns_t
from kvcore.request cimport Request

cdef list accept(tuple events, ns_t last_ns, int64_t block_size, Policies policies)
cdef list accept_one(object event, Py_ssize_t index, ns_t last_ns, int64_t block_size, Policies policies)
cdef int accept_request(Request request, int64_t block_size) except -1
