"""RequestTable: every live request, from arrival to its one end.

Owns id and row of each request, its state, the C copy of its block path, and the orders that time cares about:
timers of requests that do not run yet (indexed heaps), and bookings by their last progress (a list: the time to live
is the same for all, so the one that progressed longest ago is due first).

Never here: queue order (_lanes), load (_ledger), decisions.

Invariants: a row is live iff its id is in `ids`; a timer is in its heap iff its due_ns is not NEVER_NS, and then the
row waits, is deferred or refreshing; exactly the running and evicted rows of a timed table are in the list, whose
progress_ns never falls from oldest to newest, equal ones by attempt.
"""
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from kvcore._heap cimport heap_free, heap_init, heap_push, heap_remove, heap_reserve, key_t
from kvcore._types cimport NEVER_NS, NO_SLOT, ceil_div, read_uint64, resize
from kvcore.request cimport Request, prompt_blocks

cdef extern from "Python.h":
    Py_ssize_t PyTuple_GET_SIZE(object items) noexcept
    PyObject* PyTuple_GET_ITEM(object items, Py_ssize_t i) noexcept


cdef class RequestTable:
    def __cinit__(self, bint timed):
        """timed: bookings expire, so that the order of their last progress matters."""
        cdef int timer
        self._timed = timed
        self.ids = SlotTable()
        self.names = []
        self._name_numbers = {}
        for timer in range(TIMERS):
            heap_init(&self._timers[timer])
        self._oldest = NO_SLOT
        self._newest = NO_SLOT

    def __dealloc__(self):
        cdef slot_t slot
        cdef int timer
        for slot in range(self._capacity):
            free(self.rows[slot].path)
            Py_XDECREF(self._requests[slot])
        free(self.rows)
        free(self._requests)
        for timer in range(TIMERS):
            free(self._timer_pos[timer])
            heap_free(&self._timers[timer])

    cdef slot_t find(self, str request_id) noexcept:
        """Row of a live request, or NO_SLOT."""
        return self.ids.get(request_id)

    cdef slot_t find_attempt(self, str request_id, int64_t attempt) noexcept:
        """Row of a running or evicted request whose present attempt this is, or NO_SLOT."""
        return self.with_attempt(self.ids.get(request_id), attempt)

    cdef slot_t with_attempt(self, slot_t slot, int64_t attempt) noexcept nogil:
        """That row if it is running or evicted and this is its present attempt, else NO_SLOT."""
        if slot == NO_SLOT or self.rows[slot].attempt != attempt or self.rows[slot].state < STATE_RUNNING:
            return NO_SLOT
        return slot

    cdef Request request(self, slot_t slot):
        """The Request of a live row, made now if it has come as a record. None: it has ended."""
        if self.rows[slot].lazy:
            self._keep(slot, self._made(slot))
            self.rows[slot].lazy = False
        return None if self._requests[slot] == NULL else <Request>self._requests[slot]

    cdef Request _made(self, slot_t slot):
        cdef request_t* row = &self.rows[slot]
        cdef int32_t i
        return Request(
            self.ids.id_of(slot), row.prompt, None if row.class_name < 0 else self.names[row.class_name],
            row.strict_priority, row.priority_jump, None if row.deadline_ns == NEVER_NS else row.deadline_ns,
            row.do_not_queue, block_hashes=tuple([row.path[i] for i in range(row.path_length)]),
            expected_output_tokens=None if row.expected < 0 else row.expected, track_prefill=row.track_prefill)

    cdef int32_t name_number(self, str policy_class) except -1:
        """The number of a class's name in `names`, now and ever."""
        number = self._name_numbers.get(policy_class)
        if number is None:
            number = len(self.names)
            self.names.append(policy_class)
            self._name_numbers[policy_class] = number
        return number

    cdef int replace(self, slot_t slot, Request request) except -1:
        """More has become known of a live request: the same id, prompt, deadline and blocks."""
        self._keep(slot, request)
        _look_at(&self.rows[slot], request)
        return 0

    cdef void _keep(self, slot_t slot, Request request) noexcept:
        """The Request of a row from now on."""
        cdef PyObject* before = self._requests[slot]
        Py_INCREF(request)
        self._requests[slot] = <PyObject*>request
        Py_XDECREF(before)

    cdef slot_t open(self, Request request, ns_t now_ns, int64_t block_size) except -1:
        """A row for a request whose id is not live; state FREE until the owner stores it.

        Makes room and copies the path first, so that a MemoryError leaves nothing behind.
        """
        cdef uint64_t* path = _copied(request.block_hashes, request.sequence_hashes)
        cdef slot_t slot
        try:
            self._grow(self.ids.size + 1)
            slot = self.ids.add(request.request_id)
        except MemoryError:
            free(path)
            raise
        self._fill(slot, request, path, now_ns, block_size)
        return slot

    cdef slot_t open_unnamed(self, Request request, ns_t now_ns, int64_t block_size) except -1:
        """A row that no id finds, for a request that is only thought of."""
        cdef uint64_t* path = _copied(request.block_hashes, request.sequence_hashes)
        cdef slot_t slot
        try:
            self._grow(self.ids.size + 1)
            slot = self.ids.take()
        except MemoryError:
            free(path)
            raise
        self._fill(slot, request, path, now_ns, block_size)
        return slot

    cdef slot_t open_number(
            self, int64_t number, const plain_t* plain, const uint64_t* hashes, int32_t length, ns_t now_ns,
            int64_t block_size) except -1 nogil:
        """`open` for a request that has come as a record; its id writes out the number and is not live."""
        cdef uint64_t* path = NULL
        cdef request_t* row
        cdef slot_t slot
        self._grow(self.ids.size + 1)
        if length:
            path = <uint64_t*>malloc(length * sizeof(uint64_t))
            if path == NULL:
                with gil:
                    raise MemoryError("request path")
            memcpy(path, hashes, length * sizeof(uint64_t))
        slot = self.ids.add_number(number)
        row = &self.rows[slot]
        row.lazy = True
        row.constrained = False
        row.special = False
        row.prompt = plain.prompt
        row.priority_jump = plain.priority_jump
        row.expected = plain.expected
        row.strict_priority = plain.strict_priority
        row.class_name = plain.class_name
        row.deadline_ns = plain.deadline_ns
        row.track_prefill = plain.track_prefill
        row.do_not_queue = plain.do_not_queue
        self._begin(slot, path, length, now_ns, block_size)
        return slot

    cdef int _fill(self, slot_t slot, Request request, uint64_t* path, ns_t now_ns, int64_t block_size) except -1:
        """The row of a request that has come as a Request."""
        cdef request_t* row = &self.rows[slot]
        self._keep(slot, request)
        row.lazy = False
        row.prompt = request.prompt_tokens
        row.priority_jump = request.priority_jump
        row.expected = -1 if request.expected_output_tokens is None else request.expected_output_tokens
        row.strict_priority = request.strict_priority
        row.class_name = -1
        row.deadline_ns = NEVER_NS if request.deadline_ns is None else request.deadline_ns
        row.track_prefill = request.track_prefill
        row.do_not_queue = request.do_not_queue
        _look_at(row, request)
        self._begin(slot, path, <int32_t>len(request.block_hashes), now_ns, block_size)
        if request.sequence_hashes is not None:
            row.sequence = path + row.path_length
            row.sequence_length = <int32_t>len(request.sequence_hashes)
            row.outside = prompt_blocks(row.prompt, block_size) - row.sequence_length
        return 0

    cdef void _begin(
            self, slot_t slot, uint64_t* path, int32_t length, ns_t now_ns, int64_t block_size) noexcept nogil:
        """What is the same for every request that has just arrived."""
        cdef request_t* row = &self.rows[slot]
        cdef int timer
        row.state = STATE_FREE
        row.pin = NO_SLOT
        row.keeps_pin = False
        row.class_index = -1
        row.arrival_ns = now_ns
        for timer in range(TIMERS):
            row.due_ns[timer] = NEVER_NS
        row.seq = 0
        row.known_ns = now_ns
        row.ticket = 0
        row.context = -1
        row.policy = NO_SLOT
        row.heard = False
        row.attempt = 0
        row.attempts = 0
        row.accepted = False
        self._serial += 1
        row.serial = self._serial
        row.path = path
        row.path_length = length
        row.sequence = path
        row.sequence_length = <int32_t>min(<int64_t>length, row.prompt // block_size)
        row.outside = prompt_blocks(row.prompt, block_size) - row.sequence_length
        row.reserve = 0 if row.expected < 0 else ceil_div(row.expected, block_size)

    cdef int close(self, slot_t slot) except -1 nogil:
        """The request has ended: the row is free, its id may be used again."""
        cdef request_t* row = &self.rows[slot]
        if row.state >= STATE_RUNNING:
            self._unlink(slot)
        else:
            self.stop_waiting(slot)
        row.state = STATE_FREE
        if row.path != NULL:
            free(row.path)
            row.path = NULL
        if not row.lazy:
            with gil:
                return self._close_held(slot)
        row.lazy = False
        return self.ids.remove(slot)

    cdef int _close_held(self, slot_t slot) except -1:
        """What of the end of a request needs the interpreter's lock."""
        cdef PyObject* request = self._requests[slot]
        self._requests[slot] = NULL
        self.ids.remove_held(slot)
        Py_XDECREF(request)
        return 0

    cdef slot_t lend(self, tuple sequence, int64_t attempt) except -1:
        """A slot for a booking that belongs to no request of ours: no id finds it, and its row stays FREE.

        Only the names of its blocks and its attempt are kept there.
        """
        cdef request_t* row
        cdef uint64_t* path
        cdef slot_t slot
        self._grow(self.ids.size + 1)
        path = _copied(sequence, None)
        try:
            slot = self.ids.take()
        except MemoryError:
            free(path)
            raise
        row = &self.rows[slot]
        row.policy = NO_SLOT                       # a reload looks at every row
        row.attempt = attempt
        row.path = path
        row.path_length = <int32_t>len(sequence)
        row.sequence = path
        row.sequence_length = row.path_length
        return slot

    cdef int take_back(self, slot_t slot) except -1:
        """The booking in a lent slot has been released."""
        free(self.rows[slot].path)
        self.rows[slot].path = NULL
        self.ids.give_back(slot)
        return 0

    cdef int wait(self, slot_t slot, state_t state, uint64_t seq) except -1 nogil:
        """A request does not run yet, in this state; of its timers the deadline runs. seq: its place in time."""
        cdef request_t* row = &self.rows[slot]
        row.seq = seq
        self.set_timer(slot, TIMER_DEADLINE, row.deadline_ns)
        row.state = state
        self.refreshing += state == STATE_REFRESHING
        return 0

    cdef int set_timer(self, slot_t slot, timer_t timer, ns_t due_ns) except -1 nogil:
        """When a timer of a request is due from now on; NEVER_NS: it does not run. O(log timers)."""
        cdef request_t* row = &self.rows[slot]
        cdef key_t key
        if row.due_ns[<int>timer] == due_ns:
            return 0
        heap_reserve(&self._timers[<int>timer], self._timers[<int>timer].size + 1)
        if row.due_ns[<int>timer] != NEVER_NS:
            heap_remove(&self._timers[<int>timer], slot, self._timer_pos[<int>timer])
        row.due_ns[<int>timer] = due_ns
        if due_ns != NEVER_NS:
            key.tier = 0
            key.first = due_ns
            key.second = 0
            key.seq = row.seq
            heap_push(&self._timers[<int>timer], &key, slot, self._timer_pos[<int>timer])
        return 0

    cdef void stop_waiting(self, slot_t slot) noexcept nogil:
        """No timer of it runs any more; state FREE until the owner says otherwise."""
        cdef request_t* row = &self.rows[slot]
        cdef int timer
        for timer in range(TIMERS):
            if row.due_ns[timer] != NEVER_NS:
                heap_remove(&self._timers[timer], slot, self._timer_pos[timer])
                row.due_ns[timer] = NEVER_NS
        self.refreshing -= row.state == STATE_REFRESHING
        row.state = STATE_FREE

    cdef int start_running(self, slot_t slot, int64_t attempt, ns_t now_ns) except -1 nogil:
        """The waiting request has been booked."""
        self.stop_waiting(slot)
        self.rows[slot].state = STATE_RUNNING
        self.rows[slot].attempt = attempt
        self.rows[slot].attempts += 1
        self.rows[slot].accepted = False
        self._link(slot, now_ns)
        return 0

    cdef void stop_running(self, slot_t slot) noexcept nogil:
        """The booking, or the eviction, is over and the request goes on; state FREE until the owner stores it."""
        self._unlink(slot)
        self.rows[slot].state = STATE_FREE

    cdef list in_state(self, state_t state):
        """Slots of live requests in a state. O(live requests)."""
        cdef slot_t slot
        return [slot for slot in range(self.ids.size) if self.rows[slot].state == state]

    cdef void touch(self, slot_t slot, ns_t now_ns) noexcept nogil:
        """Progress of a running request, or its eviction: its timer starts again."""
        self._unlink(slot)
        self._link(slot, now_ns)

    cdef ns_t first_timer_ns(self, timer_t timer) noexcept nogil:
        """When a timer of this kind is next due; NEVER_NS: none runs."""
        return <ns_t>self._timers[<int>timer].nodes[0].key.first if self._timers[<int>timer].size else NEVER_NS

    cdef ns_t first_of_all_ns(self) noexcept nogil:
        """When a timer of any kind is next due; NEVER_NS: none runs."""
        cdef ns_t due_ns = NEVER_NS
        cdef int timer
        for timer in range(TIMERS):
            if self._timers[timer].size:
                due_ns = min(due_ns, <ns_t>self._timers[timer].nodes[0].key.first)
        return due_ns

    cdef slot_t first_timer(self, timer_t timer) noexcept nogil:
        """Row of the timer of this kind that is due first; among equal times the one that was stored first."""
        return self._timers[<int>timer].nodes[0].item

    cdef ns_t first_progress_ns(self) noexcept nogil:
        """Progress time of the timer that is due first, NEVER_NS if none runs."""
        return NEVER_NS if self._oldest == NO_SLOT else self.rows[self._oldest].progress_ns

    cdef slot_t first_progress(self) noexcept nogil:
        """Row of the timer that is due first; among equal times the lowest attempt."""
        return self._oldest

    cdef void _link(self, slot_t slot, ns_t now_ns) noexcept nogil:
        """Insert from the young end: facts come in order of time and mostly of attempt, so O(1) but for ties."""
        cdef slot_t before = self._newest
        cdef request_t* row = &self.rows[slot]
        row.progress_ns = now_ns
        if not self._timed:
            return
        while before != NO_SLOT and self._is_later(before, row):
            before = self.rows[before].older
        row.older = before
        row.newer = self._oldest if before == NO_SLOT else self.rows[before].newer
        if row.newer == NO_SLOT:
            self._newest = slot
        else:
            self.rows[row.newer].older = slot
        if before == NO_SLOT:
            self._oldest = slot
        else:
            self.rows[before].newer = slot

    cdef bint _is_later(self, slot_t slot, const request_t* row) noexcept nogil:
        cdef request_t* other = &self.rows[slot]
        return other.progress_ns > row.progress_ns or (
            other.progress_ns == row.progress_ns and other.attempt > row.attempt)

    cdef void _unlink(self, slot_t slot) noexcept nogil:
        cdef request_t* row = &self.rows[slot]
        if not self._timed:
            return
        if row.older == NO_SLOT:
            self._oldest = row.newer
        else:
            self.rows[row.older].newer = row.newer
        if row.newer == NO_SLOT:
            self._newest = row.older
        else:
            self.rows[row.newer].older = row.older

    cdef int _grow(self, slot_t slots) except -1 nogil:
        cdef slot_t capacity = max(slots, 2 * self._capacity, 16)
        cdef slot_t slot
        cdef int timer
        if slots <= self._capacity:
            return 0
        resize(<void**>&self._requests, capacity * sizeof(void*))
        for timer in range(TIMERS):
            resize(<void**>&self._timer_pos[timer], capacity * sizeof(int32_t))
        resize(<void**>&self.rows, capacity * sizeof(request_t))
        for slot in range(self._capacity, capacity):
            self.rows[slot].path = NULL
            self.rows[slot].state = STATE_FREE
            self.rows[slot].lazy = False
            self._requests[slot] = NULL
        self._capacity = capacity
        return 0


cdef int _look_at(request_t* row, Request request) except -1:
    """What of a request needs a look at the Request itself."""
    row.constrained = (
        request.pinned is not None or request.allowed_workers is not None or len(request.required_taints) > 0)
    row.special = request.overlap is not None or request.weights is not None or len(request.preferred_taints) > 0
    return 0


cdef uint64_t* _copied(tuple blocks, tuple extra) except? NULL:
    """The hashes of one or two tuples behind each other; NULL if there are none."""
    cdef Py_ssize_t size = len(blocks) + (0 if extra is None else len(extra))
    cdef uint64_t* path
    if size == 0:
        return NULL
    path = <uint64_t*>malloc(size * sizeof(uint64_t))
    if path == NULL:
        raise MemoryError("request path")
    _copy(blocks, path)
    if extra is not None:
        _copy(extra, path + len(blocks))
    return path


cdef void _copy(tuple blocks, uint64_t* path) noexcept:
    """The hashes of a tuple, which have been checked."""
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(blocks)):
        read_uint64(PyTuple_GET_ITEM(blocks, i), &path[i])
