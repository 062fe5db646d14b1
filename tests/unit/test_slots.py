"""SlotTable: ids to dense slots and back, slots used again last freed first."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Slots, number_in = load("_probe").Slots, load("_probe").number_from


def test_an_id_has_its_slot_until_it_is_removed():
    table = Slots()
    assert table.get("a") is None
    assert [table.add("a"), table.add("b")] == [0, 1]
    assert [table.get("a"), table.get("b"), table.id_of(1), table.count()] == [0, 1, "b", 2]
    table.remove(0)
    assert [table.get("a"), table.get("b"), table.id_of(0), table.count()] == [None, 1, None, 1]
    assert table.live() == ["b"]


def test_the_slot_freed_last_is_used_first():
    table = Slots()
    for name in "abcd":
        table.add(name)
    for slot in (1, 3, 0):
        table.remove(slot)
    assert [table.add(name) for name in "wxyz"] == [0, 3, 1, 4]
    assert table.size == 5


def test_ids_that_write_out_numbers_are_those_numbers():
    table = Slots()
    assert [table.add("17"), table.add_number(0), table.add("017")] == [0, 1, 2]
    assert [table.get_number(17), table.get("17"), table.get("0"), table.get("017")] == [0, 0, 1, 2]
    assert [table.id_of(slot) for slot in range(3)] == ["17", "0", "017"]
    assert sorted(table.live()) == ["0", "017", "17"]
    assert table.count() == 3
    assert not table.all_numbers()
    table.remove(2)
    assert table.all_numbers()
    table.remove(0)
    assert [table.get("17"), table.get_number(17), table.live()] == [None, None, ["0"]]


def test_a_slot_forgets_the_text_of_the_number_that_it_had():
    table = Slots()
    table.add("17")
    assert table.id_of(0) == "17"
    table.remove(0)
    assert table.add_number(18) == 0
    assert table.id_of(0) == "18"


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1 ", "00", "01", "1_0", "1e3", "\u0661", "1\0", "x", "1" * 19])
def test_other_texts_are_no_numbers(text):
    assert number_in(text) is None
    table = Slots()
    table.add(text)
    assert (table.get(text), table.id_of(0), table.all_numbers()) == (0, text, False)


def test_the_largest_number_has_18_digits():
    assert number_in("9" * 18) == 10**18 - 1


def test_a_small_live_set_stays_in_few_slots():
    table = Slots()
    slots = {table.add(f"r{i}") for i in range(4)}
    for i in range(4, 2_000):
        table.remove(table.get(f"r{i - 4}"))
        slots.add(table.add(f"r{i}"))
    assert slots == {0, 1, 2, 3}
    assert table.size == 4


@pytest.mark.parametrize("step", [1, 64, 1 << 32])
def test_many_numbers_come_and_go(step):
    table = Slots()
    for i in range(5_000):
        table.add_number(i * step)
    for i in range(0, 5_000, 2):
        table.remove(table.get_number(i * step))
    assert [table.get_number(i * step) for i in range(5_000)] == [None if i % 2 == 0 else i for i in range(5_000)]


def test_many_texts_come_and_go():
    """Looked up by texts that are equal, not the same; a text and a number of the same hash are two ids."""
    table = Slots()
    for i in range(5_000):
        table.add(f"r{i}")
    table.add_number(hash("r7") % 10**18)
    for i in range(0, 5_000, 2):
        table.remove(table.get(f"r{i}"))
    assert [table.get(f"r{i}") for i in range(5_000)] == [None if i % 2 == 0 else i for i in range(5_000)]
    assert [table.id_of(i) for i in range(5_000)] == [None if i % 2 == 0 else f"r{i}" for i in range(5_000)]
    assert table.count() == 2_501


def test_texts_are_held_while_they_are_live():
    table = Slots()
    name = "".join(["some", "body"])
    before = sys.getrefcount(name)
    slot = table.add(name)
    assert sys.getrefcount(name) == before + 1
    table.remove(slot)
    assert sys.getrefcount(name) == before
    table.add(name)
    table.add("17")
    del table
    assert sys.getrefcount(name) == before


NAMES = [*"abcdef", *map(str, range(7))]


@given(st.lists(st.sampled_from(NAMES)))
def test_a_dict_and_a_stack_say_the_same(names):
    """Each name toggles: added if it is not live, else removed."""
    table = Slots()
    slots: dict[str, int] = {}
    free: list[int] = []
    size = 0
    for name in names:
        if name in slots:
            table.remove(slots[name])
            free.append(slots.pop(name))
        else:
            wanted = free.pop() if free else size
            size = max(size, wanted + 1)
            slots[name] = table.add(name)
            assert slots[name] == wanted
        assert table.size == size
        assert table.count() == len(slots)
        assert sorted(table.live()) == sorted(slots)
        assert {other: table.get(other) for other in NAMES} == {other: slots.get(other) for other in NAMES}
        assert all(table.id_of(slot) == other for other, slot in slots.items())
        assert all(table.id_of(slot) is None for slot in free)
