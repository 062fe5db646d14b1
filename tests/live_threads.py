"""Stories for the driver for threads: a router whose record is checked when it has closed, and ways to wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from kvcore.drivers.threads import open_scheduler
from live_trio import Record

from kvcore.config import SchedulerConfig
from kvcore.request import Request, WorkerConfig

#: Seconds after which something hangs.
PATIENCE_S = 60


@contextmanager
def opened(*workers: int, tap=None, **options):
    """A router over workers of one rank, and its record, which is checked when it has closed."""
    record = Record()
    ours = {name: options.pop(name) for name in ("inbox_max", "clock", "refresh", "mint_ids") if name in options}
    config = SchedulerConfig(**{"block_size": 4, **options})
    with open_scheduler(config, tap=tap or record.tap, **ours) as router:
        for worker_id in workers:
            router.upsert_worker(WorkerConfig(worker_id))
        yield router, record
    if tap is None:
        record.check()


@contextmanager
def threads(*works):
    """Each in a thread of its own; joined at the end, and what they raise is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
        yield futures
        for future in futures:
            future.result(PATIENCE_S)


def until(condition) -> None:
    """Wait for something that another thread brings about."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 1000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it has not come about")


def waiting(router) -> int:
    return router.stats().waiting_requests


def run(router, name, **fields):
    with router.admit(Request(name, 8, **fields)) as lease:
        lease.accepted()
        lease.output_block()
        return lease.worker_id
