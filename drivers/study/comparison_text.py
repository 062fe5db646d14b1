"""A comparison as text for people: tables of 100 columns, plain when they do not go to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..replay.text import duration, print_table
from .outcomes import LATENCIES, RATES

_LABELS = {"queue_wait": "queue wait", "ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "completed": "completed",
           "prefix_hit": "prefix hit"}
#: Figures of the table, two percentiles of each latency; JSON has all.
SHOWN = (*RATES, *(f"{name}_{kind}" for name in LATENCIES for kind in ("mean", "p50", "p99")))
SHARE_COLUMNS = ("candidate", "class", "quantum", "contended tokens", "share", "due", "lost")
BOUND_COLUMNS = ("candidate", "classes that wait together", "drift (rounds)", "bound", "over it", "promised")
_PIPED_WIDTH = 1000  # nothing is folded or cut; tables are as wide as their contents


def print_comparison(report: dict[str, Any], stream: IO[str] | None = None) -> None:
    """Write the report of a comparison to stream (None: standard output)."""
    out = stream or sys.stdout
    terminal = out.isatty()
    width = None if terminal else _PIPED_WIDTH
    console = Console(file=out, highlight=False, markup=False, emoji=False, width=width, legacy_windows=False)
    with console.capture() as capture:
        for entry in report["differences"]:
            console.print(Text(f"{entry['candidate']} against {entry['base']}", style="bold"))
            if entry["same_outcomes"]:
                console.print("every request had the same class, worker and times under both: all differences are 0")
            else:
                percent = report["bootstrap"]["confidence_percent"]
                print_table(console, _table(2, difference_columns(percent), difference_rows(entry)))
            console.print()
        print_table(console, _table(2, SHARE_COLUMNS, share_rows(report["candidates"])))
        console.print()
        if any(item["fairness"]["pairs"] for item in report["candidates"]):
            print_table(console, _table(2, BOUND_COLUMNS, bound_rows(report["candidates"])))
            console.print()
        for line in _lines(report):
            console.print(line, soft_wrap=True)
    text = capture.get()
    out.write(text if terminal else "".join(line.rstrip() + "\n" for line in text.splitlines()))


def _table(left: int, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """left: how many of the columns hold words."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", overflow="fold", no_wrap=i >= left)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def difference_columns(percent: int) -> tuple[str, ...]:
    """percent: what an interval holds."""
    return "class", "figure", "base", "candidate", "difference", f"{percent} % interval", ""


def difference_rows(entry: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """One candidate against the first, figure by figure; a star where the difference is clear."""
    for group in entry["classes"]:
        for key in SHOWN:
            found = group["figures"][key]
            if found["base"] is None and found["other"] is None:
                continue
            interval = "-"
            if found["low"] is not None:
                interval = f"{_signed(key, found['low'])} .. {_signed(key, found['high'])}"
            yield (group["name"], _label(key), _value(key, found["base"]), _value(key, found["other"]),
                   _signed(key, found["difference"]), interval, "*" if found["is_clear"] else "")


def _label(key: str) -> str:
    name, _, kind = key.rpartition("_")
    return _LABELS[key] if key in _LABELS else f"{_LABELS[name]} {kind}"


def _value(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 100:.2f} %" if key in RATES else duration(int(value))


def _signed(key: str, value: float | None) -> str:
    """A difference: of times a time, of parts percentage points."""
    if value is None:
        return "-"
    if key in RATES:
        return f"{value * 100:+.2f} pp" if value else "0 pp"
    sign = "+" if value > 0 else "-" if value < 0 else ""
    return sign + duration(abs(int(value)))


def share_rows(candidates: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """What each class of each candidate was given while several waited."""
    for item in candidates:
        for share in item["fairness"]["shares"]:
            yield (item["label"], share["name"], f"{share['quantum']:,}", f"{share['uncached_tokens']:,}",
                   percent_text(share["share"]), percent_text(share["due"]), _points(share["lost"]))


def bound_rows(candidates: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """How far service of each pair of classes drifted, and how far it may."""
    for item in candidates:
        for pair in item["fairness"]["pairs"]:
            yield (item["label"], " and ".join(pair["classes"]), f"{pair['drift_rounds']:.2f}",
                   f"{pair['bound_rounds']:.2f}", f"{pair['broken']:,} of {pair['looks']:,} looks",
                   "yes" if item["fairness"]["is_promised"] else "no")


def _lines(report: dict[str, Any]) -> list[str]:
    """What stands below the tables."""
    bootstrap = report["bootstrap"]
    lines = [
        f"*          the interval leaves 0 out; {bootstrap['resamples']:,} resamples of the requests, seed "
        f"{bootstrap['seed']}",
        "contended  tokens dispatched while several classes waited; due: what the quanta say",
    ]
    lines += [f"lost       {text}" for item in report["candidates"] for text in losses(item)]
    lines += [f"digest     {item['digest']}  {item['label']}" for item in report["candidates"]]
    return lines


def losses(item: dict[str, Any]) -> list[str]:
    """Where a candidate without the promise lost shares: the sets of waiting classes, by tokens."""
    fairness = item["fairness"]
    if fairness["is_promised"]:
        return []
    lines = []
    for entry in sorted(fairness["contended"], key=lambda entry: -entry["uncached_tokens"]):
        for share in entry["shares"]:
            if share["share"] is not None and share["due"] - share["share"] > 0:
                lines.append(
                    f"{item['label']} ({fairness['arbitration']}): while {' and '.join(entry['waiting'])} "
                    f"waited, {share['name']} was given {percent_text(share['share'])} of {entry['uncached_tokens']:,} "
                    f"tokens and was due {percent_text(share['due'])}")
    return lines


def percent_text(share: float | None) -> str:
    """A part of 1."""
    return "-" if share is None else f"{share * 100:.1f} %"


def _points(lost: float | None) -> str:
    return "-" if lost is None else f"{lost * 100:+.1f} pp"
