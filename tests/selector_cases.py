"""Ranks, weights and queries for tests of selection, told once and given to the core's selector and to the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import oracle_cost
from oracle_ledger import WyRand
from probe_build import load

from kvcore.request import SelectionWeights

probe = load("_probe_selector")

ONE = 2**20
DEFAULT = SelectionWeights()


@dataclass(frozen=True)
class At:
    """One rank: its load, and what the request finds there. effective: instead of device; cached: as told."""

    tokens: int = 0
    blocks: int = 0
    requests: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0
    active: int = 0
    effective: float | None = None
    cached: int | None = None
    taints: int = 0


@dataclass(frozen=True)
class Case:
    """A request and the ranks it may be given. multiplier: by number of a taint set."""

    ranks: tuple[At, ...]
    prompt: int = 64
    block_size: int = 16
    weights: SelectionWeights = DEFAULT
    sequence_length: int = 0
    track_prefill: bool = True
    decode_role: bool = False
    shared: tuple[tuple[int, int], ...] = ()
    multiplier: tuple[float, ...] | None = None

    def weighed(self, **changes: float) -> Case:
        """With other weights."""
        return replace(self, weights=replace(self.weights, **changes))

    def loads(self):
        """For the core."""
        return probe.Loads([(at.tokens, at.blocks * ONE, at.requests, at.taints) for at in self.ranks])

    def query(self):
        """For the core. A tier that no rank has is not there at all."""
        def column(name: str, absent: float | None = 0):
            values = [getattr(at, name) for at in self.ranks]
            return None if all(value == absent for value in values) else [value or 0 for value in values]

        return probe.Query(
            self.prompt, self.block_size, astuple(self.weights), sequence_length=self.sequence_length,
            track_prefill=self.track_prefill, decode_role=self.decode_role, device=column("device"),
            effective=column("effective", None), host=column("host"), disk=column("disk"),
            cached=column("cached", None), shared=self.shared, multiplier=self.multiplier, active=column("active"))

    def costs(self, candidates: Sequence[int] | None = None) -> list[float]:
        """By the core."""
        return self.loads().costs(self.all(candidates), self.query())

    def all(self, candidates: Sequence[int] | None) -> list[int]:
        """The candidates, or every rank."""
        return list(range(len(self.ranks)) if candidates is None else candidates)

    def cheapest(self, candidates: Sequence[int] | None = None) -> list[int]:
        """All ranks that tie, by the core."""
        return self.loads().cheapest(self.all(candidates), self.query())[0]

    def choose(self, seed: int, candidates: Sequence[int] | None = None) -> tuple[int | None, int]:
        """Rank and generator state, by the core."""
        return self.loads().choose(self.all(candidates), self.query(), seed)

    def picks(self, seed: int, count: int) -> list[int]:
        """One choice after the other, by the core."""
        loads, query, found = self.loads(), self.query(), []
        for _ in range(count):
            rank, seed = loads.choose(self.all(None), query, seed)
            found.append(rank)
        return found

    def told(self, name: str) -> bool:
        """Whether any rank has such a value."""
        return any(getattr(at, name) is not None for at in self.ranks)

    def expected_depth(self, at: At) -> float:
        """Device depth, by the oracle."""
        return (at.effective or 0.0) if self.told("effective") else float(at.device)

    def expected_cached(self, at: At) -> int:
        """Cached tokens, by the oracle."""
        if self.told("cached"):
            return at.cached or 0
        return oracle_cost.weighted_cached(self.expected_depth(at), at.host, at.disk, self.weights, self.block_size)

    def expected_costs(self, candidates: Sequence[int] | None = None) -> list[float]:
        """By the oracle."""
        chosen = [self.ranks[i] for i in self.all(candidates)]
        least = min(at.tokens for at in chosen)
        return [
            oracle_cost.rank_cost(
                prompt=self.prompt, block_size=self.block_size, sequence_length=self.sequence_length,
                depth=at.active, dev=self.expected_depth(at), host=at.host, disk=at.disk,
                beyond=oracle_cost.hits_beyond(self.shared, oracle_cost.first_beyond(self.expected_depth(at))),
                cached=self.expected_cached(at), tokens=at.tokens, blocks=at.blocks, requests=at.requests,
                least_tokens=least, weights=self.weights, track_prefill=self.track_prefill,
                decode_role=self.decode_role,
                multiplier=None if self.multiplier is None else self.multiplier[at.taints])
            for at in chosen]

    def expected_choice(self, seed: int, candidates: Sequence[int] | None = None) -> tuple[int, int]:
        """Rank and generator state, by the oracle."""
        chosen = self.all(candidates)
        generator = Generator(seed)
        index = oracle_cost.choose(self.expected_costs(chosen), self.weights.temperature, generator, False)
        return chosen[index], generator.state


class Generator(WyRand):
    """The oracle's, with uniforms."""

    def uniform(self) -> float:
        """A multiple of 2^-53 in [0, 1)."""
        return float(self.next() >> 11) * 2.0**-53


def chi_square(counts: Sequence[int], shares: Sequence[float] | None = None) -> float:
    """Of counts that should stand in the ratio of the shares; equal ones by default."""
    total = sum(counts)
    wanted = [total / len(counts) for _ in counts] if shares is None else [total * share for share in shares]
    return sum((count - want) ** 2 / want for count, want in zip(counts, wanted, strict=True))
