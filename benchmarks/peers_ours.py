"""Our side of peers.py; prints JSON figures.

    python benchmarks/peers_ours.py CASE PARAMETERS

The same shapes as in peers_theirs.py, through kvcore's public Python interface. Events are built as they are stepped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from replay_child import peak_bytes

import kvcore as kv
from kvcore import PrefillCompleted, Request, RequestArrived, RequestFinished
from kvcore.records import EVENT_DTYPE, EventKind


def spent(run: Callable[[], object], items: int) -> tuple[float, float]:
    """CPU of all threads and time on the wall, in nanoseconds per item."""
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    run()
    return (time.process_time_ns() - cpu) / items, (time.perf_counter_ns() - wall) / items


def best(figures: list[tuple[float, float]]) -> dict[str, float]:
    """The least of several rounds."""
    return {"cpu_ns": min(cpu for cpu, _ in figures), "wall_ns": min(wall for _, wall in figures)}


def fleet(workers: int, block_size: int) -> kv.Scheduler:
    """A scheduler with idle workers."""
    core = kv.Scheduler(kv.SchedulerConfig(block_size=block_size))
    core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(i, 0, 1, 8192, 27_648)) for i in range(workers)])
    return core


def cycle(workers: int, requests: int, rounds: int, block_size: int, prompt: int, named: bool, at_once: int,
          loop: str) -> dict:
    """RequestArrived, PrefillCompleted, RequestFinished. Calls are plain: a loop means nothing here."""
    blocks = prompt // block_size
    paths = [tuple(i * blocks + j + (1 << 62) for j in range(blocks)) if named else () for i in range(requests)]
    core = fleet(workers, block_size)

    def one_by_one(names: list[str]) -> None:
        step = core.step
        for name, path in zip(names, paths, strict=True):
            (dispatch,) = step(RequestArrived(0, Request(name, prompt, block_hashes=path)))
            attempt = dispatch.attempt
            step(PrefillCompleted(0, name, attempt))
            step(RequestFinished(0, name, attempt))

    def together(names: list[str]) -> None:
        for first in range(0, requests, at_once):
            rows = np.zeros(min(at_once, requests - first), EVENT_DTYPE)
            rows["kind"], rows["prompt_tokens"] = EventKind.REQUEST_ARRIVED, prompt
            rows["request"] = np.arange(first, first + len(rows))
            rows["attempt"] = core.step_array(rows)["attempt"]
            for kind in (EventKind.PREFILL_COMPLETED, EventKind.REQUEST_FINISHED):
                rows["kind"] = kind
                core.step_array(rows)

    run = one_by_one if at_once == 1 else together
    figures = []
    for _ in range(rounds + 1):
        names = [f"r{i}" for i in range(requests)]
        figures.append(spent(lambda names=names: run(names), requests))
    stats = core.stats()
    assert stats.completed == requests * (rounds + 1)
    assert not core.loads()["requests"].any()
    return best(figures[1:])


def index(workers: int, paths: int, depth: int, rounds: int) -> dict:
    """BlocksStored, BlocksRemoved. The index has no door of its own: find and miss are peek(), which chooses too."""
    def names(first: int) -> list[tuple[int, ...]]:
        return [tuple((first + i * depth + j) * 0x9E3779B97F4A7C15 & 2**63 - 1 for j in range(depth))
                for i in range(paths)]

    held, absent = names(1), names(1 << 40)
    core = fleet(workers, 16)

    def store() -> None:
        step = core.step
        for i, path in enumerate(held):
            step(kv.BlocksStored(0, i % workers, 0, 0, path))

    def remove() -> None:
        step = core.step
        for i, path in enumerate(held):
            step(kv.BlocksRemoved(0, i % workers, 0, 0, path))

    def find(asked: list[tuple[int, ...]]) -> None:
        peek = core.peek
        for path in asked:
            peek(kv.Request("r", 16 * depth, block_hashes=path, sequence_hashes=()))

    def seen(path: tuple[int, ...]) -> int:
        return int(core.peek(kv.Request("r", 16 * depth, block_hashes=path)).overlap_blocks)

    found: dict[str, list[tuple[float, float]]] = {"store": [], "find": [], "miss": [], "remove": []}
    for _ in range(rounds + 1):
        found["store"].append(spent(store, paths))
        assert seen(held[-1]) == depth
        found["find"].append(spent(lambda: find(held), paths))
        found["miss"].append(spent(lambda: find(absent), paths))
        found["remove"].append(spent(remove, paths))
        assert seen(held[-1]) == 0
    return {name: best(figures[1:]) for name, figures in found.items()}


def replay(trace: str, workers: int, block_size: int, kv_tokens: int) -> dict:
    """kvcore replay: reading, core, engine model and report."""
    from kvcore.drivers.replay.presets import PRESETS
    from kvcore.drivers.replay.report import summarize
    from kvcore.drivers.replay.simulate import simulate
    from kvcore.drivers.replay.traces import open_traces

    spec = PRESETS["generic"]
    assert spec.kv_tokens == kv_tokens
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    with open_traces([trace], block_size=block_size) as stream:
        result = simulate(stream, kv.SchedulerConfig(block_size=block_size), spec, workers, paths=[trace])
    total = summarize(result)["total"]
    cpu_ns, wall_ns, peak = time.process_time_ns() - cpu, time.perf_counter_ns() - wall, peak_bytes()
    ttft = result.table.column("first_token_ns") - result.table.column("arrival_ns")
    return {
        "cpu_ns": cpu_ns, "wall_ns": wall_ns, "peak_bytes": peak, "completed": total["completed"],
        "ttft_ms": float(ttft.mean()) / 1e6, "hit": total["prefix_hit"]["engine_rate"],
    }


if __name__ == "__main__":
    print(json.dumps({"cycle": cycle, "index": index, "replay": replay}[sys.argv[1]](**json.loads(sys.argv[2]))))
