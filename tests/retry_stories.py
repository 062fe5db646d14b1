"""Short stories of dispatches that fail: what the oracle's tests of retry and of draining say often.

STORIES are those that random plans hardly tell. They are played on the core and on the oracle, and each tells a mutant
of the oracle apart from it.
"""

from __future__ import annotations

from oracle import Oracle
from stories import arrive, profile, upsert

from kvcore.config import PrefillDecay, SchedulerConfig
from kvcore.events import DispatchFailed, Drained, PrefillCompleted, TimerFired, WorkerStatusChanged
from kvcore.policy import Arbitration, QueuePolicy
from kvcore.request import Rank


def oracle(workers: int = 1, quanta=(10,), arbitration=Arbitration.EXACT, keys=None, worker=None, **config) -> Oracle:
    """An oracle with block size 4 and workers 1, 2, ...; a rank whose prefill is not done is busy. keys: of classes."""
    keys = {"prefill_busy_threshold": 0, **(keys or {})}
    core = Oracle(SchedulerConfig(4, profile(*quanta, arbitration=arbitration, **keys), **config))
    for worker_id in range(1, workers + 1):
        core.step(upsert(0, worker_id, **(worker or {})))
    return core


def fail(now_ns: int, name: str, attempt: int, retry: bool = True) -> DispatchFailed:
    return DispatchFailed(now_ns, name, attempt, retry)


def leave(now_ns: int, worker_id: int = 1, lease_ns: int | None = 100) -> WorkerStatusChanged:
    """What a driver says of the worker before it retries."""
    return WorkerStatusChanged(now_ns, worker_id, 0, "driver", available=False, lease_ns=lease_ns)


#: name -> (configuration, batches, what the last batch is answered)
STORIES = {
    # Of two bookings one has made progress; the other one expires when draining ends.
    "drain is the last thing due": (SchedulerConfig(4, booking_ttl_ns=10), [
        (upsert(0, 1), upsert(0, 2)), (arrive(0, "a", pinned=Rank(1)), arrive(0, "b", pinned=Rank(2))),
        (PrefillCompleted(5, "a", 1), Drained(5, 10)), (TimerFired(10),)],
        "E b, E a"),
    # One token a nanosecond, busy above 18. When b fails at 4, a goes on from its own start and has 14 to go: with the
    # 8 of c, d may run at 8.
    "what failed has not run": (
        SchedulerConfig(4, profile(100, prefill_busy_threshold=18), prefill_decay=PrefillDecay.LINEAR), [
            (upsert(0, 1, prefill_tokens_per_s=10**9),), (arrive(0, "a", 18), arrive(0, "b", 10)),
            (arrive(1, "c"), arrive(1, "d")), (fail(4, "b", 2, retry=False),), (TimerFired(7),), (TimerFired(8),)],
        "D d"),
    # b is put back after it has been overtaken by x. Nobody remembers that: y may overtake it as well.
    "put back, nobody has overtaken it": (
        SchedulerConfig(4, profile(100, queue_policy=QueuePolicy.LCFS, prefill_busy_threshold=0,
                                   max_overtake_tokens=9)), [
            (upsert(0, 1),), (arrive(0, "a"),), (arrive(1, "b"),), (arrive(2, "x"),), (PrefillCompleted(3, "a", 1),),
            (PrefillCompleted(4, "x", 2),), (leave(5), fail(5, "b", 3)), (arrive(6, "y"),), (TimerFired(105),)],
        "D y"),
}
