"""The gate, for real: a base line is recorded, the same build passes, and one that works 5 % more is refused.

Instructions are counted, not timed: they are the same on a machine that is busy.
"""

from __future__ import annotations

import importlib
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
    """A build without a base line is recorded with a warning; then the same build that works more fails.

    That the same build passes is what .ci/run shows of the base line in the repository.
    """
    file = tmp_path / "base.json"
    file.write_text('{"format": "kvcore-gate-2", "builds": {"another": {"reason": "made", "figures": {}}}}')
    status, output = gate(tmp_path)
    assert status == 0, output
    assert "WARNING: no base line for this build; recorded" in output
    recorded = file.read_text(encoding="utf-8")
    builds = json.loads(recorded)["builds"]
    (own,) = set(builds) - {"another"}
    assert builds["another"] == {"reason": "made", "figures": {}, "ratios": {}}
    assert builds[own]["reason"] == "first run of this build"
    assert list(builds[own]["figures"]) == [FIGURE]

    status, output = gate(tmp_path, planted=True)
    assert status == 1, output
    assert re.search(rf"^{re.escape(FIGURE)} .* GROWN$", output, re.MULTILINE)
    assert "FAILED: more than 3% over the base line" in output
    assert 4 < change(output) < 7
    assert file.read_text(encoding="utf-8") == recorded


@pytest.fixture
def measured(monkeypatch):
    """A Gate that finds figures of our choice."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("gate")

    def run(path, reason, figures):
        found = module.Gate(str(path), reason)
        monkeypatch.setattr(found, "_measure", lambda before: dict(figures))
        found.run()
        return found

    yield run
    del sys.modules["gate"]


def test_a_change_that_is_meant_is_recorded_with_its_reason(measured, tmp_path):
    file, name = tmp_path / "base.json", "counter: steps"
    assert not measured(file, "made for a test", {name: 100}).failed
    assert not measured(file, None, {name: 103}).failed
    grown = measured(file, None, {name: 104})
    assert grown.failed
    assert "FAILED" in grown.text[-1]
    assert not measured(file, "it does more", {name: 104}).failed
    (build,) = json.loads(file.read_text(encoding="utf-8"))["builds"].values()
    assert (build["reason"], build["figures"]) == ("it does more", {name: 104})
    assert not measured(file, None, {name: 104}).failed


def test_ratios_of_this_processor_are_recorded_once_and_then_compared(measured, tmp_path):
    file, figures = tmp_path / "base.json", {"counter: steps": 1, "ratio: cycle": 2.0}
    measured(file, "made", {"counter: steps": 1})
    first = measured(file, None, figures)
    assert (first.failed, "no ratios of this processor" in first.text[-1]) == (False, True)
    assert measured(file, None, figures | {"ratio: cycle": 2.1}).failed
    assert not measured(file, None, figures | {"ratio: cycle": 1.0}).failed


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
