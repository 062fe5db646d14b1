"""Arrivals at the times of the trace, compiled: arrivals.OpenLoop over FittingRows over the rows of a TraceStream."""
cimport cython
from libc.stdint cimport int64_t

from kvcore.drivers.replay.arrivals import OpenLoop, unfit_row

cdef enum:
    NEVER_NS = 0x4000000000000000   # arrivals.NEVER_NS


@cython.auto_pickle(False)
cdef class OpenRows:
    """feed: of a TraceStream. The rest: see FittingRows and OpenLoop."""

    def __cinit__(self, Feed feed not None, int64_t kv_tokens, paths, bint skip_unfit, ratio):
        self.feed, self.kv_tokens, self.paths, self.skip_unfit = feed, kv_tokens, paths, skip_unfit
        self.ratio, self.scaled = ratio, ratio != 1
        self._read()

    cdef PackedRow take_row(self):
        """The row that is due; the next one is read ahead."""
        cdef PackedRow row = self.row
        self._read()
        return row

    cdef int _read(self) except -1:
        self.row = self._fitting()
        if self.row is None:
            self.next_ns = NEVER_NS
        elif self.scaled:
            self.next_ns = OpenLoop.due_ns(self.row.arrival_ns, self.ratio)
        else:
            self.next_ns = self.row.arrival_ns
        return 0

    cdef PackedRow _fitting(self):
        cdef PackedRow row = self.feed.next_row()
        while row is not None and row.prompt_tokens + row.output_tokens > self.kv_tokens:
            if not self.skip_unfit:
                raise unfit_row(row.unpacked(), self.kv_tokens, self.paths)
            self.unfit += 1
            row = self.feed.next_row()
        return row
