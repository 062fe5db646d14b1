"""The report of a replay: how long making it takes, how large it is, and how long a browser takes to show it.

    pytest benchmarks/bench_report.py --benchmark-only --size large --replay=AzureLLMInferenceTrace_conv.csv
    python benchmarks/bench_report.py --trace PATH

Shown: from the start of navigation to the second frame after the page and all in it have been loaded, in a headless
Chromium that is asked over a pipe; the page itself has no script. Wall time, so on a machine at rest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import BaseLine

ROOT = Path(__file__).resolve().parent.parent
TABLE = "Reports of replays; shown is wall time, the best of several"
EXAMPLE = ROOT / "examples" / "traces" / "azure_code_sample.csv"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MORE = {
    "small": ["--limit", "20"],
    "large": ["--workers", "4", "--policy", str(ROOT / "examples" / "policies" / "premium.yaml"), "--classes",
              "premium=0.2,regular=0.8"],
}
LOOKS = {"small": 1, "large": 5}
_SHOWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"

_spent_s = 0.0


def child_cpu_s() -> float:
    """CPU seconds of all replays so far: the clock of this benchmark, whose work happens in other processes."""
    return _spent_s


def make(trace: Path, size: str, page: Path) -> None:
    """Write the report."""
    global _spent_s
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-P", "-m", "kvcore", "replay", str(trace), "--report", str(page), "--quiet", *MORE[size]],
        check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _spent_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Browser:
    """A Chromium, over the two pipes of its DevTools protocol."""

    def __init__(self, ask: int, answer: int) -> None:
        self._ask, self._answer = os.fdopen(ask, "wb"), os.fdopen(answer, "rb")
        self._number, self._rest = 0, b""

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command, and its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._ask.write(json.dumps(message).encode() + b"\0")
        self._ask.flush()
        return self._until(lambda told: told.get("id") == self._number).get("result", {})

    def wait(self, event: str) -> None:
        """Until it tells of an event."""
        self._until(lambda told: told.get("method") == event)

    def _until(self, wanted: Any) -> dict[str, Any]:
        while True:
            while b"\0" not in self._rest:
                piece = self._answer.read1(1 << 16)
                if not piece:
                    raise RuntimeError("the browser has ended")
                self._rest += piece
            text, _, self._rest = self._rest.partition(b"\0")
            told = json.loads(text)
            if wanted(told):
                return told

    def close(self) -> None:
        """Let go of the pipes."""
        self._ask.close()
        self._answer.close()

    def shown_ms(self, page: Path) -> float:
        """Open a page in a new tab: until it is shown."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable", session)
        self.call("Page.navigate", session, url=page.as_uri())
        self.wait("Page.loadEventFired")
        result = self.call("Runtime.evaluate", session, expression=_SHOWN, awaitPromise=True)["result"]
        self.call("Target.closeTarget", targetId=target)
        return float(result["value"])


@contextmanager
def browser(profile: str) -> Iterator[Browser]:
    """A browser as long as the block lasts."""
    (asks, ask), (answer, answers) = os.pipe(), os.pipe()
    command = (f'exec "{CHROMIUM}" --headless --no-sandbox --disable-gpu --remote-debugging-pipe '
               f'--user-data-dir="{profile}" 3<&{asks} 4>&{answers} 2>/dev/null')
    process = subprocess.Popen(["bash", "-c", command], pass_fds=(asks, answers), stdout=subprocess.DEVNULL)
    os.close(asks)
    os.close(answers)
    made = Browser(ask, answer)
    try:
        yield made
        made.call("Browser.close")
    finally:
        process.terminate()
        process.wait()
        made.close()


@pytest.mark.benchmark(timer=child_cpu_s)
def test_report(benchmark, report, size, pytestconfig, tmp_path):
    trace = Path((pytestconfig.getoption("--replay") or [EXAMPLE])[0]).resolve()
    page = tmp_path / "report.html"
    benchmark.pedantic(lambda: make(trace, size, page), rounds=1)
    data = page.read_bytes()
    # Where files lie is on the page, too.
    text = data.replace(os.fsencode(ROOT), b"").replace(os.fsencode(trace.parent), b"")
    figure = report.note(benchmark, BaseLine().ns(), 1, hashlib.blake2b(text, digest_size=8).hexdigest())
    shown = "-"
    if CHROMIUM is not None and figure is not None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser(profile) as opened:
            looks = [opened.shown_ms(page) for _ in range(LOOKS[size])]
        benchmark.extra_info |= {"shown_ms": looks}
        shown = f"{min(looks):,.0f} ms"
    benchmark.extra_info |= {"bytes": len(data)}
    report.add(
        TABLE, trace.name, made_CPU="-" if figure is None else f"{figure.ns / 1e9:.2f} s", size=f"{len(data):,} bytes",
        shown=shown, digest=benchmark.extra_info["digest"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the report of a trace and open it in a browser.")
    parser.add_argument("--trace", required=True, metavar="PATH")
    sys.exit(pytest.main([
        __file__, "--benchmark-only", "--size", "large", f"--replay={parser.parse_args().trace}"]))
