# The chain of block names, for C.
from kvcore._types cimport uint64_t

cdef uint64_t xxh3_16(uint64_t first, uint64_t second, uint64_t seed) noexcept nogil   # seed of a chain: 1337
