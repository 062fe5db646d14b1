"""SlotTable: text or number ids at the door <-> dense row numbers inside.

Owns the mapping only. A Python dict serves: its keyed hash resists flooding by chosen ids, and a hand-written table
was no faster when it fitted the cache (STYLE 5.9). Slots are reused last freed first, so a small live set stays in
few rows.
"""
from kvcore._types cimport NO_SLOT
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject


cdef class SlotTable:
    def __cinit__(self):
        self._slots = {}
        self._ids = []
        self._free = []
        self.size = 0

    cdef slot_t get(self, object id):
        """Slot of a live id, or NO_SLOT. O(1)."""
        cdef PyObject* found = PyDict_GetItem(self._slots, id)
        return NO_SLOT if found == NULL else <slot_t><object>found

    cdef slot_t add(self, object id) except -1:
        """A slot for an id that is not live. O(1)."""
        cdef slot_t slot = self.take()
        self._ids[slot] = id
        self._slots[id] = slot
        return slot

    cdef int remove(self, slot_t slot) except -1:
        """Free a live slot. O(1)."""
        del self._slots[self._ids[slot]]
        self._ids[slot] = None
        return self.give_back(slot)

    cdef slot_t take(self) except -1:
        """A slot that has no id. O(1)."""
        cdef slot_t slot = self.size
        if self._free:
            return self._free.pop()
        self._ids.append(None)
        self.size += 1
        return slot

    cdef int give_back(self, slot_t slot) except -1:
        """Free a slot that has no id. O(1)."""
        self._free.append(slot)
        return 0

    cdef object id_of(self, slot_t slot):
        return self._ids[slot]

    cdef slot_t count(self):
        return <slot_t>len(self._slots)

    cdef list live(self):
        """Ids that are live, in no order that a result may depend on."""
        return list(self._slots)
