"""What the tests of checkers are made of: true histories of an oracle, and ways to damage them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from checkers import CHECKERS, faults_of
from oracle import Oracle
from recording import record

from kvcore.actions import AnyAction, Dispatch
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import PrefillCompleted, RequestArrived, WorkerUpserted
from kvcore.policy import Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile
from kvcore.request import Request, WorkerConfig

Actions = list[AnyAction]


def profile(quanta: tuple[int, ...] = (10,), arbitration: Arbitration = Arbitration.EXACT,
            capacity: Capacity = Capacity.ADVISORY, **keys) -> PolicyProfile:
    """Classes f0, f1, ... with threshold 0."""
    keys = {"prefill_busy_threshold": 0, "cache_bucket": "b", **keys}
    classes = tuple(PolicyClass(f"c{i}", quantum, policy_family=f"f{i}", **keys) for i, quantum in enumerate(quanta))
    return PolicyProfile(classes, (CacheBucket("b", 0),), "f0", arbitration, capacity)


def config(ttl: int | None = None, **keys) -> SchedulerConfig:
    return SchedulerConfig(4, profile(**keys), booking_ttl_ns=ttl, index=IndexMode.OFF)


def arrive(now_ns: int, name: str, prompt: int = 8, **fields) -> RequestArrived:
    return RequestArrived(now_ns, Request(name, prompt, **fields))


def dispatch(name: str, attempt: int, prompt: int = 8, wait_ns: int = 0, worker: int = 1) -> Dispatch:
    return Dispatch(name, attempt, worker, 0, 0, 0, 0, prompt, -(-prompt // 4), wait_ns)


#: Two buckets: what is cached decides.
BUCKETS = PolicyProfile(
    tuple([PolicyClass(name, 10, policy_family="f0", cache_bucket=name, prefill_busy_threshold=0) for name in "ab"]),
    (CacheBucket("a", 0), CacheBucket("b", 8)), "f0")
UP = (WorkerUpserted(0, WorkerConfig(1)),)
TWO_UP = (*UP, WorkerUpserted(0, WorkerConfig(2)))
#: a runs, b and c wait; b runs when a's prompt is done.
QUEUE = (UP, (arrive(0, "a"),), (arrive(1, "b"),), (arrive(2, "c"),), (PrefillCompleted(3, "a", 1),))


@dataclass(frozen=True)
class Case:
    """A true history and the damage: actions of step `at` are replaced by what `change` makes of them."""

    checker: str
    story: str
    config: SchedulerConfig
    batches: tuple
    at: int
    change: Callable[[Actions], Actions]

    def __str__(self) -> str:
        return f"{self.checker}: {self.story}"


def check_case(case: Case) -> None:
    """No checker has anything to say of the true history; the one that is meant has of the damaged one."""
    run = record(Oracle(case.config), case.batches)
    assert faults_of(run) == []
    events, actions = run.steps[case.at]
    damaged = tuple(case.change(list(actions)))
    assert damaged != actions
    run.steps[case.at] = (events, damaged)
    assert CHECKERS[case.checker](run)


def without(kind: type) -> Callable[[Actions], Actions]:
    return lambda actions: [action for action in actions if not isinstance(action, kind)]


def plus(*more: AnyAction) -> Callable[[Actions], Actions]:
    return lambda actions: [*actions, *more]


def instead(*others: AnyAction) -> Callable[[Actions], Actions]:
    return lambda actions: list(others)


def first(**changes) -> Callable[[Actions], Actions]:
    return lambda actions: [replace(actions[0], **changes), *actions[1:]]
