# Live requests: identity, state, path of blocks, deadlines and booking timers.
cimport cython
from kvcore._heap cimport heap_t
from kvcore._slots cimport SlotTable
from kvcore._types cimport int32_t, int64_t, ns_t, slot_t, tokens_t, uint64_t
from kvcore.request cimport Request


cdef enum state_t:
    STATE_FREE             # no request in this row
    STATE_WAITING          # stored in its class
    STATE_RUNNING          # booked on a rank
    STATE_EVICTED          # its booking is gone, its driver has not answered yet


cdef struct request_t:
    state_t state
    bint track_prefill
    bint may_wait          # False: dispatch in the step of arrival, or reject
    bint accepted          # the backend has taken the present booking
    int32_t attempts       # dispatches so far
    slot_t pin             # rank slot of the exact pin, or NO_SLOT
    slot_t class_index     # -1 before classification
    tokens_t prompt
    int64_t outside        # blocks of the prompt without a name: the partial tail, or all
    int64_t reserve        # blocks kept free for its output
    ns_t arrival_ns
    ns_t deadline_ns       # NEVER_NS: none
    ns_t look_ns           # next look whether all its ranks are overloaded; NEVER_NS: none
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
    cdef list _requests            # slot -> Request of a live row, else None
    cdef heap_t _deadlines
    cdef int32_t* _deadline_pos
    cdef heap_t _looks
    cdef int32_t* _look_pos
    cdef bint _timed               # bookings expire: their timers are kept in order
    cdef slot_t _oldest            # booking timer that is due first
    cdef slot_t _newest
    cdef uint64_t _serial

    cdef slot_t find(self, str request_id)
    cdef slot_t find_attempt(self, str request_id, int64_t attempt)
    cdef slot_t open(self, Request request, ns_t now_ns, int64_t block_size) except -1
    cdef slot_t open_unnamed(self, Request request, ns_t now_ns, int64_t block_size) except -1
    cdef int close(self, slot_t slot) except -1
    cdef slot_t lend(self, tuple sequence, int64_t attempt) except -1
    cdef int take_back(self, slot_t slot) except -1
    cdef Request request(self, slot_t slot)
    cdef int start_waiting(self, slot_t slot, uint64_t seq, ns_t look_ns) except -1
    cdef int look_again(self, slot_t slot, ns_t look_ns) except -1
    cdef void stop_waiting(self, slot_t slot) noexcept
    cdef int start_running(self, slot_t slot, int64_t attempt, ns_t now_ns) except -1
    cdef void stop_running(self, slot_t slot) noexcept
    cdef list in_state(self, state_t state)
    cdef void touch(self, slot_t slot, ns_t now_ns) noexcept
    cdef ns_t first_deadline_ns(self) noexcept
    cdef slot_t first_deadline(self) noexcept
    cdef ns_t first_look_ns(self) noexcept
    cdef slot_t first_look(self) noexcept
    cdef ns_t first_progress_ns(self) noexcept
    cdef slot_t first_progress(self) noexcept

    cdef slot_t _open(self, Request request, object name, ns_t now_ns, int64_t block_size) except -1
    cdef void _link(self, slot_t slot, ns_t now_ns) noexcept
    cdef int _grow(self, slot_t slots) except -1
    cdef bint _is_later(self, slot_t slot, const request_t* row) noexcept
    cdef void _unlink(self, slot_t slot) noexcept
