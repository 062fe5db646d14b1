"""Traces that are drawn: the same arguments and seed give the same rows.

Every prompt may begin with blocks that it shares with others of its family; some families are much more popular. Only
Random.random() is used, whose sequence Python promises to keep.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, islice

from ..replay.rows import TraceRow
from ..replay.values import TIME_END_NS

__all__ = ["KINDS", "Shape", "synthetic"]

_MILLISECOND_NS = 1_000_000
#: A bursty trace: mean length of its bursts.
_BURST_S = 10.0
#: Sessions and agents: how long an answer is taken to last, a token; the trace is open-loop.
_TOKEN_S = 0.02
_TURNS_MEAN = 4
_CHILDREN_MAX = 3
_DEPTH_MAX = 2

Draw = Callable[[], float]


@dataclass(frozen=True)
class Shape:
    """What is drawn.

    rate: requests per second, on average; for sessions and agents that of all their requests in the long run.
    prompt_tokens, output_tokens: means of what a request adds of its own, and of its answer.
    families: how many there are; 0: nothing is shared between sessions. shared_blocks: what a family shares.
    burst: how many times the mean rate a burst has (bursty). think_s: mean pause before a turn (sessions).
    """

    requests: int
    rate: float
    prompt_tokens: int = 1000
    output_tokens: int = 200
    families: int = 0
    shared_blocks: int = 2
    burst: float = 4.0
    think_s: float = 10.0
    block_size: int = 512


class _Prompt:
    """A prompt that grows: full blocks keep their names, the one that is not full is named anew each time."""

    def __init__(self, fresh: Iterator[int], block_size: int, names: list[int]) -> None:
        self.tokens = len(names) * block_size
        self._fresh = fresh
        self._size = block_size
        self._full = names

    def grow(self, tokens: int) -> None:
        """So many tokens more."""
        self.tokens += tokens
        self._full = [*self._full, *(next(self._fresh) for _ in range(self.tokens // self._size - len(self._full)))]

    def names(self) -> tuple[int, ...]:
        """Of all its blocks."""
        return (*self._full, next(self._fresh)) if self.tokens % self._size else tuple(self._full)

    def copy(self) -> _Prompt:
        """One that begins as this one does."""
        other = _Prompt(self._fresh, self._size, self._full)
        other.tokens = self.tokens
        return other


class _Maker:
    """The draws of one trace."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.draw: Draw = random.Random(seed).random
        self._fresh = count(shape.families * shape.shared_blocks)

    def length(self, mean: float) -> int:
        """Two exponential stages: seldom tiny, with a tail of some six times the mean."""
        return max(1, round(-mean / 2 * math.log((1.0 - self.draw()) * (1.0 - self.draw()))))

    def pause(self, mean_s: float) -> float:
        """An exponential one."""
        return -mean_s * math.log(1.0 - self.draw())

    def prompt(self) -> _Prompt:
        """The beginning of one: what its family shares."""
        shape, names = self.shape, list[int]()
        if shape.families:
            family = int(shape.families * self.draw() ** 3)
            names = list(range(family * shape.shared_blocks, (family + 1) * shape.shared_blocks))
        return _Prompt(self._fresh, shape.block_size, names)

    def request(self, at_s: float, prompt: _Prompt, session: str | None = None, pause_s: float | None = None
                ) -> TraceRow:
        """A request whose prompt is this one and something of its own. Raises OverflowError beyond the end of time."""
        prompt.grow(self.length(self.shape.prompt_tokens))
        if at_s * 1e9 >= TIME_END_NS:
            raise OverflowError("the trace becomes longer than 2^62 ns (146 years)")
        return TraceRow(
            _whole_ms(at_s), prompt.tokens, self.length(self.shape.output_tokens), prompt.names(), session,
            None if pause_s is None else _whole_ms(pause_s))


def _whole_ms(seconds: float) -> int:
    """Nanoseconds, in whole milliseconds: what files of traces have."""
    return int(seconds * 1000) * _MILLISECOND_NS


def _poisson(make: _Maker) -> Iterator[list[TraceRow]]:
    at_s = 0.0
    while True:
        at_s += make.pause(1 / make.shape.rate)
        yield [make.request(at_s, make.prompt())]


def _bursty(make: _Maker) -> Iterator[list[TraceRow]]:
    """Bursts of `burst` times the rate, and silence between them for the rest of the time."""
    shape = make.shape
    at_s = 0.0
    end_s = make.pause(_BURST_S)
    while True:
        left_s = make.pause(1 / (shape.rate * shape.burst))
        while at_s + left_s > end_s:
            left_s -= end_s - at_s
            at_s = end_s + make.pause(_BURST_S * (shape.burst - 1))
            end_s = at_s + make.pause(_BURST_S)
        at_s += left_s
        yield [make.request(at_s, make.prompt())]


def _sessions(make: _Maker) -> Iterator[list[TraceRow]]:
    """Each turn's prompt is all that was said before and something new."""
    start_s = 0.0
    for number in count():
        start_s += make.pause(_TURNS_MEAN / make.shape.rate)
        prompt, at_s = make.prompt(), start_s
        rows = [make.request(at_s, prompt, f"s{number}")]
        while make.draw() >= 1 / _TURNS_MEAN:
            pause_s = make.pause(make.shape.think_s)
            at_s += rows[-1].output_tokens * _TOKEN_S + pause_s
            prompt.grow(rows[-1].output_tokens)
            rows.append(make.request(at_s, prompt, f"s{number}", pause_s))
        yield rows


def _agents(make: _Maker) -> Iterator[list[TraceRow]]:
    """Trees: a request's answer starts up to three at once, each with all of its prompt and answer before its own.

    Whom a request waits for is told by its place in the tree; _placed makes a row number of it.
    """
    start_s = 0.0
    children = _CHILDREN_MAX / 2
    size = sum(children**depth for depth in range(_DEPTH_MAX + 1))
    for number in count():
        start_s += make.pause(size / make.shape.rate)
        rows: list[TraceRow] = []
        front: list[tuple[float, _Prompt, int, tuple[int, ...]]] = [(start_s, make.prompt(), 0, ())]
        while front:
            at_s, prompt, depth, after = front.pop(0)
            rows.append(replace(make.request(at_s, prompt, f"a{number}", 0.0 if after else None), after=after))
            if depth < _DEPTH_MAX:
                answer = rows[-1].output_tokens
                prompt.grow(answer)
                front += [(at_s + answer * _TOKEN_S, prompt.copy(), depth + 1, (len(rows) - 1,))
                          for _ in range(int((_CHILDREN_MAX + 1) * make.draw()))]
        yield rows


_GENERATORS = {"poisson": _poisson, "bursty": _bursty, "sessions": _sessions, "agents": _agents}
KINDS: tuple[str, ...] = tuple(_GENERATORS)


def synthetic(kind: str, shape: Shape, seed: int) -> Iterator[TraceRow]:
    """The rows of a trace of one of KINDS in order of arrival, the first at 0.

    A shorter trace of the same arguments and seed is the beginning of a longer one.
    Raises OverflowError where a time becomes more than a trace may hold.
    """
    return islice(_placed(_GENERATORS[kind](_Maker(shape, seed))), shape.requests)


def _placed(groups: Iterator[list[TraceRow]]) -> Iterator[TraceRow]:
    """Rows by arrival and then as drawn. Groups begin in order: what comes before a beginning is complete."""
    waiting: list[tuple[int, int, TraceRow, list[int], int]] = []
    drawn = count()
    numbers = count(1)
    origin_ns: int | None = None
    for rows in groups:
        while waiting and waiting[0][0] < rows[0].arrival_ns:
            arrival_ns, _, row, placed, place = heappop(waiting)
            if origin_ns is None:
                origin_ns = arrival_ns
            placed[place] = next(numbers)
            after = None if row.after is None else tuple(placed[other] for other in row.after)
            yield replace(row, arrival_ns=arrival_ns - origin_ns, row=placed[place], after=after)
        placed = [0] * len(rows)
        for place, row in enumerate(rows):
            heappush(waiting, (row.arrival_ns, next(drawn), row, placed, place))
