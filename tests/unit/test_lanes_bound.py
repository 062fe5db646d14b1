"""One policy class under an overtaking bound (DESIGN D17): nobody in an open lane is overtaken by more than that."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_build import load

Lanes = load("_probe_queue").Lanes

#: The widest test of this file gets more examples than the profile gives to the others.
SHARE = 4


def at(time: int, seq: int = 0) -> tuple:
    """A key that sorts by time, then seq."""
    return (0, time, 0, seq)


def made(bound: int | None, *entries):
    """entries: (time, rank, cost), item = number in the list, in order of age."""
    queue = Lanes(0, bound)
    for item, (time, rank, cost) in enumerate(entries):
        queue.push(item, at(time, item), rank, cost=cost)
    return queue


def drain(queue, *failing) -> list:
    items = []
    while (item := queue.candidate(lambda _, item: item not in failing)) is not None:
        queue.take(item)
        items.append(item)
    return items


#: The oldest has the worst key, the others overtake it by four tokens each.
ROW = [(99, None, 3), *[(50 - i, None, 4) for i in range(5)]]


@pytest.mark.parametrize(
    ("bound", "order"),
    [(None, [5, 4, 3, 2, 1, 0]), (20, [5, 4, 3, 2, 1, 0]), (19, [5, 4, 3, 2, 0, 1]), (8, [5, 4, 0, 1, 2, 3]),
     (7, [5, 0, 1, 2, 3, 4]), (4, [5, 0, 1, 2, 3, 4]), (3, [0, 1, 2, 3, 4, 5]), (0, [0, 1, 2, 3, 4, 5])],
)
def test_the_oldest_goes_first_when_it_would_be_overtaken_by_more(bound, order):
    """After the oldest, the next one has been overtaken as well: by all that went before it."""
    assert drain(made(bound, *ROW)) == order


def test_lanes_share_the_bound():
    entries = [(9, 1, 1), (1, 2, 5), (2, 3, 5), (3, None, 5)]
    assert drain(made(None, *entries)) == [1, 2, 3, 0]
    assert drain(made(10, *entries)) == [1, 2, 0, 3]
    assert drain(made(9, *entries)) == [1, 0, 2, 3]


def test_an_oldest_that_fails_leaves_its_lane_out_of_this_choice():
    queue = made(0, (9, 1, 1), (5, 1, 1), (7, 2, 1), (6, 2, 1))
    asked = []
    assert queue.candidate(lambda _, item: asked.append(item) or item != 0) == 2
    assert asked == [1, 0, 3, 2]  # best, oldest: lane 1 is out; best, oldest of lane 2
    assert queue.blocked() == {}
    queue.take(2)
    assert drain(queue, 0) == [3]
    assert queue.blocked() == {}
    assert drain(queue) == [0, 1]


def test_the_best_is_not_asked_twice_in_one_call():
    queue = made(0, (9, 1, 1), (1, 2, 1))
    asked = []
    assert queue.candidate(lambda _, item: asked.append(item) or item != 0) == 1
    assert asked == [1, 0]
    assert queue.tests == 2


def test_what_goes_past_a_blocked_lane_counts_when_it_opens():
    queue = made(5, (9, 1, 1), (1, 2, 4), (2, 2, 4), (3, 2, 1))
    assert queue.candidate(lambda _, item: item != 0) == 1
    queue.take(1)
    assert queue.candidate(lambda _, item: item != 0) == 2  # 4 + 4 > 5, but its lane is full
    queue.take(2)
    queue.recheck_lane(1)
    assert drain(queue) == [0, 3]


def test_a_lane_is_no_longer_left_out_when_the_one_that_failed_leaves():
    queue = made(0, (9, 1, 1), (5, 1, 1), (7, 2, 1))
    assert queue.candidate(lambda _, item: item != 0) == 2
    queue.remove(0)
    assert drain(queue) == [1, 2]


def test_who_is_oldest_is_known_after_a_removal():
    """The oldest of a lane leaves from behind its head: the next oldest is in another lane."""
    queue = made(0, (9, 1, 1), (8, 2, 1), (5, 1, 1), (1, 3, 1))
    queue.remove(0)
    assert drain(queue) == [1, 2, 3]


def test_who_is_removed_has_overtaken_nobody():
    queue = made(4, (9, None, 1), (1, None, 4), (2, None, 4))
    queue.remove(1)
    assert drain(queue) == [2, 0]


def test_the_largest_bound_and_costs():
    assert drain(made(2**53, (9, None, 2**53), *[(1, 2, 2**53)] * 3)) == [1, 0, 2, 3]


@pytest.mark.parametrize("count", [10, 1_000, 20_000])
def test_a_pop_stays_logarithmic(count):
    queue = Lanes(0, 50)
    for item in range(count):
        queue.push(item, at((item * 7919) % count, item), item % 97, cost=item % 5 + 1)
    bound = 8 * (math.log2(count) / 2 + 2)
    for _ in range(min(count, 1_000)):
        moves, tests = queue.moves, queue.tests
        queue.take(queue.candidate(lambda _, item: True))
        assert queue.moves - moves <= bound
        assert queue.tests - tests <= 2


class Model:
    """D17 word by word over a list of entries in order of age."""

    def __init__(self, bound):
        self.bound = bound
        self.entries: dict[int, tuple] = {}     # item -> (key, rank, cost), oldest first
        self.overtaken: dict[int, int] = {}
        self.judged: dict = {}                  # blocked lane -> its head, which failed
        self.aside: set = set()                 # lanes left out of the last choice

    def push(self, item, key, rank, cost):
        self.entries[item] = (key, rank, cost)
        self.overtaken[item] = 0
        if self.head(rank) == item:
            self.judged.pop(rank, None)

    def head(self, rank):
        return min((key, item) for item, (key, of, _) in self.entries.items() if of == rank)[1]

    def remove(self, item):
        rank = self.entries[item][1]
        if self.head(rank) == item:
            self.judged.pop(rank, None)
        del self.entries[item], self.overtaken[item]

    def take(self, item):
        for older in self.entries:
            if older == item:
                break
            self.overtaken[older] += self.entries[item][2]
            if self.bound is not None and self.entries[older][1] not in self.aside | set(self.judged):
                assert self.overtaken[older] <= self.bound
        self.remove(item)

    def candidate(self, test):
        passed, aside = None, set()
        self.aside = aside
        while True:
            out = aside | set(self.judged)
            open_items = [item for item, (_, rank, _) in self.entries.items() if rank not in out]
            if not open_items:
                return None
            best = min(open_items, key=lambda item: self.entries[item][0])
            rank, oldest = self.entries[best][1], open_items[0]
            if best != passed and not test(0, best):
                self.judged[rank] = best
                continue
            if self.bound is None:
                return best
            passed, elder_rank = best, self.entries[oldest][1]
            if elder_rank != rank and not test(0, self.head(elder_rank)):
                self.judged[elder_rank] = self.head(elder_rank)
                continue
            if oldest == best or self.overtaken[oldest] + self.entries[best][2] <= self.bound:
                return best
            if test(0, oldest):
                return oldest
            aside.add(elder_rank)


ranks = st.sampled_from((None, 0, 1, 2))
steps = st.tuples(
    st.sampled_from(("push", "push", "push", "push", "remove", "remove", "pop", "pop", "pop", "recheck", "all")),
    st.integers(0, 15), ranks, st.integers(0, 5), st.integers(1, 6), st.sets(st.integers(0, 15), max_size=6))


@settings(max_examples=SHARE * settings().max_examples)
@given(st.sampled_from((None, 0, 1, 4, 9, 30)), st.lists(steps, max_size=70))
def test_the_rule_word_by_word_says_the_same(bound, story):
    queue, model = Lanes(0, bound), Model(bound)
    for seq, (kind, item, rank, time, cost, failing) in enumerate(story):
        if kind == "push" and item not in model.entries:
            queue.push(item, at(time, seq), rank, cost=cost)
            model.push(item, at(time, seq), rank, cost)
        elif kind == "remove" and item in model.entries:
            queue.remove(item)
            model.remove(item)
        elif kind == "pop":
            mine, wanted = [], []
            found = queue.candidate(lambda _, item, asked=mine, no=failing: asked.append(item) or item not in no)
            assert found == model.candidate(
                lambda _, item, asked=wanted, no=failing: asked.append(item) or item not in no)
            assert mine == wanted
            if found is None:
                fault = queue.fault(lambda _, item, no=failing: item not in no)
                assert fault is None or fault.endswith("may run")  # now, but nobody has announced it
            else:
                queue.take(found)
                model.take(found)
        elif kind == "recheck":
            if rank is None:
                queue.recheck_shared()
            else:
                queue.recheck_lane(rank)
            model.judged.pop(rank, None)
        elif kind == "all":
            queue.recheck_all()
            model.judged.clear()
        assert queue.blocked() == model.judged
        assert {rank: sorted(items) for rank, items in queue.lanes().items()} == {
            rank: sorted(item for item, (_, of, _) in model.entries.items() if of == rank)
            for rank in {of for _, of, _ in model.entries.values()}}
