"""Bytes per worker, per cached block and per booking: growth of the resident size in a fresh process, divided.

Each process builds a scheduler, measures, adds so many of one thing, and measures again. Python's own objects count: a
cached block costs what the index keeps of it, a booking what the core keeps of a running request and its prompt.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHILD = """
import json, sys
import kvcore as kv

def resident():
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * 4096

what, count = sys.argv[1], int(sys.argv[2])
core = kv.Scheduler(kv.SchedulerConfig(block_size=16, seed=1))
if what != "worker":
    core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(i)) for i in range(256)])
before = resident()
for first in range(0, count, 1024):
    numbers = range(first, min(count, first + 1024))
    if what == "worker":
        core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(i)) for i in numbers])
    elif what == "block":
        core.step(kv.BlocksStored(0, first // 1024 % 256, 0, 0, tuple([(1 << 63) + i for i in numbers])))
    else:
        blocks = 32 if what == "booking, 32 named blocks" else 0
        core.step_many([
            kv.RequestArrived(0, kv.Request(f"r{i}", 512, block_hashes=tuple(range(i * 32, i * 32 + blocks))))
            for i in numbers])
print(json.dumps({"bytes": resident() - before, "digest": core.digest()}))
"""

TABLE = "Memory: resident bytes of each"
KINDS = ("worker", "block", "booking", "booking, 32 named blocks")
COUNTS = {
    "small": {"worker": 2_048, "block": 65_536, "booking": 8_192, "booking, 32 named blocks": 2_048},
    "large": {"worker": 16_384, "block": 4_194_304, "booking": 262_144, "booking, 32 named blocks": 32_768},
}


@pytest.mark.parametrize("kind", KINDS)
def test_memory(kind, benchmark, report, size):
    count = COUNTS[size][kind]

    def child() -> dict:
        command = [sys.executable, "-c", CHILD, kind, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    result = benchmark.pedantic(child, rounds=1, iterations=1)
    each = benchmark.extra_info["bytes_each"] = result["bytes"] / count
    report.digests[benchmark.fullname] = benchmark.extra_info["digest"] = result["digest"]
    report.add(TABLE, kind, count=f"{count:,}", bytes_each=f"{each:,.0f}", digest=result["digest"])
