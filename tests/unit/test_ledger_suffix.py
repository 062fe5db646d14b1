"""Ledger, fractions: they go up from the tail to the first shared block, and cost one step when they come again.

That binding cannot be told from walking is what test_ledger_model proves; here: what is bound to whom, and that it is
not walked over and over.
"""

from __future__ import annotations

from probe_build import load

Books = load("_probe_ledger").Books

ONE = 2**20
HALF = ONE // 2


def made(*paths):
    books = Books([])
    books.add_rank(0, 100)
    books.configure(0, 1)
    for slot, path in enumerate(paths):
        books.book(slot, 0, 0, path)
    return books


def weights(books, *names):
    assert books.faults() == []
    return [None if (weight := books.weight(0, name)) is None else weight / ONE for name in names]


def test_without_a_fraction_nothing_is_bound():
    books = made((1, 2, 3))
    books.add_output(0)
    assert (books.bound_from(0), books.owner(0, 3)) == (3, None)


def test_a_fraction_binds_all_that_nobody_shares():
    books = made((1, 2, 3, 4), (1, 2))
    books.add_output(0, HALF)
    assert books.bound_from(0) == 2
    assert [books.owner(0, name) for name in (1, 2, 3, 4)] == [None, None, 0, 0]
    assert weights(books, 1, 2, 3, 4) == [1, 1, 0.5, 0.5]


def test_blocks_that_come_to_be_unshared_follow_at_the_next_fraction():
    books = made((1, 2, 3, 4), (1, 2), (1,))
    books.add_output(0, HALF)
    books.release(1)
    assert weights(books, 1, 2, 3, 4) == [1, 1, 0.5, 0.5]
    books.add_output(0)
    assert weights(books, 1, 2, 3, 4) == [1, 1, 0.5, 0.5]
    books.add_output(0, HALF // 2)
    assert (books.bound_from(0), weights(books, 1, 2, 3, 4)) == (1, [1, 0.25, 0.25, 0.25])
    books.release(2)
    books.add_output(0, 0)
    assert (books.bound_from(0), weights(books, 1, 2, 3, 4)) == (0, [0, 0, 0, 0])


def test_whoever_shares_a_block_unbinds_it_and_all_before_it():
    books = made((1, 2, 3, 4))
    books.add_output(0, HALF)
    books.book(1, 0, 0, (1, 2))
    assert (books.bound_from(0), weights(books, 1, 2, 3, 4)) == (2, [0.5] * 4)
    books.add_output(0, 0)
    assert weights(books, 1, 2, 3, 4) == [0.5, 0.5, 0, 0]
    books.add_output(1, ONE)  # its tail is shared: nothing is its own
    assert (books.bound_from(1), weights(books, 1, 2, 3, 4)) == (2, [0.5, 0.5, 0, 0])


def test_what_was_shared_may_be_bound_to_the_one_who_stays():
    books = made((1, 2, 3), (1, 2, 3))
    books.add_output(0, HALF)
    assert books.bound_from(0) == 3
    books.release(0)
    assert weights(books, 1, 2, 3) == [1, 1, 1]
    books.add_output(1, HALF)
    assert [books.owner(0, name) for name in (1, 2, 3)] == [1, 1, 1]
    books.book(0, 0, 0, (1, 2, 3))
    books.release(1)
    assert ([books.owner(0, name) for name in (1, 2, 3)], weights(books, 1, 2, 3)) == ([None] * 3, [0.5] * 3)
    books.add_output(0, 0)
    assert weights(books, 1, 2, 3) == [0, 0, 0]


def test_a_path_that_is_not_monotone_stops_at_its_last_shared_block():
    """Block 2 is shared, 1 before it is not: the walk ends at 2 (DESIGN D9), so 1 keeps its weight."""
    books = made((1, 2, 3), (2,))
    books.add_output(0, HALF)
    assert weights(books, 1, 2, 3) == [1, 1, 0.5]
    books.book(2, 0, 0, (3,))
    assert books.bound_from(0) == 3
    books.add_output(0, 0)
    assert weights(books, 1, 2, 3) == [1, 1, 0.5]
    books.release(1)
    books.release(2)
    books.add_output(0, 0)
    assert weights(books, 1, 2, 3) == [0, 0, 0]


def test_a_block_named_twice_in_a_path_is_never_its_own():
    books = made((1, 2, 1, 3))
    books.add_output(0, HALF)
    assert (books.bound_from(0), weights(books, 1, 2, 3)) == (3, [1, 1, 0.5])
    books.release(0)
    assert books.load(0) == (0, 0, 0, 0)


def test_a_sharer_that_names_bound_blocks_in_any_order():
    books = made((1, 2, 3, 4))
    books.add_output(0, HALF)
    books.book(1, 0, 0, (4, 1, 4, 2))
    assert ([books.owner(0, name) for name in (1, 2, 3, 4)], books.bound_from(0)) == ([None] * 4, 4)
    assert weights(books, 1, 2, 3, 4) == [0.5] * 4
    books.release(0)
    assert weights(books, 1, 2, 3, 4) == [0.5, 0.5, None, 0.5]
    books.release(1)
    assert books.load(0) == (0, 0, 0, 0)


def test_ranks_bind_apart():
    books = made((1, 2))
    books.add_rank(1, 101)
    books.configure(1, 1)
    books.book(1, 1, 0, (1, 2))
    books.add_output(0, HALF)
    assert (books.load(0)[1], books.load(1)[1]) == (HALF * 3, 2 * ONE)
    assert (books.weight(0, 1), books.weight(1, 1)) == (HALF, ONE)


def test_a_long_answer_to_a_long_prompt_is_cheap():
    """100,000 fractions over 100,000 blocks: walked, that would be 10^10 look-ups."""
    books = made(range(100_000), range(50_000))
    for step in range(100_000):
        books.add_output(0, step)
    assert books.bound_from(0) == 50_000
    assert books.load(0)[1] == 50_000 * ONE + 50_000 * 99_999 + 100_000 * 99_999
    books.release(1)
    books.release(0)
    assert (books.load(0), books.pairs_held()) == ((0, 0, 0, 0), (0, 0, 0))
