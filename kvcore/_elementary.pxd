# exp and tanh with the same bits on every machine. Leaf of the core: cimports nothing of it.


cdef double kv_exp(double x) noexcept nogil
cdef double kv_tanh(double x) noexcept nogil
