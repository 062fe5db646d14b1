"""Every benchmark runs at its small size, and its digest is the same each time. Nothing here looks at times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from tree import ROOT

BENCHMARKS = ROOT / "benchmarks"


def start(folder, hash_seed, *options):
    """Run all benchmarks in a fresh process."""
    return folder, subprocess.Popen(
        [sys.executable, "-m", "pytest", str(BENCHMARKS), "--size", "small", "--digests", "digests.json", *options],
        cwd=folder, env=os.environ | {"PYTHONHASHSEED": hash_seed}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True)


def end(folder, process):
    """What it prints, and the digests by name."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output, json.loads((folder / "digests.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Runs with and without timing, at the same time: nothing here looks at times."""
    runs = [start(tmp_path_factory.mktemp("timed"), "0", "--benchmark-only", "--benchmark-json", "figures.json"),
            start(tmp_path_factory.mktemp("untimed"), "1", "--benchmark-disable")]
    return [end(*run) for run in runs]


@pytest.fixture(scope="module")
def timed(both):
    return both[0]


@pytest.fixture(scope="module")
def untimed(both):
    return both[1]


def test_digests_are_the_same_in_every_run(timed, untimed):
    assert timed[1] == untimed[1]


def test_every_file_is_collected_and_its_tables_are_printed(timed):
    files = sorted(BENCHMARKS.glob("bench_*.py"))
    assert {name.partition("::")[0] for name in timed[1]} == {path.name for path in files}
    for path in files:
        titles = re.findall(r'^(?:TABLE|SHARED|EXACT) = "(.*)"$', path.read_text(encoding="utf-8"), re.MULTILINE)
        assert titles
        assert [title for title in titles if f"\n{title}\n" not in timed[0]] == []


def test_a_step_is_the_same_whoever_builds_its_event(timed):
    steps, both = (
        {name.partition(kind)[2]: digest for name, digest in timed[1].items() if kind in name}
        for kind in ("::test_step", "::test_both"))
    assert steps
    assert steps == both
