"""The figures of a report, drawn by matplotlib from the tables. Same tables, same bytes."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from .drawing import (
    HEIGHT_IN,
    Drawing,
    count_tick,
    duration_tick,
    label,
    legend,
    new_axes,
    series_look,
    styled,
    time_axis,
)
from .tables import Table
from .theme import FAINT, PAPER, SERIES

LATENCY_TITLES = {
    "queue_wait": "Time in the queue", "ttft": "Time to first token", "itl": "Time between tokens",
    "e2e": "Time to the last token",
}


def draw(tables: dict[str, Table], start_ns: int) -> list[Drawing]:
    """All figures for which there is something to show, in their order on the page."""
    found: list[Drawing] = []
    with styled({}):
        for key, title in LATENCY_TITLES.items():
            table = tables["distributions"].where("latency", key)
            if table.rows:
                found.append(distribution(key, title, table))
        queue, workers = tables["queue"], tables["workers"]
        if len(values_of(tables["shares"], "class")) > 1 and tables["shares"].rows:
            found.append(shares(tables["shares"], start_ns))
        if any(queue.column("requests_max")):
            found.append(_queue("queue_requests", "Requests in the queue", "requests", queue, start_ns))
            found.append(_queue("queue_tokens", "Prompt tokens in the queue", "tokens", queue, start_ns))
        if workers.rows:
            found.append(_heat("worker_prefill", "Prompt tokens to be computed, per worker", "prefill_tokens_mean",
                               workers, start_ns))
            found.append(_heat("worker_running", "Requests that run, per worker", "running_mean", workers, start_ns))
        if tables["hits"].rows:
            found.append(hits(tables["hits"], start_ns))
        if tables["rejects"].rows:
            found.append(_rejects(tables["rejects"]))
    return found


def values_of(table: Table, column: str) -> list[str]:
    """The different values of a column, in their order."""
    return list(dict.fromkeys(table.column(column)))


def distribution(key: str, title: str, table: Table, by: str = "class") -> Drawing:
    """How long requests took. by: the column that has a line for each of its values."""
    figure, axes = new_axes()
    names = values_of(table, by)
    low, high = min(table.column("le_ns")), max(table.column("le_ns"))
    for index, name in enumerate(names):
        part = table.where(by, name)
        times = [low, *part.column("le_ns"), high * 1.05]
        shares = part.column("share")
        shares = [shares[0], *shares, shares[-1]]
        axes.plot(times, shares, drawstyle="steps-post", label=label(name), **series_look(index))
    axes.set_xscale("log")
    axes.set_xlim(low, high * 1.05)
    axes.set_ylim(0, 1.01)
    if high < 300 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0, 3.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(duration_tick))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("requests within this time")
    legend(axes, len(names), loc="lower right")
    return Drawing(key, title, "Share of requests that took at most so long; what lies further left is faster.", figure)


def shares(table: Table, start_ns: int) -> Drawing:
    """What each class was served over time, and what it was due."""
    figure, axes = new_axes()
    classes = values_of(table, "class")
    contended = any(table.column("contended_tokens"))
    actual, due = ("contended_share", "due_share") if contended else ("share", "quantum_share")
    starts, width = time_axis(axes, table, start_ns)
    edges = [*starts, starts[-1] + width]
    for index, name in enumerate(classes):
        part = table.where("class", name)
        colour = SERIES[index % len(SERIES)]
        values = [np.nan if value is None else value for value in part.column(actual)]
        bound = [np.nan if value is None else value for value in part.column(due)]
        axes.plot(edges, [*bound, bound[-1]], drawstyle="steps-post", color=colour, linestyle=(0, (1, 1.5)),
                  linewidth=1.1)
        middles = [start + width / 2 for start in starts]
        axes.plot(middles, values, label=label(name), marker=".", markersize=4, **series_look(index))
    axes.plot([], [], color=FAINT, linestyle=(0, (1, 1.5)), linewidth=1.1, label="due by quantum")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("share of computed tokens")
    legend(axes, len(classes), loc="best")
    if contended:
        caption = ("Of the prompt tokens dispatched while several classes waited, the part of each class, against what "
                   "its quantum entitles it to among those that waited. Gaps: no two classes waited.")
    else:
        caption = ("No two classes ever waited at the same time, so shares followed demand. Dotted: what each class "
                   "would get if all waited.")
    return Drawing("shares", "Served share against the quantum's", caption, figure)


def _queue(name: str, title: str, unit: str, table: Table, start_ns: int) -> Drawing:
    figure, axes = new_axes()
    classes = values_of(table, "class")
    starts, width = time_axis(axes, table, start_ns)
    edges = [*starts, starts[-1] + width]
    for index, item in enumerate(classes):
        part = table.where("class", item)
        means, peaks = part.column(f"{unit}_mean"), part.column(f"{unit}_max")
        look = series_look(index)
        axes.fill_between(edges, [*peaks, peaks[-1]], step="post", color=look["color"], alpha=0.18, linewidth=0)
        axes.plot(edges, [*means, means[-1]], drawstyle="steps-post", label=label(item), **look)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(count_tick))
    axes.set_ylabel(unit)
    legend(axes, len(classes), loc="best")
    return Drawing(name, title, "Line: mean over time. Shaded: the peak.", figure)


def _heat(name: str, title: str, column: str, table: Table, start_ns: int) -> Drawing:
    rows = len(set(table.column("row")))
    figure, axes = new_axes(min(HEIGHT_IN, 1.5 + 0.14 * rows))
    values = np.array(table.column(column)).reshape(rows, -1)
    starts, width = time_axis(axes, table, start_ns)
    per_row = table.rows[0][table.columns.index("workers")]
    image = axes.imshow(
        values, aspect="auto", interpolation="nearest", vmin=0, vmax=float(values.max()) or 1.0,
        extent=(0, starts[-1] + width, rows - 0.5, -0.5))
    axes.grid(False)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylabel("worker" if per_row == 1 else f"{per_row} workers each")
    bar = figure.colorbar(image, ax=axes, pad=0.02, format=FuncFormatter(count_tick))
    bar.outline.set_visible(False)
    mean = "time, a row per worker" if per_row == 1 else f"time and over {per_row} workers a row"
    caption = f"Mean over {mean}. Brighter is more; even columns are an even load."
    return Drawing(name, title, caption, figure)


def hits(table: Table, start_ns: int) -> Drawing:
    """What caches gave over time, and what they could have given."""
    figure, axes = new_axes()
    starts, width = time_axis(axes, table, start_ns)
    middles = [start + width / 2 for start in starts]
    prompts = np.array(table.column("prompt_tokens"), float)
    prompts[prompts == 0] = np.nan
    for name, number in (("reachable", 2), ("achieved", 0), ("lost", 1)):
        axes.plot(middles, np.array(table.column(f"{name}_tokens"), float) / prompts, label=name, marker=".",
                  markersize=4, **series_look(number))
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("share of prompt tokens")
    legend(axes, 3, loc="best")
    return Drawing(
        "hits", "Prompt tokens found in a cache",
        "Achieved: found by the engine. Reachable: what the best worker had cached when the request was dispatched. "
        "Lost: reachable, but not found where it went.", figure)


def _rejects(table: Table) -> Drawing:
    reasons = list(dict.fromkeys(table.column("reason")))
    classes = values_of(table, "class")
    figure, axes = new_axes(1.3 + 0.32 * len(reasons))
    counts = {(row[0], row[1]): row[2] for row in table.rows}
    left = np.zeros(len(reasons))
    hatches = ("", "///", "...", "\\\\\\")
    for index, name in enumerate(classes):
        values = np.array([counts.get((name, reason), 0) for reason in reasons], float)
        axes.barh(reasons, values, left=left, label=label(name), color=SERIES[index % len(SERIES)], height=0.6,
                  hatch=hatches[index % len(hatches)], edgecolor=PAPER, linewidth=0)
        left += values
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(count_tick))
    axes.set_xlabel("requests")
    legend(axes, len(classes), loc="best")
    return Drawing("rejects", "Refused requests by reason", "Requests that ended without running.", figure)
