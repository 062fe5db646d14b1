"""The figures of a comparison: differences with their intervals, distributions of all candidates, drift, lost tokens.

Candidates are lines, marks or pictures beside each other; where a picture of one run says all, it is that of a replay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .drawing import Drawing, count_tick, duration_tick, label, legend, new_axes, series_look, styled, time_axis
from .figures import LATENCY_TITLES, distribution, hits, shares, values_of
from .tables import Table
from .theme import FAINT, INK, PAPER, SERIES

Tables = Sequence[dict[str, Table]]

_KINDS = ("mean", "p50", "p90", "p99")
_RATES = {"completed": "completed", "prefix_hit": "prefix hit"}
#: A difference that is so many times smaller than the largest still has a place of its own at a logarithmic axis.
_LOGARITHMIC = 100
#: Where a legend hides nothing.
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.2}
_MARKS = ("o", "s", "D", "^", "v", "P")


def forests(labels: Sequence[str], differences: Sequence[dict[str, Any]]) -> list[Drawing]:
    """Differences from the first candidate, with their intervals: a picture per latency, and one of parts.

    labels: of the others, as the pictures call them.
    """
    caption = ("Difference from the first candidate; left of the line is less. The bar is the interval; a mark is full "
               "where the interval leaves 0 out.")
    found = []
    with styled({}):
        drawn = _forest(labels, differences, list(_RATES.items()), lambda axes, _: _points_axis(axes))
        if drawn is not None:
            found.append(Drawing("difference-parts", "Completed, and found in the prefix cache", caption, drawn))
        for key, title in LATENCY_TITLES.items():
            drawn = _forest(labels, differences, [(f"{key}_{kind}", kind) for kind in _KINDS], _time_difference_axis)
            if drawn is not None:
                found.append(Drawing(f"difference-{key}", title, caption, drawn))
    return found


def _forest(
    labels: Sequence[str], differences: Sequence[dict[str, Any]], figures: list[tuple[str, str]],
    scale: Callable[[Axes, float], None],
) -> Figure | None:
    """A row per class and figure, in it a mark per candidate; None if there is no difference to show."""
    names = list(dict.fromkeys(group["name"] for entry in differences for group in entry["classes"]))
    rows = [(name, key, f"{label(name)}  {shown}") for name in names for key, shown in figures]
    known = [{(group["name"], key): value for group in entry["classes"] for key, value in group["figures"].items()}
             for entry in differences]
    rows = [row for row in rows if any(_has(values, row) for values in known)]
    if not rows:
        return None
    step = 1 / (len(differences) + 1)
    figure, axes = new_axes(1.1 + len(rows) * max(0.17, 0.12 * len(differences)))
    largest = 0.0
    for index, (candidate, values) in enumerate(zip(labels, known, strict=True)):
        # Colours go by candidate, and the first one is not here.
        colour, marker = SERIES[(index + 1) % len(SERIES)], _MARKS[index % len(_MARKS)]
        for place, row in enumerate(rows):
            if not _has(values, row):
                continue
            found, y = values[row[0], row[1]], place + (index + 1) * step - 0.5
            low, high = found["low"], found["high"]
            axes.plot([low, high], [y, y], color=colour, linewidth=1.2, solid_capstyle="butt")
            axes.plot(found["difference"], y, marker=marker, markersize=4, color=colour, linestyle="none",
                      markerfacecolor=colour if found["is_clear"] else PAPER)
            largest = max(largest, *(abs(value) for value in (low, high, found["difference"])))
        axes.plot([], [], color=colour, marker=marker, markersize=4, linewidth=1.2, label=label(candidate))
    axes.axvline(0, color=FAINT, linewidth=0.8)
    for place, (before, after) in enumerate(pairwise(rows)):
        if before[0] != after[0]:
            axes.axhline(place + 0.5, color=FAINT, linewidth=0.4)
    axes.set_yticks(range(len(rows)), [row[2] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(False, axis="y")
    scale(axes, largest)
    legend(axes, len(differences), **_ABOVE)
    return figure


def _has(values: dict[tuple[str, str], dict[str, Any]], row: tuple[str, str, str]) -> bool:
    found = values.get(row[:2])
    return found is not None and found["low"] is not None


def _points_axis(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:+g}" if value else "0"))
    axes.set_xlabel("percentage points")
    if axes.get_xlim()[1] - axes.get_xlim()[0] < 1e-3:
        axes.set_xlim(-0.005, 0.005)


def _time_difference_axis(axes: Axes, largest_ns: float) -> None:
    """Linear near 0, logarithmic beyond a hundredth of the largest difference."""
    if not largest_ns:
        axes.set_xlim(-1e6, 1e6)
        axes.set_xticks([0], ["0"])
        return
    limits = axes.get_xlim()
    decade = math.floor(math.log10(largest_ns))
    steps = [10.0**power for power in range(decade - round(math.log10(_LOGARITHMIC)) + 1, decade + 1)]
    axes.set_xscale("symlog", linthresh=largest_ns / _LOGARITHMIC, linscale=0.5)
    axes.set_xlim(min(limits[0], -largest_ns / 5), max(limits[1], largest_ns / 5))
    axes.xaxis.set_major_locator(FixedLocator([*(-step for step in reversed(steps)), 0, *steps]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_signed_duration))


def _signed_duration(value_ns: float, _: int | None = None) -> str:
    sign = "+" if value_ns > 0 else "\N{MINUS SIGN}" if value_ns < 0 else ""
    return sign + duration_tick(abs(value_ns)) if value_ns else "0"


def distributions(labels: Sequence[str], tables: Tables) -> list[Drawing]:
    """Per latency and class, a line per candidate."""
    found = []
    with styled({}):
        for key, title in LATENCY_TITLES.items():
            parts = [table["distributions"].where("latency", key) for table in tables]
            names = list(dict.fromkeys(name for part in parts for name in values_of(part, "class")))
            for number, name in enumerate(names):
                rows = [(candidate, *row[2:]) for candidate, part in zip(labels, parts, strict=True)
                        for row in part.where("class", name).rows]
                table = Table("distributions", ("candidate", *parts[0].columns[2:]), rows)
                found.append(distribution(f"{key}-{number}", f"{title}: {name}", table, "candidate"))
    return found


def shares_over_time(labels: Sequence[str], tables: Tables, start_ns: int) -> list[Drawing]:
    """Per candidate: shares, then what its classes lost of theirs, on one scale for all candidates."""
    found = []
    with styled({}):
        for number, (name, table) in enumerate(zip(labels, tables, strict=True)):
            if len(values_of(table["shares"], "class")) > 1:
                drawing = shares(table["shares"], start_ns)
                found.append(_renamed(drawing, "shares", number, f"Share and due share: {name}"))
        behind = [_behind(table["shares"]) for table in tables]
        reach = [value for lines in behind for line in lines.values() for value in line]
        for number, (name, table, lines) in enumerate(zip(labels, tables, behind, strict=True)):
            if lines and any(map(any, lines.values())):
                found.append(_lost(number, name, table["shares"], start_ns, lines, (min(reach), max(reach))))
    return found


def _behind(table: Table) -> dict[str, list[float]]:
    """By class: tokens due and not given while several classes waited, summed up to the end of each window."""
    found = {}
    totals: dict[int, int] = {}
    for at, tokens in zip(table.column("start_ns"), table.column("contended_tokens"), strict=True):
        totals[at] = totals.get(at, 0) + tokens
    for name in values_of(table, "class"):
        part = table.where("class", name)
        columns = (part.column(key) for key in ("start_ns", "contended_tokens", "due_share"))
        lost = [(due or 0) * totals[at] - tokens for at, tokens, due in zip(*columns, strict=True)]
        found[name] = np.cumsum(lost).round(3).tolist()
    return found


def _lost(
    number: int, name: str, table: Table, start_ns: int, lines: dict[str, list[float]], reach: tuple[float, float]
) -> Drawing:
    figure, axes = new_axes()
    starts, width = time_axis(axes, table, start_ns)
    edges = [*starts, starts[-1] + width]
    for index, (item, values) in enumerate(lines.items()):
        axes.plot(edges, [0, *values], label=label(item), **series_look(index))
    room = (reach[1] - reach[0]) * 0.04
    axes.set_ylim(reach[0] - room, reach[1] + room)
    axes.yaxis.set_major_formatter(FuncFormatter(count_tick))
    axes.set_ylabel("tokens due and not given")
    legend(axes, len(lines), loc="best")
    return Drawing(
        f"lost-{number}", f"Behind the quantum's share: {name}",
        "Summed over time while several classes waited. A line that rises is a class that loses its share just then; "
        "one that stays level gets it. Each short wait may miss by a request, under any policy. Candidates have one "
        "scale.", figure)


def _renamed(drawing: Drawing, name: str, number: int, title: str) -> Drawing:
    return replace(drawing, name=f"{name}-{number}", title=title)


def drifts(labels: Sequence[str], candidates: Sequence[dict[str, Any]]) -> list[Drawing]:
    """How far the service of pairs of classes drifted, against the bound of each."""
    rows = [(index, item, pair) for index, item in enumerate(candidates) for pair in item["fairness"]["pairs"]]
    if not rows:
        return []
    with styled({}):
        figure, axes = new_axes(1.1 + 0.26 * len(rows))
        bounds = [pair["bound_rounds"] for _, _, pair in rows]
        for place, (index, item, pair) in enumerate(rows):
            axes.barh(place, pair["drift_rounds"], height=0.55, color=SERIES[index % len(SERIES)],
                      hatch="" if item["fairness"]["is_promised"] else "///", edgecolor=PAPER, linewidth=0)
            axes.plot([pair["bound_rounds"]] * 2, [place - 0.4, place + 0.4], color=INK, linewidth=2)
        axes.plot([], [], color=INK, linewidth=2, label="bound")
        axes.set_yticks(range(len(rows)), [
            label(f"{labels[index]}: {' and '.join(pair['classes'])}") for index, _, pair in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(False, axis="y")
        if max(pair["drift_rounds"] for _, _, pair in rows) > 10 * max(bounds):
            axes.set_xscale("log")
            axes.set_xlim(left=min(1.0, *bounds) / 2)
        axes.xaxis.set_major_formatter(FuncFormatter(count_tick))
        axes.set_xlabel("rounds")
        legend(axes, 1, **_ABOVE)
    return [Drawing(
        "drift", "Drift of service against its bound",
        "The most that the service of two classes drifted apart while both waited, in rounds of their quanta. Deficit "
        "round robin promises the bound; hatched: a candidate whose policy does not.", figure)]


def hits_over_time(labels: Sequence[str], tables: Tables, start_ns: int) -> list[Drawing]:
    """Per candidate, if anything is known of what prompts contain."""
    with styled({}):
        return [
            _renamed(hits(table["hits"], start_ns), "hits", number, f"Prompt tokens found in a cache: {name}")
            for number, (name, table) in enumerate(zip(labels, tables, strict=True)) if table["hits"].rows]
