"""Sessions of a replay: their names beside the table, and how fairly they were served.

A session is all rows of one file with one session_id, sub-agents included. Its figures are about its requests that have
arrived. Fairness is told in two ways that need no scale of their own: the slowdown of a session, which is the time that
its requests spent in the system over the part of it that they did not wait in the queue (1: never waited); and the
index of Jain, Chiu and Hawe (DEC-TR-301, 1984) of the rates at which sessions were served, (sum x)^2 / (n * sum x^2):
1 if all are equal, 1/n if one has everything. A session's rate is its tokens, prompts that were not cached and answers,
over the time that its requests spent in the system; so pauses between its turns count for nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .quantiles import Spread
from .result import COLUMNS, RunOutcome, latencies_ns
from .spool import Spool

PERCENTILES = (50, 90, 99)
#: Names of sessions that stay in memory.
_MEMORY_BYTES = 1 << 20
_READ_BYTES = 1 << 16
#: Sessions whose tags need not be worked out again.
_RECENT_MAX = 4096
#: Rates are counted in tokens per 10^15 ns, slowdowns in millionths: whole numbers add up the same everywhere.
_RATE_SCALE = 10**15
_SLOWDOWN_SCALE = 10**6

Rows = npt.NDArray[np.int64]


class SessionNames:
    """Tags of sessions for the table, and their names in order of arrival, on disk when they are many.

    Memory: what does not depend on the length of the trace.
    """

    def __init__(self) -> None:
        self._names = Spool(_MEMORY_BYTES)
        self._recent: dict[tuple[int, str], tuple[int, bytes]] = {}

    def told(self, file_index: int, session_id: str) -> int:
        """Note the session of a request that has arrived, and return its tag: 1 .. 2^63-1."""
        known = self._recent.get((file_index, session_id))
        if known is None:
            digest = hashlib.blake2b(f"{file_index}:{session_id}".encode(), digest_size=8).digest()
            known = (max(1, int.from_bytes(digest, "little") >> 1), json.dumps(session_id).encode() + b"\n")
            if len(self._recent) == _RECENT_MAX:
                self._recent.clear()
            self._recent[file_index, session_id] = known
        self._names.append(known[1])
        return known[0]

    def names(self) -> Iterator[str]:
        """session_id of each request that has one, in order of the table."""
        cut = b""
        for place in range(0, self._names.end, _READ_BYTES):
            *lines, cut = (cut + self._names.read(place, _READ_BYTES)).split(b"\n")
            for line in lines:
                yield json.loads(line)


#: What is added up of a session: requests, completed ones, tokens served, queue waits and how many there are, times in
#: the system and, of the same requests, times in the queue; then its first arrival, its last end, and its class.
_SUMS = ("requests", "completed", "tokens", "wait_ns", "waited", "system_ns", "queued_ns")
_WIDTH = len(_SUMS) + 3
_FIRST, _LAST, _CLASS = len(_SUMS), len(_SUMS) + 1, len(_SUMS) + 2


@dataclass(frozen=True)
class _Sessions:
    """Tags in ascending order, and of each a row of _WIDTH numbers."""

    tags: Rows
    sums: Rows

    def merged(self, other: _Sessions) -> _Sessions:
        """Both together; the class is that of the first request."""
        tags, place = np.unique(np.concatenate((self.tags, other.tags)), return_inverse=True)
        rows = np.concatenate((self.sums, other.sums))
        sums = np.zeros((len(tags), _WIDTH), np.int64)
        sums[:, _FIRST], sums[:, _LAST] = np.iinfo(np.int64).max, -1
        np.add.at(sums[:, :_FIRST], place, rows[:, :_FIRST])
        np.minimum.at(sums[:, _FIRST], place, rows[:, _FIRST])
        np.maximum.at(sums[:, _LAST], place, rows[:, _LAST])
        sums[place[::-1], _CLASS] = rows[::-1, _CLASS]  # the first of equals is written last
        return _Sessions(tags, sums)


def sessions_of(pieces: Iterator[Rows], names: list[str]) -> dict[str, Any] | None:
    """The figures of the sessions of a table, read piece by piece; None if no request has one.

    names: of the classes. Memory: 88 bytes a session.
    """
    found = _Sessions(np.empty(0, np.int64), np.empty((0, _WIDTH), np.int64))
    for rows in pieces:
        rows = rows[_column(rows, "session") > 0]
        if len(rows):
            found = found.merged(_each(rows))
    if not len(found.tags):
        return None
    classes = np.unique(found.sums[:, _CLASS]).tolist()
    return _figures(found.sums) | {
        "classes": [
            {"name": None if index < 0 else names[index]} | _figures(found.sums[found.sums[:, _CLASS] == index])
            for index in sorted(classes, key=lambda index: (index < 0, index))
        ],
    }


def _column(rows: Rows, name: str) -> Rows:
    return rows[:, COLUMNS.index(name)]


def _each(rows: Rows) -> _Sessions:
    """One entry for each request."""
    done = _column(rows, "outcome") == RunOutcome.COMPLETED
    times = latencies_ns(rows)
    wait, system = times["queue_wait"], times["e2e"]
    sums = np.zeros((len(rows), _WIDTH), np.int64)
    served = _column(rows, "prompt_tokens") - _column(rows, "cached_tokens") + _column(rows, "output_tokens")
    columns = (1, done, np.where(done, served, 0), np.where(wait >= 0, wait, 0), wait >= 0, np.where(done, system, 0),
               np.where(done, wait, 0))
    for place, column in enumerate(columns):
        sums[:, place] = column
    arrivals = _column(rows, "arrival_ns")
    sums[:, _FIRST], sums[:, _LAST] = arrivals, np.maximum(arrivals, _column(rows, "finish_ns"))
    sums[:, _CLASS] = _column(rows, "class_index")
    return _Sessions(_column(rows, "session"), sums)


def _figures(sums: Rows) -> dict[str, Any]:
    """What the report says of some sessions."""
    requests, completed, tokens, wait, waited, system, queued = (sums[:, place].tolist() for place in range(_FIRST))
    lasted = sums[:, _LAST] - sums[:, _FIRST]
    served = [place for place, time in enumerate(system) if time > 0]
    rates = [tokens[place] * _RATE_SCALE // system[place] for place in served]
    slowed = [_SLOWDOWN_SCALE * system[place] // max(1, system[place] - queued[place]) for place in served]
    means = [total // count for total, count in zip(wait, waited, strict=True) if count]
    slowdown = _spread(slowed)
    return {
        "sessions": len(requests),
        "completed": sum(all_ == done for all_, done in zip(requests, completed, strict=True)),
        "requests": _spread(requests),
        "duration_ns": _spread(lasted.tolist()),
        "mean_queue_wait_ns": _spread(means),
        "slowdown": {
            key: value if key == "count" or value is None else value / _SLOWDOWN_SCALE
            for key, value in slowdown.items()},
        "jain_index": _jain(rates),
    }


def _spread(values: list[int]) -> dict[str, int | None]:
    spread = Spread(PERCENTILES)
    spread.add_all(np.array(values, dtype=np.int64))
    return spread.figures()


def _jain(rates: list[int]) -> float | None:
    """Jain's index, rounded to six decimals; None where there is no rate above 0."""
    squares = sum(rate * rate for rate in rates)
    return float(round(Fraction(sum(rates) ** 2, len(rates) * squares), 6)) if squares else None
