"""Ledger, audit: a recount finds every number that is not what the bookings make it."""

from __future__ import annotations

import pytest
from probe_build import load

Books = load("_probe_ledger").Books

HALF = 2**19


def made():
    """Two ranks, decay, a shared prefix, bound suffixes, a foreign load, something foreseen."""
    books = Books([(5, None), (None, 0.5)], True)
    for rank, taints in ((0, 1), (1, 0)):
        books.add_rank(rank, 100 + rank)
        books.configure(rank, 10, taints, 50, 5, 1000)
    books.book(0, 0, 30, (1, 2, 3), private=1, reserve=2)
    books.book(1, 0, 40, (1, 2, 4), private=1)
    books.book(2, 1, 9, (1,))
    books.book(3, 1, 0, (9, 9))
    books.add_output(0, HALF)
    books.add_output(1)
    books.add_output(2, 0)
    books.report(0, 0, 90, 9, 9, True)
    books.set_state(1, 1)
    books.advance(3)
    return books


def test_there_are_no_faults():
    assert made().faults() == []
    assert Books([]).faults() == []


@pytest.mark.parametrize(
    ("name", "row", "by", "says"),
    [
        ("prefill", 0, 1, "rank 0: 71 prefill tokens, bookings have 70"),
        ("weight", 1, -1, "rank 1: weight 1048575, bookings have 1048576"),
        ("held", 0, 1, "rank 0: 10 blocks held, bookings have 9"),
        ("requests", 1, 1, "rank 1: 3 requests, 2 bookings"),
        ("anchor", 0, 4, "rank 0: the front of the FIFO is not what decays"),
        ("front", 0, 1, "rank 0: the front of the FIFO is not what decays"),
        ("fifo_last", 1, 1, "rank 1: FIFO [2], bookings say [2]"),
        ("fifo_prev", 1, -1, "booking 1: not linked in the FIFO of rank 0"),
        ("prefilling", 0, 1, "rank 0: FIFO [0, 1], bookings say [1]"),
        ("prev", 2, -1, "booking 2: not linked as one of rank 1"),
        ("free", 0, 1, "threshold pair 0: 1 free ranks counted, 0 are"),
        ("free_of", 3, 1, "taint set 1, threshold pair 1: 1 free ranks counted, 0 are"),
        ("in_state", 0, 1, "2 ranks in state 0 counted, 1 are"),
        ("in_state_of", 1, -1, "taint set 0: not 1 ranks in state 1"),
        ("bound_from", 0, -1, "booking 0: block 1 is bound to it and does not say so"),
        ("bound_from", 0, 1, "rank 0: block 0x3 is bound to a booking that does not know"),
        ("owner", 2, 1, "booking 0: block 2 is bound to it and does not say so"),
        ("at", 2, -1, "booking 0: block 2 is bound to it and does not say so"),
        ("count", 0, 1, "rank 0: block 0x1 is not counted 2 times"),
        ("dirty", 0, 1, "dirty ranks [0, 1] listed, [1] marked"),
        ("crossing", 0, 1, "rank 1: crossing at 4000000 ns, foreseen another time"),
        ("crossing_pos", 1, 1, "rank 1: crossing at 4000000 ns, foreseen: False"),
        ("calm", 2, 1, "rank 1: crossing at 3000000 ns, foreseen another time"),
    ])
def test_a_fault_is_found(name, row, by, says):
    books = made()
    books.spoil(name, row, by)
    assert says in books.faults()
