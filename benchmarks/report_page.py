"""How large a report is, and how soon a browser shows it: python benchmarks/report_page.py REPORT.html [ROUNDS]

Opens the page in headless Chromium, in a fresh profile each time, and asks the page itself: milliseconds from the start
of the navigation to the load event and to the first paint with contents. The start of the browser is not in them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

THERE = "location.protocol === 'file:' && performance.getEntriesByType('navigation')[0].loadEventEnd > 0"
ASK = """new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(JSON.stringify({
load: performance.getEntriesByType('navigation')[0].loadEventEnd,
paint: performance.getEntriesByName('first-contentful-paint')[0].startTime})))))"""


class Browser:
    """Chromium, spoken to over its debugging pipe: messages of JSON, each with a zero byte behind it."""

    def __init__(self, profile: str) -> None:
        there, self._out = os.pipe()
        self._in, here = os.pipe()
        program = shutil.which("chromium") or "chromium-browser"
        command = (f'exec {program} --headless --no-sandbox --disable-gpu --remote-debugging-pipe '
                   f'--user-data-dir={profile} about:blank 3<&{there} 4>&{here}')
        self.process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(there, here), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(there)
        os.close(here)
        self._last, self._rest = 0, b""

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command, wait for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._rest:
            data = os.read(self._in, 1 << 16)
            if not data:
                sys.exit("the browser has gone")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def measure(page: Path) -> dict[str, float]:
    """One look at the page: milliseconds to `load` and to `paint`."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            target = browser.call("Target.createTarget", url=page.resolve().as_uri())["targetId"]
            session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            while browser.call("Runtime.evaluate", session, expression=THERE)["result"]["value"] is not True:
                time.sleep(0.05)
            answer = browser.call("Runtime.evaluate", session, expression=ASK, awaitPromise=True)
            found: dict[str, float] = json.loads(answer["result"]["value"])
            return found
        finally:
            browser.process.terminate()
            browser.process.wait(30)


def main() -> None:
    """Print the medians, with the slowest beside them."""
    page = Path(sys.argv[1])
    rounds = [measure(page) for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 5)]
    print(f"size   {page.stat().st_size:,} bytes")
    for name in ("paint", "load"):
        times = [times[name] for times in rounds]
        print(f"{name:6} {statistics.median(times):,.0f} ms, at most {max(times):,.0f} ms in {len(times)} rounds")


if __name__ == "__main__":
    main()
