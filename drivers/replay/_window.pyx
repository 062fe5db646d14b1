"""Rows of traces in order, compiled: what traces.py promises of the reorder window and of several files.

A row that waits is a struct of 56 bytes and the ids of its blocks, named only when it is given out. Plain rows of the
commonest formats are scanned where they stand in the line (_scan); every other line goes to the parser of its format,
so that whatever is odd means what it means there. All that is counted and refused happens row by row, in file order.

What it must never do: know a format, or what a row is for.
"""
cimport cython
from cpython.array cimport array
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from kvcore.drivers.replay._scan cimport NOT_PLAIN, ids_max, plain_kind_t, plain_t, scan_row
from kvcore.hashing cimport xxh3_16

from kvcore.errors import InvalidTrace
from kvcore.drivers.replay.values import Unusable

cdef enum:
    CHAIN_SEED = 1337           # kvcore.hashing
    RING_MIN = 64


cdef inline bint _before(const entry_t *a, const entry_t *b) noexcept nogil:
    return a.time_ns < b.time_ns or (a.time_ns == b.time_ns and a.row < b.row)


cdef int _heap_add(heap_t *heap, const entry_t *entry) except -1:
    cdef int64_t i = heap.n, room = max(<int64_t>RING_MIN, 2 * heap.room)
    cdef void *place
    if heap.n == heap.room:
        place = realloc(heap.entries, room * sizeof(entry_t))
        if place == NULL:
            raise MemoryError
        heap.entries, heap.room = <entry_t *>place, room
    heap.n += 1
    while i > 0 and _before(entry, &heap.entries[(i - 1) >> 1]):
        heap.entries[i] = heap.entries[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap.entries[i] = entry[0]
    return 0


cdef entry_t _heap_take(heap_t *heap) noexcept:
    """The first one. There must be one."""
    cdef entry_t found = heap.entries[0]
    cdef entry_t *moved
    cdef int64_t i = 0, child = 1
    heap.n -= 1
    moved = &heap.entries[heap.n]
    while child < heap.n:
        child += child + 1 < heap.n and _before(&heap.entries[child + 1], &heap.entries[child])
        if not _before(&heap.entries[child], moved):
            break
        heap.entries[i] = heap.entries[child]
        i, child = child, 2 * child + 1
    heap.entries[i] = moved[0]
    return found


cdef void _drop(entry_t *entry) noexcept:
    free(entry.ids)
    if entry.facts != NULL:
        Py_DECREF(<object>entry.facts)


@cython.auto_pickle(False)
cdef class Tally:
    """What has been read of all files of a stream: see TraceStream for the counters. shown_max: of skipped_rows."""

    def __cinit__(self, bint skip_bad, int64_t shown_max):
        self.skip_bad, self.shown_max, self.skipped_rows = skip_bad, shown_max, []

    cdef int skip(self, str file, object line, str reason) except -1:
        """A row that cannot be used. Raises: InvalidTrace, unless bad rows are skipped."""
        if not self.skip_bad:
            raise InvalidTrace(file, line, reason)
        self.skipped += 1
        if len(self.skipped_rows) < self.shown_max:
            self.skipped_rows.append((file, line, reason))
        return 0


@cython.auto_pickle(False)
cdef class Window:
    """The usable rows of one file by (time, row), the last rows_max rows held back.

    lines: a Lines. items: (line, RowFacts) instead of its lines; None: they are read. parse: what makes RowFacts of a
    line or item. resolved: NamedRows.resolved. plain: a plain_kind_t. salt: what the names of its blocks
    begin with. trace_block_size, block_size: tokens of its own blocks and of those wanted. names_max: of a plain row.
    """

    def __cinit__(self, lines, items, parse, resolved, Tally tally not None, *, int64_t file_index, bint absolute,
                  int plain, uint64_t salt, int64_t trace_block_size, int64_t block_size, int64_t names_max,
                  int64_t rows_max):
        self.file = lines.file
        self.items = None if items is None else iter(items)
        self.ahead, self.reader = lines.rest()
        self.parse, self.resolved, self.tally = parse, resolved, tally
        self.file_index, self.absolute, self.salt = file_index, absolute, salt
        self.plain = <plain_kind_t>plain
        self.shape = shape_t(trace_block_size, block_size, names_max)
        self.rows_max = rows_max
        self.latest_ns = self.given_ns = -1
        self.queue = <entry_t *>malloc(RING_MIN * sizeof(entry_t))
        if self.queue == NULL:
            raise MemoryError
        self.mask = RING_MIN - 1

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.n):
            _drop(&self.queue[(self.first + i) & self.mask])
        for i in range(self.late.n):
            _drop(&self.late.entries[i])
        free(self.queue)
        free(self.late.entries)
        free(self.ids)

    cdef bint take(self, entry_t *entry) except -1:
        """The next row, which is the caller's now. False: there is none.

        Those that came in order stand in a queue, late ones in a heap beside it: the next one is the lesser of two. A
        late row is older than the latest one, which is the last of the queue.
        """
        cdef entry_t *first
        while not self.ended and self.n + self.late.n <= self.rows_max:
            self.ended = not self._fill()
        if self.n == 0:
            return False
        first = &self.queue[self.first]
        if self.late.n and _before(self.late.entries, first):
            entry[0] = _heap_take(&self.late)
        else:
            entry[0] = first[0]
            self.first = (self.first + 1) & self.mask
            self.n -= 1
        self.given_ns = entry.time_ns
        return True

    cdef bint _fill(self) except -1:
        """Read one more row. False: there is none."""
        cdef entry_t entry
        entry.ids = NULL
        entry.facts = NULL
        if self.items is not None:
            for line, content in self.items:
                return self._look(line, content, &entry) or True
            return False
        if self.ahead:
            line, content = self.ahead.popleft()
            return self._look(line, content, &entry) or True
        if not self.reader.next_line():
            return False
        if self.plain == NOT_PLAIN or self.reader.reason is not None or not self._scan(&entry):
            return self._look(self.reader.address(), self.reader.content(), &entry) or True
        self.row += 1
        self.tally.read += 1
        entry.row = self.row
        if entry.time_ns < self.given_ns:
            free(entry.ids)
            self.tally.skip(self.file, self.reader.address(), self._too_late())
            return True
        self._put(&entry)
        return True

    cdef int _scan(self, entry_t *entry) except -1:
        """A plain row of the line in hand; False: it is none."""
        cdef plain_t row
        cdef int64_t room = ids_max(self.reader.size)
        if room > self.ids_room:
            free(self.ids)
            self.ids_room = 0
            self.ids = <uint64_t *>malloc(2 * room * sizeof(uint64_t))
            if self.ids == NULL:
                raise MemoryError
            self.ids_room = 2 * room
        row.ids = self.ids
        if not scan_row(self.plain, self.reader.at, self.reader.size, &self.shape, &row):
            return False
        entry.time_ns, entry.prompt_tokens, entry.output_tokens = row.time_ns, row.prompt_tokens, row.output_tokens
        entry.n_ids = row.n_ids
        if row.n_ids:
            entry.ids = <uint64_t *>malloc(row.n_ids * sizeof(uint64_t))
            if entry.ids == NULL:
                raise MemoryError
            memcpy(entry.ids, row.ids, row.n_ids * sizeof(uint64_t))
        return True

    cdef int _look(self, object line, object content, entry_t *entry) except -1:
        """A row by the parser of its format. Raises: InvalidTrace."""
        self.row += 1
        self.tally.read += 1
        entry.row = self.row
        try:
            if isinstance(content, str):
                raise Unusable(content)
            self._accept(self.parse(content), entry)
        except Unusable as error:
            reason = error.reason
        else:
            self._put(entry)
            return 0
        self.tally.skip(self.file, line, reason)
        return 0

    cdef int _accept(self, object facts, entry_t *entry) except -1:
        """The row of some RowFacts. Raises: Unusable."""
        entry.time_ns, entry.prompt_tokens, entry.output_tokens = facts[0], facts[1], facts[2]
        if entry.time_ns < self.given_ns:
            raise Unusable(self._too_late())
        if facts[9] is not None or facts[4] is not None:
            facts = self.resolved(self.row, facts)
        Py_INCREF(facts)
        entry.facts = <void *>facts
        return 0

    def _too_late(self):
        return f"more than {self.rows_max} rows late: it belongs before a row already replayed"

    cdef int _put(self, entry_t *entry) except -1:
        """Into the queue, or beside it."""
        cdef int64_t i
        cdef entry_t *ring
        if entry.time_ns < self.latest_ns:
            self.tally.reordered += 1
            return _heap_add(&self.late, entry)
        self.latest_ns = entry.time_ns
        if self.n > self.mask:
            ring = <entry_t *>malloc(2 * self.n * sizeof(entry_t))
            if ring == NULL:
                raise MemoryError
            for i in range(self.n):
                ring[i] = self.queue[(self.first + i) & self.mask]
            free(self.queue)
            self.queue, self.first, self.mask = ring, 0, 2 * self.n - 1
        self.queue[(self.first + self.n) & self.mask] = entry[0]
        self.n += 1
        return 0

    cdef PackedRow pack(self, entry_t *entry, int64_t origin_ns):
        """The row of an entry, whose memory it takes over."""
        cdef PackedRow row = PackedRow.__new__(PackedRow)
        cdef array ids = None
        row.arrival_ns = entry.time_ns - origin_ns
        row.prompt_tokens, row.output_tokens, row.row = entry.prompt_tokens, entry.output_tokens, entry.row
        row.file_index = self.file_index
        if entry.facts != NULL:
            facts = <object>entry.facts
            ids, row.session_id, row.delay_ns, row.priority = facts[3], facts[4], facts[5], facts[6]
            row.strict_priority, row.policy_class = facts[7], facts[8]
            row.after = None if facts[9] is None else facts[9][2]
        if ids is not None:
            entry.ids, entry.n_ids = <uint64_t *>ids.data.as_ulonglongs, len(ids)
        if entry.ids != NULL:
            self._name(entry, row)
        if ids is not None:
            entry.ids = NULL
        _drop(entry)
        return row

    cdef int _name(self, entry_t *entry, PackedRow row) except -1:
        """Names of the prompt's blocks: see mooncake.salt_of."""
        cdef int64_t parts = self.shape.trace_block_size // self.shape.block_size, i, j, n = 0
        cdef int64_t count = entry.n_ids
        cdef uint64_t name = self.salt
        if parts > 1:
            count = min(count * parts, (row.prompt_tokens - 1) // self.shape.block_size + 1)
        row.names = <uint64_t *>malloc(count * sizeof(uint64_t))
        if row.names == NULL:
            raise MemoryError
        row.n_names = count
        for i in range(entry.n_ids):
            for j in range(min(parts, count - n)):
                name = xxh3_16(name, entry.ids[i] if j == 0 else <uint64_t>j, CHAIN_SEED)
                row.names[n] = name
                n += 1
        return 0


@cython.auto_pickle(False)
cdef class Feed:
    """The rows of all windows of a stream by (time, file, row), times counted from the first.

    limit: how many; None: all. close: called when the rows end or fail. Times of calendars are placed so that the
    earliest first row among them stands at the zero of the others.
    """

    def __cinit__(self, list windows not None, limit, list close not None):
        self.windows, self.close = windows, close
        self.left = -1 if limit is None else limit
        self.heads = <entry_t *>calloc(len(windows), sizeof(entry_t))
        self.has = <bint *>calloc(len(windows), sizeof(bint))
        if self.heads == NULL or self.has == NULL:
            raise MemoryError
        self.n = len(windows)
        self.last = -1

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.n):
            if self.has[i]:
                _drop(&self.heads[i])
        free(self.heads)
        free(self.has)

    def __iter__(self):
        return self

    def __next__(self):
        cdef PackedRow row = self.next_row()
        if row is None:
            raise StopIteration
        return row.unpacked()

    cdef PackedRow next_row(self):
        """The next row; None: there is none, now and for ever."""
        cdef PackedRow row = None
        try:
            row = self._next()
        except BaseException:
            self._end()
            raise
        if row is None:
            self._end()
        return row

    cdef int _end(self) except -1:
        self.left = 0
        for close in self.close:
            close()
        return 0

    cdef PackedRow _next(self):
        cdef Py_ssize_t i, best = -1
        cdef int64_t time_ns, best_ns = 0
        if self.left == 0:
            return None
        if not self.begun:
            self._begin()
        elif self.last >= 0:
            self._pull(self.last)
        for i in range(self.n):
            if self.has[i]:
                time_ns = self.heads[i].time_ns - (self.base_ns if (<Window>self.windows[i]).absolute else 0)
                if best < 0 or time_ns < best_ns:
                    best, best_ns = i, time_ns
        if best < 0:
            return None
        if self.last < 0:
            self.origin_ns = best_ns
        self.last = best
        self.has[best] = False
        self.left -= self.left > 0
        return (<Window>self.windows[best]).pack(
            &self.heads[best], self.origin_ns + (self.base_ns if (<Window>self.windows[best]).absolute else 0))

    cdef int _begin(self) except -1:
        """The first row of each file, those with times of the calendar before the others."""
        cdef Py_ssize_t i
        cdef bint found = False
        for absolute in (True, False):
            for i in range(self.n):
                if (<Window>self.windows[i]).absolute == absolute:
                    self._pull(i)
                    if absolute and self.has[i] and (not found or self.heads[i].time_ns < self.base_ns):
                        self.base_ns = self.heads[i].time_ns
                        found = True
        self.begun = True
        return 0

    cdef int _pull(self, Py_ssize_t i) except -1:
        self.has[i] = (<Window>self.windows[i]).take(&self.heads[i])
        return 0
