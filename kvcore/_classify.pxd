# From a class's name and the uncached tokens of a prompt to a class index.
cimport cython
from kvcore._types cimport int32_t, int64_t, slot_t
from kvcore.policy cimport ClassTable


cdef struct meaning_t:
    slot_t explicit            # index of the class that a name names, or NO_SLOT
    slot_t family              # number of the family among whose classes the bucket decides
    bint known                 # the name is one of this profile's, or no name was needed


@cython.final
cdef class Classifier:
    cdef ClassTable _table
    cdef int64_t* _floors      # least uncached tokens per bucket, rising from 0
    cdef slot_t* _cells        # class index per family * buckets + bucket
    cdef slot_t _buckets
    cdef bint _synthetic       # one class takes everything
    cdef meaning_t unnamed     # of no name
    cdef meaning_t* numbered   # of RequestTable.names
    cdef int32_t _numbers

    cdef meaning_t meaning(self, str policy_class) except *
    cdef int learn(self, list names) except -1
    cdef slot_t class_of(self, const meaning_t* meaning, int64_t uncached_tokens) noexcept nogil
