"""Bytes that are appended, written over and read anywhere: in memory while they are few, then in a temporary file."""

from __future__ import annotations

import os
import tempfile

__all__ = ["Spool"]

#: What is gathered in memory before it goes to the file that is there already.
_GATHERED_BYTES = 1 << 18


class Spool:
    """end: how many bytes there are. Raises: OSError with the folder of temporary files, from append and
    write.

    memory_bytes: what may stay in memory; beyond it, what is appended goes to the file in pieces. The file is unlinked
    as soon as it is there.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.end = 0
        self._memory_bytes = memory_bytes
        self._memory = bytearray()  # what is not in the file
        self._base = 0  # where it begins
        self._file = -1

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def append(self, content: bytes) -> int:
        """Returns where it stands."""
        place = self.end
        self._memory += content
        self.end += len(content)
        if len(self._memory) > self._memory_bytes:
            self._flush()
        return place

    def write(self, place: int, content: bytes) -> None:
        """Over what stands there."""
        if place < self._base < place + len(content):
            self._flush()
        if place >= self._base:
            place -= self._base
            self._memory[place : place + len(content)] = content
        else:
            self._put(content, place)

    def read(self, place: int, size: int) -> bytes:
        """What stands there; less at the end."""
        parts = []
        while size > 0 and place < self._base and (part := os.pread(self._file, min(size, self._base - place), place)):
            parts.append(part)
            place += len(part)
            size -= len(part)
        if size > 0:
            parts.append(bytes(self._memory[place - self._base : place - self._base + size]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _flush(self) -> None:
        if self._file < 0:
            self._file, path = tempfile.mkstemp(prefix="kvcore-")
            os.unlink(path)
            self._memory_bytes = min(self._memory_bytes, _GATHERED_BYTES)
        self._put(self._memory, self._base)
        self._base, self._memory = self.end, bytearray()

    def _put(self, content: bytes | bytearray, place: int) -> None:
        left = memoryview(content)
        while left:
            try:
                done = os.pwrite(self._file, left, place)
            except OSError as error:
                raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from error
            left, place = left[done:], place + done
