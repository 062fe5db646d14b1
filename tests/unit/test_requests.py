"""RequestTable: rows of live requests, their paths, and the two orders that time cares about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

from kvcore.request import Request

Requests = load("_probe").Requests

NS_LAST = 2**62 - 1


def test_a_row_keeps_what_the_core_needs_of_a_request():
    table = Requests()
    slot = table.open(Request("a", 33, deadline_ns=77, block_hashes=(1, 2**64 - 1, 3), track_prefill=False), 5, 16)
    assert table.find("a") == slot
    assert table.row(slot) == {
        "pin": None, "class_index": -1, "prompt": 33, "attempt": 0, "arrival_ns": 5, "deadline_ns": 77,
        "track_prefill": False, "outside": 1, "reserve": 0, "progress_ns": table.row(slot)["progress_ns"], "serial": 1,
        "path": [1, 2**64 - 1, 3], "sequence": [1, 2**64 - 1]}
    assert table.find("b") is None
    table.close(slot)
    assert table.find("a") is None


@pytest.mark.parametrize(
    ("prompt", "blocks", "sequence", "wanted"),
    [
        (32, (7, 8), None, [7, 8]),
        (33, (7, 8, 9), None, [7, 8]),  # the third block is incomplete
        (33, (7,), None, [7]),
        (15, (7,), None, []),
        (64, (), None, []),
        (64, (7, 8), (), []),
        (64, (7, 8), (1, 2, 3), [1, 2, 3]),
        (64, (), (1, 2**64 - 1), [1, 2**64 - 1]),
    ],
)
def test_complete_blocks_have_the_given_names_or_those_of_the_path(prompt, blocks, sequence, wanted):
    table = Requests()
    slot = table.open(Request("a", prompt, block_hashes=blocks, sequence_hashes=sequence), 0, 16)
    assert table.row(slot)["path"] == list(blocks)
    assert table.row(slot)["sequence"] == wanted


@pytest.mark.parametrize(
    ("prompt", "blocks", "expected", "wanted"),
    [
        (32, (7, 8), None, (0, 0)),
        (33, (7, 8), 0, (1, 0)),  # the partial tail has no name
        (33, (), 1, (3, 1)),      # nothing has
        (1, (), 16, (1, 1)),
        (2**53, (), 2**53, (2**49, 2**49)),
        (33, (7,), 17, (2, 2)),
    ],
)
def test_blocks_that_nobody_shares_and_blocks_kept_for_the_answer(prompt, blocks, expected, wanted):
    table = Requests()
    slot = table.open(Request("a", prompt, block_hashes=blocks, expected_output_tokens=expected), 0, 16)
    assert (table.row(slot)["outside"], table.row(slot)["reserve"]) == wanted


def test_looks_are_taken_in_order_and_end_with_the_wait():
    table = Requests()
    slots = [table.open(Request(name, 1), 0, 16) for name in "abcd"]
    for seq, (slot, look_ns) in enumerate(zip(slots, (30, 10, None, 10), strict=True)):
        table.start_waiting(slot, seq, look_ns)
    assert table.first_look() == (10, slots[1])  # equal times by seq
    table.look_again(slots[1], 20)
    assert table.first_look() == (10, slots[3])
    table.look_again(slots[3], None)
    assert table.first_look() == (20, slots[1])
    table.start_running(slots[1], 1, 15)
    assert table.first_look() == (30, slots[0])
    table.close(slots[0])
    assert table.first_look() is None
    for slot in slots[1:]:
        table.close(slot)


def test_a_request_that_is_only_thought_of_has_no_name():
    table = Requests()
    named = table.open(Request("a", 1), 0, 16)
    slot = table.open_unnamed(Request("a", 2), 0, 16)
    assert (table.find("a"), table.row(slot)["prompt"]) == (named, 2)
    table.close(slot)
    assert table.find("a") == named


def test_a_request_object_is_held_while_it_lives():
    """Also while it runs: a failed dispatch may put it back."""
    table = Requests()
    request = Request("a", 1)
    slot = table.open(request, 0, 16)
    assert table.request(slot) is request
    table.start_waiting(slot, 0)
    table.start_running(slot, 1, 0)
    assert table.request(slot) is request
    table.close(slot)
    assert table.request(slot) is None


def test_an_attempt_is_found_from_the_booking_to_the_end():
    table = Requests()
    slot = table.open(Request("a", 1), 0, 16)
    table.start_waiting(slot, 0)
    assert table.find_attempt("a", 0) is None
    assert table.find_attempt("b", 0) is None
    table.start_running(slot, 3, 0)
    assert [table.find_attempt("a", attempt) for attempt in (2, 3, 4)] == [None, slot, None]
    table.evict(slot, 9)
    assert table.find_attempt("a", 3) == slot
    table.close(slot)
    assert table.find_attempt("a", 3) is None


def test_an_id_used_again_starts_anew():
    table = Requests()
    slot = table.open(Request("a", 1, block_hashes=(5,), deadline_ns=4), 0, 1)
    table.start_waiting(slot, 0)
    table.start_running(slot, 8, 1)
    table.close(slot)
    again = table.open(Request("a", 2), 6, 1)
    assert again == slot
    row = table.row(again)
    assert (row["attempt"], row["path"], row["deadline_ns"], row["arrival_ns"]) == (0, [], None, 6)
    assert row["serial"] == 2  # another path
    assert table.first_progress() is None


def test_deadlines_count_while_a_request_waits():
    table = Requests()
    slots = []
    for seq, deadline_ns in enumerate((50, None, 10, 10, NS_LAST)):
        slots.append(table.open(Request(str(seq), 1, deadline_ns=deadline_ns), 0, 16))
        assert table.first_deadline() != (deadline_ns, slots[-1])  # not yet stored
        table.start_waiting(slots[-1], seq)
    assert table.first_deadline() == (10, slots[2])  # of equal ones the first to come
    table.close(slots[2])
    assert table.first_deadline() == (10, slots[3])
    table.start_running(slots[3], 1, 0)
    assert table.first_deadline() == (50, slots[0])
    table.close(slots[0])
    assert table.first_deadline() == (NS_LAST, slots[4])
    table.close(slots[1])
    table.close(slots[4])
    assert table.first_deadline() is None


def running(table, name: str, attempt: int, now_ns: int) -> int:
    slot = table.open(Request(name, 1), now_ns, 16)
    table.start_waiting(slot, attempt)
    table.start_running(slot, attempt, now_ns)
    return slot


def test_timers_stand_in_order_of_progress():
    table = Requests()
    a, b, c = (running(table, name, i + 1, 10 * i) for i, name in enumerate("abc"))
    assert table.timers() == [a, b, c]
    assert table.first_progress() == (0, a)
    table.touch(a, 30)
    assert table.timers() == [b, c, a]
    table.touch(a, 31)
    table.touch(c, 31)
    assert table.timers() == [b, a, c]
    assert table.first_progress() == (10, b)
    table.close(b)
    assert table.first_progress() == (31, a)
    table.close(a)
    table.close(c)
    assert table.timers() == []
    assert table.first_progress() is None


def test_of_equal_times_the_lowest_attempt_is_first():
    table = Requests()
    a, b, c = (running(table, name, i + 1, 5) for i, name in enumerate("abc"))
    table.touch(a, 9)
    table.touch(b, 9)
    assert table.first_progress() == (5, c)
    table.touch(c, 9)
    assert table.timers() == [a, b, c]
    table.touch(a, 9)
    assert table.timers() == [a, b, c]
    table.touch(b, 9)
    assert table.timers() == [a, b, c]
    assert table.first_progress() == (9, a)
    table.close(a)
    assert table.first_progress() == (9, b)


def test_an_overdue_timer_restarts_at_its_due_time():
    """Evicted at 20, its due time, when the newest progress is already at 30."""
    table = Requests()
    a = running(table, "a", 1, 10)
    b = running(table, "b", 2, 15)
    c = running(table, "c", 3, 30)
    table.evict(a, 20)
    assert table.timers() == [b, a, c]
    table.evict(b, 25)
    assert table.timers() == [a, b, c]
    assert table.first_progress() == (20, a)


def test_bookings_that_never_expire_have_no_timers():
    table = Requests(False)
    a, b = running(table, "a", 1, 10), running(table, "b", 2, 10)
    table.touch(a, 20)
    table.evict(b, 30)
    assert (table.timers(), table.first_progress()) == ([], None)
    assert [table.find_attempt("a", 1), table.find_attempt("b", 2)] == [a, b]
    assert [table.row(slot)["progress_ns"] for slot in (a, b)] == [20, 30]
    table.close(a)
    table.close(b)
    assert (table.find("a"), table.find("b"), table.first_progress()) == (None, None, None)


def test_many_requests_keep_their_rows():
    table = Requests()
    names = [f"r{i}" for i in range(500)]
    slots = [table.open(Request(name, i + 1, block_hashes=(i,)), i, 1) for i, name in enumerate(names)]
    for i, slot in enumerate(slots):
        table.start_waiting(slot, i)
    for i, slot in enumerate(slots):
        row = table.row(slot)
        assert (row["prompt"], row["arrival_ns"], row["path"]) == (i + 1, i, [i])
        assert table.find(names[i]) == slot


class Model:
    """What is live: name -> [state, deadline, seq, attempt, progress]."""

    def __init__(self):
        self.table = Requests()
        self.rows = {}
        self.now = 0
        self.counter = 0

    def step(self, kind: str, name: str, number: int) -> None:
        self.now += number % 3
        state = self.rows[name][0] if name in self.rows else None
        slot = self.table.find(name)
        assert (slot is None) == (state is None)
        if state is None and kind == "open":
            self.counter += 1
            deadline = None if number % 4 == 0 else self.now + number
            slot = self.table.open(Request(name, 1, deadline_ns=deadline), self.now, 16)
            self.table.start_waiting(slot, self.counter)
            self.rows[name] = ["waiting", deadline, self.counter, None, None]
        elif state == "waiting" and kind == "open":
            self.counter += 1
            self.table.start_running(slot, self.counter, self.now)
            self.rows[name] = ["running", None, None, self.counter, self.now]
        elif state == "running" and kind == "touch":
            self.table.touch(slot, self.now)
            self.rows[name][4] = self.now
        elif state == "running" and kind == "evict":
            at = min(self.now, self.rows[name][4] + number)
            self.table.evict(slot, at)
            self.rows[name][0], self.rows[name][4] = "evicted", at
        elif state is not None and kind == "close":
            self.table.close(slot)
            del self.rows[name]

    def check(self) -> None:
        find = self.table.find
        deadlines = [(row[1], row[2], name) for name, row in self.rows.items() if row[1] is not None]
        first = min(deadlines, default=None)
        assert self.table.first_deadline() == (first and (first[0], find(first[2])))
        timers = [(row[4], row[3], name) for name, row in self.rows.items() if row[0] != "waiting"]
        first = min(timers, default=None)
        assert self.table.first_progress() == (first and (first[0], find(first[2])))
        progress = {find(name): progress for progress, _, name in timers}
        assert sorted(self.table.timers()) == sorted(progress)
        assert [progress[slot] for slot in self.table.timers()] == sorted(progress.values())


@given(st.lists(st.tuples(
    st.sampled_from(("open", "open", "open", "touch", "evict", "close")), st.sampled_from("abcdefg"),
    st.integers(0, 9)), max_size=80))
def test_sorted_lists_say_the_same(steps):
    model = Model()
    for step in steps:
        model.step(*step)
        model.check()
