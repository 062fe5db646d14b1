"""What waits: storing it and draining it, by size. Growth from size to size is printed as an exponent.

One class, quantum 10^6, prompts that cost 1 token, FCFS, arrivals in order: the queue does the least work per request,
and what grows with size is its own. Every rank is busy with one request of two tokens, because it may batch one, and
is free as soon as its worker is upserted with room for two. Requests that wait make no load, so all that waits for free
ranks is then dispatched in that one step. A dispatch is pop, placement on one candidate, booking and the action.

n requests without a pin, one worker, one heap
    store        one batch of n arrivals
    drain        one step
    one by one   n steps: PrefillCompleted frees the rank, and the request that follows makes it busy again
m requests pinned to the ranks of one worker in turn: L lanes
    store        one batch of arrivals, one a lane
    drain        one step; m of some number, or one a lane
    pop once     L steps: each frees one rank, one dispatch each
    blocked      one step judges all L lanes again, one request each; those of a second worker stay blocked
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import pytest
from harness import Recorder, shown, times

import kvcore as kv
from kvcore import PrefillCompleted, Rank, Request, RequestArrived, WorkerConfig, WorkerUpserted

#: At least so many items a round: small backlogs are measured several at a time.
ITEMS_MIN = 1000
FCFS = kv.PolicyProfile(
    (kv.PolicyClass("only", 10**6, policy_family="all", cache_bucket="all", prefill_busy_threshold_frac=1.0),),
    (kv.CacheBucket("all", 0),), "all")
BUSY, FREE = 1, 2
SHARED = "Waiting in one heap, per request"
EXACT = "Waiting in lanes, per request; blocked: per lane"

#: A core as it stands before the timed part, and the batches to step.
Job = tuple[kv.Scheduler, Sequence[Sequence[kv.AnyEvent]]]


def upsert(worker: int, ranks: Sequence[Rank], room: int) -> WorkerUpserted:
    """Makes the ranks of a worker BUSY or FREE."""
    size = sum(rank.worker_id == worker for rank in ranks)
    return WorkerUpserted(0, WorkerConfig(worker, 0, max(1, size), room))


def fleet(ranks: Sequence[Rank]) -> kv.Scheduler:
    """A core whose ranks are all busy: with request b0 as attempt 1, with b1 as attempt 2, and so on."""
    core = kv.Scheduler(kv.SchedulerConfig(block_size=16, profile=FCFS))
    core.step_many([upsert(worker, ranks, BUSY) for worker in sorted({rank.worker_id for rank in ranks})])
    core.step_many([RequestArrived(0, Request(f"b{i}", 2, pinned=rank)) for i, rank in enumerate(ranks)])
    return core


def shared(n: int) -> list[RequestArrived]:
    return [RequestArrived(i, Request(f"w{i}", 1, track_prefill=False)) for i in range(n)]


def pinned(ranks: Sequence[Rank], n: int) -> list[RequestArrived]:
    return [RequestArrived(i, Request(f"w{i}", 1, pinned=rank, track_prefill=False))
            for i, rank in enumerate(islice(cycle(ranks), n))]


def later(event: WorkerUpserted, now_ns: int) -> tuple[WorkerUpserted]:
    return (WorkerUpserted(now_ns, event.config, event.incarnation),)


def store_shared(n: int) -> Job:
    return fleet([Rank(0)]), [shared(n)]


def drain_shared(n: int) -> Job:
    core = fleet([Rank(0)])
    core.step_many(shared(n))
    return core, [later(upsert(0, [Rank(0)], FREE), n)]


def one_by_one(n: int) -> Job:
    core = fleet([Rank(0)])
    core.step_many([RequestArrived(i, Request(f"w{i}", 2)) for i in range(n)])
    ids = ["b0", *(f"w{i}" for i in range(n - 1))]
    return core, [(PrefillCompleted(n, request_id, i + 1),) for i, request_id in enumerate(ids)]


def store_exact(lanes: int) -> Job:
    ranks = [Rank(0, i) for i in range(lanes)]
    return fleet(ranks), [pinned(ranks, lanes)]


def drain_exact(lanes: int, n: int) -> Job:
    ranks = [Rank(0, i) for i in range(lanes)]
    core = fleet(ranks)
    core.step_many(pinned(ranks, n))
    return core, [later(upsert(0, ranks, FREE), n)]


def pop_once(lanes: int) -> Job:
    ranks = [Rank(0, i) for i in range(lanes)]
    core = fleet(ranks)
    core.step_many(pinned(ranks, lanes))
    return core, [(PrefillCompleted(lanes, f"b{i}", i + 1),) for i in range(lanes)]


def blocked(lanes: int, percent: int) -> Job:
    """The lanes of worker 0 may go on, those of worker 1 may not; in every ten as many as percent says."""
    sizes = [0, 0]
    ranks = []
    for i in range(lanes):
        worker = int(i % 10 < percent // 10)
        ranks.append(Rank(worker, sizes[worker]))
        sizes[worker] += 1
    core = fleet(ranks)
    core.step_many(pinned(ranks, lanes))
    freed = upsert(0, ranks, FREE) if sizes[0] else upsert(1, ranks, BUSY)
    return core, [later(freed, lanes)]


def step_all(jobs: Sequence[Job]) -> None:
    for core, batches in jobs:
        step_many = core.step_many
        for batch in batches:
            step_many(batch)


@pytest.fixture
def timed(benchmark, report, size):
    """Measures a job, prints it as one row, and says how it has grown since the size before."""

    def time_it(table: str, series: str, of: int, make, *arguments: int, items: int) -> None:
        core, batches = make(*arguments)
        recorder = Recorder(core)
        for batch in batches:
            recorder.step_many(batch)
        copies = max(1, ITEMS_MIN // items)

        def prepare():
            return ([make(*arguments) for _ in range(copies)],)

        digest = recorder.digest()
        figure = report.measure(benchmark, prepare, step_all, items * copies, digest, size)
        growth = report.growth(series, of, figure)
        report.add(table, f"{series} {of:,}", time=shown(figure), x=times(figure), growth=growth,
                   digest=digest)

    return time_it


SHAPES = {"store n =": store_shared, "drain n =": drain_shared, "one by one n =": one_by_one}


@pytest.mark.sizes("n", small=(10, 100), large=(10, 1000, 100_000))
@pytest.mark.parametrize("shape", SHAPES)
def test_shared(shape, n, timed):
    timed(SHARED, shape, n, SHAPES[shape], n, items=n)


@pytest.mark.sizes("lanes", small=(1, 8), large=(1, 8, 32, 128, 512))
def test_drain(lanes, size, timed):
    n = {"small": 64, "large": 4096}[size]
    timed(EXACT, f"drain {n:,}, L =", lanes, drain_exact, lanes, n, items=n)


@pytest.mark.sizes("lanes", small=(8, 32), large=(8, 32, 128, 512, 1024))
def test_drain_one_a_lane(lanes, timed):
    timed(EXACT, "drain one a lane, L =", lanes, drain_exact, lanes, lanes, items=lanes)


@pytest.mark.sizes("lanes", small=(8, 32), large=(128, 1024, 10_000))
def test_store_one_a_lane(lanes, timed):
    timed(EXACT, "store one a lane, L =", lanes, store_exact, lanes, items=lanes)


@pytest.mark.sizes("lanes", small=(1, 8), large=(1, 8, 32, 128, 512, 1024, 10_000))
def test_pop_once(lanes, timed):
    timed(EXACT, "pop once, L =", lanes, pop_once, lanes, items=lanes)


@pytest.mark.parametrize("percent", [0, 50, 90, 100])
@pytest.mark.sizes("lanes", small=(40,), large=(10_000,))
def test_blocked(percent, lanes, timed):
    timed(EXACT, f"{percent} % blocked, L =", lanes, blocked, lanes, percent, items=lanes)
