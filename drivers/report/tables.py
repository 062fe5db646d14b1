"""The series of a report as tidy tables: one observation a row, times in nanoseconds, lengths in tokens.

Figures are drawn from these tables and from nothing else, so what is written as CSV is what is shown.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kvcore import RejectReason

from ..replay.report import LATENCIES, ratio, rounded
from ..replay.result import COLUMNS, ReplayResult, RunOutcome, latencies_ns, shares_of
from .meters import Grid
from .watch import Watch

BINS = 240
#: Shares and hit rates are of what was dispatched in a window; in a bin that may be one request.
WINDOWS = 40
SLOWEST = 10
#: Upper edges of a distribution: 1 us to 11.6 days, 40 a decade, whole nanoseconds.
EDGES_NS: npt.NDArray[np.int64] = np.round(10.0 ** (3 + np.arange(481) / 40)).astype(np.int64)
#: What requests without a class are called.
NO_CLASS = "(no class)"

Rows = npt.NDArray[np.int64]
Value = str | int | float | None
#: Requests: position in the trace, and their columns and latencies.
Slow = list[tuple[int, dict[str, int]]]


@dataclass(frozen=True)
class Table:
    """A table with a name. rows: as columns."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        at = self.columns.index(name)
        return [row[at] for row in self.rows]

    def where(self, name: str, value: Value) -> Table:
        """The rows that have this value."""
        at = self.columns.index(name)
        return Table(self.name, self.columns, [row for row in self.rows if row[at] == value])

    def write(self, stream: IO[str]) -> None:
        """As CSV."""
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)


def _column(rows: Rows, name: str) -> Rows:
    return rows[:, COLUMNS.index(name)]


def slowest(result: ReplayResult, count: int = SLOWEST) -> Slow:
    """The completed requests with the longest time to first token, longest first: (position, columns and latencies).

    Equal ones in order of arrival.
    """
    kept: list[tuple[int, int, dict[str, int]]] = []
    first = 0
    for piece in result.table.blocks():
        times = latencies_ns(piece)
        ttft = np.where(_column(piece, "outcome") == RunOutcome.COMPLETED, times["ttft"], -1)
        for at in np.argsort(-ttft, kind="stable")[:count].tolist():
            if ttft[at] >= 0:
                row = dict(zip(COLUMNS, piece[at].tolist(), strict=True))
                row |= {key: int(values[at]) for key, values in times.items()}
                kept.append((-int(ttft[at]), first + at, row))
        kept = sorted(kept, key=lambda item: item[:2])[:count]
        first += len(piece)
    return [(position, row) for _, position, row in kept]


def request_id(row: dict[str, int]) -> str:
    """The id that the replay gave a request."""
    return f"r{row['file_index']}-{row['row']}"


def looks(slow: Slow) -> list[tuple[str, int]]:
    """When to look at slow requests: half-way through their waits."""
    return [(request_id(row), row["arrival_ns"] + row["wait_ns"] // 2) for _, row in slow]


class _Sums:
    """What the table of requests gives, added piece by piece."""

    def __init__(self, grid: Grid, classes: int) -> None:
        self.grid = grid
        #: By class, the last row for those without one: how many latencies lie at each edge, or below the first.
        self.below = {key: np.zeros((classes + 1, len(EDGES_NS) + 1), np.int64) for key in LATENCIES}
        self.served = np.zeros((classes, grid.count), np.int64)
        self.hits = np.zeros((5, grid.count), np.int64)
        self.rejects = np.zeros((classes + 1, len(RejectReason) + 1), np.int64)

    def add(self, rows: Rows, reachable: Rows) -> None:
        """Some more rows, and what caches could have given them."""
        classes = _column(rows, "class_index")
        for key, values in latencies_ns(rows).items():
            known = values >= 0
            np.add.at(self.below[key], (classes[known], np.searchsorted(EDGES_NS, values[known])), 1)
        np.add.at(self.rejects, (classes, _column(rows, "reason")), 1)
        ran = _column(rows, "worker") >= 0
        self._dispatched(rows[ran], reachable[ran])

    def _dispatched(self, rows: Rows, reachable: Rows) -> None:
        bins = (_column(rows, "arrival_ns") + _column(rows, "wait_ns") - self.grid.start_ns) // self.grid.width_ns
        prompt, cached = _column(rows, "prompt_tokens"), _column(rows, "cached_tokens")
        np.add.at(self.served, (_column(rows, "class_index"), bins), prompt - cached)
        done = _column(rows, "outcome") == RunOutcome.COMPLETED
        found = _column(rows, "engine_cached_tokens")
        lost = np.maximum(reachable - found, 0)
        for at, values in enumerate((prompt, cached, found, reachable, lost)):
            np.add.at(self.hits[at], bins[done], values[done])


def gather(result: ReplayResult, watch: Watch, slow: Slow) -> dict[str, Table]:
    """All tables by name. watch: of the second run, which has ended. slow: of the first."""
    profile, grid = result.profile, watch.grid
    names = [item.name for item in profile.classes]
    sums = _Sums(grid, len(names))
    reachable = np.frombuffer(watch.reachable, np.int64) if watch.reachable else np.empty(0, np.int64)
    first = 0
    for piece in result.table.blocks():
        sums.add(piece, reachable[first : first + len(piece)])
        first += len(piece)
    tables = [
        Table("distributions", ("class", "latency", "le_ns", "requests", "share"), list(_distributions(sums, names))),
        Table("shares", ("start_ns", "class", "uncached_tokens", "share", "quantum_share", "contended_tokens",
                         "contended_share", "due_share"), list(_shares(result, watch, sums))),
        Table("queue", ("start_ns", "class", "requests_mean", "requests_max", "tokens_mean", "tokens_max"),
              list(_queues(watch, names))),
        Table("workers", ("start_ns", "row", "first_worker", "workers", "running_mean", "prefill_tokens_mean"),
              list(_workers(watch))),
        Table("hits", ("start_ns", "prompt_tokens", "expected_tokens", "achieved_tokens", "reachable_tokens",
                       "lost_tokens"), list(_hits(watch, sums))),
        Table("rejects", ("class", "reason", "requests"), list(_rejects(sums, names))),
        Table("slowest", ("id", "class", "arrival_ns", "queue_wait_ns", "ttft_ns", "itl_ns", "e2e_ns",
                          "prompt_tokens", "engine_cached_tokens", "reachable_tokens", "output_tokens", "worker",
                          "preemptions"), list(_slowest(slow, watch, names))),
    ]
    return {table.name: table for table in tables}


def _distributions(sums: _Sums, names: list[str]) -> Iterator[tuple[Value, ...]]:
    """Per class and latency the share of requests up to each edge: from the last with none to the first with all."""
    for index, name in enumerate([*names, NO_CLASS]):
        for key in LATENCIES:
            below = np.cumsum(sums.below[key][index])
            total = int(below[-1])
            if not total:
                continue
            first = max(0, int(np.searchsorted(below, 1)) - 1)
            last = min(int(np.searchsorted(below, total)), len(EDGES_NS) - 1)
            for at in range(first, last + 1):
                yield name, key, int(EDGES_NS[at]), int(below[at]), ratio(int(below[at]), total)


def _shares(result: ReplayResult, watch: Watch, sums: _Sums) -> Iterator[tuple[Value, ...]]:
    """Per window and class. quantum_share: were all classes waiting; due_share: of those that were."""
    profile, fine = result.profile, watch.grid
    grid = fine.coarser(WINDOWS)
    factor = grid.width_ns // fine.width_ns
    quanta = sum(item.quantum for item in profile.classes)
    for window, start_ns in enumerate(grid.starts()):
        bins = slice(window * factor, (window + 1) * factor)
        served = [int(tokens) for tokens in sums.served[:, bins].sum(axis=1)]
        contended: dict[int, list[int]] = {}
        for part in watch.contended[bins]:
            for waiting, tokens in part.items():
                known = contended.get(waiting, [0] * len(served))
                contended[waiting] = [a + b for a, b in zip(known, tokens, strict=True)]
        for index, (waited, share, due) in enumerate(shares_of(contended, profile)):
            item = profile.classes[index]
            yield (start_ns, item.name, served[index], ratio(served[index], sum(served)), ratio(item.quantum, quanta),
                   waited, rounded(share), rounded(due))


def _queues(watch: Watch, names: list[str]) -> Iterator[tuple[Value, ...]]:
    starts = watch.grid.starts()
    for index, name in enumerate(names):
        requests, tokens = watch.queued[index], watch.queued_tokens[index]
        columns = (requests.means(), requests.peak, tokens.means(), tokens.peak)
        for start_ns, *values in zip(starts, *columns, strict=True):
            yield start_ns, name, *values


def _workers(watch: Watch) -> Iterator[tuple[Value, ...]]:
    """Per row of the heat maps, the mean over its workers and the bin's time."""
    starts = watch.grid.starts()
    for row, size in enumerate(watch.row_sizes):
        columns = (watch.running[row].means(size), watch.prefill[row].means(size))
        for start_ns, running, prefill in zip(starts, *columns, strict=True):
            yield start_ns, row, row * watch.workers_per_row, size, running, prefill


def _hits(watch: Watch, sums: _Sums) -> Iterator[tuple[Value, ...]]:
    """Of completed requests, per window of their dispatch; nothing where no content of a prompt is known."""
    if not watch.named:
        return
    grid = watch.grid.coarser(WINDOWS)
    factor = grid.width_ns // watch.grid.width_ns
    for window, start_ns in enumerate(grid.starts()):
        yield start_ns, *sums.hits[:, window * factor : (window + 1) * factor].sum(axis=1).tolist()


def _rejects(sums: _Sums, names: list[str]) -> Iterator[tuple[Value, ...]]:
    for index, name in enumerate([*names, NO_CLASS]):
        for reason in RejectReason:
            count = int(sums.rejects[index, reason])
            if count:
                yield name, reason.name, count


def _slowest(slow: Slow, watch: Watch, names: list[str]) -> Iterator[tuple[Value, ...]]:
    for position, row in slow:
        yield (request_id(row), names[row["class_index"]], row["arrival_ns"], row["queue_wait"], row["ttft"],
               None if row["itl"] < 0 else row["itl"], row["e2e"], row["prompt_tokens"], row["engine_cached_tokens"],
               watch.reachable[position] if watch.named else None, row["output_tokens"], row["worker"],
               row["preemptions"])
