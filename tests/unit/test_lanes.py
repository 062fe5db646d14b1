"""One policy class: shared heap, exact lanes, blocking inside a lane only, verdicts asked for once per change."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe_build import load

Lanes = load("_probe_queue").Lanes

STRICT_NONE = 2**32 - 1


def at(time: int, seq: int = 0, strict: int = 0) -> tuple:
    """A key that sorts by strict priority, then time, then seq."""
    return (STRICT_NONE - strict, time, 0, seq)


class Asked:
    """A dispatch test that only some items pass, and what it has been asked for."""

    def __init__(self, *passing, all_but=None):
        self.passing, self.all_but, self.items = set(passing), all_but, []

    def __call__(self, class_index, item):
        self.items.append(item)
        return item not in self.all_but if self.all_but is not None else item in self.passing


def everything() -> Asked:
    return Asked(all_but=())


def pop(queue, test):
    """Take the candidate out, as the round robin does."""
    item = queue.candidate(test)
    if item is not None:
        queue.take(item)
    return item


def drain(queue, test) -> list:
    items = []
    while (item := pop(queue, test)) is not None:
        items.append(item)
    return items


def lanes(*ranks, times=None):
    """One entry per rank, item = number of the rank in the list, earliest first."""
    queue = Lanes()
    for item, rank in enumerate(ranks):
        queue.push(item, at(item if times is None else times[item], item), rank)
    return queue


def test_an_empty_queue_asks_nobody():
    queue, test = Lanes(3), Asked()
    assert queue.candidate(test) is None
    assert (queue.tests, test.items, queue.lanes(), queue.blocked()) == (0, [], {}, {})


def test_the_test_is_told_the_class():
    queue, told = Lanes(3), []
    queue.push(7, at(0))
    assert queue.candidate(lambda class_index, item: told.append((class_index, item)) or True) == 7
    assert told == [(3, 7)]


def test_the_best_head_of_all_lanes_wins():
    queue = Lanes()
    for item, (time, rank) in enumerate([(5, None), (3, 1), (4, 2), (1, 2), (9, 1)]):
        queue.push(item, at(time, item), rank)
    assert drain(queue, everything()) == [3, 1, 2, 0, 4]


def test_equal_keys_are_first_come_first_served_across_lanes():
    queue = Lanes()
    for item, rank in enumerate([2, None, 1, 1, None, 2]):
        queue.push(item, at(0, item), rank)
    assert drain(queue, everything()) == [0, 1, 2, 3, 4, 5]


def test_a_full_lane_hides_no_other_lane_and_no_shared_head():
    """policy-queue 3.3; there a lane stays blocked when a better head comes, here it is judged anew (DESIGN D4)."""
    queue = Lanes()
    s1, s2, l1, l2, strict = range(5)
    for item, time, rank in ((s1, 3, None), (s2, 4, None), (l1, 1, 1), (l2, 2, 2)):
        queue.push(item, at(time, item), rank)
    assert pop(queue, Asked(s1, s2, l2)) == l2
    assert queue.blocked() == {1: l1}
    assert pop(queue, Asked(s1, s2)) == s1
    assert pop(queue, everything()) == s2  # nobody announced that lane 1 has room
    assert pop(queue, everything()) is None
    queue.push(strict, at(9, strict, strict=5), 1)
    assert pop(queue, everything()) == strict


def test_a_full_shared_head_hides_no_lane():
    queue = Lanes()
    queue.push(0, at(0, 0))
    queue.push(1, at(1, 1))
    queue.push(2, at(2, 2), 4)
    assert drain(queue, Asked(1, 2)) == [2]
    assert queue.blocked() == {None: 0}
    queue.recheck_shared()
    assert drain(queue, Asked(1, 2)) == []
    assert drain(queue, everything()) == []
    queue.recheck_shared()
    assert drain(queue, everything()) == [0, 1]


def test_only_heads_are_asked():
    queue = lanes(1, 1, 1)
    test = Asked(1, 2)
    assert queue.candidate(test) is None
    assert test.items == [0]


def test_a_verdict_is_remembered():
    queue = lanes(1, 2, None)
    test = Asked()
    for _ in range(10):
        assert queue.candidate(test) is None
    assert sorted(test.items) == [0, 1, 2]
    assert queue.tests == 3


def test_a_positive_verdict_is_not_remembered():
    """Whoever passes is popped, or asked again."""
    queue = lanes(1)
    assert [queue.candidate(everything()) for _ in range(3)] == [0, 0, 0]
    assert queue.tests == 3


@pytest.mark.parametrize("rank", [None, 1])
def test_a_better_head_is_asked_and_a_worse_entry_is_not(rank):
    queue = Lanes()
    queue.push(0, at(5, 0), rank)
    assert queue.candidate(Asked()) is None
    queue.push(1, at(6, 1), rank)
    test = everything()
    assert queue.candidate(test) is None
    assert test.items == []
    queue.push(2, at(4, 2), rank)
    assert queue.candidate(test) == 2
    assert test.items == [2]


@pytest.mark.parametrize("rank", [None, 1])
def test_the_next_head_is_asked_when_a_blocked_one_leaves(rank):
    queue = Lanes()
    for item in range(3):
        queue.push(item, at(item, item), rank)
    assert queue.candidate(Asked()) is None
    queue.remove(1)  # not the head
    assert queue.candidate(everything()) is None
    queue.remove(0)
    assert queue.candidate(everything()) == 2
    assert queue.tests == 2


def test_a_recheck_of_one_rank_frees_its_lane_only():
    queue = lanes(1, 2, None)
    assert queue.candidate(Asked()) is None
    queue.recheck_lane(2)
    assert drain(queue, everything()) == [1]
    queue.recheck_lane(1)
    assert drain(queue, everything()) == [0]
    queue.recheck_shared()
    assert drain(queue, everything()) == [2]


def test_a_recheck_of_ranks_without_blocked_lanes_changes_nothing():
    queue = lanes(1)
    for rank in (0, 1, 2, 10**6):
        queue.recheck_lane(rank)
    queue.recheck_all()
    assert (queue.lanes(), queue.blocked()) == ({1: [0]}, {})
    assert queue.tests == 0
    assert Lanes().recheck_all() is None


def test_a_full_recheck_asks_every_blocked_head_once():
    queue = lanes(1, 2, 3, None)
    assert queue.candidate(Asked()) is None
    queue.recheck_all()
    test = Asked(0)
    assert pop(queue, test) == 0
    assert queue.candidate(test) is None
    assert sorted(test.items) == [0, 1, 2, 3]
    queue.recheck_all()
    assert drain(queue, Asked(1, 3)) == [1, 3]
    assert (queue.lanes(), queue.blocked()) == ({3: [2]}, {3: 2})


def test_of_two_blocked_lanes_the_strict_one_goes_first():
    queue = Lanes()
    queue.push(0, at(0, 0), 1)
    queue.push(1, at(1, 1, strict=1), 2)
    assert queue.candidate(Asked()) is None
    queue.recheck_all()
    assert drain(queue, everything()) == [1, 0]


def test_a_lane_removed_before_its_recheck_is_gone():
    queue = lanes(1, 2)
    assert queue.candidate(Asked()) is None
    queue.recheck_all()
    queue.remove(0)
    assert drain(queue, everything()) == [1]
    assert (queue.counts(), queue.lanes(), queue.indexed()) == ((0, 0, 0, 0), {}, {})


def test_a_jump_inside_a_lane():
    """policy-queue 6.1, case 5."""
    queue = Lanes()
    queue.push(0, at(50, 0), 3)
    queue.push(1, at(40, 1), 3)
    assert drain(queue, everything()) == [1, 0]


def test_ten_thousand_lanes_are_asked_once_each():
    """policy-queue 6.1, case 6: the even ones fail."""
    count = 10_000
    queue = lanes(*range(count))
    test = Asked(*range(1, count, 2))
    assert drain(queue, test) == list(range(1, count, 2))
    assert queue.tests == len(test.items) == count
    assert sorted(test.items) == list(range(count))
    assert queue.counts()[0] == len(queue.lanes()) == count // 2
    assert queue.candidate(everything()) is None
    assert queue.tests == count
    for item in range(0, count, 20):
        queue.recheck_lane(item)
    assert drain(queue, everything()) == list(range(0, count, 20))
    assert queue.tests == count + count // 20


@pytest.mark.parametrize("count", [10, 1_000, 100_000])
def test_a_lane_costs_logarithmically_many_moves(count):
    """Its own heap, the index of heads, and back."""
    queue = lanes(*range(count), times=[(i * 7919) % count for i in range(count)])
    test, bound = everything(), 4 * (math.log2(count) / 2 + 2)
    assert queue.moves <= bound * count
    for _ in range(min(count, 2_000)):
        before, tests = queue.moves, queue.tests
        pop(queue, test)
        assert queue.moves - before <= bound
        assert queue.tests - tests == 1


def test_counters_are_sums_over_what_waits():
    queue = Lanes()
    queue.push(0, at(0, 0), raw=8, cached=4, cost=4)
    queue.push(1, at(1, 1), 5, raw=100, cached=100, cost=1)
    queue.push(2, at(2, 2), 5, raw=2**53, cached=0, cost=2**53)
    assert queue.counts() == (3, 108 + 2**53, 104, 5 + 2**53)
    queue.remove(2)
    assert queue.counts() == (2, 108, 104, 5)
    assert drain(queue, everything()) == [0, 1]
    assert queue.counts() == (0, 0, 0, 0)


def test_sums_have_more_than_64_bits():
    queue = Lanes()
    for item in range(1_100):
        queue.push(item, at(0, item), raw=2**53, cached=2**53, cost=2**53)
    assert queue.counts() == (1_100, 1_100 * 2**53, 1_100 * 2**53, 1_100 * 2**53)
    for item in range(1_100):
        queue.remove(item)
    assert queue.counts() == (0, 0, 0, 0)


def test_lanes_and_ranks_come_and_go():
    """A lane slot is used for another rank; high rank numbers need no lane in between."""
    queue = Lanes()
    for item, rank in enumerate((100_000, 7, 99_999)):
        queue.push(item, at(item, item), rank)
    assert queue.candidate(Asked(1)) == 1
    queue.remove(1)
    queue.remove(0)
    queue.push(3, at(0, 3), 8)
    queue.push(4, at(1, 4), 100_000)
    assert queue.lanes() == {8: [3], 99_999: [2], 100_000: [4]}
    assert drain(queue, everything()) == [3, 4, 2]


def test_an_error_in_the_test_of_a_test_is_heard():
    queue = lanes(1)
    with pytest.raises(ZeroDivisionError):
        queue.candidate(lambda class_index, item: 1 // 0)


class Model:
    """The same queue in dicts: entries, and lanes whose head has failed since the last change."""

    def __init__(self):
        self.entries: dict[int, tuple] = {}
        self.failed: set = set()

    def head(self, rank):
        return min((key, item) for item, (key, of) in self.entries.items() if of == rank)[1]

    def push(self, item, key, rank):
        self.entries[item] = (key, rank)
        if self.head(rank) == item:
            self.failed.discard(rank)

    def remove(self, item):
        rank = self.entries[item][1]
        if self.head(rank) == item:
            self.failed.discard(rank)
        del self.entries[item]

    def candidate(self, test):
        open_lanes = {rank for _, rank in self.entries.values()} - self.failed
        for _, item in sorted((self.entries[self.head(rank)][0], self.head(rank)) for rank in open_lanes):
            if test(0, item):
                return item
            self.failed.add(self.entries[item][1])
        return None


ranks = st.sampled_from((None, 0, 1, 2, 40))
steps = st.tuples(
    st.sampled_from(("push", "push", "push", "remove", "pop", "pop", "recheck", "all")), st.integers(0, 15), ranks,
    st.integers(0, 3), st.sets(ranks))


@given(st.lists(steps, max_size=60))
def test_dicts_say_the_same(story):
    """Also about who is asked, and in which order."""
    queue, model = Lanes(), Model()
    for seq, (kind, item, rank, time, full) in enumerate(story):
        if kind == "push" and item not in model.entries:
            queue.push(item, at(time, seq), rank, raw=item + 1, cached=item, cost=time + 1)
            model.push(item, at(time, seq), rank)
        elif kind == "remove" and item in model.entries:
            queue.remove(item)
            model.remove(item)
        elif kind == "pop":
            blocked = [other for other, (_, lane) in model.entries.items() if lane in full]
            mine, wanted = Asked(all_but=blocked), Asked(all_but=blocked)
            found = pop(queue, mine)
            assert found == model.candidate(wanted)
            assert mine.items == wanted.items
            if found is not None:
                model.remove(found)
        elif kind == "recheck":
            if rank is None:
                queue.recheck_shared()
            else:
                queue.recheck_lane(rank)
            model.failed.discard(rank)
        elif kind == "all":
            queue.recheck_all()
            model.failed.clear()
        compare(queue, model)


def compare(queue, model) -> None:
    entries = model.entries
    here = {rank for _, rank in entries.values()}
    seqs = {rank: entries[model.head(rank)][0][3] for rank in here}
    assert {rank: sorted(items) for rank, items in queue.lanes().items()} == {
        rank: sorted(item for item, (_, of) in entries.items() if of == rank) for rank in here}
    failed = here & model.failed
    assert queue.blocked() == {rank: model.head(rank) for rank in failed}
    assert queue.indexed() == {rank: seq for rank, seq in seqs.items() if rank not in failed}
    assert queue.counts()[:3] == (len(entries), sum(item + 1 for item in entries), sum(entries))
