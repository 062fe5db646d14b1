"""Waiting for room under strict capacity (DESIGN D8): who runs when it appears, what never fits, limits, deadlines."""

from __future__ import annotations

import pytest
from capacity_stories import FleetStory, capped, held, strict
from stories import arrive, short

from kvcore.actions import Reject, RejectReason
from kvcore.config import OnOverload
from kvcore.events import Outcome, RequestCancelled, RequestFinished
from kvcore.request import Rank

ENDS = {
    "finish": lambda s: s.finish("a", 1),
    "abort": lambda s: s.finish("a", 1, outcome=Outcome.ABORTED),
    "cancel": lambda s: s.cancel("a"),
    "other worker": lambda s: s.upsert(2, total_kv_blocks=9),
    "more blocks": lambda s: s.upsert(1, total_kv_blocks=11),
    "no cap": lambda s: s.upsert(1),
    "restart": lambda s: s.upsert(1, 1, total_kv_blocks=10),
    "more ranks": lambda s: s.upsert(1, total_kv_blocks=10, dp_size=2),
}


@pytest.mark.parametrize("end", ENDS)
def test_who_waits_runs_in_the_step_that_makes_room(end):
    story = capped(10)
    story.run("a", 24)
    story.run("x", 8)
    assert short(story.arrive("b", 12)) == "P b"
    told = [action for action in ENDS[end](story) if action.request_id == "b"]
    assert short(told) == "D b"
    assert story.waiting == 0


def test_eviction_makes_room():
    story = capped(4, booking_ttl_ns=10)
    story.run("a", 16)
    story.at(3).arrive("b", 16)
    assert story.core.next_deadline_ns == 10
    assert short(story.tick(10)) == "E a, D b"
    assert held(story) == 4


def test_the_end_of_a_prefill_makes_no_room():
    story = capped(4)
    story.run("a", 16)
    story.arrive("b", 16)
    assert story.prefill("a", 1) == ()
    assert held(story) == 4


def test_room_for_the_best_goes_to_nobody_smaller():
    """Within a class order is kept: the head waits for its room, and it is not given away behind it."""
    story = capped(10)
    story.run("a", 20)
    story.run("b", 20)
    for name, prompt in (("big", 40), ("small", 4)):
        assert short(story.arrive(name, prompt)) == f"P {name}"
    assert story.finish("a", 1) == ()
    assert short(story.finish("b", 2)) == "D big"
    assert short(story.finish("big", 3)) == "D small"


def test_other_classes_and_pins_go_on_while_a_head_waits_for_room():
    story = FleetStory(profile=strict(10, 10))
    for worker_id in (1, 2):
        story.upsert(worker_id, total_kv_blocks=10)
    story.run("a", 32, pinned=Rank(1))
    story.run("b", 20, pinned=Rank(2))
    assert short(story.arrive("big", 40)) == "P big"
    assert short(story.arrive("pin", 12, pinned=Rank(1))) == "P pin"
    assert short(story.arrive("other", 4, pinned=Rank(2))) == "D other"
    assert short(story.arrive("class", 4, policy_class="f1")) == "D class"


def test_freed_room_goes_to_the_oldest_and_not_to_the_newcomer():
    story = capped(4)
    story.run("a", 16)
    story.arrive("b", 16)
    assert short(story.many(RequestFinished(1, "a", 1), arrive(1, "c", 4))) == "D b, P c"


# Too large.


@pytest.mark.parametrize(("prompt", "output", "wanted"), [
    (40, None, "D a"), (41, None, "TOO_LARGE a"), (36, 4, "D a"), (36, 5, "TOO_LARGE a"), (40, 1, "TOO_LARGE a"),
    (1, 36, "D a"), (1, 37, "TOO_LARGE a"), (2**53, None, "TOO_LARGE a"), (1, 2**53, "TOO_LARGE a")])
def test_what_never_fits_is_refused_at_arrival(prompt, output, wanted):
    story = capped(10)
    assert short(story.arrive("a", prompt, expected_output_tokens=output)) == wanted


def test_sharing_makes_nothing_fit_that_is_too_large():
    """Who shares may end first; then it would hold all of it."""
    story = capped(10)
    story.run("a", 40, block_hashes=tuple(range(10)))
    assert short(story.arrive("b", 44, block_hashes=tuple(range(11)))) == "TOO_LARGE b"


def test_only_ranks_that_may_be_used_can_be_large_enough():
    story = FleetStory(profile=strict())
    story.upsert(1, total_kv_blocks=10, taints=frozenset("x"))
    story.upsert(2, total_kv_blocks=20)
    assert short(story.arrive("a", 80)) == "D a"
    assert short(story.arrive("b", 44, required_taints=frozenset("x"))) == "TOO_LARGE b"
    assert short(story.arrive("c", 44, allowed_workers=frozenset({1}))) == "TOO_LARGE c"
    assert short(story.arrive("d", 44, pinned=Rank(1))) == "TOO_LARGE d"
    story.lose(2)
    assert short(story.arrive("e", 44)) == "TOO_LARGE e"
    story.lose(2, lease_ns=5)
    assert short(story.arrive("f", 44)) == "P f"


LEAVES = {
    "removed": (lambda s: s.remove(2), "TOO_LARGE big"),
    "gone": (lambda s: s.lose(2), "TOO_LARGE big"),
    "smaller": (lambda s: s.upsert(2, total_kv_blocks=19), "TOO_LARGE big"),
    "restarted smaller": (lambda s: s.upsert(2, 1, total_kv_blocks=19), "TOO_LARGE big"),
    "leased": (lambda s: s.lose(2, lease_ns=5), ""),
    "just as large": (lambda s: s.upsert(2, total_kv_blocks=20), ""),
}


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("fields", [{}, {"required_taints": frozenset()}, {"allowed_workers": frozenset({1, 2})}])
def test_what_waits_is_too_large_when_the_last_rank_leaves_that_could_hold_it(leave, fields):
    act, wanted = LEAVES[leave]
    story = capped(10)
    story.upsert(2, total_kv_blocks=20)
    story.run("x", 80)
    assert short(story.arrive("big", 80, **fields)) == "P big"
    told = [action for action in act(story) if action.request_id == "big"]
    assert short(told) == wanted
    if wanted:
        assert told == [Reject("big", RejectReason.TOO_LARGE, 0)]


def test_a_rank_with_few_requests_allowed_is_never_too_small():
    story = capped(10, 1)
    story.run("a", 4)
    assert short(story.arrive("b", 40)) == "P b"


# Those who may not wait, or not for long.


def test_who_may_not_wait_for_room_is_refused_at_once():
    story = capped(10)
    story.run("a", 24)
    assert short(story.arrive("b", 20, do_not_queue=True)) == "WOULD_QUEUE b"
    assert short(story.arrive("c", 16, do_not_queue=True)) == "D c"
    assert held(story) == 10


def test_who_may_not_wait_stands_behind_who_waits():
    """There would be room for it, but not before the head of its class."""
    story = capped(10)
    story.run("a", 24)
    story.arrive("b", 20)
    assert short(story.arrive("c", 4, do_not_queue=True)) == "WOULD_QUEUE c"
    assert short(story.arrive("d", 4, do_not_queue=True, strict_priority=1)) == "D d"


@pytest.mark.parametrize("made", [strict(), strict(prefill_busy_threshold=10**6)], ids=["plain", "threshold"])
def test_every_class_waits_for_room(made):
    story = capped(10, profile=made)
    story.run("a", 40)
    assert short(story.arrive("b", 4)) == "P b"


def test_a_threshold_binds_beside_the_caps():
    story = capped(10, workers=2, profile=strict(prefill_busy_threshold=8))
    story.run("x", 12, pinned=Rank(1))
    assert [story.run(name, 8).worker_id for name in "ab"] == [2, 2]
    assert short(story.arrive("c", 4)) == "P c"     # both are busy, and have room
    assert short(story.prefill("a", 2)) == "D c"
    assert held(story, 2) == 5
    assert short(story.arrive("d", 24)) == "P d"
    assert short(story.prefill("b", 3)) == ""       # calm, and five blocks are too few
    assert short(story.prefill("x", 1)) == "D d"


def test_deadlines_pass_while_waiting_for_room():
    story = capped(10)
    story.run("a", 24)
    story.arrive("b", 40, deadline_ns=50)
    story.arrive("c", 16, deadline_ns=60)
    assert story.core.next_deadline_ns == 50
    assert short(story.tick(50)) == "DEADLINE_EXPIRED b, D c"


def test_a_deadline_at_the_time_of_the_room_is_too_late():
    story = capped(10)
    story.run("a", 40)
    story.arrive("b", 40, deadline_ns=50)
    assert short(story.at(50).finish("a", 1)) == "DEADLINE_EXPIRED b"


def test_the_cancelled_waits_no_more_and_lets_others_go():
    story = capped(10)
    story.run("a", 24)
    story.arrive("b", 20)
    story.arrive("c", 16)
    assert short(story.many(RequestCancelled(1, "b"))) == "D c"
    assert short(story.finish("a", 1)) == ""
    assert held(story) == 4


def test_limits_count_who_waits_for_room():
    story = capped(10, profile=strict(request_queue_limit_per_worker=1))
    story.run("a", 40)
    assert short(story.arrive("b", 8)) == "P b"
    assert story.arrive("c", 8) == (Reject("c", RejectReason.QUEUE_FULL_REQUESTS, 0, 1, 1, None),)
    # What single steps would run no batch refuses.
    assert short(story.many(RequestFinished(1, "a", 1), arrive(1, "c", 8))) == "D b, D c"


def test_a_limit_of_zero_lets_run_what_has_room_and_nothing_wait():
    story = capped(10, profile=strict(request_queue_limit_per_worker=0))
    story.run("a", 24)
    assert short(story.arrive("b", 16)) == "D b"
    assert short(story.arrive("c", 4)) == "QUEUE_FULL_REQUESTS c"


def test_waiting_for_room_and_for_overload_to_end():
    story = capped(10, workers=2, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    story.run("x", 40, pinned=Rank(1))
    story.overload(2)
    assert short(story.arrive("a", 40)) == "P a"
    assert story.tick(10) == ()                     # one rank is open, and full
    story.at(12).overload(1)
    assert short(story.finish("x", 1)) == ""        # has room, and is overloaded
    assert short(story.at(15).say(1)) == "D a"
    assert story.core.next_deadline_ns is None


def test_full_ranks_are_no_overload():
    """Under `reject` too a request waits for room where one of its ranks takes requests at all."""
    story = capped(10, workers=2)
    story.run("x", 40, pinned=Rank(1))
    story.overload(2)
    assert short(story.arrive("a", 4)) == "P a"
    assert short(story.overload(1)) == "ALL_ELIGIBLE_OVERLOADED a"
