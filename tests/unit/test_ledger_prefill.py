"""The reference's own tests of prefill load, with their numbers: capacity, section 6, `prefill_tracker`.

Where kvcore decides otherwise (DESIGN D9) the test says so with both numbers. What runs through all of them:

- the rate is one of the rank, so a rank has durations for all its prefills or for none, and none is zero;
- only the front decays: what it has run beyond its own end is not taken off the next one;
- there is no modelled time in milliseconds: nothing ever routed by it. Tokens at the same instants stand for it.

Rate 10, unless said: 100 t take 10 s, 60 t 6 s, 40 t 4 s.
"""

from __future__ import annotations

import pytest
from probe_build import load

Books = load("_probe_ledger").Books

SECOND = 10**9
#: As good as no time: 100 tokens take a nanosecond.
AT_ONCE = 2**53


def made(rate: int = 0):
    books = Books([], True)
    books.add_rank(0, 100)
    books.configure(0, 1, rate=rate)
    return books


def tokens_at(books, *seconds) -> list[int]:
    found = []
    for second in seconds:
        books.advance(second * SECOND)
        found.append(books.effective(0)[0])
    assert books.faults() == []
    return found


def test_1_snapshot_without_anchor_reports_zero_active_tokens():
    assert tokens_at(made(10), 0, 5) == [0, 0]


def test_2_modeled_remaining_snapshot_without_anchor_reports_zero():
    """0 ms there; here: nothing to foresee."""
    books = made(10)
    assert (books.fifo(0), books.next_crossing_ns()) == ([], None)


def test_3_modeled_remaining_no_aic_prefill_returns_missing_duration_error():
    """An error there; here a rank of unknown rate does not decay: 100 t for ever."""
    books = made(0)
    books.book(0, 0, 100, ())
    assert tokens_at(books, 0, 10, 1000) == [100, 100, 100]


def test_4_modeled_remaining_mixed_return_error():
    """100 t/10 s + 60 t/none is an error there; here the rate is the rank's: without it nothing decays, and once
    it is known all do, the front since its own begin: 160 t at 4, then 120 t."""
    books = made(0)
    books.book(0, 0, 100, ())
    books.book(1, 0, 60, ())
    assert tokens_at(books, 4) == [160]
    books.configure(0, 1, rate=10)
    assert tokens_at(books, 4, 10) == [120, 60]


def test_5_modeled_remaining_single_prefill_clips_at_zero():
    """0 ms at 15 there; here 0 t."""
    books = made(10)
    books.book(0, 0, 100, ())
    assert tokens_at(books, 9, 10, 15) == [10, 0, 0]


def test_6_modeled_remaining_subtracts_elapsed():
    """10 s@0 + 6 s@2: 14 000 ms at 2, 4 000 at 12, 0 at 17 there. Here 140 t, and no spill: 60 t at 12 and 17."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.advance(2 * SECOND)
    books.book(1, 0, 60, ())
    assert tokens_at(books, 2, 12, 17) == [140, 60, 60]


def test_7_modeled_remaining_zero_duration_prefill_contributes_no_time():
    """0 s + 6 s: 6 000 ms, 3 000 at 3, 0 at 7 there. Here a duration is at least 1 ns, after which only the other
    one counts, whose turn begins when the front is completed."""
    books = made(AT_ONCE)
    books.book(0, 0, 100, ())
    books.book(1, 0, 60, ())
    assert tokens_at(books, 0) == [160]
    books.advance(1)
    assert books.effective(0)[0] == 60
    books.configure(0, 1, rate=10)
    books.complete_prefill(0)
    assert tokens_at(books, 3, 7) == [31, 0]  # the anchor is at 1 ns: 29.99... t are done at 3 s


def test_8_snapshot_only_decays_oldest_prefill():
    """100 t/10 s, 60 t/6 s@2: 140 at 2, 110 at 5, 40 at 12 there (it spills). Here 140, 110 and 60."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.advance(2 * SECOND)
    books.book(1, 0, 60, ())
    assert tokens_at(books, 2, 5, 12) == [140, 110, 60]


def test_9_active_tokens_with_unmodeled_prefills_use_anchor_only_decay():
    """100 t/10 s + 60 t/none, 60 at 12 there; here 60 too, though the second has a duration: one rule, not two."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.book(1, 0, 60, ())
    assert tokens_at(books, 12) == [60]


def test_10_active_tokens_zero_duration_anchor_only_completes_anchor():
    """100 t/0 s + 60 t/6 s: 60 at 0 and at 3 there; here 160 at 0, 60 a nanosecond later and at 3."""
    books = made(AT_ONCE)
    books.book(0, 0, 100, ())
    books.book(1, 0, 60, ())
    assert books.effective(0)[0] == 160
    books.advance(1)
    assert books.effective(0)[0] == 60
    assert tokens_at(books, 3) == [60]


def test_11_nonfront_modeled_removal_preserves_time_and_token_continuity():
    """Completed at 5: anchor 4, 90 t before and after."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    assert tokens_at(books, 5) == [90]
    books.complete_prefill(1)
    assert (tokens_at(books, 5), books.anchor_ns(0)) == ([90], 4 * SECOND)


def test_12_nonfront_modeled_removal_caps_anchor_shift_at_removal_time():
    """Completed at 2: anchor 2, 100 t, a second later 90. Cancelled: the same there; no credit here: 80, 70."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(2 * SECOND)
    books.release(1, True)
    assert (books.anchor_ns(0), tokens_at(books, 2, 3)) == (2 * SECOND, [100, 90])
    books = made(10)
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(2 * SECOND)
    books.release(1, False)
    assert (books.anchor_ns(0), tokens_at(books, 2, 3)) == (0, [80, 70])


def test_13_nonfront_unmodeled_removal_does_not_shift_anchor():
    """100/10 + 40/none removed at 5: anchor 0, 50 t. Here so when it is cancelled."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(5 * SECOND)
    books.release(1, False)
    assert (books.anchor_ns(0), tokens_at(books, 5)) == (0, [50])


@pytest.mark.parametrize("completed", [True, False])
def test_14_removing_anchored_prefill_reanchors_front_and_resets_decay(completed):
    """100/10 + 40/8, the first removed at 3: 40 t at 3, 30 at 5 (and 6 000 ms there). The rate falls with it."""
    books = made(10)
    books.book(0, 0, 100, ())
    books.book(1, 0, 40, ())
    books.advance(3 * SECOND)
    books.release(0, completed)
    books.configure(0, 1, rate=5)
    assert (books.anchor_ns(0), tokens_at(books, 3, 5)) == (3 * SECOND, [40, 30])


def test_15_removing_nonfront_modeled_prefill_shifts_existing_anchor():
    """30/6 + 20/4, the second completed at 2: anchor 2, 30 t; 20 at 4."""
    books = made(5)
    books.book(0, 0, 30, ())
    books.book(1, 0, 20, ())
    books.advance(2 * SECOND)
    books.complete_prefill(1)
    assert (books.anchor_ns(0), tokens_at(books, 2, 4)) == (2 * SECOND, [30, 20])


def test_16_duplicate_cleanup_is_idempotent():
    """50 + 30, each removed twice: 30, then 0; the second time there is none to remove."""
    books = made(10)
    books.book(0, 0, 50, ())
    books.book(1, 0, 30, ())
    assert [books.complete_prefill(0), books.complete_prefill(0)] == [True, False]
    assert (books.load(0)[0], books.fifo(0)) == (30, [1])
    assert [books.complete_prefill(1), books.complete_prefill(1)] == [True, False]
    assert (books.load(0)[0], books.fifo(0)) == (0, [])
    assert [books.release(0), books.release(1)] == [False, False]
    assert books.load(0) == (0, 0, 0, 0)
