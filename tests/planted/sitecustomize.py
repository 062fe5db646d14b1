"""A planted slowdown: with this folder on PYTHONPATH, every core does a twentieth of the work of a batch twice.

Python imports a module of this name when it starts. The second time is done by a twin, so that no answer changes; what
is measured is real work. Only batches are slowed down: a wrapper around `step` would cost more than it should add.
"""

from __future__ import annotations

import kvcore
from kvcore.scheduler import Scheduler

PART = 20


class Slower:
    """Stands in for Scheduler where benchmarks make one."""

    def __init__(self, config: kvcore.SchedulerConfig | None = None) -> None:
        self._core, self._twin = Scheduler(config), Scheduler(config)

    def __getattr__(self, name: str) -> object:
        """All but batches goes straight through."""
        return getattr(self._core, name)

    def step_many(self, events):
        """Step all, and one in PART once more. Workers are whole in both."""
        whole = isinstance(events[0], kvcore.WorkerUpserted)
        self._twin.step_many(events if whole else events[::PART])
        return self._core.step_many(events)


kvcore.Scheduler = Slower
