"""Rows of a trace, changed: a window of its time, another rate, other lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

from kvcore.hashing import chain

from ..replay.mooncake import NAMES_MAX
from ..replay.rows import TraceRow
from ..replay.values import TIME_END_NS, TOKENS_MAX

__all__ = ["cut", "scale"]


def cut(rows: Iterable[TraceRow], from_ns: int, until_ns: int | None) -> Iterator[TraceRow]:
    """The rows that arrive at from_ns or later and before until_ns, their first one moved to 0."""
    origin_ns: int | None = None
    for row in rows:
        if until_ns is not None and row.arrival_ns >= until_ns:
            return
        if row.arrival_ns >= from_ns:
            if origin_ns is None:
                origin_ns = row.arrival_ns
            yield replace(row, arrival_ns=row.arrival_ns - origin_ns)


def scale(
    rows: Iterable[TraceRow], block_size: int, rate: Fraction, prompt: Fraction, output: Fraction
) -> Iterator[TraceRow]:
    """The rows with arrivals `rate` times as fast, pauses of sessions included, and lengths times `prompt`, `output`.

    Times are rounded down to the nanosecond; lengths to the nearest token, half to even, at least 1. The prefixes that
    prompts share grow with the prompts: a block of the new prompt has the name of the old prompt up to where it ends.
    Raises OverflowError, saying of which row, where a result is more than a trace may hold.
    """
    for row in rows:
        arrival_ns = row.arrival_ns // rate
        delay_ns = None if row.delay_ns is None else row.delay_ns // rate
        prompt_tokens = max(1, round(row.prompt_tokens * prompt))
        output_tokens = max(1, round(row.output_tokens * output))
        blocks = -(-prompt_tokens // block_size) if row.block_hashes else 0
        if max(prompt_tokens, output_tokens) > TOKENS_MAX or blocks > NAMES_MAX:
            raise OverflowError(f"row {row.row}: its lengths become more than a trace may hold")
        if max(arrival_ns, delay_ns or 0) >= TIME_END_NS:
            raise OverflowError(f"row {row.row}: its time becomes more than 2^62 ns (146 years)")
        names = row.block_hashes if prompt == 1 else _stretched(row.block_hashes, blocks, prompt)
        yield replace(row, arrival_ns=arrival_ns, delay_ns=delay_ns, prompt_tokens=prompt_tokens,
                      output_tokens=output_tokens, block_hashes=names)


def _stretched(names: tuple[int, ...], blocks: int, by: Fraction) -> tuple[int, ...]:
    """The names of so many blocks. Old names commit to all before them, and the place tells blocks of one apart."""
    last = len(names) - 1
    return tuple(
        chain(names[min(last, -(-(place + 1) * by.denominator // by.numerator) - 1)], place)
        for place in range(blocks)
    )
