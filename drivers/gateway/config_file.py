"""A configuration file: YAML text -> values of settings, each with the place where it was written.

PyYAML composes, and only what the sections know is walked, so aliases and depth cost nothing that was not asked for.
Scalars are read by the settings' own kinds, from their text: what a flag takes, a file takes, and `on` or `010` mean
the same in both.

Never here: what a setting means, other sources, merging.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

import yaml

from kvcore.errors import KvcoreError

from .settings import NOTHING, Kind

TEXT_CHARS_MAX = 1 << 20
#: Levels of nesting; sections need five. PyYAML takes quadratic time for deep ones.
DEPTH_MAX = 32
ITEMS_MAX = 65_536


class InvalidGatewayConfig(KvcoreError, ValueError):
    """A configuration that cannot be used. place: `file:line:column`, a flag or an environment variable."""

    def __init__(self, place: str, key: str, reason: str) -> None:
        super().__init__(f"{place}: {key}: {reason}" if key else f"{place}: {reason}")
        self.place, self.key, self.reason = place, key, reason


@dataclass(frozen=True)
class Given:
    """A value that some source has given, and where."""

    value: Any
    place: str


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {DEPTH_MAX} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_file(text: str, source: str, section: type[Any]) -> dict[str, Given]:
    """What a file gives, by dotted key. Lists of sections are one value under the key of the list.

    Raises: InvalidGatewayConfig for the first thing that is wrong, in file order.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidGatewayConfig(source, "", f"longer than {TEXT_CHARS_MAX} characters")
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = source if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"
        raise InvalidGatewayConfig(place, "", f"not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidGatewayConfig(source, "", f"not valid YAML: {str(error)[:200]}") from error
    if node is None:
        return {}
    return dict(_section(node, source, section, ""))


def _section(node: yaml.Node, source: str, section: type[Any], prefix: str) -> Iterator[tuple[str, Given]]:
    known = {item.name: item for item in fields(section)}
    hints = get_type_hints(section)
    for name, here, value in _pairs(node, source, prefix):
        key = prefix + name
        item = known.get(name)
        if item is None:
            raise InvalidGatewayConfig(here, key, f"unknown key{_guess(name, known)}")
        kind = item.metadata.get("kind")
        if kind is not None:
            yield key, Given(_value(value, here, key, kind), here)
        elif "items" in item.metadata:
            yield key, Given(_items(value, source, here, key, item.metadata["items"]), here)
        elif "entries" in item.metadata:
            yield key, Given(
                {entry: _whole_section(content, source, item.metadata["entries"], f"{key}.{entry}")
                 for entry, _, content in _pairs(value, source, f"{key}.")}, here)
        else:
            assert is_dataclass(hints[name])
            if not _is_nothing(value):
                yield from _section(value, source, hints[name], f"{key}.")


def _whole_section(node: yaml.Node, source: str, section: type[Any], key: str) -> Any:
    """A section that no other source adds to: its object."""
    if _is_nothing(node):
        return section()
    given = dict(_section(node, source, section, f"{key}."))
    values = {name.removeprefix(f"{key}."): item.value for name, item in given.items()}
    missing = [item.name for item in fields(section) if item.default is MISSING and item.name not in values]
    if missing:
        raise InvalidGatewayConfig(_place(node, source), f"{key}.{missing[0]}", "is required")
    try:
        return section(**values)
    except ValueError as error:
        raise InvalidGatewayConfig(_place(node, source), key, str(error)) from error


def _items(node: yaml.Node, source: str, here: str, key: str, section: type[Any]) -> tuple[Any, ...]:
    """A list of sections; an item that is mere text is read by the section's `of_text`."""
    if _is_nothing(node):
        return ()
    if not isinstance(node, yaml.SequenceNode):
        raise InvalidGatewayConfig(here, key, f"must be a list, not {_kind(node)}")
    if len(node.value) > ITEMS_MAX:
        raise InvalidGatewayConfig(here, key, f"more than {ITEMS_MAX} items")
    found = []
    for number, item in enumerate(node.value):
        name = f"{key}[{number}]"
        if isinstance(item, yaml.ScalarNode):
            try:
                found.append(section.of_text(item.value))
            except ValueError as error:
                raise InvalidGatewayConfig(_place(item, source), name, str(error)) from error
        else:
            found.append(_whole_section(item, source, section, name))
    return tuple(found)


def _value(node: yaml.Node, here: str, key: str, kind: Kind) -> Any:
    if kind.many and isinstance(node, yaml.SequenceNode):
        if not all(isinstance(item, yaml.ScalarNode) and "," not in item.value for item in node.value):
            raise InvalidGatewayConfig(here, key, "must be a list of texts without commas")
        text = ",".join([item.value for item in node.value])
    elif isinstance(node, yaml.ScalarNode):
        text = node.value
    else:
        raise InvalidGatewayConfig(here, key, f"must be {kind.metavar}, not {_kind(node)}")
    try:
        return kind.read(text)
    except ValueError as error:
        raise InvalidGatewayConfig(here, key, f"{error}, not {_kind(node)}") from error


def _pairs(node: yaml.Node, source: str, prefix: str) -> Iterator[tuple[str, str, yaml.Node]]:
    """The entries of a mapping: key, place of the key, value."""
    if not isinstance(node, yaml.MappingNode):
        raise InvalidGatewayConfig(_place(node, source), prefix.rstrip("."), f"must be a mapping, not {_kind(node)}")
    lines: dict[str, int] = {}
    for key, value in node.value:
        here = _place(key, source)
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidGatewayConfig(here, prefix.rstrip("."), f"a key must be text, not {_kind(key)}")
        if key.value in lines:
            raise InvalidGatewayConfig(here, prefix + key.value, f"duplicate key, first on line {lines[key.value]}")
        lines[key.value] = key.start_mark.line + 1
        yield key.value, here, value


def _is_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value.lower() in NOTHING


def _place(node: yaml.Node, source: str) -> str:
    return f"{source}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value[:80]) if node.value else "nothing"
    return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"


def _guess(name: str, known: dict[str, Any]) -> str:
    close = difflib.get_close_matches(name[:80], known, n=1)
    return f", did you mean {close[0]}?" if close else "; known are " + ", ".join(known)
