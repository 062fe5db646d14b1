"""PeerBoard: what is known of other replicas and of each of their attempts (DESIGN D19).

Owns their names and generations, and for every attempt whether it is unknown, live here (and under which slot), adrift
or over. It only keeps the record: who calls it books and releases, and a slot that is put into `ended` is to be
released by the caller.

Never here: load, ranks, time, events.

Invariants: what is over stays over, whatever is told again; an attempt is live at most once; a slot has one owner;
`over` holds nothing below the floor, and the attempt at the floor is unknown; what is prefilled is unknown or adrift.
So facts of one generation may come in any order and any number of times: the last state is the same.

A sync says of every attempt below its next_attempt whether it lives. A replica's live attempts below a bound only ever
get fewer, so an old sync that comes late tells no lies that matter: what it lacks is over, what it has and we know to
be over stays over.

Bound: a gap in what has been heard (a fact lost, or still under way) holds the floor, and all that is over above it
must be remembered one by one, until the gap or a sync is told. Names are kept for good.

Cost: O(1) amortised per fact; a sync O(its facts + what is known of the peer).
"""
from kvcore._types cimport NO_SLOT


cdef class Peer:
    def __cinit__(self, str name not None, int64_t generation):
        self.name = name
        self.generation = generation
        self.floor = 1
        self.live = {}
        self.adrift = set()
        self.over = set()
        self.prefilled = set()


cdef class PeerBoard:
    def __cinit__(self):
        self._peers = {}
        self._owners = {}

    cdef Peer hear(self, str name, int64_t generation, list ended):
        """The peer that speaks, or None if this generation is over. A newer one ends all that the older has booked."""
        cdef Peer peer = self._peers.get(name)
        if peer is None:
            peer = Peer(name, generation)
            self._peers[name] = peer
        elif generation > peer.generation:
            self._end_all(peer, ended)
            peer.generation = generation
            peer.lost = False
            peer.floor = 1
        elif generation < peer.generation or peer.lost:
            return None
        return peer

    cdef bint lose(self, str name, int64_t generation, list ended) except -1:
        """The replica is gone, up to this generation. False: that was known, or it has come back since."""
        cdef Peer peer = self.hear(name, generation, ended)
        if peer is None:
            return False
        self._end_all(peer, ended)
        peer.lost = True
        return True

    cdef int _end_all(self, Peer peer, list ended) except -1:
        """Nothing of a generation lives on, nor need be remembered."""
        for attempt in sorted(peer.live):
            ended.append(peer.live[attempt])
            del self._owners[peer.live[attempt]]
        peer.live.clear()
        peer.adrift.clear()
        peer.over.clear()
        peer.prefilled.clear()
        return 0

    # One attempt.

    cdef known_t known(self, Peer peer, int64_t attempt) except *:
        """What is known of an attempt."""
        if attempt in peer.live:
            return PEER_LIVE
        if attempt in peer.adrift:
            return PEER_ADRIFT
        return PEER_OVER if attempt < peer.floor or attempt in peer.over else PEER_UNKNOWN

    cdef bint book(self, Peer peer, int64_t attempt, slot_t slot) except -1:
        """An unknown or stranded attempt is live from now on. True iff its prefill has been completed already."""
        cdef bint prefilled = attempt in peer.prefilled
        peer.prefilled.discard(attempt)
        peer.adrift.discard(attempt)
        peer.live[attempt] = slot
        self._owners[slot] = (peer, attempt)
        self._raise_floor(peer)
        return prefilled

    cdef int strand(self, Peer peer, int64_t attempt, bint prefilled) except -1:
        """An attempt lives at its replica and cannot be booked here, or no longer: only a sync brings it back."""
        cdef slot_t slot = peer.live.pop(attempt, NO_SLOT)
        if slot != NO_SLOT:
            del self._owners[slot]
        peer.adrift.add(attempt)
        if prefilled:
            peer.prefilled.add(attempt)
        self._raise_floor(peer)
        return 0

    cdef bint note_prefilled(self, Peer peer, int64_t attempt) except -1:
        """The prefill of an unknown or stranded attempt has been completed. False: that was known."""
        if attempt in peer.prefilled:
            return False
        peer.prefilled.add(attempt)
        return True

    cdef bint release(self, Peer peer, int64_t attempt, list ended) except -1:
        """An attempt is over. False: that was known."""
        cdef slot_t slot
        if self.known(peer, attempt) == PEER_OVER:
            return False
        slot = peer.live.pop(attempt, NO_SLOT)
        if slot != NO_SLOT:
            ended.append(slot)
            del self._owners[slot]
        peer.adrift.discard(attempt)
        peer.prefilled.discard(attempt)
        if attempt >= peer.floor:
            peer.over.add(attempt)
            self._raise_floor(peer)
        return True

    cdef int _raise_floor(self, Peer peer) except -1:
        """The floor stands at the first attempt that is unknown."""
        while peer.floor in peer.live or peer.floor in peer.over or peer.floor in peer.adrift:
            peer.over.discard(peer.floor)
            peer.floor += 1
        return 0

    # All attempts.

    cdef int begin_sync(self, Peer peer, int64_t next_attempt, set named, list ended) except -1:
        """Below next_attempt exactly the named attempts live. What else there was is over; then name by name."""
        gone = [attempt for attempt in {*peer.live, *peer.adrift, *peer.prefilled}
                if attempt < next_attempt and attempt not in named]
        for attempt in sorted(gone):
            self.release(peer, attempt, ended)
        return 0

    cdef int end_sync(self, Peer peer, int64_t next_attempt) except -1:
        """Every named attempt has been booked, stranded, or known to be over: there is no gap below next_attempt."""
        if next_attempt > peer.floor:
            peer.over = {attempt for attempt in peer.over if attempt >= next_attempt}
            peer.floor = next_attempt
            self._raise_floor(peer)
        return 0

    # Reading.

    cdef Peer find(self, str name):
        """A peer that has been heard of, lost or not."""
        return <Peer>self._peers[name]

    cdef tuple owner(self, slot_t slot):
        """(Peer, attempt) of a booking that is a peer's, else None."""
        return self._owners.get(slot)

    cdef Py_ssize_t bookings(self):
        return len(self._owners)

    cdef Py_ssize_t count(self):
        """Peers that are not lost."""
        return sum([not (<Peer>peer).lost for peer in self._peers.values()])

    cdef bint heard_of_any(self):
        """Whether there has ever been a peer."""
        return len(self._peers) > 0

    cdef list live(self):
        """(name, attempt, slot) of every live booking, by name and attempt."""
        return [(name, attempt, slot) for name, peer in sorted(self._peers.items())
                for attempt, slot in sorted((<Peer>peer).live.items())]

    cdef list dump(self):
        """All but the live bookings, by name: rows (name, generation, lost, floor, adrift, over, prefilled)."""
        cdef Peer peer
        rows = []
        for _, peer in sorted(self._peers.items()):
            rows.append((peer.name, peer.generation, peer.lost, peer.floor, sorted(peer.adrift), sorted(peer.over),
                         sorted(peer.prefilled)))
        return rows

    cdef int load(self, list rows) except -1:
        """What `dump` gave, on an empty board; the live bookings are then booked again."""
        cdef Peer peer
        for name, generation, lost, floor, adrift, over, prefilled in rows:
            peer = Peer(name, generation)
            peer.lost = lost
            peer.floor = floor
            peer.adrift.update(adrift)
            peer.over.update(over)
            peer.prefilled.update(prefilled)
            self._peers[name] = peer
        return 0

    cdef list faults(self):
        """What is wrong with the record: nothing."""
        cdef Peer peer
        found = []
        for peer in self._peers.values():
            for attempt, slot in peer.live.items():
                if self._owners.get(slot) != (peer, attempt):
                    found.append(f"{peer.name!r}, attempt {attempt}: slot {slot} is not its own")
            if peer.live.keys() & peer.adrift or (peer.over & (peer.live.keys() | peer.adrift)):
                found.append(f"{peer.name!r}: an attempt is known as two things")
            if any(attempt < peer.floor for attempt in peer.over) or self.known(peer, peer.floor) != PEER_UNKNOWN:
                found.append(f"{peer.name!r}: the floor {peer.floor} is wrong")
            if any(self.known(peer, attempt) not in (PEER_UNKNOWN, PEER_ADRIFT) for attempt in peer.prefilled):
                found.append(f"{peer.name!r}: prefilled, and live or over")
            if peer.lost and (peer.live or peer.adrift or peer.over or peer.prefilled):
                found.append(f"{peer.name!r}: lost and still remembered")
        if len(self._owners) != sum([len((<Peer>peer).live) for peer in self._peers.values()]):
            found.append(f"{len(self._owners)} slots of peers, not one for each live booking")
        return found
