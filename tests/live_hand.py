"""A driver turned by hand: the owner of a core, leases without a loop, and a clock that stands until it is moved."""

from __future__ import annotations

from concurrent.futures import Future

from kvcore.drivers.desk import Desk
from kvcore.drivers.lease import Lease
from kvcore.drivers.owner import Job
from stories import profile

from kvcore.config import SchedulerConfig
from kvcore.events import WorkerUpserted
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler

#: One class that waits while its worker computes a prompt.
WAITS = {"profile": profile(prefill_busy_threshold=0)}


class HandLease(Lease):
    """Counts what its driver would do for its holder."""

    def __init__(self, request, told, live, thread=None):
        super().__init__(request, told, live, thread)
        self.woken = self.interrupted = 0

    def decided(self):
        self.woken += 1

    def interrupt(self):
        self.interrupted += 1


class Hand:
    """workers: of one rank each. steps: what the tap heard. wakes, places: calls of `wake` and of `took`.

    config: fields of SchedulerConfig, or `whole`, all of it. tap: instead of the one that fills `steps`.
    """

    def __init__(self, *workers: int, ask=None, admission=None, tap=None, now=0, whole=None, **config):
        self.now = now
        self.wakes = self.places = 0
        self.steps = []
        core = Scheduler(whole or SchedulerConfig(**{"block_size": 4, **config}), admission=admission)
        self.owner = Desk(
            core, lambda: self.now, tap or self._tap, wake=self._wake, took=self._took, ask=ask)
        self.core, self.live, self.told = core, self.owner.live, self.owner.told
        for worker_id in workers:
            self.submit(lambda now_ns, worker_id=worker_id: WorkerUpserted(now_ns, WorkerConfig(worker_id)))

    def _tap(self, events, actions, core):
        assert core is self.owner.core
        self.steps.append((events, actions))

    def _wake(self):
        self.wakes += 1

    def _took(self):
        self.places += 1

    def put(self, item):
        """Into the inbox."""
        self.owner.inbox.append(item)
        return item

    def job(self, work):
        """Work for the owner, in the inbox; its future."""
        reply = Future()
        self.put(Job(lambda: work(reply), reply))
        return reply

    def submit(self, *makes):
        """Facts from outside, stepped now; the answer."""
        reply = self.job(lambda _: self.owner.submit(makes))
        self.turns()
        return reply.result(0)

    def turns(self) -> int:
        """Turn until there is nothing left; how often."""
        count = 0
        while self.owner.turn():
            count += 1
        return count

    def lease(self, name: str, prompt: int = 8, **fields) -> HandLease:
        """One whose arrival is in the inbox."""
        lease = HandLease(Request(name, prompt, **fields), self.told, self.live)
        lease.enter()
        return self.put(lease)

    def admit(self, name: str, prompt: int = 8, **fields) -> HandLease:
        """One whose arrival has been stepped; taken over if it runs."""
        lease = self.lease(name, prompt, **fields)
        self.turns()
        if lease.is_decided and lease.error is None:
            lease.take_over()
        return lease

    def heard(self, since: int = 0) -> list[str]:
        """The facts of steps so far, by kind and request."""
        return [named(event) for events, _ in self.steps[since:] for event in events]

    def hear(self) -> list[str]:
        """Turn, and say what was stepped meanwhile."""
        since = len(self.steps)
        self.turns()
        return self.heard(since)


def named(event) -> str:
    """The kind of a fact and the request that it is about, if any."""
    about = getattr(event, "request_id", "") or getattr(getattr(event, "request", None), "request_id", "")
    return f"{type(event).__name__} {about}".strip()
