# A snapshot: the whole of a scheduler as bytes. This module writes it, _restore and _restore_requests read it.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._drr cimport PolicyQueue
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._policies cimport Policies
from kvcore._prefix cimport PrefixIndex
from kvcore._requests cimport RequestTable
from kvcore._types cimport int32_t, ns_t, slot_t
from kvcore._wire cimport buffer_t


@cython.final
cdef class SnapshotWriter:
    cdef RequestTable _requests
    cdef Backlog _backlog
    cdef PolicyQueue _queue
    cdef Fleet _fleet
    cdef Inspector _inspector
    cdef Dispatcher _dispatcher
    cdef Lifecycle _lifecycle
    cdef Policies _policies
    cdef buffer_t _buffer
    cdef int32_t* _order           # by request slot: place among the live requests by id

    cdef bytes write(self, object config, object profile, ns_t now_ns, str digest)

    cdef int _put_json(self, object value) except -1
    cdef int _put_counters(self) except -1
    cdef int _put_classes(self) except -1
    cdef int _put_workers(self) except -1
    cdef int _put_worker(self, slot_t slot) except -1
    cdef int _put_blocks(self, PrefixIndex index, slot_t slot) except -1
    cdef int _put_predicted(self, slot_t slot) except -1
    cdef int _put_requests(self) except -1
    cdef int _put_request(self, slot_t slot) except -1
    cdef int _put_bookings(self) except -1
    cdef int _put_loads(self) except -1
    cdef int _put_ages(self) except -1
