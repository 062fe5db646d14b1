"""SlotTable: ids of requests at the door <-> dense row numbers inside.

Owns the mapping only. An id that writes out a number, "17" but not "017", is kept as that number and becomes text when
somebody asks for it; so a request that has come as a number (DESIGN 3, step_array) and one that has come as text are
the same request, and neither costs the other's door anything. For all other ids a Python dict serves: its keyed hash
resists flooding by chosen ids, and a hand-written table was no faster when it fitted the cache (STYLE 5.9). The table
of numbers is keyed for the same reason; its layout shows nowhere. Slots are reused last freed first, so a small live
set stays in few rows.

Invariants: an id is live in exactly one of dict and table; numbers[slot] says in which.
"""
from cpython.dict cimport PyDict_GetItemWithError
from cpython.ref cimport PyObject
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kvcore._types cimport NO_SLOT, mix64, resize

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    const unsigned char* PyUnicode_1BYTE_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept

cdef enum:
    TABLE_MIN = 64
    DIGITS_MAX = 18            # so that every such number fits 63 bits


cdef int64_t number_in(str id) noexcept:
    """The number that a text writes out in its one plain form, below 10^18; else NO_NUMBER."""
    cdef const unsigned char* digits
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(id)
    cdef Py_ssize_t i
    cdef int64_t number = 0
    if not 1 <= length <= DIGITS_MAX or not PyUnicode_IS_COMPACT_ASCII(id):
        return NO_NUMBER
    digits = PyUnicode_1BYTE_DATA(id)
    if digits[0] == c"0" and length > 1:
        return NO_NUMBER
    for i in range(length):
        if not c"0" <= digits[i] <= c"9":
            return NO_NUMBER
        number = 10 * number + (digits[i] - c"0")
    return number


cdef class SlotTable:
    def __cinit__(self):
        self._texts = {}
        self._ids = []
        self._mask = -1
        self._key = <uint64_t>hash("kvcore")
        if not self._rehash(TABLE_MIN):
            raise MemoryError("ids")

    def __dealloc__(self):
        free(self._numbers)
        free(self._free)
        free(self._table)

    cdef slot_t get(self, str id):
        """Slot of a live id, or NO_SLOT. O(1)."""
        cdef int64_t number = number_in(id)
        cdef PyObject* found
        if number != NO_NUMBER:
            return self.get_number(number)
        found = PyDict_GetItemWithError(self._texts, id)
        return NO_SLOT if found == NULL else <slot_t><object>found

    cdef slot_t get_number(self, int64_t number) noexcept nogil:
        """Slot of the live id that writes out this number, or NO_SLOT. O(1)."""
        return self._table[self._place(number)]

    cdef slot_t add(self, str id) except -1:
        """A slot for an id that is not live. O(1)."""
        cdef int64_t number = number_in(id)
        cdef slot_t slot
        if number != NO_NUMBER:
            slot = self.add_number(number)
        else:
            slot = self.take()
            self._texts[id] = slot
        self._ids[slot] = id
        return slot

    cdef slot_t add_number(self, int64_t number) except -1 nogil:
        """A slot for the id that writes out this number and is not live. O(1)."""
        cdef slot_t slot
        if 3 * (<int64_t>self.numbered + 1) > 2 * (self._mask + 1) and not self._rehash(2 * (self._mask + 1)):
            with gil:
                raise MemoryError("ids")
        slot = self.take()
        self._numbers[slot] = number
        self._table[self._place(number)] = slot
        self.numbered += 1
        return slot

    cdef int remove(self, slot_t slot) except -1 nogil:
        """Free a slot and its id, if it has one. O(1)."""
        if self._numbers[slot] == NO_NUMBER:
            with gil:
                return self.remove_text(slot)
        self._leave(self._numbers[slot])
        self._numbers[slot] = NO_NUMBER
        self.numbered -= 1
        self.give_back(slot)
        return 0

    cdef int remove_text(self, slot_t slot) except -1:
        """Free a slot whose id is no number, or that has none. O(1)."""
        self._texts.pop(self._ids[slot], None)             # absent: the slot was taken without an id
        self._ids[slot] = None
        self.give_back(slot)
        return 0

    cdef slot_t take(self) except -1 nogil:
        """A slot that has no id. O(1)."""
        cdef slot_t slot = self.size
        cdef slot_t capacity
        if self._frees:
            self._frees -= 1
            return self._free[self._frees]
        if slot == self._capacity:
            capacity = max(16, 2 * self._capacity)
            resize(<void**>&self._numbers, capacity * sizeof(int64_t))
            resize(<void**>&self._free, capacity * sizeof(slot_t))
            with gil:
                self._ids.extend([None] * (capacity - len(self._ids)))
            self._capacity = capacity
        self._numbers[slot] = NO_NUMBER
        self.size += 1
        return slot

    cdef void give_back(self, slot_t slot) noexcept nogil:
        """Free a slot that has no id. O(1)."""
        self._free[self._frees] = slot
        self._frees += 1

    cdef str id_of(self, slot_t slot):
        """The id of a slot; None: it has none."""
        cdef int64_t number = self._numbers[slot]
        cdef object id = self._ids[slot]
        if id is not None and number_in(id) != number:
            id = None                          # what was asked for of an earlier id may still stand there
        if id is None and number != NO_NUMBER:
            id = str(number)
            self._ids[slot] = id
        return id

    cdef int64_t number_of(self, slot_t slot) noexcept nogil:
        """The number that the id of a live slot writes out, or NO_NUMBER."""
        return self._numbers[slot]

    cdef slot_t count(self):
        return <slot_t>len(self._texts) + self.numbered

    cdef bint all_numbers(self):
        """Whether every live id writes out a number."""
        return len(self._texts) == 0

    cdef list live(self):
        """Ids that are live, in no order that a result may depend on."""
        cdef slot_t slot
        found = list(self._texts)
        for slot in range(self.size if self.numbered else 0):
            if self._numbers[slot] != NO_NUMBER:
                found.append(self.id_of(slot))
        return found

    cdef int64_t _place(self, int64_t number) noexcept nogil:
        """Where the number stands in the table, or where it would."""
        cdef int64_t at = mix64(<uint64_t>number ^ self._key) & self._mask
        while self._table[at] != NO_SLOT and self._numbers[self._table[at]] != number:
            at = (at + 1) & self._mask
        return at

    cdef void _leave(self, int64_t number) noexcept nogil:
        """Out of the table; entries behind it move up, so that no tombstone slows later look-ups."""
        cdef int64_t hole = self._place(number)
        cdef int64_t at = hole
        cdef int64_t home
        while True:
            at = (at + 1) & self._mask
            if self._table[at] == NO_SLOT:
                break
            home = mix64(<uint64_t>self._numbers[self._table[at]] ^ self._key) & self._mask
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._table[hole] = self._table[at]
                hole = at
        self._table[hole] = NO_SLOT

    cdef bint _rehash(self, int64_t size) noexcept nogil:
        """A table of this size, all numbers in it. False: no memory, all is as it was."""
        cdef slot_t* table = <slot_t*>malloc(size * sizeof(slot_t))
        cdef slot_t* old = self._table
        cdef int64_t rows = self._mask + 1
        cdef int64_t at
        if table == NULL:
            return False
        memset(table, 0xFF, size * sizeof(slot_t))
        self._table = table
        self._mask = size - 1
        for at in range(rows):
            if old[at] != NO_SLOT:
                self._table[self._place(self._numbers[old[at]])] = old[at]
        free(old)
        return True
