"""Physical lines of an opened trace file, compiled: what lines.py promises of them.

What it must never do: look at what a line means. A line is handed out as a place in memory (at, size), so that one that
is understood there need not become an object of its own; `content` makes one, and looks for bytes that no line may
have. Whoever takes a line without it has seen each of its bytes.
"""
cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memchr

from kvcore.errors import InvalidTrace

cdef bytes BOM = b"\xef\xbb\xbf"
cdef str LINE_END = "a carriage return inside the line"

cdef enum:
    CHUNK = 1 << 17             # of a line that is passed over


cdef inline bint _is_blank(char byte) noexcept nogil:
    return byte == b" " or byte == b"\t" or byte == b"\r" or byte == b"\n"


@cython.auto_pickle(False)
cdef class LineReader:
    """The non-blank lines of a file: pairs of its number and its bytes, or why they cannot be read.

    file: its name, for errors. readline: of the opened file. limit: bytes of the longest line; document_max: of a first
    one that long_first says is the whole file. fault: what is made of an exception of one of the types `faults` while
    reading, a reason that ends the file; it may raise.
    """

    def __cinit__(self, str file not None, readline, long_first, int64_t limit, int64_t document_max, tuple faults,
                  fault):
        self.file, self.readline, self.long_first, self.fault, self.faults = file, readline, long_first, fault, faults
        self.limit, self.document_max = limit, document_max
        self.ask = limit + 1

    def __iter__(self):
        return self

    def __next__(self):
        if not self.next_line():
            raise StopIteration
        return self.address(), self.content()

    cdef object address(self):
        """Number of the line in hand; None: it is none."""
        return self.number if self.number else None

    cdef object content(self):
        """Its bytes, or why they cannot be used. Raises: InvalidTrace."""
        if self.reason is not None:
            return self.reason
        if memchr(self.at, b"\r", self.size) != NULL:
            if self.number == 1 and not self.line.endswith(b"\n"):
                self.ended = True
                raise InvalidTrace(self.file, None, "carriage returns alone end the lines: convert them to newlines")
            return LINE_END
        if memchr(self.at, 0, self.size) != NULL:
            return "a NUL byte in the line"
        return self.at[:self.size]

    cdef bint next_line(self) except -1:
        """Take the next line that is not blank. False: there is none, now and for ever."""
        if self.ended:
            return False
        try:
            self.ended = not self._next()
        except self.faults as error:
            self.ended = True
            self.reason = self.fault(error)
            self.number = 0
            return True
        except BaseException:
            self.ended = True
            raise
        return not self.ended

    cdef bint _next(self) except -1:
        self.reason = None
        while True:
            self.line = self.readline(self.ask)
            if not self.line:
                return False
            self.number += 1
            if self.number == 1:
                if self.line.startswith(BOM):
                    self.line = self.line[len(BOM):]
                if len(self.line) > self.limit and self.long_first(self.line[:CHUNK]):
                    self._lengthen()
            if len(self.line) > self.limit:
                while self.line and not self.line.endswith(b"\n"):
                    self.line = self.readline(CHUNK)
                self.reason = f"longer than {self.limit} bytes"
                return True
            self._strip()
            if self.size:
                return True

    cdef int _lengthen(self) except -1:
        """The first line is the whole file."""
        self.limit = self.document_max
        self.ask = self.limit + 1
        self.line += self.readline(self.limit + 1 - len(self.line))
        return 0

    cdef int _strip(self) noexcept:
        cdef const char *at = self.line
        cdef const char *end = at + len(self.line)
        while at < end and _is_blank(at[0]):
            at += 1
        while at < end and _is_blank((end - 1)[0]):
            end -= 1
        self.at, self.size = at, end - at
        return 0
