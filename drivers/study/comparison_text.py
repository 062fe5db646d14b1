"""A comparison as text for people: tables of 100 columns, plain when they do not go to a terminal."""

from __future__ import annotations

import sys
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..replay.text import duration
from .outcomes import LATENCIES, RATES

_LABELS = {"queue_wait": "queue wait", "ttft": "TTFT", "itl": "ITL", "e2e": "E2E", "completed": "completed",
           "prefix_hit": "prefix hit"}
#: Figures of the table, two percentiles of each latency; JSON has all.
_SHOWN = (*RATES, *(f"{name}_{kind}" for name in LATENCIES for kind in ("mean", "p50", "p99")))
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
                console.print(_differences(entry, report["bootstrap"]["confidence_percent"]))
            console.print()
        console.print(_shares(report["candidates"]))
        console.print()
        if any(item["fairness"]["pairs"] for item in report["candidates"]):
            console.print(_bounds(report["candidates"]))
            console.print()
        for line in _lines(report):
            console.print(line, soft_wrap=True)
    text = capture.get()
    out.write(text if terminal else "".join(line.rstrip() + "\n" for line in text.splitlines()))


def _table(left: int, *columns: str) -> Table:
    """left: how many of the columns hold words."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", overflow="fold", no_wrap=i >= left)
    return table


def _differences(entry: dict[str, Any], percent: int) -> Table:
    table = _table(2, "class", "figure", "base", "candidate", "difference", f"{percent} % interval", "")
    for group in entry["classes"]:
        for key in _SHOWN:
            found = group["figures"][key]
            if found["base"] is None and found["other"] is None:
                continue
            interval = "-"
            if found["low"] is not None:
                interval = f"{_signed(key, found['low'])} .. {_signed(key, found['high'])}"
            table.add_row(
                Text(group["name"]), _label(key), _value(key, found["base"]), _value(key, found["other"]),
                _signed(key, found["difference"]), interval, "*" if found["is_clear"] else "",
            )
    return table


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


def _shares(candidates: list[dict[str, Any]]) -> Table:
    table = _table(2, "candidate", "class", "quantum", "contended tokens", "share", "due", "lost")
    for item in candidates:
        for share in item["fairness"]["shares"]:
            table.add_row(
                Text(item["label"]), Text(share["name"]), f"{share['quantum']:,}", f"{share['uncached_tokens']:,}",
                _percent(share["share"]), _percent(share["due"]), _points(share["lost"]),
            )
    return table


def _bounds(candidates: list[dict[str, Any]]) -> Table:
    table = _table(2, "candidate", "classes that wait together", "drift (rounds)", "bound", "over it", "promised")
    for item in candidates:
        for pair in item["fairness"]["pairs"]:
            table.add_row(
                Text(item["label"]), Text(" and ".join(pair["classes"])), f"{pair['drift_rounds']:.2f}",
                f"{pair['bound_rounds']:.2f}", f"{pair['broken']:,} of {pair['looks']:,} looks",
                "yes" if item["fairness"]["is_promised"] else "no",
            )
    return table


def _lines(report: dict[str, Any]) -> list[str]:
    """What stands below the tables."""
    bootstrap = report["bootstrap"]
    lines = [
        f"*          the interval leaves 0 out; {bootstrap['resamples']:,} resamples of the requests, seed "
        f"{bootstrap['seed']}",
        "contended  tokens dispatched while several classes waited; due: what the quanta say",
    ]
    for item in report["candidates"]:
        lines += _losses(item)
    lines += [f"digest     {item['digest']}  {item['label']}" for item in report["candidates"]]
    return lines


def _losses(item: dict[str, Any]) -> list[str]:
    """Where a candidate without the promise lost shares: the sets of waiting classes, by tokens."""
    fairness = item["fairness"]
    if fairness["is_promised"]:
        return []
    lines = []
    for entry in sorted(fairness["contended"], key=lambda entry: -entry["uncached_tokens"]):
        for share in entry["shares"]:
            if share["share"] is not None and share["due"] - share["share"] > 0:
                lines.append(
                    f"lost       {item['label']} ({fairness['arbitration']}): while {' and '.join(entry['waiting'])} "
                    f"waited, {share['name']} was given {_percent(share['share'])} of {entry['uncached_tokens']:,} "
                    f"tokens and was due {_percent(share['due'])}")
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _points(lost: float | None) -> str:
    return "-" if lost is None else f"{lost * 100:+.1f} pp"
