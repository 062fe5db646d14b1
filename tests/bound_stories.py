"""Short histories under an overtaking bound: who is left out of one choice is looked at again in the next.

Three workers, each busy with any prefill. Class `c1` serves the last to come first; `old` may use worker 1 only, `two`
and `dear` are pinned to worker 2, `new` may use worker 3 only. When workers 2 and 3 are free, `dear` is the best head,
but would go past `old` by more than the bound: `old` stands in and fails, so the shared lane is left out. Then `two`
stands in for `dear` and takes worker 2. Now `dear` cannot run, and `new`, which breaks no bound, is served.
"""

from __future__ import annotations

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.request import Rank, Request, WorkerConfig

CLASSES = tuple(
    PolicyClass(name, 20, QueuePolicy.LCFS, name, "all", prefill_busy_threshold=0, max_overtake_tokens=8)
    for name in ("c0", "c1"))
CONFIG = SchedulerConfig(4, PolicyProfile(CLASSES, (CacheBucket("all", 0),), "c1"), index=IndexMode.OFF)


def arrive(now_ns: int, name: str, prompt: int, **where) -> RequestArrived:
    return RequestArrived(now_ns, Request(name, prompt, **where))


def only(worker_id: int) -> dict:
    return {"allowed_workers": frozenset({worker_id})}


FULL = (
    *(WorkerUpserted(0, WorkerConfig(worker_id)) for worker_id in (1, 2, 3)),
    *(arrive(0, f"run{worker_id}", 1, pinned=Rank(worker_id)) for worker_id in (1, 2, 3)),
)
QUEUE = (arrive(1, "old", 2, **only(1)), arrive(2, "two", 1, pinned=Rank(2)),
         arrive(3, "new", 2, strict_priority=1, **only(3)), arrive(4, "dear", 9, strict_priority=1, pinned=Rank(2)))


def free(now_ns: int, *workers: int) -> tuple[AnyEvent, ...]:
    return tuple(PrefillCompleted(now_ns, f"run{i}", i) for i in workers)


SERVED = ((FULL, "run1 run2 run3"), (QUEUE, ""), (free(5, 2, 3), "two new"))

#: Batches, each with the requests that it dispatches.
STORIES: dict[str, tuple[tuple[tuple[AnyEvent, ...], str], ...]] = {
    "who stood aside runs when it can": (*SERVED, ((TimerFired(6),), ""), (free(7, 1), "old")),
    "the best goes when nobody older is in its way": (
        *SERVED, ((RequestCancelled(6, "old"),), ""), ((PrefillCompleted(7, "two", 4),), "dear")),
    "a fact that changes nothing changes nothing": (
        *SERVED[:2], ((*free(5, 2, 3), WorkerUpserted(5, WorkerConfig(1))), "two new"),
        ((WorkerUpserted(6, WorkerConfig(2)), WorkerRemoved(6, 9)), "")),
    "another class takes the worker first": (
        SERVED[0], ((*QUEUE, arrive(4, "first", 1, policy_class="c0", **only(2))), ""), (free(5, 2, 3), "first new")),
}
