"""PeerReader: other replicas out of a snapshot, with their bookings.

A part of SnapshotReader, apart for its length; what holds for that holds here. Own bookings are made anew in the order
of their attempts. Where prefills decay, those of peers have places between them, and are made when their turn comes.
"""
from kvcore._accept cimport accept
from kvcore._peers cimport PEER_ADRIFT, PEER_LIVE, known_t
from kvcore._types cimport FRACTION_ONE, NO_SLOT, int32_t, int64_t, uint64_t
from kvcore._wire cimport left, take_count, take_flag, take_i32, take_number, take_text, take_u32, take_u64
from kvcore.events cimport PeerBooked

cdef int64_t INT64_TOP = 0x7FFFFFFFFFFFFFFF
cdef int64_t ATTEMPT_MAX = <int64_t>1 << 62
cdef int64_t TOKENS_MAX = <int64_t>1 << 53

cdef enum:
    PEER_BYTES = 40                # less than any peer takes
    BOOKING_BYTES = 60             # than any booking


cdef class PeerReader:
    def __cinit__(self, SnapshotFrame frame not None, Fleet fleet not None, Policies policies not None):
        self._frame = frame
        self._fleet = fleet
        self._exchange = fleet.exchange
        self._policies = policies
        self._coming = {}
        self._prefilling = {}

    cdef int take(self) except -1:
        """All that is known of peers. Bookings that prefill are kept until `make_way` or `finish`."""
        peers = [self._take_peer() for _ in range(take_count(&self._frame.reader, PEER_BYTES))]
        if len({peer[0] for peer in peers}) != len(peers):
            raise ValueError("a peer is there twice")
        self._exchange.board.load(peers)
        for _ in range(take_count(&self._frame.reader, BOOKING_BYTES)):
            self._take_booking()
        return 0

    cdef tuple _take_peer(self):
        """As PeerBoard takes it."""
        cdef str name = take_text(&self._frame.reader)
        cdef int64_t generation = take_number(&self._frame.reader, 0, INT64_TOP)
        cdef bint lost = take_flag(&self._frame.reader)
        cdef int64_t floor = take_number(&self._frame.reader, 1, ATTEMPT_MAX + 1)
        if not name:
            raise ValueError("a peer has no name")
        return (name, generation, lost, floor, self._take_attempts(), self._take_attempts(), self._take_attempts())

    cdef list _take_attempts(self):
        return [take_number(&self._frame.reader, 1, ATTEMPT_MAX)
                for _ in range(take_count(&self._frame.reader, sizeof(int64_t)))]

    cdef int _take_booking(self) except -1:
        cdef str name = take_text(&self._frame.reader)
        cdef int64_t attempt = take_number(&self._frame.reader, 1, ATTEMPT_MAX)
        cdef int64_t place = take_number(&self._frame.reader, -1, 0x7FFFFFFF)
        cdef uint64_t worker_id = take_u64(&self._frame.reader)
        cdef slot_t rank = self._fleet.workers.find_rank(worker_id, take_u32(&self._frame.reader))
        cdef bint prefilling = take_flag(&self._frame.reader)
        cdef int64_t prefill = take_number(&self._frame.reader, 0, TOKENS_MAX if prefilling else 0)
        cdef int64_t unnamed = take_number(&self._frame.reader, 0, TOKENS_MAX)
        cdef int64_t reserve = take_number(&self._frame.reader, 0, TOKENS_MAX)
        cdef tuple path = self._take_path()
        cdef tuple runs = self._take_runs(len(path))
        cdef known_t known
        told = PeerBooked(0, name, 0, attempt, worker_id, 0, 0, path, unnamed, prefill, reserve)
        accept((told,), 0, 1, self._policies)
        known = self._exchange.board.known(self._exchange.board.find(name), attempt)
        if rank == NO_SLOT or known == PEER_LIVE or known == PEER_ADRIFT:
            raise ValueError("a booking of a peer is on no rank, or there twice")
        if (place >= 0) != (self._fleet.ledger.decays and prefill > 0) or (rank, place) in self._coming:
            raise ValueError("a prefill of a peer has no place of its own")
        if place < 0:
            self._exchange.resume(told, rank, prefilling, runs)
        else:
            self._coming[rank, place] = (told, runs)
        return 0

    cdef tuple _take_path(self):
        cdef int32_t length = take_i32(&self._frame.reader, 0, 0x7FFFFFFF)
        if <size_t>length > left(&self._frame.reader) // sizeof(uint64_t):
            raise ValueError("it breaks off")
        return tuple([take_u64(&self._frame.reader) for _ in range(length)])

    cdef tuple _take_runs(self, Py_ssize_t length):
        """Weights of a path: how many blocks, and what each of them weighs."""
        cdef int32_t run
        runs = []
        while True:
            run = take_i32(&self._frame.reader, 0, <int32_t>length)
            runs.append((run, take_i32(&self._frame.reader, 0, FRACTION_ONE)))
            length -= run
            if length == 0:
                return tuple(runs)

    cdef int make_way(self, slot_t rank) except -1:
        """An own booking that prefills on a rank is about to be made: those before it come first."""
        self._book_next(rank)
        self._prefilling[rank] += 1
        return 0

    cdef int finish(self) except -1:
        """All own bookings have been made."""
        for rank in {rank for rank, _ in self._coming}:
            self._book_next(rank)
        if self._coming:
            raise ValueError("a prefill of a peer has no place among the others")
        return 0

    cdef int _book_next(self, slot_t rank) except -1:
        cdef int64_t place = self._prefilling.get(rank, 0)
        while (rank, place) in self._coming:
            told, runs = self._coming.pop((rank, place))
            self._exchange.resume(told, rank, True, runs)
            place += 1
        self._prefilling[rank] = place
        return 0
