# Sequences of a modelled fleet, the lists that they wait and run in, and the heap of the decoding ones.
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    NO_SEQ = -1

cdef enum:
    FREE, WAITING, RUNNING

cdef struct seq_t:
    int32_t prev, next          # neighbours in its list, kept when it has been removed; of a free row: next
    int32_t worker
    int32_t state
    int32_t doomed              # 1: cancelled while running; leaves at the end of its iteration
    int32_t place               # in its worker's heap; -1 while it does not decode
    int32_t n_names             # full prompt blocks with a name
    int32_t n_blocks            # held
    int32_t hits                # leading blocks found in the cache at its latest admission
    int32_t preemptions
    int64_t attempt
    int64_t handle              # of the request, for whoever wants its facts as rows
    int64_t prompt              # tokens
    int64_t total               # prompt and all output
    int64_t tokens              # prompt and output so far, when it last entered the queue
    int64_t since               # iteration after which it had tokens + 1 of them and began to decode
    int64_t order               # admission number; the running list is in this order
    int64_t cached              # prompt tokens hit at its first admission, -1 before
    int64_t first_ns            # end of its prefill, -1 before
    uint64_t *names             # n_names; the same allocation holds blocks
    int32_t *blocks             # up to ceil(total / block_size)

cdef struct list_t:
    int32_t head, tail          # NO_SEQ: empty

cdef struct table_t:            # all sequences of a fleet
    seq_t *seqs
    int32_t n                   # rows made so far
    int32_t rows                # allocated
    int32_t free                # first free row, NO_SEQ: none

cdef struct due_t:              # the next thing to happen to a decoding sequence
    int64_t it                  # iterations finished by then
    int64_t order
    int32_t seq

cdef struct heap_t:             # by (it, order)
    due_t *due
    int32_t n
    int32_t rows


cdef void *room(void *rows, int32_t used, int32_t *allocated, size_t size) except NULL nogil
cdef int32_t seq_new(table_t *table, int32_t n_names, int64_t n_blocks) except -2
cdef void seq_free(table_t *table, int32_t s) noexcept nogil
cdef int heap_add(heap_t *heap, seq_t *seqs, int32_t s, int64_t it) except -1 nogil
cdef void heap_move(heap_t *heap, seq_t *seqs, int32_t s, int64_t it) noexcept nogil
cdef void heap_remove(heap_t *heap, seq_t *seqs, int32_t s) noexcept nogil
cdef void list_append(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil
cdef void list_prepend(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil
cdef void list_remove(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil
cdef void list_restore(list_t *queue, seq_t *seqs, int32_t s) noexcept nogil


cdef inline int64_t tokens_at(seq_t *q, int64_t it) noexcept nogil:
    """Prompt and output of a decoding sequence after `it` iterations."""
    return q.tokens + 1 + (it - q.since)


cdef inline int64_t due_at(seq_t *q, int64_t it, int64_t tokens, int64_t block_size) noexcept nogil:
    """Iteration that brings a sequence with so many tokens now its last one, or the next one that begins a block."""
    return it + min(q.total - tokens, block_size - (tokens - 1) % block_size)
