"""Dataclasses <-> what JSON can hold, checked field by field. Which class has which fields stands in _journal_values.

Owns the two forms that a dataclass can take, list (Row) and object (Table), and how single fields stand (Layout). It
knows no event, no action, no configuration. Nothing is built before the types of all that goes into it are checked,
because the compiled dataclasses would turn 1.5 into 1 (DESIGN 3). What is wrong is a ValueError that names the field,
or an OverflowError of a C field; ranges are the scheduler's business.

Cost: some 0.5 us to read a plain event, and 20 ns a block hash.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from kvcore.request import Rank

_SHOWN_MAX = 60
_HASH_DIGITS = 16
_NOT_FINITE = ("inf", "-inf", "nan")


class Layout(NamedTuple):
    """How the values of a field stand in JSON.

    types: what the JSON decoder makes of them, exactly. word: what they must be, for error texts. decode, encode: to
    the value and back; None: it stands as it is.
    """

    types: tuple[type, ...]
    word: str
    decode: Callable[[Any], Any] | None = None
    encode: Callable[[Any], Any] | None = None


def shown(value: object, length_max: int = _SHOWN_MAX) -> str:
    """A value in an error text, cut where it is long."""
    text = repr(value)
    return text if len(text) <= length_max else text[: length_max - 3] + "..."


def read(layout: Layout, value: Any) -> Any:
    """The value that stands as this. Raises: ValueError, OverflowError."""
    if type(value) not in layout.types:
        raise ValueError(f"must be {layout.word}, not {shown(value)}")
    return value if layout.decode is None else layout.decode(value)


def write(layout: Layout, value: Any) -> Any:
    """How a value stands."""
    return value if layout.encode is None else layout.encode(value)


def optional(layout: Layout) -> Layout:
    """The same, or None, which stands as null."""
    decode, encode = layout.decode, layout.encode
    return Layout(
        (*layout.types, type(None)), f"{layout.word} or null",
        None if decode is None else lambda value: None if value is None else decode(value),
        None if encode is None else lambda value: None if value is None else encode(value),
    )


def _named(name: str, layout: Layout, value: Any) -> Any:
    """`read`, with the field's name in front of what is wrong."""
    try:
        return read(layout, value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{name}: {error}") from None


def enum(kind: type[Enum]) -> Layout:
    """A member: its value if that is text, else its name."""
    members: dict[str, Enum] = {}
    for member in kind:
        members[member.value if isinstance(member.value, str) else member.name] = member
    texts = {member: text for text, member in members.items()}

    def decode(text: str) -> Enum:
        if text not in members:
            raise ValueError(f"must be one of {', '.join(members)}, not {shown(text)}")
        return members[text]

    return Layout((str,), "text", decode, texts.__getitem__)


def _real(value: Any) -> Any:
    if type(value) is not str:
        return value
    if value not in _NOT_FINITE:
        raise ValueError(f"must be a number, not {value!r}")
    return float(value)


def _hashes(text: str) -> tuple[int, ...]:
    count, rest = divmod(len(text), _HASH_DIGITS)
    data = bytes.fromhex(text)
    if rest or len(data) * 2 != len(text):  # it lets blanks pass
        raise ValueError(f"must be {_HASH_DIGITS} hexadecimal digits a hash, not {shown(text)}")
    return struct.unpack(f">{count}Q", data)


def _hash_text(hashes: tuple[int, ...]) -> str:
    return struct.pack(f">{len(hashes)}Q", *hashes).hex()


INTEGER = Layout((int,), "an integer")
TEXT = Layout((str,), "text")
FLAG = Layout((bool,), "true or false")
REAL = Layout((float, int, str), "a number", _real, lambda value: value if math.isfinite(value) else repr(value))
HASHES = Layout((str,), "text of hexadecimal digits", _hashes, _hash_text)
PARAMETERS = Layout((dict,), "an object", None, dict)


def _cells(layouts: tuple[Layout, ...], row: Any) -> list[Any]:
    if type(row) is not list or len(row) != len(layouts):
        raise ValueError(f"must hold lists of {len(layouts)}, not {shown(row)}")
    return [read(layout, cell) for layout, cell in zip(layouts, row, strict=True)]


def rows_of(*layouts: Layout) -> Layout:
    """A tuple of tuples, as lists."""
    return Layout(
        (list,), "a list", lambda rows: tuple([tuple(_cells(layouts, row)) for row in rows]),
        lambda rows: [[write(layout, cell) for layout, cell in zip(layouts, row, strict=True)] for row in rows],
    )


def ranked(number: Layout) -> Layout:
    """A tuple of (Rank, number)."""

    def decode(rows: list[Any]) -> tuple[tuple[Rank, Any], ...]:
        cells = [_cells((INTEGER, INTEGER, number), row) for row in rows]
        return tuple([(Rank(worker_id, dp_rank), amount) for worker_id, dp_rank, amount in cells])

    return Layout(
        (list,), "a list", decode,
        lambda pairs: [[rank.worker_id, rank.dp_rank, write(number, amount)] for rank, amount in pairs],
    )


def set_of(item: Layout) -> Layout:
    """A frozenset, as a sorted list."""
    return Layout((list,), "a list", lambda items: frozenset([read(item, one) for one in items]), sorted)


def tuple_of(item: Layout) -> Layout:
    """A tuple, as a list."""
    return Layout(
        (list,), "a list", lambda items: tuple([read(item, one) for one in items]),
        lambda values: [write(item, value) for value in values],
    )


RANK = Layout(
    (list,), "[worker_id, dp_rank]", lambda row: Rank(*_cells((INTEGER, INTEGER), row)),
    lambda rank: [rank.worker_id, rank.dp_rank],
)


def _same(value: Any, default: Any) -> bool:
    """Whether a value is its default to the last bit: -0.0 is not 0.0."""
    return value is default or bool(value == default and (value != 0 or repr(value) == repr(default)))


class Row:
    """A dataclass as a list, see above. name: stands first; "": nothing does."""

    def __init__(self, kind: type, name: str = "", /, **layouts: Layout) -> None:
        self.kind, self.head = kind, [name] if name else []
        fields = [item for item in dataclasses.fields(kind) if item.name in layouts]
        self.required = [item.name for item in fields if item.default is dataclasses.MISSING]
        self.defaults = {item.name: item.default for item in fields if item.default is not dataclasses.MISSING}
        self.layouts = layouts
        self.skip = len(self.head)
        self.shape = (*[str for _ in self.head], *[layouts[item].types[0] for item in self.required])
        self.longer = (*self.shape, dict)
        self.given = {item: layouts[item] for item in self.defaults}
        self.decoders = [
            (at, item, decode) for at, item in enumerate(self.required) if (decode := layouts[item].decode) is not None]

    def layout(self) -> Layout:
        """That of a field which holds such a value."""
        return Layout((list,), "a list", self.decode, self.encode)

    def decode(self, row: list[Any]) -> Any:
        """The value. Raises: ValueError, OverflowError."""
        types = tuple(map(type, row))
        arguments = row[self.skip :]
        given: dict[str, Any] = {}
        if types == self.longer:
            given = self._given(arguments.pop())
        elif types != self.shape:
            raise self._misfit(arguments)
        elif not self.decoders:
            return self.kind(*arguments)
        for at, name, decode in self.decoders:
            try:
                arguments[at] = decode(arguments[at])
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{name}: {error}") from None
        return self.kind(*arguments, **given)

    def _given(self, named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name. Spells out what `_named` does, for this is where the time goes."""
        for name, value in named.items():
            if name not in self.given:
                raise ValueError(f"unknown field {shown(name)}")
            types, word, decode, _ = self.given[name]
            if type(value) not in types:
                raise ValueError(f"{name}: must be {word}, not {shown(value)}")
            if decode is not None:
                try:
                    named[name] = decode(value)
                except (ValueError, OverflowError) as error:
                    raise ValueError(f"{name}: {error}") from None
        return named

    def _misfit(self, arguments: list[Any]) -> ValueError:
        """What is wrong with a list of other types or another length."""
        for name, value in zip(self.required, arguments, strict=False):
            layout = self.layouts[name]
            if type(value) is not layout.types[0]:
                return ValueError(f"{name}: must be {layout.word}, not {shown(value)}")
        names = ", ".join(self.required)
        return ValueError(f"must hold {names or 'no field by place'}, and an object at the end if at all")

    def encode(self, value: Any) -> list[Any]:
        """How a value stands."""
        layouts = self.layouts
        row = [*self.head, *[write(layouts[name], getattr(value, name)) for name in self.required]]
        given = {
            name: write(layouts[name], own) for name, default in self.defaults.items()
            if not _same(own := getattr(value, name), default)}
        if given:
            row.append(given)
        return row


class Table:
    """A dataclass as an object. full: with every field; else without empty ones, which are the defaults."""

    def __init__(self, kind: type, full: bool = True, **layouts: Layout) -> None:
        self.kind, self.full, self.layouts = kind, full, layouts
        self.required = [
            item.name for item in dataclasses.fields(kind)
            if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING]

    def layout(self) -> Layout:
        """That of a field which holds such a value."""
        return Layout((dict,), "an object", self.decode, self.encode)

    def decode(self, table: dict[str, Any]) -> Any:
        """The value. Raises: ValueError, OverflowError."""
        for name, value in table.items():
            if name not in self.layouts:
                raise ValueError(f"unknown field {shown(name)}")
            table[name] = _named(name, self.layouts[name], value)
        for name in self.required:
            if name not in table:
                raise ValueError(f"lacks {name}")
        return self.kind(**table)

    def encode(self, value: Any) -> dict[str, Any]:
        """How a value stands."""
        pairs = [(name, layout, getattr(value, name)) for name, layout in self.layouts.items()]
        return {name: write(layout, own) for name, layout, own in pairs if self.full or own}
