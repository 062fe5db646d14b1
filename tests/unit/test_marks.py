"""MarkTable: what sources say of a worker, leases that end by themselves, and the state that it adds up to."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_memory import little_memory
from probe_build import load

probe = load("_probe_marks")
Marks = probe.Marks

OPEN, OVERLOADED, LEASED, GONE = (int(state) for state in probe.STATES)
NS_END = 2**62
WORKERS = 4
SOURCES = ("", "health", "router", "ein\u00e4", "z")

#: What a mark may say: (available, overloaded, end_ns).
WORDS = {
    "gone": (False, False, None),
    "gone, overloaded": (False, True, None),
    "leased": (False, False, 50),
    "leased, overloaded": (False, True, 50),
    "overloaded": (True, True, None),
    "overloaded for a while": (True, True, 50),
}


def state_of(marks) -> int:
    """By the rule: (available, overloaded, end_ns) of all marks of a worker -> its state."""
    if any(not available and end is None for available, _, end in marks):
        return GONE
    if any(not available for available, _, _ in marks):
        return LEASED
    return OVERLOADED if any(overloaded for _, overloaded, _ in marks) else OPEN


def test_nobody_has_said_anything():
    table = Marks()
    assert [table.state(worker) for worker in (0, 1, 10**6)] == [OPEN] * 3
    assert table.marks_of(10**6) == []
    assert table.first_end_ns() is None
    table.forget_worker(10**6)
    table.set(10**6, "health", True, False)
    assert (table.marks, table.workers) == (0, 0)  # "all is well" of a worker without marks costs nothing


@pytest.mark.parametrize("name", WORDS)
def test_one_word(name):
    table = Marks()
    table.set(2, "health", *WORDS[name])
    assert table.state(2) == state_of([WORDS[name]]) != OPEN
    assert [table.state(worker) for worker in (0, 1, 3)] == [OPEN] * 3
    assert table.marks_of(2) == [("health", *WORDS[name])]
    assert table.first_end_ns() == WORDS[name][2]
    table.set(2, "health", True, False)
    assert (table.state(2), table.marks_of(2), table.marks, table.first_end_ns()) == (OPEN, [], 0, None)


@pytest.mark.parametrize("chosen", range(1, 2**len(WORDS)))
def test_the_worst_word_counts(chosen):
    """Every set of words, told by as many sources; then they are taken back one after the other."""
    table = Marks()
    told = {name: word for i, (name, word) in enumerate(WORDS.items()) if chosen >> i & 1}
    for source, word in told.items():
        table.set(1, source, *word)
    assert table.state(1) == state_of(told.values())
    for source in list(told):
        del told[source]
        table.set(1, source, True, False)
        assert table.state(1) == state_of(told.values())
    assert table.counts(1) == (0, 0, 0)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(WORDS, repeat=2)))
def test_a_new_word_of_a_source_replaces_its_old_one(before, after):
    table = Marks()
    table.set(0, "health", *WORDS[before])
    table.set(0, "health", *WORDS[after])
    assert table.marks_of(0) == [("health", *WORDS[after])]
    assert table.state(0) == state_of([WORDS[after]])
    assert table.first_end_ns() == WORDS[after][2]
    assert (table.marks, table.leases()) == (1, int(WORDS[after][2] is not None))


def test_a_source_speaks_for_itself_only():
    table = Marks()
    table.set(0, "health", False, False)
    table.set(0, "router", True, True)
    table.set(0, "metrics", True, False)
    assert table.state(0) == GONE
    table.set(0, "health", True, False)
    assert table.state(0) == OVERLOADED
    assert table.marks_of(0) == [("router", True, True, None)]


def test_e31_a_worker_that_refused_once_is_open_again_after_the_lease_and_nothing_but_time():
    table = Marks()
    table.set(3, "router", True, True, 1_000)
    table.set(3, "health", True, False)  # other sources that find it well do not matter, either way
    assert (table.state(3), table.first_end_ns()) == (OVERLOADED, 1_000)
    assert table.end_first() == 3
    assert (table.state(3), table.first_end_ns(), table.marks) == (OPEN, None, 0)


def test_e32_each_signal_clears_itself_and_a_silent_one_ends():
    table = Marks()
    table.set(0, "cache", True, True, 500)
    table.set(0, "queue", True, True, 700)
    table.set(0, "queue", True, False)  # B is low, A has fallen silent
    assert (table.state(0), table.first_end_ns()) == (OVERLOADED, 500)
    assert table.end_first() == 0
    assert (table.state(0), table.first_end_ns()) == (OPEN, None)


def test_the_first_end_is_exact_whatever_becomes_of_a_lease():
    table = Marks()
    table.set(0, "a", False, False, 100)
    table.set(1, "a", False, False, 200)
    table.set(2, "a", False, False, 300)
    assert table.first_end_ns() == 100
    table.set(0, "a", False, False, 250)  # renewed
    assert table.first_end_ns() == 200
    table.set(1, "a", False, False)  # for good
    assert (table.first_end_ns(), table.state(1)) == (250, GONE)
    table.set(2, "a", True, True, 40)  # shorter
    assert table.first_end_ns() == 40
    table.set(2, "a", True, False)  # taken back
    assert table.first_end_ns() == 250
    table.forget_worker(0)
    assert (table.first_end_ns(), table.leases()) == (None, 0)
    assert table.marks_of(1) == [("a", False, False, None)]


def test_leases_end_in_the_order_of_time_and_together_in_the_order_told():
    table = Marks()
    ends = [7, 3, 9, 3, 0, NS_END - 1, 3]
    for worker, end in enumerate(ends):
        table.set(worker, "a", False, False, end)
    ended = []
    while table.first_end_ns() is not None:
        ended.append((table.first_end_ns(), table.end_first()))
        assert table.state(ended[-1][1]) == OPEN
    assert ended == [(0, 4), (3, 1), (3, 3), (3, 6), (7, 0), (9, 2), (NS_END - 1, 5)]


def test_of_one_worker_a_lease_ends_alone():
    table = Marks()
    table.set(0, "a", False, False, 10)
    table.set(0, "b", False, False, 20)
    table.set(0, "c", True, True)
    states = []
    while table.first_end_ns() is not None:
        table.end_first()
        states.append((table.state(0), [source for source, *_ in table.marks_of(0)]))
    assert states == [(LEASED, ["b", "c"]), (OVERLOADED, ["c"])]


@pytest.mark.parametrize("end", [NS_END, NS_END + 1, 2**63 - 2])
def test_a_lease_that_no_time_reaches_is_a_lease_all_the_same(end):
    table = Marks()
    table.set(0, "a", False, False, end)
    assert (table.state(0), table.first_end_ns(), table.leases()) == (LEASED, None, 0)
    assert table.marks_of(0) == [("a", False, False, NS_END)]
    table.set(0, "a", False, False, 5)
    assert (table.state(0), table.first_end_ns()) == (LEASED, 5)
    table.set(0, "a", False, False, end)
    assert (table.state(0), table.first_end_ns()) == (LEASED, None)
    table.set(0, "a", False, False)
    assert table.state(0) == GONE


def test_a_forgotten_worker_leaves_its_place_clean():
    table = Marks()
    for i, word in enumerate(WORDS.values()):
        table.set(1, f"source {i}", *word)
    table.set(2, "source 0", False, False, 60)
    table.forget_worker(1)
    table.forget_worker(1)
    assert (table.state(1), table.marks_of(1), table.counts(1)) == (OPEN, [], (0, 0, 0))
    assert (table.marks, table.leases(), table.first_end_ns(), table.state(2)) == (1, 1, 60, LEASED)
    table.set(1, "source 0", True, True)  # the next one in the same place
    assert table.marks_of(1) == [("source 0", True, True, None)]


def test_many_sources_come_and_go_and_leave_no_memory_behind():
    table = Marks()
    seen = []
    for _ in range(3):
        for i in range(1_000):
            table.set(0, f"source {i}", False, bool(i % 2), 10_000 - i)
        assert (table.marks, table.leases(), table.first_end_ns()) == (1_000, 1_000, 9_001)
        assert table.marks_of(0) == sorted(table.marks_of(0))
        for i in range(0, 1_000, 3):
            table.set(0, f"source {i}", True, False)
        for _ in range(100):
            table.end_first()
        table.forget_worker(0)
        seen.append(table.footprint())
        assert (table.marks, table.leases(), table.state(0)) == (0, 0, OPEN)
    assert seen[0] == seen[1] == seen[2]
    made, _, _, free, sources, dicts = seen[0]
    assert (made, free, sources, dicts) == (1_000, 1_000, 0, 0)


def test_names_that_change_all_the_time_use_one_row():
    table = Marks()
    for i in range(10_000):
        table.set(0, f"pod {i}", True, True, i)
        assert table.end_first() == 0
    assert table.footprint()[0] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space")
def test_without_memory_nothing_has_been_said():
    table = Marks()
    table.set(0, "a", False, False, 10)
    with little_memory(8 * 2**20), pytest.raises(MemoryError):
        table.set(20_000_000, "a", False, False, 5)
    assert (table.marks, table.first_end_ns(), table.state(0), table.state(20_000_000)) == (1, 10, LEASED, OPEN)
    assert table.workers < 20
    table.set(30, "a", False, False, 5)
    assert (table.first_end_ns(), table.state(30)) == (5, LEASED)


ends = st.none() | st.integers(0, 12) | st.sampled_from((NS_END - 1, NS_END, 2**63 - 2))
words = st.tuples(
    st.just("set"), st.integers(0, WORKERS - 1), st.sampled_from(SOURCES), st.booleans(), st.booleans(), ends)
steps = st.lists(st.one_of(
    words, words, words, st.tuples(st.just("end")), st.tuples(st.just("forget"), st.integers(0, WORKERS - 1))))


@given(steps)
def test_a_dict_says_the_same(steps):
    table = Marks()
    model: dict[tuple[int, str], tuple] = {}
    told = 0
    for kind, *rest in steps:
        due = sorted((end, order, key) for key, (*_, end, order) in model.items() if end is not None and end < NS_END)
        if kind == "set":
            worker, source, available, overloaded, end = rest
            table.set(worker, source, available, overloaded, end)
            model.pop((worker, source), None)
            told += 1
            if not available or overloaded:
                end = end if end is None else min(end, NS_END)
                model[worker, source] = (available, overloaded, end, told)
        elif kind == "end" and due:
            assert table.first_end_ns() == due[0][0]
            assert table.end_first() == due[0][2][0]
            del model[due[0][2]]
        elif kind == "forget":
            table.forget_worker(*rest)
            model = {key: mark for key, mark in model.items() if key[0] != rest[0]}
        finite = [end for *_, end, _ in model.values() if end is not None and end < NS_END]
        assert table.first_end_ns() == min(finite, default=None)
        assert (table.marks, table.leases()) == (len(model), len(finite))
        for worker in range(WORKERS):
            marks = {source: mark[:3] for (other, source), mark in model.items() if other == worker}
            assert table.state(worker) == state_of(marks.values())
            assert table.marks_of(worker) == [(source, *marks[source]) for source in sorted(marks)]
