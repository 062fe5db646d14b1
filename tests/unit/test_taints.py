"""TaintTable: distinct taint sets by number, and which of them satisfy a requirement."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Taints = load("_probe").Taints


def test_a_set_has_one_number_however_many_carry_it():
    table = Taints()
    gpu, none = frozenset({"gpu"}), frozenset()
    assert [table.acquire(item) for item in (gpu, none, gpu, none)] == [0, 1, 0, 1]
    assert (table.size(), table.taints_of(0), table.taints_of(1)) == (2, gpu, none)
    table.release(0)
    assert table.satisfying(gpu) == [0]
    table.release(0)
    assert table.satisfying(gpu) == []
    assert table.taints_of(0) is None


def test_a_free_number_is_used_again():
    table = Taints()
    numbers = [table.acquire(frozenset({name})) for name in "abc"]
    table.release(numbers[1])
    assert table.acquire(frozenset({"d"})) == numbers[1]
    assert table.satisfying(frozenset({"b"})) == []
    assert table.satisfying(frozenset({"d"})) == [numbers[1]]
    assert table.size() == 3


def test_nothing_required_is_satisfied_by_every_live_set():
    table = Taints()
    assert table.satisfying(frozenset()) == []
    for name in "abc":
        table.acquire(frozenset({name}))
    table.release(1)
    assert table.satisfying(frozenset()) == [0, 2]


def test_verdicts_follow_the_sets():
    table = Taints()
    required = frozenset({"a", "b"})
    assert table.satisfying(required) == []
    table.acquire(frozenset({"a"}))
    assert table.satisfying(required) == []
    table.acquire(frozenset({"a", "b", "c"}))
    assert table.satisfying(required) == table.satisfying(required) == [1]
    table.release(1)
    assert table.satisfying(required) == []


def test_more_requirements_than_are_remembered():
    table = Taints()
    table.acquire(frozenset({"7", "8"}))
    for _ in range(2):
        found = [number for number in range(1_500) if table.satisfying(frozenset({str(number)}))]
        assert found == [7, 8]


sets = st.frozensets(st.sampled_from(("a", "b", "c", "\0", "ä")), max_size=3)


@given(st.lists(st.tuples(st.booleans(), sets, sets), max_size=40))
def test_a_list_of_sets_says_the_same(steps):
    table = Taints()
    carried: list[frozenset] = []
    for comes, taints, required in steps:
        if comes or taints not in carried:
            number = table.acquire(taints)
            carried.append(taints)
            assert table.taints_of(number) == taints
        else:
            table.release(table.acquire(taints))
            table.release(table.acquire(taints))  # twice in and out: nothing happens
            number = next(n for n in range(table.size()) if table.taints_of(n) == taints)
            table.release(number)
            carried.remove(taints)
        live = [n for n in range(table.size()) if table.taints_of(n) is not None]
        assert sorted(map(sorted, map(table.taints_of, live))) == sorted(map(sorted, set(carried)))
        assert table.satisfying(required) == [n for n in live if required <= table.taints_of(n)]
        assert table.size() <= len(steps)
