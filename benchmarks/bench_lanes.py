"""The queue alone, in C: the reference's own shapes (policy-queue facts 7), without events, placement and bookings.

One class, quantum 10^6, requests that cost 1, FCFS, arrivals in order. The dispatch test reads a byte. An operation is
a store, or a look at one head with what comes of it: it is popped, or it blocks its lane.

build       one request into each of L lanes; S requests into the shared lane
pop once    odd lanes pass, so a poll blocks one lane and pops the next; with one lane it finds nothing. A quarter as
            many polls as there are lanes, so that the queue stays about as large as it was
drain n     n requests, dealt to L lanes in turn
one a lane  the same with one request a lane
blocked     so many of ten lanes never pass; with the last poll, which finds nothing
shared      n requests in the shared lane

Small queues are measured several at a time. `a pop` is the time of the whole by requests popped.

These need the doors of the tests (tests/_probe_queue.pyx), which are built when first asked for.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import Figure, digest, shown, times

import kvcore as kv

pytest.importorskip("Cython")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from probe_build import load

probe = load("_probe_queue")

TABLE = "The queue alone, in C, per operation"

FCFS = kv.PolicyProfile(
    (kv.PolicyClass("only", 10**6, policy_family="all", cache_bucket="all", prefill_busy_threshold_frac=1.0),),
    (kv.CacheBucket("all", 0),), "all")
#: Operations of one round, so that reading the clock does not count; and requests at which that stops: they should
#: be found in the cache.
OPERATIONS_MIN = 256
REQUESTS_MAX = 2048
SHARED = -1


def dealt(requests: int, lanes: int) -> list[int]:
    return [i % lanes for i in range(requests)]


def per_pop(figure: Figure | None, operations: int, pops: int) -> str:
    return "" if figure is None or pops == 0 else f"{figure.ns * operations / pops:,.0f} ns"


@pytest.fixture
def timed(benchmark, report, size):
    """Measures stores or polls, prints them as one row, and says how they have grown since the size before."""

    def time_it(series: str, of: int, ranks: list[int], may_run: list[int], operations: int, polls: int = 0) -> None:
        """polls: so many of a queue that holds everything; 0: storing it."""
        copies = max(1, min(OPERATIONS_MIN // operations, REQUESTS_MAX // len(ranks)))
        only = probe.Stock(FCFS, 1, ranks, may_run)
        only.store()
        items, left = only.popped(polls or len(ranks))
        pops = len(ranks) - left if polls else 0

        def prepare():
            stock = probe.Stock(FCFS, copies, ranks, may_run)
            if polls:
                stock.store()
            return (stock,)

        def run(stock):
            if polls:
                stock.pop(polls)
            else:
                stock.store()

        found = digest(items, left)
        figure = report.measure(benchmark, prepare, run, operations * copies, found, size)
        growth = report.growth(series, of, figure)
        report.add(TABLE, f"{series} {of:,}", time=shown(figure), x=times(figure), growth=growth,
                   a_pop=per_pop(figure, operations, pops), digest=found)

    return time_it


@pytest.mark.sizes("lanes", small=(1, 8), large=(1, 8, 32, 128, 512, 1024, 10_000))
def test_pop_once(lanes, timed):
    polls = max(1, lanes // 4)
    timed("pop once, L =", lanes, dealt(lanes, lanes), [i % 2 for i in range(lanes)], min(2, lanes) * polls, polls)


@pytest.mark.sizes("lanes", small=(1, 8), large=(1, 8, 32, 128, 512))
def test_drain(lanes, size, timed):
    n = {"small": 64, "large": 4096}[size]
    timed(f"drain {n:,}, L =", lanes, dealt(n, lanes), [1] * n, n, n)


@pytest.mark.sizes("lanes", small=(8, 32), large=(8, 32, 128, 512, 1024))
def test_drain_one_a_lane(lanes, timed):
    timed("drain one a lane, L =", lanes, dealt(lanes, lanes), [1] * lanes, lanes, lanes)


@pytest.mark.sizes("lanes", small=(8, 32), large=(128, 1024, 10_000))
def test_build_one_a_lane(lanes, timed):
    timed("build one a lane, L =", lanes, dealt(lanes, lanes), [1] * lanes, lanes)


@pytest.mark.parametrize("percent", [0, 50, 90, 100])
@pytest.mark.sizes("lanes", small=(40,), large=(1_000, 10_000))
def test_blocked(percent, lanes, timed):
    may_run = [int(i % 10 >= percent // 10) for i in range(lanes)]
    timed(f"{percent} % blocked, L =", lanes, dealt(lanes, lanes), may_run, lanes, sum(may_run) + 1)


@pytest.mark.sizes("n", small=(8, 32), large=(128, 1024, 4096))
def test_build_shared(n, timed):
    timed("build shared, n =", n, [SHARED] * n, [1] * n, n)


@pytest.mark.sizes("n", small=(8, 32), large=(128, 1024, 4096))
def test_drain_shared(n, timed):
    timed("drain shared, n =", n, [SHARED] * n, [1] * n, n, n)
