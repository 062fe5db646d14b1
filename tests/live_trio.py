"""Stories for the trio driver: virtual time, every step recorded, promises checked when the router has closed."""

from __future__ import annotations

import trio
import trio.testing
from kvcore.drivers.trio import open_scheduler
from trio._core import _run as trio_run

from kvcore.config import SchedulerConfig
from kvcore.request import WorkerConfig
from kvcore.scheduler import Scheduler

#: Virtual seconds after which a story hangs.
PATIENCE_S = 1_000_000_000


class Record:
    """A tap. steps: (events, actions) of each; core: the one that was stepped."""

    def __init__(self) -> None:
        self.steps = []
        self.core = None
        self.on_step = None

    def tap(self, events, actions, core) -> None:
        self.core = core
        self.steps.append((events, actions))
        if self.on_step is not None:
            self.on_step(events, actions)

    def of(self, kind, request_id=None) -> list:
        """Facts or actions of a kind, in order; of one request."""
        return [
            item for step in self.steps for part in step for item in part
            if isinstance(item, kind) and request_id in (None, getattr(item, "request_id", None))]

    def check(self, admission=None) -> None:
        """The ledger is at rest, and the same facts give the same decisions again."""
        assert self.core.audit() == []
        stats = self.core.stats()
        assert (stats.live_requests, stats.running_requests, stats.waiting_requests) == (0, 0, 0)
        for name in ("requests", "prefill_tokens", "active_blocks"):
            assert self.core.loads()[name].sum() == 0
        again = Scheduler(self.core.config, admission=admission)
        for events, actions in self.steps:
            assert again.step_many(events) == actions


def run(main, seed: int = 0, instruments=()) -> None:
    """trio.run in virtual time, with an order of tasks that depends on the seed only."""
    was, trio_run._ALLOW_DETERMINISTIC_SCHEDULING = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, True
    trio_run._r.seed(seed)
    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=instruments)
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = was


def play(story, *workers: int, instruments=(), admission=None, tap=None, seed: int = 0, **options) -> Record:
    """Run `await story(router, record)` with a router over workers of one rank; its record.

    options: of open_scheduler and of SchedulerConfig (block size 4 unless said).
    """
    record = Record()
    ours = {name: options.pop(name) for name in ("inbox_max", "clock", "refresh", "mint_ids") if name in options}
    config = SchedulerConfig(**{"block_size": 4, **options})

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with open_scheduler(config, admission=admission, tap=tap or record.tap, **ours) as router:
                for worker_id in workers:
                    await router.upsert_worker(WorkerConfig(worker_id))
                await story(router, record)

    run(main, seed, instruments)
    return record
