"""Deficit round robin in mode `exact` against the loop that grants one quantum at a time; limits; retry hints.

Mode `reference` has its tables in test_drr_reference; here it runs against the oracle's version of its steps.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_queue import Entry, PolicyQueue
from probe_build import load
from stories import profile

from kvcore.policy import Arbitration

Queue = load("_probe_queue").Queue

TWO_53 = 2**53
MS, HOUR = 1_000_000, 3_600_000_000_000
#: The widest test of this file gets more examples than the profile gives to the others.
SHARE = 4


def made(*quanta: int, **keys):
    """Classes 0, 1, ... with these quanta."""
    return Queue(profile(*quanta, **keys))


def fill(queue, *costs_by_class) -> None:
    """Items numbered through, class after class."""
    item = 0
    for class_index, costs in enumerate(costs_by_class):
        for cost in costs:
            queue.push(item, class_index, (0, item, 0, item), cost=cost)
            item += 1


def anyone(class_index, item):
    return True


def nobody(class_index, item):
    return False


def recheck(queue, classes: int) -> None:
    for index in range(classes):
        queue.lanes(index).recheck_all()


def state(queue):
    return queue.deficits(), queue.cursor, queue.visit, queue.size


def test_the_worked_example():
    """DESIGN D5: four rounds at once, the winner keeps the rest of its credit."""
    for arbitration in Arbitration:
        queue = made(1000, 2000, arbitration=arbitration)
        fill(queue, [7000], [9000, 9000])
        assert queue.pop(anyone) == 1
        assert state(queue) == ([5000, 1000], 1, "paid", 2)


def test_those_behind_the_winner_get_one_round_less():
    """All need three rounds; the first in the ring wins, it and those before it had their visit, the others had not."""
    queue = made(5, 5, 5)
    fill(queue, [15], [15], [15])
    assert queue.pop(anyone) == 0
    assert queue.deficits() == [0, 10, 10]  # emptied: its zero is a reset
    queue = made(5, 5, 5)
    fill(queue, [16, 1], [15], [15])
    assert queue.pop(anyone) == 2
    assert queue.deficits() == [15, 0, 10]


def test_a_visit_is_paid_once_and_goes_on_while_it_can_pay():
    queue = made(10, 10)
    fill(queue, [3] * 5, [10])
    expected = [(0, [7, 0], "paid"), (1, [4, 0], "paid"), (2, [1, 0], "paid"), (5, [1, 0], None), (3, [8, 0], "paid")]
    for item, deficits, visit in expected:
        assert queue.pop(anyone) == item
        assert (queue.deficits(), queue.visit) == (deficits, visit)


def test_an_unpaid_visit_is_paid_when_its_credit_ends():
    """Credit left over serves the head first; only then comes the quantum of the visit, and the visit goes on."""
    queue = made(10, 10)
    fill(queue, [15, 5, 5, 9], [10, 10])
    out = []
    for _ in range(6):
        item = queue.pop(anyone)
        out.append((item, queue.deficits(), queue.visit))
    assert out == [
        (4, [10, 0], "paid"), (0, [5, 0], "paid"), (1, [0, 0], "paid"), (5, [0, 0], None), (2, [5, 0], "paid"),
        (3, [0, 0], None)]
    queue = made(10, 10)
    fill(queue, [15, 2, 2, 4, 1], [10, 10, 10])
    assert [queue.pop(anyone) for _ in range(3)] == [5, 0, 1]
    assert (queue.deficits(), queue.visit) == ([3, 0], "paid")
    assert queue.pop(lambda _, item: item != 2) == 6  # class 0 has nobody: its visit is over
    recheck(queue, 2)
    assert (queue.pop(anyone), queue.deficits(), queue.visit) == (2, [1, 0], "unpaid")
    assert (queue.pop(anyone), queue.deficits(), queue.visit) == (3, [7, 0], "paid")


def test_the_largest_costs_with_the_smallest_quanta():
    queue = made(1, 1)
    fill(queue, [TWO_53, 1], [TWO_53 - 1, 1])
    assert queue.pop(anyone) == 2
    assert queue.deficits() == [TWO_53 - 1, 0]
    assert queue.pop(anyone) == 0
    assert (queue.deficits(), queue.cursor, queue.visit) == ([0, 0], 0, "paid")
    assert [queue.pop(anyone), queue.pop(anyone), queue.pop(anyone)] == [3, 1, None]


@pytest.mark.parametrize("arbitration", list(Arbitration))
@pytest.mark.parametrize("classes", [1, 2, 7, 50])
@pytest.mark.parametrize("cost", [1, 1000, TWO_53])
def test_a_pop_looks_at_no_more_than_two_rounds_of_classes(arbitration, classes, cost):
    queue = made(*[1] * classes, arbitration=arbitration)
    fill(queue, *[[max(1, cost - i), cost, 1] for i in range(classes)])
    for turn in range(3 * classes):
        before = queue.visits
        queue.pop(anyone if turn % 5 else lambda class_index, _: class_index % 2 == 0)
        assert queue.visits - before <= 2 * classes + 1
        recheck(queue, classes)
    assert queue.size < 2 * classes


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_a_pop_moves_logarithmically_many_nodes(count):
    queue = made(3, 5)
    for item in range(count):
        queue.push(item, item % 2, (0, item * 7919 % count, 0, item), cost=item % 11 + 1)
    bound = math.log2(count) + 4
    for _ in range(min(count, 1_000)):
        before = queue.lanes(0).moves + queue.lanes(1).moves
        queue.pop(anyone)
        assert queue.lanes(0).moves + queue.lanes(1).moves - before <= bound


def test_how_often_one_polls_is_unobservable():
    """Of mode `exact` only; also where a visit is open."""
    queue, twin = made(10, 10, 3), made(10, 10, 3)
    for one in (queue, twin):
        fill(one, [3] * 9, [4] * 9, [8] * 3)
    for _ in range(21):
        for _ in range(3):
            before = state(queue)
            assert queue.pop(nobody) is None
            assert state(queue) == before
            recheck(queue, 3)
        assert queue.pop(anyone) == twin.pop(anyone)
        assert state(queue) == state(twin)


def test_ten_thousand_failed_polls_save_no_credit():
    queue = made(3, 5)
    fill(queue, [9], [9])
    for _ in range(10_000):
        assert queue.pop(nobody) is None
    assert state(queue) == ([0, 0], 0, None, 2)
    assert queue.lanes(0).tests == queue.lanes(1).tests == 1
    assert queue.visits == 2  # a poll looks at no class while all are blocked


def test_a_ring_that_takes_the_place_of_another_counts_anew():
    queue = made(3, 5)
    fill(queue, [9, 9], [9])
    assert queue.open_lanes() == 2
    queue.adopt(profile(3, 5), profile(3, 5, 7))
    assert (queue.size, queue.open_lanes()) == (0, 0)
    fill(queue, [9, 9], [9], [9])
    assert (queue.size, queue.open_lanes()) == (4, 3)


def test_a_blocked_class_keeps_its_credit_and_earns_nothing():
    queue = made(5, 1)
    fill(queue, [12, 9], [3, 1, 1, 1, 1])
    assert queue.pop(anyone) == 0  # three rounds; class 1 is one short
    assert queue.deficits() == [3, 2]
    for wanted in (2, 3, 4, 5):
        assert queue.pop(lambda class_index, _: class_index == 1) == wanted
        assert queue.deficits()[0] == 3


@pytest.mark.parametrize("how", ["cancel", "pop"])
def test_an_emptied_class_loses_its_credit_and_the_cursor(how):
    queue = made(10, 10)
    fill(queue, [4, 4], [5])
    assert queue.pop(anyone) == 0
    assert state(queue) == ([6, 0], 0, "paid", 2)
    if how == "cancel":
        queue.remove(1)
    else:
        queue.pop(anyone)
    assert state(queue) == ([0, 0], 1, None, 1)
    queue.push(3, 0, (0, 9, 0, 9), cost=4)
    assert queue.pop(anyone) == 2
    assert queue.pop(anyone) == 3


def test_a_cancel_elsewhere_leaves_the_cursor():
    queue = made(10, 10)
    fill(queue, [4, 4], [5])
    queue.pop(anyone)
    queue.remove(2)
    assert state(queue) == ([6, 0], 0, "paid", 1)


def test_long_heads_of_another_order():
    """policy-queue 6.1, case 12: the first class is in order of arrival, the second by weight."""
    queue = made(50, 50)
    for item, class_index, score, cost in ((0, 0, 0, 50), (1, 0, 1, 1), (2, 1, 50, 50), (3, 1, 1, 1)):
        queue.push(item, class_index, (0, score, 0, item), cost=cost)
    assert [queue.pop(anyone), queue.pop(anyone)] == [0, 3]


class Story:
    """The same requests in the core's queue and in the oracle's."""

    def __init__(self, quanta, arbitration):
        self.classes = len(quanta)
        self.queue = made(*quanta, arbitration=arbitration)
        self.oracle = PolicyQueue(list(quanta), arbitration)
        self.entries = {}
        self.seq = 0

    def push(self, class_index, lane, time, cost):
        rank = None if lane == 0 else lane
        entry = Entry((time, self.seq), cost, rank, self.seq)
        self.queue.push(self.seq, class_index, (0, time, 0, self.seq), rank, cost=cost)
        self.oracle.push(class_index, entry)
        self.entries[self.seq] = entry
        self.seq += 1

    def cancel(self, number):
        if self.entries:
            item = sorted(self.entries)[number % len(self.entries)]
            self.queue.remove(item)
            self.oracle.remove(self.entries.pop(item))

    def pop(self, full):
        """full: (class, lane) pairs without room."""
        recheck(self.queue, self.classes)
        item = self.queue.pop(
            lambda class_index, item: (class_index, self.entries[item].lane or 0) not in full)
        entry = self.oracle.pop(lambda entry: (entry.class_index, entry.lane or 0) not in full)
        assert item == (entry and entry.payload)
        self.entries.pop(item, None)

    def compare(self):
        assert self.queue.deficits() == [queue.deficit for queue in self.oracle.classes]
        assert (self.queue.cursor, self.queue.visit or "none") == self.oracle.place


costs = st.sampled_from((1, 1, 2, 3, 4, 5, 8, 10, 12, 40))
some_lanes = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4)
all_lanes_of_some = st.sets(st.integers(0, 3), max_size=2).map(
    lambda some: {(class_index, lane) for class_index in some for lane in range(3)})
moves = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 3), st.sampled_from((0, 0, 1, 2)), st.integers(0, 5), costs),
    st.tuples(st.just("pop"), some_lanes | all_lanes_of_some | st.just(set())),
    st.tuples(st.just("pop"), all_lanes_of_some),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
)


@pytest.mark.parametrize("arbitration", list(Arbitration))
@settings(max_examples=SHARE * settings().max_examples)
@given(
    quanta=st.lists(st.sampled_from((1, 1, 2, 3, 5, 10, 30)), min_size=1, max_size=4),
    backlog=st.lists(st.tuples(st.integers(0, 3), costs), max_size=20), story=st.lists(moves, max_size=50))
def test_one_quantum_at_a_time_says_the_same(arbitration, quanta, backlog, story):
    both = Story(quanta, arbitration)
    for class_index, cost in backlog:
        both.push(class_index % len(quanta), 0, 0, cost)
    for kind, *fields in story:
        if kind == "push":
            both.push(fields[0] % len(quanta), *fields[1:])
        else:
            getattr(both, kind)(*fields)
        both.compare()
    while both.entries:
        both.pop(set())
        both.compare()


@given(st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 40), min_size=1, max_size=8)), min_size=1,
                max_size=4), st.sampled_from((10**3, 2**40, 2**47)))
def test_a_larger_unit_changes_nothing_but_the_numbers(classes, unit):
    small, large = made(*[q for q, _ in classes]), made(*[q * unit for q, _ in classes])
    fill(small, *[costs for _, costs in classes])
    fill(large, *[[cost * unit for cost in costs] for _, costs in classes])
    while small.size:
        assert small.pop(anyone) == large.pop(anyone)
        assert [d * unit for d in small.deficits()] == large.deficits()


@given(st.lists(st.tuples(st.integers(1, 20), st.lists(st.integers(1, 60), min_size=1, max_size=4)), min_size=2,
                max_size=4))
def test_shares_stay_within_the_bound(classes):
    """DESIGN D5: |S_i/q_i - S_j/q_j| <= 1 + max_i/q_i + max_j/q_j while both wait; each repeats its costs."""
    queue = made(*[quantum for quantum, _ in classes])
    item, costs = 0, {}
    for index, (_, cycle) in enumerate(classes):
        for number in range(60):
            costs[item] = (index, cycle[number % len(cycle)])
            queue.push(item, index, (0, item, 0, item), cost=costs[item][1])
            item += 1
    served = [0] * len(classes)
    while all(queue.lanes(index).counts()[0] for index in range(len(classes))):
        index, cost = costs[queue.pop(anyone)]
        served[index] += cost
        rounds = [Fraction(s, quantum) for s, (quantum, _) in zip(served, classes, strict=True)]
        slack = [Fraction(max(cycle), quantum) for quantum, cycle in classes]
        for i in range(len(classes)):
            for j in range(i):
                assert abs(rounds[i] - rounds[j]) <= 1 + slack[i] + slack[j]


def limited(**keys):
    return made(1, **{f"{name}_queue_limit_per_worker": value for name, value in keys.items()})


def test_limits_are_tested_in_order_and_may_be_overshot():
    """policy-queue 6.1, case 1."""
    queue = limited(request=1, raw_isl_token=5, cached_token=3)
    assert queue.limit_hit(0, 2) is None
    queue.push(0, 0, (0, 0, 0, 0), raw=8, cached=4)
    assert queue.limit_hit(0, 2) is None
    queue.push(1, 0, (0, 1, 0, 1), raw=100, cached=100)
    assert queue.usage(0) == [2, 108, 104]
    assert queue.limit_hit(0, 2) == ("requests", 2, 2)
    assert queue.limit_hit(0, 3) == ("raw", 108, 15)
    queue.remove(1)
    assert queue.usage(0) == [1, 8, 4]
    assert queue.limit_hit(0, 1) == ("requests", 1, 1)
    assert queue.limit_hit(0, 2) is None


def test_limits_follow_the_number_of_workers():
    """policy-queue 6.1, case 10, but that no workers count as one (DESIGN D6)."""
    queue = limited(raw_isl_token=10)
    for item in range(11):
        assert queue.limit_hit(0, 2) is None
        queue.push(item, 0, (0, item, 0, item))
    assert [queue.limit_hit(0, workers) for workers in (0, 1)] == [("raw", 11, 10)] * 2
    for item in range(11, 21):
        assert queue.limit_hit(0, 2) is None or item >= 20
        queue.push(item, 0, (0, item, 0, item))
    assert queue.limit_hit(0, 2) == ("raw", 21, 20)
    queue = limited(cached_token=5)
    queue.push(0, 0, (0, 0, 0, 0), raw=9, cached=6)
    assert queue.limit_hit(0, 1) == ("cached", 6, 5)
    assert limited(request=0).limit_hit(0, 7) == ("requests", 0, 0)
    assert limited(request=1).limit_hit(0, 0) is None


def test_limits_and_usage_beyond_64_bits():
    queue = limited(raw_isl_token=TWO_53)
    for item in range(1_100):
        queue.push(item, 0, (0, item, 0, item), raw=TWO_53)
    assert queue.usage(0) == [1_100, 2**63 - 1, 0]
    assert queue.limit_hit(0, 1_100) == ("raw", 2**63 - 1, 2**63 - 1)
    assert queue.limit_hit(0, 1_099) == ("raw", 2**63 - 1, 2**63 - 1)
    assert queue.limit_hit(0, 1_101) is None
    assert queue.limit_hit(0, 5) == ("raw", 2**63 - 1, 5 * TWO_53)


def hinted(dispatches, queued=()):
    """A queue with these charged dispatches (time, cost) and these waiting costs."""
    queue = made(1)
    for now_ns, cost in dispatches:
        queue.charge(0, now_ns, cost)
    fill(queue, queued)
    return queue


def hint(dispatches, queued, current, limit):
    """DESIGN D18 in plain numbers."""
    window = dispatches[-32:]
    if len(window) < 2 or current == 0 or window[-1][0] == window[0][0]:
        return None
    span, served = window[-1][0] - window[0][0], sum(cost for _, cost in window[1:])
    excess = math.ceil(Fraction(sum(queued) * (current - limit + 1), current))
    return min(max(math.ceil(Fraction(excess * span, served)), MS), HOUR)


def test_a_hint_is_the_excess_at_the_pace_of_late():
    queue = hinted([(0, 5), (4_000 * MS, 7), (10_000 * MS, 3)], [10, 10, 10])
    # 20 of 30 tokens must go; 10 tokens went in ten seconds: the oldest dispatch only starts the clock.
    assert queue.retry_after_ns(0, 3, 2) == 20_000 * MS
    assert queue.retry_after_ns(0, 3, 3) == 10_000 * MS
    assert queue.charged(0) == (3, 15)


@pytest.mark.parametrize("dispatches", [[], [(5, 1)], [(5, 1), (5, 9)]])
def test_without_a_pace_there_is_no_hint(dispatches):
    assert hinted(dispatches, [3]).retry_after_ns(0, 1, 1) is None


def test_with_nothing_in_use_there_is_no_hint():
    assert hinted([(0, 1), (9, 1)]).retry_after_ns(0, 0, 0) is None


def test_hints_are_rounded_up_and_clamped():
    pace = [(0, 1), (3 * MS, 2)]
    assert hinted(pace, [1]).retry_after_ns(0, 1, 1) == 3 * MS // 2
    assert hinted([(0, 1), (3 * MS, 7)], [5]).retry_after_ns(0, 1, 1) == -(-5 * 3 * MS // 7)
    assert hinted(pace, [3, 0, 0]).retry_after_ns(0, 2, 2) == 3 * MS  # ceil(3 / 2) tokens
    assert hinted([(0, 1), (1, 1)], [1]).retry_after_ns(0, 1, 1) == MS
    assert hinted([(0, 1), (HOUR - 1, 1)], [1]).retry_after_ns(0, 1, 1) == HOUR - 1
    assert hinted([(0, 1), (HOUR, 1)], [1]).retry_after_ns(0, 1, 1) == HOUR
    assert hinted([(0, 1), (2**62 - 1, 1)], [TWO_53]).retry_after_ns(0, 1, 0) == HOUR


def test_only_the_last_32_dispatches_count():
    dispatches = [(0, 10**9)] + [(1_000 * MS * i, 10) for i in range(1, 33)]
    assert hinted(dispatches, [31]).retry_after_ns(0, 1, 1) == 3_100 * MS
    assert hinted(dispatches[1:], [31]).retry_after_ns(0, 1, 1) == 3_100 * MS
    assert hinted(dispatches[:2] + dispatches[3:], [31]).retry_after_ns(0, 1, 1) == hint(
        dispatches[:2] + dispatches[3:], [31], 1, 1)


@given(
    st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 10**6) | st.just(TWO_53)), max_size=80),
    st.lists(st.integers(1, 10**6) | st.just(TWO_53), min_size=1, max_size=5),
    st.integers(0, 40) | st.integers(0, 2**63 - 1), st.floats(0, 1))
def test_hints_are_those_of_the_rule(steps, queued, current, share):
    dispatches, now_ns = [], 0
    for step_ns, cost in steps:
        now_ns += step_ns
        dispatches.append((now_ns, cost))
    limit = min(current, int(share * current))
    assert hinted(dispatches, queued).retry_after_ns(0, current, limit) == hint(dispatches, queued, current, limit)
