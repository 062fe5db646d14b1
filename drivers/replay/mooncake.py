"""The Mooncake format: one JSON object a line, block ids that are local to their file. Other JSON reads values alike.

mooncake_parser reads and checks a row; salt_of says how its ids become names that hold beyond the file.
"""

from __future__ import annotations

import json
import math
from array import array
from decimal import Decimal
from typing import Any, NoReturn

from kvcore.hashing import chain

from ._scan import plain_row
from .values import TIME_END_NS, TOKENS_MAX, Links, RowFacts, RowParser, Unusable, decimal, scaled_ns, show

#: Most block names a row may have: 16 million tokens in blocks of 16.
NAMES_MAX = 1 << 20

#: Sessions of which a row without a timestamp may be one.
_SESSIONS_MAX = 65_536

# "kvtrace" in ASCII: keeps the salt of file 0 away from small numbers.
_SALT = 0x6B_76_74_72_61_63_65


def salt_of(file_index: int) -> int:
    """What the names of the blocks of a file begin with.

    Names are chained from it, so that each commits to the file and to every block before it: equal names mean equal
    prefixes also where ids repeat, are not prefix-closed, or occur in another file with another meaning. A trace block
    becomes as many names as blocks of the size wanted, the last one as many as its tokens fill; the first has the
    trace's id, the later ones their position inside the trace block, because the chain before them holds that id.
    (_window names a row's blocks when it is given out: rows wait unnamed, because ids take less memory.)
    """
    return chain(_SALT, file_index)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise Unusable("a JSON key stands twice in one object")
    return record


def _not_a_number(text: str) -> NoReturn:
    raise Unusable(f"{text} is not a JSON number")


_decode = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=decimal, parse_constant=_not_a_number).decode


def mooncake_parser(trace_block_size: int, block_size: int) -> RowParser:
    any_row = careful_parser(trace_block_size, block_size)

    def parse(line: bytes) -> RowFacts:
        plain = plain_row(line, trace_block_size, block_size, NAMES_MAX)
        return any_row(line) if plain is None else plain

    return parse


def careful_parser(trace_block_size: int, block_size: int) -> RowParser:
    """The parser that knows the whole format, and says what is wrong with a row.

    It remembers the times of the latest _SESSIONS_MAX sessions: rows without a timestamp count from them.
    """

    times: dict[str, int] = {}  # of the latest rows of sessions, the latest session last

    def time_of(record: dict[str, Any]) -> int:
        session = record.get("session_id")
        earlier_ns = times.pop(session, None) if type(session) is str else None
        if record.get("timestamp") is None and record.get("delay") is not None and earlier_ns is not None:
            time_ns = earlier_ns + milliseconds(record, "delay")
            if time_ns >= TIME_END_NS:
                raise Unusable("delay leads beyond 2^62 ns (146 years)")
        else:
            time_ns = milliseconds(record, "timestamp")
        if type(session) is str:
            if len(times) == _SESSIONS_MAX:
                del times[next(iter(times))]
            times[session] = time_ns
        return time_ns

    def parse(line: bytes) -> RowFacts:
        record = json_object(line)
        if "delay_ms" in record:
            if "delay" in record:
                raise Unusable("both delay and delay_ms are given")
            record["delay"] = record["delay_ms"]
        time_ns = time_of(record)
        prompt_tokens = tokens(record, "input_length")
        output_tokens = tokens(record, "output_length")
        ids = record.get("hash_ids")
        return (
            time_ns,
            prompt_tokens,
            output_tokens,
            None if ids is None or ids == [] else block_ids(ids, prompt_tokens, trace_block_size, block_size),
            text(record, "session_id"),
            None if record.get("delay") is None else milliseconds(record, "delay"),
            _priority(record),
            _strict_priority(record),
            text(record, "policy_class"),
            _links(record),
        )

    return parse


def json_object(line: bytes) -> dict[str, Any]:
    """The one JSON object that the bytes are."""
    try:
        record = _decode(line.decode())
    except UnicodeDecodeError as error:
        raise Unusable(f"not UTF-8 at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise Unusable(f"not one JSON object: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise Unusable("JSON nested too deeply") from None
    except ValueError:
        # Python bounds the digits of an integer, because reading one takes quadratic time.
        raise Unusable("an integer with too many digits") from None
    if type(record) is not dict:
        raise Unusable(f"not a JSON object: {show(record)}")
    return record


def field(record: dict[str, Any], key: str) -> Any:
    """What the record has there."""
    if key not in record:
        raise Unusable(f"{key} is missing")
    return record[key]


def milliseconds(record: dict[str, Any], key: str) -> int:
    """A number of milliseconds as nanoseconds; type() and not isinstance(), because true is an int to Python."""
    value = field(record, key)
    if type(value) is not int and type(value) is not Decimal:
        raise Unusable(f"{key} is not a number of milliseconds: {show(value)}")
    return scaled_ns(value, 6, key)


def tokens(record: dict[str, Any], key: str) -> int:
    """A count of tokens, 1..2^53."""
    value = field(record, key)
    if type(value) is not int:
        raise Unusable(f"{key} is not an integer: {show(value)}")
    if not 1 <= value <= TOKENS_MAX:
        raise Unusable(f"{key} is not in 1..2^53: {show(value)}")
    return value


def block_ids(ids: object, prompt_tokens: int, trace_block_size: int, block_size: int) -> array[int]:
    """Ids of the blocks of a prompt, the last one of which may be partial."""
    if type(ids) is not list:
        raise Unusable(f"hash_ids is not an array: {show(ids)}")
    blocks = -(-prompt_tokens // trace_block_size)
    if len(ids) != blocks:
        raise Unusable(
            f"{prompt_tokens} tokens in blocks of {trace_block_size} need {blocks} hash_ids, not {len(ids)}"
        )
    if -(-prompt_tokens // block_size) > NAMES_MAX:
        raise Unusable(f"a prompt of more than {NAMES_MAX} blocks of {block_size} tokens")
    if set(map(type, ids)) != {int}:
        wrong = next(item for item in ids if type(item) is not int)
        raise Unusable(f"hash_ids holds {show(wrong)}, not an integer")
    try:
        return array("Q", ids)
    except OverflowError:
        raise Unusable("hash_ids holds an id outside 0..2^64-1") from None


def text(record: dict[str, Any], key: str) -> str | None:
    """A text that is not empty; None: absent or null."""
    value = record.get(key)
    if value is None:
        return None
    if type(value) is not str or not value:
        raise Unusable(f"{key} is not a non-empty string: {show(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unusable(f"{key} holds a lone surrogate: {show(value)}") from None
    return value


def _priority(record: dict[str, Any]) -> float:
    value = record.get("priority")
    if value is None:
        return 0.0
    if type(value) is int or type(value) is Decimal:
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf
        if math.isfinite(seconds):
            return seconds
    raise Unusable(f"priority is not a finite number: {show(value)}")


def _strict_priority(record: dict[str, Any]) -> int:
    value = record.get("strict_priority")
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise Unusable(f"strict_priority is not an integer in 0..2^32-1: {show(value)}")
    return value


def _links(record: dict[str, Any]) -> Links | None:
    """request_id, and wait_for: ids of other requests of the file."""
    request_id, awaited = text(record, "request_id"), record.get("wait_for")
    if awaited is None:
        return None if request_id is None else (request_id, None, None)
    if type(awaited) is not list or any(type(item) is not str for item in awaited):
        raise Unusable(f"wait_for is not an array of strings: {show(awaited)}")
    return request_id, tuple(awaited), None
