"""Servers of this program as child processes, for the demo and for experiments: they never outlive the one who asked.

Each is in a session of its own, so that Ctrl-C in a terminal reaches the parent alone, which ends its children; and the
kernel ends them if the parent is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
START_S, STOP_S = 180.0, 5.0


class ChildFailed(RuntimeError):
    """A server that does not start; its text ends with what it has said."""


class Child:
    """A server. url: of its public listener."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, ready: str, said: IO[bytes]) -> None:
        self.process, self.url = process, f"http://127.0.0.1:{port}"
        self._port, self._ready, self._said = port, ready, said

    @property
    def cpu_s(self) -> float:
        """CPU time that its threads have taken so far."""
        spent_ns = 0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):     # a thread that has just ended
                spent_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
        return spent_ns / 1e9

    def wait(self) -> None:
        """Until it answers. Raises: ChildFailed."""
        until_s = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < until_s:
            connection = HTTPConnection("127.0.0.1", self._port, timeout=5)
            try:
                connection.request("GET", self._ready)
                if connection.getresponse().status == 200:
                    return
            except (OSError, HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.02)
        self._said.seek(0)
        text = self._said.read().decode(errors="replace").strip()
        raise ChildFailed(f"a server does not start: {text[-2000:] or 'it says nothing'}")

    @property
    def resident_bytes(self) -> int:
        """Memory that it holds now."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    """A port of loopback that is free now. Somebody else may take it first: then its server says so."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(arguments: Sequence[str], port: int, ready: str = "/health", *, wait: bool = True) -> Iterator[Child]:
    """`kvcore ARGUMENTS` as long as the block lasts, once it answers 200 on this path of this port of loopback.

    wait: False: at once; the caller waits. Raises: ChildFailed.
    """
    with tempfile.TemporaryFile() as said:
        parent = os.getpid()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kvcore", *arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True, preexec_fn=lambda: _die_with(parent))
        try:
            child = Child(process, port, ready, said)
            if wait:
                child.wait()
            yield child
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()
            process.wait()


def _die_with(parent: int) -> None:
    """In the child, before it becomes another program: be killed when the parent's main thread ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
