"""Live drivers under load: modelled engines on 2,048 workers, callers that go, workers that restart, slow consumers.

At the end the ledger is zero, no task and no thread is left, and memory has not grown since the first sixth of the run.
KVCORE_FLEET_REQUESTS=100000 takes a minute; under CI it is fewer, and elsewhere, and in debug builds, fewer still.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from random import Random

import trio
from kvcore.drivers.trio import open_scheduler
from live_fleet import Engines, mishaps, traffic
from live_trio import run

from kvcore.config import SchedulerConfig
from kvcore.policy import Capacity

WHOLE = bool(os.environ.get("CI")) and os.environ.get("HYPOTHESIS_PROFILE") != "dev"
REQUESTS = int(os.environ.get("KVCORE_FLEET_REQUESTS", 12_000 if WHOLE else 6_000))
WORKERS = 2_048
RATE = 2_000.0


def resident_kb() -> int:
    """Memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def test_a_fleet_under_load_leaves_nothing_behind():
    random, log = Random(11), Counter()
    seen: dict[str, object] = {}
    threads = threading.active_count()

    async def main():
        tasks = trio.lowlevel.current_statistics().tasks_living
        engines = Engines(WORKERS, 16, kv_tokens=1_024)  # so small that they are full before memory is looked at
        async with open_scheduler(SchedulerConfig(capacity=Capacity.STRICT), inbox_max=64) as router:
            await engines.start(router)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engines.run, router)
                nursery.start_soon(mishaps, router, engines, random, 0.05)
                for part in range(6):
                    async with trio.open_nursery() as callers:
                        callers.start_soon(traffic, router, engines, random, REQUESTS // 6, RATE, log)
                        seen["most"] = max(seen.get("most", 0), await most_live(router))
                    seen[f"rss {part}"] = resident_kb()
                nursery.cancel_scope.cancel()
            seen["stats"], seen["audit"] = await router.stats(), await router.read(lambda core: core.audit())
            seen["loads"] = await router.loads()
            assert not router._owner.live
            assert not router._owner.told.waiting
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    run(main)
    stats = seen["stats"]
    assert (stats.live_requests, stats.running_requests, seen["audit"]) == (0, 0, [])
    for name in ("requests", "prefill_tokens", "active_blocks", "held_blocks"):
        assert seen["loads"][name].sum() == 0
    assert sum(log.values()) == stats.arrived == REQUESTS // 6 * 6
    assert stats.completed == log["completed"]
    assert {"completed", "gone", "evicted WORKER_REMOVED"} <= set(log)
    assert seen["most"] > 100
    assert threading.active_count() == threads
    if WHOLE:
        assert seen["rss 5"] <= seen["rss 0"] * 1.05


async def most_live(router) -> int:
    """How much is live a while after the callers have begun."""
    await trio.sleep(1)
    return (await router.stats()).live_requests
