"""The min-tree: least key, ties, their order, against a plain list."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

probe = load("_probe_selector")

ABSENT = 2**63 - 1

keys = st.integers(0, 3) | st.integers(-(2**62), 2**62) | st.just(ABSENT) | st.just(-ABSENT)


def expected(values: list[int]) -> tuple[int, list[int], list[int]]:
    least = min(values, default=ABSENT)
    tied = [i for i, value in enumerate(values) if value == least != ABSENT]
    return least, tied, [sum(j < i for j in tied) for i in range(len(values))]


@given(st.lists(keys, max_size=40), st.lists(st.tuples(st.integers(0, 39), keys), max_size=20))
def test_it_says_what_a_list_says(values, changes):
    tree = probe.Tree()
    tree.build(values)
    assert tree.least() == expected(values)
    for position, key in changes:
        if position < len(values):
            values[position] = key
            tree.set(position, key)
            assert tree.key(position) == key
            assert tree.least() == expected(values)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33])
def test_every_size(size):
    tree = probe.Tree()
    tree.build([5] * size)
    assert tree.least() == expected([5] * size)


def test_nobody_takes_part():
    tree = probe.Tree()
    assert tree.least() == (ABSENT, [], [])
    tree.build([ABSENT] * 5)
    assert tree.least() == (ABSENT, [], [0] * 5)
    tree.set(3, ABSENT - 1)
    assert tree.least() == (ABSENT - 1, [3], [0, 0, 0, 0, 1])
    tree.set(3, ABSENT)
    assert tree.least() == (ABSENT, [], [0] * 5)


def test_a_tree_is_built_again_smaller_and_larger():
    tree = probe.Tree()
    for size in (9, 3, 0, 1, 64, 17):
        values = [i % 3 for i in range(size)]
        tree.build(values)
        assert tree.least() == expected(values)


def test_one_that_goes_is_no_longer_counted():
    """The key at the root stays, only the number of ties changes: it must change all the way up."""
    tree = probe.Tree()
    values = [1] * 16
    tree.build(values)
    for position in random.Random(5).sample(range(16), 16):
        values[position] = 2
        tree.set(position, 2)
        assert tree.least() == expected(values)
