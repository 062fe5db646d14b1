"""What the gate watches (`--gate FILE`): pieces of work whose instructions and ratios, and counters, must not grow.

Without the option they are timed like everything else. With it, their instructions are counted by callgrind and their
ratios to a yardstick measured when all benchmarks have run (gate.py).
"""

from __future__ import annotations

import pytest
from gate_works import WORKS, counters, digest_of
from harness import digest, shown, times

pytest.importorskip("Cython")

TABLE = "What the gate watches, per item"
COUNTS = "Counters that the gate watches"


@pytest.mark.parametrize("name", WORKS)
def test_work(name, benchmark, report, gate, size):
    work = WORKS[name]
    run = work.prepare()
    found = digest_of(name)
    figure = report.measure(benchmark, lambda: (), run, work.items, found, size)
    report.add(TABLE, name, time=shown(figure), x=times(figure), digest=found)
    gate.want(name, work.ratio)


def test_counters(benchmark, report, gate, size):
    found = counters()
    report.measure(benchmark, lambda: (), counters, len(found), digest(sorted(found.items())), size)
    for name, value in found.items():
        report.add(COUNTS, name, count=f"{value:,}")
    gate.counted(found)
