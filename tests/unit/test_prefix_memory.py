"""PrefixIndex: the shapes of its sets, its table and its logs as they grow and shrink; memory that comes and goes."""

from __future__ import annotations

import random
from array import array

import pytest
from little_memory import little_memory
from probe_build import load

probe = load("_probe_index")
Prefix = probe.Prefix

U64 = 2**64 - 1
EMPTY = {"table": 64 * 24, "sets": 0, "logs": 0}


def made(ranks: int):
    index = Prefix()
    index.reserve(ranks)
    for rank in range(ranks):
        index.name_rank(rank, 1_000 + rank)
    return index


def names(count: int) -> array:
    return array("Q", [(i * 0x9E3779B97F4A7C15) & U64 for i in range(count)])


@pytest.mark.parametrize(("ranks", "longest", "up", "down"), [
    (64, 2, "few few many", "many few"),  # a bitset is as small as two ranks
    (65, 4, "few few some some many", "many many few few"),
    (300, 10, "few few" + " some" * 8 + " many", "many " * 5 + "some some some some few"),
    (100_000, 64, "few few" + " some" * 62 + " many", "many " * 32 + "some " * 31 + "few"),
])
def test_a_set_grows_and_shrinks_through_its_shapes(ranks, longest, up, down):
    """The way down is late: no size is a border to go to and fro over."""
    index = made(ranks)
    for size, shape in enumerate(up.split(), 1):
        assert index.add(5, ranks - size)
        assert index.shape(5) == shape
        assert index.match([5]) == {ranks - 1 - i: 1 for i in range(size)}
    assert size == longest + 1
    for shape in down.split():
        assert index.remove(5, ranks - size)
        size -= 1
        assert index.shape(5) == shape
        assert index.match([5]) == {ranks - 1 - i: 1 for i in range(size)}
    assert index.remove(5, ranks - 1)
    assert index.shape(5) is None
    assert index.memory()["sets"] == 0


def test_a_set_between_two_sizes_keeps_its_memory():
    index = made(300)
    for size in range(1, 20):
        index.add(5, size)
        seen = []
        for _ in range(3):
            index.add(5, 0)
            seen.append(index.memory()["sets"])
            index.remove(5, 0)
            seen.append(index.memory()["sets"])
        assert seen[1:] == seen[1:2] * 5


def test_room_for_ranks_grows_while_they_hold_blocks():
    """A bitset made for fewer ranks says so, and grows when a later one joins, or becomes an array if smaller now."""
    index = made(64)
    for name, size in ((1, 64), (2, 3), (3, 2)):
        for rank in range(size):
            index.add(name, rank)
    assert [index.shape(name) for name in (1, 2, 3)] == ["many", "many", "few"]
    index.reserve(1_000)
    assert index.match([1, 2, 3]) == {0: 3, 1: 3, 2: 2} | dict.fromkeys(range(3, 64), 1)
    for rank in range(1_000):
        index.add(4, rank)
    assert index.match([4, 1]) == dict.fromkeys(range(1_000), 1) | dict.fromkeys(range(64), 2)
    for name in (1, 2, 3):
        assert not index.holds(name, 999)
        assert not index.remove(name, 999)
        assert index.add(name, 999)
    assert [index.shape(name) for name in (1, 2, 3)] == ["many", "some", "some"]
    assert index.match([1, 2, 3]) == {0: 3, 1: 3, 2: 2, 999: 3} | dict.fromkeys(range(3, 64), 1)
    for rank in range(1, 300):
        index.reserve(1_000 + rank)
        index.add(5, 1_000 + rank - 1)
    assert index.match([5]) == dict.fromkeys(range(1_000, 1_299), 1)


@pytest.mark.parametrize("count", [63, 1_000, 20_000])
def test_the_table_grows_and_shrinks_without_loss(count):
    """Blocks leave in the order in which they came, so every removal closes a gap in a full table."""
    index = made(1)
    path = names(count)
    for name in path:
        index.add(name, 0)
    assert (index.blocks, index.match(path)) == (count, {0: count})
    assert index.memory()["table"] >= 24 * count
    for i, name in enumerate(path):
        assert index.remove(name, 0)
        if i % (count // 5) == 0:
            assert index.match(path[i + 1:]) == {0: count - i - 1}
            assert not index.holds(name, 0)
            assert index.memory()["table"] <= 24 * max(64, 8 * index.blocks)
    assert (index.blocks, index.pairs, index.mixed) == (0, 0, 0)
    assert index.memory()["table"] == EMPTY["table"]


def test_a_small_live_set_among_many_names():
    """Four blocks at a time, ten thousand in all; a log forgets what is out of date."""
    index = made(1)
    for name in range(10_000):
        index.add(name, 0)
        if name >= 4:
            index.remove(name - 4, 0)
        assert index.blocks == min(name + 1, 4)
    assert index.match(range(9_996, 10_000)) == {0: 4}
    assert index.memory()["table"] == EMPTY["table"]
    assert index.memory()["logs"] <= 8 * 48


@pytest.mark.parametrize("others", [1, 4, 30])
def test_blocks_that_come_and_go_are_in_a_log_once_after_all(others):
    """The same forty blocks again and again, whatever the shape of their sets: a log has room for little more."""
    index = made(100)
    for rank in range(1, others + 1):
        index.adds(range(40), rank)
    base = index.memory()["logs"]
    for _ in range(50):
        assert index.adds(range(40), 0) == 40
        for _ in range(9):
            assert index.removes(range(0, 40, 3), 0) == 14
            assert index.adds(range(0, 40, 3), 0) == 14
        assert index.memory()["logs"] <= base + 8 * 1.5 * (2 * 40 + 20)
        assert index.removes(range(40), 0) == 40
    index.purge(0)
    assert index.adds(range(40), 0) == 40
    for _ in range(45):
        index.remove(0, 0)
        index.add(0, 0)
    assert index.removes(range(1, 40), 0) == 39
    assert index.memory()["logs"] <= base + 8 * 30  # it names block 0 once
    assert index.adds(range(40), 0) == 39
    assert index.purge(0) == 40
    assert index.match([0]) == dict.fromkeys(range(1, others + 1), 1)


@pytest.mark.parametrize("order", ["oldest first", "some"])
def test_blocks_that_take_the_place_of_others_in_a_log(order):
    """One comes, one goes, a thousand times: what is held by one rank leaves a hole, which the next ones find."""
    index, choice = made(1), random.Random(1)
    held = list(range(40))
    assert index.adds(held, 0) == 40
    for name in range(40, 1_040):
        assert index.remove(held.pop(0 if order == "oldest first" else choice.randrange(40)), 0)
        held.append(name)
        assert index.add(name, 0)
        assert len(index.log(0)) <= (56 if order == "oldest first" else 72)
    assert sorted(index.held_by(0)) == sorted(held)


def test_logs_know_what_their_ranks_hold():
    """Any order of additions, removals and compactions; one of the names is that which stands for a hole."""
    ranks, choice = 70, random.Random(7)
    index, pool = made(ranks), [probe.HOLE_NAME, *names(150)]
    held = [set() for _ in range(ranks)]
    for turn in range(6_000):
        # Mostly three ranks, so that many blocks are held by one alone, and some by all.
        rank = choice.randrange(3 if turn % 3 else ranks)
        path = choice.sample(pool, choice.randrange(1, 20))
        if choice.random() < (0.6 if turn // 1_000 % 2 else 0.4):
            assert index.add_all(path, rank) == len(set(path) - held[rank])
            held[rank] |= set(path)
        else:
            assert index.remove_all(path, rank) == len(set(path) & held[rank])
            held[rank] -= set(path)
        if turn % 7 == 0:
            assert sorted(index.held_by(rank)) == sorted(held[rank])
        if turn % 250 == 0:
            assert index.purge(rank) == len(held[rank])
            held[rank].clear()
        log = index.log(rank)
        assert len(log) <= 2 * len(held[rank]) + 16
        assert held[rank] <= {*log, probe.HOLE_NAME}
        for name in held[rank]:
            assert index.place(name) is None or log[index.place(name)] == name
    assert index.pairs == sum(map(len, held))
    assert all(index.holds(name, rank) == (name in held[rank]) for rank in range(ranks) for name in pool)


@pytest.mark.parametrize("end", ["remove", "purge"])
def test_memory_comes_and_goes(end):
    index = made(300)
    for turn in range(3):
        popular = names(30)
        for rank in range(300):
            own = array("Q", range(1_000 * rank + turn + 1, 1_000 * rank + turn + 101))
            assert index.adds(popular, rank) + index.adds(own, rank) == 130
        assert (index.blocks, index.pairs) == (30_030, 39_000)
        memory = index.memory()
        assert memory["sets"] == 30 * 40
        assert 39_000 * 8 <= memory["logs"] <= 39_000 * 16
        for rank in range(300):
            own = array("Q", range(1_000 * rank + turn + 1, 1_000 * rank + turn + 101))
            if end == "purge":
                assert index.purge(rank) == 130
            else:
                assert index.removes(popular, rank) + index.removes(own, rank) == 130
        assert (index.blocks, index.pairs, index.mixed) == (0, 0, 0)
        assert index.memory()["table"] == EMPTY["table"]
        assert index.memory()["sets"] == 0
        assert index.memory()["logs"] <= (0 if end == "purge" else 300 * 8 * 36)


@pytest.mark.parametrize("spare", [3, 12, 40])
def test_an_addition_without_memory_changes_nothing(spare):
    index = made(3)
    assert index.adds([5, 6, 7], 1) == 3
    path = names(2_000_000)
    with little_memory(spare * 2**20), pytest.raises(MemoryError):
        index.adds(path, 0)
    count = index.blocks - 3
    assert 0 < count < 2_000_000
    assert index.pairs == count + 3
    assert index.match(path) == {0: count}
    assert not index.holds(path[count], 0)
    other = made(3)
    assert (other.adds(path[:count], 0), other.adds([5, 6, 7], 1)) == (count, 3)
    assert index.mixed == other.mixed
    assert index.match([5, 6, 7]) == {1: 3}
    assert index.add(path[count], 0)
    assert index.purge(0) == count + 1
    assert index.purge(1) == 3
    assert index.memory() == EMPTY
