# Blocks and who holds them: an open-addressed table of blocks by hash, each row with a set of ranks. Structs and free
# functions; whoever embeds a table_t owns its memory.
#
# A set has one of three shapes, each at the sizes at which it is the smallest. Only set_reserve allocates what cannot
# be done without, so an insertion that it has prepared cannot fail. Removals give memory back if they get a smaller
# piece, and do without otherwise.
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset
from kvcore._types cimport int32_t, int64_t, mix64, slot_t, uint64_t

cdef extern from *:
    """
    #define kv_lowest_bit(word) __builtin_ctzll(word)
    /* The empty asm keeps gcc 12 from taking a function that does nothing else for one that may be left out. */
    #define kv_prefetch(address) do { __builtin_prefetch(address); __asm__ volatile(""); } while (0)
    """
    int lowest_bit "kv_lowest_bit"(uint64_t word) noexcept nogil   # of a word that is not 0
    void prefetch "kv_prefetch"(const void* address) noexcept nogil  # have it on its way from memory

cdef enum:
    FEW = 2                    # ranks that need no memory beyond the struct
    SOME_MAX = 64              # longest array: a longer one would be slow to search
    TABLE_MIN = 64
    AHEAD = 8                  # rows on their way from memory while one of a list is looked at


cdef union ranks_t:
    slot_t few[FEW]
    slot_t* some               # in no particular order
    uint64_t* many             # rank r: bit r % 64 of word r // 64


cdef struct rankset_t:
    ranks_t ranks
    int32_t size               # ranks in it
    int32_t room               # 0: few. > 0: some, the length of the array. < 0: many, minus the number of words


cdef struct block_t:
    uint64_t hash              # name of the block and of everything before it
    rankset_t holders          # size 0: the row is empty


cdef struct table_t:
    block_t* rows              # linear probing; no tombstones
    int64_t mask               # number of rows - 1; -1: none yet
    int32_t shift              # number of rows = 2^(64 - shift)


cdef inline int32_t some_max(int32_t words) noexcept nogil:
    """The longest array that is no larger than a bitset of so many words, and not slow."""
    return min(2 * words, <int32_t>SOME_MAX)


cdef inline slot_t* set_array(const rankset_t* ranks) noexcept nogil:
    """The members of few or some."""
    return ranks.ranks.some if ranks.room else <slot_t*>ranks.ranks.few


cdef inline bint set_has(const rankset_t* ranks, slot_t rank) noexcept nogil:
    cdef slot_t* members
    cdef int32_t i
    if ranks.room < 0:
        return rank < -64 * ranks.room and (ranks.ranks.many[rank >> 6] >> (rank & 63)) & 1
    members = set_array(ranks)
    for i in range(ranks.size):
        if members[i] == rank:
            return True
    return False


cdef inline bint set_to_some(rankset_t* ranks, int32_t room) noexcept nogil:
    """From few or many to an array. False, and nothing has changed: no memory."""
    cdef slot_t* some = <slot_t*>malloc(room * sizeof(slot_t))
    if some == NULL:
        return False
    set_list(ranks, some)
    if ranks.room:
        free(ranks.ranks.many)
    ranks.ranks.some = some
    ranks.room = room
    return True


cdef inline bint set_to_many(rankset_t* ranks, int32_t words) noexcept nogil:
    """From few or some to a bitset. False, and nothing has changed: no memory."""
    cdef uint64_t* many = <uint64_t*>calloc(words, sizeof(uint64_t))
    cdef slot_t* members = set_array(ranks)
    cdef int32_t i
    if many == NULL:
        return False
    for i in range(ranks.size):
        many[members[i] >> 6] |= <uint64_t>1 << (members[i] & 63)
    if ranks.room:
        free(ranks.ranks.some)
    ranks.ranks.many = many
    ranks.room = -words
    return True


cdef inline void set_list(const rankset_t* ranks, slot_t* out) noexcept nogil:
    """Write the members, in no particular order."""
    cdef int32_t word
    cdef uint64_t bits
    if ranks.room >= 0:
        memcpy(out, set_array(ranks), ranks.size * sizeof(slot_t))
        return
    for word in range(-ranks.room):
        bits = ranks.ranks.many[word]
        while bits:
            out[0] = 64 * word + lowest_bit(bits)
            out += 1
            bits &= bits - 1


cdef inline bint set_reserve(rankset_t* ranks, slot_t rank, int32_t words) noexcept nogil:
    """Make room for one more rank, which is not in it; all ranks have room in so many words. False: no memory."""
    cdef int32_t room = ranks.room
    cdef int32_t longest = some_max(words)
    cdef void* grown
    if room == 0:
        if ranks.size < FEW:
            return True
        return set_to_some(ranks, min(2 * FEW, longest)) if longest > FEW else set_to_many(ranks, words)
    if room > 0:
        if ranks.size < room:
            return True
        if room >= longest:
            return set_to_many(ranks, words)
        room = min(2 * room, longest)
        grown = realloc(ranks.ranks.some, room * sizeof(slot_t))
        if grown == NULL:
            return False
        ranks.ranks.some = <slot_t*>grown
        ranks.room = room
        return True
    if rank < -64 * room:
        return True
    # It was made when there were fewer ranks.
    if 2 * (ranks.size + 1) <= longest:
        return set_to_some(ranks, longest)
    grown = realloc(ranks.ranks.many, words * sizeof(uint64_t))
    if grown == NULL:
        return False
    ranks.ranks.many = <uint64_t*>grown
    memset(ranks.ranks.many - room, 0, (words + room) * sizeof(uint64_t))
    ranks.room = -words
    return True


cdef inline void set_add(rankset_t* ranks, slot_t rank) noexcept nogil:
    """Put in a rank that there is room for."""
    if ranks.room < 0:
        ranks.ranks.many[rank >> 6] |= <uint64_t>1 << (rank & 63)
    else:
        set_array(ranks)[ranks.size] = rank
    ranks.size += 1


cdef inline void set_remove(rankset_t* ranks, slot_t rank) noexcept nogil:
    """Take out a rank that is in it. The shape follows late, so that no size is a border to go to and fro over."""
    cdef slot_t few[FEW]
    cdef slot_t* members
    cdef void* less
    cdef int32_t longest
    cdef int32_t i = 0
    ranks.size -= 1
    if ranks.room < 0:
        ranks.ranks.many[rank >> 6] &= ~(<uint64_t>1 << (rank & 63))
        longest = some_max(-ranks.room)
        if 2 * ranks.size > longest:
            return
        if ranks.size > FEW:
            set_to_some(ranks, longest)
            return
    else:
        members = set_array(ranks)
        while members[i] != rank:
            i += 1
        members[i] = members[ranks.size]
        if ranks.room == 0:
            return
        if ranks.size > 1:
            if 4 * ranks.size <= ranks.room:
                less = realloc(members, (ranks.room // 2) * sizeof(slot_t))
                if less != NULL:
                    ranks.ranks.some = <slot_t*>less
                    ranks.room //= 2
            return
    members = ranks.ranks.some
    set_list(ranks, few)
    free(members)
    memcpy(ranks.ranks.few, few, FEW * sizeof(slot_t))
    ranks.room = 0


cdef inline int64_t table_home(const table_t* table, uint64_t hash) noexcept nogil:
    """Where the search for a block begins. By high bits, so that rows keep their order when the table grows."""
    return <int64_t>(mix64(hash) >> table.shift)


cdef inline block_t* table_find(const table_t* table, uint64_t hash) noexcept nogil:
    """The row of a block, or the empty one where it would be put."""
    cdef int64_t at = table_home(table, hash)
    while table.rows[at].holders.size and table.rows[at].hash != hash:
        at = (at + 1) & table.mask
    return &table.rows[at]


cdef inline void table_expect(const table_t* table, uint64_t hash) noexcept nogil:
    """This block will be looked for: have its row on its way from memory."""
    prefetch(&table.rows[table_home(table, hash)])


cdef inline void table_start(const table_t* table, const uint64_t* hashes, int32_t count) noexcept nogil:
    """Before a run of table_next."""
    cdef int32_t i
    for i in range(min(count, <int32_t>AHEAD)):
        table_expect(table, hashes[i])


cdef inline block_t* table_next(const table_t* table, const uint64_t* hashes, int32_t i, int32_t count) noexcept nogil:
    """table_find of hashes[i], while those that follow are on their way from memory."""
    if i + AHEAD < count:
        table_expect(table, hashes[i + AHEAD])
    return table_find(table, hashes[i])


cdef inline bint table_resize(table_t* table, int64_t size) noexcept nogil:
    """Move to this number of rows, a power of two. False, and nothing has changed: no memory."""
    cdef block_t* old = table.rows
    cdef int64_t old_size = table.mask + 1
    cdef int64_t at
    cdef block_t* rows = <block_t*>calloc(size, sizeof(block_t))
    if rows == NULL:
        return False
    table.rows = rows
    table.mask = size - 1
    table.shift = 64
    while size > 1:
        size //= 2
        table.shift -= 1
    for at in range(old_size):
        if old[at].holders.size:
            table_find(table, old[at].hash)[0] = old[at]
    free(old)
    return True


cdef inline void table_close(table_t* table, block_t* row) noexcept nogil:
    """Empty a row whose set has become empty; rows behind it move up, so that no gap ends a later search too early."""
    cdef int64_t hole = row - table.rows
    cdef int64_t at = hole
    cdef int64_t home
    while True:
        at = (at + 1) & table.mask
        if table.rows[at].holders.size == 0:
            break
        home = table_home(table, table.rows[at].hash)
        if ((at - home) & table.mask) >= ((at - hole) & table.mask):
            table.rows[hole] = table.rows[at]
            hole = at
    table.rows[hole].holders.size = 0
    table.rows[hole].holders.room = 0


cdef inline void table_free(table_t* table) noexcept nogil:
    cdef int64_t at
    for at in range(table.mask + 1):
        if table.rows[at].holders.room:
            free(table.rows[at].holders.ranks.some)
    free(table.rows)
