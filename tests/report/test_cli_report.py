"""`kvcore replay --report` and `--figures`: files, messages, and the same bytes in every process."""

from __future__ import annotations

import csv
import os
import subprocess
import sys

import pytest
from kvcore.drivers.cli import main, replay_report
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.report import summarize
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import open_traces
from kvcore.drivers.report import replay
from reports import POLICY, TRACES

from kvcore.config import SchedulerConfig

TRACE = TRACES / "azure_code_sample.csv"
FIGURES = {"queue_wait", "ttft", "itl", "e2e", "shares", "queue_requests", "queue_tokens", "worker_prefill",
           "worker_running"}
TABLES = {"distributions", "shares", "queue", "workers", "hits", "rejects", "slowest"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a policy and a short trace."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(POLICY.replace("LIMIT", "1000"))
    (tmp_path / "t.csv").write_text("".join(TRACE.read_text().splitlines(keepends=True)[:150]))
    return tmp_path


COMMAND = ["replay", "t.csv", "--policy", "p.yaml", "--classes", "premium=0.4,regular=0.6", "--speedup", "20"]


@pytest.fixture
def kvcore(capsys):
    """Run the program in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main(list(argv))
        return status, *capsys.readouterr()

    return run


def test_the_page_and_the_figures(kvcore, folder):
    status, out, err = kvcore(*COMMAND, "--report", "out.html", "--figures", "pictures")
    assert (status, err) == (0, "")
    assert "premium" in out
    names = {path.name for path in (folder / "pictures").iterdir()}
    assert names == {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")} | {
        f"{name}.csv" for name in TABLES}
    for name in FIGURES:
        assert (folder / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "pictures" / f"{name}.svg").read_text().startswith("<?xml")
    for name in TABLES:
        with open(folder / "pictures" / f"{name}.csv", newline="") as stream:
            rows = list(csv.reader(stream))
        assert len({len(row) for row in rows}) == 1
        assert (len(rows) > 1) == (name not in ("hits", "rejects"))
    html = (folder / "out.html").read_text()
    digest = next(line.split()[1] for line in out.splitlines() if line.startswith("digest"))
    assert digest in html
    assert html.count("<svg") == len(FIGURES)
    assert "the trace does not say" in html.lower()
    assert "waiting for" in html, "the slowest are explained"


def test_a_report_changes_no_number(kvcore):
    def steady(text):
        return [line for line in text.splitlines() if not line.startswith(("run ", "memory "))]

    plain = steady(kvcore(*COMMAND)[1])
    assert steady(kvcore(*COMMAND, "--report", "out.html")[1]) == plain


def test_the_same_bytes_in_every_process(folder):
    """Another hash seed, another locale and another time zone."""
    pages = []
    for number, zone in ((1, "UTC"), (2, "Asia/Tokyo")):
        environment = os.environ | {"PYTHONHASHSEED": str(number), "TZ": zone, "LC_ALL": "C.UTF-8"}
        command = [sys.executable, "-P", "-m", "kvcore", *COMMAND, "-q", "--report", "-", "--figures", f"f{number}"]
        answer = subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=True)
        assert answer.stderr == b""
        pages.append(answer.stdout)
    assert pages[0] == pages[1]
    assert pages[0].startswith(b"<!DOCTYPE html>")
    assert pages[0].endswith(b"</html>\n")
    for path in (folder / "f1").iterdir():
        assert path.read_bytes() == (folder / "f2" / path.name).read_bytes(), path.name


def test_without_the_extra_nothing_is_run(kvcore, monkeypatch, folder):
    for name in [name for name in sys.modules if name.startswith("kvcore.drivers.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = kvcore(*COMMAND, "--report", "out.html")
    assert (status, out) == (2, "")
    assert err == "kvcore: error: --report needs matplotlib: pip install 'kvcore[report]'\n"
    assert not (folder / "out.html").exists()
    assert kvcore(*COMMAND)[0] == 0


@pytest.mark.parametrize(("options", "message"), [
    (["--figures", "t.csv"], "--figures t.csv: t.csv is not a directory"),
    (["--figures", "no/where"], "no is not a directory"),
    (["--report", "t.csv"], "is also an input file"),
    (["--report", "no/where.html"], "cannot be written"),
    (["--report", "-", "--json", "-"], "must go to different places"),
])
def test_destinations_are_checked_first(kvcore, monkeypatch, options, message):
    monkeypatch.setattr("kvcore.drivers.cli.replay_run.simulate", None)
    status, out, err = kvcore(*COMMAND, *options)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_trace_that_can_be_read_once_only(kvcore, folder):
    os.mkfifo(folder / "pipe")
    status, _, err = kvcore("replay", "pipe", "--report", "out.html")
    assert status == 2
    assert "reads the traces twice, and pipe is no file that can be read again" in err


def test_a_trace_that_changes_in_between(kvcore, monkeypatch, folder):
    real = replay_report.make_report

    def meddled(*arguments):
        (folder / "t.csv").write_text("".join(TRACE.read_text().splitlines(keepends=True)[:149]))
        return real(*arguments)

    monkeypatch.setattr("kvcore.drivers.cli.replay_run.make_report", meddled)
    status, _, err = kvcore(*COMMAND, "--report", "out.html")
    assert (status, "a trace has changed" in err) == (2, True)
    assert not (folder / "out.html").exists()


@pytest.mark.parametrize("more", [["--concurrency", "5"], ["--limit", "1"], ["--limit", "7", "--workers", "70"]])
def test_other_kinds_of_runs(kvcore, more):
    assert kvcore("replay", str(TRACE), *more, "--report", "out.html")[::2] == (0, "")


@pytest.mark.parametrize(("load", "told"), [
    ({"mode": "open", "speedup": "2.5"}, "open loop, speed 2.5"),
    ({"mode": "closed", "concurrency": 7}, "closed loop, 7 in flight"),
    ({"mode": "closed-loop sessions", "speedup": "1"}, "closed loop of sessions, speed 1"),
])
def test_the_page_tells_of_sessions(load, told):
    """The words alone: no picture is drawn."""
    rows = list(open_traces([TRACES / "dynamo_sample.jsonl.gz"]))
    report = summarize(simulate(rows, SchedulerConfig(), PRESETS["mock"], 1, closed_loop=True))
    config = {
        "load": load, "policy": {"policy_classes": []}, "policy_file": None, "workers": 1, "classes": None, "seed": 0,
        "engine": {"preset": "mock"}, "traces": []}
    assert dict(replay._facts(report, config))["Load"] == told
    (grid,) = [grid for grid in replay._grids(report, config) if grid.title == "Sessions"]
    assert [len(row) for row in grid.rows] == [len(grid.columns)]
    assert grid.rows[0][:4] == ["default", "2", "2", "1"]
