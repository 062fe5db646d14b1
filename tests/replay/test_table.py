"""The table of a replay: chunks that move to a file, and figures that are read off it piece by piece."""

from __future__ import annotations

import random

import numpy as np
import pytest
from kvcore.drivers.replay import report
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.quantiles import SHIFTS, Spread, rank
from kvcore.drivers.replay.result import COLUMNS, RequestTable
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import TraceRow

from kvcore.config import SchedulerConfig

CHUNK = 4_096


def filled(count: int, kept: int, open_rows: frozenset[int] = frozenset()) -> RequestTable:
    """A table of rows that are all sealed but some; row i holds i and values that follow from it."""
    made = RequestTable(kept)
    for i in range(count):
        more = {"outcome": 1, "finish_ns": 7 * i, "preemptions": -i}
        assert made.add(i % 3, i + 1, 5 * i, 10, 2, None if i in open_rows else more) == i
    return made


@pytest.mark.parametrize("count", [0, 1, CHUNK, 3 * CHUNK, 5 * CHUNK + 7])
def test_rows_are_the_same_wherever_they_lie(count):
    near, far = filled(count, 16), filled(count, 0)
    assert near.spilled == 0
    assert far.spilled == count // CHUNK * CHUNK
    assert len(far) == count
    assert np.array_equal(near.rows(), far.rows())
    for name in COLUMNS:
        assert far.column(name).tolist() == near.rows()[:, COLUMNS.index(name)].tolist()
    pieces = list(far.blocks(2 * CHUNK))
    assert [len(piece) for piece in pieces[:-1]] == [2 * CHUNK] * (len(pieces) - 1)
    assert sum(len(piece) for piece in pieces) == count
    assert far.column("preemptions").tolist() == [-i for i in range(count)]


def test_a_chunk_stays_as_long_as_one_of_its_rows_lives():
    made = filled(4 * CHUNK, 0, frozenset([CHUNK + 5]))
    assert made.spilled == 3 * CHUNK
    assert made.rows()[CHUNK + 5, COLUMNS.index("finish_ns")] == -1


def test_what_stays_in_memory_does_not_depend_on_the_length(monkeypatch):
    """A replay of many requests, few at a time: all but some chunks leave, and the report is that of the whole."""
    some = [TraceRow(i * 10**6, 100, 2, row=i + 1) for i in range(20 * CHUNK)]
    result = simulate(some, SchedulerConfig(), PRESETS["mock"], 40)
    assert len(result.table) - result.table.spilled <= 17 * CHUNK
    assert result.table.column("row").tolist() == list(range(1, len(some) + 1))
    whole = report.summarize(result)
    monkeypatch.setattr(report, "PIECE", len(some))
    assert report.summarize(result) == whole


def test_figures_by_pieces_are_those_of_all_values():
    draw = random.Random(5)
    for size in (0, 1, 2, 100, 5_000):
        for top in (1, 3, 1 << 16, 1 << 20, (1 << 63) - 1):
            values = np.array([draw.randrange(top) for _ in range(size)], np.int64)
            whole, pieces = Spread((1, 50, 90, 99, 100)), Spread((1, 50, 90, 99, 100))
            whole.add_all(values)
            for _ in SHIFTS:
                for start in range(0, size, 777):
                    pieces.add(values[start:start + 777])
                pieces.turn()
            assert pieces.figures() == whole.figures()
            ordered = sorted(values.tolist())
            assert whole.figures()["p50"] == (ordered[rank(50, size)] if size else None)
            assert whole.figures()["max"] == (ordered[-1] if size else None)
