"""The owner without its loop: order of what it takes, whose mistake is whose, and what is left when it ends."""

from __future__ import annotations

import logging

import pytest
from kvcore.drivers.lease import Phase
from kvcore.drivers.owner import Owner
from kvcore.drivers.protocol import Answer, Misuse, claim, disclaim
from kvcore.drivers.told import HINTS_MAX
from live_hand import WAITS, Hand, HandLease

from kvcore.actions import EvictReason, RefreshOverlap, RejectReason
from kvcore.config import IndexMode
from kvcore.errors import InvalidEvent
from kvcore.events import (
    CapacityHinted,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import Capacity
from kvcore.request import Overlap, Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

FRESH = {"index": IndexMode.OFF, "refresh_after_ns": 1, "refresh_timeout_ns": 50, **WAITS}


def tell_failed(hand: Hand) -> HandLease:
    """A lease that has told its end."""
    lease = hand.admit("a")
    lease.completed()
    return lease


# What is taken when.


def test_a_turn_takes_what_was_told_and_then_one_item():
    hand = Hand(1)
    first = hand.admit("first")
    first.completed()
    hand.lease("a")
    hand.lease("b")
    since = len(hand.steps)
    hand.owner.turn()
    assert hand.heard(since) == ["RequestFinished first", "RequestArrived a"]


def test_the_stamp_is_the_time_of_taking_and_never_goes_back():
    hand = Hand(1)
    hand.now = 500
    hand.lease("a")
    hand.now = 900
    hand.turns()
    hand.now = 300
    hand.lease("b")
    hand.turns()
    assert [events[0].now_ns for events, _ in hand.steps[-2:]] == [900, 900]


def test_time_passes_by_itself():
    hand = Hand(1, booking_ttl_ns=1000)
    lease = hand.admit("a")
    assert hand.owner.idle_s() == 1e-6
    assert hand.owner.tick() is False
    hand.now = 1000
    assert hand.owner.tick() is True
    assert hand.steps[-1][0] == (TimerFired(1000),)
    assert lease.evicted.reason is EvictReason.BOOKING_EXPIRED


def test_a_sleep_that_ends_a_little_early_by_the_clock_still_counts():
    """Otherwise a driver whose sleep is rounded would spin until its clock has caught up."""
    hand = Hand(1, booking_ttl_ns=1000)
    hand.admit("a")
    hand.now = 999
    assert hand.owner.tick(slept=True) is True
    assert hand.steps[-1][0] == (TimerFired(1000),)
    assert hand.owner.now_ns() == 1000


def test_nothing_due_nothing_stepped():
    hand = Hand(1)
    steps = len(hand.steps)
    assert hand.owner.idle_s() is None
    assert (hand.owner.tick(), hand.owner.tick(slept=True), hand.turns()) == (False, False, 0)
    assert len(hand.steps) == steps


# Hints, barriers, answers from outside.


def test_hints_are_one_fact():
    hand = Hand(1, 2, **WAITS)
    hand.owner.hint([Rank(1)])
    hand.owner.hint([Rank(2), Rank(9)])
    assert hand.hear() == ["CapacityHinted"]
    assert hand.steps[-1][0] == (CapacityHinted(0, (Rank(1), Rank(2), Rank(9))),)


@pytest.mark.parametrize("calls", [[None], [[Rank(1)], None], [[Rank(1)] * HINTS_MAX, [Rank(1)]]])
def test_too_many_hints_are_all(calls):
    hand = Hand(1, **WAITS)
    for ranks in calls:
        hand.owner.hint(ranks)
    hand.turns()
    assert hand.steps[-1][0] == (CapacityHinted(0),)
    hand.owner.hint([Rank(1)])
    hand.turns()
    assert hand.steps[-1][0] == (CapacityHinted(0, (Rank(1),)),)


def test_a_hint_of_nothing_is_none():
    hand = Hand(1)
    hand.owner.hint([])
    assert hand.hear() == []


def test_hints_are_ranks():
    hand = Hand(1)
    with pytest.raises(ValueError, match="must be Ranks"):
        hand.owner.hint([1])
    assert hand.turns() == 0


def ask_about(hand: Hand) -> HandLease:
    """One that has waited so long that its turn comes with a question."""
    busy = hand.admit("busy")
    lease = hand.lease("a", 8, block_hashes=(1, 2))
    hand.turns()
    hand.now = 1
    busy.completed()
    hand.turns()
    return lease


def test_a_question_is_asked_and_its_answer_stepped():
    asked = []
    hand = Hand(1, ask=asked.append, **FRESH)
    lease = ask_about(hand)
    assert asked == [RefreshOverlap("a", 1, (1, 2))]
    assert not lease.is_decided
    hand.owner.answer(asked[0], Overlap(device=((Rank(1), 1),)))
    hand.turns()
    lease.take_over()
    assert lease.overlap_blocks == 1


def test_without_anybody_to_ask_the_core_goes_on_at_once():
    hand = Hand(1, **FRESH)
    lease = ask_about(hand)
    assert hand.steps[-1][0] == (OverlapRefreshed(1, "a", 1, None),)
    assert lease.is_decided


def test_an_answer_that_is_nonsense_counts_as_none(caplog):
    """It is stepped alone, so nobody else's facts are refused with it."""
    asked = []
    hand = Hand(1, 2, ask=asked.append, **FRESH)
    other = hand.admit("other")
    lease = ask_about(hand)
    other.context(10)
    hand.owner.answer(asked[0], Overlap(device=((Rank(1), -5),)))
    with caplog.at_level(logging.ERROR):
        assert hand.hear() == ["ContextAdvanced other", "OverlapRefreshed a"]
    assert lease.is_decided
    assert [record.request_id for record in caplog.records] == ["a"]


# Whose mistake is whose.


def test_a_request_that_is_none_is_its_callers_mistake():
    hand = Hand(1)
    wrong, right = hand.lease("a", 0), hand.lease("b")
    hand.turns()
    assert isinstance(wrong.error, InvalidEvent)
    assert (wrong.woken, right.error, right.is_decided) == (1, None, True)
    assert list(hand.live) == ["b"]


def test_a_duplicate_id_is_the_newcomers():
    hand = Hand(1)
    first = hand.admit("a")
    second = hand.admit("a")
    assert second.error.reason is RejectReason.DUPLICATE_ID
    assert (first.error, first.completed()) == (None, Answer.APPLIED)
    second.leave(completed=False)
    hand.turns()
    assert (hand.core.stats().completed, hand.live) == (1, {})


def test_an_id_whose_request_ends_in_the_step_of_its_next_arrival():
    """The deadline of the one that waits comes first (DESIGN 3, item 3): two answers, each to its own caller."""
    hand = Hand(1, **WAITS)
    hand.admit("busy")
    old = hand.admit("a", deadline_ns=10)
    hand.now = 10
    new = hand.admit("a")
    assert old.error.reason is RejectReason.DEADLINE_EXPIRED
    assert (new.error, new.phase, hand.live["a"]) == (None, Phase.WAITING, new)


def test_an_id_whose_request_has_ended_unasked():
    """An eviction that nobody has answered for booking_ttl_ns: the core forgets it without a word."""
    hand = Hand(1, booking_ttl_ns=10)
    old = hand.admit("a")
    hand.now = 10
    hand.owner.tick()
    assert old.phase is Phase.EVICTED
    hand.now = 20
    new = hand.admit("a")
    assert (hand.live["a"], new.attempt) == (new, 2)
    old.leave(completed=True)
    assert hand.hear() == []
    assert hand.core.stats().running_requests == 1


def test_an_id_may_be_used_again_while_the_earlier_use_is_being_dropped():
    """Its owner decides from the lease, not from the id, what is to be told: nothing reaches the newcomer."""
    hand = Hand(1, **WAITS)
    busy = hand.admit("busy")
    old = hand.admit("a", deadline_ns=5)
    hand.now = 5
    hand.owner.tick()
    new = hand.lease("a")
    old.abandon()
    hand.turns()
    assert new.phase is Phase.WAITING
    busy.completed()
    hand.turns()
    assert new.phase is Phase.BOOKED


@pytest.mark.parametrize("make", [
    lambda now_ns: PrefillCompleted(now_ns, "a", 1), lambda now_ns: RequestArrived(now_ns, Request("x", 1))])
def test_facts_of_leases_are_not_for_others(make):
    hand = Hand(1)
    hand.admit("a")
    steps = len(hand.steps)
    with pytest.raises(Misuse, match="leases only"):
        hand.submit(make)
    assert len(hand.steps) == steps


@pytest.mark.parametrize(("make", "error"), [
    (lambda now_ns: TimerFired(now_ns + 1), Misuse), (lambda now_ns: "nothing", Misuse),
    (lambda now_ns: 1 // 0, ZeroDivisionError),
    (lambda now_ns: WorkerStatusChanged(now_ns, 1, 0, lease_ns=0), InvalidEvent)])
def test_a_fact_that_is_wrong_is_its_callers_mistake(make, error):
    """One from the future would make the stamps of everybody else go back."""
    hand = Hand(1)
    lease = tell_failed(hand)
    with pytest.raises(error):
        hand.submit(make)
    assert lease.phase is Phase.ENDED
    assert hand.owner.is_open


def test_a_fact_about_nothing_is_no_change():
    hand = Hand(1)
    assert hand.submit(lambda now_ns: RequestCancelled(now_ns, "nobody")) is Answer.NO_CHANGE
    assert hand.submit(lambda now_ns: CapacityHinted(now_ns)) is Answer.APPLIED


def test_several_facts_are_one_step():
    hand = Hand(1)
    hand.submit(lambda now_ns: WorkerRemoved(now_ns, 1), lambda now_ns: WorkerUpserted(now_ns, WorkerConfig(2)))
    assert len(hand.steps[-1][0]) == 2


def test_a_retry_names_the_incarnation_that_it_ran_on():
    hand = Hand()
    hand.submit(lambda now_ns: WorkerUpserted(now_ns, WorkerConfig(1), 5))
    lease = hand.admit("a")
    lease.failed(retry=True, shun_ns=10)
    hand.turns()
    assert hand.steps[-1][0][0].incarnation == 5
    assert hand.core.stats().stale_events == 0


def test_a_tap_serves_one_router():
    events = []

    class Journal:
        def batch(self, *step):
            events.append(step)

    journal = Journal()
    first = Owner(Scheduler(), int, journal.batch, wake=int, took=int, ask=None)
    with pytest.raises(Misuse, match="belongs to another router"):
        Owner(Scheduler(), int, journal.batch, wake=int, took=int, ask=None)
    first.close()
    Owner(Scheduler(), int, journal.batch, wake=int, took=int, ask=None).close()
    assert [len(step[0]) for step in events] == [1, 1]


def test_taps_that_are_not_claimed_are_not_given_back():
    tap, mine, others = (lambda *step: None), object(), object()
    claim(tap, mine)
    disclaim(tap, others)
    with pytest.raises(Misuse):
        claim(tap, others)
    disclaim(tap, mine)
    claim(None, others)
    disclaim(None, others)


# What queues.


@pytest.mark.parametrize(("config", "queues"), [
    ({}, False), (WAITS, True), ({"default_busy_threshold_frac": 0.5}, True), ({"capacity": Capacity.STRICT}, True)])
def test_whether_anything_waits_for_capacity(config, queues):
    hand = Hand(1, **config)
    assert hand.owner.queues is queues
    reply = hand.job(lambda reply: hand.owner.recheck(reply) or hand.owner.submit([]))
    assert reply is not None


def test_another_policy_may_queue():
    hand = Hand(1)
    hand.submit(lambda now_ns: PolicyReplaced(now_ns, WAITS["profile"]))
    assert hand.owner.queues
