"""PrefixIndex held against the reference: the scenarios of its membership trie, tiers below the device, field reports.

Paths like 123 mean hashes 1, 2, 3. Storing from k adds the blocks of the path from position k on, removing from k takes
them out. E numbers name field reports.
"""

from __future__ import annotations

import random

import pytest
from probe_build import load

Prefix = load("_probe_index").Prefix
A, B, C = range(3)
RANKS = 3


class Trie:
    """A PrefixIndex by paths."""

    def __init__(self, ranks: int = RANKS) -> None:
        self.index = Prefix()
        self.index.reserve(ranks)

    def store(self, rank: int, path: str, first: int = 0) -> list[bool]:
        return [self.index.add(int(name), rank) for name in path[first:]]

    def remove(self, rank: int, path: str, first: int = 0) -> list[bool]:
        return [self.index.remove(int(name), rank) for name in path[first:]]

    def query(self, path: str) -> dict[int, int]:
        return self.index.match([int(name) for name in path])

    def below(self, upper: Trie, path: str) -> dict[int, int]:
        """How far each rank goes on here from where the tier above has ended."""
        return self.index.match_below(upper.index, [int(name) for name in path])


@pytest.fixture
def trie():
    return Trie()


def test_1_full_path_continuations_extend_and_trim(trie):
    trie.store(A, "123")
    trie.store(A, "12345", 3)
    assert trie.query("12345") == {A: 5}
    trie.remove(A, "12345", 3)
    assert trie.query("12345") == {A: 3}


def test_2_branching_continuations(trie):
    trie.store(A, "1234")
    trie.store(B, "125")
    assert trie.query("1234") == {A: 4, B: 2}
    assert trie.query("125") == {A: 2, B: 3}


def test_3_partial_suffix_removal_keeps_the_prefix(trie):
    trie.store(A, "12345")
    trie.remove(A, "12345", 2)
    assert trie.query("12345") == {A: 2}


def test_4_a_rank_that_leaves_takes_nobody_along(trie):
    trie.store(A, "123")
    trie.store(B, "123")
    assert trie.index.purge(A) == 3
    assert trie.query("123") == {B: 3}


def test_5_ranks_of_one_worker_remain_isolated(trie):
    trie.store(A, "123")
    trie.store(B, "12")
    assert trie.query("123") == {A: 3, B: 2}


def test_6_a_cleared_rank_starts_empty(trie):
    trie.store(A, "123")
    trie.index.purge(A)
    trie.store(A, "12")
    assert trie.query("123") == {A: 2}


def test_7_a_removal_said_twice_is_one(trie):
    trie.store(A, "1234")
    assert trie.remove(A, "1234", 1) == [True, True, True]
    mixed = trie.index.mixed
    assert trie.remove(A, "1234", 1) == [False, False, False]
    assert (trie.query("1234"), trie.index.pairs, trie.index.mixed) == ({A: 1}, 1, mixed)


def test_8_a_path_that_ends_inside_another(trie):
    trie.store(A, "1234")
    trie.store(B, "12")
    assert trie.query("1234") == {A: 4, B: 2}


def test_9_changes_follow_the_suffix_behind_a_branch(trie):
    trie.store(A, "1234")
    trie.store(B, "125")
    trie.remove(A, "1234", 2)
    assert trie.query("1234") == {A: 2, B: 2}
    trie.store(A, "1234", 2)
    assert trie.query("1234") == {A: 4, B: 2}


def test_10_ends_at_every_position_of_a_stretch_that_is_split():
    trie = Trie(5)
    for rank, length in enumerate((1, 2, 3, 4)):
        trie.store(rank, "1234"[:length])
    trie.store(4, "1256")
    assert trie.query("1234") == {0: 1, 1: 2, 2: 3, 3: 4, 4: 2}
    assert {rank: min(depth, 2) for rank, depth in trie.query("1234").items()} == {0: 1, 1: 2, 2: 2, 3: 2, 4: 2}
    assert {rank: depth - 2 for rank, depth in trie.query("1234").items() if depth > 2} == {2: 1, 3: 2}
    assert trie.query("1256") == {0: 1, 1: 2, 2: 2, 3: 2, 4: 4}


def test_11_five_thousand_steps_against_the_naive_union():
    """Paths of live requests: a rank holds the union of its own; every 211 steps one rank is dropped."""
    draw = random.Random(11)
    trie = Trie()
    paths = ["123456789", "1234", "12", "45", "456789", "9", "91234"]
    live: list[list[str]] = [[] for _ in range(RANKS)]
    for step in range(5_000):
        rank = draw.randrange(RANKS)
        before = set("".join(live[rank]))
        if step % 211 == 210:
            assert trie.index.purge(rank) == len(before)
            live[rank] = []
        elif live[rank] and draw.random() < 0.5:
            path = live[rank].pop(draw.randrange(len(live[rank])))
            gone = before - set("".join(live[rank]))
            assert trie.remove(rank, [name for name in path if name in gone]) == [True] * len(gone)
        else:
            path = draw.choice(paths)
            assert trie.store(rank, path) == [name not in before for name in path]
            live[rank].append(path)
        query = draw.choice(paths)
        unions = [set("".join(mine)) for mine in live]
        depths = [next((i for i, name in enumerate(query) if name not in mine), len(query)) for mine in unions]
        assert trie.query(query) == {rank: depth for rank, depth in enumerate(depths) if depth}
        assert trie.index.pairs == sum(map(len, unions))


@pytest.mark.parametrize("first", [B, C])
def test_12_two_branches_of_one_path_in_either_order(trie, first):
    """Concurrent splits of the reference; here there is one owner, and either order gives the same."""
    trie.store(A, "123")
    trie.store(A, "4", 0)
    for rank in (first, B + C - first):
        trie.store(rank, "1278" if rank == B else "1239")
    assert trie.query("1278") == {A: 2, B: 4, C: 2}
    assert trie.query("1239") == {A: 3, B: 2, C: 4}


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_13_first_insertions_at_the_root(trie, order):
    for rank in order:
        trie.store(rank, "123")
    assert trie.query("123") == {A: 3, B: 3}


def test_14_what_is_dead_is_gone_and_what_is_held_stays(trie):
    """The reference sweeps dead nodes later and must spare pinned ones; here a block goes with its last holder."""
    trie.store(A, "12")
    trie.store(B, "123")
    trie.remove(B, "123", 0)
    assert trie.index.blocks == 2
    assert trie.query("123") == {A: 2}
    trie.remove(A, "12")
    assert (trie.index.blocks, trie.query("12")) == (0, {})


def test_a_middle_block_cuts_the_path_and_restores_it(trie):
    trie.store(A, "12345")
    trie.store(B, "12345")
    trie.remove(A, "3")
    assert trie.query("12345") == {A: 2, B: 5}
    trie.store(A, "3")
    assert trie.query("12345") == {A: 5, B: 5}


@pytest.mark.parametrize("crowd", [0, 200])
def test_lower_tiers_go_on_where_the_one_above_has_ended(crowd):
    """Device, host, disk; a gap ends a chain; a rank may begin at 0 in any tier. crowd: others that share it all."""
    device, host, disk = (Trie(RANKS + crowd) for _ in range(3))
    for rank in range(RANKS, RANKS + crowd):
        device.store(rank, "12")
        host.store(rank, "1234")
        disk.store(rank, "345")
    device.store(A, "12")
    host.store(A, "345")
    disk.store(A, "6")
    host.store(B, "12")  # nothing on the device
    disk.store(B, "34")
    device.store(C, "1")
    host.store(C, "3456")  # 2 is missing: nothing follows
    disk.store(C, "23")
    others = range(RANKS, RANKS + crowd)
    assert device.query("123456") == {A: 2, C: 1} | dict.fromkeys(others, 2)
    assert host.below(device, "123456") == {A: 3, B: 2} | dict.fromkeys(others, 2)
    reached = [above + more for above, more in zip(
        device.index.depths(RANKS + crowd), host.index.depths(RANKS + crowd), strict=True)]
    assert reached == [5, 2, 1] + [4] * crowd
    wanted = {A: 1, B: 2, C: 2} | dict.fromkeys(others, 1)
    path = [1, 2, 3, 4, 5, 6]
    assert disk.index.match_on(path, reached) == wanted
    assert disk.index.match_on(path, reached, max(device.index.reach, host.index.reach)) == wanted
    assert device.index.reach == 2
    assert host.index.reach == 5
    assert disk.index.reach == 6


def test_a_start_at_or_behind_the_end_matches_nothing(trie):
    trie.store(A, "123")
    assert trie.index.match_on([1, 2, 3], [3, 0, 0]) == {}
    assert trie.index.match_on([1, 2, 3], [2**31 - 1, 0, 0]) == {}
    assert trie.index.match_on([1, 2, 3], [2, 0, 0]) == {A: 1}


def test_many_ranks_that_begin_all_along_a_long_path():
    """Popular blocks, and some that one or a few hold: ranks join at every position, also 64 apart."""
    ranks, length = 300, 200
    index = Prefix()
    index.reserve(ranks)
    held = [set(range(length)) for _ in range(ranks)]
    for rank in range(ranks):
        held[rank] -= {rank % 37 + 64 * i for i in range(rank % 4)} | {(7 * rank) % length}
    for level in (50, 51, 114, 178):
        for rank in range(ranks):
            if rank % 100 != level % 100:
                held[rank].discard(level)
    for rank in range(ranks):
        index.adds(sorted(held[rank]), rank)
    assert {index.shape(level) for level in range(length)} == {"few", "some", "many"}
    for shift in (0, 1, 64):
        start = [(rank * 13 + shift) % (length + 5) for rank in range(ranks)]
        wanted = {}
        for rank in range(ranks):
            end = start[rank]
            while end < length and end in held[rank]:
                end += 1
            if end > start[rank]:
                wanted[rank] = end - start[rank]
        assert index.match_on(range(length), start) == wanted
        assert index.match_on(range(length), start, max(start)) == wanted


def test_e23_a_prefix_told_again_counts_once(trie):
    assert trie.store(A, "123") == [True, True, True]
    size = trie.index.blocks, trie.index.pairs, trie.index.mixed, trie.index.memory()
    for _ in range(100):
        assert trie.store(A, "123") == [False, False, False]
    assert (trie.index.blocks, trie.index.pairs, trie.index.mixed, trie.index.memory()) == size
    assert trie.index.purge(A) == 3


def test_e88_a_storm_of_changes_leaves_nothing_behind():
    """Additions, removals, departures, all repeated: in the end memory is as it was."""
    draw = random.Random(88)
    trie = Trie(100)
    empty = trie.index.memory()
    for _ in range(3):
        for _ in range(2_000):
            rank, first = draw.randrange(100), draw.randrange(3_000)
            path = range(first, first + 20)
            if draw.random() < 0.6:
                trie.index.adds(path, rank)
            elif draw.random() < 0.9:
                trie.index.removes(path, rank)
            else:
                trie.index.purge(rank)
                assert trie.index.purge(rank) == 0
        assert trie.index.pairs > 1_000
        for rank in range(100):
            trie.index.purge(rank)
        assert (trie.index.blocks, trie.index.pairs, trie.index.mixed, trie.index.memory()) == (0, 0, 0, empty)


def test_e89_an_absent_block_does_not_end_a_batch(trie):
    trie.store(A, "12345")
    assert trie.remove(A, "9281834") == [False, True, False, True, False, True, True]
    assert (trie.index.pairs, trie.query("5")) == (1, {A: 1})
