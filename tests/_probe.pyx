"""Doors for tests to compiled internals: containers, requests, taints, workers, keys. Never shipped.

A door converts and does nothing else: NO_SLOT becomes None, C rows become tuples.
"""
from libc.stdlib cimport free, malloc
from kvcore._heap cimport (
    heap_before, heap_free, heap_init, heap_push, heap_remove, heap_reserve, heap_t, heap_update, key_less, key_t,
    node_t)
from kvcore._keys cimport fill_key, order_named
from kvcore._requests cimport STATE_EVICTED, STATE_WAITING, TIMER_DEADLINE, TIMER_LOOK, RequestTable, request_t
from kvcore._slots cimport NO_NUMBER, SlotTable, number_in
from kvcore._taints cimport TaintTable
from kvcore._types cimport NEVER_NS, NO_SLOT, int32_t, int64_t, ns_t, slot_t, uint32_t, uint64_t
from kvcore._workers cimport WorkerTable, worker_t
from kvcore.request cimport (
    Request, WorkerConfig, effective_cached_tokens, prefill_delta, prompt_blocks)


cdef object or_none(slot_t slot):
    return None if slot == NO_SLOT else slot


cdef key_t key_of(tuple key):
    cdef key_t row
    row.tier, row.first, row.second, row.seq = key
    return row


cdef tuple tuple_of(const key_t* key):
    return (key.tier, key.first, key.second, key.seq)


def number_from(str id):
    """number_in; None: it writes out no number."""
    cdef int64_t number = number_in(id)
    return None if number == NO_NUMBER else number


cdef class Slots:
    """SlotTable."""

    cdef SlotTable table

    def __cinit__(self):
        self.table = SlotTable()

    @property
    def size(self):
        return self.table.size

    def get(self, id):
        return or_none(self.table.get(id))

    def add(self, id):
        return self.table.add(id)

    def add_number(self, int64_t number):
        return self.table.add_number(number)

    def get_number(self, int64_t number):
        return or_none(self.table.get_number(number))

    def all_numbers(self):
        return self.table.all_numbers()

    def remove(self, slot_t slot):
        self.table.remove(slot)

    def id_of(self, slot_t slot):
        return self.table.id_of(slot)

    def count(self):
        return self.table.count()

    def live(self):
        return self.table.live()


cdef class Heap:
    """heap_t with room for a number of items. Keys are tuples (tier, first, second, seq)."""

    cdef heap_t heap
    cdef int32_t* pos

    def __cinit__(self, int32_t items):
        heap_init(&self.heap)
        self.pos = <int32_t*>malloc(items * sizeof(int32_t))

    def __dealloc__(self):
        heap_free(&self.heap)
        free(self.pos)

    @property
    def size(self):
        return self.heap.size

    @property
    def capacity(self):
        return self.heap.capacity

    @property
    def moves(self):
        return self.heap.moves

    def reserve(self, int32_t size):
        heap_reserve(&self.heap, size)

    def push(self, slot_t item, tuple key):
        cdef key_t row = key_of(key)
        heap_push(&self.heap, &row, item, self.pos)

    def update(self, slot_t item, tuple key):
        cdef key_t row = key_of(key)
        heap_update(&self.heap, &row, item, self.pos)

    def remove(self, slot_t item):
        heap_remove(&self.heap, item, self.pos)

    def first(self):
        """(key, item) of the root, or None."""
        if self.heap.size == 0:
            return None
        return tuple_of(&self.heap.nodes[0].key), self.heap.nodes[0].item

    def before(self, tuple key, int32_t most):
        cdef key_t row = key_of(key)
        return heap_before(&self.heap, &row, most)

    def nodes(self):
        """(key, item, position on record) of every node, in heap order."""
        cdef int32_t i
        return [(tuple_of(&self.heap.nodes[i].key), self.heap.nodes[i].item, self.pos[self.heap.nodes[i].item])
                for i in range(self.heap.size)]


def node_size():
    """Bytes."""
    return sizeof(node_t)


def less(tuple first, tuple second):
    """key_less of two keys."""
    cdef key_t a = key_of(first)
    cdef key_t b = key_of(second)
    return bool(key_less(&a, &b))


cdef class Requests:
    """RequestTable."""

    cdef RequestTable table

    def __cinit__(self, bint timed=True):
        self.table = RequestTable(timed)

    def find(self, str request_id):
        return or_none(self.table.find(request_id))

    def find_attempt(self, str request_id, int64_t attempt):
        return or_none(self.table.find_attempt(request_id, attempt))

    def open(self, Request request, ns_t now_ns, int64_t block_size):
        return self.table.open(request, now_ns, block_size)

    def close(self, slot_t slot):
        self.table.close(slot)

    def request(self, slot_t slot):
        return self.table.request(slot)

    def open_unnamed(self, Request request, ns_t now_ns, int64_t block_size):
        return self.table.open_unnamed(request, now_ns, block_size)

    def start_waiting(self, slot_t slot, uint64_t seq, look_ns=None):
        self.table.wait(slot, STATE_WAITING, seq)
        self.look_again(slot, look_ns)

    def look_again(self, slot_t slot, look_ns=None):
        self.table.set_timer(slot, TIMER_LOOK, NEVER_NS if look_ns is None else look_ns)

    def first_look(self):
        """(time, slot) of the look that is due first, or None."""
        cdef ns_t look_ns = self.table.first_timer_ns(TIMER_LOOK)
        return None if look_ns == NEVER_NS else (look_ns, self.table.first_timer(TIMER_LOOK))

    def start_running(self, slot_t slot, int64_t attempt, ns_t now_ns):
        self.table.start_running(slot, attempt, now_ns)

    def evict(self, slot_t slot, ns_t at_ns):
        self.table.rows[slot].state = STATE_EVICTED
        self.table.touch(slot, at_ns)

    def touch(self, slot_t slot, ns_t now_ns):
        self.table.touch(slot, now_ns)

    def first_deadline(self):
        """(time, slot) of the deadline that is due first, or None."""
        cdef ns_t due_ns = self.table.first_timer_ns(TIMER_DEADLINE)
        return None if due_ns == NEVER_NS else (due_ns, self.table.first_timer(TIMER_DEADLINE))

    def first_progress(self):
        """(time, slot) of the timer that is due first, or None."""
        cdef ns_t progress_ns = self.table.first_progress_ns()
        return None if progress_ns == NEVER_NS else (progress_ns, self.table.first_progress())

    def timers(self):
        """Slots from oldest to newest timer; the way back is checked."""
        cdef slot_t slot = self.table._oldest
        cdef slot_t before = NO_SLOT
        found = []
        while slot != NO_SLOT:
            assert self.table.rows[slot].older == before
            found.append(slot)
            before = slot
            slot = self.table.rows[slot].newer
        assert self.table._newest == before
        return found

    def row(self, slot_t slot):
        """The C row as a dict."""
        cdef request_t* row = &self.table.rows[slot]
        cdef int32_t i
        return {
            "pin": or_none(row.pin), "class_index": row.class_index, "prompt": row.prompt, "attempt": row.attempt,
            "arrival_ns": row.arrival_ns, "deadline_ns": None if row.deadline_ns == NEVER_NS else row.deadline_ns,
            "track_prefill": bool(row.track_prefill), "outside": row.outside, "reserve": row.reserve,
            "progress_ns": row.progress_ns, "serial": row.serial,
            "path": [row.path[i] for i in range(row.path_length)],
            "sequence": [row.sequence[i] for i in range(row.sequence_length)],
        }


cdef class Taints:
    """TaintTable."""

    cdef TaintTable table

    def __cinit__(self):
        self.table = TaintTable()

    def acquire(self, frozenset taints):
        return self.table.acquire(taints)

    def release(self, slot_t number):
        self.table.release(number)

    def size(self):
        return self.table.size()

    def taints_of(self, slot_t number):
        return self.table.taints_of(number)

    def satisfying(self, frozenset required):
        """Numbers of the sets that hold every required taint."""
        cdef const unsigned char* fits = self.table.satisfying(required)
        cdef slot_t number
        return [number for number in range(self.table.size()) if fits[number]]


cdef class Workers:
    """WorkerTable."""

    cdef WorkerTable table

    def __cinit__(self):
        self.table = WorkerTable()

    @property
    def ranks_size(self):
        return self.table.ranks_size

    def count(self):
        return self.table.count()

    def find(self, worker_id):
        return or_none(self.table.find(worker_id))

    def find_rank(self, worker_id, uint32_t dp_rank):
        return or_none(self.table.find_rank(worker_id, dp_rank))

    def add_worker(self, WorkerConfig config, int64_t incarnation):
        """With its taints."""
        cdef slot_t worker = self.table.add_worker(config, incarnation)
        self.table.set_taints(worker, config.taints)
        return worker

    def set_taints(self, slot_t worker, frozenset taints):
        self.table.set_taints(worker, taints)

    def taints_of(self, slot_t worker):
        return self.table.taints.taints_of(self.table.workers[worker].taints)

    def taint_sets(self):
        """Numbers of taint sets ever made."""
        return self.table.taints.size()

    def remove_worker(self, slot_t worker):
        self.table.remove_worker(worker)

    def add_rank(self, slot_t worker, uint32_t dp_rank):
        return self.table.add_rank(worker, dp_rank)

    def remove_rank(self, slot_t rank):
        self.table.remove_rank(rank)

    def set_range(self, slot_t worker, uint32_t dp_start, uint32_t dp_size):
        self.table.set_range(worker, dp_start, dp_size)

    def pin(self, slot_t rank):
        self.table.pin(rank)

    def unpin(self, slot_t rank):
        self.table.unpin(rank)

    def name(self, slot_t rank):
        return self.table.ranks[rank].worker_id, self.table.ranks[rank].dp_rank

    def is_present(self, slot_t rank):
        return self.table.ranks[rank].worker != NO_SLOT

    def ghosts(self):
        return dict(self.table._ghosts)

    def order(self):
        """Names of the present ranks, in the order kept."""
        cdef slot_t i
        return [self.name(self.table.order[i]) for i in range(self.table.present)]

    def worker(self, slot_t worker):
        """(worker_id, incarnation, dp_start, rank slots)."""
        cdef worker_t* row = &self.table.workers[worker]
        cdef uint32_t i
        return row.worker_id, row.incarnation, row.dp_start, [row.ranks[i] for i in range(row.dp_size)]

    def ranks_of(self, frozenset allowed, frozenset required=frozenset()):
        """Names of the ranks of an allow-list (None: all) that carry the required taints, in the order given."""
        cdef slot_t* out = <slot_t*>malloc(max(1, self.table.ranks_size) * sizeof(slot_t))
        cdef slot_t count = self.table.ranks_of(allowed, required, out)
        cdef slot_t i
        names = [self.name(out[i]) for i in range(count)]
        free(out)
        return names


def order_key(str order, uint32_t strict, double jump, ns_t arrival_ns, deadline_ns, int64_t cost, uint64_t seq):
    """The key of a request as a tuple that sorts like it; deadline_ns None: no deadline."""
    cdef key_t key
    fill_key(&key, order_named(order), strict, jump, arrival_ns, NEVER_NS if deadline_ns is None else deadline_ns, cost)
    key.seq = seq
    return tuple_of(&key)


def helpers(int64_t cached_tokens, int64_t prompt_tokens, int64_t block_size, bint track_prefill):
    """The request helpers: effective cached tokens, prefill delta, prompt blocks."""
    cdef int64_t cached = effective_cached_tokens(cached_tokens, prompt_tokens)
    return cached, prefill_delta(prompt_tokens, cached, track_prefill), prompt_blocks(prompt_tokens, block_size)
