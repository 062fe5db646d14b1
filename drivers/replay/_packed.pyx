"""A row of a trace on its way through a replay: made for each request, with the names of its blocks as C numbers.

Fields mean what they mean on a TraceRow (rows.py), which stays what readers and tools see.
"""
cimport cython
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_CheckExact
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

from kvcore.drivers.replay.rows cimport TraceRow


@cython.auto_pickle(False)
@cython.freelist(64)
@cython.no_gc
cdef class PackedRow:
    """See _packed.pxd; it holds texts, ints and tuples of ints, which refer to nothing."""

    def __dealloc__(self):
        free(self.names)

    cdef TraceRow unpacked(self):
        """The same as a TraceRow."""
        cdef int64_t i
        names = tuple([self.names[i] for i in range(self.n_names)])
        return TraceRow(
            self.arrival_ns, self.prompt_tokens, self.output_tokens, names, self.session_id, self.delay_ns,
            self.priority, self.strict_priority, self.policy_class, self.file_index, self.row, self.after)


cdef PackedRow packed(TraceRow row):
    """A TraceRow packed; None: a name is no integer of 0..2^64-1, or its strict_priority not one of 0..2^32-1."""
    cdef PackedRow found = PackedRow.__new__(PackedRow)
    found.arrival_ns, found.prompt_tokens, found.output_tokens = row.arrival_ns, row.prompt_tokens, row.output_tokens
    found.strict_priority, found.file_index, found.row = row.strict_priority, row.file_index, row.row
    found.priority, found.session_id, found.policy_class = row.priority, row.session_id, row.policy_class
    found.delay_ns, found.after = row.delay_ns, row.after
    if row.strict_priority >> 32:
        return None
    if row.block_hashes:
        found.names = <uint64_t *>malloc(len(row.block_hashes) * sizeof(uint64_t))
        if found.names == NULL:
            raise MemoryError
        for name in row.block_hashes:
            if not PyLong_CheckExact(name):
                return None
            try:
                found.names[found.n_names] = PyLong_AsUnsignedLongLong(name)
            except OverflowError:
                return None
            found.n_names += 1
    return found
