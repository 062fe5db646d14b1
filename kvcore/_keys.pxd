# The order inside a class: from the inputs of a key to a key_t.
from kvcore._heap cimport key_t
from kvcore._types cimport int64_t, ns_t, tokens_t, uint32_t

cdef enum order_t:
    ORDER_FCFS
    ORDER_WSPT
    ORDER_EDF
    ORDER_LCFS

cdef order_t order_named(str name) except *
cdef void fill_key(
    key_t* key, order_t order, uint32_t strict_priority, double priority_jump, ns_t arrival_ns, ns_t deadline_ns,
    tokens_t cost) noexcept nogil
