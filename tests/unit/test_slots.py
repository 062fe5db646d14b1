"""SlotTable: ids to dense slots and back, slots used again last freed first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Slots = load("_probe").Slots


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


def test_text_and_numbers_are_told_apart():
    table = Slots()
    assert [table.add(1), table.add("1"), table.add("")] == [0, 1, 2]
    assert [table.get(1), table.get("1"), table.get("")] == [0, 1, 2]


def test_a_small_live_set_stays_in_few_slots():
    table = Slots()
    slots = {table.add(i) for i in range(4)}
    for i in range(4, 2_000):
        table.remove(table.get(i - 4))
        slots.add(table.add(i))
    assert slots == {0, 1, 2, 3}
    assert table.size == 4


@given(st.lists(st.integers(0, 12)))
def test_a_dict_and_a_stack_say_the_same(names):
    """Each name toggles: added if it is not live, else removed."""
    table = Slots()
    slots: dict[int, int] = {}
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
        assert {other: table.get(other) for other in range(13)} == {other: slots.get(other) for other in range(13)}
        assert all(table.id_of(slot) == other for other, slot in slots.items())
        assert all(table.id_of(slot) is None for slot in free)
