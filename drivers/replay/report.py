"""The report of a replay: first the numbers as plain JSON values, then the same numbers as text, JSON and CSV.

Percentiles are nearest-rank: the smallest value that at least p % of the values do not exceed. Shares and rates are
exact quotients rounded to six decimals, half to even. So nothing depends on the machine but what the caller adds under
`run`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isqrt
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kvcore.actions import RejectReason

from .result import COLUMNS, ReplayResult, RunOutcome, latencies_ns

PERCENTILES = (50, 90, 99)
LATENCIES = ("queue_wait", "ttft", "itl", "e2e")
CSV_COLUMNS = (
    "id", "file", "row", "class", "arrival_ns", "outcome", "reason", "worker", "wait_ns", "ttft_ns", "itl_ns", "e2e_ns",
    "prompt_tokens", "cached_tokens", "engine_cached_tokens", "output_tokens", "preemptions",
)
_CSV_CHUNK = 8192

Rows = npt.NDArray[np.int64]


def rounded(share: Fraction | None) -> float | None:
    """A share, rounded to six decimals."""
    return None if share is None else float(round(share, 6))


def ratio(part: int | Fraction, whole: int | Fraction) -> float | None:
    """part / whole, rounded to six decimals; None if whole is 0."""
    return rounded(Fraction(part) / Fraction(whole)) if whole else None


def percentile(ordered: Sequence[int] | npt.NDArray[np.int64], percent: int) -> int:
    """Nearest-rank percentile of sorted values, of which there must be one."""
    return int(ordered[max(0, (percent * len(ordered) + 99) // 100 - 1)])


def summarize(result: ReplayResult) -> dict[str, Any]:
    """All numbers of a replay that do not depend on the machine, as JSON values.

    requests: completed, rejected and evicted ones; what was read and skipped before is for the caller to add.
    classes: one entry per class of the profile that had requests, in its order, then one named None for requests that
        ended before they had a class. total: the same numbers over all requests, without shares.
    """
    rows = result.table.rows()
    classes = _column(rows, "class_index")
    outcomes = _column(rows, "outcome")
    entries = [_group(None, rows[classes == -1])] if (classes == -1).any() else []
    named = [(i, item) for i, item in enumerate(result.profile.classes) if (classes == i).any()]
    shares = result.contended_shares()
    total = _group(None, rows)
    quanta = sum(item.quantum for _, item in named)
    known = []
    for index, item in named:
        entry = _group(item.name, rows[classes == index])
        served, share, due = shares[index]
        entry |= {
            "quantum": item.quantum,
            "quantum_share": ratio(item.quantum, quanta),
            "served_share": ratio(entry["served_uncached_tokens"], total["served_uncached_tokens"]),
            "charged_tokens": result.stats.classes[index].dispatched_cost_tokens,
            "contended": {"uncached_tokens": served, "share": rounded(share), "quantum_share": rounded(due)},
        }
        known.append(entry)
    return {
        "requests": {
            "completed": int((outcomes == RunOutcome.COMPLETED).sum()),
            "rejected": int((outcomes == RunOutcome.REJECTED).sum()),
            "evicted": int((outcomes == RunOutcome.EVICTED).sum()),
        },
        "classes": known + entries,
        "total": total,
        "workers": _workers(result),
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


def _group(name: str | None, rows: Rows) -> dict[str, Any]:
    """The numbers of some requests."""
    outcomes = _column(rows, "outcome")
    dispatched = rows[_column(rows, "worker") >= 0]
    prompt = int(_column(dispatched, "prompt_tokens").sum())
    believed = int(_column(dispatched, "cached_tokens").sum())
    done = rows[outcomes == RunOutcome.COMPLETED]
    found = int(_column(done, "engine_cached_tokens").sum())
    rejected = np.bincount(_column(rows, "reason"), minlength=len(RejectReason) + 1)
    times = latencies_ns(rows)
    return {
        "name": name,
        "requests": len(rows),
        "completed": len(done),
        "rejected": {reason.name: int(rejected[reason]) for reason in RejectReason if rejected[reason]},
        "evicted": int((outcomes == RunOutcome.EVICTED).sum()),
        "prompt_tokens": int(_column(rows, "prompt_tokens").sum()),
        "output_tokens": int(_column(done, "output_tokens").sum()),
        "served_uncached_tokens": prompt - believed,
        "preemptions": int(_column(done, "preemptions").sum()),
        "prefix_hit": {
            "expected_tokens": believed,
            "expected_rate": ratio(believed, prompt),
            "engine_tokens": found,
            "engine_rate": ratio(found, int(_column(done, "prompt_tokens").sum())),
        },
        "latency_ns": {key: _spread(values) for key, values in times.items()},
    }


def _spread(values: Rows) -> dict[str, int | None]:
    ordered = np.sort(values[values >= 0])
    spread: dict[str, int | None] = {"count": len(ordered)}
    for percent in PERCENTILES:
        spread[f"p{percent}"] = percentile(ordered, percent) if len(ordered) else None
    spread["max"] = int(ordered[-1]) if len(ordered) else None
    return spread


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
    rows = result.table.rows()
    for start in range(0, len(rows), _CSV_CHUNK):
        chunk = rows[start : start + _CSV_CHUNK]
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
                strict=True,
            )
        ]
