# The digest: 128 bits over all state that decides what comes later.
cimport cython
from kvcore._drr cimport PolicyQueue, class_t
from kvcore._exchange cimport Exchange
from kvcore._fleet cimport Fleet
from kvcore._ledger cimport Ledger
from kvcore._requests cimport RequestTable
from kvcore._types cimport slot_t
from kvcore._wire cimport buffer_t
from kvcore.request cimport Request


@cython.final
cdef class Digester:
    cdef object _profile           # last asked about, and how it is hashed
    cdef str _profile_text
    cdef RequestTable _requests
    cdef PolicyQueue _queue
    cdef Fleet _fleet
    cdef buffer_t _buffer          # what has been written and not yet hashed
    cdef object _hasher            # of the digest that is being made, or None

    cdef str digest(self, object profile, tuple scalars, list policies)

    cdef int _flush(self) except -1
    cdef int _put_profile(self, object profile) except -1
    cdef int _put_classes(self) except -1
    cdef int _put_ages(self, slot_t class_index) except -1
    cdef int _put_ranks(self) except -1
    cdef int _put_worker(self, slot_t slot) except -1
    cdef int _put_load(self, slot_t slot) except -1
    cdef int _put_fifo(self, slot_t slot) except -1
    cdef int _put_request(self, slot_t slot) except -1
    cdef int _put_pin(self, slot_t slot) except -1
    cdef int _put_path(self, slot_t slot) except -1
    cdef int _put_booking(self, slot_t slot) except -1
    cdef int _put_rank(self, slot_t slot) except -1
    cdef int _put_wishes(self, Request request) except -1


# What snapshots write alike.
cdef int put_window(buffer_t* buffer, const class_t* ring) except -1
cdef int put_weights(buffer_t* buffer, Ledger ledger, slot_t slot) except -1
cdef int put_peers(buffer_t* buffer, Exchange exchange) except -1
