"""Reload: another policy in the place of the one in force, without losing anybody's place (DESIGN D16).

Owns the order in which the parts take over a profile. Every request keeps the inputs of its key and its snapshot; its
class and key follow from the new profile. Nobody is rejected for limits. Admission policies live on where name and
admission of their class stay; who was held back by one that does not is decided about anew.

Cost: O(live requests * log) + O(ranks * threshold pairs).
"""
from kvcore._requests cimport STATE_DEFERRED, STATE_WAITING
from kvcore._types cimport NO_SLOT

from kvcore.policy import Capacity


cdef tuple threshold_pairs(object profile):
    pairs = [
        None if item.prefill_busy_threshold is None and item.prefill_busy_threshold_frac is None
        else (item.prefill_busy_threshold, item.prefill_busy_threshold_frac) for item in profile.classes]
    distinct = list(dict.fromkeys([pair for pair in pairs if pair is not None]))
    return distinct, [None if pair is None else distinct.index(pair) for pair in pairs]


cdef class Reload:
    def __cinit__(self, RequestTable requests not None, Fleet fleet not None, Placement placement not None,
                  Backlog backlog not None, Inspector inspector not None, Admission admission not None,
                  Policies policies not None):
        self._requests = requests
        self._fleet = fleet
        self._placement = placement
        self._backlog = backlog
        self._inspector = inspector
        self._admission = admission
        self._policies = policies

    cdef int replace(self, object before, object profile, list built, list out) except -1:
        """before: the profile in force. built: fresh admission policies of the new one, see Policies."""
        cdef slot_t slot
        waiting = self._by_seq(self._requests.in_state(STATE_WAITING))
        deferred = self._by_seq(self._requests.in_state(STATE_DEFERRED))
        for slot in waiting + deferred:
            self._requests.stop_waiting(slot)
        kept = self._policies.adopt(before, profile, built, self._fleet.ledger.now_ns)
        self._backlog.queue.adopt(before, profile)
        self._backlog.adopt(profile)
        self._inspector.adopt(before, profile)
        distinct, pairs = threshold_pairs(profile)
        self._fleet.adopt(distinct, profile.capacity is Capacity.STRICT)
        self._placement.adopt(pairs)
        for slot in range(self._requests.ids.size):
            if self._requests.rows[slot].policy != NO_SLOT:
                self._requests.rows[slot].policy = kept[self._requests.rows[slot].policy]
        self._rearrange(waiting, deferred)
        self._backlog.queue.settle_emptied()
        for slot in deferred:
            if self._requests.rows[slot].policy == NO_SLOT:
                self._admission.decide_anew(slot, out)
        return 0

    cdef list _by_seq(self, list slots):
        return [slot for _, slot in sorted([(self._requests.rows[<slot_t>slot].seq, slot) for slot in slots])]

    cdef int _rearrange(self, list waiting, list deferred) except -1:
        """Class and key of everybody; who waits or is held back joins its class."""
        cdef slot_t slot
        for request_id in self._requests.ids.live():
            slot = self._requests.find(request_id)
            self._backlog.arrange(slot, self._requests.request(slot))
        for slot in waiting:
            self._backlog.rejoin(slot, False)
        for slot in deferred:
            self._backlog.rejoin(slot, True)
        return 0
