"""The oracle on dispatches that are accepted, or fail and come back; the answers were worked out by hand."""

from __future__ import annotations

import pytest
from retry_stories import fail, leave, oracle
from stories import arrive, short

from kvcore.actions import Dispatch, Ignored, Park, Reject, RejectReason
from kvcore.events import (
    DispatchAccepted,
    OutputBlockAdded,
    PrefillCompleted,
    RequestCancelled,
    TimerFired,
)
from kvcore.policy import Arbitration, QueuePolicy
from kvcore.request import Overlap, Rank

R = RejectReason


# Acceptance.


def test_acceptance_is_progress_once():
    core = oracle(booking_ttl_ns=10)
    core.step(arrive(0, "a"))
    assert core.step(DispatchAccepted(4, "a", 2)) == (Ignored("a", 2),)
    assert core.next_deadline_ns == 10
    assert core.step(DispatchAccepted(5, "a", 1)) == ()
    assert core.next_deadline_ns == 15
    assert core.step(DispatchAccepted(6, "a", 1)) == (Ignored("a", 1),)
    assert core.step(DispatchAccepted(6, "nobody", 1)) == (Ignored("nobody", 1),)
    assert core.next_deadline_ns == 15
    assert short(core.step(TimerFired(15))) == "E a"
    assert short(core.step(DispatchAccepted(15, "a", 1))) == "I a"


@pytest.mark.parametrize("progress", [PrefillCompleted(1, "a", 1), OutputBlockAdded(1, "a", 1)])
def test_progress_implies_acceptance(progress):
    core = oracle()
    core.step_many((arrive(0, "a"), progress))
    assert core.step(DispatchAccepted(2, "a", 1)) == ()  # in the same batch it came before the dispatch
    again = oracle()
    again.step(arrive(0, "a"))
    assert again.step(progress) == ()
    assert short(again.step(DispatchAccepted(2, "a", 1))) == "I a"


def test_every_attempt_is_accepted_anew():
    core = oracle()
    core.step(arrive(0, "a"))
    core.step(DispatchAccepted(1, "a", 1))
    assert short(core.step(fail(2, "a", 1))) == "D a"
    assert short(core.step(DispatchAccepted(3, "a", 1))) == "I a"
    assert core.step(DispatchAccepted(3, "a", 2)) == ()


# Failure.


def test_failure_without_retry_is_an_end():
    core = oracle()
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    assert short(core.step(fail(1, "a", 1, retry=False))) == "D b"
    assert core.step(fail(1, "a", 1)) == (Ignored("a", 1),)
    assert (core.stats().aborted, core.stats().live_requests, core.stats().retried) == (1, 1, 0)


@pytest.mark.parametrize("event", [fail(2, "a", 2), fail(2, "b", 1), fail(2, "nobody", 1)])
def test_failures_of_what_does_not_run_are_stale(event):
    core = oracle()
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    assert core.step(event) == (Ignored(event.request_id, event.attempt),)
    assert (core.stats().stale_events, core.stats().running_requests) == (1, 1)


def test_retry_is_a_new_attempt_that_has_waited_since_arrival():
    core = oracle()
    assert core.step(arrive(5, "a")) == (Dispatch("a", 1, 1, 0, 0, 0, 0, 8, 2, 0),)
    assert core.step(fail(8, "a", 1)) == (Dispatch("a", 2, 1, 0, 0, 0, 0, 8, 2, 3),)
    assert core.loads()[0][:6] == (1, 0, 1, 8, 0, 2)
    stats = core.stats()
    assert (stats.arrived, stats.dispatched, stats.retried, stats.live_requests) == (1, 2, 1, 1)
    assert (stats.classes[0].dispatched, stats.classes[0].dispatched_cost_tokens) == (2, 8)


def test_a_lease_before_it_keeps_it_from_going_straight_back():
    core = oracle(workers=2)
    first = core.step(arrive(0, "a", overlap=Overlap(((Rank(1), 1),))))[0]
    assert first.worker_id == 1
    assert core.step_many((leave(1), fail(1, "a", 1)))[0].worker_id == 2
    assert core.step_many((leave(2, 2), fail(2, "a", 2))) == (Park("a", 0),)
    assert short(core.step(TimerFired(101))) == "D a"


def test_put_back_with_its_old_key_and_seq():
    core = oracle(keys={"queue_policy": QueuePolicy.FCFS})
    core.step_many((arrive(0, "a"), arrive(1, "b"), arrive(2, "c")))
    assert core.step_many((leave(3), fail(3, "a", 1), arrive(4, "d"))) == (Park("a", 0), Park("d", 0))
    assert short(core.step(TimerFired(103))) == "D a"
    assert short(core.step(PrefillCompleted(104, "a", 2))) == "D b"


def test_wspt_keeps_the_key_of_its_cost():
    """What costs nothing now still has the weight of eight tokens."""
    core = oracle(keys={"queue_policy": QueuePolicy.WSPT})
    core.step_many((arrive(0, "a", 8), arrive(0, "b", 5)))
    assert short(core.step_many((leave(1), fail(1, "b", 1)))) == "P b"
    core.step(arrive(2, "c", 7))
    assert short(core.step(TimerFired(101))) == "D b"
    assert short(core.step(PrefillCompleted(102, "b", 2))) == "D c"


def test_what_is_put_back_counts_in_its_class_and_costs_nothing():
    core = oracle()
    core.step_many((arrive(0, "a", 9, overlap=Overlap(((Rank(1), 1),))), arrive(0, "b", 7)))
    core.step_many((leave(1), fail(1, "a", 1)))
    row = core.stats().classes[0]
    assert (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cached_tokens) == (2, 16, 4)
    assert row.waiting_cost_tokens == 7


def test_no_limit_keeps_it_out_but_it_keeps_others_out():
    core = oracle(keys={"request_queue_limit_per_worker": 1})
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    assert short(core.step_many((leave(1), fail(1, "a", 1)))) == "P a"
    assert core.step(arrive(1, "c")) == (Reject("c", R.QUEUE_FULL_REQUESTS, 0, 2, 1, None),)


def test_nothing_is_charged_and_nothing_granted():
    """The deficit of a class pays for others of it; a put-back one is affordable at once."""
    core = oracle(quanta=(10, 10))
    core.step_many((arrive(0, "a", 8), arrive(0, "b", 9), arrive(0, "c")))
    assert core.queue.classes[0].deficit == 2
    core.step_many((leave(1), fail(1, "a", 1)))
    assert core.queue.classes[0].deficit == 2
    assert short(core.step(TimerFired(101))) == "D a"
    assert core.queue.classes[0].deficit == 2
    assert short(core.step(PrefillCompleted(102, "a", 2))) == "D b"
    assert core.queue.classes[0].deficit == 2 + 10 - 9


def test_reference_mode_grants_nothing_either():
    core = oracle(quanta=(5, 5), arbitration=Arbitration.REFERENCE)
    core.step_many((arrive(0, "a", 8), arrive(0, "b", 9)))
    assert core.queue.classes[0].deficit == 10 - 8
    core.step_many((leave(1), fail(1, "a", 1)))
    assert short(core.step(TimerFired(101))) == "D a"
    assert core.queue.classes[0].deficit == 2


def test_not_in_the_window_of_retry_after():
    core = oracle()
    core.step(arrive(0, "a"))
    core.step(fail(1, "a", 1))
    core.step(fail(2, "a", 2))
    assert list(core.recent[0]) == [(0, 8)]


def test_parks_by_seq_once_each():
    core = oracle()
    core.step_many((arrive(0, "a"), arrive(0, "b")))
    batch = (fail(1, "a", 1), arrive(1, "c"), leave(1), RequestCancelled(1, "b"))
    assert core.step_many(batch) == (Park("a", 0), Park("c", 0))
    twice = oracle(keys={"request_queue_limit_per_worker": 1})
    twice.step_many((arrive(0, "a"), arrive(0, "b")))
    # The arrival meets a full class, so there is a drain within the batch, in which "a" runs; then it fails again.
    batch = (fail(1, "a", 1), arrive(1, "c"), leave(1), fail(1, "a", 2))
    assert short(twice.step_many(batch)) == "D a, QUEUE_FULL_REQUESTS c, P a"


def test_who_may_not_wait_is_answered_by_seq():
    core = oracle()
    core.step(arrive(0, "a", do_not_queue=True))
    batch = (leave(1), arrive(1, "b", do_not_queue=True), fail(1, "a", 1))
    assert core.step_many(batch) == (Reject("a", R.WOULD_QUEUE, 0), Reject("b", R.WOULD_QUEUE, 0))
    zero = oracle(keys={"raw_isl_token_queue_limit_per_worker": 0})
    zero.step(arrive(0, "a"))
    assert zero.step_many((leave(1), fail(1, "a", 1))) == (Reject("a", R.QUEUE_FULL_RAW_TOKENS, 0, 0, 0, None),)


def test_put_back_has_been_overtaken_by_nobody_and_is_the_youngest():
    """D17 with M = 9: what came back is younger than what waited meanwhile, though its seq is lower."""
    core = oracle(quanta=(100,), keys={"queue_policy": QueuePolicy.LCFS, "max_overtake_tokens": 9})
    core.step(arrive(0, "x"))
    core.step(arrive(1, "b"))
    assert short(core.step_many((leave(2), fail(2, "x", 1), arrive(3, "c")))) == "P x, P c"
    queue = core.queue.classes[0]
    assert [entry.payload.request.request_id for entry in queue.entries] == ["b", "x", "c"]
    # c overtakes b and x by 8 tokens each. b would bear one more, d has eight; b is older than x, so it does not
    # overtake it. Then x would have to bear d, and does not; it costs nothing itself.
    assert short(core.step(TimerFired(102))) == "D c"
    core.step(arrive(103, "d"))
    assert short(core.step(PrefillCompleted(104, "c", 2))) == "D b"
    assert [entry.overtaken for entry in queue.entries] == [8, 0]
    assert short(core.step(PrefillCompleted(105, "b", 3))) == "D x"
    assert short(core.step(PrefillCompleted(106, "x", 4))) == "D d"
