# Which ranks a request may use. Reads the fleet and live requests; writes nothing but its scratch memory.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._requests cimport RequestTable
from kvcore._types cimport ns_t, slot_t
from kvcore.request cimport Request


@cython.final
cdef class Eligible:
    cdef Fleet _fleet
    cdef RequestTable _requests
    cdef slot_t* ranks             # of the request in question; whoever filters them writes here, too
    cdef slot_t _room

    cdef bint gone(self, slot_t rank) noexcept
    cdef bint fits(self, Request request, slot_t worker) except -1
    cdef bint allows(self, Request request, slot_t rank) except -1
    cdef bint allows_live(self, slot_t slot, slot_t rank) except -1
    cdef slot_t find(self, Request request, slot_t pin) except -1
    cdef slot_t find_live(self, slot_t slot) except -1
    cdef bint in_grace(self, Request request, ns_t arrival_ns) except -1
    cdef int reserve(self) except -1 nogil


cdef inline bint constrained(Request request):
    """Whether allow-list or taints leave a request without a pin only some ranks."""
    return request.allowed_workers is not None or len(request.required_taints) > 0
