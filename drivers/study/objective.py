"""What a sweep looks for: `minimise premium.ttft_p99 subject to regular.completed >= 0.99`.

    minimise FIGURE {, maximise FIGURE} [subject to FIGURE >= NUMBER [UNIT] {and FIGURE <= NUMBER [UNIT]}]

The first goal decides which point is best; later ones break ties and span the Pareto front. Units are ns, us, ms and s;
a number without one is taken as it is, of a time as ns.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from kvcore.errors import KvcoreError

from .outcomes import Figures

_GOAL = re.compile(r"(minimi[sz]e|maximi[sz]e)\s+(\S+)")
_LIMIT = re.compile(r"(\S+)\s*(<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s)?")
_UNITS = {None: 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_TESTS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


class InvalidObjective(KvcoreError):
    """A text that says no objective, or names a figure that there is not."""


@dataclass(frozen=True)
class Goal:
    """A figure, and whether less of it is better."""

    figure: str
    minimise: bool

    def score(self, figures: Figures) -> Fraction | None:
        """The smaller, the better; None where the figure has no value."""
        value = figures[self.figure]
        return None if value is None else Fraction(value) if self.minimise else -Fraction(value)


@dataclass(frozen=True)
class Constraint:
    """figure test limit. text: as written."""

    figure: str
    test: str
    limit: Fraction
    text: str

    def holds(self, figures: Figures) -> bool:
        """Whether it does; never for a figure without a value."""
        value = figures[self.figure]
        return value is not None and _TESTS[self.test](Fraction(str(value)), self.limit)


@dataclass(frozen=True)
class Objective:
    """Goals, the deciding one first, and what must hold."""

    goals: tuple[Goal, ...]
    constraints: tuple[Constraint, ...]

    @property
    def figures(self) -> list[str]:
        """All that it names, each once."""
        return list(dict.fromkeys([*(goal.figure for goal in self.goals), *(item.figure for item in self.constraints)]))

    def scores(self, figures: Figures) -> tuple[Fraction, ...] | None:
        """Of a point by goal, the smaller the better; None if a constraint fails or a figure has no value."""
        found = [goal.score(figures) for goal in self.goals]
        scores = tuple(score for score in found if score is not None)
        return scores if len(scores) == len(found) and all(c.holds(figures) for c in self.constraints) else None

    def check(self, known: Collection[str]) -> None:
        """Refuse figures that are not known. Raises: InvalidObjective, with the nearest known name."""
        for figure in self.figures:
            if figure not in known:
                near = get_close_matches(figure, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else "a figure is CLASS.NAME, such as all.ttft_p99"
                raise InvalidObjective(f"objective: unknown figure {figure!r}; {hint}")


def parse_objective(text: str) -> Objective:
    """Read an objective. Raises: InvalidObjective."""
    wanted, subject, limits = " ".join(text.split()).partition(" subject to ")
    goals = []
    for piece in wanted.split(","):
        match = _GOAL.fullmatch(piece.strip())
        if match is None:
            raise InvalidObjective(f"objective: {piece.strip()!r} is not `minimise FIGURE` or `maximise FIGURE`")
        goals.append(Goal(match[2], match[1].startswith("min")))
    if len({goal.figure for goal in goals}) < len(goals):
        raise InvalidObjective("objective: a figure is named twice")
    return Objective(tuple(goals), tuple(_constraint(piece) for piece in limits.split(" and ")) if subject else ())


def _constraint(text: str) -> Constraint:
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise InvalidObjective(f"objective: {text.strip()!r} is not FIGURE >= NUMBER, with <=, >=, < or >")
    return Constraint(match[1], match[2], Fraction(match[3]) * _UNITS[match[4]], text.strip())


def ranking(scores: Mapping[int, tuple[Fraction, ...]]) -> list[int]:
    """Points from best to worst; of equals the one with the smaller number first."""
    return sorted(scores, key=lambda point: (scores[point], point))


def front(scores: Mapping[int, tuple[Fraction, ...]]) -> list[int]:
    """Points that no other beats: is as good in all goals and better in one. In the order of the ranking."""
    found: list[int] = []
    for point in ranking(scores):  # whoever beats a point stands before it
        if not any(_beats(scores[other], scores[point]) for other in found):
            found.append(point)
    return found


def _beats(one: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
