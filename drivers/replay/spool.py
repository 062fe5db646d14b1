"""Bytes that are appended, written over and read anywhere: in memory while they are few, then in a temporary file."""

from __future__ import annotations

import os
import tempfile

__all__ = ["Spool"]


class Spool:
    """end: how many bytes there are. Raises: OSError, from append and write.

    memory_bytes: what stays in memory. The file is unlinked as soon as it is there.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.end = 0
        self._memory = bytearray()
        self._memory_bytes = memory_bytes
        self._file = -1

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def append(self, content: bytes) -> int:
        """Returns where it stands."""
        place = self.end
        if self._file < 0:
            self._memory += content
            if len(self._memory) > self._memory_bytes:
                self._leave_memory()
        else:
            self._put(content, place)
        self.end += len(content)
        return place

    def write(self, place: int, content: bytes) -> None:
        """Over what stands there."""
        if self._file < 0:
            self._memory[place : place + len(content)] = content
        else:
            self._put(content, place)

    def read(self, place: int, size: int) -> bytes:
        """What stands there; less at the end."""
        if self._file < 0:
            return bytes(self._memory[place : place + size])
        parts = []
        while size > 0 and (part := os.pread(self._file, size, place)):
            parts.append(part)
            place += len(part)
            size -= len(part)
        return b"".join(parts)

    def _leave_memory(self) -> None:
        self._file, path = tempfile.mkstemp(prefix="kvcore-")
        os.unlink(path)
        self._put(self._memory, 0)
        self._memory = bytearray()

    def _put(self, content: bytes | bytearray, place: int) -> None:
        left = memoryview(content)
        while left:
            done = os.pwrite(self._file, left, place)
            left, place = left[done:], place + done
