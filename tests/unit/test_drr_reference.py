"""Arbitration mode `reference`: the worked examples W1 to W14 of policy-queue 4.4, call by call.

The reference keeps a cursor, always behind the class that was served last, and a carry marker. DESIGN D5 keeps one
cursor: on the class while its visit is open (the carry), behind it otherwise. `Ring.call` takes the reference's pair
and checks D5's.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load
from stories import profile

from kvcore.policy import Arbitration

Queue = load("_probe_queue").Queue

ALL = object()
TWO_53 = 2**53


class Ring:
    """Classes by letter; entries by name, the first letter of which (in upper case) is the class."""

    def __init__(self, arbitration=Arbitration.REFERENCE, **quanta):
        self.classes = list(quanta)
        self.queue = Queue(profile(*quanta.values(), arbitration=arbitration))
        self.names: list[str] = []

    def store(self, *names, cost, strict=0, rank=None):
        for name in names:
            seq = len(self.names)
            self.names.append(name)
            self.queue.push(seq, self.classes.index(name[0].upper()), (9 - strict, seq, 0, seq), rank, cost=cost)
        return self

    def cancel(self, name):
        self.queue.remove(self.names.index(name))

    def pop(self, passing=ALL):
        """passing: classes or names that may run. Every verdict is asked anew, as the reference does."""
        def test(class_index, item):
            return passing is ALL or self.classes[class_index] in passing or self.names[item] in passing

        for index in range(len(self.classes)):
            self.queue.lanes(index).recheck_all()
        item = self.queue.pop(test)
        return None if item is None else self.names[item]

    def call(self, out, deficits, cur, carry, passing=ALL):
        """One row of a table: what came out, deficits, cursor and carry after it."""
        assert self.pop(passing) == out
        assert tuple(self.queue.deficits()) == deficits
        assert self.classes[self.queue.cursor] == (carry or cur)
        assert (self.queue.visit is not None) == (carry is not None)

    def served(self, calls: int, passing=ALL) -> str:
        return " ".join(self.pop(passing)[0] for _ in range(calls))


def numbered(letter: str, count: int) -> list[str]:
    return [f"{letter}{i}" for i in range(1, count + 1)]


def test_w1_a_burst_within_one_grant():
    ring = Ring(A=10, B=10).store(*numbered("a", 5), cost=3).store("b1", "b2", cost=10)
    ring.call("a1", (7, 0), "B", "A")
    ring.call("a2", (4, 0), "B", "A")
    ring.call("a3", (1, 0), "B", "A")
    ring.call("b1", (1, 0), "A", None)
    ring.call("a4", (8, 0), "B", "A")
    ring.call("a5", (0, 0), "B", None)
    ring.call("b2", (0, 0), "A", None)
    assert ring.pop() is None


def test_w2_an_exact_ratio():
    ring = Ring(A=1, B=3).store(*numbered("a", 9), cost=1).store(*numbered("b", 27), cost=1)
    for number in range(1, 6):
        b = 3 * (number - 1)
        ring.call(f"a{number}", (0, 0), "B", None)
        ring.call(f"b{b + 1}", (0, 2), "A", "B")
        ring.call(f"b{b + 2}", (0, 1), "A", "B")
        ring.call(f"b{b + 3}", (0, 0), "A", None)


def test_w3_bulk_credit():
    ring = Ring(S=1000, L=2000).store("s1", "s2", cost=7000).store("l1", "l2", cost=9000)
    ring.call("l1", (5000, 1000), "S", "L")
    ring.call("s1", (0, 5000), "L", None)
    ring.call("l2", (2000, 0), "S", None)
    ring.call("s2", (0, 0), "L", None)


def test_w4a_bulk_ties():
    ring = Ring(A=4, B=5).store("a1", "a2", cost=10).store("b1", "b2", cost=10)
    ring.call("b1", (8, 0), "A", None)
    ring.call("a1", (2, 0), "B", "A")
    ring.call("b2", (10, 0), "A", None)
    ring.call("a2", (0, 0), "B", None)


def test_w4b_bulk_ties():
    ring = Ring(A=5, B=5).store("a1", "a2", cost=10).store("b1", "b2", cost=10)
    ring.call("a1", (0, 10), "B", None)
    ring.call("b1", (0, 0), "A", None)
    ring.call("a2", (0, 10), "B", None)
    ring.call("b2", (0, 0), "A", None)


def test_w5_a_blocked_class():
    ring = Ring(A=7, B=11).store("a1", "a2", cost=100).store("b1", "b2", cost=100)
    ring.call("b1", (0, 10), "A", "B", passing="B")
    ring.call(None, (0, 10), "A", None, passing="")
    ring.call("b2", (63, 0), "A", None)
    ring.call("a1", (5, 0), "B", "A")
    ring.call("a2", (0, 0), "B", None)


def test_w6_a_failed_call_changes_the_order():
    def deep(arbitration=Arbitration.REFERENCE):
        return Ring(arbitration, A=3, B=1).store(*numbered("a", 40), cost=1).store(*numbered("b", 40), cost=1)

    assert deep().served(12) == "a a a b a a a b a a a b"
    ring = deep()
    for out, deficits, carry in (
            ("a1", (2, 0), "A"), ("b1", (2, 0), None), ("a2", (1, 0), "A"), ("b2", (1, 0), None), ("a3", (0, 0), None),
            ("b3", (0, 0), None), ("a4", (2, 0), "A")):
        behind = "B" if out[0] == "a" else "A"
        ring.call(out, deficits, behind, carry)
        ring.call(None, deficits, behind, None, passing="")
    ring = deep()
    pairs = []
    for _ in range(4):
        pairs.append(ring.served(2))
        assert ring.pop("") is None
    assert pairs == ["a a", "b a", "b a", "b a"]
    ring, out = deep(Arbitration.EXACT), []
    for _ in range(12):
        out.append(ring.served(1))
        assert ring.pop("") is None
    assert out == list("aaabaaabaaab")


def test_w7_quanta_below_the_cost_are_robust():
    ring = Ring(P=512, R=128).store(*numbered("p", 20), cost=512).store(*numbered("r", 20), cost=512)
    for turn in range(2):
        for number, saved in enumerate((0, 128, 256, 384), 1):
            ring.call(f"p{4 * turn + number}", (0, saved), "R", None)
            ring.call(None, (0, saved), "R", None, passing="")
        ring.call(f"r{turn + 1}", (0, 0), "P", None)
        ring.call(None, (0, 0), "P", None, passing="")


def test_w8_the_head_changes_between_calls():
    ring = Ring(A=5, B=5).store("a1", cost=8).store("b1", "b2", "b3", cost=4)
    ring.call("b1", (5, 1), "A", "B")
    ring.store("a2", cost=3, strict=1)
    ring.call("a2", (2, 1), "B", "A")
    ring.call("b2", (2, 2), "A", "B")
    ring.call("b3", (7, 0), "A", None)
    ring.call("a1", (0, 0), "B", None)


def test_w9_the_carry_polls_the_lanes_again():
    ring = Ring(A=10, B=1)
    ring.store("a-first", cost=5).store("a-blocked", cost=1, rank=1).store("a-ready", cost=10, rank=2)
    ring.store("batch", cost=1)
    passing = ("a-first", "a-ready", "batch")
    ring.call("a-first", (5, 0), "B", "A", passing=passing)
    ring.call("batch", (5, 0), "A", None, passing=passing)
    ring.call("a-ready", (5, 0), "B", "A", passing=passing)
    ring.call(None, (5, 0), "B", None, passing=passing)


def test_w10_three_classes():
    ring = Ring(A=2, B=3, C=5)
    for letter in "abc":
        ring.store(*numbered(letter, 9), cost=4)
    ring.call("c1", (2, 3, 1), "A", "C")
    assert ring.served(9) == "a b c b c a b c c"


def test_w11_the_largest_quantum_and_cost():
    """2^53 where the reference has 2^64 - 1 (DESIGN D20)."""
    ring = Ring(A=TWO_53, B=1).store("a1", "a2", cost=TWO_53).store("b1", "b2", cost=2)
    ring.call("a1", (0, 0), "B", None)
    ring.call("a2", (0, 1), "B", None)
    ring.call("b1", (0, 0), "A", None)
    ring.call("b2", (0, 0), "A", None)


def test_w12_empty_resets_and_a_refill_starts_from_zero():
    ring = Ring(A=10).store("a1", cost=3)
    ring.call("a1", (0,), "A", None)
    ring.store("a2", cost=3)
    assert ring.queue.deficits() == [0]
    ring = Ring(A=10, B=7).store("a1", cost=3).store("b1", "b2", cost=7)
    ring.call("a1", (0, 0), "B", None)
    ring.store("a2", cost=13)
    ring.call("b1", (0, 0), "A", None)
    ring.call("b2", (10, 0), "A", None)  # the 7 of the first grant would have paid a2 with the next


def test_w13_bulk_credit_over_grants():
    def deep(arbitration=Arbitration.REFERENCE):
        return Ring(arbitration, A=1, B=1).store(*numbered("a", 9), cost=2).store(*numbered("b", 9), cost=3)

    ring = deep()
    for number in (1, 2, 3):
        ring.call(f"a{number}", (0, 2), "B", None)
        ring.call(f"b{number}", (0, 0), "A", None)
    assert deep(Arbitration.EXACT).served(12) == "a b a a b a b a a b a b"


def test_w14_a_cancel_ends_a_carried_burst():
    ring = Ring(A=10, B=5).store("a1", "a2", cost=4).store("b1", cost=5)
    ring.call("a1", (6, 0), "B", "A")
    ring.cancel("a2")
    assert ring.queue.deficits() == [0, 0]
    ring.store("a3", cost=4)
    ring.call("b1", (0, 0), "A", None)
    ring.call("a3", (0, 0), "B", None)


def test_shares_of_tokens_with_equal_quanta():
    """DESIGN D5: costs 2q and 3q are served 40:60 by the reference and 50:50 by `exact`."""
    shares = {}
    for arbitration in Arbitration:
        ring = Ring(arbitration, A=10, B=10).store(*numbered("a", 700), cost=20).store(*numbered("b", 700), cost=30)
        out = ring.served(1_000)
        shares[arbitration] = out.count("a") * 20 / (out.count("a") * 20 + out.count("b") * 30)
    assert shares[Arbitration.REFERENCE] == pytest.approx(0.4, abs=0.001)
    assert shares[Arbitration.EXACT] == pytest.approx(0.5, abs=0.001)


def test_cases_13_15_and_17_of_the_reference_tests():
    ring = Ring(S=1, F=3).store(*numbered("s", 6), cost=1).store(*numbered("f", 6), cost=1)
    assert ring.served(6) == "s f f f s f"
    assert ring.queue.deficits()[1] == 2
    ring.call("s3", (0, 2), "F", None, passing="S")
    ring = Ring(S=1, F=3).store(*numbered("s", 20), cost=1).store(*numbered("f", 60), cost=1)
    assert ring.served(80) == " ".join(["s f f f"] * 20)
    ring = Ring(A=4, B=9).store("a1", cost=101).store("b1", cost=1)
    assert ring.pop("A") == "a1"
    assert ring.queue.size == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 30))
def test_case_16_failed_calls_save_nothing(costs, polls):
    ring = Ring(A=3, B=5)
    for number, cost in enumerate(costs):
        ring.store(f"a{number}", f"b{number}", cost=cost)
    for _ in range(polls):
        ring.call(None, (0, 0), "A", None, passing="")
