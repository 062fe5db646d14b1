"""One row of integers per request of a replay, in order of arrival; see result.py for the columns.

A row is written to while its request lives, and sealed when it ends. Rows stand in chunks of 4,096. Once there are more
than some chunks, those whose rows are all sealed move to a temporary file without a name: what stays in memory is
bounded by what is live, whatever the length of the trace. A short replay never touches the disk.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, realloc
from posix.unistd cimport close

import os
import tempfile

import numpy as np

cdef enum:
    CHUNK = 4_096               # rows
    BYTES = CHUNK * WIDTH * 8   # 512 kB

#: Chunks that stay in memory whatever has ended: 8.4 MB.
CHUNKS_KEPT = 16

COLUMNS = (
    "file_index", "row", "arrival_ns", "prompt_tokens", "output_tokens",
    "class_index", "outcome", "reason", "worker", "wait_ns", "cached_tokens",
    "first_token_ns", "finish_ns", "engine_cached_tokens", "preemptions", "session",
)


@cython.final
@cython.auto_pickle(False)
cdef class RequestTable:
    """All requests in order of arrival, 128 bytes each, of which those of ended requests may lie in a file.

    chunks_kept: chunks of 4,096 rows that stay in memory although nobody writes to them any more.
    """

    def __cinit__(self, int64_t chunks_kept=CHUNKS_KEPT):
        self.chunks_max = chunks_kept
        self.file = -1

    def __dealloc__(self):
        cdef int64_t i
        for i in range(self.n_chunks):
            free(self.chunks[i])
        free(self.chunks)
        free(self.unended)
        if self.file >= 0:
            close(self.file)

    def __len__(self):
        return self.n

    @property
    def spilled(self):
        """Rows that lie in the file."""
        return (self.n_chunks - self.in_memory) * CHUNK

    def add(
        self, int64_t file_index, int64_t row, int64_t arrival_ns, int64_t prompt_tokens, int64_t output_tokens,
        dict more=None,
    ):
        """Append a request. more: values of further columns, by name; the row is then sealed. Returns its position."""
        cdef int64_t index = self.append(file_index, row, arrival_ns, prompt_tokens, output_tokens)
        if more is not None:
            for name, value in more.items():
                self.cells(index)[<int>COLUMNS.index(name)] = value
            self.seal(index)
        return index

    def blocks(self, int64_t rows=65_536):
        """The table in pieces, in order: arrays of shape (<= rows, WIDTH), copies. Memory: one piece."""
        cdef int64_t chunks = max(1, rows // CHUNK), first = 0
        while first * CHUNK < self.n:
            yield self._read(first, min(self.n_chunks, first + chunks))
            first += chunks

    def rows(self):
        """The whole table. Shape: (requests, WIDTH). Cost: O(requests), a copy."""
        return self._read(0, self.n_chunks)

    def column(self, str name not None):
        """One column. Shape: (requests,). Cost: reads all; memory of the column."""
        cdef int place = COLUMNS.index(name)
        pieces = [piece[:, place].copy() for piece in self.blocks()]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    cdef object _read(self, int64_t first, int64_t last):
        """Chunks first .. last - 1 as one array."""
        cdef int64_t i, count
        parts = []
        for i in range(first, last):
            count = min(<int64_t>CHUNK, self.n - i * CHUNK)
            if self.chunks[i] != NULL:
                parts.append(PyBytes_FromStringAndSize(<char *>self.chunks[i], count * WIDTH * 8))
            else:
                parts.append(os.pread(self.file, BYTES, i * BYTES))
        return np.frombuffer(bytearray().join(parts), dtype=np.int64).reshape(-1, WIDTH)

    cdef int64_t append(
        self, int64_t file_index, int64_t row, int64_t arrival_ns, int64_t prompt_tokens, int64_t output_tokens,
    ) except -1:
        """A request that has just arrived. Returns its position."""
        cdef int64_t index = self.n, chunk = index // CHUNK
        cdef int64_t *cells
        if chunk == self.n_chunks:
            self._grow()
        cells = self.chunks[chunk] + index % CHUNK * WIDTH
        cells[FILE_INDEX], cells[ROW], cells[ARRIVAL_NS] = file_index, row, arrival_ns
        cells[PROMPT_TOKENS], cells[OUTPUT_TOKENS] = prompt_tokens, output_tokens
        cells[OUTCOME] = cells[REASON] = cells[CACHED_TOKENS] = cells[ENGINE_CACHED_TOKENS] = 0
        cells[PREEMPTIONS] = cells[SESSION] = 0
        cells[CLASS_INDEX] = cells[WORKER] = cells[WAIT_NS] = cells[FIRST_TOKEN_NS] = cells[FINISH_NS] = -1
        self.unended[chunk] += 1
        self.n += 1
        return index

    cdef int64_t *cells(self, int64_t index) except NULL:
        """A row that has not been sealed. Valid until the next append or seal."""
        cdef int64_t *chunk = self.chunks[index // CHUNK]
        if chunk == NULL:
            raise IndexError(f"row {index} has been sealed")
        return chunk + index % CHUNK * WIDTH

    cdef int seal(self, int64_t index) except -1:
        """Nothing more is written to the row."""
        cdef int64_t chunk = index // CHUNK
        self.unended[chunk] -= 1
        if self.unended[chunk] == 0 and self.in_memory > self.chunks_max:
            self._spill()
        return 0

    cdef int _grow(self) except -1:
        """Room for one more chunk."""
        cdef int64_t room = max(<int64_t>16, 2 * self.room)
        cdef void *place
        if self.n_chunks == self.room:
            place = realloc(self.chunks, room * sizeof(int64_t *))
            if place == NULL:
                raise MemoryError
            self.chunks = <int64_t **>place
            place = realloc(self.unended, room * sizeof(int32_t))
            if place == NULL:
                raise MemoryError
            self.unended = <int32_t *>place
            self.room = room
        place = malloc(BYTES)
        if place == NULL:
            raise MemoryError
        self.chunks[self.n_chunks] = <int64_t *>place
        self.unended[self.n_chunks] = 0
        self.n_chunks += 1
        self.in_memory += 1
        return 0

    cdef int _spill(self) except -1:
        """Move full chunks whose rows are all sealed to the file. Those before next_spill are there already."""
        cdef int64_t i
        cdef bint before = True
        for i in range(self.next_spill, self.n // CHUNK):
            if self.chunks[i] != NULL and self.unended[i] == 0:
                self._write(i)
                free(self.chunks[i])
                self.chunks[i] = NULL
                self.in_memory -= 1
            if self.chunks[i] != NULL:
                before = False
            elif before:
                self.next_spill = i + 1
        return 0

    cdef int _write(self, int64_t chunk) except -1:
        """Write a chunk to its place in the file, which is unlinked as soon as it is there. Raises: OSError."""
        cdef int64_t done = 0
        if self.file < 0:
            self.file, path = tempfile.mkstemp(prefix="kvcore-")
            os.unlink(path)
        data = memoryview(PyBytes_FromStringAndSize(<char *>self.chunks[chunk], BYTES))
        while done < BYTES:
            done += os.pwrite(self.file, data[done:], chunk * BYTES + done)
        return 0
