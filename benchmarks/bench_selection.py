"""Choosing a rank, by the number of workers, in C: without events, bookings and actions around it.

W workers of one rank, block size 16, a prompt of 2,048 tokens; the load of worker w is 16 w prefill tokens, w mod 127
blocks and w mod 17 requests, the one of selector facts 8.1. k ranks have four blocks of the prompt cached.

plain       the loop over all candidates, which is the definition; default weights
standings   trees over the fleet, one look-up per choice; with many overlapping ranks they turn to the plain loop
changing    the same, and before each choice one rank's load changes and is taken in
8.1         the fixture of selector facts 8.1: effective blocks and cached tokens are told of all; the plain loop with
            all terms, at temperature T, with or without decay of credit. Costs and the cheapest rank are those that
            the facts name, or the benchmark fails
potential   Scheduler.potential_loads from Python: the loads of all ranks with one more request, per call. One booking
            a rank; `hashes`: the request names 32 blocks, half of which k = 10 ranks have cached; `allowed`: it may use
            every second worker

These need the doors of the tests (tests/_probe_selector.pyx), which are built when first asked for.
"""

from __future__ import annotations

import sys
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from harness import digest, shown, times

pytest.importorskip("Cython")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from probe_build import load

import kvcore as kv
from kvcore import BlocksStored, Rank, Request, RequestArrived, SelectionWeights, WorkerConfig, WorkerUpserted

probe = load("_probe_selector")

TABLE = "Choosing a rank, per choice; per rank: of the candidates"
#: Cheapest rank and its cost in the fixture of selector facts 8.1, by decay: of two ranks, and of 32 or more. Sums of
#: all costs without decay, by ranks.
CHEAPEST = {0.0: ((1, 126.0), (31, 66.0)), 1.0: ((1, 126.03100775193798), (31, 90.17610062893081))}
SUMS = {64: 8256.0, 1024: 655396.0, 2048: 2359432.0}

#: Ranks to look at in one round.
LOOKS = {"small": 5_000, "large": 200_000}
CHOICES = {"small": 100, "large": 2_000}
DEFAULT = SelectionWeights()


def query(device=None, weights=DEFAULT, **told):
    return probe.Query(2048, 16, astuple(weights), device=device, **told)


def fleet(workers: int):
    made = probe.Fleet(workers)
    for w in range(workers):
        made.report(w, 16 * w, w % 127, w % 17)
    made.refresh()
    return made


def overlapping(workers: int, ranks: int) -> list[int]:
    """So many, spread evenly; not the cheapest ones only."""
    count = min(ranks, workers)
    return [i * workers // count for i in range(count)]


@pytest.fixture
def timed(benchmark, report, size):
    """Measures choices, prints them as one row, and says how they have grown since the number of workers before."""

    def time_it(series: str, workers: int, run, looks: int) -> None:
        """run(times) chooses so often; looks: ranks that one choice may look at."""
        choices = max(2, CHOICES[size] if looks == 0 else LOOKS[size] // looks)
        found = digest(run(6))
        figure = report.measure(benchmark, lambda: (choices,), run, choices, found, size)
        growth = report.growth(series, workers, figure)
        each = "" if figure is None else f"{figure.ns / workers:.2f} ns"
        report.add(TABLE, f"{series} W = {workers:,}", time=shown(figure), x=times(figure), growth=growth,
                   per_rank=each, digest=found)

    return time_it


WORKERS = pytest.mark.sizes("workers", small=(16, 64), large=(16, 256, 2048, 16_384))
OVERLAP = pytest.mark.parametrize("ranks", [0, 1, 10, 10**9], ids=["0", "1", "10", "all"])


def named(ranks: int) -> str:
    return "all" if ranks == 10**9 else str(ranks)


@OVERLAP
@WORKERS
def test_plain(workers, ranks, timed):
    made, cached = fleet(workers), set(overlapping(workers, ranks))
    asked = query([4 * (w in cached) for w in range(workers)])
    timed(f"plain, k = {named(ranks)},", workers, lambda n: made.repeat_plain(asked, n), workers)


@OVERLAP
@WORKERS
def test_standings(workers, ranks, timed):
    made, cached = fleet(workers), overlapping(workers, ranks)
    asked = query([4 * (w in set(cached)) for w in range(workers)] if ranks < workers else [4] * workers)
    timed(f"standings, k = {named(ranks)},", workers, lambda n: made.repeat(asked, cached, [], n),
          workers if ranks >= workers else 0)


@WORKERS
def test_changing(workers, timed):
    made, asked = fleet(workers), query()
    timed("changing, k = 0,", workers, lambda n: made.repeat(asked, [], [workers // 2], n), 0)


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.sizes("workers", small=(2, 32), large=(2, 32, 1024, 2048, 10_000))
def test_fixture(workers, temperature, decay, timed):
    loads = probe.Loads([(16 * w, (w % 127) << 20, w % 17) for w in range(workers)])
    asked = query(
        weights=replace(DEFAULT, overlap_score_credit_decay=decay, temperature=temperature),
        effective=[4.0 * (w % 32) for w in range(workers)], cached=[64 * (w % 32) for w in range(workers)])
    ranks = range(workers)
    rank, cost = CHEAPEST[decay][workers > 2]
    assert loads.cheapest(ranks, asked) == ([rank], cost)
    if decay == 0.0:
        costs = loads.costs(ranks, asked)
        assert costs == [w + 128.0 - 4 * (w % 32) + w % 127 for w in ranks]
        assert sum(costs) == SUMS.get(workers, sum(costs))
    timed(f"8.1, T = {temperature}, decay {decay:.0f},", workers, lambda n: loads.repeat(ranks, asked, n), workers)


ASKS = {
    "plain": lambda workers: Request("asks", 2048),
    "hashes": lambda workers: Request("asks", 2048, block_hashes=tuple(range(1, 33))),
    "allowed": lambda workers: Request("asks", 2048, allowed_workers=frozenset(range(0, workers, 2))),
}


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.sizes("workers", small=(2, 32), large=(2, 32, 1024, 2048, 10_000))
def test_potential_loads(workers, asks, benchmark, report, size):
    core = kv.Scheduler(kv.SchedulerConfig(block_size=16))
    core.step_many([WorkerUpserted(0, WorkerConfig(w)) for w in range(workers)])
    core.step_many([RequestArrived(0, Request(f"r{w}", 16 * (w % 127 + 1), pinned=Rank(w))) for w in range(workers)])
    core.step_many([BlocksStored(0, w, 0, 0, tuple(range(1, 17))) for w in overlapping(workers, 10)])
    request = ASKS[asks](workers)
    calls = max(1, LOOKS[size] // 10 // workers)

    def run():
        for _ in range(calls):
            core.potential_loads(request)

    found = digest(core.potential_loads(request).tobytes(), core.digest())
    figure = report.measure(benchmark, tuple, run, calls, found, size)
    growth = report.growth(f"potential {asks}", workers, figure)
    each = "" if figure is None else f"{figure.ns / workers:.2f} ns"
    report.add(TABLE, f"potential, {asks}, W = {workers:,}", time=shown(figure), x=times(figure), growth=growth,
               per_rank=each, digest=found)
