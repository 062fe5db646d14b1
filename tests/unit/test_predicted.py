"""PredictedBlocks: what was sent to a rank counts as cached there until its time is over or its place is taken."""

from __future__ import annotations

import itertools
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_memory import little_memory
from probe_build import load

Predicted = load("_probe_marks").Predicted

TTL = 100
NS_END = 2**62
U64 = 2**64 - 1
TABLE_MIN = 64
RANKS = 3
#: Neighbours and extremes; the table mixes them, so that none is special.
HASHES = (0, 1, 2, 3, 64, 65, 128, 2**32, 2**63, U64 - 1, U64)


def made(ttl_ns: int = TTL, tags=range(1_000, 1_000 + RANKS)):
    blocks = Predicted(ttl_ns)
    blocks.reserve(len(tags))
    for rank, tag in enumerate(tags):
        blocks.name_rank(rank, tag)
    return blocks


def hashes(blocks, rank: int = 0) -> list[int]:
    """Of one rank, least recently used first."""
    return [name for name, *_ in blocks.order_of(rank)]


def leading(path, held) -> int:
    return next((i for i, name in enumerate(path) if name not in held), len(path))


def mix64(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & U64
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & U64
    return x ^ x >> 31


def mixed_of(orders: dict[int, list[tuple[int, int]]]) -> int:
    """Tag -> [(hash, used_ns)] in order of use; the sum from scratch."""
    total = 0
    for tag, order in orders.items():
        names = [mix64(mix64(name) + tag & U64) for name, _ in order]
        total += sum(mix64(name + used & U64) for name, (_, used) in zip(names, order, strict=True))
        total += sum(mix64(mix64(older) + newer & U64) for older, newer in itertools.pairwise(names))
    return total & U64


def sound(blocks, ranks: int = RANKS) -> bool:
    """Every way to look at the pairs says the same."""
    order = blocks.order()
    rows, table, entries, free = blocks.footprint()
    assert blocks.order_back() == order[::-1]
    assert [used for *_, used in order] == sorted(used for *_, used in order)
    for rank in range(ranks):
        mine = [row for row in order if row[1] == rank]
        assert blocks.held(rank) == len(mine)
        assert sorted(blocks.order_of(rank)) == sorted(mine)
        assert blocks.order_of_back(rank) == blocks.order_of(rank)[::-1]
        assert [used for *_, used in blocks.order_of(rank)] == sorted(used for *_, used in mine)
    assert all(blocks.used_ns(name, rank) == used for name, rank, used in order)
    assert blocks.pairs == entries == len(order) == len({row[:2] for row in order}) == rows - free
    return rows * 4 <= table * 3 and (table == TABLE_MIN or table <= 8 * entries + 8)


def test_nothing_is_predicted_at_first():
    blocks = made()
    assert (blocks.order(), blocks.match([1, 2]), blocks.pairs, blocks.mixed) == ([], {}, 0, 0)
    assert blocks.used_ns(1, 0) is None
    blocks.expire(NS_END - 1)
    blocks.purge(0)
    blocks.touch([], 0, 5, 0)
    assert blocks.pairs == 0


def test_a_path_is_matched_on_its_rank():
    blocks = made()
    blocks.touch([1, 2, 3], 0, 10)
    blocks.touch([1, 2], 2, 10)
    assert blocks.match([1, 2, 3, 4]) == {0: 3, 2: 2}
    assert blocks.match([2]) == {0: 1, 2: 1}
    assert blocks.match([4]) == {}


def test_the_time_to_live_is_exact():
    blocks = made()
    blocks.touch([1, 2], 0, 7)
    blocks.expire(7 + TTL - 1)
    assert blocks.match([1, 2]) == {0: 2}
    blocks.expire(7 + TTL)
    assert (blocks.match([1, 2]), blocks.pairs, blocks.mixed) == ({}, 0, 0)


def test_a_time_to_live_of_one_nanosecond():
    blocks = made(1)
    blocks.touch([1], 0, 0)
    blocks.expire(0)
    assert blocks.match([1]) == {0: 1}
    blocks.expire(1)
    assert blocks.match([1]) == {}


def test_a_use_renews_what_it_uses_and_nothing_else():
    blocks = made()
    blocks.touch([1, 2, 3], 0, 0)
    blocks.touch([1, 2, 3], 1, 0)
    blocks.touch([1, 2], 0, 60)
    blocks.expire(TTL)
    assert blocks.match([1, 2, 3]) == {0: 2}
    blocks.expire(60 + TTL - 1)
    assert blocks.match([1, 2, 3]) == {0: 2}
    blocks.expire(60 + TTL)
    assert blocks.pairs == 0


@pytest.mark.parametrize(("ttl", "used"), [(NS_END - 1, 1), (NS_END - 1, NS_END - 1), (2, NS_END - 2)])
def test_an_end_that_no_time_reaches(ttl, used):
    blocks = made(ttl)
    blocks.touch([1], 0, used)
    blocks.expire(NS_END - 1)
    assert blocks.match([1]) == {0: 1}


def test_the_last_end_that_time_reaches():
    blocks = made(1)
    blocks.touch([1], 0, NS_END - 2)
    blocks.expire(NS_END - 1)
    assert blocks.match([1]) == {}


def test_of_one_path_the_deepest_goes_first():
    blocks = made()
    blocks.touch([1, 2, 3, 4], 0, 5)
    assert hashes(blocks) == [4, 3, 2, 1]
    blocks.touch([1, 2, 3, 4], 0, 5, 3)
    assert blocks.match([1, 2, 3, 4]) == {0: 3}
    blocks.touch([], 0, 6, 1)
    assert blocks.match([1, 2, 3, 4]) == {0: 1}


def test_worked_example_of_ten_blocks():
    """Paths end one after the other; each end is one epoch: older epochs go first, in each the deepest block."""
    blocks = made()
    for now, path in enumerate(([10, 11, 12], [10, 11, 13], [20, 21, 22, 23, 24])):
        blocks.touch(path, 0, now, 10)
    assert hashes(blocks) == [12, 13, 11, 10, 24, 23, 22, 21, 20]
    blocks.touch([10, 11, 12], 0, 3, 10)
    assert hashes(blocks) == [13, 24, 23, 22, 21, 20, 12, 11, 10]
    blocks.touch([30, 31, 32], 0, 4, 10)
    assert hashes(blocks) == [23, 22, 21, 20, 12, 11, 10, 32, 31, 30]
    assert [blocks.match(path).get(0, 0) for path in ([10, 11, 13], [20, 21, 22, 23, 24], [30, 31, 32])] == [2, 4, 3]
    assert sound(blocks)


def test_a_path_above_the_capacity_keeps_its_root_end():
    blocks = made()
    blocks.touch([8, 9], 0, 0, 4)
    blocks.touch(range(10, 30), 0, 1, 4)
    assert hashes(blocks) == [13, 12, 11, 10]
    assert blocks.match(range(10, 30)) == {0: 4}
    assert sound(blocks)


def test_a_path_may_name_a_block_twice():
    """Its use nearest to the root counts."""
    blocks = made()
    blocks.touch([1, 2, 1, 3], 0, 0)
    assert hashes(blocks) == [3, 2, 1]
    blocks.touch([4, 4, 4], 0, 1, 2)
    assert hashes(blocks) == [1, 4]
    assert sound(blocks)


def test_a_capacity_is_of_one_rank():
    blocks = made()
    blocks.touch([1, 2, 3], 0, 0)
    blocks.touch([1, 2, 3], 1, 1, 2)
    blocks.touch([4], 1, 2, 2)
    assert (hashes(blocks, 0), hashes(blocks, 1)) == ([3, 2, 1], [1, 4])


def test_capacity_zero_predicts_nothing():
    blocks = made()
    blocks.touch([1, 2], 1, 0)
    blocks.touch([1, 2], 0, 0, 0)
    assert blocks.match([1, 2]) == {1: 2}
    blocks.touch([3], 1, 1, 0)
    assert (blocks.pairs, blocks.mixed, blocks.held(1)) == (0, 0, 0)


def test_a_capacity_may_shrink_and_end():
    blocks = made()
    blocks.touch([1, 2, 3, 4, 5], 0, 0, 5)
    blocks.touch([1], 0, 1, 2)
    assert hashes(blocks) == [2, 1]
    blocks.touch([6, 7, 8], 0, 2)
    assert hashes(blocks) == [2, 1, 8, 7, 6]
    blocks.touch([9], 0, 3, 2**62)
    assert blocks.held(0) == 6


def test_purge_takes_one_rank_only_and_its_place_may_be_used_again():
    blocks = made()
    blocks.touch([1, 2, 3], 0, 0)
    blocks.touch([1, 2], 1, 1)
    blocks.touch([4], 0, 2)
    blocks.purge(0)
    assert (blocks.match([1, 2, 3]), blocks.held(0), blocks.order_of(0)) == ({1: 2}, 0, [])
    assert blocks.mixed == mixed_of({1_001: [(2, 1), (1, 1)]})
    blocks.purge(0)
    blocks.name_rank(0, 77)  # another rank in the same place
    blocks.touch([1], 0, 3)
    assert blocks.match([1, 2]) == {0: 1, 1: 2}
    assert blocks.mixed == mixed_of({1_001: [(2, 1), (1, 1)], 77: [(1, 3)]})
    blocks.expire(1 + TTL)
    assert blocks.order() == [(1, 0, 3)]
    assert sound(blocks)


def test_room_for_ranks_grows_without_loss():
    blocks = made(tags=[5])
    blocks.touch([1], 0, 0)
    for rank in range(1, 300):
        blocks.reserve(rank + 1)
        blocks.name_rank(rank, rank)
        blocks.touch([1], rank, rank)
    assert blocks.match([1]) == dict.fromkeys(range(300), 1)
    blocks.expire(TTL + 149)
    assert blocks.match([1]) == dict.fromkeys(range(150, 300), 1)
    assert sound(blocks, 300)


@pytest.mark.parametrize("count", [47, 48, 49, 1_000, 20_000])
def test_the_table_grows_and_empties_without_loss(count):
    """Pairs leave in the order in which they came, so every removal closes a gap in a full table."""
    blocks = made()
    names = [i * 0x9E3779B97F4A7C15 & U64 for i in range(count)]
    for now, name in enumerate(names):
        blocks.touch([name], 0, now)
    assert blocks.match(names) == {0: count}
    for now in range(0, count, max(1, count // 5)):
        blocks.expire(TTL + now)
        assert blocks.match(names[now + 1:]) == ({0: count - now - 1} if now + 1 < count else {})
        assert blocks.used_ns(names[now], 0) is None
        assert sound(blocks)
    blocks.expire(TTL + count)
    assert (blocks.pairs, blocks.mixed) == (0, 0)


@pytest.mark.parametrize("end", ["expire", "purge", "capacity"])
def test_memory_comes_and_goes(end):
    blocks = made()
    base = blocks.footprint()[1]
    for turn in range(4):
        for rank in range(RANKS):
            blocks.touch(range(turn * 2_000, turn * 2_000 + 1_000), rank, turn * 1_000)
        assert blocks.pairs == 3_000
        assert blocks.footprint()[1] == 4_096
        if end == "expire":
            blocks.expire(turn * 1_000 + TTL)
        for rank in range(RANKS):
            assert sound(blocks)
            if end == "purge":
                blocks.purge(rank)
            elif end == "capacity":
                blocks.touch([], rank, turn * 1_000, 0)
        assert (blocks.pairs, blocks.mixed, blocks.footprint()[1]) == (0, 0, base)


def test_rows_are_used_again():
    """A rank with a capacity needs rows for that and one path."""
    blocks = made()
    for now in range(2_000):
        blocks.touch(range(now * 10, now * 10 + 8), 0, now, 32)
        assert blocks.held(0) == min(32, 8 * (now + 1))
    assert blocks.footprint()[:2] == (40, TABLE_MIN)


def test_what_lives_on_while_others_come_and_go_keeps_its_place_in_every_order():
    blocks, quiet = made(), made()
    for now in range(90):
        for some in (blocks, quiet):
            some.touch([now, 0], now % 2, now)
    blocks.touch(range(10_000), 2, 90)
    assert blocks.footprint()[1] == 16_384
    assert blocks.order()[:-10_000] == quiet.order()
    assert sound(blocks)
    blocks.purge(2)
    assert blocks.footprint()[1] == 256
    assert blocks.order() == quiet.order()
    assert [blocks.order_of(rank) for rank in (0, 1)] == [quiet.order_of(rank) for rank in (0, 1)]
    assert blocks.mixed == quiet.mixed
    assert sound(blocks)


def test_the_mixed_sum_tells_times_ranks_and_orders():
    def after(*uses, tags=(1_000, 1_001, 1_002)):
        blocks = made(tags=tags)
        for path, rank, now in uses:
            blocks.touch(path, rank, now)
        return blocks.mixed

    base = after(([1, 2, 3], 0, 5))
    assert base == mixed_of({1_000: [(3, 5), (2, 5), (1, 5)]})
    others = [
        after(([1, 2, 3], 0, 6)), after(([1, 2, 3], 1, 5)), after(([3, 2, 1], 0, 5)), after(([1, 3, 2], 0, 5)),
        after(([1, 2], 0, 5)), after(([1, 2, 4], 0, 5)), after(([3], 0, 4), ([1, 2], 0, 5)),
        after(([1, 2, 3], 0, 5), ([1, 2, 3], 1, 5)), after(([1], 1, 5), ([2, 3], 0, 5))]
    assert len({base, *others}) == 1 + len(others)
    assert after(([1, 2, 3], 2, 5), tags=(7, 8, 1_000)) == base  # by its name, not by its number


def test_the_mixed_sum_forgets_how_things_came_to_be():
    one, other = made(), made()
    one.touch([1, 2], 0, 50)
    one.touch([1], 1, 50)
    other.touch([9, 8, 7], 0, 0)
    other.touch([1, 2, 3], 0, 10)
    other.touch([2, 1], 0, 50)
    other.touch([1, 5], 1, 50)
    other.touch([1, 2], 0, 50)
    other.touch([1], 1, 50, 1)
    assert one.mixed != other.mixed
    other.expire(10 + TTL)
    assert one.mixed == other.mixed


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space")
def test_without_memory_the_deeper_part_has_been_used():
    blocks = made()
    blocks.touch([1, 2, 3], 1, 0)
    path = array("Q", range(2_000_000))
    with little_memory(6 * 2**20), pytest.raises(MemoryError):
        blocks.touch(path, 0, 5, 10)
    used = blocks.held(0)
    assert 10 < used < 2_000_000  # nothing is evicted
    assert hashes(blocks) == list(range(1_999_999, 1_999_999 - used, -1))
    assert hashes(blocks, 1) == [3, 2, 1]
    assert sound(blocks)
    blocks.touch(path[:20], 0, 6, 10)
    assert hashes(blocks) == list(range(9, -1, -1))
    assert sound(blocks)


paths = st.lists(st.sampled_from(HASHES), max_size=8)
steps = st.lists(st.tuples(
    st.sampled_from(("touch", "touch", "touch", "expire", "purge")), st.integers(0, RANKS - 1), paths,
    st.sampled_from((0, 0, 1, 2, 5)), st.sampled_from((-1, -1, 0, 1, 3, 6, 2**62))))


@given(steps, paths, st.integers(1, 10))
def test_a_list_says_the_same(steps, path, ttl):
    blocks = made(ttl)
    model: list[tuple[int, int, int]] = []  # (hash, rank, used_ns), least recently used first
    now = 0
    for kind, rank, used, pause, capacity in steps:
        now += pause
        if kind == "touch":
            blocks.touch(used, rank, now, capacity)
            for name in reversed(used):
                model = [row for row in model if row[:2] != (name, rank)] + [(name, rank, now)]
            mine = [row for row in model if row[1] == rank]
            gone = mine[:max(0, len(mine) - capacity)] if capacity >= 0 else []
            model = [row for row in model if row not in gone]
        elif kind == "expire":
            blocks.expire(now)
            model = [row for row in model if row[2] + ttl > now]
        else:
            blocks.purge(rank)
            model = [row for row in model if row[1] != rank]
        assert blocks.order() == model
        assert sound(blocks)
        assert blocks.mixed == mixed_of({
            1_000 + tag: [(name, used_ns) for name, other, used_ns in model if other == tag] for tag in range(RANKS)})
        for tag in range(RANKS):
            assert blocks.order_of(tag) == [row for row in model if row[1] == tag]
    held = {tag: {name for name, other, _ in model if other == tag} for tag in range(RANKS)}
    depths = {tag: leading(path, names) for tag, names in held.items()}
    assert blocks.match(path) == {tag: depth for tag, depth in depths.items() if depth}
    assert all((blocks.used_ns(name, tag) is not None) == (name in held[tag]) for tag in held for name in HASHES)
    for tag in range(RANKS):
        blocks.purge(tag)
    assert (blocks.pairs, blocks.mixed, blocks.index_mixed) == (0, 0, 0)
