# The two directions of D19: own bookings told to other replicas, theirs kept on the ledger.
cimport cython
from kvcore._ledger cimport Ledger
from kvcore._peers cimport Peer, PeerBoard
from kvcore._requests cimport RequestTable
from kvcore._types cimport int64_t, slot_t
from kvcore._workers cimport WorkerTable
from kvcore.events cimport Event, PeerBooked, PeerLost, PeerPrefillCompleted, PeerReleased, PeerSynced
from kvcore.replica cimport PeerFact


@cython.final
cdef class Exchange:
    cdef RequestTable requests
    cdef WorkerTable workers
    cdef Ledger ledger
    cdef PeerBoard board
    cdef str replica               # own name, or None: nothing is told
    cdef readonly bint speaks      # there is one
    cdef int64_t generation
    cdef list out                  # actions of the present batch
    cdef list relieved             # ranks on which the last event has made room, each as often as it has

    cdef int booked(self, slot_t slot, int64_t prefill_tokens) except -1
    cdef int prefill_completed(self, slot_t slot) except -1
    cdef int released(self, slot_t slot, bint completed) except -1
    cdef object facts(self, int64_t next_attempt)

    cdef int64_t apply(self, Event event) except -1
    cdef int drop_rank(self, slot_t rank) except -1
    cdef bint owns(self, slot_t slot)

    cdef dict counts(self)
    cdef dict places(self)
    cdef slot_t resume(
        self, PeerBooked told, slot_t rank, bint prefilling, tuple runs) except -1
    cdef list faults(self)

    cdef PeerFact _fact(self, object kind, slot_t slot)
    cdef PeerFact _booked_fact(self, slot_t slot, int64_t prefill_tokens)
    cdef Peer _speaker(self, str name, int64_t generation)
    cdef bint _hear_booked(self, PeerBooked event) except -1
    cdef bint _hear_prefill_completed(self, PeerPrefillCompleted event) except -1
    cdef bint _hear_released(self, PeerReleased event) except -1
    cdef bint _hear_lost(self, PeerLost event) except -1
    cdef int64_t _hear_all(self, PeerSynced event) except -1
    cdef bint _place(self, Peer peer, PeerFact fact, bint prefilled) except -1
    cdef int _book(
        self, Peer peer, int64_t attempt, slot_t rank, tuple hashes, int64_t unnamed_blocks, int64_t prefill_tokens,
        int64_t reserve_blocks) except -1
    cdef bint _complete(self, slot_t slot) except -1
    cdef int _release(self, list slots, bint completed) except -1
