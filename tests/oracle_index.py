"""The oracle's view of caches: what engines tell per tier, what own dispatches let one expect, what a request finds.

A cache is plain sets of block names. What is expected fades: it is forgotten when it has not been used for a while,
and, where a bound is given, when the rank holds more than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from oracle_cost import first_beyond, hits_beyond, weighted_cached
from oracle_ledger import leading

from kvcore.events import Tier
from kvcore.request import Overlap, SelectionWeights


@dataclass
class RankCache:
    """Cached blocks of one rank. expected: name -> last use, least recently used first."""

    told: dict[Tier, set[int]] = field(default_factory=lambda: {tier: set() for tier in Tier})
    expected: dict[int, int] = field(default_factory=dict)

    def depths(self, names: tuple[int, ...]) -> tuple[int, int, int]:
        """Leading blocks on the device, how many go on in host memory, how many from there on disk."""
        device = max(leading(names, self.told[Tier.DEVICE]), leading(names, self.expected))
        host = leading(names[device:], self.told[Tier.HOST])
        disk = leading(names[device + host :], self.told[Tier.DISK])
        return device, host, disk

    def use(self, names: tuple[int, ...], now_ns: int, bound: int | None) -> None:
        """A prompt with these blocks goes there, or has run there: leaf first, so that the root is forgotten last."""
        for name in reversed(names):
            self.expected.pop(name, None)
            self.expected[name] = now_ns
        while bound is not None and len(self.expected) > bound:
            del self.expected[next(iter(self.expected))]

    def forget(self, last_use_ns: int) -> None:
        """Expect no longer what has not been used since."""
        while self.expected and next(iter(self.expected.values())) <= last_use_ns:
            del self.expected[next(iter(self.expected))]


@dataclass(frozen=True)
class Found:
    """What one request finds on one rank. device is a real number where the caller gives a weighted sum for it.

    beyond: blocks of the shared cache beyond its device depth. cached: tokens, not cut to the prompt.
    """

    device: float
    host: int
    disk: int
    beyond: int
    cached: int


NOTHING = Found(0.0, 0, 0, 0, 0)


def told(overlap: Overlap, rank: tuple[int, int], weights: SelectionWeights, block_size: int) -> Found:
    """What the caller says of a rank (DESIGN D13)."""
    host, disk = at(overlap.host, rank), at(overlap.disk, rank)
    if overlap.device or overlap.host or overlap.disk:
        device = float(at(overlap.device, rank))
    else:
        device = float(at(overlap.effective, rank))
    if overlap.cached_tokens:
        cached = at(overlap.cached_tokens, rank)
    else:
        cached = weighted_cached(device, host, disk, weights, block_size)
    return Found(device, host, disk, hits_beyond(overlap.shared, first_beyond(device)), cached)


def indexed(cache: RankCache, names: tuple[int, ...], weights: SelectionWeights, block_size: int) -> Found:
    """What the index knows of a rank."""
    device, host, disk = cache.depths(names)
    return Found(float(device), host, disk, 0, weighted_cached(float(device), host, disk, weights, block_size))


def at(pairs, rank: tuple[int, int]):
    """The last value that is given for a rank, or 0."""
    found = 0
    for name, value in pairs:
        if (name.worker_id, name.dp_rank) == rank:
            found = value
    return found
