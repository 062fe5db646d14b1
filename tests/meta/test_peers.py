"""The comparison with the other wheel: what it says without it, and what it writes. Nothing here looks at times."""

from __future__ import annotations

import os
import subprocess
import sys

from tree import ROOT

PEERS = ROOT / "benchmarks" / "peers.py"
DOCUMENT = "before\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nafter\n"

#: Stands in for an interpreter that has the wheel, and answers what its side of the comparison would, in nanoseconds.
STAND_IN = """#!{python}
import json, sys
if sys.argv[1] == "-c":
    print({version!r})
elif sys.argv[2] == "cycle":
    print(json.dumps({{"cpu_ns": 10**12}}))
elif sys.argv[2] == "index":
    print(json.dumps({{name: {{"cpu_ns": 1}} for name in ("store", "find", "miss", "remove")}}))
else:
    print(json.dumps({{"cpu_ns": 10**9, "peak_bytes": 10**9, "completed": 7, "ttft_ms": 1.5, "hit": 0.25}}))
"""


def peers(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PEERS), *map(str, options)], capture_output=True, text=True, check=False)


def stand_in(folder, version="1.6.1"):
    path = folder / "python"
    path.write_text(STAND_IN.format(python=sys.executable, version=version), encoding="utf-8")
    os.chmod(path, 0o755)
    return path


def test_without_the_wheel_nothing_is_measured_and_a_line_says_so(tmp_path):
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT, encoding="utf-8")
    for peer, reason in (
        (tmp_path / "nowhere", "is not there"),
        (sys.executable, "has no ai-dynamo-runtime"),
        (stand_in(tmp_path, "1.5.0"), "has ai-dynamo-runtime 1.5.0, not 1.6.1"),
    ):
        answer = peers("--peer", peer, "--write", document)
        assert (answer.returncode, answer.stdout) == (0, f"skipped: {peer} {reason}\n"), answer.stderr
    assert document.read_text(encoding="utf-8") == DOCUMENT


def test_the_table_stands_between_its_marks(tmp_path):
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT, encoding="utf-8")
    answer = peers("--peer", stand_in(tmp_path), "--write", document)
    assert answer.returncode == 0, answer.stderr
    text = document.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- peers: begin -->\n| ")
    assert text.endswith("\n<!-- peers: end -->\nafter\n")
    assert "old" not in text
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in text.splitlines() if line[:1] == "|"}
    ratio = {name: float(cells[2].replace(",", "").rstrip("x")) for name, cells in rows.items() if cells[2][-1] == "x"}
    assert ratio["cycle, 16 workers, one caller, asyncio"] > 1000, "theirs by ours, not the other way round"
    assert ratio["index, 16 workers, find"] < 0.1
    assert ratio["replay, blocks of 512, peak memory"] > 1
    assert "theirs and ours: 7 and 200 requests completed, mean TTFT 1.5 and " in text


def test_a_document_without_marks_is_left_alone(tmp_path):
    document = tmp_path / "README.md"
    document.write_text("no marks\n", encoding="utf-8")
    answer = peers("--peer", stand_in(tmp_path), "--only", "index", "--write", document)
    assert answer.returncode == 1
    assert "has no <!-- peers: begin -->" in answer.stderr
    assert document.read_text(encoding="utf-8") == "no marks\n"
