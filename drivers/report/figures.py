"""The figures of a report, drawn by matplotlib from the tables. Same tables, same bytes.

Figures are small, so that their text can be read on a phone; a page puts them side by side where there is room.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib import RcParams, rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

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
_LATENCIES = {
    "queue_wait": "Time in the queue", "ttft": "Time to first token", "itl": "Time between tokens",
    "e2e": "Time to the last token",
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
        with _styled({"svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure)
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Title": self.title})
        return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())

    def svg(self) -> str:
        """As an SVG file."""
        return self._svg

    def png(self) -> bytes:
        """As a PNG file, on white."""
        out = io.BytesIO()
        with _styled({}):
            FigureCanvasAgg(self.figure)
            self.figure.savefig(out, format="png", dpi=PNG_DPI, facecolor=PAPER, metadata={"Software": None})
        return out.getvalue()


def _styled(more: dict[str, Any]) -> Any:
    """The style of all figures, whatever the user's matplotlibrc says."""
    defaults = {key: value for key, value in rcParamsDefault.items() if not key.startswith("backend")}
    return rc_context(RcParams(defaults | _STYLE | more))


def draw(tables: dict[str, Table], start_ns: int) -> list[Drawing]:
    """All figures for which there is something to show, in their order on the page."""
    found: list[Drawing] = []
    with _styled({}):
        for key, title in _LATENCIES.items():
            table = tables["distributions"].where("latency", key)
            if table.rows:
                found.append(_distribution(key, title, table))
        queue, workers = tables["queue"], tables["workers"]
        if len(_classes(tables["shares"])) > 1 and tables["shares"].rows:
            found.append(_shares(tables["shares"], start_ns))
        if any(queue.column("requests_max")):
            found.append(_queue("queue_requests", "Requests in the queue", "requests", queue, start_ns))
            found.append(_queue("queue_tokens", "Prompt tokens in the queue", "tokens", queue, start_ns))
        if workers.rows:
            found.append(_heat("worker_prefill", "Prompt tokens to be computed, per worker", "prefill_tokens_mean",
                               workers, start_ns))
            found.append(_heat("worker_running", "Requests that run, per worker", "running_mean", workers, start_ns))
        if tables["hits"].rows:
            found.append(_hits(tables["hits"], start_ns))
        if tables["rejects"].rows:
            found.append(_rejects(tables["rejects"]))
    return found


def _axes(height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.subplots()


def _classes(table: Table) -> list[str]:
    return list(dict.fromkeys(table.column("class")))


def _label(name: str) -> str:
    """A name for a legend, which passes over those that begin with a bar, and for XML, which has no control codes."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return f"\u200b{shown}" if shown.startswith("_") else shown


def _look(index: int) -> dict[str, Any]:
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index % len(DASHES)]}


def _legend(axes: Axes, count: int, **where: Any) -> None:
    if count <= CLASSES_MAX:
        axes.legend(handlelength=2.6, **where)


def _duration(value_ns: float, _: int | None = None) -> str:
    for unit_ns, name in _SCALES:
        if value_ns >= unit_ns:
            return f"{value_ns / unit_ns:g} {name}"
    return f"{value_ns:g} ns"


def _count(value: float, _: int | None = None) -> str:
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _time(axes: Axes, table: Table, start_ns: int) -> tuple[list[float], float]:
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


def _distribution(key: str, title: str, table: Table) -> Drawing:
    figure, axes = _axes()
    classes = _classes(table)
    low, high = min(table.column("le_ns")), max(table.column("le_ns"))
    for index, name in enumerate(classes):
        part = table.where("class", name)
        times = [low, *part.column("le_ns"), high * 1.05]
        shares = part.column("share")
        shares = [shares[0], *shares, shares[-1]]
        axes.plot(times, shares, drawstyle="steps-post", label=_label(name), **_look(index))
    axes.set_xscale("log")
    axes.set_xlim(low, high * 1.05)
    axes.set_ylim(0, 1.01)
    if high < 300 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0, 3.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(_duration))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("requests within this time")
    _legend(axes, len(classes), loc="lower right")
    return Drawing(key, title, "Share of requests that took at most so long; what lies further left is faster.", figure)


def _shares(table: Table, start_ns: int) -> Drawing:
    figure, axes = _axes()
    classes = _classes(table)
    contended = any(table.column("contended_tokens"))
    actual, due = ("contended_share", "due_share") if contended else ("share", "quantum_share")
    starts, width = _time(axes, table, start_ns)
    edges = [*starts, starts[-1] + width]
    for index, name in enumerate(classes):
        part = table.where("class", name)
        colour = SERIES[index % len(SERIES)]
        values = [np.nan if value is None else value for value in part.column(actual)]
        bound = [np.nan if value is None else value for value in part.column(due)]
        axes.plot(edges, [*bound, bound[-1]], drawstyle="steps-post", color=colour, linestyle=(0, (1, 1.5)),
                  linewidth=1.1)
        middles = [start + width / 2 for start in starts]
        axes.plot(middles, values, label=_label(name), marker=".", markersize=4, **_look(index))
    axes.plot([], [], color=FAINT, linestyle=(0, (1, 1.5)), linewidth=1.1, label="due by quantum")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("share of computed tokens")
    _legend(axes, len(classes), loc="best")
    if contended:
        caption = ("Of the prompt tokens dispatched while several classes waited, the part of each class, against what "
                   "its quantum entitles it to among those that waited. Gaps: no two classes waited.")
    else:
        caption = ("No two classes ever waited at the same time, so shares followed demand. Dotted: what each class "
                   "would get if all waited.")
    return Drawing("shares", "Served share against the quantum's", caption, figure)


def _queue(name: str, title: str, unit: str, table: Table, start_ns: int) -> Drawing:
    figure, axes = _axes()
    classes = _classes(table)
    starts, width = _time(axes, table, start_ns)
    edges = [*starts, starts[-1] + width]
    for index, item in enumerate(classes):
        part = table.where("class", item)
        means, peaks = part.column(f"{unit}_mean"), part.column(f"{unit}_max")
        look = _look(index)
        axes.fill_between(edges, [*peaks, peaks[-1]], step="post", color=look["color"], alpha=0.18, linewidth=0)
        axes.plot(edges, [*means, means[-1]], drawstyle="steps-post", label=_label(item), **look)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(_count))
    axes.set_ylabel(unit)
    _legend(axes, len(classes), loc="best")
    return Drawing(name, title, "Line: mean over time. Shaded: the peak.", figure)


def _heat(name: str, title: str, column: str, table: Table, start_ns: int) -> Drawing:
    rows = len(set(table.column("row")))
    figure, axes = _axes(min(HEIGHT_IN, 1.5 + 0.14 * rows))
    values = np.array(table.column(column)).reshape(rows, -1)
    starts, width = _time(axes, table, start_ns)
    per_row = table.rows[0][table.columns.index("workers")]
    image = axes.imshow(
        values, aspect="auto", interpolation="nearest", vmin=0, vmax=float(values.max()) or 1.0,
        extent=(0, starts[-1] + width, rows - 0.5, -0.5))
    axes.grid(False)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylabel("worker" if per_row == 1 else f"{per_row} workers each")
    bar = figure.colorbar(image, ax=axes, pad=0.02, format=FuncFormatter(_count))
    bar.outline.set_visible(False)
    mean = "time, a row per worker" if per_row == 1 else f"time and over {per_row} workers a row"
    caption = f"Mean over {mean}. Brighter is more; even columns are an even load."
    return Drawing(name, title, caption, figure)


def _hits(table: Table, start_ns: int) -> Drawing:
    figure, axes = _axes()
    starts, width = _time(axes, table, start_ns)
    middles = [start + width / 2 for start in starts]
    prompts = np.array(table.column("prompt_tokens"), float)
    prompts[prompts == 0] = np.nan
    for label, look in (("reachable", 2), ("achieved", 0), ("lost", 1)):
        axes.plot(middles, np.array(table.column(f"{label}_tokens"), float) / prompts, label=label, marker=".",
                  markersize=4, **_look(look))
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("share of prompt tokens")
    _legend(axes, 3, loc="best")
    return Drawing(
        "hits", "Prompt tokens found in a cache",
        "Achieved: found by the engine. Reachable: what the best worker had cached when the request was dispatched. "
        "Lost: reachable, but not found where it went.", figure)


def _rejects(table: Table) -> Drawing:
    reasons = list(dict.fromkeys(table.column("reason")))
    classes = _classes(table)
    figure, axes = _axes(1.3 + 0.32 * len(reasons))
    counts = {(row[0], row[1]): row[2] for row in table.rows}
    left = np.zeros(len(reasons))
    hatches = ("", "///", "...", "\\\\\\")
    for index, name in enumerate(classes):
        values = np.array([counts.get((name, reason), 0) for reason in reasons], float)
        axes.barh(reasons, values, left=left, label=_label(name), color=SERIES[index % len(SERIES)], height=0.6,
                  hatch=hatches[index % len(hatches)], edgecolor=PAPER, linewidth=0)
        left += values
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(_count))
    axes.set_xlabel("requests")
    _legend(axes, len(classes), loc="best")
    return Drawing("rejects", "Refused requests by reason", "Requests that ended without running.", figure)
