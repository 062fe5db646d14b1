"""Overtaking: per waiting request, the cost of younger ones popped before it (DESIGN D17). A container: it decides
nothing.

Requests take places in order of becoming ready, so overtaken(x) is the cost popped from places behind x: one suffix
sum of a Fenwick tree (Fenwick 1994). When places run out the live requests are numbered anew, each keeping its sum.

Invariant: overtaken never falls while a request waits, and of two waiting requests the older has been overtaken at
least as much as the younger; so a bound that holds for the oldest holds for all.

Cost: enter amortised O(log n), leave O(1), popped and overtaken O(log n). There are at most 4 places, or 64 in all, for
each request that waited when they were last numbered.
"""
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from kvcore._types cimport NO_SLOT, resize


cdef class Overtaking:
    def __dealloc__(self):
        free(self._sums)
        free(self._items)
        free(self._place_of)

    cdef int enter(self, slot_t item) except -1 nogil:
        """A request becomes ready, younger than all others; overtaken by nothing yet."""
        cdef slot_t capacity = max(item + 1, 2 * self._items_capacity)
        if item >= self._items_capacity:
            resize(<void**>&self._place_of, capacity * sizeof(int32_t))
            self._items_capacity = capacity
        if self._next >= self._places - 1:
            self._renumber()
        self._place_of[item] = self._next
        self._items[self._next] = item
        self._next += 1
        self._live += 1
        return 0

    cdef void leave(self, slot_t item) noexcept nogil:
        """A request waits no longer."""
        self._items[self._place_of[item]] = NO_SLOT
        self._live -= 1

    cdef void popped(self, slot_t item, int64_t cost) noexcept nogil:
        """A waiting request is served: every older one has been overtaken by its cost."""
        self._add(self._place_of[item], cost)

    cdef int pass_all(self, i128 cost) except -1 nogil:
        """As if a request had become ready now, cost so much, and been served at once."""
        if self._next >= self._places - 1:
            self._renumber()
        self._items[self._next] = NO_SLOT
        self._add(self._next, cost)
        self._next += 1
        return 0

    cdef i128 overtaken(self, slot_t item) noexcept nogil:
        """Cost of younger requests popped while this one has been ready."""
        return self._up_to(self._places - 1) - self._up_to(self._place_of[item])

    cdef slot_t next_from(self, int32_t* place) noexcept nogil:
        """The oldest request from this place on, whose place becomes the one behind; NO_SLOT: there is none.

        From place 0 on: all that wait, in order of becoming ready. O(places) in all.
        """
        cdef slot_t item = NO_SLOT
        while item == NO_SLOT and place[0] < self._next:
            item = self._items[place[0]]
            place[0] += 1
        return item

    cdef int _renumber(self) except -1 nogil:
        """Places 0 .. live - 1 for those who wait, in the same order and with the same sums; room for as many again."""
        cdef int32_t places = max(64, 4 * self._live)
        cdef int32_t old, place = 0
        cdef slot_t item = NO_SLOT
        cdef i128 before = 0
        cdef i128* sums = <i128*>malloc(places * sizeof(i128))
        cdef slot_t* items = <slot_t*>malloc(places * sizeof(slot_t))
        cdef i128* kept = <i128*>malloc((self._live + 1) * sizeof(i128))
        if sums == NULL or items == NULL or kept == NULL:
            free(sums)
            free(items)
            free(kept)
            with gil:
                raise MemoryError("overtaking")
        memset(sums, 0, places * sizeof(i128))
        for old in range(self._next):
            item = self._items[old]
            if item != NO_SLOT:
                kept[place] = self.overtaken(item)
                items[place] = item
                self._place_of[item] = place
                place += 1
        free(self._sums)
        free(self._items)
        self._sums = sums
        self._items = items
        self._places = places
        self._next = place + 1                     # the place behind the youngest holds what has overtaken it
        items[place] = NO_SLOT
        for old in range(place - 1, -1, -1):
            self._add(old + 1, kept[old] - before)
            before = kept[old]
        free(kept)
        return 0

    cdef void _add(self, int32_t place, i128 cost) noexcept nogil:
        place += 1
        while place <= self._places - 1:
            self._sums[place] += cost
            place += place & -place

    cdef i128 _up_to(self, int32_t place) noexcept nogil:
        """Sum over places 0 .. place."""
        cdef i128 total = 0
        place += 1
        if place > self._places - 1:
            place = self._places - 1
        while place > 0:
            total += self._sums[place]
            place -= place & -place
        return total
