# What keeps a request that does not run from each of the ranks that it may use, and how one says so.
cimport cython
from kvcore._fleet cimport Fleet
from kvcore._load cimport load_t
from kvcore._placement cimport Placement
from kvcore._requests cimport RequestTable
from kvcore._types cimport i128, int32_t, int64_t, slot_t
from kvcore.explanation cimport RankView


cdef enum obstacle_t:
    OBSTACLE_BUSY                  # its prefill load is above the bound of the class
    OBSTACLE_ROOM                  # too few free blocks, under strict capacity
    OBSTACLE_REQUESTS              # as many requests as it may run, likewise
    OBSTACLE_OVERLOADED
    OBSTACLE_LEASED

cdef enum:
    OBSTACLES = 5
    VIEWS_MAX = 64                 # ranks that are told of one by one


cdef struct finding_t:
    # One kind of obstacle, over all ranks that a request may use.
    slot_t ranks                   # where it stands in the way
    slot_t nearest                 # one of these: where nothing else does, if possible; then where it is least
    bint alone
    i128 excess


@cython.final
cdef class Obstacles:
    cdef RequestTable _requests
    cdef Fleet _fleet
    cdef Placement _placement
    cdef slot_t _slot              # the request last looked at
    cdef slot_t _pair              # busy thresholds of its class, NO_SLOT: none
    cdef int64_t _needed           # blocks, where none of its own run; under strict capacity
    cdef slot_t usable             # ranks that it may use, in Placement's candidates until somebody else asks
    cdef finding_t _found[OBSTACLES]

    cdef int look(self, slot_t slot) except -1
    cdef tuple views(self)
    cdef int tell(self, str class_name, str whose, list sentences) except -1

    cdef void _weigh(self, finding_t* found, slot_t rank, bint alone, i128 excess) noexcept
    cdef int32_t _standing(self, slot_t rank) noexcept
    cdef i128 _excess(self, slot_t rank, int obstacle) noexcept
    cdef int64_t _needed_on(self, slot_t rank) noexcept
    cdef RankView _view(self, slot_t rank)
    cdef RankView _lost(self, slot_t rank)
    cdef str _sentence(self, int obstacle, str class_name)
    cdef str _lease(self, slot_t rank)
