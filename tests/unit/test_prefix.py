"""PrefixIndex: which ranks hold which blocks, how long a path each of them holds, counts, weights, the mixed sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Prefix = load("_probe").Prefix

ONE = 2**20
U64 = 2**64 - 1
RANKS = 5
#: Neighbours and extremes; the table mixes them, so that none is special.
HASHES = (0, 1, 2, 3, 64, 65, 128, 2**32, 2**63, U64 - 1, U64)


def made(ranks: int = RANKS):
    index = Prefix()
    index.reserve(ranks)
    for rank in range(ranks):
        index.name_rank(rank, 1_000 + rank)
    return index


def leading(path, held) -> int:
    return next((i for i, name in enumerate(path) if name not in held), len(path))


def test_nothing_is_held_at_first():
    index = made()
    assert index.match([1, 2]) == {}
    assert index.match([]) == {}
    assert index.holder(1, 0) is None
    assert (index.blocks, index.pairs, index.mixed) == (0, 0, 0)
    assert index.purge(0) == 0
    assert index.release(1, 0) == 0


def test_match_counts_leading_blocks_per_rank():
    index = made()
    for rank, blocks in enumerate(((1, 2, 3), (1, 2), (1, 3), (2, 3), ())):
        for name in blocks:
            index.add(name, rank)
    assert index.match([1, 2, 3]) == {0: 3, 1: 2, 2: 1}
    assert index.depths(RANKS) == [3, 2, 1, 0, 0]
    assert index.match([2, 3, 1]) == {0: 3, 1: 1, 3: 2}
    assert index.depths(RANKS) == [3, 1, 0, 2, 0]
    assert index.match([9, 1, 2]) == {}
    assert index.depths(RANKS) == [0] * 5
    assert index.match([1, 9, 2]) == {0: 1, 1: 1, 2: 1}
    assert index.match([]) == {}
    assert index.depths(RANKS) == [0] * 5


def test_a_path_may_name_a_block_twice():
    index = made()
    index.add(7, 0)
    assert index.match([7, 7, 7]) == {0: 3}


def test_a_match_ends_where_no_matching_rank_goes_on():
    """Rank 1 holds the third block only: nobody holds the second, so it does not count."""
    index = made()
    index.add(1, 0)
    index.add(3, 0)
    index.add(3, 1)
    index.add(2, 2)
    assert index.match([1, 2, 3]) == {0: 1}


@pytest.mark.parametrize("change", ["add", "acquire", "release", "purge", "another", "nameless", "nothing"])
def test_a_match_asked_for_again_is_answered_as_it_is_now(change):
    """A path that has a name for ever is not walked again while nothing has changed."""
    index = made()
    for name in (1, 2):
        index.add(name, 0)
    assert index.match([1, 2, 3], 7) == {0: 2}
    wanted = {0: 2}
    if change == "add":
        index.add(3, 0)
        wanted = {0: 3}
    elif change == "acquire":
        index.acquire(1, 4)
        wanted = {0: 2, 4: 1}
    elif change == "release":
        index.release(1, 0)
        wanted = {}
    elif change == "purge":
        index.purge(0)
        wanted = {}
    elif change == "another":
        assert index.match([2], 8) == {0: 1}
    elif change == "nameless":
        assert index.match([9]) == {}
    else:
        index.acquire(1, 0)  # one more reference of a holder
        index.release(1, 0)
        index.release(9, 0)
        index.add(2, 0)
        index.weigh(1, 0, 5)
    assert index.match([1, 2, 3], 7) == index.match([1, 2, 3], 7) == wanted
    assert index.depths(RANKS) == [wanted.get(rank, 0) for rank in range(RANKS)]


def test_references_are_counted_and_the_last_one_takes_the_weight_along():
    index = made()
    assert [index.acquire(5, 1), index.acquire(5, 1), index.acquire(5, 2)] == [1, 2, 1]
    assert (index.blocks, index.pairs) == (1, 2)
    index.weigh(5, 1, 77)
    assert index.holder(5, 1) == (2, 77)
    assert index.holder(5, 2) == (1, ONE)
    assert index.acquire(5, 1) == 3
    assert index.holder(5, 1) == (3, 77)  # sticky: a later sharer does not restore it
    assert [index.release(5, 1), index.release(5, 1), index.release(5, 1)] == [0, 0, 77]
    assert index.holder(5, 1) is None
    assert index.release(5, 2) == ONE
    assert index.acquire(5, 1) == 1
    assert index.holder(5, 1) == (1, ONE)  # a new life begins with one block


def test_told_twice_is_held_once():
    index = made()
    assert [index.add(5, 1), index.add(5, 1)] == [True, False]
    assert index.holder(5, 1) == (1, ONE)
    assert index.release(5, 1) == ONE
    assert index.holder(5, 1) is None


def test_purge_takes_one_rank_only():
    index = made()
    for name in HASHES:
        index.add(name, 0)
        index.add(name, 1)
    assert index.purge(0) == len(HASHES)
    assert index.purge(0) == 0
    assert index.match(HASHES) == {1: len(HASHES)}
    assert (index.blocks, index.pairs) == (len(HASHES), len(HASHES))


def test_purge_forgets_all_references():
    index = made()
    index.acquire(5, 0)
    index.acquire(5, 0)
    assert index.purge(0) == 1
    assert index.holder(5, 0) is None
    assert index.mixed == 0


def test_room_for_ranks_grows_without_loss():
    index = made(1)
    index.add(5, 0)
    for rank in range(1, 300):
        index.reserve(rank + 1)
        index.name_rank(rank, rank)
        index.add(5, rank)
    assert index.match([5]) == dict.fromkeys(range(300), 1)
    assert index.pairs == 300


@pytest.mark.parametrize("count", [63, 1_000, 20_000])
def test_the_table_grows_and_shrinks_without_loss(count):
    """Blocks leave in the order in which they came, so every removal closes a gap in a full table."""
    index = made(1)
    names = [(i * 0x9E3779B97F4A7C15) & U64 for i in range(count)]
    for name in names:
        index.add(name, 0)
    assert (index.blocks, index.match(names)) == (count, {0: count})
    for i, name in enumerate(names):
        assert index.release(name, 0) == ONE
        if i % (count // 5) == 0:
            assert index.match(names[i + 1:]) == {0: count - i - 1}
            assert index.holder(name, 0) is None
    assert (index.blocks, index.pairs, index.mixed) == (0, 0, 0)


def test_a_small_live_set_among_many_names():
    """Rows are used again: four blocks at a time, ten thousand in all."""
    index = made(1)
    for name in range(10_000):
        index.add(name, 0)
        if name >= 4:
            index.release(name - 4, 0)
        assert index.blocks == min(name + 1, 4)
    assert index.match(range(9_996, 10_000)) == {0: 4}


steps = st.lists(st.tuples(
    st.sampled_from(("acquire", "acquire", "add", "release", "release", "purge", "weigh")),
    st.sampled_from(HASHES), st.integers(0, RANKS - 1), st.integers(0, ONE)))
paths = st.lists(st.sampled_from(HASHES), max_size=6)


@given(steps, paths)
def test_a_dict_of_dicts_says_the_same(steps, path):
    index = made()
    model: dict[int, dict[int, list[int]]] = {rank: {} for rank in range(RANKS)}
    for kind, name, rank, weight in steps:
        held = model[rank]
        if kind == "acquire":
            held.setdefault(name, [0, ONE])[0] += 1
            assert index.acquire(name, rank) == held[name][0]
        elif kind == "add":
            assert index.add(name, rank) == (name not in held)
            held.setdefault(name, [1, ONE])
        elif kind == "purge":
            assert index.purge(rank) == len(held)
            held.clear()
        elif kind == "weigh" and name in held:
            held[name][1] = weight
            index.weigh(name, rank, weight)
        elif kind == "release":
            left = 0
            if name in held:
                held[name][0] -= 1
                if held[name][0] == 0:
                    left = held.pop(name)[1]
            assert index.release(name, rank) == left
        assert index.pairs == sum(map(len, model.values()))
        assert index.blocks == len(set().union(*model.values()))
        index.match(path, 1)
    depths = {rank: leading(path, held) for rank, held in model.items()}
    assert index.match(path, 1) == {rank: depth for rank, depth in depths.items() if depth}
    assert index.depths(RANKS) == list(depths.values())
    for rank, held in model.items():
        for name in HASHES:
            assert index.holder(name, rank) == (tuple(held[name]) if name in held else None)
    for rank in range(RANKS):
        index.purge(rank)
    assert (index.blocks, index.pairs, index.mixed) == (0, 0, 0)


pairs = st.sets(st.tuples(st.sampled_from(HASHES), st.integers(0, RANKS - 1)), max_size=25)


@given(pairs.flatmap(lambda chosen: st.tuples(st.permutations(sorted(chosen)), st.permutations(sorted(chosen)))), pairs)
def test_the_mixed_sum_knows_contents_and_no_order(orders, churn):
    one, other = made(), made()
    for name, rank in sorted(churn):
        other.acquire(name, rank)
    for name, rank in orders[0]:
        one.acquire(name, rank)
    for name, rank in orders[1]:
        other.acquire(name, rank)
        other.acquire(name, rank)
    for name, rank in sorted(churn, reverse=True):
        other.release(name, rank)
    for name, rank in orders[0]:
        other.release(name, rank)
    assert one.mixed == other.mixed
    assert (one.blocks, one.pairs) == (other.blocks, other.pairs)


def test_the_mixed_sum_tells_ranks_by_their_name_and_not_by_their_number():
    one, other = made(), made()
    other.name_rank(3, 1_000)
    one.add(5, 0)
    other.add(5, 3)
    assert one.mixed == other.mixed != 0
    other.add(5, 1)
    assert one.mixed != other.mixed
    other.release(5, 3)
    assert one.mixed != other.mixed
