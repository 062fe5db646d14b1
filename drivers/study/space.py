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
from dataclasses import dataclass, field
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
_LEVELS = 3     # of keys: `keys`, a key, an end of its range
_MEMBERS = ("policy", "objective", "search", "points", "keys")


class InvalidSpace(KvcoreError):
    """A file that describes no space. place: the file, and where in it as `file:line:column`."""

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
    """policy: path as written. points: None of a grid. keys: name -> values to choose from, or a range.

    place: the file. places: see at().
    """

    place: str
    policy: str
    objective: str | None
    points: int | None
    keys: Mapping[str, tuple[Value, ...] | Range]
    places: Mapping[tuple[str | int, ...], str] = field(default_factory=dict, compare=False)

    def at(self, *path: str) -> str:
        """Where a key is written, such as ("keys", "premium.quantum"), as `file:line:column`."""
        return self.places.get(path, self.place)

    def all_points(self, seed: int) -> list[Point]:
        """The points, the first of which has number 1. Raises: InvalidSpace for more than POINTS_MAX."""
        if self.points is None:
            axes = [values for values in self.keys.values() if not isinstance(values, Range)]
            points = math.prod(map(len, axes))
            if points > POINTS_MAX:
                raise InvalidSpace(self.at("keys"), f"a grid of {points:,} points; at most {POINTS_MAX:,}")
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
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        places = {} if node is None else dict(_places(node, place, ()))
        data = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidSpace(place if mark is None else _at(place, mark), f"not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSpace(place, f"not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise InvalidSpace(place, "must be a mapping with `policy` and `keys`")
    return _Reader(place, data, places).space()


def _at(place: str, mark: yaml.Mark) -> str:
    return f"{place}:{mark.line + 1}:{mark.column + 1}"


def _places(node: yaml.Node, place: str, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Of all keys, and of the items of lists, as far down as a space goes. Raises: InvalidSpace for a repeated key."""
    if len(path) == _LEVELS:
        return
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise InvalidSpace(_at(place, key.start_mark), f"key {key.value!r} is there twice, "
                                                                   f"first on line {seen[key.value]}")
                seen[key.value] = key.start_mark.line + 1
                yield (*path, key.value), _at(place, key.start_mark)
                yield from _places(value, place, (*path, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield (*path, number), _at(place, item.start_mark)


@dataclass(frozen=True)
class _Reader:
    """What is checked of a file. places: as in a Space."""

    place: str
    data: dict[Any, Any]
    places: dict[tuple[str | int, ...], str]

    def refused(self, reason: str, *path: str | int) -> InvalidSpace:
        """An error at a key that may not be there."""
        return InvalidSpace(self.places.get(path, self.place), reason)

    def space(self) -> Space:
        """The whole. Raises: InvalidSpace."""
        data = self.data
        for name in data:
            known(str(name), _MEMBERS, self.places.get((str(name),), self.place), "key")
        policy, objective, keys = data.get("policy"), data.get("objective"), data.get("keys")
        if not isinstance(policy, str) or not policy:
            raise self.refused("`policy` must name a policy file", "policy")
        if objective is not None and not isinstance(objective, str):
            raise self.refused("`objective` must be text", "objective")
        if not isinstance(keys, dict) or not keys:
            raise self.refused("`keys` must be a mapping with a key or more", "keys")
        for name in keys:
            if not isinstance(name, str):
                raise self.refused(f"a key must be text, not {name!r}", "keys", str(name))
        points = self._points()
        found = {name: self._values(name, values, points is not None) for name, values in keys.items()}
        return Space(self.place, policy, objective, points, found, self.places)

    def _points(self) -> int | None:
        search, points = self.data.get("search", "grid"), self.data.get("points")
        if search not in ("grid", "random"):
            raise self.refused(f"`search` must be grid or random, not {search!r}", "search")
        if search == "grid":
            if points is not None:
                raise self.refused("`points` is for `search: random`; a grid has as many as its keys make", "points")
            return None
        if type(points) is not int or not 1 <= points <= POINTS_MAX:
            raise self.refused(f"`points` must be 1..{POINTS_MAX}, not {points!r}", "points")
        return points

    def _values(self, name: str, given: object, random: bool) -> tuple[Value, ...] | Range:
        path = ("keys", name)
        if isinstance(given, dict):
            if not random:
                raise self.refused(f"{name}: a range needs `search: random`; a grid needs a list", *path)
            return self._range(name, given)
        values = given if isinstance(given, list) else [given]
        seen = set()
        for number, value in enumerate(values):
            here = (*path, number) if (*path, number) in self.places else path
            if not (value is None or isinstance(value, int | float | str)) or value != value or value in _INFINITE:
                raise self.refused(f"{name}: must list numbers, words or null, not {value!r}", *here)
            if repr(value) in seen:
                raise self.refused(f"{name}: must list different values, {value!r} is there twice", *here)
            seen.add(repr(value))
        if not values:
            raise self.refused(f"{name}: must list a value or more", *path)
        return tuple(values)

    def _range(self, name: str, given: dict[Any, Any]) -> Range:
        for key in given:
            known(str(key), ("min", "max", "scale"), self.places.get(("keys", name, str(key)), self.place),
                  f"key of {name}")
        low: Any = given.get("min")
        high: Any = given.get("max")
        scale = given.get("scale", "linear")
        if not all(type(end) in (int, float) and math.isfinite(end) for end in (low, high)) or not low < high:
            raise self.refused(f"{name}: needs numbers `min` below `max`", "keys", name)
        if scale not in ("linear", "log") or (scale == "log" and low <= 0):
            raise self.refused(f"{name}: `scale` must be linear, or log with `min` above 0", "keys", name)
        return Range(low, high, type(low) is int and type(high) is int, scale == "log")


_INFINITE = (math.inf, -math.inf)


def known(name: str, names: Collection[str], place: str, what: str) -> None:
    """Refuse a name that is not among these. Raises: InvalidSpace, with the nearest one."""
    if name not in names:
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
        raise InvalidSpace(place, f"unknown {what} {name!r}; {hint}")
