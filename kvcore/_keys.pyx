"""Keys of waiting requests (DESIGN D3): (strict priority, score, seq), turned into unsigned words that sort ascending.

FCFS and LCFS scores are integers of nanoseconds, so that no precision is lost at any time origin; WSPT is the double
(1 + jump) / cost. Not-a-number and negative jumps count as 0. seq is left to whoever stores the request.
"""
from libc.math cimport floor
from libc.string cimport memcpy
from kvcore._types cimport uint64_t

cdef int64_t JUMP_MAX = (<int64_t>1 << 62) - 1
cdef uint64_t SIGN = <uint64_t>1 << 63


cdef order_t order_named(str name) except *:
    """The order that a QueuePolicy value names."""
    return {"fcfs": ORDER_FCFS, "wspt": ORDER_WSPT, "edf": ORDER_EDF, "lcfs": ORDER_LCFS}[name]


cdef void fill_key(
    key_t* key, order_t order, uint32_t strict_priority, double priority_jump, ns_t arrival_ns, ns_t deadline_ns,
    tokens_t cost) noexcept nogil:
    """Fill everything but seq. Smaller keys are served sooner."""
    cdef double jump = priority_jump if priority_jump > 0.0 else 0.0
    cdef double rounded = jump * 1e9 + 0.5
    cdef int64_t jump_ns = <int64_t>floor(rounded) if rounded < <double>JUMP_MAX else JUMP_MAX
    cdef double weight
    cdef uint64_t bits
    key.tier = ~strict_priority
    key.second = 0
    if order == ORDER_FCFS:
        key.first = _descending(jump_ns - arrival_ns)
    elif order == ORDER_LCFS:
        key.first = _descending(jump_ns + arrival_ns)
    elif order == ORDER_EDF:
        key.first = deadline_ns
        key.second = _descending(jump_ns - arrival_ns)
    else:
        # Doubles that are not negative sort like their bits.
        weight = (1.0 + jump) / <double>cost
        memcpy(&bits, &weight, sizeof(bits))
        key.first = ~bits


cdef uint64_t _descending(int64_t score) noexcept nogil:
    """Highest score first."""
    return ~(<uint64_t>score ^ SIGN)
