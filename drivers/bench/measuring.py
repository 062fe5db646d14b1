"""Measuring from outside: starts the process that is measured, counts its instructions, repeats its ratios.

Ratios are noisy even as the best of many turns in one process: where memory lies, and what the other half of a
processor core does, moves them by some per cent. So a base line is the median of several processes, and what is held
against it is the best of as many, which take place only as long as it is over. That makes a false alarm rare and leaves
small slowdowns unseen: it is for instructions to see these.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvcore.errors import KvcoreError

#: Processes that a ratio is measured in, at most.
TRIES = 12
_TOTALS = re.compile(r"^(?:totals|summary): (\d+)$", re.MULTILINE)


class MeasuringFailed(KvcoreError):
    """A measured process has failed, or callgrind has not seen what it should."""


def has_valgrind() -> bool:
    """Whether instructions can be counted here."""
    return shutil.which("valgrind") is not None


def instructions(command: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Instructions per item of the works named. command: runs measured.serve in a process of its own.

    Raises: MeasuringFailed. Cost: some 50 times what the works take, and 10 s to start Python.
    """
    with tempfile.TemporaryDirectory() as folder:
        tool = ["valgrind", "--quiet", "--tool=callgrind", "--dump-before=ctermid",
                f"--callgrind-out-file={folder}/out.%p"]
        answer = _run([*tool, *command, "instructions", *names])
        return {name: _between_marks(Path(folder), pid) / items for name, (pid, items) in answer.items()}


def _between_marks(folder: Path, pid: int) -> int:
    """What was counted between the two marks of a process: of three dumps it is the second."""
    try:
        found = _TOTALS.search((folder / f"out.{pid}.2").read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = None
    if found is None:
        raise MeasuringFailed("callgrind has not seen the marks of a measured process")
    return int(found[1])


def usual_ratios(command: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """For a base line: the median ratio of each work over TRIES processes. Raises: MeasuringFailed."""
    runs = [_run([*command, "ratios", *names]) for _ in range(TRIES)] if names else []
    return {name: statistics.median(run[name] for run in runs) for name in names}


def best_ratios(
    command: Sequence[str], names: Sequence[str], enough: Callable[[str, float], bool]
) -> dict[str, float]:
    """To be held against a base line: the best ratio of each work over at most TRIES processes.

    enough: whether a figure so good needs no further process. Raises: MeasuringFailed.
    """
    best: dict[str, float] = {}
    left = list(names)
    for _ in range(TRIES):
        if left:
            for name, value in _run([*command, "ratios", *left]).items():
                best[name] = min(value, best.get(name, value))
            left = [name for name in left if not enough(name, best[name])]
    return best


def _run(command: Sequence[str]) -> dict[str, Any]:
    """The JSON object that a command prints."""
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    environment.pop("PYTHONMALLOC", None)
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise MeasuringFailed(f"a measured process has failed: {_last_line(done.stderr)}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _last_line(text: str) -> str:
    lines = text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")


def python(*arguments: str) -> list[str]:
    """The command that runs this Python."""
    return [sys.executable, *arguments]
