"""Options, sizes and the report of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gate import Gate
from harness import Report

from kvcore.errors import KvcoreError

REPORT = pytest.StashKey[Report]()
GATE = pytest.StashKey[Gate]()


def pytest_addoption(parser):
    """Size, digests, a trace of the user's own, and the gate."""
    group = parser.getgroup("kvcore")
    group.addoption("--size", choices=("small", "large"), default="small",
                    help="small: seconds, to see that all runs; large: minutes, to measure (default: small)")
    group.addoption("--digests", metavar="FILE", help="write the digest of every benchmark to this file, as JSON")
    group.addoption("--replay", metavar="PATH", action="append",
                    help="also replay this trace, of any format that `kvcore replay` reads; may be repeated")
    group.addoption("--workers", type=int, default=16, metavar="N", help="workers for --replay (default: 16)")
    group.addoption("--gate", metavar="FILE", help="hold costs against the base lines in this file: status 1 if one "
                    "has grown by more than 3 %%; a build that the file does not know is recorded there")
    group.addoption("--gate-update", metavar="REASON",
                    help="with --gate: record what is measured as the base line of this build, and why it is so")


def pytest_configure(config):
    """One report and one gate per session."""
    config.stash[REPORT] = Report()
    path, reason = config.getoption("--gate"), config.getoption("--gate-update")
    if reason is not None and (path is None or not reason.strip()):
        raise pytest.UsageError("--gate-update needs --gate FILE, and a reason in words")
    try:
        config.stash[GATE] = Gate(path, reason)
    except (KvcoreError, OSError) as error:
        raise pytest.UsageError(f"--gate: {error}") from error


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    """Values of the marker `sizes` as parameters, which vary faster than all others."""
    size = metafunc.config.getoption("--size")
    for marker in reversed(list(metafunc.definition.iter_markers("sizes"))):
        metafunc.parametrize(marker.args[0], marker.kwargs[size])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """Measure what the gate watches, unless something has failed already."""
    gate = session.config.stash[GATE]
    if exitstatus == pytest.ExitCode.OK:
        gate.run()
        if gate.failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """What has been measured."""
    if (path := config.getoption("--digests")) is not None:
        Path(path).write_text(json.dumps(config.stash[REPORT].digests, indent=1) + "\n", encoding="utf-8")
    terminalreporter.section("kvcore benchmarks")
    for line in config.stash[REPORT].lines():
        terminalreporter.write_line(line)
    if config.stash[GATE].text:
        terminalreporter.section("gate")
        for line in config.stash[GATE].text:
            terminalreporter.write_line(line, red=line.startswith("FAILED"), yellow=line.startswith("WARNING"))


@pytest.fixture
def gate(pytestconfig):
    """Takes what the gate watches."""
    return pytestconfig.stash[GATE]


@pytest.fixture
def report(pytestconfig):
    """Takes figures, digests and the rows to print."""
    return pytestconfig.stash[REPORT]


@pytest.fixture
def size(pytestconfig):
    """small or large."""
    return pytestconfig.getoption("--size")
