"""What became of the requests of a replay, class by class, as figures that can be taken over any multiset of them.

Figures have one name each: `requests`, `completed` and `prefix_hit` (parts of 1), and `ttft_p99` and so on: a latency
in ns and how it is summed up. Percentiles are nearest-rank, means are rounded down, and everything is computed from
integers, so that the same requests give the same figures on every machine.

Memory: the whole table of the replay, 128 bytes a request, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ..replay.quantiles import rank
from ..replay.result import COLUMNS, ReplayResult, RunOutcome, latencies_ns

Integers = npt.NDArray[np.int64]
#: Name -> value: an integer for numbers and ns, a float for parts of 1, None where there is nothing to take it over.
Figures = dict[str, int | float | None]

PERCENTS = (50, 90, 99)
LATENCIES = ("queue_wait", "ttft", "itl", "e2e")
RATES = ("completed", "prefix_hit")
#: Names of all figures that stand for a distribution or a part, in the order of reports.
FIGURES = (*RATES, *(f"{name}_{kind}" for name in LATENCIES for kind in ("mean", *(f"p{p}" for p in PERCENTS))))
#: Name of the group of all requests, in figures and constraints.
ALL = "all"

_LOW_BITS = 24
_RATE_DIGITS = 6


def part(some: int, whole: int) -> float | None:
    """some / whole to six digits; None of nothing."""
    return round(some / whole, _RATE_DIGITS) if whole else None


class Outcomes:
    """The requests of a finished replay. names: of its policy classes. keys: (file, row) of each request, in order."""

    def __init__(self, result: ReplayResult) -> None:
        rows = result.table.rows()
        self.names = [item.name for item in result.profile.classes]
        self.keys = rows[:, [COLUMNS.index("file_index"), COLUMNS.index("row")]]
        self._classes = rows[:, COLUMNS.index("class_index")]
        self.latencies = latencies_ns(rows)
        done = rows[:, COLUMNS.index("outcome")] == RunOutcome.COMPLETED
        self.completed: Integers = done.astype(np.int64)
        self.prompts: Integers = np.where(done, rows[:, COLUMNS.index("prompt_tokens")], 0)
        self.hits: Integers = np.where(done, rows[:, COLUMNS.index("engine_cached_tokens")], 0)

    def __len__(self) -> int:
        return len(self._classes)

    def members(self, name: str) -> npt.NDArray[np.bool_]:
        """Which requests are of this class; of ALL: every one. A class that the policy lacks has none."""
        if name in self.names:
            members: npt.NDArray[np.bool_] = self._classes == self.names.index(name)
            return members
        return np.full(len(self), name == ALL)

    def groups(self) -> list[str]:
        """Classes with requests, in the policy's order, then ALL, unless a class has that name."""
        seen = set(np.unique(self._classes).tolist())
        names = [name for i, name in enumerate(self.names) if i in seen]
        return names if ALL in names else [*names, ALL]

    def figures(self) -> dict[str, Figures]:
        """All figures of each group, over its requests as they are."""
        every = np.arange(len(self))
        once = np.ones(len(self), np.int64)
        return {name: Sample(self, self.members(name), every).figures(once) for name in self.groups()}


class Sample:
    """The members of a class among some requests, ready to be weighed again and again.

    places: indices of the requests that weights stand for; weights[i] says how often request places[i] counts.
    """

    def __init__(self, outcomes: Outcomes, members: npt.NDArray[np.bool_], places: Integers) -> None:
        inside = members[places]
        self._inside = np.flatnonzero(inside)
        rows = places[inside]
        self._completed = outcomes.completed[rows]
        self._prompts, self._hits = outcomes.prompts[rows], outcomes.hits[rows]
        self._sorted = {name: _Sorted(outcomes.latencies[name][rows]) for name in LATENCIES}

    def figures(self, weights: Integers) -> Figures:
        """All figures, each member counted so many times."""
        own = weights[self._inside]
        requests = int(own.sum())
        found: Figures = {
            "requests": requests,
            "completed": part(int(own @ self._completed), requests),
            "prefix_hit": part(int(own @ self._hits), int(own @ self._prompts)),
        }
        for name, values in self._sorted.items():
            found |= values.figures(name, own)
        return found


class _Sorted:
    """Values >= 0 in rising order, and where they come from."""

    def __init__(self, values: Integers) -> None:
        self._order = np.argsort(values, kind="stable")
        self._order = self._order[np.searchsorted(values[self._order], 0):]
        self._values = values[self._order]
        # In two halves a weighted sum of any int64 stays exact, whatever the weights of 2^24 requests.
        self._high, self._low = self._values >> _LOW_BITS, self._values & ((1 << _LOW_BITS) - 1)

    def figures(self, name: str, weights: Integers) -> Figures:
        own = weights[self._order]
        below = np.cumsum(own)
        count = int(below[-1]) if len(below) else 0
        if not count:
            return {f"{name}_{kind}": None for kind in ("mean", *(f"p{p}" for p in PERCENTS))}
        total = (int(own @ self._high) << _LOW_BITS) + int(own @ self._low)
        found: Figures = {f"{name}_mean": total // count}
        for percent in PERCENTS:
            place = int(np.searchsorted(below, rank(percent, count), side="right"))
            found[f"{name}_p{percent}"] = int(self._values[place])
        return found


def flat(figures: Mapping[str, Figures]) -> Figures:
    """Figures of all groups under one name each, `class.figure`."""
    return {f"{group}.{name}": value for group, those in figures.items() for name, value in those.items()}


#: Shows work under way: called with (steps so far, steps in all).
Progress = Callable[[int, int], None]
