# Distinct sets of worker taints, numbered, so that requirements are judged once per set and not once per worker.
cimport cython
from kvcore._types cimport slot_t


@cython.final
cdef class TaintTable:
    cdef dict _numbers         # taints -> number
    cdef list _sets            # number -> taints, None while the number is free
    cdef list _workers         # number -> workers that carry exactly this set
    cdef list _free
    cdef dict _verdicts        # required taints -> bytes: by number, 1 iff the set satisfies them

    cdef slot_t acquire(self, frozenset taints) except -1
    cdef int release(self, slot_t number) except -1
    cdef slot_t size(self)
    cdef frozenset taints_of(self, slot_t number)
    cdef const unsigned char* satisfying(self, frozenset required) except NULL
