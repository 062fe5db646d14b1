"""Live drivers against the core called directly: one request from submission to lease, and to its end.

A request is an arrival, then acceptance, prefill and end, told together; 16 workers, nothing waits. "time" is CPU of
the calling thread per request, so for threads it leaves out the owner's; "p50" and "p99" are what a caller waits from
submission to lease by the clock on the wall, "adds" is p50 above that of the core alone; "per s" counts whole requests
by the clock on the wall. With several callers a lease is waited for behind the others: that is a queue, not overhead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import trio
from harness import digest, shown, times
from kvcore.drivers import threads
from kvcore.drivers import trio as trio_driver

import kvcore as kv

TABLE = "Drivers: one request"
REQUESTS = {"small": 200, "large": 20_000}
WORKERS = 16
PROMPT = 512


class Run:
    """What one run has measured. waits_ns: from submission to lease, of each request."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.waits_ns: list[int] = []
        self.stats: kv.SchedulerStats | None = None
        self.began_ns = time.perf_counter_ns()

    def end(self, stats: kv.SchedulerStats) -> Run:
        self.wall_ns = time.perf_counter_ns() - self.began_ns
        self.stats = stats
        self.waits_ns.sort()
        return self

    def quantile_us(self, share: float) -> float:
        """Of waiting for a lease."""
        return self.waits_ns[min(self.count - 1, int(self.count * share))] / 1e3


def request(number: int) -> kv.Request:
    return kv.Request(f"r{number}", PROMPT)


def standing() -> int:
    """A clock that stands: what is decided does not depend on the machine."""
    return 0


def through_core(count: int, callers: int) -> Run:
    """No driver: steps in a loop."""
    core = kv.Scheduler()
    core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(worker)) for worker in range(WORKERS)])
    run, clock = Run(count), time.perf_counter_ns
    for number in range(count):
        began = clock()
        (action,) = core.step(kv.RequestArrived(0, request(number)))
        run.waits_ns.append(clock() - began)
        name, attempt = action.request_id, action.attempt
        core.step_many([kv.DispatchAccepted(0, name, attempt), kv.PrefillCompleted(0, name, attempt),
                        kv.RequestFinished(0, name, attempt)])
    return run.end(core.stats())


def through_trio(count: int, callers: int) -> Run:
    """So many tasks, one request after the other each."""
    async def caller(router: trio_driver.Router, numbers, run: Run) -> None:
        clock = time.perf_counter_ns
        for number in numbers:
            began = clock()
            async with router.admit(request(number)) as lease:
                run.waits_ns.append(clock() - began)
                lease.accepted()
                lease.prefill_done()

    async def main() -> Run:
        async with trio_driver.open_scheduler(clock=standing) as router:
            for worker in range(WORKERS):
                await router.upsert_worker(kv.WorkerConfig(worker))
            run, numbers = Run(count), iter(range(count))
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(caller, router, numbers, run)
            return run.end(await router.stats())

    return trio.run(main)


def through_threads(count: int, callers: int) -> Run:
    """So many threads, one request after the other each."""
    def caller(router: threads.Router, numbers, run: Run) -> None:
        clock = time.perf_counter_ns
        for number in numbers:
            began = clock()
            with router.admit(request(number)) as lease:
                run.waits_ns.append(clock() - began)
                lease.accepted()
                lease.prefill_done()

    with threads.open_scheduler(clock=standing) as router:
        for worker in range(WORKERS):
            router.upsert_worker(kv.WorkerConfig(worker))
        run, numbers = Run(count), iter(range(count))
        others = [threading.Thread(target=caller, args=(router, numbers, run)) for _ in range(callers - 1)]
        for thread in others:
            thread.start()
        caller(router, numbers, run)
        for thread in others:
            thread.join()
        return run.end(router.stats())


ROWS: dict[str, tuple[Callable[[int, int], Run], int]] = {
    "core": (through_core, 1),
    "trio, 1 caller": (through_trio, 1),
    "trio, 64 callers": (through_trio, 64),
    "threads, 1 caller": (through_threads, 1),
    "threads, 8 callers": (through_threads, 8),
}


@pytest.mark.parametrize("row", ROWS)
def test_request(row, benchmark, report, size):
    through, callers = ROWS[row]
    count = REQUESTS[size]
    runs: list[Run] = []

    def measured(count: int, callers: int) -> None:
        runs.append(through(count, callers))

    first = through(count, callers)
    assert first.stats is not None
    assert first.stats.completed == count
    text = digest(first.stats)
    figure = report.measure(benchmark, lambda: (count, callers), measured, count, text, size)
    best = min(runs, key=lambda run: run.quantile_us(0.5))
    core = min(through_core(count, 1).quantile_us(0.5) for _ in range(3))
    report.add(TABLE, row, time=shown(figure), x=times(figure))
    if figure is not None:
        p50_us, p99_us = best.quantile_us(0.5), best.quantile_us(0.99)
        report.add(
            TABLE, row, p50=f"{p50_us:,.1f} us", p99=f"{p99_us:,.1f} us", adds=f"{p50_us - core:,.1f} us",
            per_s=f"{count / min(run.wall_ns for run in runs) * 1e9:,.0f}")
    report.add(TABLE, row, digest=text)
