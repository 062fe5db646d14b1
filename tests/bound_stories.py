"""Short histories under an overtaking bound in which it shows which verdicts are remembered, and who is asked when.

Three workers, each busy with any prefill. Class `c1` serves the last to come first; `old` may use worker 1 only, `two`
and `dear` are pinned to worker 2, `new` may use worker 3 only. When workers 2 and 3 are free, `dear` is the best head,
but would go past `old` by more than the bound: `old` stands in, fails and blocks the shared lane. Then `two` stands in
for `dear` and takes worker 2. From now on `new` could run and would break no bound, but its lane is blocked.
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


BLOCKED = ((FULL, "run1 run2 run3"), (QUEUE, ""), (free(5, 2, 3), "two"))

#: Batches, each with the requests that it dispatches.
STORIES: dict[str, tuple[tuple[tuple[AnyEvent, ...], str], ...]] = {
    "until a rank that matters changes": (*BLOCKED, ((TimerFired(6),), ""), (free(7, 1), "new old")),
    "until who has failed leaves": (*BLOCKED, ((TimerFired(6),), ""), ((RequestCancelled(7, "old"),), "new")),
    "until a better head comes": (
        *BLOCKED, ((arrive(6, "best", 3, strict_priority=2, **only(3)),), "best"), ((TimerFired(7),), "")),
    "until a better head has come and gone": (
        *BLOCKED, ((arrive(6, "best", 3, strict_priority=2), RequestCancelled(6, "best")), "new")),
    "not until any other comes": (*BLOCKED, ((arrive(6, "late", 1, **only(1)),), "")),
    "until the fleet changes": (*BLOCKED, ((WorkerUpserted(6, WorkerConfig(2)),), "new")),
    "not until a late fact comes": (
        ((WorkerUpserted(0, WorkerConfig(2), 1), *FULL), "run1 run2 run3"), *BLOCKED[1:],
        ((WorkerUpserted(6, WorkerConfig(2)), WorkerRemoved(6, 9)), "")),
    "a class is asked when its turn comes": (
        BLOCKED[0], ((*QUEUE, arrive(4, "first", 1, policy_class="c0", **only(2))), ""), (free(5, 2, 3), "first new")),
}
