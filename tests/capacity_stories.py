"""Stories of room, status and reports: what tests of a whole scheduler say often, and what they look at.

Builds on stories.py; block size 4 unless said. A rank is named by its worker where workers have one rank each.
"""

from __future__ import annotations

from stories import Story, profile

from kvcore.actions import Dispatch
from kvcore.events import BlocksStored, LoadReported, Tier, WorkerStatusChanged
from kvcore.policy import Capacity, PolicyProfile
from kvcore.request import Request

FOREVER = 2**62 - 1
OPEN, OVERLOADED, LEASED, GONE = range(4)

#: How a worker gets into a state.
SAID = {
    OPEN: {}, OVERLOADED: {"overloaded": True}, LEASED: {"available": False, "lease_ns": FOREVER},
    GONE: {"available": False},
}


def strict(*quanta: int, **keys) -> PolicyProfile:
    """As stories.profile, with strict capacity: every class waits for room."""
    made = profile(*quanta, **keys)
    return PolicyProfile(made.classes, made.buckets, made.default_policy_family, made.arbitration, Capacity.STRICT)


def status(now_ns: int, worker_id: int, source: str = "", **said) -> WorkerStatusChanged:
    incarnation = said.pop("incarnation", 0)
    return WorkerStatusChanged(now_ns, worker_id, incarnation, source, **said)


class FleetStory(Story):
    """A Story whose workers are marked, report load, and have room or not."""

    def say(self, worker_id: int, source: str = "", **said):
        """One source's word on a worker; saying nothing takes an earlier word back."""
        return self.many(status(self.now, worker_id, source, **said))

    def overload(self, worker_id: int, source: str = "", **said):
        return self.say(worker_id, source, overloaded=True, **said)

    def lose(self, worker_id: int, source: str = "", **said):
        return self.say(worker_id, source, available=False, **said)

    def report(self, worker_id: int, sequence: int, prefill_tokens: int = 0, blocks: int = 0, requests: int = 0,
               dp_rank: int = 0, incarnation: int = 0):
        return self.many(LoadReported(
            self.now, worker_id, dp_rank, incarnation, sequence, prefill_tokens, blocks, requests))

    def store_in(self, tier: Tier, worker_id: int, *hashes: int):
        return self.many(BlocksStored(self.now, worker_id, 0, 0, hashes, tier))

    def run(self, name: str, prompt: int = 8, **fields) -> Dispatch:
        """An arrival that is dispatched at once."""
        (action,) = self.arrive(name, prompt, **fields)
        assert isinstance(action, Dispatch), action
        return action

    def row(self, worker_id: int, dp_rank: int = 0) -> dict[str, int]:
        """What `loads` says of a rank."""
        return self._named(self.core.loads(), worker_id, dp_rank)

    def column(self, field: str) -> list:
        """One column of `loads`, in canonical order."""
        return self.core.loads()[field].tolist()

    def potential(self, request: Request, worker_id: int, dp_rank: int = 0) -> dict[str, float]:
        """What `potential_loads` says of a rank."""
        return self._named(self.core.potential_loads(request), worker_id, dp_rank)

    def costs(self, request: Request) -> list[float]:
        """What the request would cost on every rank, in canonical order."""
        return self.core.potential_loads(request)["cost"].tolist()

    def _named(self, rows, worker_id: int, dp_rank: int) -> dict:
        for row in rows:
            if (row["worker_id"], row["dp_rank"]) == (worker_id, dp_rank):
                return {field: row[field].item() for field in rows.dtype.names}
        raise KeyError((worker_id, dp_rank))

    @property
    def waiting(self) -> int:
        return self.core.stats().waiting_requests


def in_states(story: FleetStory, states) -> None:
    """Workers 1, 2, ... are in these states."""
    for worker_id, state in enumerate(states, 1):
        story.say(worker_id, "test", **SAID[state])


def capped(blocks: int | None = 10, requests: int | None = None, workers: int = 1, **config) -> FleetStory:
    """Workers 1, 2, ... with these caps, under strict capacity."""
    story = FleetStory(**{"profile": strict(), **config})
    for worker_id in range(1, workers + 1):
        story.upsert(worker_id, total_kv_blocks=blocks, max_requests=requests)
    return story


def held(story: FleetStory, worker_id: int = 1) -> int:
    """Whole blocks that are taken or kept free."""
    return story.row(worker_id)["held_blocks"]
