"""Bootstrap over requests: how far a difference between two replays of the same requests could be chance.

Requests are drawn with replacement, the same ones for both replays, and each figure's difference is taken again; the
interval leaves out equally many of the smallest and of the largest differences. Draws depend on seed, class and number
of requests only. They come from the generator's raw 64-bit words, which numpy keeps the same from version to version.

What it can not tell: requests wait for each other, so the interval says how much the *mix* of this trace decides, not
what another trace would give.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .outcomes import FIGURES, Figures, Outcomes, Sample

Number = int | float


@dataclass(frozen=True)
class Difference:
    """A figure of two replays. difference: other - base; low, high: its interval; None where a replay has no value."""

    base: Number | None
    other: Number | None
    difference: Number | None
    low: Number | None
    high: Number | None

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def differences(
    base: Outcomes, other: Outcomes, name: str, *, seed: int, resamples: int, percent: int,
    progress: Callable[[], None] | None = None,
) -> dict[str, Difference]:
    """Every figure of a class (or ALL) in two replays of the same requests.

    A request counts for a replay in which it was of this class. percent: of the differences that an interval holds.
    progress: called after each resample.
    """
    members = [outcomes.members(name) for outcomes in (base, other)]
    places = np.flatnonzero(members[0] | members[1])
    one, two = (Sample(outcomes, those, places) for outcomes, those in zip((base, other), members, strict=True))
    once = np.ones(len(places), np.int64)
    before, after = one.figures(once), two.figures(once)
    drawn: dict[str, list[Number]] = {key: [] for key in FIGURES}
    if len(places):
        source = np.random.PCG64(_seed(seed, name))
        for _ in range(resamples):
            weights = _draw(source, len(places))
            _take(drawn, one.figures(weights), two.figures(weights))
            if progress is not None:
                progress()
    return {key: _difference(before[key], after[key], drawn[key], percent) for key in FIGURES}


def _seed(seed: int, name: str) -> int:
    """Of a class's draws: they do not shift when another class comes or goes."""
    key = f"{seed} {name}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(key, digest_size=16, person=b"kvcore-bootstrap").digest(), "little")


def _draw(source: np.random.PCG64, count: int) -> npt.NDArray[np.int64]:
    """How often each of count requests is drawn, in count draws. The upper 32 bits scale to a place, as near to evenly

    as 2^32 / count is large.
    """
    words = source.random_raw(count) >> np.uint64(32)
    places = (words * np.uint64(count)) >> np.uint64(32)
    return np.bincount(places.astype(np.int64), minlength=count)


def _take(drawn: dict[str, list[Number]], before: Figures, after: Figures) -> None:
    for key, values in drawn.items():
        one, two = before[key], after[key]
        if one is not None and two is not None:
            values.append(_minus(two, one))


def _minus(two: Number, one: Number) -> Number:
    """Rates have six digits; so do their differences."""
    gap = two - one
    return round(gap, 6) if isinstance(gap, float) else gap


def _difference(base: Number | None, other: Number | None, drawn: list[Number], percent: int) -> Difference:
    if base is None or other is None:
        return Difference(base, other, None, None, None)
    gap = _minus(other, base)
    if not drawn:
        return Difference(base, other, gap, None, None)
    drawn.sort()
    left_out = len(drawn) * (100 - percent) // 200
    return Difference(base, other, gap, drawn[left_out], drawn[len(drawn) - 1 - left_out])
