"""Options, sizes and the report of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Report

REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser):
    """Size, digests, and a trace of the user's own."""
    group = parser.getgroup("kvcore")
    group.addoption("--size", choices=("small", "large"), default="small",
                    help="small: seconds, to see that all runs; large: minutes, to measure (default: small)")
    group.addoption("--digests", metavar="FILE", help="write the digest of every benchmark to this file, as JSON")
    group.addoption("--replay", metavar="PATH", action="append",
                    help="also replay this trace, of any format that `kvcore replay` reads; may be repeated")
    group.addoption("--workers", type=int, default=16, metavar="N", help="workers for --replay (default: 16)")


def pytest_configure(config):
    """One report per session."""
    config.stash[REPORT] = Report()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    """Values of the marker `sizes` as parameters, which vary faster than all others."""
    size = metafunc.config.getoption("--size")
    for marker in reversed(list(metafunc.definition.iter_markers("sizes"))):
        metafunc.parametrize(marker.args[0], marker.kwargs[size])


def pytest_terminal_summary(terminalreporter, config):
    """What has been measured."""
    if (path := config.getoption("--digests")) is not None:
        Path(path).write_text(json.dumps(config.stash[REPORT].digests, indent=1) + "\n", encoding="utf-8")
    terminalreporter.section("kvcore benchmarks")
    for line in config.stash[REPORT].lines():
        terminalreporter.write_line(line)


@pytest.fixture
def report(pytestconfig):
    """Takes figures, digests and the rows to print."""
    return pytestconfig.stash[REPORT]


@pytest.fixture
def size(pytestconfig):
    """small or large."""
    return pytestconfig.getoption("--size")
