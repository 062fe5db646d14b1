"""Pairs of schedulers that differ in one thing alone, by its name; what holds for the digests and snapshots of any."""

from __future__ import annotations

from collections.abc import Callable

from stories import Story

from kvcore.scheduler import Scheduler


class Pairs(dict[str, Callable[[bool], Story]]):
    """Name of what differs -> what makes the one story (False) and the other (True). Decorates such functions.

    admission: types of policies that some of the stories have.
    """

    def __init__(self, admission=None) -> None:
        super().__init__()
        self.admission = admission

    def __call__(self, make: Callable[[bool], Story]) -> Callable[[bool], Story]:
        assert make.__name__ not in self
        self[make.__name__] = make
        return make

    def check(self, name: str) -> None:
        """The two have different digests; told once more, the same ones; restored, too."""
        cores = [self[name](other).core for other in (False, True, False, True)]
        digests = [core.digest() for core in cores]
        assert digests[0] != digests[1]
        assert digests[:2] == digests[2:]
        snapshots = [core.snapshot() for core in cores]
        assert snapshots[0] != snapshots[1]
        assert snapshots[:2] == snapshots[2:]
        twins = [Scheduler.restore(data, admission=self.admission) for data in snapshots]
        assert [twin.digest() for twin in twins] == digests
        assert [twin.snapshot() for twin in twins] == snapshots
        assert [twin.stats() for twin in twins] == [core.stats() for core in cores]
