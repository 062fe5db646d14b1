"""Class mix of a replay: the policy class of a row whose trace names none (`--classes 'premium=0.2,regular=0.8'`).

The draw depends on (seed, file number, row number) only, so that skipped rows and limits do not shift it, and it is
exact: weights are fractions, no float takes part.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction

from kvcore.errors import InvalidConfig
from kvcore.policy import PolicyProfile

#: Plain decimals only. An exponent or a thousand digits would be a number that nobody meant, and slow to hold exactly.
_DECIMAL = re.compile(r"(\d{1,18})(?:\.(\d{0,18}))?|\.(\d{1,18})", re.ASCII)
_RANGE = 1 << 64


def exact(text: str) -> Fraction | None:
    """The value of a decimal number such as `2`, `0.25` or `.5`, exactly; None if the text is no such number."""
    return Fraction(text) if _DECIMAL.fullmatch(text) else None


@dataclass(frozen=True)
class ClassMix:
    """Names of policy classes or families with their relative weights; they need not add up to 1.

    Raises: InvalidConfig if it is empty, a name is empty or repeated, a weight is negative, or all weights are 0.
    """

    weights: tuple[tuple[str, Fraction], ...]
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _bounds: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        total = sum((weight for _, weight in self.weights), Fraction(0))
        names = [name for name, _ in self.weights]
        if total <= 0 or any(weight < 0 for _, weight in self.weights):
            raise InvalidConfig("class weights must be >= 0, and one of them above 0")
        if not all(names):
            raise InvalidConfig("a class weight without a name")
        for name in names:
            if names.count(name) > 1:
                raise InvalidConfig(f"class {name!r} is given twice")
        # A draw h of 0 .. 2^64-1 falls to the first class with h / 2^64 < cumulative / total, that is h < bound.
        cumulative = Fraction(0)
        bounds = []
        for _, weight in self.weights:
            cumulative += weight
            bounds.append(-(-cumulative * _RANGE // total))
        object.__setattr__(self, "_bounds", tuple(bounds))
        object.__setattr__(self, "_names", tuple(names))

    def draw(self, seed: int, file_index: int, row: int) -> str:
        """The class of one row. Cost: one hash, about a microsecond."""
        key = struct.pack("<QQQ", seed, file_index, row)
        digest = hashlib.blake2b(key, digest_size=8, person=b"kvcore-classes").digest()
        return self._names[bisect_right(self._bounds, int.from_bytes(digest, "little"))]

    def check(self, profile: PolicyProfile) -> None:
        """Refuse names that the profile does not know. Raises: InvalidConfig, with the nearest known name."""
        if profile.default_policy_family is None:
            raise InvalidConfig("a class mix needs a policy: without one every request is of class 'default'")
        known = [item.name for item in profile.classes if item.policy_family is None]
        known += dict.fromkeys(item.policy_family for item in profile.classes if item.policy_family is not None)
        for name, _ in self.weights:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"the policy has {', '.join(known)}"
                raise InvalidConfig(f"unknown class or family {name!r}; {hint}")


def parse_classes(text: str) -> ClassMix:
    """Read `name=weight,name=weight`. Raises: InvalidConfig."""
    weights = []
    for part in text.split(","):
        name, equals, number = part.rpartition("=")
        weight = exact(number.strip())
        if not equals or weight is None:
            raise InvalidConfig(f"{part.strip()!r} is not NAME=WEIGHT, such as premium=0.2")
        weights.append((name.strip(), weight))
    return ClassMix(tuple(weights))
