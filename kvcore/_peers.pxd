# What is known of the bookings of other replicas: which are live here and under which slot, which are over.
cimport cython
from kvcore._types cimport int64_t, slot_t


cdef enum known_t:
    PEER_UNKNOWN           # never heard of
    PEER_LIVE              # booked here too
    PEER_ADRIFT            # live at its replica, as far as one can tell, but its rank is not here
    PEER_OVER              # released, for good


@cython.final
cdef class Peer:
    # One replica. Attempts below `floor` are known, and over unless they are live or adrift.
    cdef readonly str name
    cdef readonly int64_t generation   # the newest that has been heard of
    cdef readonly bint lost
    cdef readonly int64_t floor
    cdef readonly dict live            # attempt -> slot of its booking
    cdef readonly set adrift           # attempts
    cdef readonly set over             # attempts from `floor` on that are over: tombstones
    cdef readonly set prefilled        # attempts, unknown or adrift, whose prefill has been completed


@cython.final
cdef class PeerBoard:
    cdef dict _peers                   # name -> Peer
    cdef dict _owners                  # slot -> (Peer, attempt) of every live booking

    cdef Peer hear(self, str name, int64_t generation, list ended)
    cdef bint lose(self, str name, int64_t generation, list ended) except -1
    cdef known_t known(self, Peer peer, int64_t attempt) except *
    cdef bint book(self, Peer peer, int64_t attempt, slot_t slot) except -1
    cdef int strand(self, Peer peer, int64_t attempt, bint prefilled) except -1
    cdef bint note_prefilled(self, Peer peer, int64_t attempt) except -1
    cdef bint release(self, Peer peer, int64_t attempt, list ended) except -1
    cdef int begin_sync(self, Peer peer, int64_t next_attempt, set named, list ended) except -1
    cdef int end_sync(self, Peer peer, int64_t next_attempt) except -1

    cdef Peer find(self, str name)
    cdef tuple owner(self, slot_t slot)
    cdef Py_ssize_t bookings(self)
    cdef Py_ssize_t count(self)
    cdef bint heard_of_any(self)
    cdef list live(self)
    cdef list dump(self)
    cdef int load(self, list rows) except -1
    cdef list faults(self)

    cdef int _end_all(self, Peer peer, list ended) except -1
    cdef int _raise_floor(self, Peer peer) except -1
