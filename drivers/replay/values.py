"""Numbers and texts of trace rows: checked first, converted exactly, refused with a reason.

Times become integer nanoseconds without passing through a float: integers by integer arithmetic, decimals as decimals,
rounded once, half to even, where a file is finer than a nanosecond.
"""

from __future__ import annotations

import re
import reprlib
from array import array
from collections.abc import Callable
from datetime import date
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import TypeAlias

#: Times are 0 .. 2^62-1 ns (146 years), the range of an event's now_ns.
TIME_END_NS = 1 << 62
#: Largest count of tokens that a Request takes.
TOKENS_MAX = 1 << 53
SECOND_NS = 1_000_000_000

#: time_ns in the file's own clock, prompt_tokens, output_tokens, ids of the prompt's trace blocks (None: unknown),
#: session_id, delay_ns, priority, strict_priority, policy_class, links. A plain tuple: a row of the reorder window is
#: one.
RowFacts: TypeAlias = (
    "tuple[int, int, int, array[int] | None, str | None, int | None, float, int, str | None, Links | None]")
#: What a row says of the order of requests: its own request_id, those that it waits for, and the numbers of their rows,
#: which are TraceRow.after. A parser knows either ids or numbers; None: not told.
Links: TypeAlias = tuple[str | None, tuple[str, ...] | None, tuple[int, ...] | None]
RowParser: TypeAlias = Callable[[bytes], RowFacts]


class Unusable(Exception):
    """A row, or a whole file, that cannot be used; the caller knows which and where. reason: one phrase."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


_EPOCH_DAY = date(1970, 1, 1).toordinal()
#: Wide enough for 2^62 with nine decimals; the user's own decimal context must not matter.
_EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PLAIN_SECONDS = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?")
_WALL = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?"
)


def show(value: object) -> str:
    """A value of a row for a message: short, as it stood in the file."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return str(value)[:40]
    return reprlib.repr(value)


def decimal(text: str) -> Decimal:
    """The exact value of a number's text, which the caller has checked to be one."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = None
    if value is None or not value.is_finite():
        raise Unusable(f"a number out of range: {reprlib.repr(text)}")
    return value


def scaled_ns(value: int | Decimal, exponent: int, what: str) -> int:
    """value * 10^exponent as nanoseconds, 0 .. TIME_END_NS - 1; exponent 6 for milliseconds, 9 for seconds."""
    if value < 0:
        raise Unusable(f"{what} is negative: {show(value)}")
    # Compared before it is scaled: 1e999999999 is a short text and a very long integer.
    if value < TIME_END_NS:
        if isinstance(value, int):
            time_ns: int = value * 10**exponent
        else:
            # Rounded at 10^-exponent in one step, whatever the number of digits; scaling is then exact.
            time_ns = int(_EXACT.scaleb(_EXACT.quantize(value, Decimal((0, (1,), -exponent))), exponent))
        if time_ns < TIME_END_NS:
            return time_ns
    raise Unusable(f"{what} is beyond 2^62 ns (146 years): {show(value)}")


def seconds_text_ns(text: str, what: str) -> int:
    """Nanoseconds of a decimal number of seconds in a CSV field."""
    text = text.strip()
    plain = _PLAIN_SECONDS.fullmatch(text)
    if plain is not None:
        whole, fraction = plain.groups()
        time_ns = int(whole) * SECOND_NS + (int(fraction.ljust(9, "0")) if fraction else 0)
        if time_ns < TIME_END_NS:
            return time_ns
    elif _DECIMAL.fullmatch(text) is None:
        raise Unusable(f"{what} is not a number of seconds: {show(text)}")
    return scaled_ns(decimal(text), 9, what)


def wall_text_ns(text: str, what: str) -> int:
    """Nanoseconds since 1970 of `YYYY-MM-DD hh:mm:ss[.f...][Z|+hh:mm]`; `T` may stand for the blank.

    Up to nine digits of fraction, exact. A time without an offset counts as UTC: what it was local to is not known.
    """
    match = _WALL.fullmatch(text.strip())
    if match is None:
        raise Unusable(f"{what} is not a date and time: {show(text)}")
    day, hour, minute, second, fraction, sign, offset_hour, offset_minute = match.groups()
    clock = (int(hour), int(minute), int(second))
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise Unusable(f"{what} has no such time of day: {show(text)}")
    total_s = _day_s(day, what) + clock[0] * 3600 + clock[1] * 60 + clock[2]
    if sign is not None:
        if int(offset_hour) > 23 or int(offset_minute) > 59:
            raise Unusable(f"{what} has no such offset: {show(text)}")
        offset_s = int(offset_hour) * 3600 + int(offset_minute) * 60
        total_s += offset_s if sign == "-" else -offset_s
    time_ns = total_s * SECOND_NS + (int(fraction.ljust(9, "0")) if fraction else 0)
    if not 0 <= time_ns < TIME_END_NS:
        raise Unusable(f"{what} is outside 1970 to 2116: {show(text)}")
    return time_ns


@lru_cache(maxsize=64)
def _day_s(day: str, what: str) -> int:
    """Seconds from 1970 to the start of a day; cached because neighbouring rows share theirs."""
    try:
        return (date.fromisoformat(day).toordinal() - _EPOCH_DAY) * 86_400
    except ValueError:
        raise Unusable(f"{what} has no such day: {show(day)}") from None


def tokens_text(text: str, what: str) -> int:
    """A count of tokens in a CSV field, 0 .. 2^53: digits only, no sign, no fraction, no grouping."""
    text = text.strip()
    # isdigit() alone would let superscripts through; 16 digits reach past 2^53.
    if not (text.isascii() and text.isdigit()):
        raise Unusable(f"{what} is not a whole number: {show(text)}")
    tokens = int(text) if len(text) <= 16 else TOKENS_MAX + 1
    if tokens > TOKENS_MAX:
        raise Unusable(f"{what} is above 2^53: {show(text)}")
    return tokens


def positive_tokens_text(text: str, what: str) -> int:
    """As tokens_text, and at least 1."""
    tokens = tokens_text(text, what)
    if tokens == 0:
        raise Unusable(f"{what} is 0")
    return tokens
