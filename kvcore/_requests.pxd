# Live requests: identity, state, path of blocks, deadlines and booking timers.
cimport cython
from cpython.ref cimport PyObject
from kvcore._heap cimport heap_t
from kvcore._slots cimport SlotTable
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, uint32_t, uint64_t
from kvcore.request cimport Request


cdef enum state_t:
    STATE_FREE             # no request in this row
    STATE_WAITING          # stored in its class, ready to run
    STATE_DEFERRED         # held in its class by an admission policy
    STATE_REFRESHING       # popped, and asked about outside (DESIGN D13)
    STATE_RUNNING          # booked on a rank; from here on it has an attempt
    STATE_EVICTED          # its booking is gone, its driver has not answered yet


cdef enum timer_t:
    # What time does to a request that does not run yet; equal times fall due in this order, then by seq.
    TIMER_DEADLINE
    TIMER_REFRESH          # the outside index has not answered
    TIMER_GRACE            # what its pin or the fleet has lost has not come back (DESIGN D14)
    TIMER_LOOK             # are all its ranks overloaded? (DESIGN D7)
    TIMERS


cdef struct plain_t:
    # What a request says that names no rank, taint, overlap or weight: all that there is to know of most.
    tokens_t prompt
    double priority_jump
    int64_t expected           # output tokens; -1: nobody has said
    ns_t deadline_ns           # NEVER_NS: none
    uint32_t strict_priority
    int32_t class_name         # of RequestTable.names; -1: it names no class
    bint track_prefill
    bint do_not_queue


cdef struct request_t:
    state_t state
    bint lazy              # it has come as a record; its Request is made when somebody asks for it
    bint constrained       # a pin, an allow-list or required taints leave only some ranks
    bint special           # it brings overlap, weights or preferred taints of its own
    bint track_prefill
    bint do_not_queue
    bint may_wait          # False: dispatch in the step of arrival, or reject
    bint accepted          # the backend has taken the present booking
    bint heard             # its admission policy has heard that it was dispatched
    int32_t attempts       # dispatches so far
    slot_t policy          # class whose admission policy manages it, or NO_SLOT
    slot_t pin             # rank slot of the exact pin, or NO_SLOT
    bint keeps_pin         # it has a share in that rank's row staying what it is
    slot_t class_index     # -1 before classification
    tokens_t prompt
    double priority_jump
    int64_t expected       # output tokens; -1: nobody has said
    uint32_t strict_priority
    int32_t class_name     # of a lazy row, in RequestTable.names; -1: it names no class
    int64_t outside        # blocks of the prompt without a name: the partial tail, or all
    int64_t reserve        # blocks kept free for its output
    ns_t arrival_ns
    ns_t deadline_ns       # NEVER_NS: none
    ns_t due_ns[TIMERS]    # NEVER_NS: that timer does not run
    uint64_t seq           # its place in time, from when it was first stored
    ns_t known_ns          # when its overlap was last asked for outside; its arrival before
    int64_t ticket         # of that question; 0: it is not being asked
    tokens_t context       # most tokens of prompt and output that anybody has told of; -1: nobody has
    int64_t attempt        # of the present or last booking; 0 before the first
    uint64_t serial        # of its arrival, from 1, never used again: names its path
    uint64_t* path         # block hashes, root to leaf; owned by the row
    uint64_t* sequence     # names of the complete prompt blocks; inside `path`'s memory
    int32_t path_length
    int32_t sequence_length
    ns_t progress_ns       # last progress of the booking, or the moment of eviction
    slot_t older           # booking timers in order of (progress_ns, attempt)
    slot_t newer


@cython.final
cdef class RequestTable:
    cdef SlotTable ids
    cdef request_t* rows
    cdef slot_t _capacity
    cdef PyObject** _requests      # slot -> Request of a live row, owned, or NULL
    cdef heap_t _timers[TIMERS]    # rows by (due, seq)
    cdef int32_t* _timer_pos[TIMERS]
    cdef bint _timed               # bookings expire: their timers are kept in order
    cdef slot_t _oldest            # booking timer that is due first
    cdef slot_t _newest
    cdef uint64_t _serial
    cdef list names                # of classes that records have named
    cdef dict _name_numbers
    cdef readonly int32_t refreshing   # rows in that state

    cdef slot_t find(self, str request_id) noexcept
    cdef slot_t find_attempt(self, str request_id, int64_t attempt) noexcept
    cdef slot_t with_attempt(self, slot_t slot, int64_t attempt) noexcept nogil
    cdef int32_t name_number(self, str policy_class) except -1
    cdef slot_t open(self, Request request, ns_t now_ns, int64_t block_size) except -1
    cdef slot_t open_unnamed(self, Request request, ns_t now_ns, int64_t block_size) except -1
    cdef slot_t open_number(
        self, int64_t number, const plain_t* plain, const uint64_t* hashes, int32_t length, ns_t now_ns,
        int64_t block_size) except -1 nogil
    cdef int close(self, slot_t slot) except -1 nogil
    cdef slot_t lend(self, tuple sequence, int64_t attempt) except -1
    cdef int take_back(self, slot_t slot) except -1
    cdef Request request(self, slot_t slot)
    cdef int replace(self, slot_t slot, Request request) except -1
    cdef void _keep(self, slot_t slot, Request request) noexcept
    cdef int _close_held(self, slot_t slot) except -1
    cdef int wait(self, slot_t slot, state_t state, uint64_t seq) except -1 nogil
    cdef int set_timer(self, slot_t slot, timer_t timer, ns_t due_ns) except -1 nogil
    cdef void stop_waiting(self, slot_t slot) noexcept nogil
    cdef ns_t first_timer_ns(self, timer_t timer) noexcept nogil
    cdef ns_t first_of_all_ns(self) noexcept nogil
    cdef slot_t first_timer(self, timer_t timer) noexcept nogil
    cdef int start_running(self, slot_t slot, int64_t attempt, ns_t now_ns) except -1 nogil
    cdef void stop_running(self, slot_t slot) noexcept nogil
    cdef list in_state(self, state_t state)
    cdef void touch(self, slot_t slot, ns_t now_ns) noexcept nogil
    cdef ns_t first_progress_ns(self) noexcept nogil
    cdef slot_t first_progress(self) noexcept nogil

    cdef int _fill(self, slot_t slot, Request request, uint64_t* path, ns_t now_ns, int64_t block_size) except -1
    cdef void _begin(
        self, slot_t slot, uint64_t* path, int32_t length, ns_t now_ns, int64_t block_size) noexcept nogil
    cdef Request _made(self, slot_t slot)
    cdef void _link(self, slot_t slot, ns_t now_ns) noexcept nogil
    cdef int _grow(self, slot_t slots) except -1 nogil
    cdef bint _is_later(self, slot_t slot, const request_t* row) noexcept nogil
    cdef void _unlink(self, slot_t slot) noexcept nogil
