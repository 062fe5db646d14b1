# Back from a snapshot: see _snapshot for what stands where.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._drr cimport PolicyQueue, class_t
from kvcore._fleet cimport Fleet
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._policies cimport Policies
from kvcore._prefix cimport PrefixIndex
from kvcore._requests cimport RequestTable
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, uint64_t
from kvcore._wire cimport reader_t


cdef struct use_t:
    # The last use of a predicted block.
    ns_t used_ns
    int64_t order          # in which it was read: tells equal times apart
    uint64_t hash
    slot_t rank


@cython.final
cdef class SnapshotReader:
    cdef bytes _data               # what is read
    cdef reader_t _reader
    cdef object config
    cdef object profile
    cdef ns_t now_ns
    cdef int64_t _block_size
    cdef RequestTable _requests
    cdef Backlog _backlog
    cdef PolicyQueue _queue
    cdef Fleet _fleet
    cdef Inspector _inspector
    cdef Dispatcher _dispatcher
    cdef Lifecycle _lifecycle
    cdef Policies _policies
    cdef use_t* _uses              # of predicted blocks, in the order in which they were read
    cdef int64_t _uses_size
    cdef int64_t _uses_room
    cdef set _seqs                 # taken by requests
    cdef dict _waiting             # slot -> its timers; those that have not found their place yet
    cdef list _started             # (progress_ns, attempt, slot, attempts, accepted, state)

    cdef int fill(self, Lifecycle lifecycle) except -1

    cdef object _take_json(self, object kind)
    cdef ns_t _take_past(self) except? -1
    cdef ns_t _take_due(self) except? -1
    cdef int _take_numbers(self) except -1
    cdef int _take_counters(self) except -1
    cdef int _take_classes(self) except -1
    cdef int _take_window(self, class_t* ring) except -1
    cdef int _take_workers(self) except -1
    cdef int _take_worker(self) except -1
    cdef int _take_marks(self, uint64_t worker_id, int64_t incarnation) except -1
    cdef int _take_loss(self, slot_t rank) except -1
    cdef int _take_blocks(self, PrefixIndex index, slot_t rank) except -1
    cdef int _take_uses(self, slot_t rank) except -1
    cdef int _predict(self) except -1
    cdef int _take_requests(self) except -1
    cdef slot_t _take_request(self) except -1
    cdef int _take_row(self, slot_t slot) except -1
    cdef int _take_grace(self, slot_t slot) except -1
    cdef int _take_key(self, slot_t slot) except -1
    cdef int _start(self) except -1
    cdef int _take_bookings(self) except -1
    cdef int _take_booking(self, slot_t slot) except -1
    cdef int _take_loads(self) except -1
    cdef int _take_ages(self) except -1
    cdef int _wait(self, slot_t slot, tuple timers) except -1
