"""Exchange: what replicas of this scheduler are told of its bookings, and what theirs do to the ledger (DESIGN D19).

Owns the record of other replicas (PeerBoard) and the wording of facts. A booking of a peer is one in the ledger like
our own, under a slot that bears no request: so it weighs in costs, busy tests, caps and projections, it shares blocks
with our own, and it cannot be found by an id, wait, expire or be evicted.

Never here: own requests, transport, time-outs of peers.

What is told: BOOKED right behind each Dispatch, PREFILL_COMPLETED and RELEASED where the ledger forgets, whatever the
reason, so nobody who releases can forget to say so. Output blocks are not told: what a peer's answer holds here is its
reserve.

A fall of load is noted in `relieved`, for the fleet: a peer's release may let somebody in. So may its booking, for who
shares its blocks needs less room.
"""
from kvcore._ledger_resume cimport resume_booking, resume_path
from kvcore._load cimport booking_t
from kvcore._peers cimport PEER_LIVE, PEER_OVER, PEER_UNKNOWN, known_t
from kvcore._requests cimport STATE_FREE, STATE_RUNNING, request_t
from kvcore._types cimport NO_SLOT, int32_t
from kvcore._workers cimport rank_t
from kvcore.actions cimport make_publish
from kvcore.replica cimport make_fact
from kvcore.request cimport Request

from kvcore.replica import FactKind, ReplicaFacts

cdef object BOOKED = FactKind.BOOKED
cdef object PREFILL_COMPLETED = FactKind.PREFILL_COMPLETED
cdef object RELEASED = FactKind.RELEASED


cdef class Exchange:
    def __cinit__(self, config not None, RequestTable requests not None, WorkerTable workers not None,
                  Ledger ledger not None):
        self.requests = requests
        self.workers = workers
        self.ledger = ledger
        self.board = PeerBoard()
        self.replica = config.replica
        self.speaks = config.replica is not None
        self.generation = config.replica_generation
        self.out = []
        self.relieved = []

    # Own bookings.

    cdef int booked(self, slot_t slot, int64_t prefill_tokens) except -1:
        """A request has been booked, with so many prefill tokens; its Dispatch says so."""
        if self.speaks:
            self.out.append(make_publish(self._booked_fact(slot, prefill_tokens)))
        return 0

    cdef int prefill_completed(self, slot_t slot) except -1:
        """The prefill of an own booking is being completed."""
        if self.speaks:
            self.out.append(make_publish(self._fact(PREFILL_COMPLETED, slot)))
        return 0

    cdef int released(self, slot_t slot, bint completed) except -1:
        """An own booking is being released."""
        cdef PeerFact fact
        if self.speaks:
            fact = self._fact(RELEASED, slot)
            fact.completed = completed
            self.out.append(make_publish(fact))
        return 0

    cdef object facts(self, int64_t next_attempt):
        """ReplicaFacts: all own bookings as they stand."""
        cdef slot_t slot
        if self.replica is None:
            raise RuntimeError("SchedulerConfig.replica is not set: there is nobody to tell")
        facts = []
        for _, slot in sorted([(self.requests.rows[<slot_t>s].attempt, s)
                               for s in self.requests.in_state(STATE_RUNNING)]):
            facts.append(self._booked_fact(slot, self.ledger.bookings[slot].prefill))
            if not self.ledger.bookings[slot].prefilling:
                facts.append(self._fact(PREFILL_COMPLETED, slot))
        return ReplicaFacts(self.replica, self.generation, next_attempt, tuple(facts))

    cdef PeerFact _fact(self, object kind, slot_t slot):
        return make_fact(kind, self.replica, self.generation, self.requests.rows[slot].attempt)

    cdef PeerFact _booked_fact(self, slot_t slot, int64_t prefill_tokens):
        cdef PeerFact fact = self._fact(BOOKED, slot)
        cdef request_t* row = &self.requests.rows[slot]
        cdef Request request = self.requests.request(slot)
        cdef rank_t* rank = &self.workers.ranks[self.ledger.bookings[slot].rank]
        fact.worker_id = rank.worker_id
        fact.dp_rank = rank.dp_rank
        fact.incarnation = self.workers.workers[rank.worker].incarnation
        fact.sequence_hashes = request.sequence_hashes
        if fact.sequence_hashes is None:
            fact.sequence_hashes = request.block_hashes[:row.sequence_length]
        fact.unnamed_blocks = row.outside
        fact.prefill_tokens = prefill_tokens
        fact.reserve_blocks = row.reserve
        return fact

    # Bookings of peers.

    cdef int64_t apply(self, Event event) except -1:
        """A replica has told something. Returns how many of its facts are stale."""
        cdef object kind = type(event)
        self.relieved.clear()
        if kind is PeerBooked:
            return not self._hear_booked(<PeerBooked>event)
        if kind is PeerPrefillCompleted:
            return not self._hear_prefill_completed(<PeerPrefillCompleted>event)
        if kind is PeerReleased:
            return not self._hear_released(<PeerReleased>event)
        if kind is PeerLost:
            return not self._hear_lost(<PeerLost>event)
        return self._hear_all(<PeerSynced?>event)

    cdef Peer _speaker(self, str name, int64_t generation):
        """The peer that speaks; None: its generation is over, or it is an echo of our own name."""
        cdef Peer peer
        cdef list ended = []
        if name == self.replica:
            return None
        peer = self.board.hear(name, generation, ended)
        self._release(ended, False)
        return peer

    cdef bint _hear_booked(self, PeerBooked event) except -1:
        cdef Peer peer = self._speaker(event.peer, event.generation)
        cdef slot_t rank
        if peer is None or self.board.known(peer, event.attempt) != PEER_UNKNOWN:
            return False
        rank = self.workers.told_rank(event.worker_id, event.dp_rank, event.incarnation)
        if rank == NO_SLOT:
            return False
        self._book(peer, event.attempt, rank, event.sequence_hashes, event.unnamed_blocks, event.prefill_tokens,
                   event.reserve_blocks)
        return True

    cdef bint _hear_prefill_completed(self, PeerPrefillCompleted event) except -1:
        cdef Peer peer = self._speaker(event.peer, event.generation)
        cdef known_t known
        if peer is None:
            return False
        known = self.board.known(peer, event.attempt)
        if known == PEER_LIVE:
            return self._complete(peer.live[event.attempt])
        return known != PEER_OVER and self.board.note_prefilled(peer, event.attempt)

    cdef bint _hear_released(self, PeerReleased event) except -1:
        cdef Peer peer = self._speaker(event.peer, event.generation)
        cdef list ended = []
        if peer is None or not self.board.release(peer, event.attempt, ended):
            return False
        self._release(ended, event.completed)
        return True

    cdef bint _hear_lost(self, PeerLost event) except -1:
        cdef list ended = []
        if event.peer == self.replica or not self.board.lose(event.peer, event.generation, ended):
            return False
        self._release(ended, False)
        return True

    cdef int64_t _hear_all(self, PeerSynced event) except -1:
        """All that a peer has booked. Facts about ranks that are not here are stale; the others are at least true."""
        cdef Peer peer = self._speaker(event.peer, event.generation)
        cdef PeerFact fact
        cdef list ended = []
        cdef int64_t stale = 0
        if peer is None:
            return 1
        self.board.begin_sync(peer, event.next_attempt, {(<PeerFact>item).attempt for item in event.facts}, ended)
        self._release(ended, False)
        prefilled = {(<PeerFact>item).attempt for item in event.facts if (<PeerFact>item).kind is PREFILL_COMPLETED}
        for fact in event.facts:
            if fact.kind is BOOKED:
                stale += not self._place(peer, fact, fact.attempt in prefilled)
        self.board.end_sync(peer, event.next_attempt)
        return stale

    cdef bint _place(self, Peer peer, PeerFact fact, bint prefilled) except -1:
        """A booking lives, says a sync. False: its rank is not here."""
        cdef known_t known = self.board.known(peer, fact.attempt)
        cdef slot_t rank
        if known == PEER_LIVE and prefilled:
            self._complete(peer.live[fact.attempt])
        if known == PEER_LIVE or known == PEER_OVER:
            return True
        rank = self.workers.told_rank(fact.worker_id, fact.dp_rank, fact.incarnation)
        if rank == NO_SLOT:
            self.board.strand(peer, fact.attempt, prefilled)
            return False
        if prefilled:
            self.board.note_prefilled(peer, fact.attempt)
        self._book(peer, fact.attempt, rank, fact.sequence_hashes, fact.unnamed_blocks, fact.prefill_tokens,
                   fact.reserve_blocks)
        return True

    cdef int _book(
            self, Peer peer, int64_t attempt, slot_t rank, tuple hashes, int64_t unnamed_blocks,
            int64_t prefill_tokens, int64_t reserve_blocks) except -1:
        """Put a peer's booking on a rank; where its prefill is known to be over, without prefill tokens."""
        cdef slot_t slot = self.requests.lend(hashes, attempt)
        cdef request_t* row = &self.requests.rows[slot]
        cdef bint prefilled = self.board.book(peer, attempt, slot)
        self.ledger.book(slot, rank, 0 if prefilled else prefill_tokens, row.sequence, row.sequence_length,
                         unnamed_blocks, reserve_blocks)
        if prefilled:
            self.ledger.complete_prefill(slot)
        if row.sequence_length:
            self.relieved.append(rank)
        return 0

    cdef bint _complete(self, slot_t slot) except -1:
        """The prefill of a peer's booking is over. False: it was."""
        if not self.ledger.bookings[slot].prefilling:
            return False
        if self.ledger.complete_prefill(slot):
            self.relieved.append(self.ledger.bookings[slot].rank)
        return True

    cdef int _release(self, list slots, bint completed) except -1:
        cdef slot_t slot
        for slot in slots:
            self.relieved.append(self.ledger.bookings[slot].rank)
            self.ledger.release(slot, completed)
            self.requests.take_back(slot)
        return 0

    cdef int drop_rank(self, slot_t rank) except -1:
        """A rank is about to go, and the bookings of peers on it with it."""
        cdef slot_t slot = self.ledger.loads[rank].first
        cdef slot_t following
        while slot != NO_SLOT:
            following = self.ledger.bookings[slot].next
            owner = self.board.owner(slot)
            if owner is not None:
                self.board.strand(<Peer>owner[0], owner[1], not self.ledger.bookings[slot].prefilling)
                self.ledger.release(slot, False)
                self.requests.take_back(slot)
            slot = following
        return 0

    cdef bint owns(self, slot_t slot):
        """Whether a booking is a peer's."""
        return self.board.owner(slot) is not None

    # Reading, and coming back.

    cdef dict counts(self):
        """Rank slot -> bookings of peers."""
        found = {}
        for _, _, slot in self.board.live():
            rank = self.ledger.bookings[<slot_t>slot].rank
            found[rank] = found.get(rank, 0) + 1
        return found

    cdef dict places(self):
        """Slot of a peer's booking -> how many prefill before it on its rank; only where that matters (decay)."""
        cdef slot_t i, slot
        cdef int64_t place
        found = {}
        for i in range(self.workers.present if self.ledger.decays and self.board.bookings() else 0):
            slot = self.ledger.loads[self.workers.order[i]].fifo_first
            place = 0
            while slot != NO_SLOT:
                if self.owns(slot):
                    found[slot] = place
                place += 1
                slot = self.ledger.bookings[slot].fifo_next
        return found

    cdef slot_t resume(
            self, PeerBooked told, slot_t rank, bint prefilling, tuple runs) except -1:
        """A booking out of a snapshot, as it stood; runs: (length, weight) of its path. The peer is known."""
        cdef slot_t slot = self.requests.lend(told.sequence_hashes, told.attempt)
        cdef request_t* row = &self.requests.rows[slot]
        cdef int32_t at = 0
        self.board.book(self.board.find(told.peer), told.attempt, slot)
        self.ledger.book(slot, rank, told.prefill_tokens, row.sequence, row.sequence_length, told.unnamed_blocks,
                         told.reserve_blocks)
        resume_booking(self.ledger, slot, prefilling, told.prefill_tokens, 0, 0, 0)
        for length, weight in runs:
            for _ in range(length):
                resume_path(self.ledger, slot, at, weight)
                at += 1
        return slot

    cdef list faults(self):
        """The record against itself, and its bookings against the ledger."""
        cdef slot_t slot
        cdef request_t* row
        cdef booking_t* booking
        found = self.board.faults()
        for name, attempt, slot in self.board.live():
            row = &self.requests.rows[slot]
            booking = &self.ledger.bookings[slot]
            if self.requests.request(slot) is not None or row.state != STATE_FREE or row.attempt != attempt:
                found.append(f"{name!r}, attempt {attempt}: its slot is somebody else's")
            elif booking.rank == NO_SLOT or self.workers.ranks[booking.rank].worker == NO_SLOT:
                found.append(f"{name!r}, attempt {attempt}: booked nowhere")
            elif booking.path != row.sequence or booking.length != row.sequence_length:
                found.append(f"{name!r}, attempt {attempt}: booked with blocks that are not its own")
        return found
