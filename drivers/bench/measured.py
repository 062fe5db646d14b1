"""The process that is measured: pieces of work, prepared and run between two marks, or in turns with a yardstick.

A piece of work is prepared in a process of its own, forked from one that has only imported what all need, so that none
changes the memory that another finds, and warmed before it is measured. The garbage collector is off meanwhile: what it
costs depends on what else the process holds.

A mark is a call of the C library's `ctermid`, which nobody else calls and callgrind can be told to look for.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WARM_RUNS = 3
#: Turns of a ratio take about so long in all; each is work and yardstick once.
TURNS_NS = 250_000_000
TURNS_MIN = 7
_YARDSTICK_LOOPS = 400


@dataclass(frozen=True)
class Work:
    """Something to measure. prepare: everything beforehand; what it returns is run again and again, alike each time.

    items: of one run; figures are per item. ratio: whether its CPU time is a figure, too.
    """

    prepare: Callable[[], Callable[[], object]]
    items: int
    ratio: bool = False


def serve(works: Mapping[str, Work], argv: Sequence[str]) -> int:
    """Measure the works named: `instructions NAME...` under callgrind, `ratios NAME...` without. Returns: exit status.

    Prints one JSON object. instructions: name -> [process id, items]; ratios: name -> ratio per item.
    """
    mode, *names = argv
    measure = {"instructions": _between_marks, "ratios": _in_turns}[mode]
    gc.disable()
    answers = {name: _forked(measure, works[name]) for name in names}
    print(json.dumps(answers))
    return 0


def _forked(measure: Callable[[Work], object], work: Work) -> object:
    """What measure(work) returns, called in a child. Raises: RuntimeError if the child fails."""
    sys.stdout.flush()
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(into, json.dumps(measure(work)).encode())
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(into)
    with open(out, encoding="ascii") as stream:
        answer = stream.read()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a measured process has failed")
    return json.loads(answer)


def _between_marks(work: Work) -> list[int]:
    """Run once between two marks; callgrind writes what happened between them."""
    run = work.prepare()
    for _ in range(WARM_RUNS):
        run()
    mark = os.ctermid
    mark()
    run()
    mark()
    return [os.getpid(), work.items]


def _in_turns(work: Work) -> float:
    """CPU time of one run over that of the yardstick, each the best of all turns: noise only ever adds.

    They take turns of well below a millisecond where they can, so that both see the same clock rate and the same
    neighbours.
    """
    run = work.prepare()
    for _ in range(WARM_RUNS):
        run()
        yardstick()
    clock = time.thread_time_ns
    best_run = best_yardstick = sys.maxsize
    turns = spent = 0
    while turns < TURNS_MIN or spent < TURNS_NS:
        start = clock()
        yardstick()
        middle = clock()
        run()
        end = clock()
        best_yardstick = min(best_yardstick, middle - start)
        best_run = min(best_run, end - middle)
        spent += end - start
        turns += 1
    return best_run / best_yardstick / work.items


class _Thing:
    """What the yardstick makes, calls and looks into."""

    __slots__ = ("key", "value")

    def __init__(self, key: str, value: int) -> None:
        self.key, self.value = key, value

    def told(self, by: int) -> int:
        return self.value + by


def yardstick() -> int:
    """A fixed piece of plain Python: objects, calls, dictionaries. Nothing of kvcore, so no change there moves it."""
    names = [f"r{i}" for i in range(8)]
    seen: dict[str, _Thing] = {}
    total = 0
    for i in range(_YARDSTICK_LOOPS):
        name = names[i & 7]
        seen[name] = thing = _Thing(name, i)
        total += thing.told(seen[names[i & 3]].value)
    return total
