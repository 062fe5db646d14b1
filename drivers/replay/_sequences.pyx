"""Sequences of a modelled fleet: the lists that they wait and run in, and the heap of the decoding ones.

Containers only: what the fields mean to an engine is decided in _plan and _worker. Rows live in one table of the fleet
and go by their number. A sequence is in one list at a time, and in the heap of its worker iff place >= 0.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

cdef enum:
    ROWS_MIN = 4


cdef void *room(void *rows, int32_t used, int32_t *allocated, size_t size) except NULL nogil:
    """rows, with place for one more than used."""
    if used < allocated[0]:
        return rows
    cdef int32_t n = max(2 * allocated[0], <int32_t>ROWS_MIN)
    rows = realloc(rows, n * size)
    if rows == NULL:
        with gil:
            raise MemoryError
    allocated[0] = n
    return rows


cdef int32_t seq_new(table_t *table, int32_t n_names, int64_t n_blocks) except -2:
    """A row, all zero but for its arrays and its markers. table.seqs may move."""
    cdef int32_t s = table.free
    cdef seq_t *q
    cdef void *arrays
    if s == NO_SEQ:
        table.seqs = <seq_t *>room(table.seqs, table.n, &table.rows, sizeof(seq_t))
        s = table.n
    arrays = malloc(n_names * sizeof(uint64_t) + n_blocks * sizeof(int32_t))
    if arrays == NULL:
        raise MemoryError
    if s == table.n:
        table.n += 1
    else:
        table.free = table.seqs[s].next
    q = &table.seqs[s]
    memset(q, 0, sizeof(seq_t))
    q.place = -1
    q.cached = q.first_ns = -1
    q.n_names = n_names
    q.names = <uint64_t *>arrays
    q.blocks = <int32_t *>(q.names + n_names)
    return s


cdef void seq_free(table_t *table, int32_t s) noexcept nogil:
    free(table.seqs[s].names)
    table.seqs[s].names = NULL
    table.seqs[s].state = FREE
    table.seqs[s].next = table.free
    table.free = s


cdef void list_append(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil:
    seqs[s].prev = queue.tail
    seqs[s].next = NO_SEQ
    if queue.tail == NO_SEQ:
        queue.head = s
    else:
        seqs[queue.tail].next = s
    queue.tail = s


cdef void list_prepend(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil:
    seqs[s].prev = NO_SEQ
    seqs[s].next = queue.head
    if queue.head == NO_SEQ:
        queue.tail = s
    else:
        seqs[queue.head].prev = s
    queue.head = s


cdef void list_remove(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil:
    cdef int32_t prev = seqs[s].prev, next = seqs[s].next
    if prev == NO_SEQ:
        queue.head = next
    else:
        seqs[prev].next = next
    if next == NO_SEQ:
        queue.tail = prev
    else:
        seqs[next].prev = prev


cdef void list_restore(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil:
    """Take back list_remove, when all that was done to the list since has been taken back."""
    if seqs[s].prev == NO_SEQ:
        queue.head = s
    else:
        seqs[seqs[s].prev].next = s
    if seqs[s].next == NO_SEQ:
        queue.tail = s
    else:
        seqs[seqs[s].next].prev = s


cdef inline bint _before(due_t *a, due_t *b) noexcept nogil:
    return a.it < b.it or (a.it == b.it and a.order < b.order)


cdef void _sift(heap_t *heap, seq_t *seqs, int32_t i) noexcept nogil:
    """Move entry i, whose key has changed, to its place."""
    cdef due_t *due = heap.due
    cdef due_t moved = due[i]
    cdef int32_t child
    while i > 0 and _before(&moved, &due[(i - 1) >> 1]):
        due[i] = due[(i - 1) >> 1]
        seqs[due[i].seq].place = i
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child + 1 < heap.n and _before(&due[child + 1], &due[child]):
            child += 1
        if child >= heap.n or not _before(&due[child], &moved):
            break
        due[i] = due[child]
        seqs[due[i].seq].place = i
        i = child
    due[i] = moved
    seqs[moved.seq].place = i


cdef int heap_add(heap_t *heap, seq_t *seqs, int32_t s, int64_t it) except -1 nogil:
    """Cost: O(log n), like all of the heap."""
    heap.due = <due_t *>room(heap.due, heap.n, &heap.rows, sizeof(due_t))
    heap.due[heap.n] = due_t(it, seqs[s].order, s)
    heap.n += 1
    _sift(heap, seqs, heap.n - 1)
    return 0


cdef void heap_move(heap_t *heap, seq_t *seqs, int32_t s, int64_t it) noexcept nogil:
    heap.due[seqs[s].place].it = it
    _sift(heap, seqs, seqs[s].place)


cdef void heap_remove(heap_t *heap, seq_t *seqs, int32_t s) noexcept nogil:
    cdef int32_t i = seqs[s].place
    seqs[s].place = -1
    heap.n -= 1
    if i < heap.n:
        heap.due[i] = heap.due[heap.n]
        _sift(heap, seqs, i)
