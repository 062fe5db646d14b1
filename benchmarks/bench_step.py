"""One event from Python: building it, stepping it, and both. A row per kind of event and size of the fleet.

256 requests of 512 tokens live at once, spread over the fleet by the scheduler; one class with a busy threshold that is
never reached, so that every request is judged and none waits. "32 hashes": the prompt's 32 blocks are named, and one
worker has them all in its cache; "looked up": they are not counted as active blocks, so that what is added is the
look-up alone. A cycle is three events of one request after the other: arrival, prefill, finish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from harness import Recorder, digest, shown, times

import kvcore as kv
from kvcore import (
    BlocksRemoved,
    BlocksStored,
    OutputBlockAdded,
    PrefillCompleted,
    Request,
    RequestArrived,
    RequestFinished,
)

REQUESTS = 256
BLOCKS = 32
BLOCK_SIZE = 16
PROMPT = BLOCKS * BLOCK_SIZE
IDS = [f"r{i}" for i in range(REQUESTS)]
#: Path of every request. Numbers as large as hashes are: small ones would be cheaper to read.
PATHS = [tuple((1 << 63) + i * BLOCKS + j for j in range(BLOCKS)) for i in range(REQUESTS)]
NEVER_BUSY = kv.PolicyProfile(
    (kv.PolicyClass("only", 1, policy_family="all", cache_bucket="all", prefill_busy_threshold=1 << 40),),
    (kv.CacheBucket("all", 0),), "all")

Events = list[Any]
Step = Callable[[Any], tuple[kv.AnyAction, ...]]


class Rig:
    """A fleet through which the same requests go again and again, one phase of their life after the other."""

    def __init__(self, workers: int, life: tuple[Callable[[Rig], Events], ...], cached: bool) -> None:
        self.core = kv.Scheduler(kv.SchedulerConfig(block_size=BLOCK_SIZE, profile=NEVER_BUSY, seed=1))
        self.core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(worker, 0, 1, 8192)) for worker in range(workers)])
        self.workers = workers
        self.now_ns = 0
        self.attempt = 1  # of the first request of this life: each is dispatched once a life, in order
        self._life = life
        self._done = 0  # phases of the present life
        self._left_open = False
        if cached:
            self.core.step_many(build_stored(self))

    def reach(self, phase: int) -> None:
        """Let everything happen that comes before a phase. The phase itself is then the caller's to step."""
        if self._left_open:
            self._advance()
        while self._done != phase:
            self.core.step_many(self._life[self._done](self))
            self._advance()
        self._left_open = True

    def _advance(self) -> None:
        self._done += 1
        if self._done == len(self._life):
            self._done = 0
            self.attempt += REQUESTS
            self.now_ns += 1_000_000

    def runs(self) -> zip[tuple[str, int]]:
        """Id and attempt of every request."""
        return zip(IDS, count(self.attempt), strict=False)


def build_arrived(rig: Rig) -> Events:
    now_ns = rig.now_ns
    return [RequestArrived(now_ns, Request(request_id, PROMPT)) for request_id in IDS]


def both_arrived(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id in IDS:
        step(RequestArrived(now_ns, Request(request_id, PROMPT)))


def build_arrived_named(rig: Rig) -> Events:
    now_ns = rig.now_ns
    return [RequestArrived(now_ns, Request(request_id, PROMPT, block_hashes=path))
            for request_id, path in zip(IDS, PATHS, strict=True)]


def both_arrived_named(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id, path in zip(IDS, PATHS, strict=True):
        step(RequestArrived(now_ns, Request(request_id, PROMPT, block_hashes=path)))


def build_arrived_looked_up(rig: Rig) -> Events:
    now_ns = rig.now_ns
    return [RequestArrived(now_ns, Request(request_id, PROMPT, block_hashes=path, sequence_hashes=()))
            for request_id, path in zip(IDS, PATHS, strict=True)]


def both_arrived_looked_up(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id, path in zip(IDS, PATHS, strict=True):
        step(RequestArrived(now_ns, Request(request_id, PROMPT, block_hashes=path, sequence_hashes=())))


def build_prefilled(rig: Rig) -> Events:
    now_ns = rig.now_ns
    return [PrefillCompleted(now_ns, request_id, attempt) for request_id, attempt in rig.runs()]


def both_prefilled(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id, attempt in rig.runs():
        step(PrefillCompleted(now_ns, request_id, attempt))


def build_output(rig: Rig) -> Events:
    now_ns = rig.now_ns
    return [OutputBlockAdded(now_ns, request_id, attempt) for request_id, attempt in rig.runs()]


def both_output(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id, attempt in rig.runs():
        step(OutputBlockAdded(now_ns, request_id, attempt))


def build_finished(rig: Rig) -> Events:
    now_ns = rig.now_ns
    return [RequestFinished(now_ns, request_id, attempt) for request_id, attempt in rig.runs()]


def both_finished(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id, attempt in rig.runs():
        step(RequestFinished(now_ns, request_id, attempt))


def build_stored(rig: Rig) -> Events:
    now_ns, workers = rig.now_ns, rig.workers
    return [BlocksStored(now_ns, i % workers, 0, 0, path) for i, path in enumerate(PATHS)]


def both_stored(rig: Rig, step: Step) -> None:
    now_ns, workers = rig.now_ns, rig.workers
    for i, path in enumerate(PATHS):
        step(BlocksStored(now_ns, i % workers, 0, 0, path))


def build_removed(rig: Rig) -> Events:
    return [BlocksRemoved(rig.now_ns, i % rig.workers, 0, 0, path) for i, path in enumerate(PATHS)]


def build_cycle(rig: Rig) -> Events:
    now_ns = rig.now_ns
    events: Events = []
    for request_id, attempt in rig.runs():
        events += (RequestArrived(now_ns, Request(request_id, PROMPT)), PrefillCompleted(now_ns, request_id, attempt),
                   RequestFinished(now_ns, request_id, attempt))
    return events


def both_cycle(rig: Rig, step: Step) -> None:
    now_ns = rig.now_ns
    for request_id in IDS:
        (dispatch,) = step(RequestArrived(now_ns, Request(request_id, PROMPT)))
        attempt = dispatch.attempt
        step(PrefillCompleted(now_ns, request_id, attempt))
        step(RequestFinished(now_ns, request_id, attempt))


UNNAMED = (build_arrived, build_prefilled, build_output, build_finished)
LOOKED_UP = (build_arrived_looked_up, build_prefilled, build_output, build_finished)
NAMED = (build_arrived_named, build_prefilled, build_output, build_finished)


@dataclass(frozen=True)
class Kind:
    """What is measured: a phase of a life, and the same phase with events that are built on the way."""

    life: tuple[Callable[[Rig], Events], ...]
    phase: int
    both: Callable[[Rig, Step], None]
    cached: bool = False

    def rig(self, workers: int) -> Rig:
        return Rig(workers, self.life, self.cached)

    def reached(self, workers: int) -> Rig:
        rig = self.rig(workers)
        rig.reach(self.phase)
        return rig

    @property
    def build(self) -> Callable[[Rig], Events]:
        return self.life[self.phase]


KINDS = {
    "RequestArrived": Kind(UNNAMED, 0, both_arrived),
    "RequestArrived, 32 hashes": Kind(NAMED, 0, both_arrived_named, cached=True),
    "RequestArrived, 32 looked up": Kind(LOOKED_UP, 0, both_arrived_looked_up, cached=True),
    "PrefillCompleted": Kind(UNNAMED, 1, both_prefilled),
    "OutputBlockAdded": Kind(UNNAMED, 2, both_output),
    "RequestFinished": Kind(UNNAMED, 3, both_finished),
    "BlocksStored, 32 hashes": Kind((build_stored, build_removed), 0, both_stored),
    "cycle of three": Kind((build_cycle,), 0, both_cycle),
}
WORKERS = pytest.mark.sizes("workers", small=(1, 16), large=(1, 16, 256, 2048, 16384))
KIND = pytest.mark.parametrize("kind", KINDS)
TABLE = "Events from Python, each or a cycle"


def step_all(events: Events, step: Step) -> None:
    for event in events:
        step(event)


def row(kind: str, workers: int) -> str:
    return f"{kind}, W = {workers:,}"


@KIND
@WORKERS
def test_build(kind, workers, benchmark, report, size):
    what = KINDS[kind]
    rig = what.rig(workers)
    made = digest(what.build(what.rig(workers)))
    figure = report.measure(benchmark, lambda: (rig,), what.build, REQUESTS, made, size)
    report.add(TABLE, row(kind, workers), build=shown(figure))


@KIND
@WORKERS
def test_step(kind, workers, benchmark, report, size):
    what = KINDS[kind]
    trial = what.reached(workers)
    recorder = Recorder(trial.core)
    step_all(what.build(trial), recorder.step)
    rig = what.rig(workers)

    def prepare():
        rig.reach(what.phase)
        return what.build(rig), rig.core.step

    figure = report.measure(benchmark, prepare, step_all, REQUESTS, recorder.digest(), size)
    report.add(TABLE, row(kind, workers), step=shown(figure), step_x=times(figure))


@KIND
@WORKERS
def test_both(kind, workers, benchmark, report, size):
    what = KINDS[kind]
    trial = what.reached(workers)
    recorder = Recorder(trial.core)
    what.both(trial, recorder.step)
    rig = what.rig(workers)

    def prepare():
        rig.reach(what.phase)
        return rig, rig.core.step

    figure = report.measure(benchmark, prepare, what.both, REQUESTS, recorder.digest(), size)
    report.add(TABLE, row(kind, workers), both=shown(figure), both_x=times(figure), digest=recorder.digest())
