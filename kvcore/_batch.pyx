"""Batch: steps of a whole array of events (records), one after the other, with the interpreter lock released.

Owns the arguments of the present call. A row is applied here if all that it needs is numbers; else it is put aside, to
be applied as an event object, by the same code as `step` (`aside`). Either way what it leads to is decided before the
next row, as if each had been stepped by itself.

Never here: what an event means for a request; Lifecycle and Arrivals know.
"""
import numpy

from libc.math cimport floor
from libc.stdlib cimport free
from kvcore._prefix cimport PrefixIndex
from kvcore._requests cimport plain_t
from kvcore._types cimport DEBUG_CHECKS, FRACTION_ONE, NEVER_NS, NO_SLOT, resize, uint64_t
from kvcore.records cimport (
    EVENT_ACCEPTED, EVENT_ARRIVED, EVENT_BLOCKS_REMOVED, EVENT_BLOCKS_STORED, EVENT_CANCELLED, EVENT_CONTEXT_ADVANCED,
    EVENT_FAILED, EVENT_FINISHED, EVENT_OUTPUT_BLOCK_ADDED, EVENT_PREFILL_COMPLETED, EVENT_TIMER, memory_of)

from kvcore.records import EVENT_DTYPE


cdef class Batch:
    def __cinit__(self, Lifecycle lifecycle not None, Arrivals arrivals not None, Settler settler not None,
                  Outbox outbox not None):
        self._requests = lifecycle.requests
        self._fleet = lifecycle.fleet
        self._backlog = lifecycle.backlog
        self._inspector = lifecycle.inspector
        self._policies = lifecycle.policies
        self._lifecycle = lifecycle
        self._arrivals = arrivals
        self._settler = settler
        self._outbox = outbox

    def __dealloc__(self):
        free(<void*>self.given.name_numbers)

    cdef int begin(self, object events, object hashes, object names) except -1:
        """Look at the arguments of step_array. Raises TypeError or ValueError for what they cannot be."""
        if not isinstance(events, numpy.ndarray) or events.dtype != EVENT_DTYPE or events.ndim != 1:
            raise TypeError("records must be a one-dimensional numpy array of EVENT_DTYPE")
        if hashes is not None:
            hashes = numpy.ascontiguousarray(hashes, numpy.uint64)
            if hashes.ndim != 1:
                raise TypeError("hashes must be a one-dimensional numpy array of uint64")
        names = tuple(names)
        for name in names:
            if type(name) is not str:
                raise TypeError(f"names must hold text, not {name!r}")
            name.encode()                      # UnicodeEncodeError is a ValueError
        events = numpy.ascontiguousarray(events)
        self._kept = (events, hashes)
        self.take(<const event_record_t*>memory_of(events), len(events), NULL, 0)
        if hashes is not None:
            self.given.hashes = <const uint64_t*>memory_of(hashes)
            self.given.hash_count = len(hashes)
        return self.learn(names)

    cdef int learn(self, tuple names) except -1:
        """The names of policy classes that rows count from 1, from now on."""
        cdef int32_t* numbers
        cdef int32_t i
        resize(<void**>&self.given.name_numbers, max(1, len(names)) * sizeof(int32_t))
        numbers = <int32_t*>self.given.name_numbers
        for i in range(<int32_t>len(names)):
            numbers[i] = self._requests.name_number(names[i])
        self.names = names
        self.given.names = <int32_t>len(names)
        self._backlog.classes.learn(self._requests.names)
        return 0

    cdef void take(self, const event_record_t* events, int64_t count, const uint64_t* hashes, int64_t size) noexcept:
        """The rows of the present call."""
        self.given.events = events
        self.given.count = count
        self.given.hashes = hashes
        self.given.hash_count = size

    cdef int end(self) except -1:
        self._kept = None
        self.names = ()
        self.given.names = 0
        self.take(NULL, 0, NULL, 0)
        return 0

    cdef int play(self, list out, aside_t aside, void* owner) except -1 nogil:
        """Step all rows, which have been checked."""
        cdef int64_t i
        for i in range(self.given.count):
            self._outbox.event = i
            self._backlog.begin_batch()
            if not self._apply(&self.given.events[i], out):
                aside(owner, i)
            self._settler.settle(out)
            self._backlog.park(self._outbox)
            if DEBUG_CHECKS:
                aside(owner, -1)
        return 0

    cdef int apply_all(self, list out, aside_t aside, void* owner) except -1 nogil:
        """Apply all rows of one batch, of which nothing is decided before the last."""
        cdef int64_t i
        self._arrivals.alone = self.given.count == 1
        for i in range(self.given.count):
            self._outbox.event = i
            if not self._apply(&self.given.events[i], out):
                aside(owner, i)
        return 0

    cdef bint _apply(self, const event_record_t* record, list out) except -1 nogil:
        """Apply one row. False: it has to be put aside, and nothing has changed."""
        cdef int kind = record.kind
        cdef int32_t weight = -1
        cdef slot_t slot
        if self._policies.any or kind == EVENT_FAILED or self._lifecycle.first_due_ns() <= record.now_ns:
            return False
        self._fleet.advance(record.now_ns)
        if kind == EVENT_ARRIVED:
            return self._arrive(record, out)
        if kind == EVENT_TIMER:
            return True
        if kind == EVENT_BLOCKS_STORED or kind == EVENT_BLOCKS_REMOVED:
            if not self._fleet.indexed:
                return True
            with gil:
                return self._store(record)
        slot = self._requests.ids.get_number(record.request)
        if kind == EVENT_CANCELLED:
            if slot != NO_SLOT:
                self._lifecycle.cancel(slot)
                return True
        elif kind == EVENT_FINISHED:
            slot = self._requests.with_attempt(slot, record.attempt)
            if slot != NO_SLOT:
                self._lifecycle.finish(
                    slot, not record.aborted, record.context_tokens if record.context_tokens else -1)
                return True
        else:
            slot = self._lifecycle.running(slot, record.attempt)
            if slot == NO_SLOT:
                pass
            elif kind == EVENT_OUTPUT_BLOCK_ADDED:
                if record.decays:
                    weight = <int32_t>floor(record.decay_fraction * FRACTION_ONE + 0.5)
                self._lifecycle.add_output(slot, weight)
                return True
            elif kind == EVENT_PREFILL_COMPLETED:
                if self._lifecycle.complete_prefill(slot):
                    return True
            elif kind == EVENT_ACCEPTED:
                if self._lifecycle.accept(slot):
                    return True
            elif kind == EVENT_CONTEXT_ADVANCED:
                self._lifecycle.progress(slot)
                self._requests.rows[slot].context = max(self._requests.rows[slot].context, record.context_tokens)
                return True
        self._inspector.stale += 1
        self._outbox.ignore(record.request, 0 if kind == EVENT_CANCELLED else record.attempt)
        return True

    cdef bint _arrive(self, const event_record_t* record, list out) except -1 nogil:
        cdef plain_t plain
        plain.prompt = record.prompt_tokens
        plain.priority_jump = record.priority_jump
        plain.expected = record.expected_output_tokens if record.expected_output_tokens else -1
        plain.deadline_ns = record.deadline_ns if record.deadline_ns else NEVER_NS
        plain.strict_priority = record.strict_priority
        plain.class_name = self.given.name_numbers[record.policy_class - 1] if record.policy_class else -1
        plain.track_prefill = not record.untracked
        plain.do_not_queue = record.do_not_queue
        return self._arrivals.arrive_plainly(
            record.request, &plain, self.given.hashes + record.first_hash if record.hashes else NULL, record.hashes,
            out)

    cdef bint _store(self, const event_record_t* record) except -1:
        """An engine has cached or dropped blocks. False: not on a rank that is the current one."""
        cdef const uint64_t* blocks = self.given.hashes + record.first_hash
        cdef slot_t rank = self._fleet.workers.told_rank(record.worker_id, record.dp_rank, record.incarnation)
        cdef PrefixIndex index = self._fleet.tier(record.tier)
        if rank == NO_SLOT:
            return False
        if record.kind == EVENT_BLOCKS_STORED:
            index.add_all(blocks, record.hashes, rank)
        else:
            index.remove_all(blocks, record.hashes, rank)
        return True
