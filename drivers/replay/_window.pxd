# The usable rows of one file in order of time, and of several files merged.
cimport cython
from libc.stdint cimport int64_t, uint64_t

from kvcore.drivers.replay._lines cimport LineReader
from kvcore.drivers.replay._packed cimport PackedRow
from kvcore.drivers.replay._scan cimport plain_kind_t, shape_t

cdef struct entry_t:            # a row that waits for its turn
    int64_t time_ns             # in the file's own clock
    int64_t row
    int64_t prompt_tokens
    int64_t output_tokens
    uint64_t *ids               # of its trace blocks; NULL: unknown
    int64_t n_ids
    void *facts                 # its RowFacts, owned; NULL: all is said above

cdef struct heap_t:             # by (time_ns, row)
    entry_t *entries
    int64_t n, room


@cython.final
cdef class Tally:
    cdef readonly int64_t read, skipped, reordered
    cdef readonly list skipped_rows
    cdef bint skip_bad
    cdef int64_t shown_max

    cdef int skip(self, str file, object line, str reason) except -1


@cython.final
cdef class Window:
    cdef str file
    cdef int64_t file_index
    cdef readonly bint absolute
    cdef public object parse
    cdef object ahead, resolved
    cdef object items               # an iterator of what is no line; None: lines are read
    cdef LineReader reader
    cdef Tally tally
    cdef shape_t shape
    cdef plain_kind_t plain         # what its plain rows are
    cdef uint64_t salt
    cdef uint64_t *ids              # room for those of a plain row
    cdef int64_t ids_room
    cdef entry_t *queue             # rows that came in order: a ring
    cdef int64_t first, n, mask
    cdef heap_t late                # those that did not
    cdef int64_t rows_max, row
    cdef int64_t latest_ns, given_ns
    cdef bint ended

    cdef bint take(self, entry_t *entry) except -1
    cdef PackedRow pack(self, entry_t *entry, int64_t origin_ns)

    cdef bint _fill(self) except -1
    cdef int _scan(self, entry_t *entry) except -1
    cdef int _look(self, object line, object content, entry_t *entry) except -1
    cdef int _accept(self, object facts, entry_t *entry) except -1
    cdef int _put(self, entry_t *entry) except -1
    cdef int _name(self, entry_t *entry, PackedRow row) except -1


@cython.final
cdef class Feed:
    cdef readonly list windows
    cdef list close
    cdef Py_ssize_t n               # windows
    cdef entry_t *heads             # of each window: its next row, where `has`
    cdef bint *has
    cdef bint begun
    cdef int64_t last               # the window whose head was given out; -1: none
    cdef int64_t origin_ns, base_ns
    cdef int64_t left               # rows that may still be given out; -1: all

    cdef PackedRow next_row(self)

    cdef PackedRow _next(self)
    cdef int _begin(self) except -1
    cdef int _pull(self, Py_ssize_t i) except -1
    cdef int _end(self) except -1
