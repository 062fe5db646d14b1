# The ranks and all that is on them: workers, load, cached blocks, and which ranks' load has fallen lately.
cimport cython
from kvcore._ledger cimport Ledger
from kvcore._prefix cimport PrefixIndex
from kvcore._types cimport int32_t, int64_t, slot_t, uint32_t, uint64_t
from kvcore._workers cimport WorkerTable
from kvcore.request cimport WorkerConfig


cdef enum:
    CHANGES_MAX = 256              # ranks remembered one by one; more mean a full recheck (DESIGN D15)


@cython.final
cdef class Fleet:
    cdef WorkerTable workers
    cdef Ledger ledger
    cdef PrefixIndex cached                # blocks that engines told us of
    cdef slot_t changed[CHANGES_MAX]       # ranks whose load fell since heads were last judged
    cdef int32_t changes
    cdef bint recheck_all                  # too many of them, or the fleet itself has changed
    cdef bint indexed                      # block facts of engines are kept

    cdef bint store_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, tuple hashes) except -1
    cdef bint remove_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, tuple hashes) except -1
    cdef bint clear_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation) except -1
    cdef bint is_stale(self, WorkerConfig config, int64_t incarnation)
    cdef list leaving(self, WorkerConfig config, int64_t incarnation)
    cdef list all_ranks(self, slot_t worker)
    cdef list bookings_on(self, list ranks)
    cdef int upsert(self, WorkerConfig config, int64_t incarnation) except -1
    cdef int remove(self, uint64_t worker_id) except -1
    cdef int drop_ranks(self, list ranks) except -1
    cdef void complete_prefill(self, slot_t slot) noexcept
    cdef void release(self, slot_t slot, const uint64_t* path, int32_t length) noexcept
    cdef void forget_changes(self) noexcept

    cdef slot_t _told_rank(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation) except -2
    cdef void _note(self, slot_t rank) noexcept
    cdef int _reserve_ranks(self, slot_t ranks) except -1
    cdef void _open_rank(self, slot_t rank) noexcept
