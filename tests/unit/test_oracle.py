"""The oracle against the tables it was written from: reference worked examples, DESIGN's arithmetic, ledger rounding.

A wrong oracle would teach the core its own mistakes; everything here was worked out without running it.
"""

from __future__ import annotations

import math
from itertools import count

import pytest
from oracle_ledger import ONE, RankLoad, WyRand
from oracle_queue import JUMP_NS_MAX, Entry, PolicyQueue, jump_ns, sort_key

from kvcore.policy import Arbitration, QueuePolicy

S = 10**9
SEQ = count()


def filled(arbitration: Arbitration, *classes: tuple[int, list[int]]) -> PolicyQueue:
    """A queue of classes (quantum, costs), all shared and first come first served; entries: a1, a2, b1, ..."""
    queue = PolicyQueue([quantum for quantum, _ in classes], arbitration)
    for index, (_, costs) in enumerate(classes):
        for number, cost in enumerate(costs, 1):
            store(queue, index, f"{chr(97 + index)}{number}", cost)
    return queue


def store(queue: PolicyQueue, index: int, name: str, cost: int, strict: int = 0, lane: int | None = None) -> Entry:
    entry = Entry((-strict, next(SEQ)), cost, lane, name)
    queue.push(index, entry)
    return entry


def call(queue: PolicyQueue, blocked: str = "") -> tuple:
    """One call: (name taken, deficits, cursor, carry); blocked: first letters of classes that may not run."""
    taken = queue.pop(lambda entry: entry.payload[0] not in blocked)
    deficits = tuple(c.deficit for c in queue.classes)
    carry = None if queue.carry is None else chr(97 + queue.carry)
    return taken and taken.payload, deficits, chr(97 + queue.cursor), carry


def served(queue: PolicyQueue, calls: int, idle_calls: int = 0) -> str:
    """Classes served, one letter a call, each call followed by idle ones that find everything blocked."""
    letters = ""
    for _ in range(calls):
        letters += call(queue)[0][0]
        for _ in range(idle_calls):
            assert queue.pop(lambda entry: False) is None
    return letters


REF = Arbitration.REFERENCE
EXACT = Arbitration.EXACT

#: name -> (classes, [(blocked classes, out, deficits, cursor, carry)])
TABLES = {
    "W1": (((10, [3] * 5), (10, [10] * 2)), [
        ("", "a1", (7, 0), "b", "a"), ("", "a2", (4, 0), "b", "a"), ("", "a3", (1, 0), "b", "a"),
        ("", "b1", (1, 0), "a", None), ("", "a4", (8, 0), "b", "a"), ("", "a5", (0, 0), "b", None),
        ("", "b2", (0, 0), "a", None)]),
    "W2": (((1, [1] * 3), (3, [1] * 7)), [
        ("", "a1", (0, 0), "b", None), ("", "b1", (0, 2), "a", "b"), ("", "b2", (0, 1), "a", "b"),
        ("", "b3", (0, 0), "a", None), ("", "a2", (0, 0), "b", None), ("", "b4", (0, 2), "a", "b"),
        ("", "b5", (0, 1), "a", "b"), ("", "b6", (0, 0), "a", None)]),
    "W3": (((1000, [7000] * 2), (2000, [9000] * 2)), [
        ("", "b1", (5000, 1000), "a", "b"), ("", "a1", (0, 5000), "b", None), ("", "b2", (2000, 0), "a", None),
        ("", "a2", (0, 0), "b", None)]),
    "W4a": (((4, [10] * 2), (5, [10] * 2)), [
        ("", "b1", (8, 0), "a", None), ("", "a1", (2, 0), "b", "a"), ("", "b2", (10, 0), "a", None),
        ("", "a2", (0, 0), "b", None)]),
    "W4b": (((5, [10] * 2), (5, [10] * 2)), [
        ("", "a1", (0, 10), "b", None), ("", "b1", (0, 0), "a", None), ("", "a2", (0, 10), "b", None),
        ("", "b2", (0, 0), "a", None)]),
    "W5": (((7, [100] * 2), (11, [100] * 2)), [
        ("a", "b1", (0, 10), "a", "b"), ("ab", None, (0, 10), "a", None), ("", "b2", (63, 0), "a", None),
        ("", "a1", (5, 0), "b", "a"), ("", "a2", (0, 0), "b", None)]),
    "W6": (((3, [1] * 9), (1, [1] * 9)), [
        ("", "a1", (2, 0), "b", "a"), ("ab", None, (2, 0), "b", None), ("", "b1", (2, 0), "a", None),
        ("ab", None, (2, 0), "a", None), ("", "a2", (1, 0), "b", "a"), ("ab", None, (1, 0), "b", None),
        ("", "b2", (1, 0), "a", None), ("ab", None, (1, 0), "a", None), ("", "a3", (0, 0), "b", None),
        ("ab", None, (0, 0), "b", None), ("", "b3", (0, 0), "a", None), ("ab", None, (0, 0), "a", None),
        ("", "a4", (2, 0), "b", "a"), ("ab", None, (2, 0), "b", None)]),
    "W11": (((2**53, [2**53] * 2), (1, [2] * 2)), [
        ("", "a1", (0, 0), "b", None), ("", "a2", (0, 1), "b", None), ("", "b1", (0, 0), "a", None),
        ("", "b2", (0, 0), "a", None)]),
    "W13": (((1, [2] * 3), (1, [3] * 3)), [
        ("", "a1", (0, 2), "b", None), ("", "b1", (0, 0), "a", None), ("", "a2", (0, 2), "b", None),
        ("", "b2", (0, 0), "a", None)]),
}


@pytest.mark.parametrize("name", TABLES)
def test_reference_tables(name):
    classes, rows = TABLES[name]
    queue = filled(REF, *classes)
    for blocked, *expected in rows:
        assert call(queue, blocked) == tuple(expected)


def test_w6_uninterrupted():
    assert served(filled(REF, (3, [1] * 20), (1, [1] * 20)), 12) == "aaabaaabaaab"


@pytest.mark.parametrize("idle_calls", [0, 1])
def test_w7_quantum_not_above_cost_is_robust(idle_calls):
    queue = filled(REF, (512, [512] * 20), (128, [512] * 5))
    assert served(queue, 10, idle_calls) == "aaaabaaaab"


def test_w8_head_changes_between_calls():
    queue = filled(REF, (5, [8]), (5, [4] * 3))
    assert call(queue) == ("b1", (5, 1), "a", "b")
    store(queue, 0, "a2", 3, strict=1)
    assert [call(queue) for _ in range(4)] == [
        ("a2", (2, 1), "b", "a"), ("b2", (2, 2), "a", "b"), ("b3", (7, 0), "a", None), ("a1", (0, 0), "b", None)]


def test_w9_carry_looks_at_lanes_again():
    queue = PolicyQueue([10, 1], REF)
    for name, cost, lane in (("first", 5, None), ("blk", 1, 1), ("rdy", 10, 2)):
        queue.push(0, Entry((len(queue.classes[0].entries),), cost, lane, name))
    queue.push(1, Entry((9,), 1, None, "batch"))
    out = []
    for _ in range(4):
        entry = queue.pop(lambda e: e.payload != "blk")
        out.append((entry and entry.payload, queue.classes[0].deficit, queue.classes[1].deficit))
    assert out == [("first", 5, 0), ("batch", 5, 0), ("rdy", 5, 0), (None, 5, 0)]


def test_w10_three_classes():
    queue = filled(REF, (2, [4] * 9), (3, [4] * 9), (5, [4] * 9))
    first = call(queue)
    assert first[:2] == ("c1", (2, 3, 1))
    assert "c" + served(queue, 9) == "cabcbcabcc"


@pytest.mark.parametrize("arbitration", [REF, EXACT])
def test_w12_an_empty_class_keeps_no_credit(arbitration):
    queue = filled(arbitration, (10, [3]))
    assert call(queue)[:2] == ("a1", (0,))
    store(queue, 0, "a2", 3)
    assert queue.classes[0].deficit == 0


def test_w14_cancel_ends_a_burst():
    queue = filled(REF, (10, [4]), (5, [5]))
    second = store(queue, 0, "a2", 4)
    assert call(queue) == ("a1", (6, 0), "b", "a")
    queue.remove(second)
    assert queue.classes[0].deficit == 0
    store(queue, 0, "a3", 4)
    assert [call(queue)[0] for _ in range(2)] == ["b1", "a3"]


@pytest.mark.parametrize("arbitration", [REF, EXACT])
def test_worked_example_of_both_modes(arbitration):
    queue = filled(arbitration, (1000, [7000, 1]), (2000, [9000, 9000]))
    assert call(queue)[:2] == ("b1", (5000, 1000))


def token_share(arbitration: Arbitration, calls: int = 500) -> float:
    """Share of class a of all tokens: equal quanta q, costs 2q and 3q."""
    queue = filled(arbitration, (10, [20] * calls), (10, [30] * calls))
    letters = served(queue, calls)
    a, b = 20 * letters.count("a"), 30 * letters.count("b")
    return a / (a + b)


def test_equal_quanta_unequal_costs():
    assert math.isclose(token_share(REF), 0.4, abs_tol=0.01)
    assert math.isclose(token_share(EXACT), 0.5, abs_tol=0.01)
    assert served(filled(EXACT, (1, [2] * 9), (1, [3] * 9)), 10) == "abaababaab"


@pytest.mark.parametrize("idle_calls", [0, 1, 3])
def test_exact_does_not_notice_idle_calls(idle_calls):
    queue = filled(EXACT, (3, [1] * 30), (1, [1] * 30))
    assert served(queue, 12, idle_calls) == "aaabaaabaaab"


def test_exact_open_visit_survives_and_a_blocked_class_ends_it():
    queue = filled(EXACT, (3, [1] * 9), (1, [1] * 9))
    assert call(queue)[:2] == ("a1", (2, 0))
    assert call(queue, blocked="ab")[:2] == (None, (2, 0))
    assert call(queue, blocked="a")[:3] == ("b1", (2, 0), "b")
    assert [call(queue)[0] for _ in range(6)] == ["a2", "a3", "a4", "a5", "a6", "b2"]


def test_exact_removal_that_empties_moves_the_cursor():
    queue = filled(EXACT, (10, [4]), (10, [4] * 3), (10, [4]))
    second = store(queue, 0, "a2", 4)
    assert call(queue) == ("a1", (6, 0, 0), "a", None)
    queue.remove(second)
    assert (queue.cursor, queue.classes[0].deficit, queue.paid) == (1, 0, False)


def test_naive_loop_is_guarded():
    with pytest.raises(AssertionError, match="naive loop"):
        call(filled(EXACT, (1, [2**53])))


def order(policy: QueuePolicy, *entries: tuple[int, float, int]) -> list[int]:
    """Positions of (arrival seconds, jump, cost) in the order in which they are served."""
    keys = [sort_key(policy, 0, jump, at * S, None, cost, seq) for seq, (at, jump, cost) in enumerate(entries)]
    return sorted(range(len(entries)), key=keys.__getitem__)


def test_key_examples_of_the_reference():
    x, y, z, w = range(4)
    assert order(QueuePolicy.FCFS, (0, 0, 1), (5, 50, 1), (60, 50, 1), (10, 10, 1)) == [y, x, w, z]
    assert order(QueuePolicy.LCFS, (0, 0, 1), (5, 0, 1), (1, 4, 1), (2, 3, 1)) == [y, z, w, x]
    assert order(QueuePolicy.WSPT, (0, 0, 100), (0, 0, 50), (0, 5, 300), (0, 0, 50)) == [y, z, w, x]


@pytest.mark.parametrize("policy", list(QueuePolicy))
def test_strict_priority_is_above_all(policy):
    low = sort_key(policy, 0, math.inf, 0, 1, 1, 0)
    high = sort_key(policy, 1, 0.0, 10 * S, None, 2**53, 1)
    assert high < low


def test_edf_order():
    def key(deadline, jump, arrival, seq):
        return sort_key(QueuePolicy.EDF, 0, jump, arrival, deadline, 1, seq)

    assert key(5, 0.0, 9, 3) < key(6, 9.9, 0, 0) < key(2**62 - 1, 0.0, 0, 1) < key(None, 99.0, 0, 2)
    assert key(5, 1.0, 9, 3) < key(5, 0.0, 0, 0)
    assert key(None, 0.0, 9, 3) < key(None, 0.0, 9, 4)


@pytest.mark.parametrize(("jump", "expected"), [
    (0.0, 0), (-0.0, 0), (-5.0, 0), (math.nan, 0), (math.inf, JUMP_NS_MAX), (-math.inf, 0), (1e300, JUMP_NS_MAX),
    (1.0, S), (4.9e-10, 0), (5e-10, 1), (1.5e-9, 2), (0.25, S // 4), (4_611_686_018.0, 4_611_686_018 * S)])
def test_jump_ns(jump, expected):
    assert jump_ns(jump) == expected


def test_wspt_weight_of_odd_jumps():
    def key(jump):
        return sort_key(QueuePolicy.WSPT, 0, jump, 0, None, 3, 0)[1]

    assert key(math.nan) == key(-1.0) == key(0.0) == -(1.0 / 3.0)
    assert key(math.inf) == -math.inf


def raw(seed: int, count: int) -> list[int]:
    generator = WyRand(seed)
    return [generator.next() for _ in range(count)]


def test_wyrand_vectors():
    assert raw(42, 5) == [0xCA71D87C76983989, 0x7E5BA61552085FC6, 0xCDF101E3BAB88B9F, 0x0A3825AD73267808,
                          0x8AC0ADC15D671C29]


def test_bounded_draw():
    generator = WyRand(42)
    assert [generator.draw(2) for _ in range(5)] == [1, 0, 1, 0, 1]
    generator = WyRand(42)
    assert [generator.draw(10) for _ in range(4)] == [7, 4, 8, 0]


def test_bounded_draw_rejects_the_uneven_part():
    n = 2**63 + 1
    accepted = [r * n >> 64 for r in raw(7, 60) if (r * n) % 2**64 >= 2**63 - 1]
    assert 10 < len(accepted) < 50
    generator = WyRand(7)
    assert [generator.draw(n) for _ in range(10)] == accepted[:10]


def test_active_blocks_round_half_up():
    load = RankLoad()
    booking = load.book(0, (1,))
    assert load.active_blocks == 1
    load.add_output(booking, 0.5)
    assert load.active_blocks == 1
    load.add_output(booking, 0.25)
    assert [load.live[1].weight, *booking.outputs] == [ONE // 4] * 3
    assert load.active_blocks == 1
    load.add_output(booking, 0.125)
    assert load.active_blocks == 1
    load.add_output(booking, 0.124)
    assert load.active_blocks == 1
    load.add_output(booking, 0.0)
    assert load.active_blocks == 0


def test_half_a_block_counts_and_less_does_not():
    load = RankLoad()
    booking = load.book(0, ())
    load.add_output(booking, 0.5)
    assert load.active_blocks == 1
    booking.outputs = [ONE // 2 - 1]
    assert load.active_blocks == 0


@pytest.mark.parametrize(("fraction", "weight"), [(0.0, 0), (1.0, ONE), (1 / 3, 349525), (1e-9, 0), (0.5 / ONE, 1)])
def test_fraction_is_stored_in_fixed_point(fraction, weight):
    load = RankLoad()
    booking = load.book(0, ())
    load.add_output(booking, fraction)
    assert booking.outputs == [weight]


def test_decay_spares_shared_blocks_and_is_sticky():
    load = RankLoad()
    first = load.book(10, (1, 2))
    second = load.book(5, (1, 3))
    load.add_output(first, 0.5)
    assert {name: block.weight for name, block in load.live.items()} == {1: ONE, 2: ONE // 2, 3: ONE}
    third = load.book(1, (1, 2))
    assert load.live[2].weight == ONE // 2
    assert load.prefill_tokens == 16
    for booking in (first, second, third):
        load.release(booking)
    assert (load.live, load.active_blocks, load.prefill_tokens, load.requests) == ({}, 0, 0, 0)


def test_a_block_that_left_comes_back_whole():
    load = RankLoad()
    booking = load.book(0, (1,))
    load.add_output(booking, 0.0)
    load.release(booking)
    load.book(0, (1,))
    assert load.live[1].weight == ONE
