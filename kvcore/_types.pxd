# C vocabulary of the core. Every module of kvcore may cimport this file; it cimports nothing of kvcore.
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

ctypedef int64_t ns_t          # nanoseconds on the driver's monotonic origin, 0 <= ns < 2^62
ctypedef int64_t tokens_t      # a count of tokens, >= 0
ctypedef int32_t slot_t        # dense row number of a table; NO_SLOT = none

cdef extern from *:
    """
    typedef __int128 kv_i128;
    typedef unsigned __int128 kv_u128;
    #define KV_NEVER_NS INT64_MAX
    #define KV_NS_END ((int64_t)1 << 62)
    #ifndef KVCORE_DEBUG
    #define KVCORE_DEBUG 0
    #endif
    """
    ctypedef long long i128 "kv_i128"              # C knows the width; Cython only passes it through
    ctypedef unsigned long long u128 "kv_u128"
    const int64_t NEVER_NS "KV_NEVER_NS"           # later than any time: no deadline, no timer
    const int64_t NS_END "KV_NS_END"               # times are below it
    const bint DEBUG_CHECKS "KVCORE_DEBUG"         # invariant checks are compiled in iff 1

cdef extern from *:
    """
    #include <stdint.h>
    /* The fields of an int are read where their layout is known: a prompt names dozens of blocks, and the calls of
       Python's library cost as much as looking the blocks up. */
    static inline int kv_read_uint64(PyObject* value, uint64_t* number) {
    #if PYLONG_BITS_IN_DIGIT == 30 && PY_VERSION_HEX < 0x030F0000 && CYTHON_COMPILING_IN_CPYTHON
    #if PY_VERSION_HEX >= 0x030C0000
        const digit* digits = ((PyLongObject*)value)->long_value.ob_digit;
        uintptr_t tag = ((PyLongObject*)value)->long_value.lv_tag;
        Py_ssize_t size = (tag & 2) ? -1 : (Py_ssize_t)(tag >> 3);
    #else
        const digit* digits = ((PyLongObject*)value)->ob_digit;
        Py_ssize_t size = Py_SIZE(value);
    #endif
        if (size == 3 && digits[2] < 16)
            *number = (uint64_t)digits[2] << 60 | (uint64_t)digits[1] << 30 | digits[0];
        else if (size == 2)
            *number = (uint64_t)digits[1] << 30 | digits[0];
        else if (size == 1)
            *number = digits[0];
        else if (size == 0)
            *number = 0;
        else
            return 0;
        return 1;
    #else
        unsigned long long found = PyLong_AsUnsignedLongLong(value);
        if (found == (unsigned long long)-1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        *number = found;
        return 1;
    #endif
    }
    """
    # Of an exact int. False: it is not 0..2^64-1; nothing is raised.
    bint read_uint64 "kv_read_uint64"(PyObject* value, uint64_t* number) noexcept

cdef enum:
    NO_SLOT = -1

cdef enum:
    FRACTION_ONE = 1048576                         # decay fractions are fixed point, 2^20 = 1.0 (DESIGN D9)

cdef inline int64_t ceil_div(int64_t a, int64_t b) noexcept nogil:
    """ceil(a / b) for a >= 0, b > 0."""
    return a // b + (a % b != 0)

cdef inline uint64_t mix64(uint64_t x) noexcept nogil:
    """A 64-bit finaliser (splitmix64) for internal numeric keys; never for text from outside."""
    x ^= x >> 30
    x *= <uint64_t>0xBF58476D1CE4E5B9
    x ^= x >> 27
    x *= <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)

cdef inline int64_t saturated(i128 value) noexcept nogil:
    """The value, or the largest int64 where it does not fit."""
    cdef int64_t top = 0x7FFFFFFFFFFFFFFF
    return top if value > top else <int64_t>value

cdef inline bint grown(void** memory, size_t size) noexcept nogil:
    """realloc that says whether there was memory, and leaves the old block in place if not."""
    cdef void* block = realloc(memory[0], size)
    if block == NULL:
        return False
    memory[0] = block
    return True

cdef inline int resize(void** memory, size_t size) except -1 nogil:
    """realloc that raises MemoryError and leaves the old block in place."""
    if not grown(memory, size):
        with gil:
            raise MemoryError()
    return 0
