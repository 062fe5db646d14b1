# C layout of the values in replica.py, with the same fields in the same order, and the factories of facts.
cimport cython
from kvcore._types cimport int64_t, uint32_t, uint64_t


@cython.final
cdef class PeerFact:
    cdef readonly object kind                  # FactKind
    cdef readonly str replica
    cdef readonly int64_t generation           # >= 0
    cdef readonly int64_t attempt              # >= 1
    cdef readonly uint64_t worker_id
    cdef readonly uint32_t dp_rank
    cdef readonly int64_t incarnation
    cdef readonly tuple sequence_hashes        # of int, root to leaf
    cdef readonly int64_t unnamed_blocks
    cdef readonly int64_t prefill_tokens
    cdef readonly int64_t reserve_blocks
    cdef readonly bint completed


@cython.final
cdef class ReplicaFacts:
    cdef readonly str replica
    cdef readonly int64_t generation
    cdef readonly int64_t next_attempt         # >= 1
    cdef readonly tuple facts                  # of PeerFact, by attempt


cdef inline PeerFact make_fact(object kind, str replica, int64_t generation, int64_t attempt):
    """A fact that says no more than its name."""
    cdef PeerFact fact = PeerFact.__new__(PeerFact)
    fact.kind = kind
    fact.replica = replica
    fact.generation = generation
    fact.attempt = attempt
    fact.sequence_hashes = ()
    return fact
