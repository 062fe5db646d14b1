"""What all benchmarks share: clock, base line, digests, tables.

Clock: CPU time of the thread, so that a machine's other work counts only through the caches that it takes. Each figure
is the best of several rounds: noise only ever adds. The garbage collector is off while a round runs, because what it
costs depends on what else the program holds.

Base line: one `step(TimerFired)` of an idle scheduler, the least that a step can cost. It is measured before each round
in the same process, and what counts is the ratio to it: it means the same on a machine twice as slow.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvcore.drivers.bench.gate import build_key

import kvcore as kv

BASE_STEPS = 1000

#: Rounds of a measurement by --size, and how many items all of them together may have; no fewer than the last number.
ROUNDS = {"small": (5, 2_000, 2), "large": (200, 100_000, 5)}


def load() -> str:
    """How busy the machine is."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


class BaseLine:
    """The stated base line: an empty step."""

    def __init__(self) -> None:
        self._core = kv.Scheduler()
        self._events = [kv.TimerFired(0)] * BASE_STEPS

    def ns(self) -> float:
        """One measurement: nanoseconds of CPU per step."""
        step = self._core.step
        start = time.thread_time_ns()
        for event in self._events:
            step(event)
        return (time.thread_time_ns() - start) / BASE_STEPS


def digest(*parts: object) -> str:
    """64 bits over the texts of some values. A change of speed that changes a digest is a change of behaviour."""
    hasher = hashlib.blake2b(digest_size=8)
    for part in parts:
        for item in part if isinstance(part, (list, tuple)) else (part,):
            hasher.update(repr(item).encode() + b"\n")
    return hasher.hexdigest()


class Recorder:
    """Stands in for `core.step` and `core.step_many` where a digest is taken: keeps every action."""

    def __init__(self, core: kv.Scheduler) -> None:
        self._core = core
        self.actions: list[kv.AnyAction] = []

    def step(self, event: kv.AnyEvent) -> tuple[kv.AnyAction, ...]:
        """Scheduler.step."""
        actions = self._core.step(event)
        self.actions += actions
        return actions

    def step_many(self, events: Iterable[kv.AnyEvent]) -> tuple[kv.AnyAction, ...]:
        """Scheduler.step_many."""
        actions = self._core.step_many(events)
        self.actions += actions
        return actions

    def digest(self) -> str:
        """Over all actions so far and the state in which they have left the core."""
        return digest(self.actions, self._core.digest())


@dataclass(frozen=True)
class Figure:
    """CPU time per item and of the base line, both in nanoseconds and the best of the same rounds."""

    ns: float
    base_ns: float

    @property
    def ratio(self) -> float:
        """To the base line: what can be compared between machines and days."""
        return self.ns / self.base_ns


def rounds_of(size: str, items: int) -> int:
    """How often to measure something of so many items."""
    most, in_all, least = ROUNDS[size]
    return max(least, min(most, in_all // items))


class Report:
    """Measures, and keeps what is printed in the end: tables whose rows stand in the order of their first mention.

    digests: of every benchmark, by file and name.
    """

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self._tables: dict[str, dict[str, dict[str, str]]] = {}
        self._last: dict[str, tuple[int, float]] = {}
        self._base = BaseLine()
        self._base_ns = math.inf

    def measure(
        self, benchmark: Any, prepare: Callable[[], Sequence[object]], run: Callable[..., object], items: int,
        digest: str, size: str,
    ) -> Figure | None:
        """Best of several rounds of run(*prepare()), whose preparation is not timed; None under --benchmark-disable.

        benchmark: the fixture of pytest-benchmark. items: what the time of one round is divided by.
        """
        base_ns = math.inf

        def setup() -> tuple[Sequence[object], dict[str, object]]:
            nonlocal base_ns
            arguments = prepare()
            base_ns = min(base_ns, self._base.ns())
            return arguments, {}

        benchmark.pedantic(run, setup=setup, rounds=rounds_of(size, items), warmup_rounds=1)
        return self.note(benchmark, base_ns, items, digest)

    def note(self, benchmark: Any, base_ns: float, items: int, digest: str) -> Figure | None:
        """The figure of a finished measurement, told to the fixture, too, for --benchmark-json."""
        self.digests[benchmark.fullname] = benchmark.extra_info["digest"] = digest
        if benchmark.stats is None:
            return None
        figure = Figure(benchmark.stats.stats.min * 1e9 / items, base_ns)
        benchmark.extra_info |= {"items": items, "ns_per_item": figure.ns, "base_ns": base_ns, "ratio": figure.ratio}
        self._base_ns = min(self._base_ns, base_ns)
        return figure

    def add(self, table: str, row: str, **cells: str) -> None:
        """Fill in cells of a row, which may be there already."""
        self._tables.setdefault(table, {}).setdefault(row, {}).update(cells)

    def growth(self, series: str, size: int, figure: Figure | None) -> str:
        """The exponent e with which the ratio grew since the last size of the series, as size^e; 0.00 is flat."""
        if figure is None:
            return "-"
        last = self._last.get(series)
        self._last[series] = (size, figure.ratio)
        if last is None or last[0] == size:
            return ""
        return f"{math.log(figure.ratio / last[1]) / math.log(size / last[0]):+.2f}"

    def lines(self) -> list[str]:
        """All tables as text."""
        text = [build_key(), f"load average {load()}"]
        if math.isfinite(self._base_ns):
            text.append(f"base line: an empty TimerFired step, {self._base_ns:.1f} ns of CPU; x is the ratio to it")
        for title, rows in self._tables.items():
            columns = list(dict.fromkeys(name for cells in rows.values() for name in cells))
            grid = [["", *(name.replace("_", " ") for name in columns)]]
            grid += [[row, *(cells.get(name, "") for name in columns)] for row, cells in rows.items()]
            widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
            text += ["", title]
            text += ["  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip() for line in grid]
        return text


def shown(figure: Figure | None) -> str:
    """Nanoseconds per item; a dash where nothing was timed."""
    return "-" if figure is None else f"{figure.ns:,.0f} ns"


def times(figure: Figure | None) -> str:
    """The ratio to the base line; a dash where nothing was timed."""
    return "-" if figure is None else f"{figure.ratio:.1f}x"
