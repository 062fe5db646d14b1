"""Base lines of costs and their comparison: which figures there are, how they stand in a file, which have grown.

A figure has a name, `kind: what`, and a value that is better the smaller it is. Kinds:
    instructions   counted by callgrind: repeat exactly in one build on one machine
    ratio          CPU time over that of a yardstick in the same process: noisy, so measured again where it is over
    counter        steps of an algorithm, or numbers of a run in model time: the same on every machine

A file holds a base line per build (`build_key`), since compilers and interpreters change what all of these but counters
are; and in it ratios per processor (`processor`), since how much faster one runs C than Python differs by a sixth. A
build or processor that a file does not know cannot fail; whoever runs the gate is told.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import kvcore.scheduler
from kvcore.errors import KvcoreError

#: How much a figure may grow, as a part of its base line.
TOLERANCE = 0.03
FORMAT = "kvcore-gate-2"
INSTRUCTIONS, RATIO, COUNTER = "instructions", "ratio", "counter"

#: Name -> value. Names begin with a kind and a colon.
Figures = Mapping[str, float]


class InvalidBaseLine(KvcoreError):
    """A file that holds no base lines, or such of another load. place: file, or file:line."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


class Verdict(Enum):
    """What became of a figure."""

    SAME = "same"
    SMALLER = "smaller"
    GROWN = "GROWN"
    NEW = "no base line"


@dataclass(frozen=True)
class Row:
    """One figure beside its base line. change: a part of the base line; None where there is none to compare with."""

    name: str
    before: float | None
    now: float
    change: float | None
    verdict: Verdict


def build_key() -> str:
    """Python and its compiler, the Cython and C compiler that kvcore.scheduler was built with, and the architecture."""
    cython = type(kvcore.scheduler.Scheduler.step_many).__module__.removeprefix("_cython_").replace("_", ".")
    with open(kvcore.scheduler.__file__, "rb") as file:
        found = re.search(rb"(GCC: \([^)]*\) [\d.]+|clang version [\d.]+)", file.read())
    compiler = "an unknown compiler" if found is None else found[1].decode()
    python = f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler().strip()})"
    return f"{python}, Cython {cython}, {compiler}, {platform.machine()}"


def processor() -> str:
    """What ratios depend on: the processor's make, family, model and stepping, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            told = dict(re.findall(r"^([^:\n]*?)\s*:\s*(.*)$", file.read().partition("\n\n")[0], re.MULTILINE))
    except OSError:
        told = {}
    parts = [told[name] for name in ("model name", "cpu family", "model", "stepping") if told.get(name)]
    return " ".join(parts) or platform.processor() or platform.machine()


def compare(before: Figures, now: Figures, tolerance: float = TOLERANCE) -> list[Row]:
    """A row per figure of now, in its order. A figure without a base line is NEW; one that was not measured has no row.

    What was 0 has grown as soon as it is above: there is no part of nothing.
    """
    rows = []
    for name, value in now.items():
        base = before.get(name)
        if base is None:
            rows.append(Row(name, None, value, None, Verdict.NEW))
            continue
        change = (value - base) / base if base else None
        if value > base * (1 + tolerance):
            verdict = Verdict.GROWN
        else:
            verdict = Verdict.SMALLER if value < base * (1 - tolerance) else Verdict.SAME
        rows.append(Row(name, base, value, change, verdict))
    return rows


def table(rows: list[Row]) -> list[str]:
    """Rows as text: what has grown comes first."""
    ordered = sorted(rows, key=lambda row: row.verdict is not Verdict.GROWN)
    grid = [("figure", "base line", "now", "change", "")] + [
        (row.name, shown(row.before), shown(row.now), "" if row.change is None else f"{row.change:+.2%}",
         "" if row.verdict is Verdict.SAME else row.verdict.value)
        for row in ordered
    ]
    widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
    return ["  ".join(cell.rjust(width) if 0 < i < 4 else cell.ljust(width)
                      for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip() for line in grid]


def shown(value: float | None) -> str:
    """A value for a table; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.4g}"


@dataclass
class BaseLine:
    """Figures of one build. reason: why they are what they are now, in the words of whoever recorded them.

    ratios: by processor.
    """

    reason: str
    figures: dict[str, float]
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)

    def on(self, cpu: str) -> dict[str, float]:
        """All that one processor can be held against."""
        return self.figures | self.ratios.get(cpu, {})


@dataclass
class BaseLines:
    """What a file holds. load: what was measured, where that can be chosen; only equal loads can be compared."""

    path: Path
    load: dict[str, object] = field(default_factory=dict)
    builds: dict[str, BaseLine] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> BaseLines:
        """Read a file. Raises: InvalidBaseLine; OSError."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise InvalidBaseLine(str(path), "not UTF-8 text") from error
        except json.JSONDecodeError as error:
            raise InvalidBaseLine(f"{path}:{error.lineno}", f"not JSON: {error.msg}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise InvalidBaseLine(str(path), f"no base lines: its `format` is not {FORMAT!r}")
        lines = cls(path)
        load, builds = data.get("load", {}), data.get("builds")
        if not isinstance(load, dict) or not isinstance(builds, dict):
            raise InvalidBaseLine(str(path), "`load` and `builds` must be objects")
        lines.load = load
        for key, entry in builds.items():
            lines.builds[key] = _base_line(path, key, entry)
        return lines

    def record(self, key: str, figures: Figures, reason: str, cpu: str | None = None) -> None:
        """Figures of a build on a processor, None: this one; those not measured now stay. Nothing is written yet."""
        line = self.builds.setdefault(key, BaseLine(reason, {}))
        line.reason = reason
        self.add_ratios(key, figures, cpu)
        line.figures |= {name: value for name, value in figures.items() if _kind(name) != RATIO}

    def add_ratios(self, key: str, figures: Figures, cpu: str | None = None) -> None:
        """The ratios among the figures of a build that is known. Nothing is written yet."""
        found = {name: value for name, value in figures.items() if _kind(name) == RATIO}
        if found:
            kept = self.builds[key].ratios.setdefault(processor() if cpu is None else cpu, {})
            kept |= found

    def text(self) -> str:
        """The file's content: keys in order, so that a change shows as the lines that it changes."""
        builds = {
            key: {"reason": line.reason, "figures": dict(sorted(line.figures.items())),
                  "ratios": {cpu: dict(sorted(found.items())) for cpu, found in sorted(line.ratios.items())}}
            for key, line in sorted(self.builds.items())}
        return json.dumps({"format": FORMAT, "load": self.load, "builds": builds}, indent=1, allow_nan=False) + "\n"


def _base_line(path: Path, key: str, entry: object) -> BaseLine:
    if not isinstance(entry, dict):
        raise InvalidBaseLine(str(path), f"build {key!r} must be an object")
    reason, figures = entry.get("reason"), entry.get("figures")
    if not isinstance(reason, str) or not reason or not isinstance(figures, dict):
        raise InvalidBaseLine(str(path), f"build {key!r} needs a `reason` and `figures`")
    by_cpu = entry.get("ratios", {})
    if not isinstance(by_cpu, dict) or not all(isinstance(found, dict) for found in by_cpu.values()):
        raise InvalidBaseLine(str(path), f"build {key!r}: `ratios` must be an object of objects")
    _check(path, key, figures, (INSTRUCTIONS, COUNTER))
    for found in by_cpu.values():
        _check(path, key, found, (RATIO,))
    return BaseLine(reason, dict(figures), {cpu: dict(found) for cpu, found in by_cpu.items()})


def _check(path: Path, key: str, figures: dict[str, object], kinds: tuple[str, ...]) -> None:
    for name, value in figures.items():
        if _kind(name) not in kinds:
            raise InvalidBaseLine(str(path), f"build {key!r}: figure {name!r} is of no kind of {', '.join(kinds)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise InvalidBaseLine(str(path), f"build {key!r}: figure {name!r} must be a number >= 0, not {value!r}")


def _kind(name: str) -> str:
    return name.partition(":")[0]
