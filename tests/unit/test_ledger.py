"""Ledger: totals are sums over live bookings, weights are sticky, held blocks are whole, busy bounds are exact."""

from __future__ import annotations

import array
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from little_memory import little_memory
from probe_build import load

Books = load("_probe_ledger").Books

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
    assert books.release(3) is True
    assert books.load(0) == (0, 0, 0, 0)
    assert (books.busy(0, 0), books.free()) == (False, [1])
    assert books.pairs_held() == (0, 0, 0)


def test_prefill_is_released_once():
    books = made((5, None))
    books.book(0, 0, 7, (1,))
    assert books.complete_prefill(0) is True
    assert books.load(0) == (0, ONE, 1, 1)
    assert books.release(0) is False  # no prefill load fell
    assert books.load(0) == (0, 0, 0, 0)
    books.book(0, 0, 0, ())
    assert books.complete_prefill(0) is False
    assert books.release(0) is False
    assert books.free() == [1]


def test_a_shared_block_counts_once():
    books = made(ranks=2)
    books.book(0, 0, 0, (1, 2, 3))
    books.book(1, 0, 0, (1, 2, 4))
    books.book(2, 1, 0, (1,))
    assert books.load(0)[1:] == (4 * ONE, 4, 2)
    assert books.load(1)[1:] == (ONE, 1, 1)
    assert books.pairs_held()[:2] == (4, 5)
    books.release(0)
    assert books.load(0)[1:] == (3 * ONE, 3, 1)


def test_an_output_block_weighs_one_until_a_fraction_comes():
    books = made()
    books.book(0, 0, 0, (1, 2))
    books.add_output(0)
    assert books.load(0)[1:3] == (3 * ONE, 3)
    books.add_output(0, ONE // 4)  # two outputs and two blocks of its own
    assert books.load(0)[1:3] == (ONE, 1)
    books.add_output(0)
    assert books.load(0)[1] == 2 * ONE
    books.add_output(0, 0)
    assert books.load(0)[1] == 0
    books.add_output(0, ONE)
    assert books.load(0)[1] == 7 * ONE
    books.release(0)
    assert books.load(0) == (0, 0, 0, 0)


def test_a_fraction_leaves_shared_blocks_alone_and_is_sticky():
    books = made()
    books.book(0, 0, 0, (1, 2))
    books.book(1, 0, 0, (1,))
    books.add_output(0, 0)  # block 2 only
    assert books.load(0)[1] == ONE
    books.book(2, 0, 0, (2, 3))  # shares block 2 as it is
    assert books.load(0)[1] == 2 * ONE
    books.release(0)
    assert books.load(0)[1] == 2 * ONE
    books.release(2)
    books.book(3, 0, 0, (2,))  # a new life
    assert books.load(0)[1] == 2 * ONE
    books.release(1)
    books.release(3)
    assert books.load(0) == (0, 0, 0, 0)


@pytest.mark.parametrize(("weight", "blocks"), [(ONE // 2 - 1, 0), (ONE // 2, 1), (ONE + ONE // 2 - 1, 1)])
def test_active_blocks_are_rounded_half_up(weight, blocks):
    books = made()
    books.book(0, 0, 0, ())
    if weight > ONE:
        books.add_output(0)
        books.book(1, 0, 0, ())
        books.add_output(1, weight - ONE)
    else:
        books.add_output(0, weight)
    assert books.load(0)[1:3] == (weight, blocks)


def test_a_path_may_name_a_block_twice():
    books = made()
    books.book(0, 0, 0, (5, 5))
    assert books.load(0)[1] == ONE
    books.add_output(0, 0)  # counted twice, so not its own alone
    assert books.load(0)[1] == ONE
    books.release(0)
    assert books.load(0) == (0, 0, 0, 0)


def test_bookings_of_a_rank_are_linked():
    books = made(ranks=2)
    for slot in (4, 2, 9, 0):
        books.book(slot, slot == 9, 1, ())
    assert (books.booked_on(0), books.booked_on(1)) == ([0, 2, 4], [9])
    books.release(2)
    assert books.booked_on(0) == [0, 4]
    books.release(0)
    assert books.booked_on(0) == [4]
    books.release(4)
    assert books.booked_on(0) == []


def test_loads_have_more_than_64_bits():
    books = made((10, None), (None, INF))
    for slot in range(1_100):
        books.book(slot, 0, TWO_53, ())
    assert books.load(0)[0] == 1_100 * TWO_53
    assert (books.busy(0, 0), books.busy(0, 1)) == (True, False)
    for slot in range(1_100):
        books.release(slot)
    assert books.load(0) == (0, 0, 0, 0)
    assert books.free() == [1, 1]


def test_held_blocks_are_whole_whatever_they_weigh():
    """Distinct prompt blocks, the private rest of each prompt, and the larger of its reserve and its outputs."""
    books = made()
    books.book(0, 0, 0, (1, 2), private=3, reserve=2)
    assert books.held(0) == 2 + 3 + 2
    books.book(1, 0, 0, (1, 2, 3), private=1)
    assert books.held(0) == 3 + 4 + 2
    for _ in range(2):
        books.add_output(0, 0)
        assert books.held(0) == 9  # inside the reserve
    books.add_output(0)
    assert books.held(0) == 10  # beyond it
    books.add_output(1, ONE // 2)
    assert books.held(0) == 11
    books.release(0)
    assert books.held(0) == 3 + 1 + 1
    books.release(1)
    assert books.held(0) == 0


def test_what_is_held_has_more_than_64_bits():
    books = made()
    for slot in range(1_100):
        books.book(slot, 0, 0, (), private=TWO_53, reserve=TWO_53)
    assert books.held(0) == 1_100 * 2**54
    assert books.effective(0)[3] == INT64_MAX
    assert books.has_room(0, TWO_53)  # no cap: nothing to compare
    books.configure(0, 1, blocks=TWO_53)
    assert not books.has_room(0, 0)
    for slot in range(1_100):
        books.release(slot)
    assert (books.held(0), books.has_room(0, TWO_53)) == (0, True)


def test_effective_prefill_saturates_and_stays_exact_below():
    books = made((10, None), (None, INF))
    for slot in range(1_023):
        books.book(slot, 0, TWO_53, ())
    assert books.effective(0)[0] == 1_023 * TWO_53
    books.report(0, 0, TWO_53, 0, 0, True)  # less than its own: nothing foreign
    assert books.effective(0)[0] == 1_023 * TWO_53
    books.book(1_023, 0, TWO_53 - 1, ())
    assert books.effective(0)[0] == INT64_MAX
    books.book(1_024, 0, 1, ())
    assert (books.load(0)[0], books.effective(0)[0]) == (2**63, INT64_MAX)
    assert (books.busy(0, 0), books.busy(0, 1), books.free()) == (True, False, [0, 1])
    books.release(1_024)
    books.release(1_023)
    assert books.effective(0)[0] == 1_023 * TWO_53
    assert books.faults() == []


def test_a_slot_that_is_used_again_starts_anew():
    """E22: what an ended booking has left behind, outputs, fractions, a path, is nothing to the next one."""
    books = made(ranks=2)
    books.book(0, 0, 7, (1, 2, 3), private=4, reserve=5)
    books.complete_prefill(0)
    for _ in range(9):
        books.add_output(0, 0)
    books.release(0)
    books.book(0, 1, 3, (4,), private=1)
    assert (books.load(0), books.held(0)) == ((0, 0, 0, 0), 0)
    assert (books.load(1), books.held(1), books.bound_from(0)) == ((3, ONE, 1, 1), 2, 1)
    assert books.release(0) is True
    assert (books.load(1), books.held(1)) == ((0, 0, 0, 0), 0)


def test_nothing_is_deducted_twice():
    """E19: totals equal the sum over entries while they go one by one, the prefill of some done twice before."""
    books = made((0, None))
    for slot in range(6):
        books.book(slot, 0, slot, (0, slot), private=slot)
    for slot in (1, 3, 3, 1):
        books.complete_prefill(slot)
    left = {slot: (0 if slot in (1, 3) else slot) for slot in range(6)}
    for slot in (3, 0, 5, 1, 2, 4):
        books.release(slot)
        del left[slot]
        names = {name for other in left for name in (0, other)}
        assert books.load(0) == (sum(left.values()), len(names) * ONE, len(names), len(left))
        assert books.held(0) == len(names) + sum(left)
        assert books.faults() == []
    assert books.free() == [1]


def test_prefill_load_ends_with_the_prefill():
    """E20: at the first token the tokens are gone and the blocks stay, through the whole decode."""
    books = made((0, None))
    books.book(0, 0, 64, (1, 2, 3, 4))
    assert books.busy(0, 0)
    books.complete_prefill(0)
    assert (books.load(0), books.busy(0, 0), books.free()) == ((0, 4 * ONE, 4, 1), False, [1])
    books.add_output(0)
    assert (books.load(0), books.free()) == ((0, 5 * ONE, 5, 1), [1])


def test_a_booking_without_memory_has_not_happened():
    """The path shares blocks that are bound to their user, and then runs out of memory."""
    books = made((5, None))
    books.book(0, 0, 3, (1, 2, 3), private=1, reserve=1)
    books.add_output(0, ONE // 2)
    assert books.bound_from(0) == 0
    books.dirty()
    path = array.array("Q", range(1, 400_000))

    def reading():
        return (books.load(0), books.held(0), books.effective(0), books.free(), books.pairs_held(), books.booked_on(0),
                [books.weight(0, name) for name in range(1, 6)], books.dirty())

    before = reading()
    with little_memory(12 * 2**20), pytest.raises(MemoryError):
        books.book(1, 0, 3, path)
    assert books.faults() == []
    assert reading() == before
    books.add_output(0, ONE // 4)
    assert [books.weight(0, name) for name in (1, 2, 3)] == [ONE // 4] * 3
    books.book(1, 0, 3, path)
    assert books.load(0)[3] == 2
    books.release(0)
    books.release(1)
    assert (books.load(0), books.held(0), books.pairs_held()) == ((0, 0, 0, 0), 0, (0, 0, 0))


def test_room_that_is_not_to_be_had_changes_nothing():
    books = made((5, None))
    books.book(0, 0, 3, (1,))
    with little_memory(4 * 2**20), pytest.raises(MemoryError):
        books.configure(0, 2, taints=10_000_000)
    with little_memory(4 * 2**20), pytest.raises(MemoryError):
        books.add_rank(10_000_000, 7)
    with little_memory(4 * 2**20), pytest.raises(MemoryError):
        books.book(10_000_000, 0, 3, (1,))
    assert (books.load(0), books.free(), books.free_of(0), books.in_state(0)) == (
        (3, ONE, 1, 1), [1], [1], [1, 0, 0, 0])
    assert books.faults() == []
