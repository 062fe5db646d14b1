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

    cdef int complete(self, slot_t slot) except -1 nogil:
        """Its run has ended well."""
        self._inspector.completed += 1
        if self._requests.rows[slot].policy != NO_SLOT:
            with gil:
                self._tell_completed(slot)
        return self._close(slot)

    cdef int _tell_completed(self, slot_t slot) except -1:
        cdef request_t* row = &self._requests.rows[slot]
        request_id = self._requests.ids.id_of(slot)
        if not row.heard:
            self._policies.tell(row.policy, CALL_DISPATCHED, request_id, None)
        return self._policies.tell(row.policy, CALL_COMPLETED, request_id, None if row.context < 0 else row.context)

    cdef int abort(self, slot_t slot) except -1 nogil:
        """It ends in any other way."""
        self._inspector.aborted += 1
        return self._give_up(slot)

    cdef int _give_up(self, slot_t slot) except -1 nogil:
        """Close a row whose request has not ended well, and tell its policy."""
        if self._requests.rows[slot].policy != NO_SLOT:
            with gil:
                self._policies.tell(
                    self._requests.rows[slot].policy, CALL_ABORTED, self._requests.ids.id_of(slot), None)
        return self._close(slot)

    cdef int _close(self, slot_t slot) except -1 nogil:
        if self._requests.rows[slot].keeps_pin:
            with gil:
                self._fleet.workers.unpin(self._requests.rows[slot].pin)
        return self._requests.close(slot)
