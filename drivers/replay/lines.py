"""Physical lines of a trace file: opening, gzip, byte order mark, line ends, limits.

Owns the bytes; knows nothing of trace formats. A failure of the file itself is an InvalidTrace without a line; a
failure of one line is handed on as a reason, in the place of the line's content, so that the caller may skip it.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

from kvcore.errors import InvalidTrace

from ._lines import LineReader

#: Longest line, bytes, its end included. A longer one is refused without ever being held in memory.
LINE_MAX = 16 << 20
#: The same of a first line that is the whole file.
DOCUMENT_MAX = 256 << 20

#: 1-based physical line (None: none can be named), and its bytes without the blanks around or why it cannot be read.
Line: TypeAlias = tuple[int | None, bytes | str]

_GZIP = b"\x1f\x8b"
_GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
_CHUNK = 1 << 17

#: First bytes of what is often found in the place of a trace. The longer of two equal beginnings stands first.
_FOREIGN = (
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the data: fetch it with `git lfs pull`"),
    (b"\xff\xfe\x00\x00", "UTF-32 text: convert it to UTF-8"),
    (b"\x00\x00\xfe\xff", "UTF-32 text: convert it to UTF-8"),
    (b"\xff\xfe", "UTF-16 text: convert it to UTF-8"),
    (b"\xfe\xff", "UTF-16 text: convert it to UTF-8"),
    (_GZIP, "gzip inside gzip: unpack it once"),
    (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first"),
    (b"BZh", "bzip2 data: unpack it first"),
    (b"\xfd7zXZ\x00", "xz data: unpack it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"PAR1", "a Parquet file: convert it to CSV or JSON lines"),
)


class Lines:
    """The non-blank lines of one file, read once from start to end.

    Yields Line pairs. Blank lines (blanks, tabs, carriage returns) are counted but not handed out; a UTF-8 byte order
    mark in front of the first line and carriage returns at line ends are stripped; the last line may lack its newline.
    A damaged or cut gzip stream ends the file with one last pair (None, reason); the line it broke off in is lost.
    long_first: whether a first line that begins so may have DOCUMENT_MAX bytes.
    Raises: InvalidTrace with line None, from the constructor (cannot be opened, empty, not text, carriage returns alone
        as line ends) or while reading (the system's read error).
    Cost: one C-level readline and a few scans a line (_lines); memory: one line, plus the lines that peek() holds.
    """

    def __init__(self, file: str, long_first: Callable[[bytes], bool] = lambda start: False) -> None:
        self.file = file
        self._exit = ExitStack()
        try:
            self._lines = _read(file, self._open(), long_first)
        except BaseException:
            self.close()
            raise
        self._ahead: deque[Line] = deque()

    def __iter__(self) -> Iterator[Line]:
        ahead = self._ahead
        while ahead:
            yield ahead.popleft()
        yield from self._lines

    def rest(self) -> tuple[deque[Line], LineReader]:
        """All that is to be iterated, for a reader that iterates it: first the lines ahead."""
        return self._ahead, self._lines

    def __del__(self) -> None:
        # A stream that nobody iterated must not leave its file to a ResourceWarning.
        self.close()

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        self._exit.close()

    def peek(self, lines_max: int, bytes_max: int) -> list[Line]:
        """The first lines, still to be iterated: at most lines_max, and no more once bytes_max bytes are held."""
        held = 0
        while len(self._ahead) < lines_max and held < bytes_max:
            line = next(self._lines, None)
            if line is None:
                break
            self._ahead.append(line)
            held += len(line[1])
        return list(self._ahead)

    def skip_first(self) -> None:
        """Take off the first line that peek() has shown."""
        self._ahead.popleft()

    def _open(self) -> io.BufferedReader[Any]:
        try:
            stream: io.BufferedReader[Any] = self._exit.enter_context(io.BufferedReader(io.FileIO(self.file), _CHUNK))
            if stream.peek(2)[:2] == _GZIP:
                stream = self._exit.enter_context(io.BufferedReader(_Unpacked(stream), _CHUNK))
            start = stream.peek(64)[:64]
        except _GZIP_ERRORS as error:
            raise InvalidTrace(self.file, None, _gzip_reason(error)) from None
        except (OSError, ValueError) as error:
            raise InvalidTrace(self.file, None, _os_reason(error)) from None
        if not start:
            raise InvalidTrace(self.file, None, "the file is empty")
        for magic, reason in _FOREIGN:
            if start.startswith(magic):
                raise InvalidTrace(self.file, None, reason)
        return stream


def _read(file: str, stream: io.BufferedReader[Any], long_first: Callable[[bytes], bool]) -> LineReader:
    """The lines of an opened file, which the reader neither owns nor closes."""

    def fault(error: Exception) -> str:
        if isinstance(error, _GZIP_ERRORS):
            return _gzip_reason(error)
        raise InvalidTrace(file, None, _os_reason(error)) from None

    return LineReader(file, stream.readline, long_first, LINE_MAX, DOCUMENT_MAX, (*_GZIP_ERRORS, OSError), fault)


class _Unpacked(io.RawIOBase):
    """A gzip stream as a raw one, for the buffer in front of it, whose readline is C code where gzip's is not.

    One decompression a read: gzip's own read() gathers several, and loses what it has gathered when one of them fails.
    """

    def __init__(self, packed: io.BufferedReader[Any]) -> None:
        self._gzip = gzip.GzipFile(fileobj=packed)

    def readable(self) -> bool:
        """A BufferedReader asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of the buffer; 0 at the end."""
        data = self._gzip.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the gzip layer; the file below belongs to Lines."""
        self._gzip.close()
        super().close()


def _gzip_reason(error: Exception) -> str:
    """One phrase for what zlib and gzip report in three kinds of exception."""
    if isinstance(error, EOFError):
        return "the gzip data ends too early"
    return f"the gzip data is damaged: {error}"


def _os_reason(error: Exception) -> str:
    """The system's reason without the path, which InvalidTrace already names."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error)
