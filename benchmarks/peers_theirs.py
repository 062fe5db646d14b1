"""The other side of peers.py, run by an interpreter that has the wheel ai-dynamo-runtime; prints JSON figures.

    PEER/bin/python benchmarks/peers_theirs.py CASE PARAMETERS

Only the standard library and the wheel's public Python interface are used. Its log is off, and events of caches come
from nobody, so that it listens to nothing. Its calls are awaited: by so many callers at a time, each one call after the
other, on asyncio's own event loop or on uvloop, which the wheel brings along.
"""

from __future__ import annotations

import os

# Read when the wheel is imported. A line of log per selection would cost more than some of what is measured.
os.environ |= {"DYN_LOG": "off", "DYN_USE_KV_EVENTS": "false"}

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable

import uvloop
from dynamo._core import RadixTree, SelectionService, run_mocker_trace_replay


def spent(run: Callable[[], object], items: int) -> tuple[float, float]:
    """CPU of all threads and time on the wall, in nanoseconds per item."""
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    run()
    return (time.process_time_ns() - cpu) / items, (time.perf_counter_ns() - wall) / items


def best(figures: list[tuple[float, float]]) -> dict[str, float]:
    """The least of several rounds."""
    return {"cpu_ns": min(cpu for cpu, _ in figures), "wall_ns": min(wall for _, wall in figures)}


def cycle(workers: int, requests: int, rounds: int, block_size: int, prompt: int, named: bool, at_once: int,
          loop: str) -> dict:
    """select_and_reserve, prefill_complete, free_reservation."""
    blocks = prompt // block_size
    paths = [[i * blocks + j + (1 << 62) for j in range(blocks)] if named else [] for i in range(requests)]

    async def one(service: SelectionService, name: str, i: int) -> None:
        await service.select_and_reserve({
            "selection_id": name, "block_hashes": paths[i], "sequence_hashes": paths[i], "isl_tokens": prompt})
        await service.prefill_complete(name)
        await service.free_reservation(name)

    async def caller(service: SelectionService, numbered) -> None:
        for i, name in numbered:
            await one(service, name, i)

    async def main() -> dict[str, float]:
        service = SelectionService(indexer_threads=1)
        for i in range(workers):
            await service.upsert_worker({
                "worker_id": i, "block_size": block_size, "endpoint": "http://127.0.0.1:1",
                "max_num_batched_tokens": 8192, "total_kv_blocks": 27_648})
        figures = []
        for _ in range(rounds + 1):
            numbered = enumerate([f"r{i}" for i in range(requests)])
            cpu, wall = time.process_time_ns(), time.perf_counter_ns()
            if at_once == 1:
                await caller(service, numbered)
            else:
                await asyncio.gather(*(caller(service, numbered) for _ in range(at_once)))
            figures.append(((time.process_time_ns() - cpu) / requests, (time.perf_counter_ns() - wall) / requests))
        (loads,) = service.loads()
        assert len(loads["loads"]) == workers
        assert not any(load["active_requests"] for load in loads["loads"])
        service.shutdown()
        return best(figures[1:])

    return (uvloop if loop == "uvloop" else asyncio).run(main())


def index(workers: int, paths: int, depth: int, rounds: int) -> dict:
    """RadixTree: store, find, miss, remove. Its events are bytes of JSON, made beforehand."""
    def names(first: int) -> list[list[int]]:
        return [[(first + i * depth + j) * 0x9E3779B97F4A7C15 & 2**63 - 1 for j in range(depth)] for i in range(paths)]

    def event(number: int, data: dict) -> bytes:
        return json.dumps({"event_id": number, "data": data, "dp_rank": 0}).encode()

    held, absent = names(1), names(1 << 40)
    stores = [event(i, {"stored": {"parent_hash": None, "blocks": [
        {"block_hash": name, "tokens_hash": name} for name in path]}}) for i, path in enumerate(held)]
    removes = [event(paths + i, {"removed": {"block_hashes": path}}) for i, path in enumerate(held)]
    tree = RadixTree()

    def apply(events: list[bytes]) -> None:
        for i, content in enumerate(events):
            tree.apply_event(i % workers, content)
        tree.find_matches([0])  # whatever is queued has been done when this answers

    def find(asked: list[list[int]]) -> None:
        for path in asked:
            tree.find_matches(path)

    found: dict[str, list[tuple[float, float]]] = {"store": [], "find": [], "miss": [], "remove": []}
    for _ in range(rounds + 1):
        found["store"].append(spent(lambda: apply(stores), paths))
        assert list(tree.find_matches(held[-1]).scores.values()) == [depth]
        found["find"].append(spent(lambda: find(held), paths))
        found["miss"].append(spent(lambda: find(absent), paths))
        found["remove"].append(spent(lambda: apply(removes), paths))
        assert not tree.find_matches(held[-1]).scores
    return {name: best(figures[1:]) for name, figures in found.items()}


def replay(trace: str, workers: int, block_size: int, kv_tokens: int) -> dict:
    """Offline replay of a Mooncake trace through its router and its engine model, with its report."""
    engine = {
        "block_size": block_size, "num_gpu_blocks": kv_tokens // block_size, "max_num_seqs": 256,
        "max_num_batched_tokens": 8192}
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    result = run_mocker_trace_replay(
        [trace], extra_engine_args={"engine": engine}, num_workers=workers, router_mode="kv_router",
        trace_block_size=512, capture_planner_details=False)
    summary = result.summary
    return {
        "cpu_ns": time.process_time_ns() - cpu, "wall_ns": time.perf_counter_ns() - wall,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "completed": summary["completed_requests"], "ttft_ms": summary["mean_ttft_ms"],
        "hit": summary["prefix_cache_reused_ratio"],
    }


if __name__ == "__main__":
    print(json.dumps({"cycle": cycle, "index": index, "replay": replay}[sys.argv[1]](**json.loads(sys.argv[2]))))
