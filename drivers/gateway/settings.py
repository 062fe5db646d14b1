"""Settings: values that a command-line flag, an environment variable and a YAML key can give, in one text form.

A section is a frozen dataclass whose fields are made by `setting`. Their metadata say how text becomes a value and what
the flag is called, so that the three sources cannot drift apart. A kind reads text and nothing else: what it cannot
read is a ValueError with one phrase.

Never here: files, the environment, click.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

ENVIRONMENT = "KVCORE_SERVE_"
#: Texts that stand for "not set" where a setting may be that.
NOTHING = frozenset({"none", "null", "~", ""})


@dataclass(frozen=True)
class Kind:
    """How text becomes a value. metavar: what help calls it. read: raises ValueError with a phrase.

    many: the value is a tuple, commas in the text part it, and a file may write a list.
    """

    metavar: str
    read: Callable[[str], Any]
    many: bool = False

    def or_none(self) -> Kind:
        """The same, or nothing."""
        read = self.read
        return Kind(f"{self.metavar}|none", lambda text: None if text.lower() in NOTHING else read(text))


@dataclass(frozen=True)
class Setting:
    """One setting. key: where it stands in a configuration file, dotted. flags: the first one names it."""

    key: str
    flags: tuple[str, ...]
    kind: Kind
    default: Any
    help: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT + self.flags[0].removeprefix("--").replace("-", "_").upper()


def setting(default: Any, kind: Kind, help: str, *, flag: str | None = None, alias: str | None = None) -> Any:
    """A field of a section. flag: instead of the key with dashes. alias: a second flag, as another program calls it."""
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag, "alias": alias})


def settings_of(section: type[Any], prefix: str = "") -> Iterator[Setting]:
    """The settings of a section and of the sections in it, in their order."""
    hints = get_type_hints(section)
    for item in fields(section):
        key = f"{prefix}{item.name}"
        kind = item.metadata.get("kind")
        if kind is not None:
            flag = item.metadata["flag"] or "--" + key.replace(".", "-").replace("_", "-")
            alias = item.metadata["alias"]
            yield Setting(key, (flag,) if alias is None else (flag, alias), kind, item.default, item.metadata["help"])
        elif is_dataclass(hints[item.name]) and isinstance(hints[item.name], type):
            yield from settings_of(hints[item.name], f"{key}.")


# Kinds.


def whole(low: int, high: int) -> Kind:
    """A decimal number in a range."""

    def read(text: str) -> int:
        digits = text.removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20 and low <= int(digits) <= high):
            raise ValueError(f"must be a whole number {low}..{high}")
        return int(digits)

    return Kind("N", read)


def real(low: float, high: float, metavar: str = "X") -> Kind:
    """A finite number in a range, ends included."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if "_" in text or not low <= value <= high:
            raise ValueError(f"must be a number {low:g}..{high:g}")
        return value

    return Kind(metavar, read)


def seconds(low: float = 0.001, high: float = 1e6) -> Kind:
    """A span of time."""
    return real(low, high, "SECONDS")


def choice(members: type[Enum]) -> Kind:
    """One of an Enum's values."""
    known = {str(member.value): member for member in members}

    def read(text: str) -> Enum:
        if text not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return known[text]

    return Kind("|".join(known), read)


def _yes_no(text: str) -> bool:
    word = text.lower()
    if word not in ("true", "false", "yes", "no", "on", "off", "1", "0"):
        raise ValueError("must be true or false")
    return word in ("true", "yes", "on", "1")


def _some_text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("must be printable text, not empty")
    return text


def _texts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys([_some_text(part.strip()) for part in text.split(",")])) if text else ()


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535):
        raise ValueError("must be a port 0..65535")
    return int(text)


YES_NO = Kind("true|false", _yes_no)
TEXT = Kind("TEXT", _some_text)
TEXTS = Kind("TEXT,...", _texts, many=True)
PATH = Kind("FILE", _some_text)
PORT = Kind("PORT", _port)


def shown(value: Any) -> Any:
    """A value as a configuration file holds it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value
