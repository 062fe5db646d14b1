# Back from a snapshot: see _snapshot for what stands where.
cimport cython
from kvcore._backlog cimport Backlog
from kvcore._dispatch cimport Dispatcher
from kvcore._drr cimport PolicyQueue, class_t
from kvcore._fleet cimport Fleet
from kvcore._frame cimport SnapshotFrame
from kvcore._inspect cimport Inspector
from kvcore._lifecycle cimport Lifecycle
from kvcore._policies cimport Policies
from kvcore._prefix cimport PrefixIndex
from kvcore._types cimport int64_t, ns_t, slot_t, uint64_t


cdef struct use_t:
    # The last use of a predicted block.
    ns_t used_ns
    int64_t order          # in which it was read: tells equal times apart
    uint64_t hash
    slot_t rank


# What comes of bytes that are no snapshot, also out of admission policies that are told to take over such a state.
cdef tuple DAMAGE


@cython.final
cdef class SnapshotReader:
    cdef SnapshotFrame _frame
    cdef object config
    cdef object profile
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

    cdef int fill(self, Lifecycle lifecycle) except -1
    cdef int check(self, list faults, bytes snapshot) except -1

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
