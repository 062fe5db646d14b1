"""Four ways to use a scheduler, in process on the modelled fleet, each alone and with one thing changed.

    pytest benchmarks/bench_modes.py --benchmark-only --size large

queueing off     2,048 workers, no busy threshold: every request goes at once
queueing on      16 workers and more than 1,300 requests that wait
mixed classes    16 workers; one class that never waits, two that do
agent sessions   64 workers, 6,144 sessions at once, three turns each, prompts that grow

`output` tells the core of every output block, without it none is told. `leave` cancels half of all requests, while
twice as many come per second. Each run is a process of its own, which fails unless every worker was used, every request
is accounted for, the mode was as full as it says, and the ledger is empty in the end. A change is measured in pairs,
once without and with it, once the other way round: whatever differs less than the two runs of one kind differ, or
differs one way in one order and another way in the other, is called inconclusive. (The small size runs each kind once,
to see that it runs, and compares nothing.)

The first table: "per s" and "CPU" are of the whole run, core, fleet and callers together, per completed request; "core"
and the steps with arrivals, per arrival, are of the core alone, stepped once more through the same events. TTFT and the
time per token after the first are in model time: the same on every machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import shown
from modes_world import SIZES

CHILD = Path(__file__).with_name("modes_child.py")
TABLE = "Modes; CPU, core and per s are per completed request"
SHARED = "What a change costs the core, per completed request"
MODES = tuple(SIZES["large"])
CHANGES = ("output", "leave")

Figures = dict[str, Any]

_spent_s = 0.0
_seen: dict[tuple[str, str], list[Figures]] = {}


def core_cpu_s() -> float:
    """CPU seconds of all cores so far: the clock of these benchmarks, whose work happens in other processes."""
    return _spent_s


def run_child(size: str, mode: str, change: str) -> Figures:
    """One run in a fresh process."""
    global _spent_s
    answer = subprocess.run(
        [sys.executable, str(CHILD), size, mode, change], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{mode}, {change}: exit status {answer.returncode}: {answer.stderr}")
    figures: Figures = json.loads(answer.stdout)
    _spent_s += figures["core_ns"] / 1e9
    _seen.setdefault((mode, change), []).append(figures)
    return figures


def each(figures: Figures) -> float:
    """Nanoseconds of the core per completed request."""
    return float(figures["core_ns"]) / int(figures["completed"])


def verdict(first: float, second: float, spread: float) -> str:
    """What two differences, one from each order, and the spread of equal runs allow to say."""
    if (first > 0) != (second > 0):
        return "inconclusive: the orders disagree"
    if min(abs(first), abs(second)) <= spread:
        return "inconclusive: no more than equal runs differ"
    return "dearer" if first > 0 else "cheaper"


def ms(value: int) -> str:
    """Nanoseconds of model time as milliseconds."""
    return f"{value / 1e6:,.1f} ms"


def describe(report, size: str, mode: str, change: str) -> None:
    """The row of a mode: the best of all its runs so far."""
    runs = _seen[mode, change]
    best = min(runs, key=each)
    whole = min(runs, key=lambda run: run["cpu_s"])
    name = mode if change == "none" else f"{mode}, {change}"
    cells = {
        "workers": f"{SIZES[size][mode].workers:,}", "asked": f"{best['asked']:,}",
        "completed": f"{best['completed']:,}", "cancelled": f"{best['cancelled']:,}",
        "most_waiting": f"{best['waiting_peak']:,}", "most_live": f"{best['live_peak']:,}",
        "per_s": f"{whole['completed'] / min(run['wall_s'] for run in runs):,.0f}",
        "CPU": f"{whole['cpu_s'] / whole['completed'] * 1e6:,.1f} us", "core": f"{each(best) / 1e3:,.2f} us",
        "arrival": f"{min(run['arrival_p50_ns'] for run in runs) / 1e3:,.2f} us",
        "arrival_p99": f"{min(run['arrival_p99_ns'] for run in runs) / 1e3:,.1f} us",
        "TTFT_p95": ms(best["ttft_p95_ns"]), "token_p95": ms(best["after_first_p95_ns"]), "digest": best["digest"],
    }
    report.add(TABLE, name, **cells)


@pytest.mark.benchmark(timer=core_cpu_s)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", MODES)
def test_pair(mode, change, benchmark, report, size):
    order = ("none", change, change, "none")
    if size == "small":
        order = tuple(what for what in ("none", change) if (mode, what) not in _seen)
    runs: list[Figures] = []
    benchmark.pedantic(lambda: runs.extend(run_child(size, mode, what) for what in order), rounds=1)
    for what in ("none", change):
        assert len({run["digest"] for run in _seen[mode, what]}) == 1, "equal runs differ"
    found = [_seen[mode, what][0]["digest"] for what in ("none", change)]
    assert found[0] != found[1], "the change changes nothing"
    figure = report.note(
        benchmark, min(run["base_ns"] for run in runs), sum(run["events"] for run in runs), " ".join(found))
    for what in ("none", change):
        describe(report, size, mode, what)
    if size == "small":
        report.add(SHARED, f"{mode}, {change}", verdict="not compared: small")
        return
    before, with_it, with_it_first, after = runs
    first, second = each(with_it) / each(before) - 1, each(with_it_first) / each(after) - 1
    spread = max(abs(each(before) / each(after) - 1), abs(each(with_it) / each(with_it_first) - 1))
    report.add(
        SHARED, f"{mode}, {change}", without=f"{min(each(before), each(after)) / 1e3:,.2f} us",
        with_it=f"{min(each(with_it), each(with_it_first)) / 1e3:,.2f} us", per_event=shown(figure),
        then=f"{100 * first:+.1f} %", other_order=f"{100 * second:+.1f} %", equal_runs=f"{100 * spread:.1f} %",
        verdict=verdict(first, second, spread))
