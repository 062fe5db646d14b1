"""The indexed heap: order of keys, removal of any item, positions on record, and how many nodes move."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

probe = load("_probe")
Heap, less = probe.Heap, probe.less

U32, U64 = 2**32 - 1, 2**64 - 1


def sound(heap) -> bool:
    """No node is before its parent, every item is where its position says."""
    nodes = heap.nodes()
    return all(pos == i for i, (_, _, pos) in enumerate(nodes)) and all(
        nodes[(i - 1) // 4][0] < nodes[i][0] for i in range(1, len(nodes)))


def drained(heap) -> list:
    """Items in the order in which the heap gives them up."""
    items = []
    while heap.first() is not None:
        items.append(heap.first()[1])
        heap.remove(items[-1])
    return items


edges = st.sampled_from((0, 1, 2**31, 2**32, 2**63 - 1, 2**63, U64 - 1, U64))
keys = st.tuples(st.sampled_from((0, 1, 2**31, U32)), edges, edges, st.integers(0, 5) | edges)


@given(keys, keys)
def test_keys_compare_like_tuples_of_unsigned_numbers(first, second):
    assert less(first, second) == (first < second)


def test_two_nodes_fit_a_cache_line():
    assert probe.node_size() == 32


def test_an_empty_heap_has_no_first():
    heap = Heap(1)
    assert heap.first() is None
    assert heap.size == heap.capacity == heap.moves == 0


def test_one_item_comes_and_goes():
    heap = Heap(1)
    heap.push(0, (1, 2, 3, 4))
    assert heap.first() == ((1, 2, 3, 4), 0)
    heap.remove(0)
    assert heap.first() is None


def test_room_is_made_ahead_of_time():
    heap = Heap(100)
    heap.reserve(37)
    assert heap.capacity == 37
    for item in range(37):
        heap.push(item, (0, 0, 0, item))
    assert heap.capacity == 37
    heap.reserve(10)
    assert heap.capacity == 37
    heap.push(37, (0, 0, 0, 37))
    assert heap.capacity == 74


def test_a_first_item_takes_one_node():
    """Lanes of one request are many."""
    heap, seen = Heap(100), []
    for item in range(6):
        heap.push(item, (0, 0, 0, item))
        seen.append(heap.capacity)
    assert seen == [1, 4, 4, 4, 8, 8]


def test_an_item_moved_into_a_hole_may_have_to_rise():
    """The last leaf belongs to another branch than the hole: it is before the hole's parent."""
    heap = Heap(30)
    order = [0, 100, 1, 101, 102, 103, 104, 105, 106, 2]
    for item, first in enumerate(order):
        heap.push(item, (0, first, 0, item))
    # Item 9 (key 2) hangs below item 2 (key 1); removing a child of item 1 (key 100) puts it there.
    assert [heap.nodes()[i][1] for i in (5, 9)] == [5, 9]
    heap.remove(5)
    assert sound(heap)
    assert drained(heap) == [0, 2, 9, 1, 3, 4, 6, 7, 8]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), keys)))
def test_a_sorted_list_says_the_same(steps):
    """What a step does to its item: push it if it is not in the heap; else remove it, or give it another key."""
    heap = Heap(41)
    model: dict[int, tuple] = {}
    for number, (kind, item, key) in enumerate(steps):
        if item in model:
            if kind == 0 or kind == 1:
                heap.remove(item)
                del model[item]
            else:
                model[item] = (*key[:3], number)
                heap.update(item, model[item])
        elif kind != 0:
            model[item] = (*key[:3], number)
            heap.push(item, model[item])
        assert heap.size == len(model)
        assert sound(heap)
        assert heap.first() == min(((key, item) for item, key in model.items()), default=None)
    assert drained(heap) == sorted(model, key=model.get)


@given(st.permutations(range(60)), st.integers(0, 60), st.integers(0, 70))
def test_what_is_smaller_is_counted_up_to_a_bound(order, key, most):
    heap = Heap(60)
    for item in order:
        heap.push(item, (0, item, 0, item))
    assert heap.before((0, key, 0, 0), most) == min(key, most + 1)


@given(st.permutations(range(30)), st.permutations(range(30)))
def test_any_order_in_any_order_out(order, leaving):
    heap = Heap(30)
    for item in order:
        heap.push(item, (0, 0, 0, item))
    for count, item in enumerate(leaving):
        heap.remove(item)
        assert sound(heap)
        left = leaving[count + 1:]
        assert heap.first() == (((0, 0, 0, min(left)), min(left)) if left else None)


@pytest.mark.parametrize("size", [10, 1_000, 100_000])
def test_an_operation_moves_logarithmically_many_nodes(size):
    """Depth is log4(n). A push climbs it at most; a removal falls to a leaf, and what fills the hole climbs at most all
    of it; so it is with another key. Each plus the item itself.
    """
    heap = Heap(size)
    depth = math.log2(size) / 2 + 2
    orders = {"falling": range(size, 0, -1), "random": random.Random(7).sample(range(size), size)}
    for order in orders.values():
        for item, first in enumerate(order):
            before = heap.moves
            heap.push(item, (0, first, 0, item))
            assert heap.moves - before <= depth
        if order is orders["random"]:
            for item in random.Random(8).sample(range(size), size // 2):
                before = heap.moves
                heap.remove(item)
                assert heap.moves - before <= 2 * depth
        while heap.size:
            before = heap.moves
            heap.update(heap.first()[1], (0, heap.moves % size, 0, heap.moves))
            assert heap.moves - before <= 2 * depth
            before = heap.moves
            heap.remove(heap.first()[1])
            assert heap.moves - before <= 2 * depth
    assert heap.moves > 0


def test_rising_keys_never_move():
    heap = Heap(10_000)
    for item in range(10_000):
        heap.push(item, (0, item, 0, item))
    assert heap.moves == 10_000
