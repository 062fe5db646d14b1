"""The examples of embedding run as a reader would run them, and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tree import ROOT

PATIENCE_S = 120


def run(name: str) -> list[str]:
    """What the example prints."""
    answer = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)], capture_output=True, text=True, check=False,
        timeout=PATIENCE_S, env=os.environ | {"PYTHONASYNCIODEBUG": "1"})
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout.splitlines()


@pytest.mark.parametrize("name", ["embed_asyncio.py", "embed_plain.py"])
def test_it_leaves_a_ledger_at_rest(name):
    assert run(name)[-1] == "6 completed, ledger at rest"


def test_plain_runs_two_at_a_time():
    lines = run("embed_plain.py")
    assert [line for line in lines if "waits" in line] == [f"r{i} waits" for i in range(2, 6)]
    assert sorted(line.split()[0] for line in lines if "runs" in line) == [f"r{i}" for i in range(6)]


def test_asyncio_answers_everybody_who_stays_though_a_worker_dies():
    lines = run("embed_asyncio.py")
    assert lines[-7:-1] == [f"r{i}: answered by worker 2" for i in range(6)]
    (lost,) = [line.removesuffix("1") for line in lines if line.endswith("goes to worker 1")]
    assert lines.index(f"{lost}1") < lines.index(f"{lost}2")
    assert not any(line.startswith("impatient") for line in lines)
