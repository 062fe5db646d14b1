# The last decisions, each with the score table that it was made on.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._placement cimport Placement
from kvcore._requests cimport RequestTable
from kvcore._selector cimport query_t
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, uint32_t, uint64_t
from kvcore.explanation cimport Decision, Score


cdef enum:
    SCORES_MAX = 64                # candidates kept of one decision


cdef struct score_t:
    # One candidate; the rank by name, because its slot may be another's by the time it is read.
    uint64_t worker_id
    uint32_t dp_rank
    double cost
    int64_t overlap
    tokens_t cached
    int64_t prefill
    int64_t decode
    int64_t requests


cdef struct decision_t:
    int64_t attempt
    ns_t now_ns
    slot_t class_index
    uint64_t worker_id             # the chosen rank
    uint32_t dp_rank
    bint pinned
    double temperature
    double margin
    slot_t count                   # candidates
    slot_t ties                    # of them, those of least cost
    int32_t kept                   # of them, those in `scores`
    int32_t room
    score_t* scores                # cheapest first


cdef struct weighed_t:
    slot_t rank
    double cost


@cython.final
cdef class DecisionRing:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef decision_t* _rows
    cdef int32_t _room             # rows
    cdef int64_t _noted            # decisions ever
    cdef list _ids                 # by row: request id
    cdef list _classes             # by row: class name
    cdef dict _last                # request id -> row of its last decision
    cdef list names                # of the classes in force, by index

    cdef int note(self, slot_t slot, slot_t chosen, int64_t attempt) except -1
    cdef Decision find(self, str request_id)
    cdef tuple all(self)

    cdef decision_t* _next_row(self, str request_id, slot_t class_index) except NULL
    cdef int _weigh(self, decision_t* row, const query_t* query, slot_t count, slot_t chosen) except -1
    cdef void _fill(self, score_t* score, const query_t* query, const weighed_t* entry) noexcept
    cdef Decision _decision(self, int32_t at)
