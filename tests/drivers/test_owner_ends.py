"""The owner without its loop: closing, draining, faults, how many facts a step takes. test_owner.py has the rest."""

from __future__ import annotations

import logging

import pytest
from kvcore.drivers.protocol import Answer, Closed
from kvcore.drivers.told import FACTS_MAX
from live_hand import WAITS, Hand
from stories import profile

from kvcore.actions import EvictReason, RejectReason
from kvcore.admission import AdmissionPolicy
from kvcore.errors import AdmissionError, InvalidEvent
from kvcore.events import (
    CapacityHinted,
    Drained,
)
from kvcore.policy import AdmissionSpec

# The end.


def test_closing_rejects_what_waits_and_evicts_what_runs():
    hand = Hand(1, **WAITS)
    runs, waits = hand.admit("runs"), hand.admit("waits")
    inbox, work = hand.lease("inbox"), hand.job(lambda _: 7)
    hand.owner.close()
    assert runs.evicted.reason is EvictReason.DRAIN_DEADLINE
    assert [lease.error.reason for lease in (waits, inbox)] == [RejectReason.SHUTTING_DOWN] * 2
    assert work.result(0) == 7
    assert not hand.owner.is_open
    assert runs.completed() is Answer.APPLIED
    assert (hand.core.stats().completed, hand.core.stats().live_requests) == (1, 0)


def test_closing_twice_is_closing_once():
    hand = Hand(1)
    hand.owner.close()
    hand.owner.close()
    assert hand.heard().count("Drained") == 1


def test_the_tap_is_free_once_the_router_is_closed():
    hand = Hand(1)
    lease = hand.admit("a")
    hand.owner.close()
    steps = len(hand.steps)
    lease.leave(completed=True)
    assert len(hand.steps) == steps
    assert hand.core.stats().live_requests == 0


def test_draining_waits_for_what_runs():
    hand = Hand(1, **WAITS)
    runs, waits = hand.admit("runs"), hand.admit("waits")
    reply = hand.job(lambda reply: hand.owner.drain(100, reply))
    hand.turns()
    assert waits.error.reason is RejectReason.SHUTTING_DOWN
    assert not reply.done()
    runs.completed()
    hand.turns()
    assert reply.result(0) is None


def test_draining_ends_with_the_grace_whoever_still_holds_a_lease():
    hand = Hand(1)
    lease = hand.admit("a")
    reply = hand.job(lambda reply: hand.owner.drain(100, reply))
    hand.turns()
    hand.now = 100
    hand.owner.tick()
    assert reply.result(0) is None
    assert lease.evicted.reason is EvictReason.DRAIN_DEADLINE


def test_draining_an_idle_router_is_done_at_once():
    hand = Hand(1)
    reply = hand.job(lambda reply: hand.owner.drain(2**62, reply))
    hand.turns()
    assert reply.result(0) is None
    assert hand.steps[-1][0] == (Drained(0, 2**62 - 1),)


class Broken:
    """A tap that fails at its nth step."""

    def __init__(self, after: int) -> None:
        self.left = after

    def tap(self, *step) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("disk full")


def faulty(steps: int):
    """A hand whose tap fails after so many steps from now."""
    hand = Hand(1, **WAITS)
    hand.owner._tap = Broken(steps).tap
    return hand


def turn_until_it_fails(hand: Hand) -> BaseException:
    """What a driver's loop does."""
    try:
        hand.turns()
    except Exception as fault:
        hand.owner.close(fault.__cause__)
        return fault.__cause__
    raise AssertionError("it has not failed")


def test_a_tap_that_fails_ends_the_router_and_nothing_stays_booked():
    """The journal stands before effects: what could not be recorded is not carried out, and is taken back."""
    hand = faulty(2)
    runs = hand.admit("runs")
    waits = hand.admit("waits")
    decided, inbox, work = hand.lease("decided"), hand.lease("inbox"), hand.job(lambda _: 7)
    assert isinstance(turn_until_it_fails(hand), OSError)
    for error in (waits.error, decided.error, inbox.error, work.exception(0)):
        assert isinstance(error, Closed)
        assert isinstance(error.__cause__, OSError)
    assert runs.evicted.reason is EvictReason.DRAIN_DEADLINE
    runs.leave(completed=True)
    assert (hand.core.stats().live_requests, hand.core.audit(), hand.live) == (0, [], {})


def test_a_caller_whose_step_fails_hears_of_it_and_so_does_the_driver():
    hand = faulty(0)
    work = hand.job(lambda _: hand.owner.submit([lambda now_ns: CapacityHinted(now_ns)]))
    fault = turn_until_it_fails(hand)
    assert work.exception(0).__cause__ is fault


def test_whoever_waits_for_the_drain_hears_of_the_fault():
    hand = faulty(3)
    hand.admit("runs")
    reply = hand.job(lambda reply: hand.owner.drain(100, reply))
    hand.turns()
    hand.lease("late")
    hand.lease("later")
    fault = turn_until_it_fails(hand)
    assert reply.exception(0).__cause__ is fault


class Quarrelsome(AdmissionPolicy):
    """Poisons its scheduler."""

    def decide(self, view):
        raise KeyError("no")


def test_a_poisoned_core_ends_the_router(caplog):
    quarrel = {"profile": profile(admission=AdmissionSpec("quarrel"))}
    hand = Hand(1, admission={"quarrel": lambda parameters: Quarrelsome()}, **quarrel)
    runs = hand.admit("runs", lifecycle=False)
    hand.lease("a")
    last = hand.lease("last")
    assert isinstance(turn_until_it_fails(hand), AdmissionError)
    assert isinstance(last.error, Closed)
    with caplog.at_level(logging.ERROR):
        runs.leave(completed=True)
    assert "nothing more can be released" in caplog.text


def test_a_batch_that_the_core_refuses_is_a_fault(monkeypatch):
    """Leases check what they are told, so this is a bug of a driver; better no router than one that has lost facts."""
    hand = Hand(1)
    lease = hand.admit("a")
    lease._run.context_tokens = 2**54
    hand.told.tell(lease)
    assert isinstance(turn_until_it_fails(hand), InvalidEvent)


@pytest.mark.parametrize("dropped", [FACTS_MAX - 1, FACTS_MAX, FACTS_MAX + 1, 100_000])
def test_any_number_of_drops_delays_an_arrival_by_one_batch(dropped):
    hand = Hand(1)
    leases = [hand.admit(f"r{i}") for i in range(dropped)]
    wakes = hand.wakes
    for lease in leases:
        lease.leave(completed=False)
    new = hand.lease("new")
    since = len(hand.steps)
    hand.owner.turn()
    assert new.is_decided
    told = [len(events) for events, _ in hand.steps[since:]]
    assert len(told) == 2
    assert told[0] <= FACTS_MAX
    assert told[1] == 1
    assert hand.wakes - wakes == dropped  # the flag that makes one wake-up of them is the driver's
    hand.turns()
    assert (hand.core.stats().aborted, list(hand.live)) == (dropped, ["new"])
