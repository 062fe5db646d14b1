"""A sweep on one process and on two: wall time, CPU of all processes together, and how many times as fast two are.

    pytest benchmarks/bench_sweep.py --benchmark-only --size large --replay=AzureLLMInferenceTrace_code.csv
    python benchmarks/bench_sweep.py --trace PATH

Whole commands, start-up and all, in turns: 1, 2, 1, 2. What can be compared on a machine that others use is the CPU:
what two processes take more than one is what parallel work costs; only on a quiet machine does wall time show what it
gives. The small size is a few points of an example.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from harness import BaseLine

ROOT = Path(__file__).resolve().parent.parent
TABLE = "Sweeps; the best of several, in turns"
POLICY = ROOT / "examples" / "policies" / "premium.yaml"
EXAMPLE = ROOT / "examples" / "traces" / "azure_code_sample.csv"
SPACES = {
    "small": {"premium.quantum": [128, 512]},
    "large": {"premium.quantum": [64, 128, 256, 512, 1024, 2048, 4096, 8192],
              "*.prefill_busy_threshold": [512, 1536, 4096, 8192], "fleet.workers": [1, 2]},
}
MORE = {"small": ["--limit", "20"], "large": []}
ROUNDS = {"small": 1, "large": 5}
JOBS = (1, 2)

_spent_s = 0.0


def child_cpu_s() -> float:
    """CPU seconds of all sweeps so far: the clock of this benchmark, whose work happens in other processes."""
    return _spent_s


def sweep(trace: Path, size: str, jobs: int, folder: Path) -> dict[str, float | str]:
    """One command: wall and CPU seconds, its own and those of its workers, and the digest of its table."""
    global _spent_s
    space, table = folder / "space.yaml", folder / "points.csv"
    space.write_text(json.dumps({
        "policy": str(POLICY), "objective": "minimise premium.ttft_p99", "keys": SPACES[size]}), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "kvcore", "sweep", str(space), "--trace", str(trace), "--classes",
               "premium=0.2,regular=0.8", "--jobs", str(jobs), "--csv", str(table), "--quiet", *MORE[size]]
    began, process = time.perf_counter(), subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)     # with what its own children have taken
    wall_s, process.returncode = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}: {' '.join(command)}")
    cpu_s = usage.ru_utime + usage.ru_stime
    _spent_s += cpu_s
    return {"wall_s": wall_s, "cpu_s": cpu_s, "digest": hashlib.blake2b(table.read_bytes(), digest_size=8).hexdigest()}


def in_turns(trace: Path, size: str, rounds: int) -> dict[int, list[dict[str, float | str]]]:
    """Runs by number of processes."""
    runs: dict[int, list[dict[str, float | str]]] = {jobs: [] for jobs in JOBS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for jobs in JOBS:
                runs[jobs].append(sweep(trace, size, jobs, Path(folder)))
    return runs


@pytest.mark.benchmark(timer=child_cpu_s)
def test_one_and_two_processes(benchmark, report, size, pytestconfig):
    trace = Path((pytestconfig.getoption("--replay") or [EXAMPLE])[0]).resolve()
    found = {}
    benchmark.pedantic(lambda: found.update(in_turns(trace, size, ROUNDS[size])), rounds=1)
    digests = {run["digest"] for runs in found.values() for run in runs}
    assert len(digests) == 1, "the number of processes changes the table"
    points = 1
    for values in SPACES[size].values():
        points *= len(values)
    report.note(benchmark, BaseLine().ns(), points, digests.pop())
    best = {jobs: {key: min(run[key] for run in runs) for key in ("wall_s", "cpu_s")} for jobs, runs in found.items()}
    benchmark.extra_info |= {f"{key}_{jobs}": value for jobs, those in best.items() for key, value in those.items()}
    one = best[1]
    for jobs, those in best.items():
        report.add(
            TABLE, f"{trace.name}, {jobs} process{'es' if jobs > 1 else ''}", points=str(points),
            wall=f"{those['wall_s']:.2f} s", times_as_fast=f"{one['wall_s'] / those['wall_s']:.2f}",
            CPU=f"{those['cpu_s']:.2f} s", CPU_over_one=f"{those['cpu_s'] / one['cpu_s']:.3f}",
            digest=benchmark.extra_info["digest"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sweep a trace on one process and on two, in turns.")
    parser.add_argument("--trace", required=True, metavar="PATH")
    sys.exit(pytest.main([
        __file__, "--benchmark-only", "--size", "large", f"--replay={parser.parse_args().trace}"]))
