"""A process that runs out of memory at a known place, however long it has lived: `with little_memory(spare):`."""

from __future__ import annotations

import ctypes
import resource
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

#: What earlier tests gave back to the allocator is taken in blocks of these sizes; bits below the last do not matter.
SIZES = tuple(2**power for power in range(26, 11, -1))
BLOCKS_MAX = 1 << 17

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.malloc.restype = ctypes.c_void_p
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


@contextmanager
def little_memory(spare: int) -> Iterator[None]:
    """Memory for this many bytes more, and not one above: neither from the system nor from what was given back."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = array("Q", bytes(8 * BLOCKS_MAX))
    count = 0
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used, hard))
        for size in SIZES:
            while count < BLOCKS_MAX and (block := _libc.malloc(size)):
                held[count] = block
                count += 1
        resource.setrlimit(resource.RLIMIT_AS, (used + spare, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for block in held[:count]:
            _libc.free(block)
