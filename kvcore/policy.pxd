# C look-up of policy.py's ClassTable; the values themselves stay Python objects, read once when a scheduler is built.
cimport cython
from kvcore._types cimport int64_t, slot_t


@cython.final
cdef class ClassTable:
    cdef readonly dict explicit        # name of an explicit class -> class index
    cdef readonly dict families        # family name -> family number
    cdef readonly tuple floors         # min_tokens per bucket, rising from 0
    cdef readonly tuple table          # class index per family * buckets + bucket
    cdef readonly bint synthetic       # one class takes everything
    cdef readonly slot_t default_family

    # cpdef, because a typed method of a .py module has no other form that C can call.
    cpdef slot_t lookup(self, str policy_class, int64_t uncached_tokens) except -1
