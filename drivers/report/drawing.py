"""What all pictures have in common: their style, axes and legends, and how they become files. Same data, same bytes.

Figures are small, so that their text can be read on a phone; a page puts them side by side where there is room.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from matplotlib import RcParams, rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .tables import Table
from .theme import FAINT, INK, PAPER, RULE, SERIES

WIDTH_IN, HEIGHT_IN = 5.2, 3.1
PNG_DPI = 160
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
#: With more classes than this a legend would hide the figure.
CLASSES_MAX = 12

_STYLE = {
    "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"], "font.size": 9.0,
    "text.parse_math": False, "svg.fonttype": "none", "svg.image_inline": True, "path.simplify": True,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": RULE, "grid.linewidth": 0.6, "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7,
    "lines.linewidth": 1.5, "legend.frameon": False, "legend.fontsize": 8.5, "image.cmap": "cividis",
}
_SCALES = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))


@dataclass(frozen=True)
class Drawing:
    """A figure. title, caption: what it shows and how to read it. figure: of matplotlib."""

    name: str
    title: str
    caption: str
    figure: Figure

    @cached_property
    def _svg(self) -> str:
        out = io.StringIO()
        with styled({"svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure)
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Title": self.title})
        return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())

    def svg(self) -> str:
        """As an SVG file."""
        return self._svg

    def png(self) -> bytes:
        """As a PNG file, on white."""
        out = io.BytesIO()
        with styled({}):
            FigureCanvasAgg(self.figure)
            self.figure.savefig(out, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata={"Software": None})
        return out.getvalue()


def styled(more: dict[str, Any]) -> Any:
    """The style of all figures, whatever the user's matplotlibrc says."""
    defaults = {key: value for key, value in rcParamsDefault.items() if not key.startswith("backend")}
    return rc_context(RcParams(defaults | _STYLE | more))


def new_axes(height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """An empty picture."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots()


def label(name: str) -> str:
    """A name for a legend, which passes over those that begin with a bar, and for XML, which has no control codes."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return f"\u200b{shown}" if shown.startswith("_") else shown


def series_look(index: int) -> dict[str, Any]:
    """Colour and dashes of the line with this number."""
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index % len(DASHES)]}


def legend(axes: Axes, count: int, **where: Any) -> None:
    """A legend, unless it would hide so many lines."""
    if count <= CLASSES_MAX:
        axes.legend(handlelength=2.6, **where)


def duration_tick(value_ns: float, _: int | None = None) -> str:
    """A time at an axis."""
    for unit_ns, name in _SCALES:
        if value_ns >= unit_ns:
            return f"{value_ns / unit_ns:g} {name}"
    return f"{value_ns:g} ns"


def count_tick(value: float, _: int | None = None) -> str:
    """A number at an axis."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def time_axis(axes: Axes, table: Table, start_ns: int) -> tuple[list[float], float]:
    """Starts of the bins, in the unit of the time axis, and the width of a bin; labels the axis."""
    starts = sorted(set(table.column("start_ns")))
    width_ns = starts[1] - starts[0] if len(starts) > 1 else 1
    span_ns = width_ns * len(starts)
    units = ((3600 * 10**9, "hours", 3), (60 * 10**9, "minutes", 3), (10**9, "seconds", 1), (10**6, "milliseconds", 1))
    unit_ns, name = next(((unit, name) for unit, name, least in units if span_ns >= least * unit), (1, "nanoseconds"))
    axes.set_xlabel(f"{name} since the first arrival")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(0, span_ns / unit_ns)
    return [(at - start_ns) / unit_ns for at in starts], width_ns / unit_ns
