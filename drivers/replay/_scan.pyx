"""A fast way through the plainest rows of the commonest formats; whatever is not plain is left to their parsers.

Plain is, in Mooncake files, one flat JSON object with the keys timestamp, input_length, output_length and perhaps
hash_ids, each once, in any order, whose values are non-negative integers without sign, fraction or exponent. In CSV
files of these three columns alone, in the order in which the formats are published (Azure, Vidur), it is a line
without blanks and quotes whose time has up to nine digits of fraction and no offset. Such a row means the same to both
ways, and one that is refused is always refused by the slow one, in its words.
"""
from cpython cimport array
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy

import array

cdef enum:
    DIGITS_MAX = 18             # always below 2^63
    ZERO = 48                   # the digit

#: 2^62 ns in milliseconds, and the largest count of tokens (values.py).
cdef int64_t MS_END = (<int64_t>1 << 62) // 1_000_000
cdef int64_t TOKENS_MAX = <int64_t>1 << 53

cdef int64_t SECOND_NS = 1_000_000_000
#: Days of months, and those before them, in years that are no leap years.
cdef int[12] DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
cdef int[12] BEFORE = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]

cdef array.array _EMPTY = array.array("Q")


cdef inline const char *_blanks(const char *at) noexcept nogil:
    while at[0] == b" " or at[0] == b"\t":
        at += 1
    return at


cdef inline const char *_number(const char *at, int64_t *value) noexcept nogil:
    """Reads a plain integer; NULL: it is none. The line ends with a zero byte or a newline, which is no digit."""
    cdef int64_t total = 0
    cdef const char *start = at
    while b"0" <= at[0] <= b"9" and at - start <= DIGITS_MAX:
        total = 10 * total + (at[0] - ZERO)
        at += 1
    if at == start or at - start > DIGITS_MAX or (start[0] == b"0" and at - start > 1):
        return NULL
    value[0] = total
    return at


cdef const char *_ids(const char *at, uint64_t *ids, int64_t *count) noexcept nogil:
    """Reads an array of plain integers; NULL: it is another. ids has room for as many as the line may hold."""
    cdef int64_t value = 0
    at = _blanks(at + 1)
    count[0] = 0
    if at[0] == b"]":
        return at + 1
    while True:
        at = _number(at, &value)
        if at == NULL:
            return NULL
        ids[count[0]] = <uint64_t>value
        count[0] += 1
        at = _blanks(at)
        if at[0] == b"]":
            return at + 1
        if at[0] != b",":
            return NULL
        at = _blanks(at + 1)


cdef inline int _key(const char *at, Py_ssize_t length) noexcept nogil:
    """0, 1, 2: timestamp, input_length, output_length; 3: hash_ids; -1: another."""
    if length == 9 and memcmp(at, b"timestamp", 9) == 0:
        return 0
    if length == 12 and memcmp(at, b"input_length", 12) == 0:
        return 1
    if length == 13 and memcmp(at, b"output_length", 13) == 0:
        return 2
    if length == 8 and memcmp(at, b"hash_ids", 8) == 0:
        return 3
    return -1


cdef int _pairs(const char *at, const char *end, int64_t *values, uint64_t *ids, int64_t *count) noexcept nogil:
    """Reads one flat object that ends at `end`: which keys there are, as bits by _key. 0: it is not plain."""
    cdef const char *start
    cdef int seen = 0, key
    if at[0] != b"{":
        return 0
    at = _blanks(at + 1)
    while True:
        if at[0] != b'"':
            return 0
        at += 1
        start = at
        while b"a" <= at[0] <= b"z" or at[0] == b"_":
            at += 1
        if at[0] != b'"':
            return 0
        key = _key(start, at - start)
        if key < 0 or seen >> key & 1:
            return 0
        seen |= 1 << key
        at = _blanks(at + 1)
        if at[0] != b":":
            return 0
        at = _blanks(at + 1)
        if key < 3:
            at = _number(at, &values[key])
        elif at[0] == b"[":
            at = _ids(at, ids, count)
        else:
            return 0
        if at == NULL:
            return 0
        at = _blanks(at)
        if at[0] == b"}":
            return seen if at + 1 == end else 0
        if at[0] != b",":
            return 0
        at = _blanks(at + 1)


cdef bint _scan_json(const char *at, Py_ssize_t size, const shape_t *shape, plain_t *row) noexcept nogil:
    cdef int64_t values[3]
    if _pairs(at, at + size, values, row.ids, &row.n_ids) & 7 != 7 or values[0] >= MS_END:
        return False
    row.time_ns, row.prompt_tokens, row.output_tokens = values[0] * 1_000_000, values[1], values[2]
    if not (0 < values[1] <= TOKENS_MAX and 0 < values[2] <= TOKENS_MAX):
        return False
    return row.n_ids == 0 or (
        row.n_ids == (values[1] - 1) // shape.trace_block_size + 1
        and (values[1] - 1) // shape.block_size + 1 <= shape.names_max)


cdef const char *_digits(const char *at, int64_t *value, int digits_max) noexcept nogil:
    """Reads 1 .. digits_max digits; NULL: there are none, or more."""
    cdef const char *start = at
    value[0] = 0
    while b"0" <= at[0] <= b"9":
        if at - start == digits_max:
            return NULL
        value[0] = 10 * value[0] + (at[0] - ZERO)
        at += 1
    return at if at > start else NULL


cdef inline int _two(const char *at) noexcept nogil:
    """Two digits; below 0: they are none."""
    return 10 * (at[0] - ZERO) + at[1] - ZERO if b"0" <= at[0] <= b"9" and b"0" <= at[1] <= b"9" else -1


cdef const char *_fraction(const char *at, int64_t *time_ns) noexcept nogil:
    """Reads the digits behind a point, if there is one, and adds them to a time; NULL: they are none, or too many."""
    cdef const char *start
    cdef int64_t value = 0
    if at[0] != b".":
        return at
    start = at + 1
    at = _digits(start, &value, 9)
    if at != NULL:
        for _ in range(9 - (at - start)):
            value *= 10
        time_ns[0] += value
    return at


cdef int64_t _day(int year, int month, int day) noexcept nogil:
    """Days since 1970 of a date from 1970 on; below 0: there is none such."""
    cdef bint leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    cdef int before = year - 1
    if not (1970 <= year <= 2115 and 1 <= month <= 12 and 1 <= day <= DAYS[month - 1] + (leap and month == 2)):
        return -1
    return (
        365 * (year - 1970) + before // 4 - before // 100 + before // 400 - 477
        + BEFORE[month - 1] + (leap and month > 2) + day - 1)


cdef const char *_wall(const char *at, Py_ssize_t size, int64_t *time_ns) noexcept nogil:
    """Reads `YYYY-MM-DD hh:mm:ss[.f...]`; NULL: it is none. The shortest line has 23 bytes."""
    cdef int64_t day
    cdef int hour, minute, second
    if size < 23 or at[4] != b"-" or at[7] != b"-" or (at[10] != b" " and at[10] != b"T"):
        return NULL
    if at[13] != b":" or at[16] != b":" or _two(at) < 0 or _two(at + 2) < 0:
        return NULL
    day = _day(100 * _two(at) + _two(at + 2), _two(at + 5), _two(at + 8))
    hour, minute, second = _two(at + 11), _two(at + 14), _two(at + 17)
    if day < 0 or not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
        return NULL
    time_ns[0] = (86_400 * day + 3600 * hour + 60 * minute + second) * SECOND_NS
    return _fraction(at + 19, time_ns)


cdef bint _scan_csv(plain_kind_t kind, const char *at, Py_ssize_t size, plain_t *row) noexcept nogil:
    cdef const char *end = at + size
    if kind == PLAIN_WALL:
        at = _wall(at, size, &row.time_ns)
    else:
        at = _digits(at, &row.time_ns, 9)
        row.time_ns *= SECOND_NS
        if at != NULL:
            at = _fraction(at, &row.time_ns)
    if at == NULL or at[0] != b",":
        return False
    at = _digits(at + 1, &row.prompt_tokens, 15)
    if at == NULL or at[0] != b",":
        return False
    at = _digits(at + 1, &row.output_tokens, 15)
    return at == end and row.prompt_tokens > 0 and row.output_tokens > 0


cdef bint scan_row(
        plain_kind_t kind, const char *at, Py_ssize_t size, const shape_t *shape, plain_t *row) noexcept nogil:
    row.n_ids = 0
    return _scan_json(at, size, shape, row) if kind == PLAIN_JSON else _scan_csv(kind, at, size, row)


#: For Window: see plain_kind_t.
PLAIN = {"mooncake": PLAIN_JSON, "azure": PLAIN_WALL, "vidur": PLAIN_SECONDS}


def plain_row(bytes line not None, int64_t trace_block_size, int64_t block_size, int64_t names_max):
    """The RowFacts of a plain row, or None. Cost: O(bytes), about a nanosecond each.

    block_size divides trace_block_size; a row of more than names_max blocks of block_size is not plain.
    """
    cdef shape_t shape = shape_t(trace_block_size, block_size, names_max)
    cdef array.array room = array.clone(_EMPTY, ids_max(len(line)), False)
    cdef array.array ids = None
    cdef plain_t row
    row.ids = <uint64_t *>room.data.as_ulonglongs
    if not scan_row(PLAIN_JSON, line, len(line), &shape, &row):
        return None
    if row.n_ids:
        ids = array.clone(_EMPTY, row.n_ids, False)
        memcpy(ids.data.as_ulonglongs, row.ids, row.n_ids * sizeof(uint64_t))
    return (row.time_ns, row.prompt_tokens, row.output_tokens, ids, None, None, 0.0, 0, None, None)
