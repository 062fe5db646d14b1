"""Predicted: what a rank probably holds whose engine says nothing. Pure.

Each dispatch stores its prompt's blocks for `ttl_ns`. The core does the same for a whole fleet that is silent
(IndexMode.APPROXIMATE), at less cost; this is for single silent ranks of a fleet that speaks.

One use of a path touches its leaf first and its root last: what is left of a path is a prefix, which still matches.
Bound: `blocks_max` names, the rank's own capacity where it is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .values import Change, Fact


class Predicted:
    """Names of blocks of one rank in the order of their last use."""

    def __init__(self, blocks_max: int, ttl_ns: int) -> None:
        self._blocks_max, self._ttl_ns = blocks_max, ttl_ns
        self._used: OrderedDict[int, int] = OrderedDict()  # name -> time of its last use

    def __len__(self) -> int:
        """Blocks that count as cached."""
        return len(self._used)

    def touch(self, names: Sequence[int], now_ns: int) -> list[Fact]:
        """A prompt was sent there."""
        facts = self.expire(now_ns)
        names = names[:self._blocks_max]
        stored = tuple(name for name in names if name not in self._used)
        for name in reversed(names):
            self._used[name] = now_ns
            self._used.move_to_end(name)
        if stored:
            facts.append(Fact(Change.STORED, names=stored))
        removed = []
        while len(self._used) > self._blocks_max:
            removed.append(self._used.popitem(last=False)[0])
        if removed:
            facts.append(Fact(Change.REMOVED, names=tuple(removed)))
        return facts

    def expire(self, now_ns: int) -> list[Fact]:
        """Time has passed."""
        removed = []
        while self._used and next(iter(self._used.values())) + self._ttl_ns <= now_ns:
            removed.append(self._used.popitem(last=False)[0])
        return [Fact(Change.REMOVED, names=tuple(removed))] if removed else []

    def due_ns(self) -> int | None:
        """When the next one expires."""
        return next(iter(self._used.values())) + self._ttl_ns if self._used else None

    def clear(self) -> list[Fact]:
        """The engine speaks, or has been started anew: nothing is predicted any more."""
        if not self._used:
            return []
        self._used.clear()
        return [Fact(Change.CLEARED)]
