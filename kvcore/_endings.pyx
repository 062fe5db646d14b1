"""Endings: the one end of every request, by rejection, completion or abort (DESIGN 3.2).

The only module that closes a row. With it end its share in the rank that it is pinned to and the interest of its
admission policy; whatever it was stored in or booked on, it has left before.
"""
from kvcore._policies cimport CALL_ABORTED, CALL_COMPLETED, CALL_DISPATCHED
from kvcore._requests cimport request_t
from kvcore._types cimport NO_SLOT


cdef class Endings:
    def __cinit__(self, RequestTable requests not None, Fleet fleet not None, Inspector inspector not None,
                  Policies policies not None):
        self._requests = requests
        self._fleet = fleet
        self._inspector = inspector
        self._policies = policies

    cdef int reject(self, slot_t slot, Reject action, list out) except -1:
        """It ends with this answer."""
        self._inspector.count_reject(action.reason, action.class_index)
        out.append(action)
        return self._give_up(slot)

    cdef int complete(self, slot_t slot) except -1:
        """Its run has ended well."""
        cdef request_t* row = &self._requests.rows[slot]
        self._inspector.completed += 1
        if row.policy != NO_SLOT:
            request_id = self._requests.ids.id_of(slot)
            if not row.heard:
                self._policies.tell(row.policy, CALL_DISPATCHED, request_id, None)
            self._policies.tell(row.policy, CALL_COMPLETED, request_id, None if row.context < 0 else row.context)
        return self._close(slot)

    cdef int abort(self, slot_t slot) except -1:
        """It ends in any other way."""
        self._inspector.aborted += 1
        return self._give_up(slot)

    cdef int _give_up(self, slot_t slot) except -1:
        """Close a row whose request has not ended well, and tell its policy."""
        if self._requests.rows[slot].policy != NO_SLOT:
            self._policies.tell(
                self._requests.rows[slot].policy, CALL_ABORTED, self._requests.ids.id_of(slot), None)
        return self._close(slot)

    cdef int _close(self, slot_t slot) except -1:
        if self._requests.rows[slot].keeps_pin:
            self._fleet.workers.unpin(self._requests.rows[slot].pin)
        return self._requests.close(slot)
