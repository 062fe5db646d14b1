"""What two threads on two processors gain where the interpreter's lock (GIL) is given away: wall time, not CPU time.

Two fleets of the engine model, each with a backlog of its own, are advanced to the end: one after the other, then at
the same time by two threads. What runs without the lock is the model itself; making the events needs it. So the
speed-up says how much of the whole that is, and cannot reach 2. It needs two idle processors: look at the load.

    stepwise   advance() goes from fact to fact, as a replay does: the lock is kept, because a fact is soon found
    at once    one advance(): the lock is given away for some thousand facts at a time
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from harness import digest
from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import PRESETS

TABLE = "Two threads, wall time of both together"
WORKERS = 16
END_NS = 1 << 60
ROUNDS = {"small": 2, "large": 15}

#: Builds one thread's task, which is run once; its answer goes into the digest.
Task = Callable[[], object]


def fleet(requests: int) -> Fleet:
    """Workers with a backlog: long prompts that share nothing, and short answers."""
    made = Fleet(WORKERS, PRESETS["generic"], 16)
    for i in range(requests):
        names = tuple((i << 32) + j for j in range(128))
        made.submit(i % WORKERS, f"r{i}", 1, 2048, 64 + i % 64, names, 0)
    return made


def at_once(requests: int) -> Task:
    made = fleet(requests)
    return lambda: made.advance(END_NS)


def stepwise(requests: int) -> Task:
    made = fleet(requests)

    def run() -> list[object]:
        events: list[object] = []
        while (next_ns := made.next_ns) is not None:
            events += made.advance(next_ns)
        return events

    return run


KINDS: dict[str, Callable[[int], Task]] = {"engine model, at once": at_once, "engine model, stepwise": stepwise}


def wall_ns(tasks: list[Task], together: bool) -> int:
    """Time until all tasks have been run."""
    start = time.perf_counter_ns()
    if together:
        threads = [threading.Thread(target=task) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        for task in tasks:
            task()
    return time.perf_counter_ns() - start


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sizes("requests", small=(64,), large=(1024,))
def test_two_threads(kind, requests, benchmark, report, size):
    build = KINDS[kind]
    found = digest(build(requests)())
    times: dict[bool, list[int]] = {False: [], True: []}

    def both() -> None:
        for together in times:
            times[together].append(wall_ns([build(requests), build(requests)], together))

    benchmark.pedantic(both, rounds=ROUNDS[size])
    report.digests[benchmark.fullname] = benchmark.extra_info["digest"] = found
    after, at_the_same_time = min(times[False]), min(times[True])
    benchmark.extra_info |= {"one_after_the_other_ns": after, "together_ns": at_the_same_time}
    report.add(TABLE, f"{kind}, {requests:,} requests", one_after_the_other=f"{after / 1e6:,.1f} ms",
               together=f"{at_the_same_time / 1e6:,.1f} ms", speed_up=f"{after / at_the_same_time:.2f}x", digest=found)
