"""Outbox: the actions of a step on their way out, in order: a list of Action objects, or rows (records).

Owns both. Whoever words an action that is rare appends it to the list of the step. The frequent ones are told here by
what they consist of, so that no object is made where rows are wanted: what the list holds then becomes rows before the
next row (`settle`), so the order is that of the list.

Never here: what an action says.
"""
import numpy

from cpython.ref cimport PyObject
from libc.string cimport memcpy, memset
from kvcore.actions cimport make_park
from kvcore.records cimport ACTION_DISPATCH, ACTION_IGNORED, ACTION_PARK, action_record_t, fill_action, memory_of

from kvcore.actions import IgnoredReason, ParkReason
from kvcore.records import ACTION_DTYPE

cdef extern from "Python.h":
    ctypedef struct PyVarObject
    Py_ssize_t list_size "PyList_GET_SIZE"(void* list) noexcept nogil
    PyObject* PyList_GET_ITEM(list items, Py_ssize_t i) noexcept
    tuple new_tuple "PyTuple_New"(Py_ssize_t size)
    void PyTuple_SET_ITEM(tuple items, Py_ssize_t i, PyObject* item) noexcept
    void Py_SET_SIZE(PyVarObject* items, Py_ssize_t size) noexcept

cdef enum:
    MOVED_MAX = 64                             # above, the list gives its memory back
    KEPT_MAX = 1024                            # rows whose memory is kept from call to call

cdef tuple NOTHING = ()
cdef object QUEUED = ParkReason.QUEUED
cdef object DEFERRED = ParkReason.DEFERRED
cdef unsigned char QUEUED_VALUE = ParkReason.QUEUED
cdef unsigned char DEFERRED_VALUE = ParkReason.DEFERRED
cdef unsigned char STALE_VALUE = IgnoredReason.STALE


cdef class Outbox:
    def __cinit__(self, RequestTable requests not None, WorkerTable workers not None):
        self._requests = requests
        self._workers = workers
        self.actions = []

    cdef void begin(self) noexcept:
        """A step begins whose actions are wanted as objects."""
        self.recording = False

    cdef tuple taken(self):
        """The objects; the list is empty again."""
        cdef Py_ssize_t size = list_size(<void*>self.actions)
        cdef Py_ssize_t i
        cdef tuple actions = NOTHING
        if size > MOVED_MAX:
            actions = tuple(self.actions)
            self.actions.clear()
        elif size:
            actions = new_tuple(size)
            for i in range(size):              # the list's references become the tuple's; its memory stays for the next
                PyTuple_SET_ITEM(actions, i, PyList_GET_ITEM(self.actions, i))
            Py_SET_SIZE(<PyVarObject*>self.actions, 0)
        return actions

    cdef int begin_records(self, int64_t expected) except -1:
        """Steps begin whose actions are wanted as rows: about so many."""
        self.recording = True
        self.size = 0
        if expected <= KEPT_MAX:
            return self._grow(64) if self._table is None else 0
        self._room = 0
        self._table = None
        return self._grow(expected)

    cdef int begin_rows(self) except -1:
        """A step begins whose actions are wanted as rows, until the next one: in the memory of the last one."""
        self.recording = True
        self.size = 0
        return self._grow(64) if self._table is None else 0

    cdef int64_t rows(self, const action_record_t** first) except -1:
        """How many rows there are, and where."""
        self.settle()
        first[0] = self._records
        return self.size

    cdef int _grow(self, int64_t room) except -1:
        """Rows in an array of so many."""
        table = numpy.empty(room, ACTION_DTYPE)
        records = <action_record_t*>memory_of(table)
        if self.size:
            memcpy(records, self._records, self.size * sizeof(action_record_t))
        self._records = records
        self._table = table
        self._room = room
        return 0

    cdef int dispatch(self, slot_t slot, slot_t rank, const choice_t* choice, ns_t wait_ns) except -1 nogil:
        """A Dispatch of a request that has been booked."""
        cdef action_record_t* record
        if not self.recording:
            with gil:
                self.actions.append(dispatch_of(self._requests, self._workers, slot, rank, choice, wait_ns))
            return 0
        record = self._next()
        record.kind = ACTION_DISPATCH
        record.request = self._requests.ids.number_of(slot)
        record.attempt = self._requests.rows[slot].attempt
        record.worker_id = self._workers.ranks[rank].worker_id
        record.dp_rank = self._workers.ranks[rank].dp_rank
        record.class_index = self._requests.rows[slot].class_index
        record.overlap_blocks = choice.overlap_blocks
        record.cached_tokens = choice.cached_tokens
        record.prefill_tokens = choice.prefill_tokens
        record.potential_decode_blocks = choice.potential_decode_blocks
        record.wait_ns = wait_ns
        return 0

    cdef int park(self, slot_t slot, bint deferred) except -1 nogil:
        """A Park of a request that waits."""
        cdef action_record_t* record
        if not self.recording:
            with gil:
                self.actions.append(make_park(
                    self._requests.ids.id_of(slot), self._requests.rows[slot].class_index,
                    DEFERRED if deferred else QUEUED))
            return 0
        record = self._next()
        record.kind = ACTION_PARK
        record.reason = DEFERRED_VALUE if deferred else QUEUED_VALUE
        record.request = self._requests.ids.number_of(slot)
        record.class_index = self._requests.rows[slot].class_index
        return 0

    cdef int ignore(self, int64_t request, int64_t attempt) except -1 nogil:
        """An Ignored for a stale fact about a handle. Rows only."""
        cdef action_record_t* record = self._next()
        record.kind = ACTION_IGNORED
        record.reason = STALE_VALUE
        record.request = request
        record.attempt = attempt
        return 0

    cdef int settle(self) except -1:
        """Make rows of what the list holds."""
        for action in self.taken():
            fill_action(self._next(), action)
        return 0

    cdef object table(self):
        """All rows, in an array of their own; the memory of few is kept for the next."""
        cdef bint many = self._room > KEPT_MAX
        self.settle()
        if many and 2 * self.size > self._room:    # a part of an array keeps the whole of it alive
            table = self._table[:self.size]
        else:
            table = numpy.empty(self.size, ACTION_DTYPE)
            memcpy(memory_of(table), self._records, self.size * sizeof(action_record_t))
        if many:
            self._table = None
        return table

    cdef action_record_t* _next(self) except NULL nogil:
        """A blank row behind all that has been told so far."""
        cdef action_record_t* record
        if list_size(<void*>self.actions):
            with gil:
                self.settle()
        if self.size == self._room:
            with gil:
                self._grow(2 * self._room)
        record = &self._records[self.size]
        memset(record, 0, sizeof(action_record_t))
        record.event = self.event
        self.size += 1
        return record


cdef Dispatch dispatch_of(
        RequestTable requests, WorkerTable workers, slot_t slot, slot_t rank, const choice_t* choice, ns_t wait_ns):
    """The Dispatch of a request to a rank, with the attempt that its row names."""
    cdef Dispatch action = Dispatch.__new__(Dispatch)
    action.request_id = requests.ids.id_of(slot)
    action.attempt = requests.rows[slot].attempt
    action.worker_id = workers.ranks[rank].worker_id
    action.dp_rank = workers.ranks[rank].dp_rank
    action.class_index = requests.rows[slot].class_index
    action.overlap_blocks = choice.overlap_blocks
    action.cached_tokens = choice.cached_tokens
    action.prefill_tokens = choice.prefill_tokens
    action.potential_decode_blocks = choice.potential_decode_blocks
    action.wait_ns = wait_ns
    return action
