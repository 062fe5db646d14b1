"""What the gate measures: pieces of work for instruction counts and ratios, and counters of algorithms.

    python benchmarks/gate_works.py ratios 'cycle, W = 16'      the process that is measured

Each is small, and alike each time that it runs. A run returns how to get the digest of what it leaves, which is no part
of what is measured. Counters need the doors of the tests (tests/_probe_queue.pyx).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from harness import digest
from kvcore.drivers.bench.measured import Work, serve
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import TraceRow

import kvcore as kv
from kvcore import (
    BlocksRemoved,
    BlocksStored,
    PrefillCompleted,
    Rank,
    Request,
    RequestArrived,
    RequestFinished,
    WorkerConfig,
    WorkerUpserted,
)

Run = Callable[[], Callable[[], str]]

BLOCK_SIZE, BLOCKS = 16, 32
PROMPT = BLOCKS * BLOCK_SIZE
#: Names as large as hashes are, without a pattern that a table could profit from.
PATHS = [tuple(((i * BLOCKS + j) * 0x9E3779B97F4A7C15) & 2**64 - 1 for j in range(BLOCKS)) for i in range(64)]
#: Classes with quanta of 1,000 to 8,000, never busy.
EIGHT = kv.PolicyProfile(
    tuple(kv.PolicyClass(f"c{i}", 1000 * (i + 1), policy_family=f"f{i}", cache_bucket="all",
                         prefill_busy_threshold=1 << 40) for i in range(8)),
    (kv.CacheBucket("all", 0),), "f0")
#: The same, busy as soon as anything is under way.
WAITING = kv.PolicyProfile(
    tuple(kv.PolicyClass(f"c{i}", 1000 * (i + 1), policy_family=f"f{i}", cache_bucket="all",
                         prefill_busy_threshold=0) for i in range(8)),
    (kv.CacheBucket("all", 0),), "f0")


def fleet(workers: int, profile: kv.PolicyProfile, **weights: float) -> kv.Scheduler:
    config = kv.SchedulerConfig(
        block_size=BLOCK_SIZE, profile=profile, seed=1, weights=kv.SelectionWeights(**weights))
    core = kv.Scheduler(config)
    core.step_many([WorkerUpserted(0, WorkerConfig(worker, 0, 1, 8192)) for worker in range(workers)])
    return core


def cycles(workers: int, count: int, **weights: float) -> Run:
    """count requests of eight classes, one after the other: arrival, prefill, finish, stepped one by one."""
    core = fleet(workers, EIGHT, **weights)
    ids = [(f"r{i}", f"f{i & 7}") for i in range(count)]

    def run() -> Callable[[], str]:
        for request_id, family in ids:
            (dispatch,) = core.step(RequestArrived(0, Request(request_id, PROMPT, policy_class=family)))
            core.step(PrefillCompleted(0, request_id, dispatch.attempt))
            core.step(RequestFinished(0, request_id, dispatch.attempt))
        return core.digest

    return run


def named_cycles(workers: int) -> Run:
    """Cycles whose prompts name their 32 blocks; half of the prompts are cached by one worker."""
    core = fleet(workers, EIGHT)
    core.step_many([BlocksStored(0, i % workers, 0, 0, path) for i, path in enumerate(PATHS[::2])])

    def run() -> Callable[[], str]:
        for i, path in enumerate(PATHS):
            (dispatch,) = core.step(RequestArrived(0, Request(f"r{i}", PROMPT, block_hashes=path)))
            core.step(PrefillCompleted(0, f"r{i}", dispatch.attempt))
            core.step(RequestFinished(0, f"r{i}", dispatch.attempt))
        return core.digest

    return run


def backlog(workers: int, each: int) -> Run:
    """A backlog of eight classes, a quarter of it pinned, that is stored in one batch and drained by finishing."""
    core = fleet(workers, WAITING)
    arrivals = [
        RequestArrived(0, Request(f"r{i}", PROMPT, policy_class=f"f{i & 7}", priority_jump=float(i % 5),
                                  pinned=Rank(i // 4 % workers) if i % 4 == 0 else None))
        for i in range(workers * each)]

    def run() -> Callable[[], str]:
        actions = core.step_many(arrivals)
        while actions:
            ends = []
            for action in actions:
                if isinstance(action, kv.Dispatch):
                    ends += (PrefillCompleted(0, action.request_id, action.attempt),
                             RequestFinished(0, action.request_id, action.attempt))
            actions = core.step_many(ends)
        return core.digest

    return run


def index(workers: int) -> Run:
    """Paths that one worker each stores and gives back, and one path that all do."""
    core = fleet(workers, EIGHT)
    held = [(i % workers, path) for i, path in enumerate(PATHS)]
    held += [(worker, tuple(range(1, BLOCKS + 1))) for worker in range(workers)]
    events = [BlocksStored(0, worker, 0, 0, path) for worker, path in held]
    events += [BlocksRemoved(0, worker, 0, 0, path) for worker, path in held]

    def run() -> Callable[[], str]:
        core.step_many(events)
        return core.digest

    return run


def rows(count: int) -> list[TraceRow]:
    """A trace of which every other prompt begins with two blocks that one in eight shares."""
    return [
        TraceRow(arrival_ns=i * 5_000_000, prompt_tokens=PROMPT, output_tokens=20 + i % 50,
                 block_hashes=(PATHS[i % 8][:2] if i % 2 else ()) + PATHS[i % 64][2:], file_index=0, row=i + 1)
        for i in range(count)]


def replay(count: int) -> Run:
    """A whole replay: loop, core and engine model."""
    trace = rows(count)
    config = kv.SchedulerConfig(block_size=BLOCK_SIZE)

    def run() -> Callable[[], str]:
        result = simulate(trace, config, PRESETS["generic"], 4)
        return lambda: result.digest

    return run


WORKS: dict[str, Work] = {
    "cycle, W = 16": Work(lambda: cycles(16, 256), 256, ratio=True),
    "cycle, W = 2,048": Work(lambda: cycles(2048, 256), 256),
    "cycle, temperature 0.7, W = 64": Work(lambda: cycles(64, 64, temperature=0.7), 64),
    "cycle, 32 hashes, W = 16": Work(lambda: named_cycles(16), len(PATHS), ratio=True),
    "backlog, 64 x 16 requests": Work(lambda: backlog(16, 64), 1024, ratio=True),
    "index, block stored and removed": Work(lambda: index(16), (len(PATHS) + 16) * BLOCKS),
    "replay, request": Work(lambda: replay(100), 100),
}


def spread(items: int) -> list[int]:
    """0 .. items - 1 in an order without a pattern."""
    return sorted(range(items), key=lambda item: item * 0x9E3779B97F4A7C15 & 2**64 - 1)


def counters() -> dict[str, int]:
    """Counts of what queues do, by name: the same wherever they are counted."""
    tests = str(Path(__file__).resolve().parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from probe_build import load

    probe = load("_probe_queue")
    found: dict[str, int] = {}
    shared = probe.Lanes()
    for seq, item in enumerate(spread(1024)):
        shared.push(item, (0, item, 0, seq))
    for _ in range(1024):
        shared.take(shared.candidate(lambda class_index, item: True))
    found["heap moves, 1,024 requests in one lane"] = shared.moves
    lanes = probe.Lanes()
    for item in range(1024):
        lanes.push(item, (0, item, 0, item), rank=item % 64)
    while (item := lanes.candidate(lambda class_index, item: item % 64 >= 32)) is not None:
        lanes.take(item)
    lanes.recheck_all()
    lanes.candidate(lambda class_index, item: False)
    found["heap moves, 64 lanes, half of them blocked"] = lanes.moves
    found["lanes inspected, 64 lanes, half of them blocked"] = lanes.tests
    queue = probe.Queue(EIGHT)
    for item in range(1024):
        queue.push(item, item % 8, (0, item, 0, item), cost=1 + item % 4096)
    while queue.size:
        queue.pop(lambda class_index, item: True)
    found["ring steps, 1,024 requests in 8 classes"] = queue.visits
    return found


def digest_of(name: str) -> str:
    """Of the state that a piece of work leaves after each of its first runs."""
    run = WORKS[name].prepare()
    return digest(run()(), run()())


if __name__ == "__main__":
    sys.exit(serve(WORKS, sys.argv[1:]))
