# Reading where requests stand and why. It changes nothing.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._decisions cimport DecisionRing
from kvcore._dispatch cimport Dispatcher
from kvcore._fleet cimport Fleet
from kvcore._obstacles cimport Obstacles
from kvcore._placement cimport Placement
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._types cimport int64_t, ns_t, slot_t
from kvcore.explanation cimport Explanation, QueueEntry


@cython.final
cdef class Explainer:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef Backlog _backlog
    cdef Policies _policies
    cdef DecisionRing _ring            # None: no decisions are kept
    cdef Obstacles _obstacles
    cdef ns_t _ttl_ns                  # of bookings, NEVER_NS: none
    cdef list _names                   # of the classes in force
    cdef list _bounds                  # their max_overtake_tokens

    cdef int adopt(self, object profile) except -1
    cdef Explanation explain(self, str request_id)
    cdef tuple queue_dump(self, int64_t limit)
    cdef tuple decisions(self)

    cdef Explanation _without_row(self, str request_id)
    cdef int _tell_identity(self, slot_t slot, Explanation told) except -1
    cdef int _tell_place(self, slot_t slot, Explanation told) except -1
    cdef int _tell_price(self, slot_t slot, Explanation told) except -1
    cdef int _tell_run(self, slot_t slot, Explanation told) except -1
    cdef list _why(self, slot_t slot, Explanation told)
    cdef int _why_waiting(self, slot_t slot, Explanation told, list reasons) except -1
    cdef int _why_not(self, slot_t slot, str whose, list reasons) except -1
    cdef str _why_grace(self, slot_t slot)
    cdef str _why_running(self, slot_t slot)
    cdef QueueEntry _entry(self, slot_t slot)
    cdef tuple _key(self, slot_t slot)
