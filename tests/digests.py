"""Pairs of schedulers that differ in one thing alone, by its name."""

from __future__ import annotations

from collections.abc import Callable

from stories import Story


class Pairs(dict[str, Callable[[bool], Story]]):
    """Name of what differs -> what makes the one story (False) and the other (True). Decorates such functions."""

    def __call__(self, make: Callable[[bool], Story]) -> Callable[[bool], Story]:
        assert make.__name__ not in self
        self[make.__name__] = make
        return make

    def check(self, name: str) -> None:
        """The two have different digests; told once more, the same ones."""
        digests = [self[name](other).core.digest() for other in (False, True, False, True)]
        assert digests[0] != digests[1]
        assert digests[:2] == digests[2:]
