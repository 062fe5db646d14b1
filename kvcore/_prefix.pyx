"""PrefixIndex: which ranks hold which KV blocks, and how long a path of blocks each rank holds.

Owns a table of blocks by hash, each with the set of ranks that hold it, and by rank a log of what it came to hold.
A hash names a block and everything before it, so one flat table replaces a trie: a rank holds a prefix iff it holds
each of its hashes.

Never here: what a worker or a request is, how often a pair is referred to (_active), when it ends (_predicted).

Invariants: a row of the table is in use iff a rank holds its block; a rank that holds a block has it in its log, HOLE
apart; where a block that one rank holds has a place, it stands at that place of the rank's log; `pairs` = sum of set
sizes = sum of `held`; `mixed` = sum over pairs of mix64(mix64(hash) + tag of the rank); between calls a log is never
longer than 2 * held + LOG_SLACK; _alive is empty. Where `unlogged`, which is set while it is empty, there are
no logs, and purge and held_by are for nobody.

Why logs: a rank that leaves must find its blocks. Links through all pairs of a rank cost 16 bytes and two scattered
writes per change; a log costs 8 to 16 bytes, and an addition appends. It names blocks by hash, so rows may move: the
table needs no row numbers and no second array. A block that one rank holds, as most are, knows its place there, so its
removal leaves a HOLE, which a later addition fills or a compaction skips without a look-up. Of other blocks a removal
leaves their name behind, until more than half of the log is out of date.

Cost: add, remove O(1) amortised, whatever the number of holders (at most SOME_MAX are searched); purge O(blocks of the
rank); a match O(blocks looked at + ranks matched), and O(ranks / 64) more for each block that many hold. Memory: 36 to
72 bytes of table a block; by pair 8 to 20 of log, and in sets beyond two ranks 4 to 8, at most ranks / 8 a block. It is
given back: sets as they shrink, logs and the table when they are far too large.
"""
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from kvcore._blocks cimport (
    AHEAD, NO_PLACE, SOME_MAX, TABLE_MIN, lowest_bit, place_of, set_add, set_array, set_has, set_place, set_remove,
    set_reserve, table_ask, table_close, table_find, table_free, table_next, table_resize, table_start)
from kvcore._types cimport NO_SLOT, grown, mix64, resize

cdef enum:
    LOG_SLACK = 16
    TRIES = 4                  # entries of a log, which an addition tries for a hole
    CHUNK = 32                 # of a log: rows on their way from memory at a time
    HEADS = 64                 # chains of ranks that begin further on, by position modulo this


cdef inline int32_t begin(const int32_t* start, slot_t rank) noexcept nogil:
    """Where the path begins for a rank. NULL: at 0 for all."""
    return 0 if start == NULL else start[rank]


cdef class PrefixIndex:
    def __cinit__(self):
        self._table.mask = -1
        if not table_resize(&self._table, TABLE_MIN):
            raise MemoryError("prefix index")

    def __dealloc__(self):
        cdef slot_t rank
        for rank in range(self._capacity):
            free(self._holdings[rank].log)
        table_free(&self._table)
        free(self._holdings)
        free(self.depth)
        free(self.matched)
        free(self._alive)
        free(self._seen)
        free(self._later)

    cdef int reserve(self, slot_t ranks) except -1:
        """Make room for ranks 0 .. ranks - 1."""
        cdef slot_t old = self._capacity
        cdef slot_t capacity = old
        cdef size_t words
        if ranks > old:
            capacity = max(ranks, 2 * old)
            words = (capacity + 63) // 64
            resize(<void**>&self._holdings, capacity * sizeof(holding_t))
            resize(<void**>&self.depth, capacity * sizeof(int32_t))
            resize(<void**>&self.matched, capacity * sizeof(slot_t))
            resize(<void**>&self._alive, words * sizeof(uint64_t))
            resize(<void**>&self._seen, words * sizeof(uint64_t))
            resize(<void**>&self._later, capacity * sizeof(slot_t))
            memset(self._holdings + old, 0, (capacity - old) * sizeof(holding_t))
            memset(self.depth + old, 0, (capacity - old) * sizeof(int32_t))
            memset(self._alive, 0, words * sizeof(uint64_t))
            self._capacity = capacity
        if ranks > self._ranks:
            self._ranks = ranks
            self._words = (ranks + 63) // 64
        return 0

    cdef void name_rank(self, slot_t rank, uint64_t tag) noexcept:
        """Give a rank, which holds nothing, its layout-free name."""
        self._holdings[rank].tag = tag

    cdef bint holds(self, uint64_t hash, slot_t rank) noexcept nogil:
        return set_has(&table_find(&self._table, mix64(hash)).holders, rank)

    cdef bint add(self, uint64_t hash, slot_t rank) except -1 nogil:
        """The rank holds the block from now on. True iff that is new. MemoryError: all is as it was."""
        cdef int entered = self.enter(hash, rank)
        if entered < 0:
            with gil:
                raise MemoryError("prefix index")
        return entered

    cdef int enter(self, uint64_t hash, slot_t rank) noexcept nogil:
        """`add`, that says -1 where there is no memory; 1 iff the pair is new, else 0."""
        cdef uint64_t key = mix64(hash)
        return self._put(table_find(&self._table, key), hash, key, rank, 1)

    cdef int32_t add_all(self, const uint64_t* hashes, int32_t count, slot_t rank) except -1 nogil:
        """`add` of each in turn; returns how many are new. MemoryError: those before it stay added."""
        cdef uint64_t keys[AHEAD]
        cdef uint64_t key
        cdef int32_t fresh = 0
        cdef int32_t i
        cdef int entered
        table_start(&self._table, hashes, count, keys)
        for i in range(count):
            key = table_next(&self._table, hashes, i, count, keys)
            entered = self._put(table_find(&self._table, key), hashes[i], key, rank, count - i)
            if entered < 0:
                with gil:
                    raise MemoryError("prefix index")
            fresh += entered
        return fresh

    cdef bint remove(self, uint64_t hash, slot_t rank) noexcept nogil:
        """The rank holds the block no more. True iff it did."""
        return self.remove_all(&hash, 1, rank)

    cdef int32_t remove_all(self, const uint64_t* hashes, int32_t count, slot_t rank) noexcept nogil:
        """`remove` of each in turn; returns how many it held."""
        cdef holding_t* holding = &self._holdings[rank]
        cdef uint64_t keys[AHEAD]
        cdef uint64_t key
        cdef uint64_t mixed = 0
        cdef int32_t gone = 0
        cdef int32_t i
        cdef block_t* row
        table_start(&self._table, hashes, count, keys)
        for i in range(count):
            key = table_next(&self._table, hashes, i, count, keys)
            row = table_find(&self._table, key)
            if set_has(&row.holders, rank):
                mixed += mix64(key + holding.tag)
                gone += 1
                self._drop(row, rank)
        self._count_gone(holding, gone, mixed)
        if holding.length > 2 * holding.held + LOG_SLACK:
            self._compact(holding, rank)
        self._shrink()
        return gone

    cdef int32_t purge(self, slot_t rank) noexcept nogil:
        """Forget everything that the rank holds; returns how many blocks that were."""
        cdef holding_t* holding = &self._holdings[rank]
        cdef int32_t dropped = holding.held
        cdef uint64_t keys[AHEAD]
        cdef uint64_t key
        cdef uint64_t mixed = 0
        cdef int32_t i
        cdef block_t* row
        self.remove(HOLE, rank)
        table_start(&self._table, holding.log, holding.length, keys)
        for i in range(holding.length):
            key = table_next(&self._table, holding.log, i, holding.length, keys)
            row = table_find(&self._table, key)
            if set_has(&row.holders, rank):
                mixed += mix64(key + holding.tag)
                self._drop(row, rank)
        self._count_gone(holding, holding.held, mixed)
        free(holding.log)
        holding.log = NULL
        holding.length = 0
        holding.room = 0
        self._shrink()
        return dropped

    cdef const uint64_t* held_by(self, slot_t rank, int32_t* count) noexcept nogil:
        """The blocks that the rank holds, each once, in no particular order. Good until the next change."""
        cdef holding_t* holding = &self._holdings[rank]
        self._compact(holding, rank)
        count[0] = holding.length
        if self.holds(HOLE, rank):
            holding.log[holding.length] = HOLE
            count[0] += 1
        return holding.log

    cdef slot_t match(self, const uint64_t* path, int32_t length, uint64_t serial) noexcept nogil:
        """How many leading blocks of the path each rank holds: depth[rank], and matched[0 .. result - 1] where > 0.

        Results are valid until the next match. `serial` names the path for ever (0: nothing does): asked again with
        nothing changed, the answer is there already.
        """
        if serial and serial == self._matched_serial and self._changes == self._matched_changes:
            return self.matches
        self._matched_serial = serial
        self._matched_changes = self._changes
        return self._walk(path, length, NULL, 0)

    cdef slot_t match_on(
            self, const uint64_t* path, int32_t length, const int32_t* start, int32_t last=0x7FFFFFFF) noexcept nogil:
        """The same for a path that begins at position start[rank] for each rank: how many blocks follow from there.

        last: no rank begins after this position; what is not matched by then need not be looked at.
        """
        self._matched_serial = 0
        return self._walk(path, length, start, last)

    cdef int _put(self, block_t* row, uint64_t hash, uint64_t key, slot_t rank, int32_t more) noexcept nogil:
        """`enter` into the row of the block, or into the empty one where it would be put; `more`: so many to come."""
        cdef holding_t* holding = &self._holdings[rank]
        if row.holders.size and set_has(&row.holders, rank):
            return 0
        if holding.length + 2 > holding.room and not self.unlogged:                    # one is spare, see held_by
            if not self._lengthen(holding, more):
                return -1
        if row.holders.size == 0:
            if (self.blocks + 1) * 3 > (self._table.mask + 1) * 2:
                if not table_resize(&self._table, (self._table.mask + 1) * 2):
                    return -1
                row = table_find(&self._table, key)
            self.blocks += 1
            row.key = key
            row.holders.ranks.few[0] = rank                    # an empty set is one of few
            row.holders.size = 1
            set_place(&row.holders, self._write(holding, hash))
        else:
            if not set_reserve(&row.holders, rank, self._words):
                return -1
            set_add(&row.holders, rank)
            self._write(holding, hash)
        holding.held += 1
        self.pairs += 1
        self._changes += 1
        self.mixed += mix64(key + holding.tag)
        return 1

    cdef bint _lengthen(self, holding_t* holding, int32_t more) noexcept nogil:
        """Make room in a log for so many additions, and then some. False: no memory, and nothing has changed."""
        cdef int32_t room = max(holding.room + holding.room // 2 + 4, holding.length + more + 1)
        if not grown(<void**>&holding.log, room * sizeof(uint64_t)):
            return False
        holding.room = room
        return True

    cdef int32_t _write(self, holding_t* holding, uint64_t hash) noexcept nogil:
        """Into the log, in which there is room: the place, or NO_PLACE. Some entries are tried for a hole, in turn."""
        cdef int32_t place = holding.length
        cdef int32_t _i
        if hash == HOLE or self.unlogged:
            return NO_PLACE
        for _i in range(TRIES if place > holding.held else 0):
            holding.tried = holding.tried + 1 if holding.tried + 1 < place else 0
            if holding.log[holding.tried] == HOLE:
                holding.log[holding.tried] = hash
                return holding.tried
        holding.log[place] = hash
        holding.length += 1
        return place

    cdef void _shrink(self) noexcept nogil:
        """Give up a table that is far too large; no memory for a smaller one is no harm."""
        cdef int64_t size = self._table.mask + 1
        if size == TABLE_MIN or 8 * self.blocks >= size:
            return
        while size > TABLE_MIN and 4 * self.blocks < size:
            size //= 2
        table_resize(&self._table, size)

    cdef void _drop(self, block_t* row, slot_t rank) noexcept nogil:
        """Take a rank that holds the block of this row out of it; the row goes with its last rank."""
        if row.holders.size > 1:
            set_remove(&row.holders, rank)
            return
        if place_of(&row.holders) != NO_PLACE:
            self._holdings[rank].log[place_of(&row.holders)] = HOLE
        self.blocks -= 1
        table_close(&self._table, row)

    cdef void _count_gone(self, holding_t* holding, int32_t gone, uint64_t mixed) noexcept nogil:
        """So many pairs of a rank have been dropped, of which `mixed` is the sum."""
        holding.held -= gone
        self.pairs -= gone
        self._changes += gone
        self.mixed -= mixed

    cdef void _compact(self, holding_t* holding, slot_t rank) noexcept nogil:
        """Leave each block that the rank holds in its log once, without holes.

        A block that it holds alone has its place there; of others a negated size says meanwhile: already kept.
        """
        cdef int32_t at[CHUNK]
        cdef uint64_t keys[CHUNK]
        cdef int32_t i = 0
        cdef int32_t kept = 0
        cdef int32_t kept_shared = 0
        cdef int32_t j, count
        cdef rankset_t* holders
        cdef void* less
        while i < holding.length:
            count = 0
            while i < holding.length and count < CHUNK:
                if holding.log[i] != HOLE:
                    at[count] = i
                    keys[count] = table_ask(&self._table, holding.log[i])
                    count += 1
                i += 1
            for j in range(count):
                holders = &table_find(&self._table, keys[j]).holders
                if holders.size <= 0 or not set_has(holders, rank):
                    continue
                if holders.size > 1:
                    holders.size = -holders.size
                    kept_shared += 1
                elif place_of(holders) == NO_PLACE or place_of(holders) == at[j]:
                    set_place(holders, kept)
                else:
                    continue
                holding.log[kept] = holding.log[at[j]]
                kept += 1
        for i in range(kept if kept_shared else 0):
            holders = &table_find(&self._table, mix64(holding.log[i])).holders
            if holders.size < 0:
                holders.size = -holders.size
        holding.length = kept
        if holding.room > 2 * kept + LOG_SLACK:
            less = realloc(holding.log, (kept + LOG_SLACK) * sizeof(uint64_t))
            if less != NULL:
                holding.log = <uint64_t*>less
                holding.room = kept + LOG_SLACK

    cdef slot_t _walk(self, const uint64_t* path, int32_t length, const int32_t* start, int32_t last) noexcept nogil:
        """Go along the path as long as some rank matches or has yet to begin.

        Ranks that match so far are in one of two groups. A block that few hold names them: their depth is written at
        once, and they are listed. Behind a block that many hold they are in the bitset _alive, which is cut down block
        by block, and a depth is written when its rank falls out.
        """
        cdef slot_t listed[SOME_MAX]
        cdef slot_t heads[HEADS]
        cdef slot_t* members
        cdef slot_t rank, i
        cdef slot_t size = 0
        cdef slot_t kept
        cdef int32_t level = 0
        cdef rankset_t* holders
        cdef uint64_t keys[AHEAD]
        for i in range(self.matches):
            self.depth[self.matched[i]] = 0
        self.matches = 0
        self.reach = 0
        if self.pairs == 0:
            return 0
        if start != NULL:
            memset(heads, 0xFF, sizeof(heads))
            memset(self._seen, 0, self._words * sizeof(uint64_t))
        table_start(&self._table, path, length, keys)
        while level < length and (level <= last or size or self._alive_size):
            holders = &table_find(&self._table, table_next(&self._table, path, level, length, keys)).holders
            kept = 0
            if holders.room < 0:
                for i in range(size):
                    rank = listed[i]
                    if set_has(holders, rank):
                        self.depth[rank] += 1
                        listed[kept] = rank
                        kept += 1
                self._narrow(holders, level, start)
                if level <= last:
                    self._join(holders, level, start, heads)
                if 4 * self._alive_size <= self._words and kept + self._alive_size <= SOME_MAX:
                    i = self.matches
                    self._narrow(NULL, level + 1, start)
                    while i < self.matches:
                        listed[kept] = self.matched[i]
                        kept += 1
                        i += 1
            else:
                self._narrow(NULL, level, start)
                members = set_array(holders)
                for i in range(holders.size):
                    rank = members[i]
                    if begin(start, rank) + self.depth[rank] == level:
                        if self.depth[rank] == 0:
                            self.matched[self.matches] = rank
                            self.matches += 1
                        self.depth[rank] += 1
                        listed[kept] = rank
                        kept += 1
            size = kept
            level += 1
            if size or self._alive_size:
                self.reach = level
        self._narrow(NULL, level, start)
        return self.matches

    cdef void _narrow(self, const rankset_t* many, int32_t level, const int32_t* start) noexcept nogil:
        """Keep alive who is in a set of that shape, NULL: nobody; all others hold their path up to this level."""
        cdef int32_t word
        cdef uint64_t gone
        cdef slot_t rank
        if self._alive_size == 0:
            return
        for word in range(self._words):
            gone = self._alive[word]
            if many != NULL and word < -many.room:
                gone &= ~many.ranks.many[word]
            self._alive[word] ^= gone
            while gone:
                rank = 64 * word + lowest_bit(gone)
                gone &= gone - 1
                self.depth[rank] = level - begin(start, rank)
                self.matched[self.matches] = rank
                self.matches += 1
                self._alive_size -= 1

    cdef void _join(self, const rankset_t* many, int32_t level, const int32_t* start, slot_t* heads) noexcept nogil:
        """Let in those of a set of that shape whose path begins at this level.

        A rank is looked at once: if it begins further on, it is put into the chain of its position, modulo HEADS.
        """
        cdef slot_t rank, after
        cdef int32_t word, slot
        cdef uint64_t fresh
        if start == NULL:
            memcpy(self._alive, many.ranks.many, -many.room * sizeof(uint64_t))
            self._alive_size = many.size
            return
        slot = level & (HEADS - 1)
        rank = heads[slot]
        heads[slot] = NO_SLOT
        while rank != NO_SLOT:
            after = self._later[rank]
            if start[rank] > level:
                self._later[rank] = heads[slot]
                heads[slot] = rank
            elif start[rank] == level and set_has(many, rank):
                self._alive[rank >> 6] |= <uint64_t>1 << (rank & 63)
                self._alive_size += 1
            rank = after
        for word in range(-many.room):
            fresh = many.ranks.many[word] & ~self._seen[word]
            self._seen[word] |= fresh
            while fresh:
                rank = 64 * word + lowest_bit(fresh)
                fresh &= fresh - 1
                if start[rank] == level:
                    self._alive[word] |= <uint64_t>1 << (rank & 63)
                    self._alive_size += 1
                elif start[rank] > level:
                    slot = start[rank] & (HEADS - 1)
                    self._later[rank] = heads[slot]
                    heads[slot] = rank
