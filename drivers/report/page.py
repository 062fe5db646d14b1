"""One self-contained HTML page: no script, no network, and a policy in its head that forbids both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from .drawing import Drawing
from .theme import colour_rules, inline


@dataclass(frozen=True)
class Grid:
    """A table on the page, as text. note: what to know about it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: tables, then pictures, then remarks. Without tables and pictures it is left out."""

    title: str
    grids: Sequence[Grid] = ()
    drawings: Sequence[Drawing] = ()
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Story:
    """What there is to say of one request: (label, preformatted text)."""

    title: str
    texts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """What stands on a page. facts: (label, value) on top. config: JSON text."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    config: str
    stories_title: str = ""
    stories: Sequence[Story] = field(default=())


def render(page: Page) -> str:
    """The page as HTML; all text in it is escaped. The same page gives the same bytes."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(files(__package__).joinpath("page.j2").read_text(encoding="utf-8"))
    return template.render(
        page=page, light=Markup(colour_rules(False)), dark=Markup(colour_rules(True)),
        picture=lambda drawing: Markup(inline(drawing.svg(), drawing.name)))
