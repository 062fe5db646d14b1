# Another policy in the place of the one in force.
cimport cython
from kvcore._admission cimport Admission
from kvcore._backlog cimport Backlog
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport slot_t


# The distinct pairs of busy thresholds of a profile, and by class the number of its pair, None where it has none.
cdef tuple threshold_pairs(object profile)


@cython.final
cdef class Reload:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Backlog _backlog
    cdef Inspector _inspector
    cdef Admission _admission
    cdef Policies _policies

    cdef int replace(self, object before, object profile, list built, list out) except -1

    cdef list _by_seq(self, list slots)
    cdef int _rearrange(self, list waiting, list deferred) except -1
