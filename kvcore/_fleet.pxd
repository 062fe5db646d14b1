# The ranks and all that is on them: workers and what is said of them, load, cached blocks, whose load has fallen.
cimport cython
from kvcore._exchange cimport Exchange
from kvcore._heap cimport heap_t
from kvcore._ledger cimport Ledger
from kvcore._marks cimport MarkTable
from kvcore._predicted cimport PredictedBlocks
from kvcore._prefix cimport PrefixIndex
from kvcore._requests cimport RequestTable
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, uint32_t, uint64_t
from kvcore._workers cimport WorkerTable
from kvcore.request cimport Rank, WorkerConfig


cdef enum:
    CHANGES_MAX = 256              # ranks remembered one by one; more mean a full recheck (DESIGN D15)
    TIERS = 3                      # device, host, disk


@cython.final
cdef class Fleet:
    cdef WorkerTable workers
    cdef MarkTable marks
    cdef Ledger ledger
    cdef Exchange exchange                 # with other replicas
    cdef PrefixIndex device                # blocks that engines told us of, by tier
    cdef PrefixIndex host
    cdef PrefixIndex disk
    cdef PredictedBlocks predicted         # blocks of own dispatches, or None
    cdef bint indexed                      # block facts of engines are kept
    cdef bint bounded                      # predicted blocks are bounded by what a rank can hold
    cdef bint strict                       # any release may let somebody in
    cdef ns_t _report_ttl_ns               # NEVER_NS: reports count for nothing
    cdef heap_t _report_ends               # ranks by the end of their report
    cdef int32_t* _report_pos
    cdef int64_t _reports                  # told so far: settles equal ends
    cdef slot_t _ranks                     # room of _report_pos
    cdef slot_t changed[CHANGES_MAX]       # ranks whose load fell since heads were last judged
    cdef int32_t changes
    cdef bint recheck_all                  # too many of them, or the fleet itself has changed
    cdef readonly int64_t version          # counts changes of membership, caps and states
    cdef ns_t _pin_grace_ns                # 0: none
    cdef ns_t _empty_wait_ns               # 0: none
    cdef readonly bint graced              # somebody may wait for what is lost
    cdef ns_t empty_ns                     # since when there is no rank; NEVER_NS: there are some
    cdef list turned                       # ranks lost or found since somebody looked; only where graced
    cdef bint emptied                      # the fleet has lost its last rank or found its first, likewise

    cdef int adopt(self, list thresholds, bint strict) except -1
    cdef slot_t expect_rank(self, uint64_t worker_id, uint32_t dp_rank) except -1
    cdef ns_t grace_end_ns(self, Rank pinned, ns_t arrival_ns) except -1
    cdef bint store_blocks(
        self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int tier, tuple hashes) except -1
    cdef bint remove_blocks(
        self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int tier, tuple hashes) except -1
    cdef bint clear_blocks(self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int tier) except -1
    cdef bint set_mark(
        self, uint64_t worker_id, int64_t incarnation, str source, bint available, bint overloaded,
        ns_t end_ns) except -1
    cdef bint report(
        self, uint64_t worker_id, uint32_t dp_rank, int64_t incarnation, int64_t sequence, int64_t prefill,
        int64_t blocks, int64_t requests) except -1
    cdef bint is_stale(self, WorkerConfig config, int64_t incarnation)
    cdef list leaving(self, WorkerConfig config, int64_t incarnation)
    cdef list all_ranks(self, slot_t worker)
    cdef list bookings_on(self, list ranks)
    cdef int upsert(self, WorkerConfig config, int64_t incarnation) except -1
    cdef int remove(self, uint64_t worker_id) except -1
    cdef int drop_ranks(self, list ranks) except -1
    cdef int advance(self, ns_t now_ns) except -1 nogil
    cdef int _end_marks(self, ns_t now_ns) except -1
    cdef ns_t next_due_ns(self, bint awaited) noexcept nogil
    cdef bint knows_blocks(self) noexcept nogil
    cdef int start_report(self, slot_t rank, ns_t end_ns) except -1
    cdef ns_t report_end_ns(self, slot_t rank) noexcept
    cdef int touch(self, slot_t slot, const uint64_t* path, int32_t length) except -1 nogil
    cdef void note(self, slot_t rank) noexcept nogil
    cdef int hint(self, tuple ranks) except -1
    cdef int complete_prefill(self, slot_t slot) except -1 nogil
    cdef int release(self, slot_t slot, bint completed) except -1 nogil
    cdef int64_t heard(self, object event) except -1
    cdef void forget_changes(self) noexcept nogil

    cdef PrefixIndex tier(self, int tier)
    cdef int _tell(self, PrefixIndex index, tuple hashes, slot_t rank, bint stored) except -1
    cdef int _restate(self, slot_t worker) except -1
    cdef int _reserve_ranks(self, slot_t ranks) except -1
    cdef void _open_rank(self, slot_t rank) noexcept
    cdef int _lose(self, slot_t rank) except -1
    cdef int _find(self, slot_t rank) except -1
    cdef void _end_report(self, slot_t rank) noexcept nogil
