"""Whole replays: reading a trace, the core, the engine model. Each run in a fresh process.

    pytest benchmarks/bench_replay.py --benchmark-only --size large
    python benchmarks/bench_replay.py --trace PATH --workers N

The synthetic trace (synthetic.py) by length, which shows whether cost is linear in requests and that memory does not
follow them, and at 100,000 with blocks of 16 tokens instead of the trace's 512: thirty-two times as many names. Any
other trace by the second command, or with --replay=PATH --workers N, as often as one likes, by the first.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import synthetic
from harness import shown, times

CHILD = Path(__file__).with_name("replay_child.py")
TABLE = "Replays; CPU is after start-up, time and x are per event"
FLEET = {"small": 4, "large": 64}
ROUNDS = {"small": 1, "large": 5}
#: Small blocks make a run ten times as long.
ROUNDS_LONG = {"small": 1, "large": 3}
#: And a million requests.
LONG = 1_000_000
#: From the longest trace but one to the longest, memory may grow by so many bytes a request. A row has 120.
GROWN_MAX = 20
#: Requests per second and worker: some ten at a time in each, nothing waits for long.
RATE = 6.25

_spent_s = 0.0
_peaks: dict[int, int] = {}


def child_cpu_s() -> float:
    """CPU seconds of all replays so far: the clock of these benchmarks, whose work happens in other processes."""
    return _spent_s


def run_child(trace: Path, workers: int, block_size: int | None) -> dict[str, object]:
    """Figures of one replay."""
    global _spent_s
    command = [sys.executable, str(CHILD), str(trace), str(workers), *([] if block_size is None else [str(block_size)])]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"exit status {answer.returncode}: {answer.stderr}")
    figures = json.loads(answer.stdout)
    _spent_s += figures["cpu_s"]
    return figures


@pytest.fixture
def replay(benchmark, report, size):
    """Replays a trace in several processes and prints the best as one row."""

    def run(name: str, trace: Path, workers: int, block_size: int | None = None, series: str | None = None) -> int:
        runs = []
        rounds = 1 if name == f"synthetic {LONG:,}" else (ROUNDS if block_size is None else ROUNDS_LONG)[size]
        benchmark.pedantic(lambda: runs.append(run_child(trace, workers, block_size)), rounds=rounds)
        first = runs[0]
        assert all(one["digest"] == first["digest"] and not one["audit"] for one in runs)
        figure = report.note(benchmark, min(one["base_ns"] for one in runs), first["events"], first["digest"])
        best = min(runs, key=lambda one: one["cpu_s"])
        peak = max(one["peak_bytes"] for one in runs)
        benchmark.extra_info |= {"cpu_s": best["cpu_s"], "startup_s": best["startup_s"], "peak_bytes": peak}
        cells = {
            "workers": f"{workers:,}", "requests": f"{first['requests']:,}", "events": f"{first['events']:,}",
            "CPU": f"{best['cpu_s']:.3f} s", "events_per_s": f"{first['events'] / best['cpu_s']:,.0f}",
            "time": shown(figure), "x": times(figure), "peak": f"{peak / 1e6:,.0f} MB",
            "growth": "" if series is None else report.growth(series, first["requests"], figure),
            "digest": first["digest"],
        }
        report.add(TABLE, name, **cells)
        return peak

    return run


@pytest.fixture(scope="session")
def trace(tmp_path_factory, pytestconfig):
    """Paths of synthetic traces by length."""
    rate = RATE * FLEET[pytestconfig.getoption("--size")]
    known: dict[int, Path] = {}

    def path(requests: int) -> Path:
        if requests not in known:
            known[requests] = tmp_path_factory.mktemp("trace") / f"synthetic{requests}.jsonl"
            synthetic.write(known[requests], requests, rate)
        return known[requests]

    return path


@pytest.mark.benchmark(timer=child_cpu_s)
@pytest.mark.sizes("requests", small=(250, 500, 1000), large=(25_000, 100_000, LONG))
def test_synthetic(requests, trace, replay, size):
    peak = replay(f"synthetic {requests:,}", trace(requests), FLEET[size], series="synthetic")
    _peaks[requests] = peak
    if requests == LONG and 100_000 in _peaks:
        assert peak - _peaks[100_000] < GROWN_MAX * (LONG - 100_000), "memory follows the length of the trace"


@pytest.mark.benchmark(timer=child_cpu_s)
@pytest.mark.sizes("requests", small=(1000,), large=(100_000,))
def test_synthetic_in_small_blocks(requests, trace, replay, size):
    replay(f"synthetic {requests:,}, blocks of 16", trace(requests), FLEET[size], block_size=16)


def pytest_generate_tests(metafunc):
    """Each trace that was given; None: none was."""
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", metafunc.config.getoption("--replay") or [None], ids=str)


@pytest.mark.benchmark(timer=child_cpu_s)
def test_given(path, replay, pytestconfig):
    if path is None:
        pytest.skip("no --replay=PATH")
    replay(Path(path).name, Path(path).resolve(), pytestconfig.getoption("--workers"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Replay a trace in several fresh processes and print the best.")
    parser.add_argument("--trace", required=True, metavar="PATH")
    parser.add_argument("--workers", default="16", metavar="N")
    options = parser.parse_args()
    sys.exit(pytest.main([
        f"{__file__}::test_given", "--benchmark-only", "--size", "large",
        f"--replay={options.trace}", "--workers", options.workers]))
