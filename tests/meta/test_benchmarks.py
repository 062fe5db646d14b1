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


def run(folder, hash_seed, *options):
    """Run all benchmarks in a fresh process: what it prints, and the digests by name."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", str(BENCHMARKS), "--size", "small", "--digests", "digests.json", *options],
        cwd=folder, env=os.environ | {"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout, json.loads((folder / "digests.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("timed"), "0", "--benchmark-only", "--benchmark-json", "figures.json")


@pytest.fixture(scope="module")
def untimed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("untimed"), "1", "--benchmark-disable")


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
