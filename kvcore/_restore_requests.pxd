# Requests out of a snapshot, with all that is about them.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._drr cimport PolicyQueue
from kvcore._fleet cimport Fleet
from kvcore._frame cimport SnapshotFrame
from kvcore._lifecycle cimport Lifecycle
from kvcore._policies cimport Policies
from kvcore._requests cimport RequestTable
from kvcore._restore_peers cimport PeerReader
from kvcore._types cimport int64_t, slot_t


@cython.final
cdef class RequestReader:
    cdef SnapshotFrame _frame
    cdef RequestTable _requests
    cdef Backlog _backlog
    cdef PolicyQueue _queue
    cdef Fleet _fleet
    cdef Dispatcher _dispatcher
    cdef Policies _policies
    cdef PeerReader _peers
    cdef set _seqs                 # taken by requests
    cdef dict _waiting             # slot -> its timers; those that have not found their place yet
    cdef list _started             # (progress_ns, attempt, slot, attempts, accepted, state)

    cdef int fill(self, int64_t block_size) except -1

    cdef slot_t _take_request(self, int64_t block_size) except -1
    cdef int _take_row(self, slot_t slot) except -1
    cdef int _take_grace(self, slot_t slot) except -1
    cdef int _take_key(self, slot_t slot) except -1
    cdef int _start(self) except -1
    cdef int _take_bookings(self) except -1
    cdef int _take_booking(self, slot_t slot) except -1
    cdef int _take_loads(self) except -1
    cdef int _take_ages(self) except -1
    cdef int _wait(self, slot_t slot, tuple timers) except -1
