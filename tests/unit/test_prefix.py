"""PrefixIndex: which ranks hold which blocks, how long a path each of them holds, the mixed sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Prefix = load("_probe_index").Prefix

U64 = 2**64 - 1
RANKS = 5
#: Neighbours and extremes; the table mixes them, so that none is special.
HASHES = (0, 1, 2, 3, 64, 65, 128, 2**32, 2**63, U64 - 1, U64)
EMPTY = {"table": 64 * 24, "sets": 0, "logs": 0}


def made(ranks: int = RANKS):
    index = Prefix()
    index.reserve(ranks)
    for rank in range(ranks):
        index.name_rank(rank, 1_000 + rank)
    return index


def run_from(path, held, start: int = 0) -> int:
    """How many blocks of the path follow from the start that are held."""
    end = start
    while end < len(path) and path[end] in held:
        end += 1
    return end - start


def mix64(x: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor & U64
    return x ^ (x >> 31)


def mixed_of(held) -> int:
    """The mixed sum by its definition; tags as `made` gives them."""
    return sum(mix64((mix64(name) + 1_000 + rank) & U64) for rank, blocks in enumerate(held) for name in blocks) & U64


def test_nothing_is_held_at_first():
    index = Prefix()
    assert index.match([1, 2]) == {}
    index = made()
    assert index.match([1, 2]) == {}
    assert index.match([]) == {}
    assert index.match_on([1, 2], [0] * RANKS) == {}
    assert not index.holds(1, 0)
    assert (index.blocks, index.pairs, index.mixed, index.reach) == (0, 0, 0, 0)
    assert index.purge(0) == 0
    assert not index.remove(1, 0)
    assert index.memory() == EMPTY


def test_match_counts_leading_blocks_per_rank():
    index = made()
    for rank, blocks in enumerate(((1, 2, 3), (1, 2), (1, 3), (2, 3), ())):
        for name in blocks:
            index.add(name, rank)
    assert (index.match([1, 2, 3]), index.reach) == ({0: 3, 1: 2, 2: 1}, 3)
    assert index.depths(RANKS) == [3, 2, 1, 0, 0]
    assert (index.match([2, 3, 1]), index.reach) == ({0: 3, 1: 1, 3: 2}, 3)
    assert index.depths(RANKS) == [3, 1, 0, 2, 0]
    assert (index.match([9, 1, 2]), index.reach) == ({}, 0)
    assert index.depths(RANKS) == [0] * 5
    assert (index.match([1, 9, 2]), index.reach) == ({0: 1, 1: 1, 2: 1}, 1)
    assert index.match([]) == {}
    assert index.depths(RANKS) == [0] * 5


@given(st.lists(st.tuples(st.booleans(), st.integers(0, RANKS - 1), st.lists(st.integers(1, 30), max_size=40))))
def test_many_blocks_at_once_are_each_in_turn(steps):
    """The same answers and the same contents, also where a list names a block twice and where the table moves."""
    at_once, each = made(), made()
    for stores, rank, blocks in steps:
        if stores:
            assert at_once.add_all(blocks, rank) == sum(each.add(block, rank) for block in blocks)
        else:
            assert at_once.remove_all(blocks, rank) == sum(each.remove(block, rank) for block in blocks)
        assert (at_once.pairs, at_once.blocks, at_once.mixed) == (each.pairs, each.blocks, each.mixed)
    assert at_once.match(range(1, 31)) == each.match(range(1, 31))


@pytest.mark.parametrize("step", [1, 2**16, 2**32, 2**63 // 5000, 0x9E3779B97F4A7C15, -1 % 2**64])
def test_names_in_a_pattern_find_their_rows(step):
    """Whatever the names are like: what is stored is found, what is not is not, and removal leaves nothing behind."""
    index = made()
    names = [i * step % 2**64 for i in range(1, 5001)]
    assert index.add_all(names, 0) == len(set(names))
    assert index.match(names) == {0: len(names)}
    assert index.remove_all(names[::2], 0) == len(set(names[::2]))
    assert [index.holds(name, 0) for name in names[:100]] == [False, True] * 50
    assert index.remove_all(names[1::2], 0) == len(set(names[1::2]))
    assert (index.pairs, index.blocks, index.mixed) == (0, 0, 0)


def test_a_path_may_name_a_block_twice():
    index = made()
    index.add(7, 0)
    assert index.match([7, 7, 7]) == {0: 3}
    for rank in range(RANKS):
        index.add(7, rank)
    assert index.match([7, 7, 7]) == dict.fromkeys(range(RANKS), 3)


def test_a_match_ends_where_no_matching_rank_goes_on():
    """Rank 1 holds the third block only: nobody holds the second, so it does not count."""
    index = made()
    index.add(1, 0)
    index.add(3, 0)
    index.add(3, 1)
    index.add(2, 2)
    assert index.match([1, 2, 3]) == {0: 1}


@pytest.mark.parametrize("change", ["add", "another rank", "remove", "purge", "another", "nameless", "tier", "nothing"])
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
    elif change == "another rank":
        index.add(1, 4)
        wanted = {0: 2, 4: 1}
    elif change == "remove":
        index.remove(1, 0)
        wanted = {}
    elif change == "purge":
        index.purge(0)
        wanted = {}
    elif change == "another":
        assert index.match([2], 8) == {0: 1}
    elif change == "nameless":
        assert index.match([9]) == {}
    elif change == "tier":
        assert index.match_on([1, 2, 3], [1] * RANKS) == {0: 1}
    else:
        index.remove(9, 0)
        index.add(2, 0)
    assert index.match([1, 2, 3], 7) == index.match([1, 2, 3], 7) == wanted
    assert index.depths(RANKS) == [wanted.get(rank, 0) for rank in range(RANKS)]


def test_an_unchanged_match_is_not_walked_again():
    """Under the same name another path is not looked at: the name is for ever."""
    index = made()
    index.add(1, 0)
    assert index.match([1], 7) == {0: 1}
    assert index.match([2], 7) == {0: 1}
    assert index.match([2]) == {}


def test_purge_takes_one_rank_only():
    index = made()
    for name in HASHES:
        index.add(name, 0)
        index.add(name, 1)
    assert index.purge(0) == len(HASHES)
    assert index.purge(0) == 0
    assert index.match(HASHES) == {1: len(HASHES)}
    assert (index.blocks, index.pairs, index.mixed) == (len(HASHES), len(HASHES), mixed_of([(), HASHES]))


FEW, CROWD = 5, 300
operations = st.lists(st.tuples(
    st.sampled_from(("add", "remove", "purge", "crowd", "crowd", "scatter", "scatter", "room")),
    st.sampled_from(HASHES), st.integers(0, CROWD - 1), st.integers(0, CROWD - 1)), max_size=40)
paths = st.lists(st.sampled_from(HASHES), max_size=6)
starts = st.lists(st.sampled_from((0, 0, 0, 1, 2, 3, 5, 9)), min_size=1, max_size=7)


@pytest.mark.parametrize("ranks", [FEW, CROWD])
@given(operations=operations, path=paths, starts=starts, room=st.integers(1, CROWD))
def test_sets_by_rank_say_the_same(ranks, operations, path, starts, room):
    """Any history, few ranks and many, while room for them grows; then all that can be asked."""
    index = made(min(room, ranks))
    room = min(room, ranks)
    held: list[set[int]] = [set() for _ in range(ranks)]
    for kind, name, first, last in operations:
        members = range(min(first, last) % room, max(first, last) % room + 1)
        if kind == "room":
            if first >= room:
                room = min(ranks, first + 1)
                index.reserve(room)
                for rank in range(room):
                    if not held[rank]:
                        index.name_rank(rank, 1_000 + rank)
        elif kind == "purge":
            assert index.purge(first % room) == len(held[first % room])
            held[first % room].clear()
        elif kind in ("add", "crowd"):
            for rank in members if kind == "crowd" else members[:1]:
                assert index.add(name, rank) == (name not in held[rank])
                held[rank].add(name)
        else:
            for rank in members if kind == "scatter" else members[:1]:
                assert index.remove(name, rank) == (name in held[rank])
                held[rank].discard(name)
        assert index.pairs == sum(map(len, held))
        assert index.blocks == len(set().union(*held))
        index.match(path, 1)
    depths = {rank: run_from(path, blocks) for rank, blocks in enumerate(held)}
    wanted = {rank: depth for rank, depth in depths.items() if depth}
    assert index.match(path, 1) == index.match(path) == wanted
    assert index.reach == max(depths.values())
    start = [starts[rank % len(starts)] for rank in range(ranks)]
    wanted = {rank: depth for rank, blocks in enumerate(held) if (depth := run_from(path, blocks, start[rank]))}
    assert index.match_on(path, start) == index.match_on(path, start, max(start)) == wanted
    assert index.reach == max((start[rank] + depth for rank, depth in wanted.items()), default=0)
    assert index.mixed == mixed_of(held)
    for name in HASHES:
        assert [index.holds(name, rank) for rank in range(room)] == [name in held[rank] for rank in range(room)]
    for rank in range(room):
        assert index.purge(rank) == len(held[rank])
    assert (index.blocks, index.pairs, index.mixed, index.memory()) == (0, 0, 0, EMPTY)


pairs = st.sets(st.tuples(st.sampled_from(HASHES), st.integers(0, RANKS - 1)), max_size=25)


@given(pairs.flatmap(lambda chosen: st.tuples(st.permutations(sorted(chosen)), st.permutations(sorted(chosen)))), pairs)
def test_the_mixed_sum_knows_contents_and_no_order(orders, churn):
    one, other = made(), made(700)
    for name, rank in sorted(churn):
        other.add(name, rank)
    for name, rank in orders[0]:
        one.add(name, rank)
    for name, rank in sorted(churn - set(orders[0]), reverse=True):
        other.remove(name, rank)
    for name, rank in orders[1]:
        other.add(name, rank)
        other.add(name, rank)
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
    other.remove(5, 3)
    assert one.mixed != other.mixed
