"""exp and tanh out of + - * / alone (DESIGN D8).

The functions of libm differ in the last bit from one platform to the next, and one bit decides a tie or a softmax draw.
These are IEEE double operations in a fixed order, compiled without contraction (DESIGN D20), so they are the same
everywhere; the oracle has them once more in Python floats.

Owns no state. Never here: anything that knows what a cost is.

Accuracy: within 1e-15 of the true value, relative, except where the result of exp is subnormal. Cost: about 5 ns.
"""
from libc.math cimport INFINITY, fabs
from libc.stdint cimport int64_t, uint64_t


cdef union bits_t:
    double value
    uint64_t bits


cdef inline double power_of_two(int64_t n) noexcept nogil:
    """2^n for -1022 <= n <= 1023: the exponent field of a double."""
    cdef bits_t word
    word.bits = <uint64_t>(n + 1023) << 52
    return word.value


cdef double kv_exp(double x) noexcept nogil:
    """x = n ln 2 + r with |r| <= ln 2 / 2, so exp(x) = 2^n exp(r); the Taylor polynomial of degree 13 gives exp(r).

    ln 2 is split in two parts, the first with so many zero bits at its end that n times it is exact (Cody, Waite 1980).
    """
    cdef double scaled, r, p
    cdef int64_t n, half
    if x != x:
        return x
    if x <= -745.2:
        return 0.0
    if x >= 709.79:
        return INFINITY
    scaled = x * 1.4426950408889634 + 0.5
    n = <int64_t>scaled
    if <double>n > scaled:
        n -= 1
    r = (x - <double>n * 0.693147180369123816490) - <double>n * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    if n < -1022 or n > 1023:
        # One factor would itself be out of range. The first product is exact, so there is one rounding.
        half = n // 2
        return (p * power_of_two(half)) * power_of_two(n - half)
    return p * power_of_two(n)


cdef double kv_tanh(double x) noexcept nogil:
    """(e - 1) / (e + 1) with e = exp(2 |x|). Near 0, where e - 1 would cancel, it is a Taylor polynomial, too."""
    cdef double size = fabs(x)
    cdef double u, p
    if size >= 20.0:
        p = 1.0
    elif size < 3.725290298461914e-09:  # 2^-28: the cube of x is below half a unit of the last place
        return x
    elif size < 0.25:
        u = 2.0 * size
        p = 1.0 / 6227020800.0
        p = p * u + 1.0 / 479001600.0
        p = p * u + 1.0 / 39916800.0
        p = p * u + 1.0 / 3628800.0
        p = p * u + 1.0 / 362880.0
        p = p * u + 1.0 / 40320.0
        p = p * u + 1.0 / 5040.0
        p = p * u + 1.0 / 720.0
        p = p * u + 1.0 / 120.0
        p = p * u + 1.0 / 24.0
        p = p * u + 1.0 / 6.0
        p = p * u + 0.5
        p = p * u + 1.0
        p = p * u
        p = p / (p + 2.0)
    else:
        p = 1.0 - 2.0 / (kv_exp(2.0 * size) + 1.0)
    return -p if x < 0.0 else p
