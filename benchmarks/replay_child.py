"""One replay in a process of its own; prints its figures as one JSON object.

    python benchmarks/replay_child.py TRACE WORKERS [BLOCK_SIZE]

It is what `kvcore replay TRACE --workers WORKERS` does, without the summary: reading, core and engine model, all else
at its default. Start-up is Python and the imports.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from harness import BaseLine
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import open_traces

from kvcore.config import SchedulerConfig


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        # On Linux this mark is inherited from a larger parent, so it comes second.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def replay(trace: str, workers: int, block_size: int | None) -> dict[str, object]:
    """Replay a trace once."""
    startup_s = time.process_time()
    with open_traces([trace], block_size=block_size) as stream:
        config = SchedulerConfig(block_size=stream.block_size)
        result = simulate(stream, config, PRESETS["generic"], workers, paths=[trace])
    cpu_s = time.process_time() - startup_s
    peak = peak_bytes()
    base = BaseLine()
    return {
        "startup_s": startup_s, "cpu_s": cpu_s, "peak_bytes": peak, "base_ns": min(base.ns() for _ in range(20)),
        "requests": len(result.table), "events": result.events, "steps": result.steps, "digest": result.digest,
        "audit": result.audit,
    }


if __name__ == "__main__":
    size = int(sys.argv[3]) if len(sys.argv) > 3 else None
    print(json.dumps(replay(sys.argv[1], int(sys.argv[2]), size)))
