# Values as little-endian bytes, written one behind the other into memory that grows, and read back with checks: structs
# and free functions. Whoever embeds a buffer_t owns its memory. setup.py refuses big-endian machines, so memory is
# copied as it is.
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.string cimport memcpy
from kvcore._types cimport i128, int32_t, int64_t, uint32_t, uint64_t


cdef struct buffer_t:
    char* data             # NULL until the first value
    size_t size
    size_t room


cdef struct reader_t:
    const char* at         # of memory that somebody else holds
    const char* end


cdef void buffer_init(buffer_t* buffer) noexcept nogil
cdef void buffer_free(buffer_t* buffer) noexcept nogil
cdef int buffer_grow(buffer_t* buffer, size_t size) except -1


cdef inline int put(buffer_t* buffer, const void* data, size_t size) except -1:
    """A block of memory, without its size."""
    if buffer.room - buffer.size < size:
        buffer_grow(buffer, size)
    if size:
        memcpy(buffer.data + buffer.size, data, size)
        buffer.size += size
    return 0


cdef inline int put_u8(buffer_t* buffer, unsigned char value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_i32(buffer_t* buffer, int32_t value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_u32(buffer_t* buffer, uint32_t value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_i64(buffer_t* buffer, int64_t value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_u64(buffer_t* buffer, uint64_t value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_i128(buffer_t* buffer, i128 value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_f64(buffer_t* buffer, double value) except -1:
    return put(buffer, &value, sizeof(value))


cdef inline int put_text(buffer_t* buffer, str text) except -1:
    """UTF-8 behind its length in bytes; None: a length that no text has."""
    cdef Py_ssize_t size
    cdef const char* data
    if text is None:
        return put_i64(buffer, -1)
    data = PyUnicode_AsUTF8AndSize(text, &size)
    put_i64(buffer, size)
    return put(buffer, data, size)


cdef inline size_t left(const reader_t* reader) noexcept nogil:
    """Bytes that have not been read."""
    return reader.end - reader.at


cdef inline int take(reader_t* reader, void* data, size_t size) except -1:
    """A block of memory. Raises ValueError where there is not so much."""
    if left(reader) < size:
        raise ValueError("it breaks off")
    if size:
        memcpy(data, reader.at, size)
        reader.at += size
    return 0


cdef inline int64_t take_i64(reader_t* reader) except? -1:
    cdef int64_t value
    take(reader, &value, sizeof(value))
    return value


cdef inline uint64_t take_u64(reader_t* reader) except? 0:
    cdef uint64_t value
    take(reader, &value, sizeof(value))
    return value


cdef inline int take_i128(reader_t* reader, i128* value) except -1:
    return take(reader, value, sizeof(value[0]))


cdef int64_t take_number(reader_t* reader, int64_t low, int64_t high) except? -1
cdef int32_t take_i32(reader_t* reader, int32_t low, int32_t high) except? -1
cdef uint32_t take_u32(reader_t* reader) except? 0
cdef bint take_flag(reader_t* reader) except -1
cdef int64_t take_count(reader_t* reader, size_t item_size) except -1
cdef str take_text(reader_t* reader)
