"""Ledger: totals are sums over live bookings, weights are sticky, busy bounds are exact, free ranks are counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_ledger import RankLoad
from probe_build import load

Books = load("_probe_queue").Books

ONE = 2**20
TWO_53 = 2**53
INT64_MAX = 2**63 - 1
INF = math.inf


def made(*thresholds, ranks: int = 1, cap: int = 1):
    books = Books(list(thresholds))
    for rank in range(ranks):
        books.add_rank(rank, 100 + rank)
        books.configure(rank, cap)
    return books


@pytest.mark.parametrize(
    ("bound", "calm"),
    [
        (0.0, 0), (-0.0, 0), (5e-324, 0), (0.5, 0), (0.999, 0), (1.0, 1), (1.5, 1), (3.0000000000000004, 3),
        (2.0**52 + 0.5, 2**52), (2.0**53 - 1, TWO_53 - 1),
        # Above 2^53 counts are rounded to even neighbours before they are compared.
        (2.0**53, TWO_53 + 1), (2.0**53 + 2, TWO_53 + 2), (2.0**53 + 4, TWO_53 + 5), (2.0**54, 2**54 + 2),
        (2.0**54 + 4, 2**54 + 5), (2.0**60, 2**60 + 128), (1e18, 10**18 + 64), (9.2e18, INT64_MAX),
        (2.0**63, INT64_MAX), (1e300, INT64_MAX), (INF, INT64_MAX),
    ],
)
def test_the_largest_load_that_is_not_busy(bound, calm):
    assert made((None, bound)).calm(0, 0) == calm


@given(st.floats(0, 9e18))
def test_a_load_is_busy_iff_its_double_exceeds_the_bound(bound):
    calm = made((None, bound)).calm(0, 0)
    assert float(calm) <= bound < float(calm + 1)


@given(st.floats(0, 1e6), st.integers(1, TWO_53), st.integers(0, TWO_53))
def test_the_bound_is_a_product_of_doubles(fraction, cap, tokens):
    books = made((None, fraction), cap=cap)
    books.book(0, 0, tokens, ())
    assert books.busy(0, 0) == (float(tokens) > fraction * float(cap))


@pytest.mark.parametrize(
    ("absolute", "fraction", "cap", "calm"),
    [(10, None, 8, 10), (0, None, 8, 0), (10, 0.5, 10**7, 10), (10, 0.5, 10, 5), (10, 0.0, 10, 0), (0, INF, 10, 0),
     (TWO_53, None, 1, TWO_53), (10, 1.25, 8, 10), (11, 1.25, 8, 10)],
)
def test_of_two_thresholds_the_smaller_counts(absolute, fraction, cap, calm):
    assert made((absolute, fraction), cap=cap).calm(0, 0) == calm


def test_the_busy_examples_of_the_reference():
    """policy-queue 1.9: absolute 10 and fraction 0.5; (load, cap) -> busy."""
    for tokens, cap, busy in ((11, 10**7, True), (6, 10, True), (5, 10, False), (10, 10**7, False)):
        books = made((10, 0.5), cap=cap)
        books.book(0, 0, tokens, ())
        assert books.busy(0, 0) is busy


def test_a_booking_is_released_to_nothing():
    books = made((5, None))
    books.book(3, 0, 7, (1, 2))
    assert books.load(0) == (7, 2 * ONE, 2, 1)
    assert (books.busy(0, 0), books.free()) == (True, [0])
    assert books.release(3, (1, 2)) is True
    assert books.load(0) == (0, 0, 0, 0)
    assert (books.busy(0, 0), books.free()) == (False, [1])
    assert books.pairs_held() == (0, 0, 0)


def test_prefill_is_released_once():
    books = made((5, None))
    books.book(0, 0, 7, (1,))
    assert books.complete_prefill(0) is True
    assert books.load(0) == (0, ONE, 1, 1)
    assert books.release(0, (1,)) is False  # no prefill load fell
    assert books.load(0) == (0, 0, 0, 0)
    books.book(0, 0, 0, ())
    assert books.complete_prefill(0) is False
    assert books.release(0, ()) is False
    assert books.free() == [1]


def test_a_shared_block_counts_once():
    books = made(ranks=2)
    books.book(0, 0, 0, (1, 2, 3))
    books.book(1, 0, 0, (1, 2, 4))
    books.book(2, 1, 0, (1,))
    assert books.load(0)[1:] == (4 * ONE, 4, 2)
    assert books.load(1)[1:] == (ONE, 1, 1)
    assert books.pairs_held()[:2] == (4, 5)
    books.release(0, (1, 2, 3))
    assert books.load(0)[1:] == (3 * ONE, 3, 1)


def test_an_output_block_weighs_one_until_a_fraction_comes():
    books = made()
    books.book(0, 0, 0, (1, 2))
    books.add_output(0, -1, (1, 2))
    assert books.load(0)[1:3] == (3 * ONE, 3)
    books.add_output(0, ONE // 4, (1, 2))  # two outputs and two blocks of its own
    assert books.load(0)[1:3] == (ONE, 1)
    books.add_output(0, -1, (1, 2))
    assert books.load(0)[1] == 2 * ONE
    books.add_output(0, 0, (1, 2))
    assert books.load(0)[1] == 0
    books.add_output(0, ONE, (1, 2))
    assert books.load(0)[1] == 7 * ONE
    books.release(0, (1, 2))
    assert books.load(0) == (0, 0, 0, 0)


def test_a_fraction_leaves_shared_blocks_alone_and_is_sticky():
    books = made()
    books.book(0, 0, 0, (1, 2))
    books.book(1, 0, 0, (1,))
    books.add_output(0, 0, (1, 2))  # block 2 only
    assert books.load(0)[1] == ONE
    books.book(2, 0, 0, (2, 3))  # shares block 2 as it is
    assert books.load(0)[1] == 2 * ONE
    books.release(0, (1, 2))
    assert books.load(0)[1] == 2 * ONE
    books.release(2, (2, 3))
    books.book(3, 0, 0, (2,))  # a new life
    assert books.load(0)[1] == 2 * ONE
    books.release(1, (1,))
    books.release(3, (2,))
    assert books.load(0) == (0, 0, 0, 0)


@pytest.mark.parametrize(("weight", "blocks"), [(ONE // 2 - 1, 0), (ONE // 2, 1), (ONE + ONE // 2 - 1, 1)])
def test_active_blocks_are_rounded_half_up(weight, blocks):
    books = made()
    books.book(0, 0, 0, ())
    if weight > ONE:
        books.add_output(0, -1, ())
        books.book(1, 0, 0, ())
        books.add_output(1, weight - ONE, ())
    else:
        books.add_output(0, weight, ())
    assert books.load(0)[1:3] == (weight, blocks)


def test_a_path_may_name_a_block_twice():
    books = made()
    books.book(0, 0, 0, (5, 5))
    assert books.load(0)[1] == ONE
    books.add_output(0, 0, (5, 5))  # counted twice, so not its own alone
    assert books.load(0)[1] == ONE
    books.release(0, (5, 5))
    assert books.load(0) == (0, 0, 0, 0)


def test_bookings_of_a_rank_are_linked():
    books = made(ranks=2)
    for slot in (4, 2, 9, 0):
        books.book(slot, slot == 9, 1, ())
    assert (books.booked_on(0), books.booked_on(1)) == ([0, 2, 4], [9])
    books.release(2, ())
    assert books.booked_on(0) == [0, 4]
    books.release(0, ())
    assert books.booked_on(0) == [4]
    books.release(4, ())
    assert books.booked_on(0) == []


def test_loads_have_more_than_64_bits():
    books = made((10, None), (None, INF))
    for slot in range(1_100):
        books.book(slot, 0, TWO_53, ())
    assert books.load(0)[0] == 1_100 * TWO_53
    assert (books.busy(0, 0), books.busy(0, 1)) == (True, False)
    for slot in range(1_100):
        books.release(slot, ())
    assert books.load(0) == (0, 0, 0, 0)
    assert books.free() == [1, 1]


def test_ranks_without_thresholds_are_never_counted():
    books = made(ranks=3)
    books.book(0, 1, 10**9, ())
    assert books.free() == []


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
    books.release(0, ())
    assert books.free() == [2, 1]
    books.remove_rank(0)
    assert books.free() == [1, 0]
    books.release(1, ())
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
    books.release(0, ())
    books.remove_rank(1)
    assert (books.free(), books.free_of(2)) == ([3], [0])


PAIRS = ((10, None), (None, 0.5), (30, 2.0), (0, None), (None, INF))
paths = st.lists(st.integers(0, 6), max_size=4).map(tuple)
steps = st.one_of(
    st.tuples(st.just("book"), st.integers(0, 9), st.integers(0, 2), st.integers(0, 25) | st.just(TWO_53), paths),
    st.tuples(st.just("complete"), st.integers(0, 9)),
    st.tuples(st.just("output"), st.integers(0, 9), st.none() | st.floats(0, 1)),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("cap"), st.integers(0, 2), st.integers(1, 60), st.integers(0, 3)),
)


@given(st.lists(steps, max_size=60))
def test_totals_are_those_of_a_recount(story):
    """Against the oracle's loads, which are summed anew whenever somebody asks."""
    books = made(*PAIRS, ranks=3, cap=20)
    ranks, caps, sets, booked = [RankLoad() for _ in range(3)], [20] * 3, [0] * 3, {}
    for kind, slot, *fields in story:
        if kind == "book" and slot not in booked:
            rank, prefill, path = fields
            books.book(slot, rank, prefill, path)
            booked[slot] = (rank, ranks[rank].book(prefill, path))
        elif kind == "cap":
            books.configure(slot, *fields)
            caps[slot], sets[slot] = fields
        elif kind != "book" and slot in booked:
            rank, booking = booked[slot]
            falls = not booking.prefill_done and booking.prefill_tokens > 0
            if kind == "output":
                weight = -1 if fields[0] is None else math.floor(fields[0] * ONE + 0.5)
                books.add_output(slot, weight, booking.blocks)
                ranks[rank].add_output(booking, fields[0])
            elif kind == "complete" and not booking.prefill_done:
                assert books.complete_prefill(slot) == falls
                booking.prefill_done = True
            elif kind == "release":
                assert books.release(slot, booking.blocks) == falls
                ranks[rank].release(booking)
                del booked[slot]
        compare(books, ranks, caps, sets, booked)
    for slot, (_, booking) in booked.items():
        books.release(slot, booking.blocks)
    assert [books.load(rank) for rank in range(3)] == [(0, 0, 0, 0)] * 3
    assert books.pairs_held() == (0, 0, 0)
    assert books.free() == [3] * len(PAIRS)


def compare(books, ranks, caps, sets, booked) -> None:
    for number, rank in enumerate(ranks):
        prefill, _, blocks, requests = books.load(number)
        assert (prefill, blocks, requests) == (rank.prefill_tokens, rank.active_blocks, rank.requests)
        assert sorted(books.booked_on(number)) == sorted(slot for slot, (of, _) in booked.items() if of == number)
    assert books.pairs_held()[1] == sum(len(rank.live) for rank in ranks)
    for pair, (absolute, fraction) in enumerate(PAIRS):
        calm = [(absolute is None or rank.prefill_tokens <= absolute)
                and (fraction is None or float(rank.prefill_tokens) <= fraction * float(cap))
                for rank, cap in zip(ranks, caps, strict=True)]
        assert [not books.busy(number, pair) for number in range(3)] == calm
        assert books.free()[pair] == sum(calm)
        for taints in set(sets):
            assert books.free_of(taints)[pair] == sum(c for c, of in zip(calm, sets, strict=True) if of == taints)
