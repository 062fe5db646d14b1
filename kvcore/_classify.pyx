"""Classifier: which policy class a request falls into (DESIGN D2), without Python objects where it matters.

Owns a C copy of a profile's ClassTable, and what the names mean that records use (_records). Names are looked up once;
after that a class is found by numbers alone.

Cost: meaning O(1), class_of O(buckets).
"""
from libc.stdlib cimport free
from kvcore._types cimport NO_SLOT, resize
from kvcore.policy cimport ClassTable


cdef class Classifier:
    def __cinit__(self, object profile not None):
        cdef slot_t i
        self._table = ClassTable(profile)
        self._synthetic = self._table.synthetic
        self._buckets = <slot_t>len(self._table.floors)
        resize(<void**>&self._floors, max(1, self._buckets) * sizeof(int64_t))
        resize(<void**>&self._cells, max(1, len(self._table.table)) * sizeof(slot_t))
        for i in range(self._buckets):
            self._floors[i] = self._table.floors[i]
        for i in range(<slot_t>len(self._table.table)):
            self._cells[i] = self._table.table[i]
        self.unnamed = self.meaning(None)

    def __dealloc__(self):
        free(self._floors)
        free(self._cells)
        free(self.numbered)

    cdef meaning_t meaning(self, str policy_class) except *:
        """What a class's name means; None: no name."""
        cdef meaning_t found
        found.explicit = NO_SLOT
        found.family = self._table.default_family
        found.known = policy_class is None or self._table.names(policy_class)
        if self._synthetic:
            found.explicit = 0
        elif policy_class is not None:
            found.explicit = self._table.explicit.get(policy_class, NO_SLOT)
            found.family = self._table.families.get(policy_class, found.family)
        return found

    cdef int learn(self, list names) except -1:
        """Know what all of these names mean, by number; they only grow."""
        cdef int32_t i
        if <int32_t>len(names) > self._numbers:
            resize(<void**>&self.numbered, len(names) * sizeof(meaning_t))
            for i in range(self._numbers, <int32_t>len(names)):
                self.numbered[i] = self.meaning(names[i])
            self._numbers = <int32_t>len(names)
        return 0

    cdef slot_t class_of(self, const meaning_t* meaning, int64_t uncached_tokens) noexcept nogil:
        """Class index of a request with so many uncached prompt tokens, >= 0."""
        cdef slot_t bucket = self._buckets - 1
        if meaning.explicit != NO_SLOT:
            return meaning.explicit
        while self._floors[bucket] > uncached_tokens:
            bucket -= 1
        return self._cells[meaning.family * self._buckets + bucket]
