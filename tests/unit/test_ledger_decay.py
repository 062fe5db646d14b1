"""Ledger, decay: the front shrinks with time, credit is given for completion only, crossings are foreseen exactly."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Books = load("_probe_ledger").Books

SECOND = 10**9
TWO_53 = 2**53
NS_END = 2**62


def made(*thresholds, rate: int = 10, ranks: int = 1, decays: bool = True):
    books = Books(list(thresholds), decays)
    for rank in range(ranks):
        books.add_rank(rank, 100 + rank)
        books.configure(rank, 1, rate=rate)
    return books


def test_without_decay_time_does_nothing():
    books = made((5, None), decays=False)
    books.book(0, 0, 100, ())
    assert (books.fifo(0), books.next_crossing_ns()) == ([], None)
    assert books.advance(NS_END - 1) == []
    assert (books.own_tokens(0), books.free()) == (100, [0])
    assert books.complete_prefill(0) is True
    assert (books.own_tokens(0), books.free(), books.anchor_ns(0)) == (0, [1], 0)


def test_the_remainder_is_what_a_whole_number_of_tokens_leaves():
    """7 tokens at 2 a second: 3.5 s. Done are floor(7 * e / d)."""
    books = made(rate=2)
    books.book(0, 0, 7, ())
    found = []
    half = SECOND // 2
    for now_ns in (0, half - 1, half, 2 * half, 6 * half, 7 * half - 1, 7 * half, 10**12):
        books.advance(now_ns)
        found.append(books.own_tokens(0))
    assert found == [7, 7, 6, 5, 1, 1, 0, 0]


def test_a_duration_is_rounded_up():
    """One token at 3 a second: 333 333 334 ns."""
    books = made(rate=3)
    books.book(0, 0, 1, ())
    books.advance(333_333_333)
    assert books.own_tokens(0) == 1
    books.advance(333_333_334)
    assert books.own_tokens(0) == 0


def test_a_booking_that_is_rolled_back_gives_no_credit():
    """B8 of the reference: 100 t/10 s, at 5 add 40 t/4 s and free it at once: 50, 90, 90 there; 50, 90, 50 here."""
    books = made()
    books.book(0, 0, 100, ())
    books.advance(5 * SECOND)
    read = [books.own_tokens(0)]
    books.book(1, 0, 40, ())
    read.append(books.own_tokens(0))
    books.release(1, False)
    assert [*read, books.own_tokens(0)] == [50, 90, 50]


@pytest.mark.parametrize(
    ("leaves", "anchor"),
    [(lambda books: books.complete_prefill(1), 4), (lambda books: books.release(1, True), 4),
     (lambda books: books.release(1, False), 0)])
def test_completion_gives_credit_and_nothing_else_does(leaves, anchor):
    books = made()
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(5 * SECOND)
    leaves(books)
    assert books.anchor_ns(0) == anchor * SECOND


def test_credit_is_given_once():
    books = made()
    books.book(0, 0, 100, ())
    books.book(1, 0, 20, ())
    books.advance(5 * SECOND)
    books.complete_prefill(1)
    books.complete_prefill(1)
    books.release(1, True)
    assert books.anchor_ns(0) == 2 * SECOND


@pytest.mark.parametrize("completed", [True, False])
def test_whoever_is_next_begins_when_the_front_leaves(completed):
    books = made()
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(7 * SECOND)
    books.release(0, completed)
    assert (books.anchor_ns(0), books.own_tokens(0)) == (7 * SECOND, 40)
    books.release(1, completed)
    books.advance(9 * SECOND)
    assert (books.anchor_ns(0), books.own_tokens(0)) == (0, 0)
    books.book(0, 0, 10, ())
    assert books.anchor_ns(0) == 9 * SECOND


def test_the_fifo_is_in_booking_order_whoever_leaves():
    books = made()
    for slot in (3, 1, 4, 0, 5):
        books.book(slot, 0, 0 if slot == 4 else 10, ())
    assert books.fifo(0) == [3, 1, 0, 5]
    books.release(1)
    assert books.fifo(0) == [3, 0, 5]
    books.complete_prefill(5)
    books.book(1, 0, 10, ())
    assert books.fifo(0) == [3, 0, 1]
    books.complete_prefill(3)
    assert books.fifo(0) == [0, 1]
    assert books.faults() == []


def test_a_new_rate_keeps_the_begin():
    books = made(rate=10)
    books.book(0, 0, 100, ())
    books.advance(4 * SECOND)
    assert books.own_tokens(0) == 60
    books.configure(0, 1, rate=20)
    assert books.own_tokens(0) == 20
    books.configure(0, 1, rate=0)
    assert books.own_tokens(0) == 100
    books.advance(6 * SECOND)
    books.configure(0, 1, rate=5)
    assert (books.own_tokens(0), books.anchor_ns(0)) == (70, 0)


def test_an_unknown_rate_gives_no_credit():
    books = made(rate=0)
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(5 * SECOND)
    books.complete_prefill(1)
    books.configure(0, 1, rate=10)
    assert (books.anchor_ns(0), books.own_tokens(0)) == (0, 50)


def test_a_crossing_is_announced_and_then_happens():
    books = made((60, None), (25, None), ranks=2)
    books.book(0, 1, 100, ())
    assert (books.next_crossing_ns(), books.free()) == (4 * SECOND, [1, 1])
    assert books.advance(4 * SECOND - 1) == []
    assert (books.busy(1, 0), books.free()) == (True, [1, 1])
    books.dirty()
    assert books.advance(4 * SECOND) == [1]
    assert (books.busy(1, 0), books.free(), books.dirty()) == (False, [2, 1], [1])
    assert books.next_crossing_ns() == 75 * SECOND // 10
    assert books.advance(8 * SECOND) == [1]
    assert (books.free(), books.next_crossing_ns()) == ([2, 2], None)
    assert books.advance(9 * SECOND) == []


def test_one_step_in_time_may_cross_everything():
    books = made((60, None), (25, None), (0, None), ranks=4)
    for rank in range(3):
        books.book(rank, rank, 100 - rank, ())
    assert books.free() == [1, 1, 1]
    assert sorted(books.advance(100 * SECOND)) == [0, 1, 2]
    assert (books.free(), books.next_crossing_ns()) == ([4, 4, 4], None)
    assert books.faults() == []


def test_what_the_front_cannot_free_is_not_foreseen():
    books = made((60, None))
    books.book(0, 0, 30, ())
    books.book(1, 0, 61, ())
    assert books.next_crossing_ns() is None  # 61 are left when the front is through
    books.release(0, True)
    assert books.next_crossing_ns() == SECOND // 10


def test_foreign_load_stands_in_the_way():
    books = made((60, None))
    books.book(0, 0, 100, ())
    books.report(0, 0, 130, 0, 0, True)
    assert books.next_crossing_ns() == 7 * SECOND
    books.report(0, 1, 200, 0, 0, True)
    assert books.next_crossing_ns() is None
    books.advance(5 * SECOND)
    books.forget_report(0)
    assert (books.busy(0, 0), books.next_crossing_ns()) == (False, None)


def test_closed_ranks_cross_too_and_are_not_free():
    books = made((60, None), ranks=2)
    books.book(0, 0, 100, ())
    books.set_state(0, 1)
    assert books.next_crossing_ns() == 4 * SECOND
    assert books.advance(4 * SECOND) == [0]
    assert books.free() == [1]
    books.set_state(0, 0)
    assert books.free() == [2]


def test_a_rank_that_is_gone_is_not_foreseen():
    books = made((60, None), ranks=2)
    books.book(0, 0, 100, ())
    books.book(1, 1, 110, ())
    books.release(0)
    books.remove_rank(0)
    assert books.next_crossing_ns() == 5 * SECOND
    assert books.faults() == []


def test_new_bounds_are_foreseen_anew():
    books = Books([(None, 0.5)], True)
    books.add_rank(0, 1)
    books.configure(0, 120, rate=10)
    books.book(0, 0, 100, ())
    assert books.next_crossing_ns() == 4 * SECOND
    books.configure(0, 60, rate=10)
    assert books.next_crossing_ns() == 7 * SECOND
    books.configure(0, 60, rate=7)
    assert books.next_crossing_ns() == 10 * SECOND + 1  # 100 tokens take 14 285 714 286 ns, rounded up
    books.configure(0, 60)
    assert books.next_crossing_ns() is None


def test_times_that_never_come_are_not_announced():
    """2^53 tokens, one a second, take 2^83 ns; half of the time there is takes 2^62 / 10^9 of them."""
    books = made((TWO_53 - 1, None), rate=1)
    books.book(0, 0, TWO_53, ())
    assert books.next_crossing_ns() == SECOND
    last = NS_END // SECOND
    books = made((TWO_53 - last, None), (TWO_53 - last - 1, None), rate=1)
    books.book(0, 0, TWO_53, ())
    assert books.next_crossing_ns() == last * SECOND < NS_END
    assert books.advance(NS_END - 1) == [0]
    assert (books.next_crossing_ns(), books.own_tokens(0)) == (None, TWO_53 - last)
    assert (books.busy(0, 0), books.busy(0, 1)) == (False, True)


big = st.integers(1, TWO_53) | st.integers(0, 53).map(lambda n: 2**n) | st.integers(1, 200)


@given(big, big, st.integers(0, TWO_53), st.integers(0, TWO_53), st.integers(0, NS_END - 1) | st.integers(0, 10**12))
def test_numbers_of_any_size_are_exact(prefill, rate, behind, bound, now_ns):
    """Against rational arithmetic: what is left at any time, and when it has fallen to a bound."""
    books = made((bound, None), rate=rate)
    books.book(0, 0, prefill, ())
    books.book(1, 0, behind, ())
    whole_ns = -(-prefill * SECOND // rate)

    def left(elapsed_ns):
        return prefill - floor(Fraction(prefill * min(elapsed_ns, whole_ns), whole_ns)) + behind

    at_ns = books.next_crossing_ns()
    if at_ns is None:
        assert left(0) <= bound or left(NS_END - 1) > bound
    else:
        assert left(at_ns) <= bound < left(at_ns - 1)
        books.advance(at_ns - 1)
        assert books.busy(0, 0)
        books.advance(at_ns)
        assert not books.busy(0, 0)
        now_ns = max(now_ns, at_ns)
    books.advance(now_ns)
    assert books.own_tokens(0) == left(now_ns)
    assert books.free() == [left(now_ns) <= bound]
    assert books.faults() == []


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 20), st.integers(0, 10**10))
def test_completion_behind_the_front_keeps_the_load_as_it_was_once_it_had_the_time(front, other, rate, now_ns):
    """If so much time has passed, the tokens taken off the sum come back to the front, but for rounding."""
    books = made(rate=rate)
    books.book(0, 0, front, ())
    books.book(1, 0, other, ())
    books.advance(now_ns)
    before = books.own_tokens(0)
    books.complete_prefill(1)
    if -(-other * SECOND // rate) <= now_ns <= -(-front * SECOND // rate):
        assert abs(books.own_tokens(0) - before) <= 1
    assert 0 <= books.own_tokens(0) <= front
    assert books.anchor_ns(0) <= now_ns
