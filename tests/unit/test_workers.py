"""WorkerTable: identity and ranks of workers, canonical order, rows that only waiting pins keep."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

from kvcore.request import WorkerConfig

Workers = load("_probe").Workers

U64 = 2**64 - 1
TOP_RANK = 2**32 - 1


def add(table, worker_id: int, start: int = 0, size: int = 1, incarnation: int = 0, taints=frozenset()) -> None:
    """A worker with all its ranks."""
    worker = table.add_worker(WorkerConfig(worker_id, start, size, taints=taints), incarnation)
    for dp_rank in range(start, start + size):
        table.add_rank(worker, dp_rank)
    table.set_range(worker, start, size)


def change(table, worker_id: int, start: int, size: int) -> None:
    """Another range for a known worker: ranks outside leave first."""
    worker = table.find(worker_id)
    _, _, first, ranks = table.worker(worker)
    for dp_rank, rank in enumerate(ranks, first):
        if not start <= dp_rank < start + size:
            table.remove_rank(rank)
    for dp_rank in range(start, start + size):
        if not first <= dp_rank < first + len(ranks):
            table.add_rank(worker, dp_rank)
    table.set_range(worker, start, size)


def remove(table, worker_id: int) -> None:
    worker = table.find(worker_id)
    for rank in table.worker(worker)[3]:
        table.remove_rank(rank)
    table.remove_worker(worker)


def test_an_empty_table():
    table = Workers()
    assert (table.count(), table.order(), table.find(1), table.find_rank(1, 0)) == (0, [], None, None)
    assert table.ranks_of(frozenset()) == table.ranks_of(frozenset({1})) == table.ranks_of(None) == []
    assert table.ranks_of(None, frozenset({"gpu"})) == []


def test_a_worker_and_its_ranks_are_found_by_name():
    table = Workers()
    add(table, 7, 2, 3, incarnation=4)
    assert table.worker(table.find(7))[:3] == (7, 4, 2)
    assert [table.find_rank(7, dp_rank) is None for dp_rank in (0, 1, 2, 3, 4, 5, TOP_RANK)] == [
        True, True, False, False, False, True, True]
    assert [table.name(table.find_rank(7, dp_rank)) for dp_rank in (2, 3, 4)] == [(7, 2), (7, 3), (7, 4)]
    assert table.find_rank(8, 2) is None


def test_order_is_by_worker_then_rank_however_they_came():
    table = Workers()
    for worker_id, start, size in ((5, 0, 2), (U64, 1, 1), (0, 3, 2), (2**63, 0, 1), (1, TOP_RANK, 1)):
        add(table, worker_id, start, size)
    assert table.order() == [(0, 3), (0, 4), (1, TOP_RANK), (5, 0), (5, 1), (2**63, 0), (U64, 1)]
    remove(table, 5)
    assert table.order() == [(0, 3), (0, 4), (1, TOP_RANK), (2**63, 0), (U64, 1)]


def test_a_range_grows_shrinks_and_moves_while_the_rest_keeps_its_rows():
    table = Workers()
    add(table, 1, 0, 4)
    add(table, 2, 0, 1)
    kept = [table.find_rank(1, dp_rank) for dp_rank in (2, 3)]
    change(table, 1, 2, 5)
    assert table.order() == [(1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (2, 0)]
    assert [table.find_rank(1, dp_rank) for dp_rank in (2, 3)] == kept
    change(table, 1, 0, 1)
    assert table.order() == [(1, 0), (2, 0)]
    assert table.find_rank(1, 2) is None


def test_a_gone_rank_keeps_its_row_for_its_pins_and_takes_it_up_again():
    table = Workers()
    add(table, 1)
    add(table, 2)
    rank = table.find_rank(1, 0)
    table.pin(rank)
    table.pin(rank)
    remove(table, 1)
    assert table.find_rank(1, 0) is None
    assert table.ghosts() == {(1, 0): rank}
    assert table.name(rank) == (1, 0)
    assert not table.is_present(rank)
    add(table, 3)
    assert table.find_rank(3, 0) != rank
    add(table, 1, 0, 2, incarnation=1)
    assert table.find_rank(1, 0) == rank
    assert table.is_present(rank)
    assert table.ghosts() == {}
    table.unpin(rank)
    table.unpin(rank)
    assert table.find_rank(1, 0) == rank


def test_the_row_goes_with_the_last_pin():
    table = Workers()
    add(table, 1)
    rank = table.find_rank(1, 0)
    table.pin(rank)
    table.pin(rank)
    remove(table, 1)
    table.unpin(rank)
    assert table.ghosts() == {(1, 0): rank}
    table.unpin(rank)
    assert table.ghosts() == {}
    add(table, 9)
    assert table.find_rank(9, 0) == rank
    remove(table, 9)
    assert table.ghosts() == {}  # the row of old carried no pins along


def test_only_the_pinned_rank_of_a_range_stays():
    table = Workers()
    add(table, 1, 0, 4)
    rank = table.find_rank(1, 2)
    table.pin(rank)
    change(table, 1, 0, 2)
    assert table.ghosts() == {(1, 2): rank}
    change(table, 1, 1, 3)
    assert table.find_rank(1, 2) == rank
    assert table.order() == [(1, 1), (1, 2), (1, 3)]


def test_rows_are_used_again():
    table = Workers()
    for worker_id in range(1_000):
        add(table, worker_id, 0, 2)
        if worker_id >= 3:
            remove(table, worker_id - 3)
    assert table.ranks_size == 8
    assert table.count() == 3


def test_rows_at_the_end_are_given_up():
    """What is indexed by rank can shrink with the fleet; rows in between stay free, and a pin keeps its row."""
    table = Workers()
    for worker_id in range(2_048):
        add(table, worker_id, 0, 1)
    kept = table.find_rank(1_000, 0)
    table.pin(kept)
    for worker_id in range(16, 2_048):
        remove(table, worker_id)
    assert table.ranks_size == kept + 1
    table.unpin(kept)
    assert table.ranks_size == 16
    remove(table, 3)
    remove(table, 15)
    assert table.ranks_size == 15
    for worker_id in (3, 15, 99, 100):
        add(table, worker_id, 0, 1)
    assert table.ranks_size == 18
    assert table.order() == [(worker_id, 0) for worker_id in (*range(16), 99, 100)]


KINDS = (frozenset(), frozenset({"gpu"}), frozenset({"gpu", "fast"}), frozenset({"fast", "ä"}))


@pytest.mark.parametrize("required", [*KINDS, frozenset({"nobody"})], ids=sorted)
@pytest.mark.parametrize(
    "allowed", [None, frozenset({3}), frozenset({0, 3, 39, 77}), frozenset(range(40)), frozenset()],
    ids=lambda allowed: "any" if allowed is None else f"{len(allowed)} workers")
def test_the_ranks_that_a_request_may_use_in_order(allowed, required):
    """Short allow-lists look workers up, long ones go through the order."""
    table = Workers()
    for worker_id in range(39, -1, -1):
        add(table, worker_id, worker_id % 3, 2, taints=KINDS[worker_id % 4])
    wanted = [name for name in table.order()
              if (allowed is None or name[0] in allowed) and required <= KINDS[name[0] % 4]]
    assert table.ranks_of(allowed, required) == wanted


def test_long_allow_lists_one_after_the_other():
    """Each is asked for twice, as one arrival does; ids of all sizes, known and unknown."""
    table, choice = Workers(), random.Random(5)
    ids = [0, 1, 2**64 - 1, 2**63, *range(2, 30), *[choice.getrandbits(64) for _ in range(30)]]
    for worker_id in ids:
        add(table, worker_id, 0, 1)
    for size in [40, 60, 8, 30, 50, 500] * 3:
        allowed = frozenset(choice.sample(ids + [worker_id ^ 32 for worker_id in ids], min(size, 2 * len(ids))))
        allowed |= frozenset(range(1_000, 1_000 + size - len(allowed)))
        wanted = [name for name in table.order() if name[0] in allowed]
        assert table.ranks_of(allowed) == table.ranks_of(allowed) == wanted


def test_taints_of_a_worker_are_replaced():
    table = Workers()
    add(table, 1, taints=frozenset({"a"}))
    add(table, 2, taints=frozenset({"a"}))
    required = frozenset({"a"})
    assert table.ranks_of(None, required) == [(1, 0), (2, 0)]
    table.set_taints(table.find(1), frozenset({"a"}))
    assert table.taint_sets() == 1
    table.set_taints(table.find(1), frozenset({"b", "a"}))
    assert table.ranks_of(None, required) == [(1, 0), (2, 0)]
    assert table.ranks_of(None, frozenset({"b"})) == [(1, 0)]
    table.set_taints(table.find(1), frozenset())
    assert table.ranks_of(None, required) == [(2, 0)]
    assert table.taints_of(table.find(1)) == frozenset()
    remove(table, 2)
    assert table.ranks_of(None, required) == []
    add(table, 2)
    assert table.ranks_of(None, required) == []


ids = st.sampled_from((0, 1, 2, 3, U64))
starts = st.sampled_from((0, 1, 2, TOP_RANK - 4))


@given(st.lists(st.tuples(
    st.sampled_from(("upsert", "upsert", "remove", "pin", "pin", "unpin")), ids, starts, st.integers(1, 4))))
def test_sorted_names_say_the_same(steps):
    table = Workers()
    ranges: dict[int, tuple[int, int]] = {}
    pins: dict[tuple[int, int], int] = {}
    rows: dict[tuple[int, int], int] = {}
    for kind, worker_id, start, size in steps:
        if kind == "upsert" and worker_id in ranges:
            change(table, worker_id, start, size)
            ranges[worker_id] = (start, size)
        elif kind == "upsert":
            add(table, worker_id, start, size)
            ranges[worker_id] = (start, size)
        elif kind == "remove" and worker_id in ranges:
            remove(table, worker_id)
            del ranges[worker_id]
        elif kind == "pin" and (rank := table.find_rank(worker_id, start + size - 1)) is not None:
            table.pin(rank)
            name = (worker_id, start + size - 1)
            pins[name] = pins.get(name, 0) + 1
        elif kind == "unpin" and pins:
            name = sorted(pins)[size % len(pins)]
            table.unpin(rows[name])
            pins[name] -= 1
            if not pins[name]:
                del pins[name]
        names = [(w, start + i) for w, (start, size) in sorted(ranges.items()) for i in range(size)]
        assert table.order() == names
        assert table.count() == len(ranges)
        rows = {name: slot for name, slot in rows.items() if name in names or name in pins}
        for name in names:
            assert rows.setdefault(name, table.find_rank(*name)) == table.find_rank(*name)
        assert table.ghosts() == {name: rows[name] for name in pins if name not in names}
        assert len(set(rows.values())) == len(rows)
        for allowed in ({0}, {1, 2, 9}, {0, 1, 2, 3, U64}):
            assert table.ranks_of(frozenset(allowed)) == [name for name in names if name[0] in allowed]
