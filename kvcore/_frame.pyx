"""SnapshotFrame: head and checksum of a snapshot, and the single values between them, read with checks.

    "kvcoreSN", version, content, BLAKE2b-128 of all bytes before

Never here: what the content says (_snapshot).
"""
import hashlib
import json

from cpython.bytes cimport PyBytes_FromStringAndSize
from kvcore._types cimport NEVER_NS, NS_END, uint32_t
from kvcore._wire cimport put, put_u32, take_i64, take_number, take_text, take_u32

cdef bytes MAGIC = b"kvcoreSN"

cdef enum:
    CHECKSUM_BYTES = 16


cdef int put_head(buffer_t* buffer) except -1:
    put(buffer, <const char*>MAGIC, len(MAGIC))
    return put_u32(buffer, VERSION)


cdef bytes sealed(const buffer_t* buffer):
    """Head and content, with the checksum behind them."""
    cdef bytes data = PyBytes_FromStringAndSize(buffer.data, buffer.size)
    return data + _checksum(data)


cdef bytes _checksum(bytes data):
    return hashlib.blake2b(data, digest_size=CHECKSUM_BYTES).digest()


def _no_constant(str text):
    raise ValueError(f"{text} is no JSON")


cdef class SnapshotFrame:
    def __cinit__(self, bytes data not None):
        """Raises ValueError for what is no snapshot, one of another version, or a damaged one."""
        cdef Py_ssize_t head = len(MAGIC)
        cdef Py_ssize_t end = len(data) - CHECKSUM_BYTES
        if not data.startswith(MAGIC):
            raise ValueError("not a snapshot of kvcore")
        if end < head + <Py_ssize_t>sizeof(uint32_t):
            raise ValueError("it breaks off")
        self.data = data
        self.reader.at = <const char*>data + head
        self.reader.end = <const char*>data + end
        version = take_u32(&self.reader)
        if version != VERSION:
            raise ValueError(f"format version {version}; this version reads {VERSION}")
        if _checksum(data[:end]) != data[end:]:
            raise ValueError("its checksum is wrong")

    cdef object take_json(self, object kind):
        """A JSON value of this type."""
        text = take_text(&self.reader)
        value = None if text is None else json.loads(text, parse_constant=_no_constant)
        if type(value) is not kind:
            raise ValueError(f"JSON must be of type {kind.__name__}, not {type(value).__name__}")
        return value

    cdef ns_t take_past(self) except? -1:
        """A time that has been."""
        return take_number(&self.reader, 0, self.now_ns)

    cdef ns_t take_due(self) except? -1:
        """A time to come, or never."""
        cdef ns_t due_ns = take_i64(&self.reader)
        if due_ns != NEVER_NS and not self.now_ns < due_ns <= NS_END:
            raise ValueError(f"something was due at {due_ns} ns, and it is {self.now_ns} ns")
        return due_ns
