"""Every checker bites where dispatches are accepted, fail, come again, and where the scheduler drains.

As in test_checkers_bite.py: a true history, and the same one with one thing wrong.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from checker_cases import TWO_UP, UP, Case, arrive, check_case, config, dispatch, first, instead, plus, without
from checkers import CHECKERS, faults_of
from checkers_overtaking import detours
from oracle import Oracle
from recording import Run, record
from retry_stories import fail, leave

from kvcore.actions import Evict, EvictReason, Park, Reject, RejectReason
from kvcore.config import OnOverload, SchedulerConfig
from kvcore.events import (
    DispatchAccepted,
    DispatchFailed,
    Drained,
    PrefillCompleted,
    RequestFinished,
    TimerFired,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, Capacity, QueuePolicy
from kvcore.request import Rank, WorkerConfig

R = RejectReason
NEVER_WAITS = config(prefill_busy_threshold=None)
LIMIT = config(request_queue_limit_per_worker=1)
#: a runs and b waits. Then a is put back, and is the first to run when the worker is reached again.
AGAIN = (UP, (arrive(0, "a"),), (arrive(1, "b"),), (leave(2, lease_ns=8), fail(2, "a", 1)), (TimerFired(10),))
SECOND = dispatch("a", 2, wait_ns=10)
LATER = dispatch("b", 2, wait_ns=9)
#: The same with a pin: a is the head of a lane of its own.
PINNED = (TWO_UP, (arrive(0, "a", pinned=Rank(1)),), (arrive(0, "x", pinned=Rank(2)),), (arrive(1, "b"),), AGAIN[3],
          AGAIN[4])
#: a fails on worker 1, which is idle but for it, and is sent to worker 2 at once.
ELSEWHERE = (TWO_UP, (arrive(0, "x", pinned=Rank(2)),), (arrive(0, "a"),), (leave(3), fail(3, "a", 2)))
#: Nothing waits: a fails and runs again at once, then b comes.
AT_ONCE = (UP, (arrive(0, "a"),), (fail(1, "a", 1),), (arrive(2, "b"),))
LIMITED = (*AGAIN[:4], (arrive(3, "c"),))
ACCEPTED = (*AT_ONCE[:3], (DispatchAccepted(2, "a", 2),), (DispatchAccepted(3, "a", 2),), (TimerFired(11),),
            (TimerFired(12),))
FAILED = (*AT_ONCE[:3], (fail(2, "a", 2, retry=False),), (fail(3, "a", 2),), (RequestFinished(4, "a", 2),))
#: a and b run, c waits; then nobody is let in any more, and who runs at 20 is evicted.
DRAIN = (TWO_UP, (arrive(0, "a"), arrive(0, "b"), arrive(0, "c")), (fail(1, "a", 1), Drained(1, 20)),
         (arrive(2, "d"),), (TimerFired(19),), (TimerFired(20),), (fail(21, "b", 2),))
OVERDUE = (UP, (arrive(0, "a", deadline_ns=7),), AGAIN[2], AGAIN[3], (TimerFired(6),), (TimerFired(7),))
TTL = (UP, (arrive(0, "a"),), (fail(5, "a", 1),), (TimerFired(14),), (TimerFired(15),))
ENOUGH = (*AT_ONCE[:3], (fail(2, "a", 2),), (arrive(3, "b"),))
BLOCKS = (UP, (arrive(0, "a", 12, sequence_hashes=(1, 2, 3)),), (fail(1, "a", 1),),
          (arrive(2, "b", sequence_hashes=(1, 9)),), (fail(3, "a", 2, retry=False),),
          (arrive(4, "c", sequence_hashes=(1, 2)),))
ONE_EACH = ((WorkerUpserted(0, WorkerConfig(1, max_requests=1)),), *AGAIN[1:])
STRICT = config(prefill_busy_threshold=None, capacity=Capacity.STRICT)
#: It is put back while all that it may use is overloaded; its looks are at 10 and 20, as before.
OVERLOADED = (UP, (arrive(0, "a"),), (WorkerStatusChanged(1, 1, 0, "", True, True),), (fail(12, "a", 1),),
              (TimerFired(19),), (TimerFired(20),))
WAIT = replace(config(), on_overload=OnOverload.WAIT, overload_wait_ns=10)
EXPIRED = Evict("a", 2, 1, EvictReason.BOOKING_EXPIRED)

CASES = [
    Case("one_life_each", "put back and not told to wait", config(), AGAIN, 3, without(Park)),
    Case("one_life_each", "ended though it is to be tried again", NEVER_WAITS, AT_ONCE, 2, instead()),
    Case("one_life_each", "parked after its end", NEVER_WAITS, FAILED, 3, plus(Park("a", 0))),
    Case("one_life_each", "the attempt before taken", NEVER_WAITS, (*AT_ONCE, (PrefillCompleted(3, "a", 1),)), 4,
         instead()),
    Case("one_life_each", "an acceptance taken twice", NEVER_WAITS, ACCEPTED, 4, instead()),
    Case("one_life_each", "a second failure taken", NEVER_WAITS, FAILED, 4, instead()),
    Case("one_life_each", "once more than allowed", replace(NEVER_WAITS, attempts_max=2), ENOUGH, 3,
         instead(dispatch("a", 3, wait_ns=2))),
    Case("dispatches_follow_arrivals", "one retry, two dispatches", config(), AGAIN, 4, plus(dispatch("a", 3))),
    Case("dispatches_follow_arrivals", "failed for good", NEVER_WAITS, FAILED, 3, plus(dispatch("a", 3))),
    Case("dispatches_follow_arrivals", "after a drain", config(), DRAIN, 3, plus(dispatch("d", 4))),
    Case("releases_once", "failed twice", NEVER_WAITS, FAILED, 4, instead()),
    Case("releases_once", "finished after it failed", NEVER_WAITS, FAILED, 5, instead()),
    Case("releases_once", "accepted twice", NEVER_WAITS, ACCEPTED, 4, instead()),
    Case("releases_once", "evicted after it failed", NEVER_WAITS, AT_ONCE, 3,
         plus(Evict("a", 1, 1, EvictReason.WORKER_REMOVED))),
    Case("evictions_are_justified", "the second dispatch counts anew", replace(NEVER_WAITS, booking_ttl_ns=10), TTL, 3,
         plus(EXPIRED)),
    Case("evictions_are_justified", "an acceptance is a sign of life", replace(NEVER_WAITS, booking_ttl_ns=10),
         ACCEPTED, 5, plus(EXPIRED)),
    Case("evictions_are_justified", "the drain goes on", config(), DRAIN, 4,
         plus(Evict("b", 2, 2, EvictReason.DRAIN_DEADLINE))),
    Case("parks_once", "told twice that it is put back", config(), AGAIN, 3, plus(Park("a", 0))),
    Case("parks_once", "somebody else is put back", config(), AGAIN, 3, plus(Park("b", 0))),
    Case("parks_once", "in a drain", config(), DRAIN, 3, instead(Park("d", 0))),
    Case("lanes_keep_their_order", "put back behind a later one", config(), AGAIN, 4, instead(LATER)),
    Case("limits_hold", "whoever is put back counts", LIMIT, LIMITED, 4, instead(Park("c", 0))),
    Case("deadlines_hold", "put back and past its deadline", config(), OVERDUE, 5, instead()),
    Case("deadlines_hold", "dispatched again past its deadline", config(), OVERDUE, 5,
         instead(dispatch("a", 2, wait_ns=7))),
    Case("deadlines_hold", "the wait counts from the arrival", config(), AGAIN, 4, first(wait_ns=8)),
    Case("deadlines_hold", "waits in a drain", config(), DRAIN, 2, lambda actions: [
        action for action in actions if action.request_id != "c"]),
    Case("deadlines_hold", "put back, its next look finds overload", WAIT, OVERLOADED, 5, instead()),
    Case("ranks_are_allowed", "not the pin, the second time", config(), PINNED, 5, first(worker_id=2)),
    Case("ranks_are_allowed", "books too little, the second time", config(), AGAIN, 4, first(prefill_tokens=7)),
    Case("refusals_are_justified", "it has attempts left", config(), AGAIN, 3,
         instead(Reject("a", R.RETRIES_EXHAUSTED, 0))),
    Case("refusals_are_justified", "nobody has failed", replace(config(), attempts_max=1), AGAIN, 2,
         instead(Reject("b", R.RETRIES_EXHAUSTED, 0))),
    Case("refusals_are_justified", "no shutdown", config(), AGAIN, 3, instead(Reject("a", R.SHUTTING_DOWN, 0))),
    Case("refusals_are_justified", "a worker is there", config(), AGAIN, 3, instead(Reject("a", R.NO_WORKERS, 0))),
    Case("refusals_are_justified", "put back, before its look", WAIT, OVERLOADED, 4,
         instead(Reject("a", R.ALL_ELIGIBLE_OVERLOADED, 0))),
    Case("classes_are_right", "another family, the second time", config(quanta=(10, 10)), AGAIN, 4,
         first(class_index=1)),
    Case("work_is_conserved", "put back, and a free rank unused", config(), AGAIN, 4, instead()),
    Case("work_is_conserved", "the rank of a failed dispatch is free", config(),
         (*AGAIN[:3], (fail(2, "a", 1, retry=False),)), 3, instead()),
    Case("best_heads_go_first", "a later head before the pin that was put back", config(), PINNED, 5, instead(LATER)),
    Case("capacity_is_not_exceeded", "its second dispatch makes the rank busy", config(), AGAIN, 4,
         plus(dispatch("b", 3, wait_ns=9))),
    Case("strict_capacity_holds", "its second dispatch fills the rank", STRICT, ONE_EACH, 4,
         plus(dispatch("b", 3, wait_ns=9))),
    Case("states_are_respected", "back to the worker that failed", NEVER_WAITS, ELSEWHERE, 3, first(worker_id=1)),
    Case("selections_see_every_booking", "a failed booking still counted", NEVER_WAITS, BLOCKS, 5,
         first(potential_decode_blocks=5)),
    Case("selections_see_every_booking", "the second booking not counted", NEVER_WAITS, BLOCKS, 3,
         first(potential_decode_blocks=2)),
    Case("counters_are_sums", "who was put back is forgotten", LIMIT, LIMITED, 4, first(current=1)),
    Case("evictions_are_not_forgotten", "of the second dispatch", replace(NEVER_WAITS, booking_ttl_ns=10), TTL, 4,
         without(Evict)),
    Case("evictions_are_not_forgotten", "after an acceptance", replace(NEVER_WAITS, booking_ttl_ns=10), ACCEPTED, 6,
         without(Evict)),
    Case("evictions_are_not_forgotten", "at the end of the drain", config(), DRAIN, 5, without(Evict)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_checker_bites(case):
    check_case(case)


def drained(made: SchedulerConfig, arrivals: list) -> Run:
    """One batch of arrivals, then one prompt at a time until nobody waits; every third first fails and comes again."""
    scheduler = Oracle(made)
    run = record(scheduler, (UP, tuple(arrivals)))
    while scheduler.stats().waiting_requests:
        running = next(x for x in scheduler.live.values() if x.booking is not None and not x.booking.prefill_done)
        now_ns, name = scheduler.now_ns + 1, running.request.request_id
        if running.attempt % 3 == 0 and running.dispatches == 1:
            events = (leave(now_ns, lease_ns=1), DispatchFailed(now_ns, name, running.attempt, True))
        else:
            events = (PrefillCompleted(now_ns, name, running.attempt),)
        run.add(events, scheduler.step_many(events))
        if isinstance(events[0], WorkerStatusChanged):
            events = (TimerFired(now_ns + 1),)
            run.add(events, scheduler.step_many(events))
    assert scheduler.stats().retried > 5
    return run


def shares_run(arbitration: Arbitration) -> Run:
    """Two classes of equal quanta, costs 2 and 3 quanta."""
    arrivals = [arrive(0, f"r{i}", 20 + 10 * (i % 2), policy_class=f"f{i % 2}") for i in range(60)]
    return drained(config(quanta=(10, 10), arbitration=arbitration), arrivals)


def test_shares_checker_bites():
    assert faults_of(shares_run(Arbitration.EXACT)) == []
    run = shares_run(Arbitration.REFERENCE)
    run.config = shares_run(Arbitration.EXACT).config
    assert CHECKERS["shares_are_bounded"](run)


def detours_run(bound: int | None) -> Run:
    """The last to come is the first to go, but for the bound. Whoever comes again goes first and overtakes nobody."""
    made = config(max_overtake_tokens=bound, queue_policy=QueuePolicy.LCFS)
    return drained(made, [arrive(i, f"r{i}", 4 + i % 5) for i in range(40)])


@pytest.mark.parametrize("bound", [3, 20, 200])
def test_overtaking_checker_bites(bound):
    assert faults_of(detours_run(bound)) == []
    most = max(overtaken for *_, overtaken in detours(detours_run(bound)))
    assert bound - 8 < most <= bound
    run = detours_run(bound + 8)
    run.config = detours_run(bound).config
    assert CHECKERS["overtaking_is_bounded"](run)


def test_every_checker_has_a_case_with_a_retry():
    retried = {case.checker for case in CASES if any(
        isinstance(event, DispatchFailed) and event.retry for batch in case.batches for event in batch)}
    assert retried | {"shares_are_bounded", "overtaking_is_bounded"} == set(CHECKERS)
