"""Doors for tests to compiled internals: the record of other replicas, and what they do to a fleet. Never shipped.

A door converts and does nothing else: NO_SLOT becomes None, lists to be filled are returned.
"""
from kvcore._fleet cimport Fleet
from kvcore._ledger_audit cimport ledger_faults
from kvcore._peers cimport PEER_ADRIFT, PEER_LIVE, PEER_OVER, PEER_UNKNOWN, Peer, PeerBoard
from kvcore._requests cimport RequestTable
from kvcore._types cimport int64_t, ns_t, slot_t
from kvcore.request cimport WorkerConfig

KNOWN = {PEER_UNKNOWN: "unknown", PEER_LIVE: "live", PEER_ADRIFT: "adrift", PEER_OVER: "over"}


cdef class Board:
    """PeerBoard. A peer is named; slots are the caller's."""

    cdef PeerBoard board

    def __cinit__(self):
        self.board = PeerBoard()

    def hear(self, str name, int64_t generation):
        """Slots whose bookings end with an older generation, or None: nobody listens."""
        ended = []
        return None if self.board.hear(name, generation, ended) is None else ended

    def lose(self, str name, int64_t generation):
        """Slots whose bookings end, or None: nothing new."""
        ended = []
        return ended if self.board.lose(name, generation, ended) else None

    def known(self, str name, int64_t attempt):
        return KNOWN[self.board.known(self.board.find(name), attempt)]

    def book(self, str name, int64_t attempt, slot_t slot):
        return bool(self.board.book(self.board.find(name), attempt, slot))

    def strand(self, str name, int64_t attempt, bint prefilled=False):
        self.board.strand(self.board.find(name), attempt, prefilled)

    def note_prefilled(self, str name, int64_t attempt):
        return bool(self.board.note_prefilled(self.board.find(name), attempt))

    def release(self, str name, int64_t attempt):
        """Slots whose bookings end, or None: it was over."""
        ended = []
        return ended if self.board.release(self.board.find(name), attempt, ended) else None

    def begin_sync(self, str name, int64_t next_attempt, named):
        ended = []
        self.board.begin_sync(self.board.find(name), next_attempt, set(named), ended)
        return ended

    def end_sync(self, str name, int64_t next_attempt):
        self.board.end_sync(self.board.find(name), next_attempt)

    def owner(self, slot_t slot):
        owner = self.board.owner(slot)
        return None if owner is None else ((<Peer>owner[0]).name, owner[1])

    def remembered(self, str name):
        """How many attempts are remembered one by one although they are over."""
        return len(self.board.find(name).over)

    def floor(self, str name):
        return self.board.find(name).floor

    def counts(self):
        """(peers that are not lost, live bookings)."""
        return self.board.count(), self.board.bookings()

    def live(self):
        return self.board.live()

    def dump(self):
        return self.board.dump()

    def load(self, rows):
        self.board.load(rows)

    def faults(self):
        return self.board.faults()


cdef class Ships:
    """A fleet that hears of other replicas; it runs nothing of its own."""

    cdef RequestTable requests
    cdef Fleet fleet

    def __cinit__(self, config):
        self.requests = RequestTable(False)
        self.fleet = Fleet(config, [], self.requests)

    def upsert(self, WorkerConfig config, int64_t incarnation=0):
        self.fleet.drop_ranks(self.fleet.leaving(config, incarnation))
        self.fleet.upsert(config, incarnation)

    def advance(self, ns_t now_ns):
        self.fleet.advance(now_ns)

    def heard(self, event):
        """How many facts were stale."""
        return self.fleet.heard(event)

    def noted(self):
        """Ranks that were noted since this was last asked, as often as they were."""
        cdef int i
        found = [self.fleet.changed[i] for i in range(self.fleet.changes)]
        self.fleet.forget_changes()
        return found

    def slots(self):
        """(slots ever made, ids in use)."""
        return self.requests.ids.size, self.requests.ids.count()

    def faults(self):
        return self.fleet.exchange.faults() + ledger_faults(self.fleet.ledger)
