"""The same events give the same actions and digest: in any process, under any hash seed, in both builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fixed_history import BATCHES, GOLDEN, STRIDE, recorded
from tree import ROOT

from kvcore import RejectReason


@pytest.fixture(scope="module")
def golden():
    """The record that both builds on every machine must reproduce; see fixed_history.py for how it is renewed."""
    return GOLDEN.read_text(encoding="utf-8")


def first_difference(told: str, expected: str) -> list[str]:
    """The first lines in which two records differ: the last number that is equal says where to look."""
    pairs = zip(told.splitlines(), expected.splitlines(), strict=False)
    return next(([mine, its] for mine, its in pairs if mine != its), [] if told == expected else [told, expected])


def test_this_process(golden):
    assert first_difference(recorded(), golden) == []


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process(golden, tmp_path, seed):
    environment = os.environ | {"PYTHONHASHSEED": seed}
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fixed_history.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert answer.stderr == ""
    assert first_difference(answer.stdout, golden) == []


def test_the_record_is_worth_keeping(golden):
    """It holds every kind of event and action and most reasons, and it grows from line to line."""
    runs = json.loads(golden)
    assert len(runs["full"]["kinds"]) == 22
    seen = {reason for run in runs.values() for reason in run["rejected"]}
    assert {reason.name for reason in RejectReason} - seen == {"NO_WORKERS", "ADMISSION_REFUSED"}
    for run in runs.values():
        assert len(run["kinds"]) >= 16
        assert len(run["rejected"]) >= 9
        assert len({tuple(row[1:3]) for row in run["record"]}) == BATCHES // STRIDE + 1
