"""A sweep as text for people, as JSON values, and its points as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcore.policy import PolicyProfile

from ..replay.text import duration, print_table
from .objective import Objective, front, ranking
from .outcomes import LATENCIES, Figures
from .points import Tried, all_figures, policy_of

SHOWN_MAX = 20
_PIPED_WIDTH = 1000


@dataclass(frozen=True)
class Verdict:
    """A finished sweep. figures: of all points that did not fail. ranked, front: of those that meet the constraints."""

    objective: Objective
    tried: Mapping[int, Tried]
    figures: Mapping[int, Figures]
    ranked: Sequence[int]
    front: Sequence[int]

    @property
    def failed(self) -> list[Tried]:
        """Points without figures, in order."""
        return [item for _, item in sorted(self.tried.items()) if item.error is not None]

    def status(self, number: int) -> str:
        """What became of a point, in a word."""
        if number not in self.figures:
            return "failed"
        if number in self.ranked[:1]:
            return "best"
        return "front" if number in self.front else "met" if number in self.ranked else "not met"


def judge(objective: Objective, tried: Mapping[int, Tried], names: Sequence[str]) -> Verdict:
    """Rank the points. names: of all figures."""
    figures = {number: all_figures(tried[number], names) for number in sorted(tried) if tried[number].error is None}
    scores = {number: score for number, those in figures.items() if (score := objective.scores(those)) is not None}
    return Verdict(objective, tried, figures, ranking(scores), front(scores))


def print_sweep(verdict: Verdict, stream: IO[str] | None = None) -> None:
    """Write the best points, and what failed, to stream (None: standard output)."""
    out = stream or sys.stdout
    terminal = out.isatty()
    console = Console(file=out, highlight=False, markup=False, emoji=False, legacy_windows=False,
                      width=None if terminal else _PIPED_WIDTH)
    with console.capture() as capture:
        if verdict.ranked:
            print_table(console, _table(verdict))
            console.print()
        for line in _lines(verdict):
            console.print(line, soft_wrap=True)
    text = capture.get()
    out.write(text if terminal else "".join(line.rstrip() + "\n" for line in text.splitlines()))


def _table(verdict: Verdict) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="bold")
    keys = list(verdict.tried[verdict.ranked[0]].values)
    figures = [name for name in verdict.objective.figures if name not in keys]
    for name in ("point", *keys, *figures, ""):
        table.add_column(Text(name), justify="right" if name else "left", overflow="fold")
    for number in verdict.ranked[:SHOWN_MAX]:
        status = verdict.status(number)
        table.add_row(
            str(number), *(Text(_word(verdict.tried[number].values[key])) for key in keys),
            *(_shown(name, verdict.figures[number]) for name in figures), status if status != "met" else "",
        )
    return table


def _word(value: object) -> str:
    return "-" if value is None else f"{value:,}" if type(value) is int else str(value)


def _shown(name: str, figures: Figures) -> str:
    value = figures[name]
    if value is None:
        return "-"
    if any(name.rpartition(".")[2].startswith(f"{key}_") for key in LATENCIES):
        return duration(int(value))
    return _word(value)


def _lines(verdict: Verdict) -> list[str]:
    met, failed = len(verdict.ranked), verdict.failed
    more = f"; the best {SHOWN_MAX} are shown" if met > SHOWN_MAX else ""
    lines = [f"points     {len(verdict.tried):,} tried, {met:,} meet the constraints, {len(failed):,} failed{more}"]
    if not verdict.ranked:
        lines.append("best       none")
    if len(verdict.objective.goals) > 1 and verdict.front:
        lines.append(f"front      {', '.join(map(str, verdict.front))}")
    lines += [f"failed     point {item.number} ({_values(item)}): {item.error}" for item in failed]
    return lines


def _values(item: Tried) -> str:
    return ", ".join(f"{key} {_word(value)}" for key, value in item.values.items())


def write_points(verdict: Verdict, stream: IO[str]) -> None:
    """One line per point in order: its values, what became of it, and all figures; times in ns."""
    numbers = sorted(verdict.tried)
    keys = list(verdict.tried[numbers[0]].values) if numbers else []
    names = [name for name in next(iter(verdict.figures.values()), {}) if name not in keys]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["point", *keys, "status", "error", *names])
    for number in numbers:
        item, figures = verdict.tried[number], verdict.figures.get(number, {})
        writer.writerow([
            number, *("" if (value := item.values[key]) is None else value for key in keys), verdict.status(number),
            item.error or "", *("" if (value := figures.get(name)) is None else value for name in names)])


def sweep_report(verdict: Verdict, profile: PolicyProfile, config: dict[str, Any]) -> dict[str, Any]:
    """Everything that is known of a sweep, as JSON values. profile: that its points are changes of."""
    objective, tried = verdict.objective, verdict.tried
    best = verdict.ranked[0] if verdict.ranked else None
    return {
        "config": config,
        "goals": [vars(goal) for goal in objective.goals],
        "constraints": [item.text for item in objective.constraints],
        "points": [
            {"point": number, "values": tried[number].values, "status": verdict.status(number),
             "error": tried[number].error, "figures": verdict.figures.get(number)} for number in sorted(tried)],
        "ranked": list(verdict.ranked),
        "front": list(verdict.front),
        "best": None if best is None else {"point": best, "policy": policy_of(profile, tried[best].values)},
    }
