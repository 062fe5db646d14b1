"""The space that a sweep searches, from a YAML file:

    policy: premium.yaml                    # beside this file; every key not swept is as it stands there
    objective: minimise premium.ttft_p99 subject to regular.completed >= 0.99
    search: grid                            # or random: so many points, drawn with the seed
    points: 64                              # random only
    keys:
      premium.quantum: [128, 256, 512]      # CLASS.KEY of a policy class; *.KEY: of all classes
      bucket.long.min_tokens: [1024, 4096]  # of a cache bucket
      policy.arbitration: [exact, reference]
      fleet.workers: {min: 2, max: 8}       # random only: whole numbers, both ends included
      fleet.engine: [generic, llama-8b-h100]
      selection.overlap_score_credit: {min: 0.1, max: 1.0, scale: log}

Points are numbered from 1. A grid's last key changes fastest. A random point does not depend on how many there are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import count, islice, product
from typing import Any

import yaml

from kvcore.errors import KvcoreError

Value = int | float | str | bool | None
Point = dict[str, Value]

POINTS_MAX = 100_000
_TRIES = 100    # draws per random point, before a space counts as used up
_DIGITS = 6     # of a drawn number that is not whole
_MEMBERS = ("policy", "objective", "search", "points", "keys")


class InvalidSpace(KvcoreError):
    """A file that describes no space. place: the file."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included. whole: integers only. log: evenly by magnitude."""

    low: float
    high: float
    whole: bool
    log: bool

    def at(self, part: float) -> Value:
        """The number at a part, 0 <= part < 1, of the range."""
        if self.whole and not self.log:
            return int(self.low) + int(part * (int(self.high) - int(self.low) + 1))
        if self.log:
            value = math.exp(math.log(self.low) + part * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + part * (self.high - self.low)
        return round(value) if self.whole else float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True)
class Space:
    """policy: path as written. points: None of a grid. keys: name -> values to choose from, or a range."""

    place: str
    policy: str
    objective: str | None
    points: int | None
    keys: Mapping[str, tuple[Value, ...] | Range]

    def all_points(self, seed: int) -> list[Point]:
        """The points, the first of which has number 1. Raises: InvalidSpace for more than POINTS_MAX."""
        if self.points is None:
            axes = [values for values in self.keys.values() if not isinstance(values, Range)]
            points = math.prod(map(len, axes))
            if points > POINTS_MAX:
                raise InvalidSpace(self.place, f"a grid of {points:,} points; at most {POINTS_MAX:,}")
            return [dict(zip(self.keys, values, strict=True)) for values in product(*axes)]
        return list(islice(self._different(seed), self.points))

    def _different(self, seed: int) -> Iterator[Point]:
        """Random points, none twice; ends where a small space has no more."""
        seen = set()
        for number in islice(count(), (self.points or 0) * _TRIES):
            point = {name: _drawn(values, _part(seed, number, name)) for name, values in self.keys.items()}
            identity = tuple(map(repr, point.values()))
            if identity not in seen:
                seen.add(identity)
                yield point

    def described(self) -> dict[str, Any]:
        """What decides the points, as JSON values."""
        keys = {name: vars(values) if isinstance(values, Range) else list(values) for name, values in self.keys.items()}
        return {"points": self.points, "keys": [[name, values] for name, values in keys.items()]}


def _part(seed: int, number: int, name: str) -> float:
    """A number 0 <= part < 1 that depends on these only."""
    digest = hashlib.blake2b(f"{seed} {number} {name}".encode(), digest_size=8, person=b"kvcore-sweep").digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def _drawn(values: tuple[Value, ...] | Range, part: float) -> Value:
    return values.at(part) if isinstance(values, Range) else values[int(part * len(values))]


def load_space(text: str, place: str) -> Space:
    """Read a space; names of keys are checked by whoever knows the policy. Raises: InvalidSpace."""
    try:
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise InvalidSpace(f"{place}{line}", f"not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSpace(place, f"not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise InvalidSpace(place, "must be a mapping with `policy` and `keys`")
    for name in data:
        known(str(name), _MEMBERS, place, "key")
    policy, objective, keys = data.get("policy"), data.get("objective"), data.get("keys")
    if not isinstance(policy, str) or not policy:
        raise InvalidSpace(place, "`policy` must name a policy file")
    if objective is not None and not isinstance(objective, str):
        raise InvalidSpace(place, "`objective` must be text")
    if not isinstance(keys, dict) or not keys or not all(isinstance(name, str) for name in keys):
        raise InvalidSpace(place, "`keys` must be a mapping with a key or more")
    points = _points(data, place)
    return Space(place, policy, objective, points,
                 {name: _values(name, values, place, points is not None) for name, values in keys.items()})


def known(name: str, names: Collection[str], place: str, what: str) -> None:
    """Refuse a name that is not among these. Raises: InvalidSpace, with the nearest one."""
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise InvalidSpace(place, f"unknown {what} {name!r}; {hint}")


def _points(data: dict[str, Any], place: str) -> int | None:
    search, points = data.get("search", "grid"), data.get("points")
    if search not in ("grid", "random"):
        raise InvalidSpace(place, f"`search` must be grid or random, not {search!r}")
    if search == "grid":
        if points is not None:
            raise InvalidSpace(place, "`points` is for `search: random`; a grid has as many as its keys make")
        return None
    if type(points) is not int or not 1 <= points <= POINTS_MAX:
        raise InvalidSpace(place, f"`points` must be 1..{POINTS_MAX}, not {points!r}")
    return points


def _values(name: str, given: object, place: str, random: bool) -> tuple[Value, ...] | Range:
    if isinstance(given, dict):
        if not random:
            raise InvalidSpace(place, f"{name}: a range needs `search: random`; a grid needs a list")
        return _range(name, given, place)
    values = given if isinstance(given, list) else [given]
    for value in values:
        if not (value is None or isinstance(value, int | float | str)) or value != value or value in _INFINITE:
            raise InvalidSpace(place, f"{name}: must list numbers, words or null, not {value!r}")
    if not values or len(set(map(repr, values))) < len(values):
        raise InvalidSpace(place, f"{name}: must list different values, one at least")
    return tuple(values)


_INFINITE = (math.inf, -math.inf)


def _range(name: str, given: dict[Any, Any], place: str) -> Range:
    for key in given:
        known(str(key), ("min", "max", "scale"), place, f"key of {name}")
    low: Any = given.get("min")
    high: Any = given.get("max")
    scale = given.get("scale", "linear")
    if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or not low < high:
        raise InvalidSpace(place, f"{name}: needs numbers `min` below `max`")
    if scale not in ("linear", "log") or (scale == "log" and low <= 0):
        raise InvalidSpace(place, f"{name}: `scale` must be linear, or log with `min` above 0")
    return Range(low, high, type(low) is int and type(high) is int, scale == "log")
