"""The report of a replay as text for people: small tables of 80 columns, plain when they do not go to a terminal."""

from __future__ import annotations

import sys
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from .report import LATENCIES, PERCENTILES

_LABELS = {"queue_wait": "queue wait", "ttft": "TTFT", "itl": "ITL", "e2e": "E2E"}
_PIPED_WIDTH = 1000  # nothing is folded or cut; tables are as wide as their contents
#: What a terminal leaves of columns that may be folded, however narrow it is.
_FOLDED_WIDTH = 16


def print_report(report: dict[str, Any], stream: IO[str] | None = None) -> None:
    """Write the report, complete with its `run` entry, to stream (None: standard output)."""
    out = stream or sys.stdout
    terminal = out.isatty()
    width = None if terminal else _PIPED_WIDTH
    console = Console(file=out, highlight=False, markup=False, emoji=False, width=width, legacy_windows=False)
    entries = report["classes"]
    with console.capture() as capture:
        for table in (_requests(entries), _shares(entries), _latencies(entries), _workers(report["workers"])):
            print_table(console, table)
            console.print()
        for line in _lines(report):
            console.print(line, soft_wrap=True)
    text = capture.get()
    out.write(text if terminal else "".join(line.rstrip() + "\n" for line in text.splitlines()))


def print_table(console: Console, table: Table) -> None:
    """Print a table and cut nothing: on a terminal that is too narrow for its figures its lines run over the edge.

    Columns that are not no_wrap are taken to be ones whose contents may be folded.
    """
    natural = console.measure(table, options=console.options.update(width=_PIPED_WIDTH)).maximum
    foldable = sum(max(0, _width(column) - _FOLDED_WIDTH) for column in table.columns if not column.no_wrap)
    width, console.width = console.width, max(console.width, natural - foldable)
    console.print(table)
    console.width = width


def _width(column: Column) -> int:
    return max(cell_len(str(cell)) for cell in (column.header, *column.cells))


def _table(first: str, *columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _name(entry: dict[str, Any]) -> Text:
    return Text("(no class)" if entry["name"] is None else entry["name"])


def _requests(entries: list[dict[str, Any]]) -> Table:
    table = _table("class", "requests", "completed", "rejected", "evicted", "prefix hit", "in engine")
    for entry in entries:
        hit = entry["prefix_hit"]
        counts = [entry["requests"], entry["completed"], sum(entry["rejected"].values()), entry["evicted"]]
        rates = [hit["expected_rate"], hit["engine_rate"]]
        table.add_row(_name(entry), *(f"{count:,}" for count in counts), *(_percent(rate) for rate in rates))
    return table


def _shares(entries: list[dict[str, Any]]) -> Table:
    table = _table("class", "uncached tokens", "share", "quantum share", "contended", "share", "due")
    for entry in entries:
        if entry["name"] is not None:
            contended = entry["contended"]
            table.add_row(
                _name(entry), f"{entry['served_uncached_tokens']:,}", _percent(entry["served_share"]),
                _percent(entry["quantum_share"]), f"{contended['uncached_tokens']:,}", _percent(contended["share"]),
                _percent(contended["quantum_share"]),
            )
    return table


def _latencies(entries: list[dict[str, Any]]) -> Table:
    table = _table("class", "latency", *(f"p{percent}" for percent in PERCENTILES), "max")
    for entry in entries:
        for key in LATENCIES:
            spread = entry["latency_ns"][key]
            if spread["count"]:
                values = [spread[f"p{percent}"] for percent in PERCENTILES] + [spread["max"]]
                table.add_row(_name(entry), _LABELS[key], *(duration(value) for value in values))
    return table


def _workers(workers: dict[str, Any]) -> Table:
    table = _table("per worker", "min", "mean", "max", "cv")
    requests, busy = workers["requests"], workers["busy_share"]
    low, mean, high = requests["min"], requests["mean"], requests["max"]
    table.add_row("requests", f"{low:,.0f}", f"{mean:,.1f}", f"{high:,.0f}", _plain(requests["cv"]))
    table.add_row("busy", _percent(busy["min"]), _percent(busy["mean"]), _percent(busy["max"]), _plain(busy["cv"]))
    return table


def _lines(report: dict[str, Any]) -> list[str]:
    """What stands below the tables, one fact a line."""
    requests, run = report["requests"], report["run"]
    lines = ["requests   " + ", ".join(f"{requests[key]:,} {key}" for key in requests)]
    for entry in report["classes"]:
        if entry["rejected"]:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in entry["rejected"].items())
            lines.append(f"rejected   {_name(entry)}: {reasons}")
    if report["sessions"] is not None:
        lines += _sessions(report["sessions"])
    if any(entry["name"] is not None and entry["contended"]["uncached_tokens"] for entry in report["classes"]):
        lines.append("contended  tokens dispatched while several classes waited; due: quantum share")
    if report["unknown_class_names"]:
        lines.append(f"unknown    {report['unknown_class_names']:,} requests named a class that the policy lacks")
    lines += [
        f"simulated  {duration(report['simulated_ns'])}, {report['events']:,} events in {report['steps']:,} steps",
        f"run        {run['wall_s']:.3f} s wall, {run['cpu_s']:.3f} s CPU, {run['events_per_s']:,} events/s",
        f"memory     {run['peak_memory_bytes'] / 1e6:,.0f} MB at the peak",
        f"digest     {report['digest']}",
    ]
    return lines


def _sessions(sessions: dict[str, Any]) -> list[str]:
    """Sessions of all classes; JSON tells them apart."""
    turns, lasted, wait = sessions["requests"], sessions["duration_ns"], sessions["mean_queue_wait_ns"]
    lines = [
        f"sessions   {sessions['sessions']:,}, {sessions['completed']:,} completed; {turns['p50']:,} requests each at "
        f"the median, {turns['max']:,} at most",
        "           from first arrival to last answer " + _spread(lasted),
        "           mean queue wait " + _spread(wait),
    ]
    if sessions["slowdown"]["count"]:
        slowdown = ", ".join(f"{key} {sessions['slowdown'][key]:.3f}" for key in ("p50", "p99", "max"))
        index = sessions["jain_index"]
        fair = "" if index is None else f"; Jain's index of service rates {index:.3f}"
        lines.append(f"           slowdown by queueing {slowdown}{fair}")
    return lines


def _spread(values: dict[str, int | None]) -> str:
    return ", ".join(f"{key} {duration(values[key])}" for key in ("p50", "p99", "max"))


def duration(value_ns: int | None) -> str:
    """A time with four digits or so and its unit."""
    if value_ns is None:
        return "-"
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if value_ns >= scale:
            value = value_ns / scale
            digits = 3 if value < 10 else 2 if value < 100 else 1
            return f"{value:,.{digits}f} {unit}"
    return f"{value_ns} ns"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
