# The table of a replay: one row of integers per request; chunks of it that nobody writes to any more go to a file.
from libc.stdint cimport int32_t, int64_t

cdef enum:
    FILE_INDEX, ROW, ARRIVAL_NS, PROMPT_TOKENS, OUTPUT_TOKENS, CLASS_INDEX, OUTCOME, REASON, WORKER, WAIT_NS
    CACHED_TOKENS = 10
    FIRST_TOKEN_NS, FINISH_NS, ENGINE_CACHED_TOKENS, PREEMPTIONS, SESSION
    WIDTH = 16


cdef class RequestTable:
    cdef int64_t **chunks                      # by number; NULL: in the file
    cdef int32_t *unended                      # by number: rows added and not sealed
    cdef int64_t n                             # rows added
    cdef int64_t n_chunks, room
    cdef int64_t in_memory                     # chunks that are not in the file
    cdef readonly int64_t chunks_max           # of them that may stay although nobody writes to them
    cdef int64_t next_spill                    # all chunks before this one have been looked at
    cdef int file                              # descriptor; -1: no chunk has left yet

    cdef int64_t append(
        self, int64_t file_index, int64_t row, int64_t arrival_ns, int64_t prompt_tokens, int64_t output_tokens,
    ) except -1
    cdef int64_t *cells(self, int64_t index) except NULL
    cdef int seal(self, int64_t index) except -1
    cdef object _read(self, int64_t first, int64_t last)
    cdef int _grow(self) except -1
    cdef int _spill(self) except -1
    cdef int _write(self, int64_t chunk) except -1
