"""The gate, for real: a base line is recorded, the same build passes, and one that works 5 % more is refused.

Instructions are counted, not timed: they are the same on a machine that is busy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from tree import ROOT

WORK = "index, block stored and removed"
FIGURE = f"instructions: {WORK}"

needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None and not os.environ.get("CI"), reason="instructions are counted by valgrind")


def gate(folder, *options, planted=False):
    """Run the gate over one piece of work: exit status and output."""
    path = [str(ROOT / "tests" / "planted")] if planted else []
    path += [item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", str(ROOT / "benchmarks" / "bench_gate.py"), "--benchmark-only", "-k", "index",
         "--gate", str(folder / "base.json"), *options],
        cwd=folder, env=os.environ | {"PYTHONPATH": os.pathsep.join(path)}, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout + answer.stderr


def change(output):
    """What the gate says of the work, in per cent of the base line."""
    return float(re.search(rf"^{re.escape(FIGURE)} .* ([+-][\d.]+)%", output, re.MULTILINE)[1])


@needs_valgrind
def test_five_per_cent_more_work_is_refused(tmp_path):
    status, output = gate(tmp_path, "--gate-update", "made for a test")
    assert (status, "made for a test" in output) == (0, True), output
    recorded = (tmp_path / "base.json").read_text(encoding="utf-8")
    assert [list(build["figures"]) for build in json.loads(recorded)["builds"].values()] == [[FIGURE]]

    status, output = gate(tmp_path)
    assert (status, "GROWN" in output) == (0, False), output
    assert abs(change(output)) < 0.5

    status, output = gate(tmp_path, planted=True)
    assert status == 1, output
    assert re.search(rf"^{re.escape(FIGURE)} .* GROWN$", output, re.MULTILINE)
    assert "FAILED: more than 3% over the base line" in output
    assert 4 < change(output) < 7
    assert (tmp_path / "base.json").read_text(encoding="utf-8") == recorded


@needs_valgrind
def test_a_build_without_a_base_line_is_recorded_with_a_warning(tmp_path):
    file = tmp_path / "base.json"
    file.write_text('{"format": "kvcore-gate-2", "builds": {"another": {"reason": "made", "figures": {}}}}')
    status, output = gate(tmp_path)
    assert status == 0, output
    assert "WARNING: no base line for this build; recorded" in output
    builds = json.loads(file.read_text(encoding="utf-8"))["builds"]
    (own,) = set(builds) - {"another"}
    assert builds["another"] == {"reason": "made", "figures": {}, "ratios": {}}
    assert builds[own]["reason"] == "first run of this build"
    assert list(builds[own]["figures"]) == [FIGURE]


@pytest.mark.parametrize(("content", "options", "told"), [
    (None, [], "No such file"),
    ("{", [], "base.json:1: not JSON"),
    ("{}", [], "no base lines"),
    ("{}", ["--gate-update", " "], "a reason in words"),
])
def test_what_cannot_be_used_is_refused_before_anything_runs(content, options, told, tmp_path):
    if content is not None:
        (tmp_path / "base.json").write_text(content)
    status, output = gate(tmp_path, *options)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert told in output


def test_a_gate_that_measures_nothing_fails(tmp_path):
    (tmp_path / "base.json").write_text('{"format": "kvcore-gate-2", "builds": {}}')
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", str(ROOT / "benchmarks" / "bench_explain.py"), "--benchmark-disable",
         "-k", "test_look", "--gate", str(tmp_path / "base.json")],
        cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "NOTHING MEASURED" in answer.stdout
