"""Reading why: one explanation, one dump, by the number of ranks; and what keeping decisions adds to a dispatch.

W workers of one rank, all busy with one request; n requests wait in one heap, and one for the rank that got the first.

head            the tenth of those that wait: its place, all ranks, and for the head, which is in its way, all again
middle          the same, but its place is beyond 1,000, and counted that far
pinned          one rank, one lane of its own
running         with its decision, the best 64 of W candidates
dump 100        the first 100 by seq of all that wait
arrival         one that runs at once, with no decisions kept, and with the last 100
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Recorder, digest, shown, times

import kvcore as kv

TABLE = "Explaining, per look; arrivals: per arrival that runs at once"
WAITING = {"small": 200, "large": 10_000}
LOOKS = {"small": 20, "large": 300}
ARRIVALS = {"small": 50, "large": 500}
BUSY_AT_ONCE = kv.PolicyProfile(
    (kv.PolicyClass("only", 10**6, policy_family="all", cache_bucket="all", prefill_busy_threshold=0),),
    (kv.CacheBucket("all", 0),), "all")
WORKERS = pytest.mark.sizes("workers", small=(1, 64), large=(1, 64, 2048))


def fleet(workers: int, kept: int, profile: kv.PolicyProfile | None) -> kv.Scheduler:
    core = kv.Scheduler(kv.SchedulerConfig(profile=profile, decisions_kept=kept, seed=1))
    core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(worker)) for worker in range(workers)])
    return core


def crowd(workers: int, waiting: int) -> kv.Scheduler:
    """Every rank has one request, and n wait; the decision about the first, among all ranks, is still kept."""
    core = fleet(workers, workers, BUSY_AT_ONCE)
    (first,) = core.step(kv.RequestArrived(0, kv.Request("first", 512)))
    pins = [kv.Rank(worker) for worker in range(workers) if worker != first.worker_id]
    core.step_many([kv.RequestArrived(0, kv.Request(f"b{pin.worker_id}", 512, pinned=pin)) for pin in pins])
    core.step_many([kv.RequestArrived(i, kv.Request(f"w{i}", 512)) for i in range(waiting)])
    core.step(kv.RequestArrived(waiting, kv.Request("pinned", 512, pinned=kv.Rank(first.worker_id))))
    return core


def look_again(look: Callable[..., object], argument: object, looks: int) -> None:
    for _ in range(looks):
        look(argument)


def arguments_of(kind: str, core: kv.Scheduler, waiting: int) -> tuple[Callable[..., object], object]:
    """What is called, with what."""
    if kind == "dump 100":
        return core.queue_dump, 100
    return core.explain, {"head": "w9", "middle": f"w{waiting // 2}", "pinned": "pinned", "running": "first"}[kind]


@pytest.mark.parametrize("kind", ["head", "middle", "pinned", "running", "dump 100"])
@WORKERS
def test_look(kind, workers, benchmark, report, size):
    core = crowd(workers, WAITING[size])
    look, argument = arguments_of(kind, core, WAITING[size])
    found = digest(look(argument))
    looks = LOOKS[size]
    figure = report.measure(benchmark, lambda: (look, argument, looks), look_again, looks, found, size)
    report.add(TABLE, f"{kind}, W = {workers:,}", time=shown(figure), x=times(figure),
               growth=report.growth(kind, workers, figure), digest=found)


def step_all(step: Callable[[kv.AnyEvent], object], events: list[kv.RequestArrived]) -> None:
    for event in events:
        step(event)


@pytest.mark.parametrize("kept", [0, 100])
@WORKERS
def test_arrival(kept, workers, benchmark, report, size):
    events = [kv.RequestArrived(i, kv.Request(f"r{i}", 512)) for i in range(ARRIVALS[size])]
    recorder = Recorder(fleet(workers, kept, None))
    step_all(recorder.step, events)
    series = f"arrival, {kept} kept"
    figure = report.measure(
        benchmark, lambda: (fleet(workers, kept, None).step, events), step_all, len(events), recorder.digest(), size)
    report.add(TABLE, f"{series}, W = {workers:,}", time=shown(figure), x=times(figure),
               growth=report.growth(series, workers, figure), digest=recorder.digest())
