"""SlotTable: ids of requests at the door <-> dense row numbers inside.

Owns the mapping only. An id that writes out a number, "17" but not "017", is kept as that number and becomes text when
somebody asks for it; so a request that has come as a number (DESIGN 3, step_array) and one that has come as text are
the same request, and neither costs the other's door anything. Both kinds stand in one open-addressing table of slots,
texts by Python's keyed hash of them, numbers by one keyed here: ids from outside cannot be chosen to collide. A text is
nearly always looked up by the very object that was added, so its row is all that is read. The table's layout shows
nowhere. Slots are reused last freed first, so a small live set stays in few rows.

Invariants: a slot is in the table iff its kind is not ID_NONE; each live id has one slot.
"""
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kvcore._types cimport NO_SLOT, mix64, resize

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    const unsigned char* PyUnicode_1BYTE_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept
    int compare_texts "PyUnicode_Compare"(PyObject* one, PyObject* other) noexcept   # of two texts nothing is raised
    Py_hash_t hash_text "PyObject_Hash"(object text) noexcept                         # of a text nothing is raised

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
        self._mask = -1
        self._key = <uint64_t>hash("kvcore")
        if not self._rehash(TABLE_MIN):
            raise MemoryError("ids")

    def __dealloc__(self):
        cdef slot_t slot
        for slot in range(self.size):
            Py_XDECREF(self._ids[slot].text)
        free(self._ids)
        free(self._free)
        free(self._table)

    cdef slot_t get(self, str id) noexcept:
        """Slot of a live id, or NO_SLOT. O(1)."""
        cdef int64_t number = number_in(id)
        if number != NO_NUMBER:
            return self.get_number(number)
        return self._table[self._place_of_text(id, hash_text(id))]

    cdef slot_t get_number(self, int64_t number) noexcept nogil:
        """Slot of the live id that writes out this number, or NO_SLOT. O(1)."""
        return self._table[self._place_of_number(number)]

    cdef slot_t add(self, str id) except -1:
        """A slot for an id that is not live. O(1)."""
        cdef int64_t number = number_in(id)
        cdef int64_t hashed
        cdef slot_t slot
        cdef id_t* row
        if number != NO_NUMBER:
            slot = self.add_number(number)
            row = &self._ids[slot]
        else:
            self._reserve()
            slot = self.take()
            row = &self._ids[slot]
            hashed = hash_text(id)
            self._table[self._place_of_text(id, hashed)] = slot
            row.key = hashed
            row.kind = ID_TEXT
            self._texts += 1
        Py_XDECREF(row.text)
        Py_INCREF(id)
        row.text = <PyObject*>id
        return slot

    cdef slot_t add_number(self, int64_t number) except -1 nogil:
        """A slot for the id that writes out this number and is not live. O(1)."""
        cdef slot_t slot
        self._reserve()
        slot = self.take()
        self._table[self._place_of_number(number)] = slot
        self._ids[slot].key = number
        self._ids[slot].kind = ID_NUMBER
        self._numbers += 1
        return slot

    cdef int remove(self, slot_t slot) except -1 nogil:
        """Free a slot and its id, if it has one. O(1)."""
        if self._ids[slot].kind == ID_TEXT:
            with gil:
                self.remove_held(slot)
            return 0
        if self._ids[slot].kind == ID_NUMBER:
            self._leave(slot)
            self._numbers -= 1
        self.give_back(slot)
        return 0

    cdef int remove_held(self, slot_t slot) except -1:
        """`remove` for who holds the interpreter's lock."""
        cdef PyObject* text = self._ids[slot].text
        if self._ids[slot].kind != ID_TEXT:
            return self.remove(slot)
        self._leave(slot)
        self._texts -= 1
        self._ids[slot].text = NULL
        self.give_back(slot)
        Py_XDECREF(text)
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
            resize(<void**>&self._ids, capacity * sizeof(id_t))
            resize(<void**>&self._free, capacity * sizeof(slot_t))
            self._capacity = capacity
        self._ids[slot].kind = ID_NONE
        self._ids[slot].text = NULL
        self.size += 1
        return slot

    cdef void give_back(self, slot_t slot) noexcept nogil:
        """Free a slot that has no id. O(1)."""
        self._free[self._frees] = slot
        self._frees += 1

    cdef str id_of(self, slot_t slot):
        """The id of a slot; None: it has none."""
        cdef id_t* row = &self._ids[slot]
        cdef str id
        if row.kind == ID_NONE:
            return None
        if row.kind == ID_TEXT or (row.text != NULL and number_in(<str>row.text) == row.key):
            return <str>row.text
        id = str(row.key)
        Py_XDECREF(row.text)
        Py_INCREF(id)
        row.text = <PyObject*>id
        return id

    cdef int64_t number_of(self, slot_t slot) noexcept nogil:
        """The number that the id of a slot writes out, or NO_NUMBER."""
        return self._ids[slot].key if self._ids[slot].kind == ID_NUMBER else NO_NUMBER

    cdef slot_t count(self):
        return self._texts + self._numbers

    cdef bint all_numbers(self):
        """Whether every live id writes out a number."""
        return self._texts == 0

    cdef list live(self):
        """Ids that are live, in no order that a result may depend on."""
        cdef slot_t slot
        return [self.id_of(slot) for slot in range(self.size) if self._ids[slot].kind != ID_NONE]

    cdef int _reserve(self) except -1 nogil:
        """Room in the table for one id more."""
        if 3 * (<int64_t>self._texts + self._numbers + 1) > 2 * (self._mask + 1) and (
                not self._rehash(2 * (self._mask + 1))):
            with gil:
                raise MemoryError("ids")
        return 0

    cdef int64_t _home(self, const id_t* id) noexcept nogil:
        """Where the search for an id begins."""
        return (<int64_t>mix64(<uint64_t>id.key ^ self._key) if id.kind == ID_NUMBER else id.key) & self._mask

    cdef int64_t _place_of_number(self, int64_t number) noexcept nogil:
        """Where the number stands in the table, or where it would."""
        cdef int64_t at = <int64_t>mix64(<uint64_t>number ^ self._key) & self._mask
        cdef const id_t* row
        while self._table[at] != NO_SLOT:
            row = &self._ids[self._table[at]]
            if row.key == number and row.kind == ID_NUMBER:
                break
            at = (at + 1) & self._mask
        return at

    cdef int64_t _place_of_text(self, str id, int64_t hashed) noexcept:
        """Where the text stands in the table, or where it would."""
        cdef int64_t at = hashed & self._mask
        cdef const id_t* row
        while self._table[at] != NO_SLOT:
            row = &self._ids[self._table[at]]
            if row.key == hashed and row.kind == ID_TEXT and (
                    row.text == <PyObject*>id or compare_texts(row.text, <PyObject*>id) == 0):
                break
            at = (at + 1) & self._mask
        return at

    cdef void _leave(self, slot_t slot) noexcept nogil:
        """A slot loses its id; entries behind it in the table move up, so that no tombstone slows later look-ups."""
        cdef int64_t hole = self._home(&self._ids[slot])
        cdef int64_t at
        cdef int64_t home
        while self._table[hole] != slot:
            hole = (hole + 1) & self._mask
        self._ids[slot].kind = ID_NONE
        at = hole
        while True:
            at = (at + 1) & self._mask
            if self._table[at] == NO_SLOT:
                break
            home = self._home(&self._ids[self._table[at]])
            if ((at - home) & self._mask) >= ((at - hole) & self._mask):
                self._table[hole] = self._table[at]
                hole = at
        self._table[hole] = NO_SLOT

    cdef bint _rehash(self, int64_t size) noexcept nogil:
        """A table of this size, all ids in it. False: no memory, all is as it was."""
        cdef slot_t* table = <slot_t*>malloc(size * sizeof(slot_t))
        cdef slot_t* old = self._table
        cdef int64_t rows = self._mask + 1
        cdef int64_t at, to
        if table == NULL:
            return False
        memset(table, 0xFF, size * sizeof(slot_t))
        self._table = table
        self._mask = size - 1
        for at in range(rows):
            if old[at] != NO_SLOT:
                to = self._home(&self._ids[old[at]])
                while table[to] != NO_SLOT:
                    to = (to + 1) & self._mask
                table[to] = old[at]
        free(old)
        return True
