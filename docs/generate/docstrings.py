"""A griffe extension: docstrings as they are written in the sources become Markdown that reads well on a page.

What begins with a field's or parameter's name and a colon, or with a word like `Raises:`, becomes an item of a list;
members of enumerations are listed; public names are linked. Nothing is said here that the sources do not say.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from functools import reduce
from importlib import import_module
from pathlib import Path

import griffe

import kvcore

#: Words with a colon behind them that begin an item wherever a sentence may begin.
WORDS = ("Cost", "Invariants", "Never here", "Origin", "Owns", "Raises", "Ref", "Returns", "Shape", "Units", "Yields")
#: Public names that cannot be taken for a word of the language.
LINKED = {name for name in kvcore.__all__ if re.search(r"[a-z][A-Z]", name)} | {
    "Dispatch", "Evict", "Ignored", "Park", "Publish", "Reject"}
#: Where a rule was decided is of interest in the sources only.
_DECIDED = re.compile(r" \(DESIGN [^()]*\)|(?<=\w); DESIGN [^()]*(?=\))|\(DESIGN [^();]*; ")
_ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}


def as_markdown(text: str, names: Collection[str]) -> str:
    """A docstring as Markdown. names: fields or parameters of what it describes."""
    blocks = re.split(r"\n\s*\n", _DECIDED.sub("", text).strip("\n"))
    return "\n\n".join([_block(block, names) for block in blocks])


def _block(block: str, names: Collection[str]) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines) or any(line.startswith("- ") for line in lines):
        return block
    known = "|".join([*(re.escape(name) for name in sorted(names, key=len, reverse=True)), *WORDS])
    term = rf"(?:{known})(?:, (?:{known}))*(?: \([^()]*\))?: "
    # One known name vouches for others beside it, at the beginning of a line.
    several = rf"(?:\w+, )*(?:{known})(?:, \w+)*: "
    text = "\n".join([line.strip() for line in lines])
    parts = re.split(rf"(?:^|(?<=[.;)]\s))(?={term})|\n(?={several})", text)
    first, *rest = [" ".join(part.split()) for part in parts]
    items = [item for item in rest if item]
    text = " ".join(text.split())
    if not items:
        return _linked(text)
    ends = re.split(r"(?<=[.;)] )(?=(?:Raises|Returns) )", items[-1])
    return "\n".join([
        *([_linked(first.strip()), ""] if first else []), *[_item(item) for item in (*items[:-1], ends[0])],
        *["\n" + _linked(end.strip()) for end in ends[1:]]])


def _item(text: str) -> str:
    term, _, rest = text.strip().partition(": ")
    word = term if term in WORDS else ", ".join([f"`{name}`" for name in term.split(", ")])
    return f"- **{word}**: {_linked(rest.rstrip(';'))}"


def _linked(text: str) -> str:
    """The text with public names linked, but not those in backticks or in a link."""
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"(?<![\w.\[])([A-Z]\w+)\b",
            lambda match: f"[{match[1]}][{_home(match[1])}]" if match[1] in LINKED else match[1], parts[index])
    return "".join(parts)


def _home(name: str) -> str:
    return f"{getattr(kvcore, name).__module__}.{name}"


def _walk(item: griffe.Module | griffe.Class) -> Iterator[griffe.Object]:
    yield item
    for member in item.members.values():
        if isinstance(member, griffe.Alias):
            continue
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _walk(member)
        else:
            yield member


def _names(item: griffe.Object) -> set[str]:
    """What a docstring may describe by name: parameters, or fields, inherited ones too."""
    if isinstance(item, griffe.Function):
        return {parameter.name for parameter in item.parameters} - {"self"}
    if isinstance(item, griffe.Class):
        own = [member for member in item.members.values() if not isinstance(member, griffe.Alias)]
        found = {member.name for member in own if member.is_attribute}
        return found | {parameter.name for parameter in item.parameters} - {"self"}
    return set()


def _members(item: griffe.Object) -> str:
    """The members of an enumeration, one after the other."""
    if not isinstance(item, griffe.Class) or not {str(base).rpartition(".")[2] for base in item.bases} & _ENUMS:
        return ""
    members = [
        member for member in item.members.values() if isinstance(member, griffe.Attribute) and member.name.isupper()]
    return "\n\n" + ", ".join([f"`{member.name}` = `{member.value}`" for member in members])


def _built(item: griffe.Object) -> griffe.Docstring | None:
    """The docstring of a compiled thing, of which only a stub can be read."""
    module = import_module(item.module.path)
    names = item.path.removeprefix(item.module.path).strip(".").split(".")
    found = reduce(getattr, filter(None, names), module)
    is_own = isinstance(item, griffe.Module | griffe.Class | griffe.Function) or isinstance(found, property)
    text = found.__doc__ if is_own or inspect.isgetsetdescriptor(found) else None
    return griffe.Docstring(inspect.cleandoc(text), parent=item) if text else None


class Docstrings(griffe.Extension):
    """Rewrites the docstrings of a package once it is loaded; those that stubs lack are asked of what is built."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        """Rewrite every docstring of kvcore; no other package is shown."""
        if pkg.name != "kvcore":
            return
        for item in _walk(pkg):
            is_stub = isinstance(item.filepath, Path) and item.filepath.suffix == ".pyi"
            if item.docstring is None and is_stub and not item.name.startswith("_"):
                item.docstring = _built(item)
            if item.docstring is not None:
                item.docstring.value = as_markdown(item.docstring.value, _names(item)) + _members(item)
