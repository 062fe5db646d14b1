"""YAML text of a policy file -> a bounded node graph, and typed readers that know where every value was written.

PyYAML speaks YAML 1.1: `on` becomes True, 010 becomes 8, 1_000 becomes 1000, and of two equal keys the last one wins
silently. The policy files that users already have mean none of that. So only PyYAML's scanner, parser and composer
are used here; scalars are resolved below, from the text and from whether it was quoted.

Nothing of the meaning of a policy may live here: that is policy_file.py. Aliases are followed; tags and merge keys are
refused. Everything is bounded before it is read: TEXT_CHARS_MAX, DEPTH_MAX, NODES_MAX.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import yaml

from kvcore.errors import InvalidPolicy

#: Length of a policy text, in characters: a thousand classes with every key take about a third of it.
TEXT_CHARS_MAX = 1 << 20
#: Levels of nesting, also through aliases. A class's admission parameters start at level 7.
DEPTH_MAX = 64
#: Keys, values, lists and mappings, once all aliases are followed: a few kilobytes of nested aliases could stand for
#: billions. A class with every key is about 30.
NODES_MAX = 50_000
#: The largest integer that a double holds exactly together with its neighbours (DESIGN D20).
WHOLE_MAX = 2**53

_TOO_MANY = f"more than {NODES_MAX} keys and values"
_WHOLE = re.compile(r"\+?(?:0x(?P<hex>[0-9a-fA-F]+)|0o(?P<oct>[0-7]+)|0b(?P<bin>[01]+)|(?P<dec>0|[1-9][0-9]*))")
_REAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_REAL = {f"{sign}.{form}": f"{sign}inf" for sign in ("", "+", "-") for form in ("inf", "Inf", "INF")}
_SPECIAL_REAL |= {".nan": "nan", ".NaN": "nan", ".NAN": "nan"}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # what PyYAML's marks count
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str, limit: int = 80) -> str:
    """The text on one line, short enough for a message: control characters escaped, a long one cut."""
    shown = text if len(text) <= limit else text[:limit] + "..."
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown])


def quote(text: str) -> str:
    """The text in double quotes, as messages and locations show names."""
    escaped = printable(text).replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True)
class Place:
    """Where something stands: what an InvalidPolicy needs besides its reason. line is 1-based."""

    source: str
    location: str = "root"
    key: str | None = None
    line: int | None = None

    def at(self, key: str | None, line: int | None) -> Place:
        """The same location, another key."""
        return replace(self, key=key, line=line)

    def within(self, part: str, line: int | None) -> Place:
        """A part of this location, such as one class of a profile."""
        return Place(self.source, f"{self.location}, {part}", None, line)

    def error(self, reason: str) -> InvalidPolicy:
        """The exception to raise for something wrong here."""
        key = None if self.key is None else printable(self.key)
        return InvalidPolicy(reason, source=self.source, location=self.location, key=key, line=self.line)


Reader: TypeAlias = Callable[[yaml.Node, Place], Any]
_EnumT = TypeVar("_EnumT", bound=Enum)


class _TooLarge(yaml.MarkedYAMLError):
    """A text that may well be YAML and is refused for its size."""


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with bounds and without its resolver: an empty tag means that none was written."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > DEPTH_MAX or self.nodes > NODES_MAX:
            reason = f"nested deeper than {DEPTH_MAX} levels" if self.depth > DEPTH_MAX else _TOO_MANY
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooLarge(problem=reason, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        return ""


def compose(text: str, source: str) -> yaml.Node | None:
    """The node graph of one YAML document, None for a text without any; safe to walk recursively.

    Raises: InvalidPolicy for what is not YAML, for several documents, tags, an alias inside its own anchor, and for a
    text that is too long, too deep or too large, also once its aliases are followed.
    Cost: O(len(text)); PyYAML in pure Python, about 10 microseconds a character.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise Place(source).error(f"longer than {TEXT_CHARS_MAX} characters")
    root: yaml.Node | None
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        except (ValueError, OverflowError) as error:
            # PyYAML lets these through from a \U escape beyond Unicode and from a %YAML version of thousands of digits.
            raise Place(source, line=loader.line + 1).error(f"not valid YAML: {printable(str(error))}") from error
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = len(_LINE_BREAK.findall(text, 0, error.position)) + 1
        raise Place(source, line=line).error(f"character #x{ord(text[error.position]):04x} is not allowed") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ": ".join([part for part in (error.context, error.problem) if part])
        what = "" if isinstance(error, _TooLarge) else "not valid YAML: "
        place = Place(source, line=None if mark is None else mark.line + 1)
        raise place.error(what + printable(reason, 300)) from error
    if root is not None:
        _measure(root, {}, Place(source))
    return root


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None], place: Place) -> tuple[int, int]:
    """(nodes, levels) below and including this node once aliases are followed; visits every node once."""
    if id(node) in known:
        measured = known[id(node)]
        if measured is None:
            raise place.at(None, line_of(node)).error("an alias stands inside its own anchor")
        return measured
    if node.tag:
        raise place.at(None, line_of(node)).error(f"tags are not supported: {quote(node.tag)}")
    known[id(node)] = None
    size, height = 1, 0
    for child in _children(node):
        child_size, child_height = _measure(child, known, place)
        size += child_size
        height = max(height, child_height)
    if size > NODES_MAX:
        raise place.at(None, line_of(node)).error(f"{_TOO_MANY} once aliases are followed")
    if height >= DEPTH_MAX:
        raise place.at(None, line_of(node)).error(f"nested deeper than {DEPTH_MAX} levels once aliases are followed")
    if isinstance(node, yaml.ScalarNode) and _SURROGATE.search(node.value):
        node.value = _join_surrogates(node.value, place.at(None, line_of(node)))
    known[id(node)] = size, height + 1
    return size, height + 1


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _join_surrogates(value: str, place: Place) -> str:
    # JSON is YAML, and JSON writes characters beyond U+FFFF as two escapes, which PyYAML leaves apart.
    try:
        return value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise place.error("half of a surrogate pair is not text") from error


def line_of(node: yaml.Node) -> int:
    """1-based line on which a node begins; of an alias: where its anchor stands."""
    return int(node.start_mark.line) + 1


def _is_plain(node: yaml.Node) -> bool:
    """Whether it is a scalar without quotes or block marks, which alone can be a number or null."""
    return isinstance(node, yaml.ScalarNode) and node.style is None


def is_null(node: yaml.Node) -> bool:
    """Whether the value is written as nothing, `~` or `null`, unquoted."""
    return _is_plain(node) and node.value in _NULLS


def kind(node: yaml.Node) -> str:
    """A node in words, for a message that says what was found instead."""
    if isinstance(node, yaml.ScalarNode):
        return (printable(node.value) or "nothing") if _is_plain(node) else f"the text {quote(node.value)}"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def mapping(node: yaml.Node, place: Place) -> yaml.MappingNode:
    """The node itself. Raises: InvalidPolicy if it is no mapping."""
    if not isinstance(node, yaml.MappingNode):
        raise place.error(f"must be a mapping, not {kind(node)}")
    return node


def pairs(node: yaml.Node, place: Place) -> Iterator[tuple[str, Place, yaml.Node]]:
    """The entries of a mapping in file order, each with the place of its key.

    Raises: InvalidPolicy if it is no mapping, or when it comes to a key that is no text, a merge key, or repeated.
    """
    first_line: dict[str, int] = {}
    for key_node, value in mapping(node, place).value:
        line = line_of(key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            raise place.at(None, line).error(f"a key must be text, not {kind(key_node)}")
        here = place.at(key_node.value, line)
        if key_node.value == "<<" and _is_plain(key_node):
            raise here.error("unknown key: merge keys are not supported, write the merged keys out")
        if key_node.value in first_line:
            raise here.error(f"duplicate key, first on line {first_line[key_node.value]}")
        first_line[key_node.value] = line
        yield key_node.value, here, value


def items(node: yaml.Node, place: Place) -> list[yaml.Node]:
    """The elements of a list. Raises: InvalidPolicy if it is no list."""
    if not isinstance(node, yaml.SequenceNode):
        raise place.error(f"must be a list, not {kind(node)}")
    elements: list[yaml.Node] = node.value
    return elements


def text(node: yaml.Node, place: Place) -> str:
    """Any scalar as it is written: `on`, `123` and `null` are the texts "on", "123" and "null"."""
    if not isinstance(node, yaml.ScalarNode):
        raise place.error(f"must be text, not {kind(node)}")
    value: str = node.value
    return value


def whole(node: yaml.Node, place: Place) -> int:
    """An unquoted integer, 0..2^53: decimal without leading zeros, 0x, 0o or 0b, perhaps with a plus sign."""
    value = _whole_of(node.value) if _is_plain(node) else None
    if value is None:
        raise place.error(f"must be a whole number >= 0, not {kind(node)}")
    if value > WHOLE_MAX:
        raise place.error(f"{kind(node)} is above the ceiling {WHOLE_MAX} (2^53)")
    return value


def _whole_of(value: str) -> int | None:
    """The number that unquoted text stands for; None if it is text. Never slow, however many digits there are."""
    match = _WHOLE.fullmatch(value)
    if match is None:
        return None
    group = str(match.lastgroup)
    digits = match[group]
    if len(digits) > 100:
        return WHOLE_MAX + 1 if digits.strip("0") else 0
    return int(digits, {"hex": 16, "oct": 8, "bin": 2, "dec": 10}[group])


def _real_of(value: str) -> float | None:
    if value in _SPECIAL_REAL:
        return float(_SPECIAL_REAL[value])
    number = float(value) if _REAL.fullmatch(value) else math.inf
    return None if math.isinf(number) else number


def real(node: yaml.Node, place: Place) -> float:
    """An unquoted number, whole or not, possibly .inf or .nan; what overflows a double is not a number."""
    value = _real_of(node.value) if _is_plain(node) else None
    if value is None:
        raise place.error(f"must be a number, not {kind(node)}")
    return value


def choice(members: type[_EnumT]) -> Reader:
    """A reader of one of an Enum's values. Nothing and null are values that no Enum has."""
    known = {member.value: member for member in members}

    def read(node: yaml.Node, place: Place) -> _EnumT:
        value = text(node, place)
        if value not in known:
            raise place.error(f"must be one of {', '.join(known)}, not {kind(node)}")
        return known[value]

    return read


def optional(reader: Reader) -> Reader:
    """A reader that takes null for absent."""

    def read(node: yaml.Node, place: Place) -> Any:
        return None if is_null(node) else reader(node, place)

    return read


def json_scalar(node: yaml.Node, place: Place) -> object:
    """None, bool, int (-2^53..2^53), finite float, or text, as the reference reads an untyped scalar."""
    value = text(node, place)
    if not _is_plain(node):
        return value
    if value in _NULLS:
        return None
    if value in _BOOLEANS:
        return _BOOLEANS[value]
    magnitude = _whole_of(value.removeprefix("-"))
    if magnitude is not None and not value.startswith("-+"):
        number = -magnitude if value.startswith("-") else magnitude
        if abs(number) > WHOLE_MAX:
            raise place.error(f"{printable(value)} is outside -2^53..2^53")
        return number
    # Digits behind a leading zero are text for an integer, so they are no number here either.
    floating = None if re.fullmatch(r"[-+]?0[0-9]+", value) else _real_of(value)
    if floating is None:
        return value
    if not math.isfinite(floating):
        raise place.error(f"must be finite, not {value}")
    return floating


def tree(node: yaml.Node, place: Place, scalar: Reader) -> Any:
    """A free-form value: dicts with text keys, lists, and whatever `scalar` makes of the leaves."""
    if isinstance(node, yaml.MappingNode):
        return {key: tree(value, here, scalar) for key, here, value in pairs(node, place)}
    if isinstance(node, yaml.SequenceNode):
        return [tree(item, place.at(place.key, line_of(item)), scalar) for item in items(node, place)]
    return scalar(node, place)


@dataclass(frozen=True)
class Section:
    """A mapping of the file with known keys: their values, and where each was written."""

    place: Place
    values: dict[str, Any]
    places: dict[str, Place]

    def at(self, key: str) -> Place:
        """Where a key is written, or the start of the mapping for one that is not."""
        return self.places.get(key, self.place.at(key, self.place.line))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: the closest known one, or nothing."""
    close = difflib.get_close_matches(word[:80], list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""


def read_section(node: yaml.Node, place: Place, schema: Mapping[str, Reader], required: tuple[str, ...]) -> Section:
    """Read a mapping key by key in file order, each with its reader.

    Raises: InvalidPolicy for an unknown or repeated key, for what a reader refuses, then for a required key not there.
    """
    values: dict[str, Any] = {}
    places: dict[str, Place] = {}
    for key, here, value in pairs(node, place):
        if key not in schema:
            raise here.error(f"unknown key{did_you_mean(key, schema) or '; known are ' + ', '.join(schema)}")
        values[key] = schema[key](value, here)
        places[key] = here
    for key in required:
        if key not in values:
            raise place.at(key, place.line).error("is required")
    return Section(place, values, places)


def _label(what: str, number: int, node: yaml.Node, name_key: str) -> str:
    """How messages call a class or bucket: by its name, else by its position in the list."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == name_key and isinstance(value, yaml.ScalarNode):
            return f"{what} {quote(value.value)}"
    return f"{what} {number}"


def sections(what: str, name_key: str, schema: Mapping[str, Reader], required: tuple[str, ...]) -> Reader:
    """A reader of a list of sections, each located by its name, such as `class "premium"`."""

    def read(node: yaml.Node, place: Place) -> list[Section]:
        found = []
        for number, item in enumerate(items(node, place), 1):
            here = place.within(_label(what, number, item, name_key), line_of(item))
            found.append(read_section(item, here, schema, required))
        return found

    return read
