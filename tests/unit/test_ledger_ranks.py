"""Ledger, ranks: counters by state and threshold, caps and room, reports of engines, whom a change makes dirty."""

from __future__ import annotations

import math

from probe_build import load

Books = load("_probe_ledger").Books

OPEN, OVERLOADED, LEASED, GONE = range(4)
INT64_MAX = 2**63 - 1
TWO_53 = 2**53


def made(*thresholds, ranks: int = 1, cap: int = 1, decays: bool = False):
    books = Books(list(thresholds), decays)
    for rank in range(ranks):
        books.add_rank(rank, 100 + rank)
        books.configure(rank, cap)
    return books


def test_ranks_without_thresholds_are_never_counted_free():
    books = made(ranks=3)
    books.book(0, 1, 10**9, ())
    assert books.free() == []
    assert books.in_state() == [3, 0, 0, 0]


def test_free_ranks_follow_caps_and_ranks():
    books = made((None, 1.0), (8, None), ranks=3, cap=10)
    for slot, (rank, prefill) in enumerate([(0, 9), (1, 10), (2, 11)]):
        books.book(slot, rank, prefill, ())
    assert books.free() == [2, 0]
    books.configure(2, 11)
    assert books.free() == [3, 0]
    books.configure(0, 8)
    books.configure(1, 8)
    assert books.free() == [1, 0]
    books.release(0)
    assert books.free() == [2, 1]
    books.remove_rank(0)
    assert books.free() == [1, 0]
    books.release(1)
    books.remove_rank(1)
    assert books.free() == [1, 0]
    books.add_rank(0, 5)
    assert books.free() == [1, 0]  # not present before it is configured
    books.configure(0, 1)
    assert books.free() == [2, 1]


def test_free_ranks_are_counted_per_taint_set_too():
    books = made((5, None), ranks=4)
    for rank, taints in enumerate((0, 3, 3, 1)):
        books.configure(rank, 1, taints)
    assert [books.free_of(taints) for taints in range(4)] == [[1], [1], [0], [2]]
    books.book(0, 1, 6, ())
    assert (books.free(), books.free_of(3)) == ([3], [1])
    books.configure(1, 1, 2)
    assert [books.free_of(taints) for taints in range(4)] == [[1], [1], [0], [1]]
    books.complete_prefill(0)
    assert [books.free_of(taints) for taints in range(4)] == [[1], [1], [1], [1]]
    books.release(0)
    books.remove_rank(1)
    assert (books.free(), books.free_of(2)) == ([3], [0])


def test_only_open_ranks_are_free():
    books = made((5, None), ranks=4)
    for rank, state in enumerate((OPEN, OVERLOADED, LEASED, GONE)):
        books.set_state(rank, state)
    assert (books.in_state(), books.free(), books.free_of(0)) == ([1, 1, 1, 1], [1], [1])
    books.book(0, 1, 6, ())
    books.set_state(1, OPEN)
    assert (books.in_state(), books.free()) == ([2, 0, 1, 1], [1])  # open and busy
    books.complete_prefill(0)
    assert books.free() == [2]
    books.set_state(1, LEASED)
    books.release(0)
    assert (books.in_state(), books.free()) == ([1, 0, 2, 1], [1])


def test_a_state_outlives_a_new_configuration_and_not_the_rank():
    books = made((5, None), ranks=2)
    books.set_state(0, GONE)
    books.configure(0, 7, taints=2)
    assert (books.in_state(), books.in_state(0), books.in_state(2)) == ([1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1])
    books.remove_rank(0)
    assert (books.in_state(), books.in_state(2)) == ([1, 0, 0, 0], [0, 0, 0, 0])
    books.add_rank(0, 5)
    books.configure(0, 7)
    assert (books.in_state(), books.free()) == ([2, 0, 0, 0], [2])


def test_room_is_under_both_caps():
    books = made()
    assert books.has_room(0, TWO_53)
    books.configure(0, 1, blocks=10, requests=2)
    assert [books.has_room(0, need) for need in (0, 10, 11)] == [True, True, False]
    books.book(0, 0, 0, (1, 2), private=1, reserve=3)
    assert [books.has_room(0, need) for need in (4, 5)] == [True, False]
    books.book(1, 0, 0, ())
    assert not books.has_room(0, 0)  # two requests
    books.configure(0, 1, blocks=10, requests=3)
    assert [books.has_room(0, need) for need in (4, 5)] == [True, False]
    books.configure(0, 1, blocks=5, requests=3)
    assert not books.has_room(0, 0)  # the cap has fallen below what is held
    books.release(0)
    assert [books.has_room(0, need) for need in (5, 6)] == [True, False]


def test_a_report_beyond_the_own_load_is_foreign():
    books = made((10, None), cap=1)
    books.configure(0, 1, blocks=20, requests=4)
    books.book(0, 0, 6, (1, 2, 3))
    assert books.report(0, 3, 10, 5, 2, True)
    assert books.reported(0) == (3, 10, 5, 2)
    assert (books.load(0)[0], books.effective(0)) == (6, (10, 5, 2, 5))  # foreign: 4 tokens, 2 blocks, 1 request
    assert not books.busy(0, 0)
    books.book(1, 0, 1, (4,), private=2)
    assert (books.effective(0), books.busy(0, 0), books.free()) == ((11, 6, 3, 8), True, [0])
    assert [books.has_room(0, need) for need in (12, 13)] == [True, False]
    books.configure(0, 1, blocks=20, requests=3)
    assert not books.has_room(0, 0)  # two of its own and a foreign one
    books.release(0)
    books.release(1)
    assert books.effective(0) == (4, 2, 1, 2)  # own bookings have gone, what others run has not


def test_a_report_never_takes_away_own_bookings():
    books = made((0, None))
    books.book(0, 0, 6, (1, 2, 3))
    assert books.report(0, 0, 0, 0, 0, True)
    assert books.effective(0) == (6, 3, 1, 3)
    assert books.report(0, 1, 7, 0, 5, True)
    assert books.effective(0) == (7, 3, 5, 3)


def test_a_report_is_held_against_the_own_load_of_its_moment():
    books = made(decays=True)
    books.configure(0, 1, rate=10)
    books.book(0, 0, 100, ())
    books.advance(4 * 10**9)
    books.report(0, 0, 100, 0, 0, True)
    assert books.effective(0)[0] == 60 + 40
    books.advance(20 * 10**9)
    assert books.effective(0)[0] == 40
    books.complete_prefill(0)
    assert books.effective(0)[0] == 40


def test_an_old_report_is_stale():
    books = made()
    assert books.reported(0) == (-1, -1, -1, -1)
    assert books.report(0, 5, 1, 1, 1, True)
    assert not books.report(0, 5, 9, 9, 9, True)
    assert not books.report(0, 4, 9, 9, 9, True)
    assert (books.reported(0), books.effective(0)) == ((5, 1, 1, 1), (1, 1, 1, 1))


def test_a_new_report_replaces_what_the_last_one_did():
    books = made((0, None))
    books.report(0, 0, 9, 9, 9, True)
    assert books.free() == [0]
    books.report(0, 1, 2, 0, 0, True)
    assert (books.effective(0), books.free()) == ((2, 0, 0, 0), [0])
    books.report(0, 2, 9, 9, 9, False)  # shown, and no more than that
    assert (books.reported(0), books.effective(0), books.free()) == ((2, 9, 9, 9), (0, 0, 0, 0), [1])


def test_a_report_stops_to_count_and_stays_told():
    books = made((0, None))
    books.report(0, 7, 9, 9, 9, True)
    books.forget_report(0)
    assert (books.reported(0), books.effective(0), books.free()) == ((7, 9, 9, 9), (0, 0, 0, 0), [1])
    assert not books.report(0, 7, 1, 1, 1, True)


def test_reports_die_with_the_rank():
    books = made((0, None))
    books.report(0, 7, 9, 9, 9, True)
    books.remove_rank(0)
    books.add_rank(0, 5)
    books.configure(0, 1)
    assert (books.reported(0), books.effective(0), books.free()) == ((-1, -1, -1, -1), (0, 0, 0, 0), [1])
    assert books.report(0, 0, 1, 1, 1, True)


def test_the_largest_report_and_the_largest_load_do_not_overflow():
    books = made((10, None), (None, math.inf))
    for slot in range(1_023):
        books.book(slot, 0, 1, (), private=TWO_53)
    books.report(0, 0, TWO_53, TWO_53, TWO_53, True)
    assert books.effective(0) == (TWO_53, TWO_53, TWO_53, INT64_MAX)
    books.configure(0, 1, blocks=TWO_53, requests=TWO_53)
    assert not books.has_room(0, TWO_53)


def test_a_change_makes_dirty_once():
    books = made((5, None), ranks=3)
    assert sorted(books.dirty()) == [0, 1, 2]
    assert books.dirty() == []

    def after(name, *fields, **named):
        getattr(books, name)(*fields, **named)
        return books.dirty()

    assert after("book", 0, 1, 7, (1,)) == [1]
    assert after("book", 1, 1, 0, ()) == [1]
    assert after("add_output", 0) == [1]
    assert after("add_output", 0, 0) == [1]
    assert after("complete_prefill", 0) == [1]
    assert after("complete_prefill", 0) == []
    assert after("complete_prefill", 1) == []
    assert after("release", 0) == [1]
    assert after("set_state", 2, LEASED) == [2]
    assert after("set_state", 2, LEASED) == []
    assert after("configure", 0, 9) == [0]
    assert after("report", 2, 0, 1, 1, 1, True) == [2]
    assert after("report", 2, 0, 1, 1, 1, True) == []
    assert after("forget_report", 2) == [2]
    assert after("remove_rank", 2) == [2]
    books.book(2, 1, 1, ())
    books.book(3, 0, 1, ())
    books.release(2)
    assert books.dirty() == [1, 0]


def test_a_rank_that_leaves_and_comes_back_is_listed_once():
    books = made((5, None), ranks=2)
    books.dirty()
    books.remove_rank(1)
    books.add_rank(1, 9)
    books.configure(1, 1)
    assert books.dirty() == [1]
    assert books.faults() == []


def test_more_room_for_ranks_keeps_everything():
    books = made((5, None), ranks=3, decays=True)
    books.configure(1, 1, rate=10)
    books.book(0, 1, 100, (1, 2))
    books.set_state(2, GONE)
    crossing_ns = books.next_crossing_ns()
    for rank in range(3, 300):
        books.add_rank(rank, 100 + rank)
        books.configure(rank, 1)
    assert (books.load(1)[0], books.free(), books.in_state()) == (100, [298], [299, 0, 0, 1])
    assert books.next_crossing_ns() == crossing_ns
    assert sorted(books.dirty()) == list(range(300))
    assert books.faults() == []
