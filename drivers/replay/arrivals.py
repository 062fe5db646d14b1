"""When the next row of a trace arrives: at its own time, or as soon as another request has ended.

OpenLoop, ClosedLoop and, in turns.py, SessionLoop have the same members: next_ns, take(), ended(), and follow, which is
told of each request that ends, or None. OpenLoop over a TraceStream is compiled (_open) where nobody looks on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction

from kvcore.errors import InvalidTrace

from .rows import TraceRow
from .traces import line_of

NEVER_NS = 1 << 62  # later than any time that the core accepts


class FittingRows:
    """Rows that some worker can hold. unfit: how many others were left out.

    kv_tokens: what the KV cache of a worker holds. paths: names of the files, for error texts.
    left_out: told of each of those.
    Raises while iterating: InvalidTrace for a row that fits no worker, unless skip_unfit.
    """

    left_out: Callable[[TraceRow], None] | None = None

    def __init__(self, rows: Iterable[TraceRow], kv_tokens: int, paths: Sequence[str], skip_unfit: bool) -> None:
        self._rows, self._kv_tokens, self._paths, self._skip = rows, kv_tokens, paths, skip_unfit
        self.unfit = 0

    def __iter__(self) -> Iterator[TraceRow]:
        tokens_max = self._kv_tokens  # ceil(tokens / block_size) <= kv_blocks iff tokens <= kv_blocks * block_size
        for row in self._rows:
            if row.prompt_tokens + row.output_tokens <= tokens_max:
                yield row
            elif self._skip:
                self.unfit += 1
                if self.left_out is not None:
                    self.left_out(row)
            else:
                raise unfit_row(row, tokens_max, self._paths)


def unfit_row(row: TraceRow, kv_tokens: int, paths: Sequence[str]) -> InvalidTrace:
    """What is said of a row that fits no worker."""
    path = paths[row.file_index] if paths else f"file {row.file_index}"
    tokens = row.prompt_tokens + row.output_tokens
    reason = f"{tokens} tokens of prompt and output never fit a KV cache of {kv_tokens}"
    line = line_of(path, row.row) if paths else None
    return InvalidTrace(path, line, reason if line is not None else f"row {row.row}: {reason}")


class OpenLoop:
    """Arrivals at the times of the trace. next_ns: when the next one is due."""

    follow = None

    def __init__(self, rows: Iterable[TraceRow], ratio: Fraction) -> None:
        self._rows = iter(rows)
        self._ratio = ratio
        self._row: TraceRow | None = None
        self.next_ns = NEVER_NS
        self._read()

    def _read(self) -> None:
        self._row = row = next(self._rows, None)
        if row is None:
            self.next_ns = NEVER_NS
            return
        self.next_ns = self.due_ns(row.arrival_ns, self._ratio)

    @staticmethod
    def due_ns(arrival_ns: int, ratio: Fraction) -> int:
        """A time of the trace divided by ratio. Raises: OverflowError."""
        due_ns = arrival_ns * ratio.denominator // ratio.numerator
        if due_ns >= NEVER_NS:
            raise OverflowError("virtual time beyond 2^62 ns")
        return due_ns

    def take(self) -> TraceRow:
        """The row that is due; the next one is read ahead."""
        row = self._row
        assert row is not None
        self._read()
        return row

    def ended(self, requests: int, now_ns: int) -> None:
        """Requests have ended: of no interest here."""


class ClosedLoop:
    """Arrivals that keep a fixed number of requests in flight."""

    follow = None

    def __init__(self, rows: Iterable[TraceRow], concurrency: int) -> None:
        self._rows = iter(rows)
        self._free = concurrency
        self._row = next(self._rows, None)
        self.next_ns = NEVER_NS if self._row is None else 0

    def take(self) -> TraceRow:
        """The row that is due; the next one is due at once while fewer than N are in flight."""
        row = self._row
        assert row is not None
        self._row = next(self._rows, None)
        self._free -= 1
        if self._row is None or self._free == 0:
            self.next_ns = NEVER_NS
        return row

    def ended(self, requests: int, now_ns: int) -> None:
        """Requests have ended: as many rows may follow now."""
        self._free += requests
        if self._row is not None and self._free > 0:
            self.next_ns = now_ns
