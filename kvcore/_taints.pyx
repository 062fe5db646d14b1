"""TaintTable: the distinct taint sets that workers carry (DESIGN D4: constrained heads cost O(taint signatures)).

Owns the numbering of sets and, per requirement met so far, which sets satisfy it. A fleet has few distinct sets however
many workers it has, so a requirement is compared with each set once and then looked up.

Invariants: a number is live iff some worker carries its set; verdicts are dropped whenever the sets change, and at most
VERDICTS_MAX requirements are remembered.
"""

cdef enum:
    VERDICTS_MAX = 1024


cdef class TaintTable:
    def __cinit__(self):
        self._numbers = {}
        self._sets = []
        self._workers = []
        self._free = []
        self._verdicts = {}

    cdef slot_t acquire(self, frozenset taints) except -1:
        """One more worker carries this set; returns its number."""
        number = self._numbers.get(taints)
        if number is None:
            self._verdicts.clear()
            if self._free:
                number = self._free.pop()
            else:
                number = len(self._sets)
                self._sets.append(None)
                self._workers.append(0)
            self._numbers[taints] = number
            self._sets[number] = taints
        self._workers[number] += 1
        return number

    cdef int release(self, slot_t number) except -1:
        """One worker less carries this set."""
        self._workers[number] -= 1
        if self._workers[number] == 0:
            self._verdicts.clear()
            del self._numbers[self._sets[number]]
            self._sets[number] = None
            self._free.append(number)
        return 0

    cdef slot_t size(self):
        """Numbers ever made; every number is below it."""
        return <slot_t>len(self._sets)

    cdef frozenset taints_of(self, slot_t number):
        return self._sets[number]

    cdef const unsigned char* satisfying(self, frozenset required) except NULL:
        """By number: 1 iff the set holds every required taint. Valid until the sets change."""
        verdict = self._verdicts.get(required)
        if verdict is None:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = bytes([taints is not None and required <= taints for taints in self._sets]) or b"\0"
            self._verdicts[required] = verdict
        return verdict
