"""Values as little-endian bytes: what the digest hashes (DESIGN 6).

Owns how a number, a text and a block of memory stand as bytes. Never here: what they mean.

Cost: O(bytes), amortised.
"""
from libc.stdlib cimport free
from kvcore._types cimport resize

cdef enum:
    ROOM_MIN = 256


cdef void buffer_init(buffer_t* buffer) noexcept nogil:
    """An empty buffer without memory."""
    buffer.data = NULL
    buffer.size = 0
    buffer.room = 0


cdef void buffer_free(buffer_t* buffer) noexcept nogil:
    free(buffer.data)
    buffer_init(buffer)


cdef int buffer_grow(buffer_t* buffer, size_t size) except -1:
    """Room for so many more bytes."""
    cdef size_t room = max(buffer.size + size, 2 * buffer.room, <size_t>ROOM_MIN)
    resize(<void**>&buffer.data, room)
    buffer.room = room
    return 0
