"""Short stories for the scheduler: a clock in hand, one method per event, promises checked after each step."""

from __future__ import annotations

from kvcore.actions import Dispatch, Evict, Ignored, Park, ParkReason, RefreshOverlap
from kvcore.config import SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    OutputBlockAdded,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

LETTERS = {Dispatch: "D", Evict: "E", Ignored: "I", RefreshOverlap: "R"}


def profile(*quanta: int, arbitration=Arbitration.EXACT, **keys) -> PolicyProfile:
    """Classes c0, c1, ... of the families f0, f1, ...; keys apply to all; without thresholds a class never waits."""
    classes = tuple(
        PolicyClass(f"c{i}", quantum, policy_family=f"f{i}", cache_bucket="all", **keys)
        for i, quantum in enumerate(quanta or (10,)))
    return PolicyProfile(classes, (CacheBucket("all", 0),), "f0", arbitration)


def short(actions) -> str:
    """The actions in a few letters each, a Reject by its reason.

    `D a` Dispatch, `P` Park, `H` Park of a deferred one (held back), `E` Evict, `I` Ignored, `R` RefreshOverlap.
    """
    return ", ".join(f"{letter(action)} {action.request_id}" for action in actions)


def letter(action) -> str:
    if isinstance(action, Park):
        return "P" if action.reason is ParkReason.QUEUED else "H"
    return LETTERS.get(type(action)) or action.reason.name


def arrive(now_ns: int, name: str, prompt: int = 8, **fields) -> RequestArrived:
    return RequestArrived(now_ns, Request(name, prompt, **fields))


def upsert(now_ns: int, worker_id: int, incarnation: int = 0, **fields) -> WorkerUpserted:
    return WorkerUpserted(now_ns, WorkerConfig(worker_id, **fields), incarnation)


class Story:
    """A scheduler with workers of one rank each, block size 4 unless said, and the present time.

    make: builds it, of a configuration and admission policies, where it is to be another one than the core.
    """

    def __init__(self, *workers: int, make=None, admission=None, **config) -> None:
        made = SchedulerConfig(**{"block_size": 4, **config})
        self.core = Scheduler(made) if make is None else make(made, admission)
        self.now = 0
        for worker_id in workers:
            self.upsert(worker_id)

    def at(self, now_ns: int) -> Story:
        self.now = now_ns
        return self

    def many(self, *events):
        """One batch."""
        actions = self.core.step_many(events)
        self.now = events[-1].now_ns
        self.check()
        return actions

    def check(self) -> None:
        """What holds after every step."""
        stats = self.core.stats()
        assert self.core.audit() == []
        ended = sum(stats.rejected.values()) + stats.completed + stats.aborted
        assert stats.arrived == ended + stats.live_requests
        assert stats.live_requests >= stats.waiting_requests + stats.running_requests
        assert sum(row.rejected for row in stats.classes) <= sum(stats.rejected.values())
        assert self.core.next_deadline_ns is None or self.core.next_deadline_ns > self.now

    def arrive(self, name: str, prompt: int = 8, **fields):
        return self.many(arrive(self.now, name, prompt, **fields))

    def cancel(self, name: str):
        return self.many(RequestCancelled(self.now, name))

    def accept(self, name: str, attempt: int):
        return self.many(DispatchAccepted(self.now, name, attempt))

    def fail(self, name: str, attempt: int, retry: bool = False):
        return self.many(DispatchFailed(self.now, name, attempt, retry))

    def prefill(self, name: str, attempt: int):
        return self.many(PrefillCompleted(self.now, name, attempt))

    def output(self, name: str, attempt: int, fraction=None):
        return self.many(OutputBlockAdded(self.now, name, attempt, fraction))

    def finish(self, name: str, attempt: int, **fields):
        return self.many(RequestFinished(self.now, name, attempt, **fields))

    def context(self, name: str, attempt: int, tokens: int):
        return self.many(ContextAdvanced(self.now, name, attempt, tokens))

    def release(self, name: str, placement: Rank | None = None):
        return self.many(AdmissionReleased(self.now, name, placement))

    def refreshed(self, name: str, ticket: int, overlap=None):
        return self.many(OverlapRefreshed(self.now, name, ticket, overlap))

    def reload(self, profile: PolicyProfile):
        return self.many(PolicyReplaced(self.now, profile))

    def upsert(self, worker_id: int, incarnation: int = 0, **fields):
        return self.many(upsert(self.now, worker_id, incarnation, **fields))

    def remove(self, worker_id: int):
        return self.many(WorkerRemoved(self.now, worker_id))

    def store(self, worker_id: int, *hashes: int, dp_rank: int = 0, incarnation: int = 0):
        return self.many(BlocksStored(self.now, worker_id, dp_rank, incarnation, hashes))

    def drop(self, worker_id: int, *hashes: int, dp_rank: int = 0, incarnation: int = 0):
        return self.many(BlocksRemoved(self.now, worker_id, dp_rank, incarnation, hashes))

    def clear(self, worker_id: int, dp_rank: int = 0, incarnation: int = 0):
        return self.many(BlocksCleared(self.now, worker_id, dp_rank, incarnation))

    def hint(self, *ranks: Rank):
        """Room on these ranks; no ranks: anywhere."""
        return self.many(CapacityHinted(self.now, ranks or None))

    def drain(self, deadline_ns: int):
        return self.many(Drained(self.now, deadline_ns))

    def tick(self, now_ns: int | None = None):
        return self.many(TimerFired(self.now if now_ns is None else now_ns))

    def loads(self) -> list[tuple]:
        """(worker_id, dp_rank, requests, prefill_tokens, active_blocks) by rank."""
        return [row[:5] for row in self.core.loads().tolist()]
