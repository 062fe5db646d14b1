"""A scheduler that is stepped by arrays of rows wherever a row can hold the event, to be compared with others."""

from __future__ import annotations

from dataclasses import replace

from kvcore.actions import RefreshOverlap
from kvcore.events import RequestArrived
from kvcore.records import actions_from_records, records_from_events
from kvcore.scheduler import Scheduler


def names_in(events) -> tuple[str, ...]:
    """Names of policy classes that arrivals give."""
    arrivals = (event.request for event in events if isinstance(event, RequestArrived) and event.request is not None)
    return tuple(dict.fromkeys(request.policy_class for request in arrivals if request.policy_class is not None))


class Arrayed:
    """Scheduler, but for `step`; all ids must be numbers. rows: how many events have been rows."""

    def __init__(self, config, admission=None) -> None:
        self.core = Scheduler(config, admission)
        self.hashes: dict[str, tuple[int, ...]] = {}
        self.rows = 0

    def __getattr__(self, name):
        return getattr(self.core, name)

    def step(self, event):
        """Scheduler.step."""
        return self.step_all([event])

    def step_many(self, events):
        """Scheduler.step_many."""
        for event in events:
            self.hear(event)
        return self.core.step_many(events)

    def hear(self, event) -> None:
        """What a RefreshOverlap in a row does not say."""
        if isinstance(event, RequestArrived) and event.request is not None:
            self.hashes[event.request.request_id] = event.request.block_hashes

    def step_all(self, events):
        """Scheduler.step of each: rows in a row go together."""
        told, run = [], []
        for event in events:
            self.hear(event)
            if self.fits(event):
                run.append(event)
                continue
            told += self.flush(run)
            run = []
            told += self.core.step(event)
        return (*told, *self.flush(run))

    def fits(self, event) -> bool:
        """Whether a row can hold the event, and rows serve this scheduler at all."""
        try:
            records_from_events([event], names_in([event]))
        except (ValueError, OverflowError):
            return False
        return self.core.config.replica is None

    def flush(self, events) -> list:
        if not events:
            return []
        names = names_in(events)
        self.rows += len(events)
        actions = actions_from_records(self.core.step_array(*records_from_events(events, names), names))
        return [
            replace(action, block_hashes=self.hashes[action.request_id]) if isinstance(action, RefreshOverlap)
            else action for action in actions]
