"""What the tests of the engine model share.

Preset `mock`: an iteration lasts 10 ms and 10 us more for each prompt token computed. `tight` is the same with a small
cache of blocks of 4 tokens and small limits. A to E: names of blocks.
"""

from __future__ import annotations

from typing import Any

from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import PRESETS, EngineSpec

from kvcore.events import BlocksRemoved, BlocksStored, Outcome, RequestFinished

MS = 1_000_000
MOCK = PRESETS["mock"]
A, B, C, D, E = 101, 102, 103, 104, 105


def tight(blocks: int, *, tokens: int = 2_048, seqs: int = 256) -> EngineSpec:
    """mock with so many blocks of 4 tokens."""
    return EngineSpec("tight", MOCK.base_ps, MOCK.prefill_token_ps, 0, 0, max(tokens, seqs), seqs, blocks, 4)


def drain(fleet: Fleet, now_ns: int = 0) -> list[Any]:
    """All facts to come, instant by instant; next_ns is exact. now_ns: time of the last call, if facts are due then."""
    facts: list[Any] = []
    while (next_ns := fleet.next_ns) is not None:
        assert next_ns == now_ns or fleet.advance(next_ns - 1) == []
        assert fleet.next_ns == next_ns
        found = fleet.advance(next_ns)
        assert {fact.now_ns for fact in found} == {next_ns}
        facts += found
    return facts


def times(facts: list[Any], kind: type[Any]) -> list[Any]:
    """(ms, request) of the facts of one kind."""
    return [(fact.now_ns / MS, fact.request_id) for fact in facts if type(fact) is kind]


def blocks(facts: list[Any]) -> list[Any]:
    """(ms, kind, names) of what happened to named blocks."""
    kinds = {BlocksStored: "stored", BlocksRemoved: "removed"}
    return [(fact.now_ns / MS, kinds[type(fact)], fact.block_hashes) for fact in facts if type(fact) in kinds]


def finished(request_id: str, at_ms: float, tokens: int, attempt: int = 0) -> RequestFinished:
    """The fact; tokens: prompt and output."""
    return RequestFinished(round(at_ms * MS), request_id, attempt, Outcome.COMPLETED, tokens)
