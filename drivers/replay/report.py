"""The report of a replay: first the numbers as plain JSON values, then the same numbers as text, JSON and CSV.

Percentiles are nearest-rank: the smallest value that at least p % of the values do not exceed. Shares and rates are
exact quotients rounded to six decimals, half to even. So nothing depends on the machine but what the caller adds under
`run`.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isqrt
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kvcore.actions import RejectReason

from .quantiles import SHIFTS, Spread
from .result import COLUMNS, ReplayResult, RunOutcome, latencies_ns
from .sessions import sessions_of

PERCENTILES = (50, 90, 99)
LATENCIES = ("queue_wait", "ttft", "itl", "e2e")
CSV_COLUMNS = (
    "id", "file", "row", "class", "arrival_ns", "outcome", "reason", "worker", "wait_ns", "ttft_ns", "itl_ns", "e2e_ns",
    "prompt_tokens", "cached_tokens", "engine_cached_tokens", "output_tokens", "preemptions", "session",
)
_CSV_CHUNK = 8192
#: Rows of the table that are looked at together; a table of up to so many is sorted instead of read several times.
PIECE = 65_536
_ALL = -2

Rows = npt.NDArray[np.int64]


def rounded(share: Fraction | None) -> float | None:
    """A share, rounded to six decimals."""
    return None if share is None else float(round(share, 6))


def ratio(part: int | Fraction, whole: int | Fraction) -> float | None:
    """part / whole, rounded to six decimals; None if whole is 0."""
    return rounded(Fraction(part) / Fraction(whole)) if whole else None


def summarize(result: ReplayResult) -> dict[str, Any]:
    """All numbers of a replay that do not depend on the machine, as JSON values.

    requests: completed, rejected, evicted and, in a closed loop of sessions, abandoned ones; what was read and skipped
        before is for the caller to add.
    classes: one entry per class of the profile that had requests, in its order, then one named None for requests that
        ended before they had a class. total: the same numbers over all requests, without shares.
    sessions: see sessions.py; None if no request has one.
    """
    groups = _groups(result)
    entries = [groups[-1].entry(None)] if -1 in groups else []
    named = [(i, item) for i, item in enumerate(result.profile.classes) if i in groups]
    shares = result.contended_shares()
    total = groups[_ALL].entry(None)
    quanta = sum(item.quantum for _, item in named)
    known = []
    for index, item in named:
        entry = groups[index].entry(item.name)
        served, share, due = shares[index]
        entry |= {
            "quantum": item.quantum,
            "quantum_share": ratio(item.quantum, quanta),
            "served_share": ratio(entry["served_uncached_tokens"], total["served_uncached_tokens"]),
            "charged_tokens": result.stats.classes[index].dispatched_cost_tokens,
            "contended": {"uncached_tokens": served, "share": rounded(share), "quantum_share": rounded(due)},
        }
        known.append(entry)
    ended = {
        "completed": total["completed"], "rejected": sum(total["rejected"].values()), "evicted": total["evicted"]}
    return {
        "requests": ended | ({} if result.abandoned is None else {"abandoned": result.abandoned}),
        "classes": known + entries,
        "total": total,
        "workers": _workers(result),
        "sessions": sessions_of(result.table.blocks(PIECE), [item.name for item in result.profile.classes]),
        "simulated_ns": result.end_ns - result.start_ns,
        "start_ns": result.start_ns,
        "end_ns": result.end_ns,
        "events": result.events,
        "steps": result.steps,
        "ignored_facts": result.ignored,
        "stale_facts": result.stats.stale_events,
        "unknown_class_names": result.stats.unknown_class_names,
        "digest": result.digest,
    }


def _column(rows: Rows, name: str) -> Rows:
    return rows[:, COLUMNS.index(name)]


def _where(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    """Some of the rows; all are not copied."""
    return rows if chosen.all() else rows[chosen]


class _Group:
    """The numbers of some requests, whose rows are added piece by piece."""

    def __init__(self) -> None:
        self._sums: Counter[str] = Counter()
        self._reasons = np.zeros(len(RejectReason) + 1, np.int64)
        self.spreads = {key: Spread(PERCENTILES) for key in LATENCIES}

    def add(self, rows: Rows) -> None:
        """Some more rows."""
        outcomes = _column(rows, "outcome")
        dispatched = _where(rows, _column(rows, "worker") >= 0)
        done = _where(rows, outcomes == RunOutcome.COMPLETED)
        sums = self._sums
        sums["requests"] += len(rows)
        sums["completed"] += len(done)
        sums["evicted"] += int((outcomes == RunOutcome.EVICTED).sum())
        sums["prompt"] += int(_column(rows, "prompt_tokens").sum())
        sums["dispatched_prompt"] += int(_column(dispatched, "prompt_tokens").sum())
        sums["believed"] += int(_column(dispatched, "cached_tokens").sum())
        sums["done_prompt"] += int(_column(done, "prompt_tokens").sum())
        sums["found"] += int(_column(done, "engine_cached_tokens").sum())
        sums["output"] += int(_column(done, "output_tokens").sum())
        sums["preemptions"] += int(_column(done, "preemptions").sum())
        self._reasons += np.bincount(_column(rows, "reason"), minlength=len(RejectReason) + 1)

    def entry(self, name: str | None) -> dict[str, Any]:
        """The numbers, as JSON values."""
        sums = self._sums
        prompt, believed, found = sums["dispatched_prompt"], sums["believed"], sums["found"]
        return {
            "name": name,
            "requests": sums["requests"],
            "completed": sums["completed"],
            "rejected": {reason.name: int(self._reasons[reason]) for reason in RejectReason if self._reasons[reason]},
            "evicted": sums["evicted"],
            "prompt_tokens": sums["prompt"],
            "output_tokens": sums["output"],
            "served_uncached_tokens": prompt - believed,
            "preemptions": sums["preemptions"],
            "prefix_hit": {
                "expected_tokens": believed,
                "expected_rate": ratio(believed, prompt),
                "engine_tokens": found,
                "engine_rate": ratio(found, sums["done_prompt"]),
            },
            "latency_ns": {key: spread.figures() for key, spread in self.spreads.items()},
        }


def _groups(result: ReplayResult) -> dict[int, _Group]:
    """Of each class with requests, of those without one (-1), and of all (_ALL). Memory: one piece of the table."""
    groups = {_ALL: _Group()}
    table, piece = result.table, PIECE
    for rows in table.blocks(piece):
        for index, chosen in _classes(rows):
            groups.setdefault(index, _Group()).add(_members(rows, chosen))
        groups[_ALL].add(rows)
    # Where there is one class, what is said of all is said of it.
    apart = len(groups) > 2
    if len(table) <= piece:
        for index, times in _times(table.rows(), apart):
            for key, values in times.items():
                groups[index].spreads[key].add_all(values[values >= 0])
    else:
        for _ in SHIFTS:
            for rows in table.blocks(piece):
                for index, times in _times(rows, apart):
                    for key, values in times.items():
                        groups[index].spreads[key].add(values[values >= 0])
            for index in groups if apart else (_ALL,):
                for spread in groups[index].spreads.values():
                    spread.turn()
    if not apart:
        for group in groups.values():
            group.spreads = groups[_ALL].spreads
    return groups


def _classes(rows: Rows) -> Iterator[tuple[int, npt.NDArray[np.bool_] | None]]:
    """Each class of some rows, and which of them are of it; None: all."""
    classes = _column(rows, "class_index")
    if not len(rows) or classes.min() == classes.max():
        yield from ((int(index), None) for index in classes[:1])
        return
    for index in np.unique(classes).tolist():
        yield index, classes == index


def _members(values: Rows, chosen: npt.NDArray[np.bool_] | None) -> Rows:
    return values if chosen is None else values[chosen]


def _times(rows: Rows, apart: bool) -> Iterator[tuple[int, dict[str, Rows]]]:
    """Latencies of all rows as _ALL, then, if wanted, those of each class."""
    times = latencies_ns(rows)
    yield _ALL, times
    for index, chosen in _classes(rows) if apart else ():
        yield index, {key: _members(values, chosen) for key, values in times.items()}


def _workers(result: ReplayResult) -> dict[str, Any]:
    """Spread over workers; cv: standard deviation over mean, over the whole fleet."""
    span = result.end_ns - result.start_ns
    requests = [counts["requests"] for counts in result.workers]
    busy = [counts["busy_ns"] for counts in result.workers]
    return {
        "each": [{**counts, "busy_share": ratio(counts["busy_ns"], span)} for counts in result.workers],
        "requests": _variation(requests, 1),
        "busy_share": _variation(busy, span),
    }


def _variation(values: list[int], unit: int) -> dict[str, float | None]:
    total, squares, n = sum(values), sum(value * value for value in values), len(values)
    scale = 10**9
    deviation = isqrt((n * squares - total * total) * scale * scale)  # n * standard deviation, in 1e-9: exact integers
    return {
        "min": ratio(min(values), unit),
        "mean": ratio(total, n * unit),
        "max": ratio(max(values), unit),
        "cv": ratio(deviation, total * scale),
    }


def write_json(report: dict[str, Any], stream: IO[str]) -> None:
    """The report as JSON, keys sorted, so that equal reports are equal bytes."""
    json.dump(report, stream, indent=2, sort_keys=True, allow_nan=False)
    stream.write("\n")


def write_csv(result: ReplayResult, paths: Sequence[str], stream: IO[str]) -> None:
    """One line per request in order of arrival; fields that a request does not have are empty.

    cached_tokens: what the core expected at dispatch; engine_cached_tokens: what the engine found.
    """
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for lines in _csv_lines(result, paths):
        writer.writerows(lines)


def _csv_lines(result: ReplayResult, paths: Sequence[str]) -> Iterator[list[list[object]]]:
    names = [item.name for item in result.profile.classes] + [""]  # class_index -1 is the last
    outcomes = [outcome.name.lower() for outcome in RunOutcome]
    reasons = [""] + [reason.name for reason in RejectReason]
    sessions = result.sessions.names()
    for chunk in result.table.blocks(_CSV_CHUNK):
        columns: dict[str, list[int]] = {name: _column(chunk, name).tolist() for name in COLUMNS}
        times = [[None if value < 0 else value for value in column.tolist()] for column in latencies_ns(chunk).values()]
        files, numbers = columns["file_index"], columns["row"]
        yield [
            list(line) for line in zip(
                [f"r{file}-{row}" for file, row in zip(files, numbers, strict=True)],
                [paths[file] for file in files],
                numbers,
                [names[i] for i in columns["class_index"]],
                columns["arrival_ns"],
                [outcomes[i] for i in columns["outcome"]],
                [reasons[i] for i in columns["reason"]],
                ["" if worker < 0 else worker for worker in columns["worker"]],
                *times,
                columns["prompt_tokens"],
                columns["cached_tokens"],
                columns["engine_cached_tokens"],
                columns["output_tokens"],
                columns["preemptions"],
                [next(sessions) if tag else "" for tag in columns["session"]],
                strict=True,
            )
        ]
