# Workers and their data-parallel ranks: identity, incarnation, configuration, canonical order.
cimport cython
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, uint32_t, uint64_t
from kvcore._taints cimport TaintTable
from kvcore.request cimport WorkerConfig


cdef enum:
    DP_SIZE_MAX = 65536            # ranks of one worker: a bound on what one event may allocate
    BATCHED_TOKENS_DEFAULT = 10000000  # of a worker that does not say


cdef struct rank_t:
    uint64_t worker_id
    uint32_t dp_rank
    slot_t worker          # NO_SLOT: the rank is gone and only waiting pins keep the row
    int32_t pins           # waiting requests pinned to it
    ns_t lost_ns           # since when it cannot be used; NEVER_NS: it can
    slot_t next_free       # free rows, neither pinned nor present
    slot_t prev_free


cdef struct worker_t:
    uint64_t worker_id
    int64_t incarnation
    uint32_t dp_start
    uint32_t dp_size
    slot_t* ranks          # rank slots of dp_start .. dp_start + dp_size - 1
    slot_t taints          # number of its taint set


cdef struct names_t:
    # A set of worker ids.
    uint64_t* rows         # open addressing by mix64; 0: empty
    uint64_t mask          # number of rows - 1
    bint zero              # 0 is in the set


@cython.final
cdef class WorkerTable:
    cdef dict _slots               # worker_id -> worker slot
    cdef list _free
    cdef slot_t _live              # workers
    cdef worker_t* workers
    cdef slot_t _workers_size
    cdef rank_t* ranks
    cdef readonly slot_t ranks_size    # every rank slot in use is below it; it falls when the last ones are freed
    cdef slot_t _ranks_room
    cdef slot_t _ranks_free
    cdef dict _ghosts              # (worker_id, dp_rank) -> rank slot kept by waiting pins only
    cdef slot_t* order             # present ranks by (worker_id, dp_rank)
    cdef slot_t present            # how many
    cdef TaintTable taints
    cdef names_t _names            # the last long allow-list, or nothing of worth
    cdef frozenset _named          # whose copy that is, or None

    cdef slot_t count(self) noexcept nogil
    cdef slot_t find(self, object worker_id)
    cdef slot_t find_rank(self, object worker_id, uint32_t dp_rank)
    cdef slot_t find_any_rank(self, object worker_id, uint32_t dp_rank)
    cdef slot_t find_or_expect_rank(self, object worker_id, uint32_t dp_rank) except -1
    cdef slot_t told_rank(self, object worker_id, uint32_t dp_rank, int64_t incarnation) except -2
    cdef slot_t add_worker(self, WorkerConfig config, int64_t incarnation) except -1
    cdef int remove_worker(self, slot_t worker) except -1
    cdef slot_t add_rank(self, slot_t worker, uint32_t dp_rank) except -1
    cdef int remove_rank(self, slot_t rank) except -1
    cdef int set_range(self, slot_t worker, uint32_t dp_start, uint32_t dp_size) except -1
    cdef void pin(self, slot_t rank) noexcept
    cdef int unpin(self, slot_t rank) except -1
    cdef int set_taints(self, slot_t worker, frozenset taints) except -1
    cdef slot_t ranks_of(self, frozenset allowed, frozenset required, slot_t* out) except -1

    cdef slot_t _new_rank(self) except -1
    cdef void _free_rank(self, slot_t rank) noexcept
    cdef void _take_rank(self, slot_t rank) noexcept
    cdef slot_t _ranks_among(self, frozenset allowed, const unsigned char* fits, slot_t* out) except -1
    cdef int _name(self, frozenset ids) except -1
    cdef slot_t _position(self, uint64_t worker_id, uint32_t dp_rank) noexcept nogil
