"""Names of KV blocks: each names its block and everything before it (reference facts: hash formation).

A sequence hash chains local hashes: sequence[0] = local[0], sequence[i] = XXH3-64(le64(sequence[i-1]) + le64(local[i]),
seed 1337). Only the 16-byte case of XXH3-64 (xxHash specification 0.8) is needed for the chain; it is written out here
because the core depends on numpy and PyYAML only. Tests compare it with the xxhash package.
"""
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_CheckExact
from kvcore._types cimport u128, uint64_t

CHAIN_SEED = 1337

cdef extern from *:
    """
    static inline uint64_t kv_swap64(uint64_t x) { return __builtin_bswap64(x); }
    """
    uint64_t kv_swap64(uint64_t x) noexcept nogil

# Eight-byte words 3 to 6 of the specification's default secret, xored in pairs.
cdef uint64_t FLIP_LOW = <uint64_t>0x1F67B3B7A4A44072 ^ <uint64_t>0x78E5C0CC4EE679CB
cdef uint64_t FLIP_HIGH = <uint64_t>0x2172FFCC7DD05A82 ^ <uint64_t>0x8E2443F7744608B8


cdef uint64_t xxh3_16(uint64_t first, uint64_t second, uint64_t seed) noexcept nogil:
    """XXH3-64 of the 16 bytes le64(first) + le64(second)."""
    cdef uint64_t low = first ^ (FLIP_LOW + seed)
    cdef uint64_t high = second ^ (FLIP_HIGH - seed)
    cdef u128 product = <u128>low * high
    cdef uint64_t acc = 16 + kv_swap64(low) + high + (<uint64_t>product ^ <uint64_t>(product >> 64))
    acc ^= acc >> 37
    acc *= <uint64_t>0x165667919E3779F9
    return acc ^ (acc >> 32)


cdef inline uint64_t _word(object value) except? 0:
    """An integer 0..2^64-1; C would cut a float short without a word."""
    if not PyLong_CheckExact(value):
        raise TypeError(f"a block hash must be an integer, not {type(value).__name__}")
    return PyLong_AsUnsignedLongLong(value)


def chain(parent, local):
    """Name of the block `local` that follows the prefix named `parent`; both integers 0..2^64-1."""
    return xxh3_16(_word(parent), _word(local), 1337)


def sequence_hashes(local_hashes):
    """Sequence hashes of blocks given root to leaf by their local hashes: shape (n,) -> (n,).

    Raises OverflowError or TypeError on anything but integers 0..2^64-1. Cost: O(n), about 10 ns a block.
    """
    cdef uint64_t name = 0
    cdef bint first = True
    names = []
    for local in local_hashes:
        name = _word(local) if first else xxh3_16(name, _word(local), 1337)
        first = False
        names.append(name)
    return tuple(names)
