"""`kvcore mock-worker` and `kvcore demo` as programs: how they start and end, and that they leave no process behind."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from kvcore.drivers.cli.children import ChildFailed, free_port, server

PATIENCE_S = 60


@contextmanager
def program(*arguments: str):
    """`kvcore ARGUMENTS` in a session of its own; whatever it leaves behind is killed with it."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kvcore", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "status", "said"), [
    (signal.SIGTERM, 0, ""), (signal.SIGINT, 130, "kvcore: interrupted\n"),
])
def test_a_mock_worker_says_where_it_is_and_ends_on_a_signal(number, status, said):
    with program("mock-worker", "--port", "0", "--max-num-seqs", "3", "--model", "tiny") as process:
        line = process.stdout.readline()
        assert re.fullmatch(r"kvcore mock-worker: http://127\.0\.0\.1:\d+ serves 'tiny' \(mock, 3 slots, .*\)\n", line)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (status, said)


@pytest.mark.parametrize(("arguments", "said"), [
    (("--engine", "nope"), "no engine preset is called 'nope'"),
    (("--kv-events", "nonsense"), "Invalid argument"),
    (("--max-num-seqs", "9", "--max-num-batched-tokens", "8"), "must not be below max_num_seqs"),
])
def test_what_a_mock_worker_cannot_be(arguments, said):
    with program("mock-worker", "--port", "0", *arguments) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert errors.startswith("kvcore: error: ")
    assert said in errors


def test_a_port_that_is_taken():
    port = free_port()
    with server(["mock-worker", "--port", str(port)], port) as child:
        assert child.cpu_s > 0
        assert child.resident_bytes > 10_000_000
        with program("mock-worker", "--port", str(port)) as process:
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 2
        assert errors == f"kvcore: error: 127.0.0.1:{port}: Address already in use\n"
    assert not is_running(child.process.pid)


def test_a_server_that_does_not_start_is_quoted():
    with pytest.raises(ChildFailed, match="no engine preset"), server(["mock-worker", "--engine", "nope"], free_port()):
        raise AssertionError


def test_the_demo_prints_its_tables():
    with program("demo", "--requests", "24") as process:
        text, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    rows = [line.split() for line in text.splitlines() if line.startswith(("premium ", "regular "))]
    assert [row[:5] for row in rows] == [["premium", "512", "12", "of", "12"], ["regular", "128", "12", "of", "12"]]
    assert re.search(r"Premium has \d+ of the first 12 answers", text)
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("$")] == [["$", "kvcore"]] * 3
    answered = re.findall(r"^[01] +(\d+) +[\d,]+ +([\d,]+) +\d+%$", text, re.MULTILINE)
    assert sum(int(count) for count, _ in answered) == 24
    assert all(int(cached.replace(",", "")) > 0 for _, cached in answered)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_demo_leaves_no_process(number):
    with program("demo", "--requests", "2", "--keep") as process:
        while not process.stdout.readline().startswith("Ctrl-C"):
            assert process.poll() is None
        children = children_of(process.pid)
        assert len(children) == 3
        process.send_signal(number)
        process.wait(PATIENCE_S)
        assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
        until(lambda: not any(is_running(pid) for pid in children))


def test_the_demo_can_be_interrupted_under_load():
    with program("demo", "--requests", "2000") as process:
        while "all at once" not in (line := process.stdout.readline()):
            assert line, "it ended before"
        children = children_of(process.pid)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, "kvcore: interrupted\n")
    assert not any(is_running(pid) for pid in children)
