"""Side by side with the published wheel ai-dynamo-runtime==1.6.1, whose router kvcore re-implements.

    python3 -m venv PEER && PEER/bin/pip install ai-dynamo-runtime==1.6.1
    python benchmarks/peers.py --peer PEER [--size large] [--rounds N] [--replays N] [--only CASE] [--write README.md]

Both sides do the same in turns, theirs and ours, then ours and theirs, each in a fresh process, warmed up; what counts
is the best of all rounds, in CPU time of all threads, with what a call from Python costs on either side. `range` is the
least and the most that the ratio came to within one round. Without the wheel nothing is measured, and a line says so.

cycle    a request of 512 tokens: a worker is selected and booked, the prompt is computed, the request ends. Their calls
         are awaited, and much of what they cost is the event loop's and the threads' behind it: so by one caller
         on asyncio, by one on uvloop, and by 64 at a time, where the cost of waking up is shared. Ours are plain calls,
         and for 64 at a time step_array. named: the prompt's 32 blocks have names, which are looked up and booked.
         Ids are made beforehand.
index    256 paths of 32 blocks stored, found, looked for in vain, removed. Theirs gets bytes of JSON made beforehand;
         ours has no door of its own, so finding is `peek`, which builds a request and chooses a worker, too.
replay   a trace from synthetic.py through router, engine model and report. The engine models differ, so completed
         requests, mean TTFT and the share of prompt tokens found cached are shown beside the costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import synthetic
from harness import load
from kvcore.drivers.bench.gate import build_key

VERSION = "1.6.1"
HERE = Path(__file__).parent
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
#: KV cache of the engine preset "generic".
KV_TOKENS = 442_368
FLEET = {"small": 8, "large": 64}

Figures = dict[str, Any]


@dataclass
class Row:
    """What is compared. key: where its figure stands in the answers of a case. target: the least ratio wanted."""

    name: str
    case: str
    parameters: Figures
    key: tuple[str, ...]
    target: float | None = None
    unit: str = "us"
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Theirs to ours, each the best of its rounds."""
        return min(self.theirs) / min(self.ours)

    def cells(self) -> list[str]:
        """The row as text."""
        ratios = [theirs / ours for theirs, ours in zip(self.theirs, self.ours, strict=True)]
        wanted = ""
        if self.target is not None:
            wanted = f">= {self.target:,.0f}x {'met' if self.ratio >= self.target else 'missed'}"
        return [self.name, shown(min(self.theirs), self.unit), shown(min(self.ours), self.unit), f"{self.ratio:,.1f}x",
                f"{min(ratios):,.1f} .. {max(ratios):,.1f}", wanted]


HEADER = ["", "ai-dynamo-runtime", "kvcore", "ratio", "range", "target"]


def shown(value: float, unit: str) -> str:
    """A figure with its unit; nanoseconds and bytes come in."""
    return {"us": f"{value / 1e3:,.2f} us", "s": f"{value / 1e9:,.2f} s", "MB": f"{value / 1e6:,.0f} MB"}[unit]


def rows_of(size: str, trace: str) -> Iterator[Row]:
    """All that is compared."""
    large = size == "large"
    ways = [("one caller, asyncio", 1, "asyncio"), ("one caller, uvloop", 1, "uvloop"),
            ("64 callers, uvloop", 64, "uvloop")]
    for workers, target in ((16, 250.0), (2_048 if large else 64, 350.0)):
        for named in (False, True):
            for way, at_once, loop in ways if not named else ways[:1]:
                parameters = {"workers": workers, "requests": 1_000 if large else 64, "rounds": 3 if large else 1,
                              "block_size": 16, "prompt": 512, "named": named, "at_once": at_once, "loop": loop}
                yield Row(f"cycle, {workers:,} workers{', named' if named else ''}, {way}", "cycle", parameters,
                          ("cpu_ns",), target if way == ways[0][0] and not named else None)
    for workers in (16, 256, 2_048) if large else (16,):
        parameters = {"workers": workers, "paths": 256, "depth": 32, "rounds": 30 if large else 1}
        for what in ("store", "find", "miss", "remove"):
            yield Row(f"index, {workers:,} workers, {what}", "index", parameters, (what, "cpu_ns"), 8.0)
    for block_size in (512, 64) if large else (512,):
        parameters = {"trace": trace, "workers": FLEET[size], "block_size": block_size, "kv_tokens": KV_TOKENS}
        name = f"replay, blocks of {block_size}"
        yield Row(f"{name}, CPU", "replay", parameters, ("cpu_ns",), 10.0, "s")
        yield Row(f"{name}, peak memory", "replay", parameters, ("peak_bytes",), 4.0, "MB")


def run(interpreter: Path | str, script: str, case: str, parameters: Figures) -> Figures:
    """One side's figures of a case, from a fresh process."""
    answer = subprocess.run(
        [str(interpreter), str(HERE / script), case, json.dumps(parameters)],
        capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"{script} {case}: exit status {answer.returncode}: {answer.stderr[-2000:]}")
    figures: Figures = json.loads(answer.stdout.splitlines()[-1])
    return figures


def at(figures: Figures, key: tuple[str, ...]) -> float:
    """A figure of an answer."""
    value: Any = figures
    for name in key:
        value = value[name]
    return float(value)


def measure(peer: Path, rows: list[Row], rounds: int, replays: int) -> list[str]:
    """Fill in the rows, those of replays in so many rounds. Returns notes on what the replays came to."""
    notes: dict[str, None] = {}
    known: dict[tuple[str, str], tuple[Figures, Figures]] = {}
    for number in range(max(rounds, replays)):
        known.clear()
        for row in rows:
            if number >= (replays if row.case == "replay" else rounds):
                continue
            case = (row.case, json.dumps(row.parameters))
            if case not in known:
                print(f"round {number + 1}: {row.name}", file=sys.stderr)
                sides = [(peer, "peers_theirs.py"), (sys.executable, "peers_ours.py")]
                if number % 2:
                    sides.reverse()
                answers = {script: run(interpreter, script, *_split(case)) for interpreter, script in sides}
                known[case] = (answers["peers_theirs.py"], answers["peers_ours.py"])
            theirs, ours = known[case]
            row.theirs.append(at(theirs, row.key))
            row.ours.append(at(ours, row.key))
            if row.case == "replay":
                notes[f"{row.name.rpartition(',')[0]}: theirs and ours: "
                      f"{theirs['completed']:,} and {ours['completed']:,} requests completed, mean TTFT "
                      f"{theirs['ttft_ms']:.1f} and {ours['ttft_ms']:.1f} ms, {100 * theirs['hit']:.1f} and "
                      f"{100 * ours['hit']:.1f} % of prompt tokens found cached"] = None
    return list(notes)


def _split(case: tuple[str, str]) -> tuple[str, Figures]:
    return case[0], json.loads(case[1])


def markdown(rows: list[Row], notes: list[str], about: list[str]) -> str:
    """The table for a document."""
    lines = ["| " + " | ".join(HEADER) + " |", "| --- " + "| ---: " * (len(HEADER) - 1) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- {line}" for line in [*notes, *about])])


def text(rows: list[Row], notes: list[str], about: list[str]) -> str:
    """The table for a terminal."""
    grid = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in grid) for i in range(len(HEADER))]
    table = ["  ".join(cell.rjust(width) if i else cell.ljust(width)
                       for i, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip() for line in grid]
    return "\n".join([*table, "", *notes, *about])


def write(path: Path, table: str) -> None:
    """Put the table between the two marks of a document. Raises: ValueError if they are not there."""
    document = path.read_text(encoding="utf-8")
    begin, found, rest = document.partition(BEGIN)
    _, closed, end = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"{path} has no {BEGIN} and {END}")
    path.write_text(f"{begin}{BEGIN}\n{table}\n{END}{end}", encoding="utf-8")


def processor() -> str:
    """The name of this machine's processor."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return platform.machine() if found is None else found[1]


def missing(interpreter: Path) -> str | None:
    """Why there is nothing to compare with, or None."""
    if not os.access(interpreter, os.X_OK):
        return f"{interpreter} is not there"
    question = "import dynamo._core; from importlib.metadata import version; print(version('ai-dynamo-runtime'))"
    answer = subprocess.run([str(interpreter), "-c", question], capture_output=True, text=True, check=False)
    if answer.returncode:
        return f"{interpreter} has no ai-dynamo-runtime"
    found = answer.stdout.strip()
    return None if found == VERSION else f"{interpreter} has ai-dynamo-runtime {found}, not {VERSION}"


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit status: 0 also where there is nothing to compare with."""
    parser = argparse.ArgumentParser(description="Compare kvcore with ai-dynamo-runtime, in turns, on this machine.")
    parser.add_argument("--peer", required=True, type=Path, metavar="VENV", help="a virtual environment that has it")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 1 small, 3 large")
    parser.add_argument("--replays", type=int, default=1, metavar="N", help="rounds of the replays (default: 1)")
    parser.add_argument("--only", choices=("cycle", "index", "replay"), metavar="CASE", help="cycle, index or replay")
    parser.add_argument("--requests", type=int, metavar="N", help="of the replay; default: 200 small, 100,000 large")
    parser.add_argument("--write", type=Path, metavar="FILE", help=f"also into FILE, between {BEGIN} and {END}")
    options = parser.parse_args(arguments)
    interpreter = options.peer / "bin" / "python" if options.peer.is_dir() else options.peer
    reason = missing(interpreter)
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    large = options.size == "large"
    requests = options.requests or (100_000 if large else 200)
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "synthetic.jsonl")
        synthetic.write(trace, requests, 6.25 * FLEET[options.size])
        rows = [row for row in rows_of(options.size, trace) if options.only in (None, row.case)]
        if not large:
            for row in rows:
                row.target = None  # so few items measure nothing
        notes = measure(interpreter, rows, options.rounds or (3 if large else 1), options.replays)
    about = [
        f"replays: {requests:,} requests over {FLEET[options.size]} workers",
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}; load average {before} at the start, {load()} at the end",
        f"ai-dynamo-runtime {VERSION}; kvcore on {build_key()}",
        f"`python benchmarks/peers.py --size {options.size}`; CPU time of all threads, the best of "
        f"{max(len(row.ours) for row in rows)} rounds, of a replay {options.replays}",
    ]
    print(text(rows, notes, about))
    if options.write is not None:
        write(options.write, markdown(rows, notes, about))
    return 0


if __name__ == "__main__":
    sys.exit(main())
