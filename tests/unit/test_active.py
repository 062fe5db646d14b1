"""ActiveBlocks: counted pairs of block and rank, rows that stay where they are, the same pairs as sets, memory."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_memory import little_memory
from probe_build import load

probe = load("_probe_index")

ONE = 2**20
U64 = 2**64 - 1
RANKS = 5
HASHES = (0, 1, 2, 3, 64, 65, 128, 2**32, 2**63, U64 - 1, U64)


def made(ranks: int = RANKS):
    blocks = probe.Active()
    blocks.reserve(ranks)
    for rank in range(ranks):
        blocks.name_rank(rank, 1_000 + rank)
    return blocks


def count(blocks, name: int, rank: int) -> int:
    row = blocks.find(name, rank)
    return 0 if row is None else blocks.row(row)[2]


def test_nothing_is_active_at_first():
    blocks = probe.Active()
    assert blocks.find(1, 0) is None
    assert (blocks.pairs, blocks.mixed, blocks.match([1])) == (0, 0, {})


def test_references_are_counted_by_rank():
    blocks = made()
    row = blocks.acquire(5, 1)
    assert blocks.row(row) == (5, 1, 1, ONE, None)
    assert blocks.acquire(5, 1) == blocks.find(5, 1) == row
    other = blocks.acquire(5, 2)
    assert other != row
    assert (count(blocks, 5, 1), count(blocks, 5, 2), blocks.pairs) == (2, 1, 2)
    assert not blocks.release(row)
    assert count(blocks, 5, 1) == 1
    assert blocks.match([5]) == {1: 1, 2: 1}
    assert blocks.release(row)
    assert blocks.find(5, 1) is None
    assert blocks.match([5]) == {2: 1}
    assert blocks.release(other)
    assert (blocks.pairs, blocks.mixed) == (0, 0)


def test_what_the_ledger_writes_stays_as_long_as_the_pair_lives():
    """A later sharer finds the weight as it is; a new life begins with one whole block that belongs to nobody."""
    blocks = made()
    row = blocks.acquire(5, 1)
    blocks.write(row, 77, 3, 9)
    assert blocks.acquire(5, 1) == row
    assert not blocks.release(row)
    assert blocks.row(row) == (5, 1, 1, 77, 3)
    assert blocks.release(row)
    assert blocks.row(blocks.acquire(5, 1)) == (5, 1, 1, ONE, None)


def test_a_row_keeps_its_number_while_others_come_and_go():
    blocks = made()
    row = blocks.acquire(7, 3)
    for turn in range(3):
        blocks.acquires(range(100, 5_000), turn)
        assert (blocks.find(7, 3), blocks.row(row)) == (row, (7, 3, 1, ONE, None))
        blocks.releases(range(100, 5_000), turn)
        assert (blocks.find(7, 3), blocks.row(row)) == (row, (7, 3, 1, ONE, None))


def test_a_match_follows_the_last_reference_only():
    """A path that has a name: neither a second reference nor the loss of one changes the answer, the last one does."""
    blocks = made()
    first, second = blocks.acquire(1, 0), blocks.acquire(2, 0)
    assert blocks.match([1, 2], 7) == {0: 2}
    blocks.acquire(2, 0)
    blocks.release(second)
    assert blocks.match([1, 2], 7) == {0: 2}
    blocks.release(first)
    assert blocks.match([1, 2], 7) == {}
    blocks.acquire(1, 0)
    assert blocks.match([1, 2], 7) == {0: 2}


def test_one_block_on_every_rank():
    """Pairs are found by block and rank at once, so a popular block has no list to go through."""
    blocks = made(3_000)
    rows = [blocks.acquire(5, rank) for rank in range(3_000)]
    assert len(set(rows)) == blocks.pairs == 3_000
    assert [blocks.find(5, rank) for rank in range(3_000)] == rows
    assert blocks.match([5]) == dict.fromkeys(range(3_000), 1)
    for rank in range(0, 3_000, 2):
        assert blocks.release(rows[rank])
    assert [blocks.find(5, rank) for rank in range(3_000)] == [
        None if rank % 2 == 0 else row for rank, row in enumerate(rows)]
    assert blocks.match([5]) == dict.fromkeys(range(1, 3_000, 2), 1)


@pytest.mark.parametrize(("one", "other"), [((43, 21_927), (43, 38_193)), ((171_169, 0), (1_442_053, 0))])
def test_pairs_are_told_apart_where_their_mixed_keys_look_alike(one, other):
    """Both have the same home in a small table, and the same high half of the key."""
    blocks = made(38_194)
    row = blocks.acquire(*one)
    assert blocks.find(*other) is None
    assert blocks.acquire(*other) != row
    assert blocks.row(blocks.find(*one))[:3] == (*one, 1)
    assert blocks.row(blocks.find(*other))[:3] == (*other, 1)
    assert blocks.release(row)
    assert (blocks.find(*one), blocks.find(*other) is None) == (None, False)


def test_memory_comes_and_goes():
    blocks = made(10)
    blocks.acquires(range(10), 0)
    blocks.releases(range(10), 0)
    base = blocks.memory()
    for _ in range(3):
        for rank in range(10):
            blocks.acquires(range(1_000 * rank, 1_000 * rank + 1_500), rank)
            blocks.acquires(range(1_000 * rank, 1_000 * rank + 1_500), rank)
        assert blocks.pairs == 15_000
        memory = blocks.memory()
        assert memory["rows"] >= 15_000 * 32
        assert memory["pairs"] >= 15_000 * 8
        for rank in range(10):
            blocks.releases(range(1_000 * rank, 1_000 * rank + 1_500), rank)
        assert blocks.pairs == 15_000
        for rank in range(10):
            blocks.releases(range(1_000 * rank, 1_000 * rank + 1_500), rank)
        assert (blocks.pairs, blocks.mixed) == (0, 0)
        left = blocks.memory()
        assert left.pop("logs") <= 10 * 8 * 36
        assert left == {name: size for name, size in base.items() if name != "logs"}


def test_rows_are_used_again():
    blocks = made(1)
    for name in range(10_000):
        blocks.acquire(name, 0)
        if name >= 4:
            assert blocks.release(blocks.find(name - 4, 0))
        assert blocks.pairs == min(name + 1, 4)
    assert blocks.match(range(9_996, 10_000)) == {0: 4}
    assert blocks.memory()["rows"] == 64 * 32


@pytest.mark.parametrize("spare", [3, 10, 20])
def test_a_reference_without_memory_changes_nothing(spare):
    blocks = made(2)
    blocks.acquires([5, 6, 7], 1)
    path = array("Q", range(1_000, 2_000_000))
    with little_memory(spare * 2**20), pytest.raises(MemoryError):
        blocks.acquires(path, 0)
    held = blocks.pairs - 3
    assert 0 < held < len(path)
    assert blocks.match(path) == {0: held}
    assert blocks.find(path[held], 0) is None
    assert all(count(blocks, name, 0) == 1 for name in path[:held])
    other = made(2)
    other.acquires([5, 6, 7], 1)
    other.acquires(path[:held], 0)
    assert blocks.mixed == other.mixed
    assert blocks.row(blocks.acquire(path[held], 0)) == (path[held], 0, 1, ONE, None)
    blocks.releases(path[:held + 1], 0)
    assert (blocks.pairs, blocks.match([5, 6, 7])) == (3, {1: 3})


steps = st.lists(st.tuples(
    st.sampled_from(("acquire", "acquire", "release", "write", "crowd", "leave")),
    st.sampled_from(HASHES), st.integers(0, 299), st.integers(0, ONE)), max_size=60)
paths = st.lists(st.sampled_from(HASHES), max_size=6)


@pytest.mark.parametrize("ranks", [RANKS, 300])
@given(steps=steps, path=paths)
def test_a_dict_says_the_same(ranks, steps, path):
    blocks = made(ranks)
    model: dict[tuple[int, int], list[int]] = {}  # (hash, rank) -> row, count, weight

    def acquire(name, rank):
        row = blocks.acquire(name, rank)
        pair = model.setdefault((name, rank), [row, 0, ONE])
        assert pair[0] == row
        pair[1] += 1

    def release(name, rank):
        pair = model[name, rank]
        pair[1] -= 1
        assert blocks.release(pair[0]) == (pair[1] == 0)
        if not pair[1]:
            del model[name, rank]

    for kind, name, at, weight in steps:
        rank = at % ranks
        if kind == "acquire":
            acquire(name, rank)
        elif kind == "crowd":
            for other in range(rank):
                acquire(name, other)
        elif kind == "leave":
            for pair in [pair for pair in model if pair[0] == name and pair[1] >= rank]:
                release(*pair)
        elif (name, rank) in model:
            if kind == "release":
                release(name, rank)
            else:
                model[name, rank][2] = weight
                blocks.write(model[name, rank][0], weight, 4, 0)
        blocks.match(path, 1)
    assert blocks.pairs == len(model)
    rows = [row for row, _, _ in model.values()]
    assert len(set(rows)) == len(rows)
    for (name, rank), (row, references, weight) in model.items():
        assert blocks.find(name, rank) == row
        assert blocks.row(row)[:4] == (name, rank, references, weight)
    depths = {}
    for rank in range(ranks):
        depth = next((i for i, name in enumerate(path) if (name, rank) not in model), len(path))
        if depth:
            depths[rank] = depth
    assert blocks.match(path, 1) == depths
    absent = [(name, rank) for name in HASHES for rank in range(ranks) if (name, rank) not in model]
    assert all(blocks.find(name, rank) is None for name, rank in absent)
    for pair in list(model):
        while pair in model:
            release(*pair)
    assert (blocks.pairs, blocks.mixed) == (0, 0)
    assert blocks.memory()["rows"] <= 64 * 32
