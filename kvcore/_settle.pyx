"""Settler: the decisions at the end of a step (DESIGN 3). Pop, place, repeat, until no head may run.

Owns the order of that alone: who is next is the backlog's answer, where it runs the dispatcher's.
"""
from kvcore._load cimport RANK_OPEN
from kvcore._placement cimport runs_now
from kvcore._types cimport NO_SLOT


cdef bint shut(Placement placement) noexcept nogil:
    """Whether no request runs now that may use every rank, whatever its class: all open ranks are busy for all."""
    cdef slot_t pair
    if placement.strict or not placement.bounded or placement.fleet.ledger.in_state[<int>RANK_OPEN] == 0:
        return False
    for pair in range(placement.fleet.ledger.pairs):
        if placement.fleet.ledger.free[pair]:
            return False
    return True


cdef class Settler:
    def __cinit__(self, RequestTable requests not None, Fleet fleet not None, Placement placement not None,
                  Backlog backlog not None, Dispatcher dispatcher not None, Endings endings not None,
                  Admission admission not None, Policies policies not None):
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self._backlog = backlog
        self._dispatcher = dispatcher
        self._endings = endings
        self._admission = admission
        self._policies = policies

    cdef int settle(self, list out) except -1 nogil:
        """Let go all that may; then refuse the first that may not wait, and look again. O(1) if nothing waits.

        Where every class waits for a rank that is not busy and there is none, no head needs to be asked.
        One at a time, by seq: who stands behind it may run once it is gone, as if it had arrived in a step of its own.
        """
        cdef slot_t slot
        if self._backlog.queue.rests() and not self._policies.any:
            self._fleet.forget_changes()
            return 0
        self._backlog.recheck()
        while True:
            if self._backlog.queue.choosy == 0 and shut(self._placement):
                self._backlog.queue.poll_in_vain()
                slot = NO_SLOT
            else:
                slot = self._backlog.queue.pop(runs_now, <void*>self._placement)
            if self._placement.failed:
                with gil:
                    raise self._placement.failure
            if slot != NO_SLOT:
                self._dispatcher.place(slot, out)
                if self._fleet.changes:
                    self._backlog.recheck()
                continue
            slot = self._backlog.next_leftover()
            if slot != NO_SLOT:
                with gil:
                    self._refuse(slot, out)
            elif not self._policies.any:
                return 0
            else:
                with gil:
                    if not self._admission.deliver_all(out):
                        return 0

    cdef int _refuse(self, slot_t slot, list out) except -1:
        """It may not wait, and nobody takes it now."""
        self._backlog.withdraw(slot)
        return self._endings.reject(slot, self._backlog.would_queue(slot, self._requests.ids.id_of(slot)), out)
