"""Levels over time against the plainest sum there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.report.meters import Grid, Meter


@given(st.integers(0, 50), st.integers(0, 300), st.integers(1, 40))
def test_bins_hold_every_instant(start, length, count):
    grid = Grid.over(start, start + length, count)
    assert grid.count <= count
    assert (grid.bin(start), grid.bin(start + length)) == (0, grid.count - 1)
    assert grid.starts() == [start + i * grid.width_ns for i in range(grid.count)]


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 12))
def test_windows_are_bins_taken_together(length, count, windows):
    fine = Grid.over(7, 7 + length, count)
    grid = fine.coarser(windows)
    assert grid.count <= windows
    assert grid.width_ns % fine.width_ns == 0
    assert (grid.bin(7), grid.bin(7 + length)) == (0, grid.count - 1)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), max_size=12), st.integers(1, 9), st.integers(1, 3))
def test_areas_and_peaks(changes, count, parts):
    """Instant by instant: the level that a change leaves stands until the next one."""
    end = 5 + sum(wait for wait, _ in changes)
    grid = Grid.over(5, end, count)
    meter = Meter(grid)
    now, level = 5, 0
    area, peak = [0] * grid.count, [0] * grid.count
    for wait, amount in changes:
        for instant in range(now, now + wait):
            area[grid.bin(instant)] += level
            peak[grid.bin(instant)] = max(peak[grid.bin(instant)], level)
        now += wait
        level += amount
        peak[grid.bin(now)] = max(peak[grid.bin(now)], level)
        meter.add(now, amount)
    meter.pass_time(end)
    assert (meter.area, meter.peak, meter.level) == (area, peak, level)
    assert meter.means(parts) == pytest.approx([value / grid.width_ns / parts for value in area], abs=1e-6)
