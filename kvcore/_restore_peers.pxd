# Other replicas out of a snapshot, with their bookings.
cimport cython
from kvcore._exchange cimport Exchange
from kvcore._fleet cimport Fleet
from kvcore._frame cimport SnapshotFrame
from kvcore._policies cimport Policies
from kvcore._types cimport slot_t


@cython.final
cdef class PeerReader:
    cdef SnapshotFrame _frame
    cdef Fleet _fleet
    cdef Exchange _exchange
    cdef Policies _policies
    cdef dict _coming              # (rank, place) -> a booking whose turn has not come
    cdef dict _prefilling          # rank -> bookings that prefill there so far

    cdef int take(self) except -1
    cdef int make_way(self, slot_t rank) except -1
    cdef int finish(self) except -1

    cdef tuple _take_peer(self)
    cdef list _take_attempts(self)
    cdef int _take_booking(self) except -1
    cdef tuple _take_path(self)
    cdef tuple _take_runs(self, Py_ssize_t length)
    cdef int _book_next(self, slot_t rank) except -1
