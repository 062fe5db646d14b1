"""Overtaking: cost of younger requests popped while a request waits, as sums that are recounted here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Passed = load("_probe_queue").Passed

TWO_53 = 2**53


def filled(count: int):
    table = Passed()
    for item in range(count):
        table.enter(item)
    return table


def pop(table, item: int, cost: int) -> None:
    table.popped(item, cost)
    table.leave(item)


def test_only_older_requests_are_overtaken():
    table = filled(4)
    assert [table.overtaken(item) for item in range(4)] == [0, 0, 0, 0]
    pop(table, 2, 5)
    assert [table.overtaken(item) for item in (0, 1, 3)] == [5, 5, 0]
    pop(table, 3, 7)
    assert [table.overtaken(item) for item in (0, 1)] == [12, 12]
    pop(table, 0, 100)
    assert table.overtaken(1) == 12


def test_who_leaves_without_being_served_overtakes_nobody():
    table = filled(3)
    table.leave(2)
    assert [table.overtaken(item) for item in (0, 1)] == [0, 0]


def test_who_comes_later_starts_at_nothing():
    table = filled(2)
    pop(table, 1, 9)
    table.enter(1)
    assert [table.overtaken(item) for item in (0, 1)] == [9, 0]
    table.enter(2)
    pop(table, 2, 1)
    assert [table.overtaken(item) for item in (0, 1)] == [10, 1]


@pytest.mark.parametrize("waiting", [1, 3, 200])
def test_sums_survive_new_places(waiting):
    """Places run out again and again; those that wait keep what has overtaken them."""
    table = filled(waiting)
    for number in range(3_000):
        table.enter(waiting)
        pop(table, waiting, number)
        if number % 97 == 0:
            total = number * (number + 1) // 2
            assert [table.overtaken(item) for item in range(waiting)] == [total] * waiting
    assert table.places <= 4 * (waiting + 1) + 64


def test_sums_have_more_than_64_bits():
    table = filled(1)
    for _ in range(1_100):
        table.enter(1)
        pop(table, 1, TWO_53)
    assert table.overtaken(0) == 1_100 * TWO_53


@given(st.lists(st.tuples(st.sampled_from(("enter", "enter", "pop", "leave")), st.integers(0, 30), st.integers(1, 9)),
                max_size=300))
def test_a_recount_says_the_same(steps):
    table = Passed()
    sums: dict[int, int] = {}  # item -> overtaken, oldest first
    for kind, item, cost in steps:
        if kind == "enter" and item not in sums:
            table.enter(item)
            sums[item] = 0
        elif kind != "enter" and item in sums:
            if kind == "pop":
                table.popped(item, cost)
                for older in sums:
                    if older == item:
                        break
                    sums[older] += cost
            table.leave(item)
            del sums[item]
    assert {item: table.overtaken(item) for item in sums} == sums
    assert list(sums.values()) == sorted(sums.values(), reverse=True)
