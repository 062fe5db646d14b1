"""Failures on demand: their texts, their order, and the page that describes them."""

from __future__ import annotations

import re

import pytest
from kvcore.drivers.cli.mock_worker import mock_worker_command
from kvcore.drivers.mock.faults import FAULTS_MAX, Fault, Faults, Kind, parse
from tree import ROOT

PAGE = (ROOT / "docs/mock.md").read_text(encoding="utf-8")


def test_the_page_names_every_failure_and_no_other():
    shown = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert {parse(text.replace("=N", "=1").replace("=S", "=1")).kind for text in shown} == set(Kind)


def test_the_page_names_no_option_that_is_not_there():
    options = {name for parameter in mock_worker_command.params for name in parameter.opts}
    without_curl = re.sub(r"^curl (?:\\\n|[^\n])*$", "", PAGE, flags=re.MULTILINE)
    assert set(re.findall(r"--[a-z][a-z-]+", without_curl)) <= options


@pytest.mark.parametrize("text", [
    "", "nothing", "cut=3", "status", "status=", "status=200", "status=600", "cut;after", "cut;after=-1",
    "cut;before=1", "cut;after=1.5", "stall;seconds=-1", "stall;seconds=nan",
])
def test_what_is_no_failure(text):
    with pytest.raises(ValueError, match=r".+"):
        parse(text)


def test_a_header_goes_before_those_that_wait():
    faults = Faults()
    faults.add(parse("cut;after=2"), 2)
    faults.add(parse("stall;seconds=1"), 1)
    assert faults.take("status=429") == Fault(Kind.STATUS, status=429)
    assert [faults.take(None) for _ in range(4)] == [Fault(Kind.CUT, 2)] * 2 + [Fault(Kind.STALL, 0, 1.0), None]
    with pytest.raises(ValueError, match="times"):
        faults.add(parse("cut"), FAULTS_MAX + 1)
    assert len(faults) == 0
