"""Eligible: which ranks a request may use, whatever their load (DESIGN D6, D14).

Owns no state but scratch memory. A request may use the ranks that its pin or allow-list leaves, whose workers carry
the required taints and are not gone.

Never here: whether a rank would take it now, and which is best (_placement).

Cost: O(1) for one rank; `find` O(allow-list), or O(ranks) without one.
"""
from libc.stdlib cimport free
from kvcore._load cimport RANK_GONE
from kvcore._overlaps cimport room_for
from kvcore._types cimport NEVER_NS, NO_SLOT, resize


cdef class Eligible:
    def __cinit__(self, Fleet fleet not None, RequestTable requests not None):
        self._fleet = fleet
        self._requests = requests

    def __dealloc__(self):
        free(self.ranks)

    cdef bint gone(self, slot_t rank) noexcept:
        """Whether a rank is absent, or its worker unavailable until somebody says otherwise."""
        return self._fleet.workers.ranks[rank].worker == NO_SLOT or self._fleet.ledger.loads[rank].state == RANK_GONE

    cdef bint fits(self, Request request, slot_t worker) except -1:
        """Whether a worker carries the taints that a request requires."""
        if not request.required_taints:
            return True
        return self._fleet.workers.taints.satisfying(request.required_taints)[
            self._fleet.workers.workers[worker].taints]

    cdef bint allows(self, Request request, slot_t rank) except -1:
        """Whether allow-list and required taints leave a present rank."""
        if request.allowed_workers is not None:
            if self._fleet.workers.ranks[rank].worker_id not in request.allowed_workers:
                return False
        return self.fits(request, self._fleet.workers.ranks[rank].worker)

    cdef bint allows_live(self, slot_t slot, slot_t rank) except -1:
        """Whether a waiting request without a pin may be placed on a present rank."""
        return self.allows(self._requests.request(slot), rank)

    cdef slot_t find(self, Request request, slot_t pin) except -1:
        """Ranks that a request may use, in canonical order, into `ranks`: those not gone. Returns how many."""
        cdef slot_t count, i
        cdef slot_t kept = 0
        self.reserve()
        if pin != NO_SLOT:
            if self.gone(pin) or not self.allows(request, pin):
                return 0
            self.ranks[0] = pin
            return 1
        count = self._fleet.workers.ranks_of(request.allowed_workers, request.required_taints, self.ranks)
        for i in range(count):
            if self._fleet.ledger.loads[self.ranks[i]].state != RANK_GONE:
                self.ranks[kept] = self.ranks[i]
                kept += 1
        return kept

    cdef slot_t find_live(self, slot_t slot) except -1:
        """`find` for a live request, which knows the rank of its pin."""
        cdef Request request = self._requests.request(slot)
        cdef slot_t pin = self._requests.rows[slot].pin
        return 0 if request.pinned is not None and pin == NO_SLOT else self.find(request, pin)

    cdef bint in_grace(self, Request request, ns_t arrival_ns) except -1:
        """Whether a request waits for what the fleet has lost, whatever else is the matter with it (DESIGN D14)."""
        cdef ns_t end_ns
        if not self._fleet.graced:
            return False
        end_ns = self._fleet.grace_end_ns(request.pinned, arrival_ns)
        return end_ns != NEVER_NS and end_ns > self._fleet.ledger.now_ns

    cdef int reserve(self) except -1 nogil:
        """Room in `ranks` for every present one; it shrinks with the fleet."""
        cdef slot_t room = room_for(self._fleet.workers.present, self._room)
        if room != self._room:
            resize(<void**>&self.ranks, room * sizeof(slot_t))
            self._room = room
        return 0
