"""Values as little-endian bytes: what the digest hashes, and what a snapshot is made of (DESIGN 6).

Owns how a number, a text and a block of memory stand as bytes. A reader is told bytes by anybody: it never looks behind
their end, never makes room for more than there can be, and whatever is wrong is a ValueError.

Never here: what the values mean.

Cost: O(bytes), amortised.
"""
from cpython.unicode cimport PyUnicode_DecodeUTF8
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


cdef int64_t take_number(reader_t* reader, int64_t low, int64_t high) except? -1:
    """A number that is low .. high."""
    cdef int64_t value = take_i64(reader)
    if not low <= value <= high:
        raise ValueError(f"a number must be {low}..{high}, not {value}")
    return value


cdef int32_t take_i32(reader_t* reader, int32_t low, int32_t high) except? -1:
    cdef int32_t value
    take(reader, &value, sizeof(value))
    if not low <= value <= high:
        raise ValueError(f"a number must be {low}..{high}, not {value}")
    return value


cdef uint32_t take_u32(reader_t* reader) except? 0:
    cdef uint32_t value
    take(reader, &value, sizeof(value))
    return value


cdef bint take_flag(reader_t* reader) except -1:
    cdef unsigned char value
    take(reader, &value, sizeof(value))
    if value > 1:
        raise ValueError(f"a flag must be 0 or 1, not {value}")
    return value


cdef int64_t take_count(reader_t* reader, size_t item_size) except -1:
    """How many items of at least this size follow."""
    return take_number(reader, 0, left(reader) // item_size)


cdef str take_text(reader_t* reader):
    """UTF-8 behind its length in bytes, or None."""
    cdef int64_t size = take_number(reader, -1, left(reader))
    cdef str text
    if size < 0:
        return None
    if <size_t>size > left(reader):
        raise ValueError("it breaks off")
    text = PyUnicode_DecodeUTF8(reader.at, size, NULL)
    reader.at += size
    return text
