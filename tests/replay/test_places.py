"""Where commands read from and write to: standard input, empty names, full disks, narrow and closed terminals."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
import tempfile

import click
import pytest
from kvcore.drivers.cli import cli, main, replay_run
from kvcore.drivers.replay.spool import Spool

CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:03.{i:03},{100 + 977 * i % 3000},{1 + i % 30}\n" for i in range(30))
POLICY = """
default_policy_family: somebody_with_a_long_name
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: somebody_with_a_long_name, policy_family: somebody_with_a_long_name, cache_bucket: all, quantum: 512,
     prefill_busy_threshold: 0}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "a.yaml").write_text(POLICY)
    (tmp_path / "b.yaml").write_text(POLICY.replace("quantum", "queue_policy: wspt, quantum"))
    return tmp_path


@pytest.fixture
def given():
    """Make a file standard input, as a shell does."""
    before = os.dup(0)

    def give(path):
        with open(path, "rb") as file:
            os.dup2(file.fileno(), 0)

    yield give
    os.dup2(before, 0)
    os.close(before)


@pytest.mark.parametrize("option", ["--json", "--csv", "--journal", "--report", "--figures"])
def test_an_empty_name_is_no_place(capsys, folder, option):
    before = sorted(folder.iterdir())
    assert main(["replay", "t.csv", option, ""]) == 2
    assert capsys.readouterr() == ("", f"kvcore: error: {option}: the name is empty\n")
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("argv", "file", "beginning"),
    [
        (["replay", "-", "--csv", "-"], "t.csv", "id,"),
        (["trace", "stats", "-"], "t.csv", "trace      /dev/stdin (azure)\n"),
        (["policy", "check", "-"], "a.yaml", "-: valid\n"),
    ],
)
def test_a_dash_is_standard_input(capsys, given, argv, file, beginning):
    given(file)
    assert main(argv) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert out.startswith(beginning)


def test_splitwise_is_another_name_of_vidur(capsys, folder):
    (folder / "v.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n")
    assert main(["replay", "v.csv", "-q", "--format", "splitwise"]) == 0
    assert main(["replay", "t.csv", "-q", "--format", "splitwise"]) == 2
    assert "in the header of this vidur file" in capsys.readouterr().err


def test_a_full_disk_is_named(monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        Spool(0).append(b"x")
    assert caught.value.filename == tempfile.gettempdir()


def test_a_closed_standard_output_is_no_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["policy", "check", "a.yaml"]) == 0


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_another_name_of_standard_output_is_a_dash(capsys, name):
    assert main(["replay", "t.csv", "--json", name]) == 0
    assert json.loads(capsys.readouterr().out)["requests"]["read"] == 30
    assert main(["replay", "t.csv", "--json", name, "--csv", "-"]) == 2
    assert "--json and --csv must go to different places" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--csv", "--journal"])
def test_no_file_takes_the_place_of_what_is_printed(capsys, monkeypatch, folder, option):
    with open(folder / "o", "w+") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        assert main(["replay", "t.csv", option, "./o"]) == 2
        assert main(["replay", "t.csv", option, "other"]) == 0
        printed.seek(0)
        assert printed.read().startswith("class ")
    assert capsys.readouterr().err == (
        f"kvcore: error: {option} ./o: standard output goes to this file, which would be replaced\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_leaves_nothing(folder, monkeypatch, number):
    def told(*args, **options):
        assert [path.name for path in folder.glob(".j.gz*")] == [f".j.gz.{os.getpid()}.part"]
        os.kill(os.getpid(), number)
        raise AssertionError("the signal should have come first")

    monkeypatch.setattr(replay_run, "simulate", told)
    before = signal.signal(number, signal.SIG_DFL)  # nohup has it ignored, and so it stays
    try:
        with pytest.raises(SystemExit) as caught:
            main(["replay", "t.csv", "--journal", "j.gz"])
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number
    assert list(folder.glob("*j.gz*")) == []


class Terminal(io.StringIO):
    """Standard output of a person who looks."""

    def isatty(self) -> bool:
        """It is one."""
        return True


@pytest.mark.parametrize(
    "argv",
    [["replay", "t.csv", "--policy", "a.yaml"], ["trace", "stats", "t.csv"],
     ["compare", "a.yaml", "b.yaml", "--trace", "t.csv", "--resamples", "10"]],
)
def test_a_narrow_terminal_hides_no_figure(monkeypatch, argv):
    def shown(columns):
        terminal = Terminal()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(argv) == 0
        return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())

    wide, narrow = shown(200), shown(12)
    assert "…" not in narrow
    figures = re.findall(r"\d[\d,.]* (?:ms|s|us|ns|%|pp)?", re.sub(r"(?m)^(run|memory) .*", "", wide))
    assert len(figures) > 10
    assert [figure for figure in figures if figure not in narrow] == []


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n\n2023-11-16 18:17:03,5,2\n\n2023-11-16 18:17:04,99999999,2\n"
MOONCAKE = '{"timestamp": 0, "input_length": %d, "output_length": 2}\n'
SIMULATED = '{"input_toks": %d, "output_toks": 2, "arrival_time_ns": %d}\n'


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (AZURE, "big:5"),
        (AZURE + "and more\n", "big:6"),
        ("\n" + MOONCAKE % 5 + MOONCAKE % 99_999_999, "big:3"),
        (SIMULATED % (5, 0) + SIMULATED % (99_999_999, 1), "big: row 2"),
    ],
)
def test_a_row_that_fits_no_worker_has_a_line(capsys, folder, content, place):
    (folder / "big").write_text(content)
    assert main(["replay", "big"]) == 2
    assert capsys.readouterr().err.startswith(f"kvcore: error: {place}: ")


def commands(group, path=()):
    """The words of every command and group."""
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_fits_a_terminal(capsys, monkeypatch, path):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*path, "--help"]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert [line for line in out.splitlines() if len(line) > 80] == []
