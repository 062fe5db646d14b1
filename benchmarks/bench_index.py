"""The block indexes alone, by the number of ranks R: what a change and a look-up cost in C, and what a pair weighs.

Paths of 32 blocks. `own`: every path is held by one rank, and there are 4,096 of them in all (large). `popular`: one
path that every rank holds; rank after rank takes it, and gives it back.

store     PrefixIndex.add, per block
remove    PrefixIndex.remove of the same, in the same order, per block
stored    PrefixIndex.add_all of a whole path, per path: what an event of 32 blocks costs
removed   PrefixIndex.remove_all of the same, per path
purge     the same, rank by rank, per block
find      PrefixIndex.match of a whole path, per path
miss      PrefixIndex.match of paths that nobody holds, per path
acquire   ActiveBlocks.acquire, per block
release   ActiveBlocks.find and release of the last reference, per block

Memory is that of a fresh process in which each of R ranks stores n blocks, each block held by so many ranks: what the
index has asked for, what the process has grown by, and its largest growth on the way, each by pair.

These need the doors of the tests (tests/_probe_index.pyx), which are built when first asked for.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from array import array
from pathlib import Path

import pytest
from harness import digest, shown, times

pytest.importorskip("Cython")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from probe_build import load

probe = load("_probe_index")

TABLE = "Block index, per block; stored, removed, find and miss: per path of 32 blocks"
MEMORY = "Block index, memory"

DEPTH = 32
PATHS = {"small": 512, "large": 4096}
#: At least so many blocks or paths a round.
ITEMS_MIN = 2_000


def names(first: int, count: int) -> array:
    """Block names without a pattern that the table could profit from."""
    return array("Q", [(first + i) * 0x9E3779B97F4A7C15 & 2**64 - 1 for i in range(count)])


def own(ranks: int, size: str) -> list[tuple[int, array]]:
    """(rank, its blocks): all paths there are, dealt out evenly."""
    each = max(1, PATHS[size] // ranks) * DEPTH
    return [(rank, names(rank * each, each)) for rank in range(ranks)]


def popular(ranks: int, size: str) -> list[tuple[int, array]]:
    """(rank, its blocks): one path for all."""
    return [(rank, names(0, DEPTH)) for rank in range(ranks)]


def made(kind, ranks: int):
    index = kind()
    index.reserve(ranks)
    for rank in range(ranks):
        index.name_rank(rank, rank)
    return index


def stored(ranks: int, held: list[tuple[int, array]]):
    index = made(probe.Prefix, ranks)
    store(index, held)
    return index


def store(index, held: list[tuple[int, array]]) -> None:
    for rank, blocks in held:
        index.adds(blocks, rank)


def remove(index, held: list[tuple[int, array]]) -> None:
    for rank, blocks in held:
        index.removes(blocks, rank)


def store_paths(index, held: list[tuple[int, array]]) -> None:
    for rank, blocks in held:
        index.adds_all(blocks, DEPTH, rank)


def remove_paths(index, held: list[tuple[int, array]]) -> None:
    for rank, blocks in held:
        index.removes_all(blocks, DEPTH, rank)


def purge(index, held: list[tuple[int, array]]) -> None:
    for rank, _ in held:
        index.purge(rank)


def acquire(index, held: list[tuple[int, array]]) -> None:
    for rank, blocks in held:
        index.acquires(blocks, rank)


def release(index, held: list[tuple[int, array]]) -> None:
    for rank, blocks in held:
        index.releases(blocks, rank)


HELD = {"own": own, "popular": popular}
#: What is timed: what it begins with, and what is done to it.
CHANGES = {"store": (None, store), "remove": (store, remove), "stored": (None, store_paths),
           "removed": (store, remove_paths),
           "purge": (store, purge), "acquire": (None, acquire), "release": (acquire, release)}
RANKS = pytest.mark.sizes("ranks", small=(16, 128), large=(16, 256, 2048))


@pytest.fixture
def timed(benchmark, report, size):
    """Measures run(*prepare()), prints it as one row, and says how it has grown since the number of ranks before."""

    def time_it(series: str, ranks: int, prepare, run, items: int, found: str) -> None:
        figure = report.measure(benchmark, prepare, run, items, found, size)
        growth = report.growth(series, ranks, figure)
        report.add(TABLE, f"{series} R = {ranks:,}", time=shown(figure), x=times(figure), growth=growth, digest=found)

    return time_it


@RANKS
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("shape", HELD)
def test_change(shape, what, ranks, size, timed):
    held = HELD[shape](ranks, size)
    begin, run = CHANGES[what]
    kind = probe.Active if acquire in (begin, run) else probe.Prefix

    def prepare():
        index = made(kind, ranks)
        if begin is not None:
            begin(index, held)
        return index, held

    index, _ = prepare()
    states = [(index.pairs, index.mixed)]
    run(index, held)
    states.append((index.pairs, index.mixed))
    found = digest(states, sorted(index.match(held[0][1]).items()))
    items = sum(len(blocks) for _, blocks in held) // (DEPTH if run in (store_paths, remove_paths) else 1)
    timed(f"{what} {shape}", ranks, prepare, run, items, found)


@RANKS
@pytest.mark.parametrize("what", ["find", "miss"])
@pytest.mark.parametrize("shape", HELD)
def test_match(shape, what, ranks, size, timed):
    held = HELD[shape](ranks, size)
    index = stored(ranks, held)
    first, count = (0, sum(len(blocks) for _, blocks in held)) if shape == "own" else (0, DEPTH)
    if what == "miss":
        first = 2**40
    paths = names(first, count)
    paths *= max(1, ITEMS_MIN * DEPTH // len(paths))
    found = digest(index.matches(paths, DEPTH), sorted(index.match(paths[:DEPTH]).items()))
    timed(f"{what} {shape}", ranks, lambda: (paths, DEPTH), index.matches, len(paths) // DEPTH, found)


@pytest.mark.sizes("shape", small=((100, 100),), large=((2_048, 1_000), (10_000, 1_000)))
@pytest.mark.parametrize("sharing", [1, 10, 0], ids=["1", "10", "all"])
def test_memory(sharing, shape, benchmark, report):
    ranks, blocks = shape
    holders = sharing or ranks
    answer = benchmark.pedantic(weigh, args=(ranks, blocks, holders), rounds=1)
    report.digests[benchmark.fullname] = digest(answer["pairs"], answer["blocks"], answer["mixed"])
    benchmark.extra_info |= answer
    pairs = answer["pairs"]
    report.add(MEMORY, f"{ranks:,} ranks, {blocks:,} blocks each, a block on {holders:,}",
               pairs=f"{pairs:,}", blocks=f"{answer['blocks']:,}", asked=f"{answer['asked'] / pairs:.1f} B",
               grown=f"{answer['grown'] / pairs:.1f} B", peak=f"{answer['peak'] / pairs:.1f} B",
               peak_in_all=f"{answer['peak'] / 2**20:,.0f} MB", store=f"{answer['ns'] / pairs:,.0f} ns")


def weigh(ranks: int, blocks: int, holders: int) -> dict:
    """One index in a process of its own."""
    command = [sys.executable, __file__, str(ranks), str(blocks), str(holders)]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def child(ranks: int, blocks: int, holders: int) -> dict:
    """Stores, and says what that has taken; groups of so many ranks hold the same blocks."""
    index = made(probe.Prefix, ranks)
    before, peak_before, spent = resident(), peak(), 0
    for rank in range(ranks):
        mine = names(rank // holders * blocks, blocks)
        start = time.thread_time_ns()
        index.adds(mine, rank)
        spent += time.thread_time_ns() - start
    grown = max(0, resident() - before)
    most = peak() - before if peak() > peak_before else grown
    return {"pairs": index.pairs, "blocks": index.blocks, "mixed": index.mixed, "asked": sum(index.memory().values()),
            "grown": grown, "peak": most, "ns": spent}


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        text = Path("/proc/self/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * resource.getpagesize()


def peak() -> int:
    """The most that it ever was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(json.dumps(child(*map(int, sys.argv[1:]))))
