"""Exact percentiles of more values than one wants to hold: they are read four times over, piece by piece.

Each reading fixes 16 more bits of every percentile, from the highest down: it counts how many of the values that agree
with the bits found so far have which next 16. Memory: 65,536 counters per percentile, whatever the number of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_BITS = 16
_DIGITS = 1 << _BITS
#: Readings, each with the bits below its digit: values are 0 .. 2^63-1.
SHIFTS = (48, 32, 16, 0)

Values = npt.NDArray[np.int64]


def rank(percent: int, count: int) -> int:
    """Position, from 0, of the nearest-rank percentile among so many sorted values: of the smallest that at least

    percent % of them do not exceed.
    """
    return max(0, (percent * count + 99) // 100 - 1)


class Spread:
    """Count, nearest-rank percentiles and largest of some values >= 0.

    For each of SHIFTS in turn: add() every piece of the values, then turn(). Or add_all() once, if they are at hand.
    """

    def __init__(self, percents: Sequence[int]) -> None:
        self.count = 0
        self.max: int | None = None
        self._percents = percents
        # Of each percentile: the bits found so far, and how many values with these bits lie before it.
        self._prefixes = [0] * len(percents)
        self._ranks = [0] * len(percents)
        self._level = 0
        self._counts: dict[int, npt.NDArray[np.int64]] = {}

    def add(self, values: Values) -> None:
        """A piece of the values; the same pieces in each reading, in any order."""
        shift = SHIFTS[self._level]
        if self._level == 0:
            self.count += len(values)
            if len(values):
                self.max = max(self.max or 0, int(values.max()))
        for prefix in set(self._prefixes):
            fitting = values if self._level == 0 else values[values >> (shift + _BITS) == prefix]
            digits = (fitting >> shift) & (_DIGITS - 1)
            counts = np.bincount(digits, minlength=_DIGITS)
            self._counts[prefix] = self._counts[prefix] + counts if prefix in self._counts else counts

    def turn(self) -> None:
        """All pieces have been added: the next reading may begin."""
        if self._level == 0:
            self._ranks = [rank(percent, self.count) for percent in self._percents]
        if self.count:
            for i, prefix in enumerate(self._prefixes):
                below = np.cumsum(self._counts[prefix])
                digit = int(np.searchsorted(below, self._ranks[i], side="right"))
                self._ranks[i] -= int(below[digit - 1]) if digit else 0
                self._prefixes[i] = prefix << _BITS | digit
        self._counts = {}
        self._level += 1

    def add_all(self, values: Values) -> None:
        """All values at once."""
        ordered = np.sort(values)
        self.count = len(ordered)
        if self.count:
            self.max = int(ordered[-1])
            self._prefixes = [int(ordered[rank(percent, self.count)]) for percent in self._percents]

    def figures(self) -> dict[str, int | None]:
        """Count, p50 and so on, and max; None where there is no value."""
        found: dict[str, int | None] = {"count": self.count}
        for percent, value in zip(self._percents, self._prefixes, strict=True):
            found[f"p{percent}"] = value if self.count else None
        return found | {"max": self.max}
