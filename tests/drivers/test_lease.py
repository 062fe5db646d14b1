"""The lease alone, turned by hand: what its answers mean, in which order its facts are told; the first end wins."""

from __future__ import annotations

import threading

import pytest
from kvcore.drivers.lease import Phase
from kvcore.drivers.protocol import Answer, Misuse, Rejected, Withdrawn
from kvcore.drivers.told import FACTS_MAX
from live_hand import WAITS, Hand, HandLease

from kvcore.actions import EvictReason, RejectReason
from kvcore.events import (
    ContextAdvanced,
    DispatchFailed,
    Outcome,
    OutputBlockAdded,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerStatusChanged,
)
from kvcore.request import Request

APPLIED, NO_CHANGE = Answer.APPLIED, Answer.NO_CHANGE


def last(hand: Hand):
    """The facts of the last step."""
    return hand.steps[-1][0]


def test_an_answer_is_a_condition():
    assert APPLIED
    assert not NO_CHANGE


def test_a_decision_is_seen_once_it_is_taken_over():
    hand = Hand(7)
    lease = hand.lease("a", 10)
    with pytest.raises(Misuse, match="not been dispatched"):
        _ = lease.worker_id
    hand.turns()
    assert (lease.woken, lease.is_decided) == (1, True)
    lease.take_over()
    assert (lease.worker_id, lease.dp_rank, lease.attempt, lease.class_index) == (7, 0, 1, 0)
    assert (lease.cached_tokens, lease.overlap_blocks, lease.wait_ns) == (0, 0, 0)


def test_facts_are_told_in_order_and_once():
    hand = Hand(1)
    lease = hand.admit("a")
    assert [lease.accepted(), lease.accepted()] == [APPLIED, NO_CHANGE]
    assert [lease.prefill_done(), lease.prefill_done()] == [APPLIED, NO_CHANGE]
    assert [lease.output_block(), lease.output_block(0.5)] == [APPLIED, APPLIED]
    assert [lease.context(12), lease.context(12), lease.context(16)] == [APPLIED, NO_CHANGE, APPLIED]
    assert [lease.completed(20), lease.completed(), lease.failed()] == [APPLIED, NO_CHANGE, NO_CHANGE]
    assert hand.hear() == [
        "DispatchAccepted a", "PrefillCompleted a", "OutputBlockAdded a", "OutputBlockAdded a", "ContextAdvanced a",
        "RequestFinished a"]
    assert [event.decay_fraction for event in last(hand)[2:4]] == [None, 0.5]
    assert last(hand)[4:] == (ContextAdvanced(0, "a", 1, 16), RequestFinished(0, "a", 1, Outcome.COMPLETED, 20))
    assert (hand.live, hand.live.booked, lease.ignored) == ({}, 0, 0)


def test_a_lease_stands_on_the_list_once_and_wakes_once():
    hand = Hand(1)
    lease = hand.admit("a")
    before = hand.wakes
    for _ in range(100):
        lease.output_block()
    assert (len(hand.told.waiting), hand.wakes - before) == (1, 1)
    assert hand.hear() == ["OutputBlockAdded a"] * 100


def test_the_same_fraction_again_is_told_again():
    """The blocks that only this request uses may be others by now (DESIGN D9)."""
    hand = Hand(1)
    lease = hand.admit("a")
    for _ in range(2):
        lease.output_block(0.5)
        hand.turns()
        assert last(hand) == (OutputBlockAdded(0, "a", 1, 0.5),)
    lease.output_block()
    hand.turns()
    assert last(hand) == (OutputBlockAdded(0, "a", 1),)


def test_progress_implies_acceptance():
    lease = Hand(1).admit("a")
    lease.output_block()
    assert lease.accepted() is NO_CHANGE


def test_a_lost_acceptance_is_told_before_the_end():
    """actor.md 5.5: marked before anybody is notified, so the end says it if the notice never came."""
    hand = Hand(1)
    lease = hand.admit("a")
    tell, hand.told.tell = hand.told.tell, lambda item: None
    lease.accepted()
    hand.told.tell = tell
    assert hand.hear() == []
    lease.leave(completed=True)
    assert hand.hear() == ["DispatchAccepted a", "RequestFinished a"]


@pytest.mark.parametrize(("completed", "outcome"), [(True, Outcome.COMPLETED), (False, Outcome.ABORTED)])
def test_leaving_says_how_it_ended_if_nobody_has(completed, outcome):
    hand = Hand(1)
    hand.admit("a").leave(completed)
    hand.turns()
    assert last(hand) == (RequestFinished(0, "a", 1, outcome),)


def test_completed_before_the_last_item_stays_completed():
    hand = Hand(1)
    lease = hand.admit("a")
    lease.completed()
    lease.leave(completed=False)
    hand.turns()
    assert hand.core.stats().completed == 1
    assert hand.heard()[-1] == "RequestFinished a"


@pytest.mark.parametrize("call", ["accepted", "prefill_done", "output_block", "completed", "failed"])
def test_a_lease_that_is_over_refuses_every_call(call):
    hand = Hand(1)
    lease = hand.admit("a")
    lease.leave(completed=True)
    hand.turns()
    steps = len(hand.steps)
    with pytest.raises(Misuse, match="over"):
        getattr(lease, call)()
    assert (hand.turns(), len(hand.steps)) == (0, steps)


def test_it_is_entered_once():
    lease = Hand(1).admit("a")
    with pytest.raises(Misuse, match="entered before"):
        lease.enter()


def test_another_thread_is_refused_and_changes_nothing():
    hand = Hand(1)
    lease = HandLease(Request("a", 8), hand.told, hand.live, threading.get_ident() + 1)
    hand.put(lease)
    hand.turns()
    lease.take_over()
    with pytest.raises(Misuse, match="thread"):
        lease.completed()
    assert hand.turns() == 0


@pytest.mark.parametrize("tokens", [-1, 2**53 + 1, 1.0, True, "9"])
def test_context_tokens_are_checked_where_they_are_given(tokens):
    lease = Hand(1).admit("a")
    with pytest.raises(ValueError, match="context tokens"):
        lease.context(tokens)
    with pytest.raises(ValueError, match="context tokens"):
        lease.completed(tokens)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_fractions_are_checked_where_they_are_given(fraction):
    lease = Hand(1).admit("a")
    with pytest.raises(ValueError, match="decay_fraction"):
        lease.output_block(fraction)
    assert lease.accepted() is APPLIED  # nothing of it has been noted


@pytest.mark.parametrize("shun_ns", [0, -1, 2**62, 1.5, True])
def test_shunning_is_checked_where_it_is_asked_for(shun_ns):
    lease = Hand(1).admit("a")
    with pytest.raises(ValueError, match="shun_ns"):
        lease.failed(retry=True, shun_ns=shun_ns)
    assert lease.completed() is APPLIED


def test_a_failure_is_undone_exactly():
    hand = Hand(1)
    before = hand.core.loads().tolist()
    lease = hand.admit("a", 40)
    lease.output_block()
    assert lease.failed() is APPLIED
    assert hand.hear() == ["OutputBlockAdded a", "DispatchFailed a"]
    assert hand.core.loads().tolist() == before
    assert lease.phase is Phase.ENDED


def test_a_retry_shuns_the_worker_in_the_same_step():
    hand = Hand(1, 2)
    lease = hand.admit("a")
    first = lease.worker_id
    lease.failed(retry=True, shun_ns=1000)
    assert lease.is_away
    hand.turns()
    mark, failed = last(hand)
    assert isinstance(mark, WorkerStatusChanged)
    assert (mark.worker_id, mark.available, mark.lease_ns) == (first, False, 1000)
    assert failed == DispatchFailed(0, "a", 1, True)
    assert lease.is_decided
    lease.take_over()
    assert (lease.worker_id, lease.attempt) == (3 - first, 2)
    lease.completed()
    hand.turns()
    assert (hand.live, hand.live.booked, hand.core.stats().retried) == ({}, 0, 1)


def test_between_two_bookings_nothing_can_be_told():
    """What is said of the old run while the new one is there already must not reach it."""
    hand = Hand(1)
    lease = hand.admit("a")
    lease.output_block()
    lease.failed(retry=True)
    hand.turns()
    assert lease.is_decided
    assert [lease.accepted(), lease.output_block(), lease.completed(), lease.failed()] == [NO_CHANGE] * 4
    assert lease.attempt == 1
    lease.take_over()
    assert (lease.attempt, lease.accepted()) == (2, APPLIED)
    assert hand.hear() == ["DispatchAccepted a"]


def test_a_retry_that_is_refused_ends_with_the_reason():
    hand = Hand(1, attempts_max=1)
    lease = hand.admit("a")
    lease.failed(retry=True)
    hand.turns()
    assert isinstance(lease.error, Rejected)
    assert lease.error.reason is RejectReason.RETRIES_EXHAUSTED
    lease.leave(completed=False)
    assert hand.hear() == []


def test_leaving_while_put_back_cancels_it():
    hand = Hand(1, 2, **WAITS)
    lease = hand.admit("a", pinned=None)
    lease.failed(retry=True, shun_ns=1)
    lease.leave(completed=True)
    assert hand.hear() == ["WorkerStatusChanged", "DispatchFailed a"]
    assert last(hand)[1] == DispatchFailed(0, "a", 1, False)  # nobody would take the next booking
    assert hand.core.stats().live_requests == 0


def test_a_booking_that_nobody_takes_over_is_undone():
    """FIELD-REPORTS E4: the caller has gone between decision and delivery."""
    hand = Hand(1)
    before = hand.core.loads().tolist()
    lease = hand.lease("a")
    hand.turns()
    assert hand.core.stats().running_requests == 1
    lease.abandon()
    assert hand.hear() == ["DispatchFailed a"]
    assert (hand.core.loads().tolist(), hand.core.stats().aborted, hand.live) == (before, 1, {})


def test_one_that_is_abandoned_in_the_queue_is_cancelled():
    hand = Hand(1, **WAITS)
    hand.admit("first")
    lease = hand.admit("a")
    assert lease.phase is Phase.WAITING
    lease.abandon()
    assert hand.hear() == ["RequestCancelled a"]
    assert list(hand.live) == ["first"]


def test_one_that_is_abandoned_in_the_inbox_is_never_stepped():
    """Its place is given back all the same."""
    hand = Hand(1)
    places = hand.places
    hand.lease("a").abandon()
    assert hand.hear() == []
    assert (hand.places - places, hand.core.stats().arrived) == (1, 0)


def test_an_eviction_interrupts_and_may_still_be_answered_in_any_way():
    hand = Hand(1)
    lease = hand.admit("a")
    hand.submit(lambda now_ns: WorkerRemoved(now_ns, 1))
    assert lease.interrupted == 1
    assert lease.evicted.reason is EvictReason.WORKER_REMOVED
    assert (hand.live.booked, lease.phase) == (0, Phase.EVICTED)
    assert [lease.accepted(), lease.output_block(), lease.context(9)] == [NO_CHANGE] * 3
    assert lease.completed() is APPLIED
    assert hand.hear() == ["RequestFinished a"]
    assert (hand.core.stats().completed, hand.live) == (1, {})


def test_an_eviction_is_answered_by_leaving():
    hand = Hand(1)
    lease = hand.admit("a")
    hand.submit(lambda now_ns: WorkerRemoved(now_ns, 1))
    lease.leave(completed=False)
    hand.turns()
    assert last(hand) == (RequestFinished(0, "a", 1, Outcome.ABORTED),)
    assert hand.core.stats().live_requests == 0


def test_what_expires_in_the_step_that_takes_it_is_counted():
    """The only thing that an answer cannot know; the holder hears of the eviction."""
    hand = Hand(1, booking_ttl_ns=100)
    lease = hand.admit("a")
    hand.now = 100
    assert lease.output_block() is APPLIED
    hand.turns()
    assert (lease.ignored, lease.interrupted, lease.evicted.reason) == (1, 1, EvictReason.BOOKING_EXPIRED)


def test_an_end_in_the_step_of_the_eviction_answers_it():
    hand = Hand(1, booking_ttl_ns=100)
    lease = hand.admit("a")
    hand.now = 100
    lease.completed()
    hand.turns()
    assert (lease.ignored, lease.interrupted, hand.live, hand.live.booked) == (0, 0, {}, 0)
    assert hand.core.stats().completed == 1


def test_a_retry_in_the_step_of_the_eviction_gets_a_new_booking():
    hand = Hand(1, booking_ttl_ns=100)
    lease = hand.admit("a")
    hand.now = 100
    lease.failed(retry=True)
    hand.turns()
    lease.take_over()
    assert (lease.attempt, lease.evicted, hand.live.booked) == (2, None, 1)


@pytest.mark.parametrize("waits", [True, False])
def test_a_request_can_be_withdrawn_by_others(waits):
    hand = Hand(1, **WAITS)
    if waits:
        hand.admit("first")
    lease = hand.admit("a")
    woken = lease.woken
    assert hand.submit(lambda now_ns: RequestCancelled(now_ns, "a")) is APPLIED
    assert isinstance(lease.error, Withdrawn)
    assert (lease.woken - woken, lease.interrupted) == ((1, 0) if waits else (0, 1))
    assert lease.completed() is NO_CHANGE
    lease.leave(completed=True)
    assert hand.hear() == []
    assert hand.live.booked == int(waits)


def test_much_to_tell_takes_several_steps_and_the_end_comes_last():
    hand = Hand(1)
    lease = hand.admit("a")
    for _ in range(1000):
        lease.output_block()
    lease.context(5)
    lease.completed()
    since = len(hand.steps)
    assert hand.hear() == ["OutputBlockAdded a"] * 253 + ["ContextAdvanced a"] + (
        ["OutputBlockAdded a"] * 747 + ["RequestFinished a"])
    assert all(len(events) <= FACTS_MAX for events, _ in hand.steps[since:])
