"""Colours of a report, for light and dark pages, and how an SVG that matplotlib wrote becomes part of a page.

Figures are drawn in the light colours; on a page each colour is a CSS variable, so that the reader's theme decides.
"""

from __future__ import annotations

import re

#: Name -> (light, dark). Series go by number and are told apart by their dashes too, see figures.DASHES.
COLOURS = {
    "paper": ("#ffffff", "#14171a"),
    "ink": ("#1b1f23", "#e8eaed"),
    "faint": ("#5b6570", "#a3adb8"),
    "rule": ("#d5dae0", "#3a424b"),
    "series0": ("#0072b2", "#56b4e9"),
    "series1": ("#c84c00", "#ff9248"),
    "series2": ("#007a5a", "#2bd4a4"),
    "series3": ("#a3478a", "#e79ac9"),
    "series4": ("#866100", "#e6b800"),
    "series5": ("#5a54c4", "#aab0ff"),
}
SERIES = [light for name, (light, _) in COLOURS.items() if name.startswith("series")]
INK, FAINT, RULE, PAPER = (COLOURS[name][0] for name in ("ink", "faint", "rule", "paper"))
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in COLOURS.items()}

_COLOUR = re.compile("|".join(_VARIABLES))
_FONT = re.compile(r"'DejaVu Sans'(?:, sans-serif)?")
_BEFORE = re.compile(r"\A.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_HEAD = re.compile(r"<svg[^>]*>")
_SIZE = re.compile(r' (?:width|height)="[^"]*"')
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def colour_rules(dark: bool) -> str:
    """The CSS variables of one theme."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in COLOURS.items())


def inline(svg: str, name: str) -> str:
    """An SVG file as an element of a page: as wide as its place, in the page's colours and font, ids its own."""
    svg = _METADATA.sub("", _BEFORE.sub("", svg))
    svg = _HEAD.sub(lambda match: _SIZE.sub("", match[0]), svg, count=1)
    svg = _COLOUR.sub(lambda match: _VARIABLES[match[0]], svg)
    svg = _FONT.sub("var(--font)", svg)
    svg = _ID.sub(lambda match: f"{match[1]}{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-labelledby="{name}-caption"', 1).strip()
