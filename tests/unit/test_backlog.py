"""From the door to the pop: seq, key and class of what is stored, pins kept in step, heads judged again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from probe_build import load
from stories import Story, arrive, profile, short

from kvcore.actions import Park
from kvcore.config import SchedulerConfig
from kvcore.events import PrefillCompleted, RequestCancelled
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Overlap, Rank, Request

Room = load("_probe_fleet").Room

WAITS = {"profile": profile(prefill_busy_threshold=0)}

MATRIX = PolicyProfile(
    (PolicyClass("a-small", 1, policy_family="a", cache_bucket="small", prefill_busy_threshold=0),
     PolicyClass("a-large", 1, policy_family="a", cache_bucket="large", prefill_busy_threshold=0),
     PolicyClass("b-small", 1, policy_family="b", cache_bucket="small", prefill_busy_threshold=0),
     PolicyClass("b-large", 1, policy_family="b", cache_bucket="large", prefill_busy_threshold=0),
     PolicyClass("vip", 1, prefill_busy_threshold=0)),
    (CacheBucket("small", 0), CacheBucket("large", 10)), "b")


def room(*workers: int, **fields):
    return Room(SchedulerConfig(profile=profile(prefill_busy_threshold=0, **fields)), workers)


def test_only_what_is_stored_takes_a_seq():
    backlog = room(1)
    backlog.begin_batch()
    slots = []
    for name in "abcd":
        slots.append(backlog.classify(Request(name, 1)))
        if name in "bd":
            backlog.store(slots[-1])
    assert backlog.next_seq == 2
    assert backlog.still_waiting() == [slots[1], slots[3]]


def test_who_of_a_batch_still_waits():
    """Also where a slot has been used again, by another request or by the same id."""
    backlog = room(1)
    backlog.begin_batch()
    first = backlog.classify(Request("a", 1))
    backlog.store(first)
    backlog.end(first)
    again = backlog.classify(Request("a", 1))
    assert (again, backlog.still_waiting()) == (first, [None])
    backlog.store(again)
    assert backlog.still_waiting() == [None, again]
    backlog.begin_batch()
    assert backlog.still_waiting() == []
    for number in range(100):
        backlog.store(backlog.classify(Request(str(number), 1)))
    assert None not in backlog.still_waiting()
    assert backlog.next_seq == 102


def test_a_pin_keeps_the_row_of_a_lost_rank_while_it_waits():
    backlog = room(1, 2)
    backlog.begin_batch()
    slots = []
    for name in "ab":
        slots.append(backlog.classify(Request(name, 1, pinned=Rank(1))))
        backlog.store(slots[-1])
    backlog.classify(Request("c", 1, pinned=Rank(2)))
    backlog.lose(2)
    assert backlog.ghosts() == []  # c is not stored: nothing waits for its rank
    backlog.lose(1)
    assert backlog.ghosts() == [(1, 0)]
    backlog.end(slots[1])
    assert backlog.ghosts() == [(1, 0)]
    backlog.end(slots[0])
    assert backlog.ghosts() == []


def served_after(story, name: str, attempt: int) -> str:
    """Names in the order in which they run, one at a time."""
    names = []
    while actions := story.prefill(name, attempt):
        (action,) = actions
        name, attempt = action.request_id, action.attempt
        names.append(name)
    return "".join(names)


@pytest.mark.parametrize(
    ("policy_class", "prompt", "cached", "index", "unknown"),
    [
        ("a", 9, 0, 0, 0), ("a", 10, 0, 1, 0), ("a", 13, 1, 0, 0), ("a", 14, 1, 1, 0), ("b", 3, 0, 2, 0),
        (None, 10, 0, 3, 0), ("nobody", 3, 0, 2, 1), ("", 3, 0, 2, 1), ("a-small", 10, 0, 3, 1), ("A", 10, 0, 3, 1),
        ("vip", 1, 0, 4, 0), ("vip", 99, 0, 4, 0),
    ],
)
def test_class_and_counters_of_what_is_stored(policy_class, prompt, cached, index, unknown):
    story = Story(1, profile=MATRIX)
    story.arrive("x", policy_class="vip")
    overlap = Overlap(((Rank(1), cached),))
    assert story.arrive("a", prompt, policy_class=policy_class, overlap=overlap) == (Park("a", index),)
    stats = story.core.stats()
    row = stats.classes[index]
    assert (row.waiting_requests, row.waiting_raw_tokens) == (1, prompt)
    assert (row.waiting_cached_tokens, row.waiting_cost_tokens) == (4 * cached, prompt - 4 * cached)
    assert sum(other.waiting_requests for other in stats.classes) == 1
    assert stats.unknown_class_names == unknown


def test_a_wholly_cached_prompt_costs_one_token():
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("a", 8, overlap=Overlap(((Rank(1), 2),)))
    row = story.core.stats().classes[0]
    assert (row.waiting_cached_tokens, row.waiting_cost_tokens) == (8, 1)


def test_names_of_refused_requests_are_not_counted():
    story = Story(1, profile=MATRIX)
    story.arrive("a", policy_class="nobody", allowed_workers=frozenset())
    assert story.core.stats().unknown_class_names == 0


def test_one_class_has_no_unknown_names():
    story = Story(1)
    story.arrive("a", policy_class="nobody")
    assert story.core.stats().unknown_class_names == 0
    assert [row.name for row in story.core.stats().classes] == ["default"]


def test_seq_is_one_counter_for_all_classes_and_lanes():
    """Equal keys: who was stored first runs first, across lanes."""
    story = Story(1, **WAITS)
    story.arrive("x")
    story.many(*[arrive(1, name, pinned=Rank(1) if name in "bd" else None) for name in "cbda"])
    assert served_after(story, "x", 1) == "cbda"


def test_strict_then_jump_then_arrival():
    story = Story(1, **WAITS)
    story.arrive("x")
    for name, strict, jump, now_ns in (
            ("e", 0, 0.0, 1), ("d", 0, 2e-9, 2), ("c", 0, 0.0, 3), ("b", 1, 0.0, 4), ("a", 2, 0.0, 5)):
        story.at(now_ns).arrive(name, strict_priority=strict, priority_jump=jump)
    assert served_after(story, "x", 1) == "abdec"


def test_cancelled_requests_leave_no_lane_behind():
    """Pins are counted down: a rank that is gone is forgotten when nobody waits for it any more."""
    story = Story(1, **WAITS)
    story.arrive("x", pinned=Rank(1))
    for name in "abc":
        story.arrive(name, pinned=Rank(1))
    for name in "cab":
        assert story.cancel(name) == ()
    assert story.core.stats().classes[0].waiting_requests == 0
    assert short(story.remove(1)) == "E x"
    story.upsert(2)
    assert short(story.arrive("d", pinned=Rank(2))) == "D d"


def test_a_waiting_head_that_leaves_lets_the_next_one_run_in_the_same_step():
    story = Story(1, 2, **WAITS)
    story.arrive("x", pinned=Rank(1))
    story.arrive("head", allowed_workers=frozenset({1}))
    story.arrive("free")
    assert short(story.cancel("head")) == "D free"


def test_a_better_arrival_runs_past_a_blocked_head():
    story = Story(1, 2, **WAITS)
    story.arrive("x", pinned=Rank(1))
    story.arrive("head", allowed_workers=frozenset({1}))
    assert short(story.arrive("worse")) == "P worse"
    assert short(story.arrive("better", strict_priority=1)) == "D better"


def test_load_that_falls_elsewhere_judges_nobody():
    """Only heads that may use the rank are judged again, and only if it is not busy."""
    story = Story(1, 2, **WAITS)
    story.arrive("x1", pinned=Rank(1))
    story.arrive("x2", pinned=Rank(2))
    story.arrive("y2", 8, pinned=Rank(2))
    story.arrive("head", allowed_workers=frozenset({1}))
    assert short(story.prefill("x2", 2)) == "D y2"
    assert short(story.finish("x1", 1)) == "D head"


def test_a_rank_that_falls_and_stays_busy_frees_nobody():
    story = Story(1, profile=profile(prefill_busy_threshold=10))
    story.arrive("a", 10)
    story.arrive("b", 30)
    story.arrive("c")
    assert story.prefill("a", 1) == ()
    assert short(story.prefill("b", 2)) == "D c"


@pytest.mark.parametrize(("thresholds", "at_30", "at_0"), [
    ((10, 40), "D b", "D a"), ((40, 10), "D a", "D b"), ((10, 10), "", "D a, D b"), ((40, 40), "D a, D b", "")])
def test_a_class_is_judged_by_its_own_thresholds(thresholds, at_30, at_0):
    """The one rank falls from 70 tokens to 30, and to what those who go in then bring."""
    classes = [PolicyClass(f"c{i}", 1, policy_family=f"f{i}", cache_bucket="all", prefill_busy_threshold=bound)
               for i, bound in enumerate((*thresholds, None))]
    story = Story(1, profile=PolicyProfile(tuple(classes), (CacheBucket("all", 0),), "f2"))
    assert short(story.arrive("x", 30) + story.arrive("y", 40)) == "D x, D y"
    assert short(story.arrive("a", 1, policy_class="f0") + story.arrive("b", 1, policy_class="f1")) == "P a, P b"
    assert short(story.prefill("y", 2)) == at_30
    assert short(story.prefill("x", 1)) == at_0


def test_who_chose_a_worker_is_told_of_its_loss_while_all_others_are_busy():
    story = Story(1, 2, **WAITS)
    assert short(story.arrive("x") + story.arrive("y")) == "D x, D y"
    assert short(story.arrive("pinned", pinned=Rank(2))) == "P pinned"
    assert short(story.arrive("listed", allowed_workers=frozenset({2})) + story.arrive("z")) == "P listed, P z"
    lost = short(story.remove(2)).partition(", ")
    assert lost[0] in ("E x", "E y")
    assert lost[2] == "PINNED_WORKER_UNAVAILABLE pinned, NO_ELIGIBLE_WORKER listed"


@pytest.mark.parametrize("pinned", [None, Rank(1)], ids=["all alike", "one pinned"])
def test_a_reload_leaves_the_counters_of_the_queue_right(pinned):
    """A debug build compares them after every step."""
    story = Story(1, profile=profile(1, 1, prefill_busy_threshold=0))
    story.arrive("x")
    for i in range(4):
        story.arrive(f"a{i}", policy_class=f"f{i % 2}", pinned=pinned if i == 3 else None)
    story.reload(profile(2, 2, prefill_busy_threshold=0))
    assert story.core.audit() == []
    assert short(story.prefill("x", 1)) == "D a1"
    assert story.core.audit() == []


def test_a_class_without_thresholds_goes_on_while_all_ranks_are_busy():
    classes = [PolicyClass(f"c{i}", 1, policy_family=f"f{i}", cache_bucket="all", prefill_busy_threshold=bound)
               for i, bound in enumerate((0, None))]
    story = Story(1, profile=PolicyProfile(tuple(classes), (CacheBucket("all", 0),), "f0"))
    assert short(story.arrive("x") + story.arrive("y")) == "D x, P y"
    assert short(story.arrive("z", policy_class="f1")) == "D z"


def test_classes_share_what_becomes_free():
    """Quanta 3:1 and unit costs, one place at a time: DESIGN D5 keeps the ratio however often one polls."""
    story = Story(1, profile=profile(3, 1, prefill_busy_threshold=0))
    story.arrive("x", 1)
    story.many(*[arrive(1, f"a{i}", 1) for i in range(9)])
    story.many(*[arrive(1, f"b{i}", 1, policy_class="f1") for i in range(3)])
    served, name, attempt = "", "x", 1
    for _ in range(12):
        story.tick()
        (action,) = story.prefill(name, attempt)
        name, attempt = action.request_id, action.attempt
        served += name[0]
    assert served == "baaabaaabaaa"  # the first class had its turn with x


def test_a_batch_that_stores_and_loses_everything():
    story = Story(1, **WAITS)
    story.arrive("x")
    events = [arrive(1, f"r{i}") for i in range(50)] + [RequestCancelled(1, f"r{i}") for i in range(50)]
    assert story.many(*events) == ()
    assert story.many(PrefillCompleted(2, "x", 1)) == ()
    assert story.core.stats().aborted == 50


def test_memory_for_looking_at_ranks_follows_the_fleet():
    fleet = Room(SchedulerConfig(), range(2_048))
    request = Request("a", 8, allowed_workers=frozenset({1}), overlap=Overlap(((Rank(1), 1),)))
    fleet.classify(request)
    assert fleet.scratch() == (2_048, 2_048)
    for worker_id in range(16, 2_048):
        fleet.lose(worker_id)
    fleet.classify(replace(request, request_id="b"))
    assert fleet.scratch() == (32, 32)
