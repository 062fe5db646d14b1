"""Every checker accepts a true history and rejects the same history with one thing wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from checker_cases import (
    BUCKETS,
    QUEUE,
    TWO_UP,
    UP,
    Case,
    arrive,
    check_case,
    config,
    dispatch,
    first,
    instead,
    plus,
    without,
)
from checkers import CHECKERS, faults_of
from checkers_overtaking import detours
from oracle import Oracle
from recording import Run, record

from kvcore.actions import Evict, EvictReason, Ignored, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    BlocksStored,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, QueuePolicy
from kvcore.request import Overlap, Rank, WorkerConfig

R = RejectReason
REMOVAL = (*QUEUE[:2], (WorkerRemoved(5, 1),))
FINISHED = (*QUEUE[:2], (RequestFinished(5, "a", 1),), (RequestFinished(6, "a", 1),), (WorkerRemoved(7, 1),))
REPEATED = (*QUEUE[:2], (PrefillCompleted(5, "a", 1),), (PrefillCompleted(6, "a", 1),))
EVICT = Evict("a", 1, 1, EvictReason.WORKER_REMOVED)
EXPIRED = replace(EVICT, reason=EvictReason.BOOKING_EXPIRED)
TTL = (*QUEUE[:2], (OutputBlockAdded(5, "a", 1),), (TimerFired(12),), (TimerFired(15),))
OVERDUE = (*QUEUE[:2], (arrive(1, "b", deadline_ns=5),), (TimerFired(4),), (TimerFired(5),))
JUMP = (*QUEUE[:3], (arrive(2, "c", strict_priority=1),), (PrefillCompleted(3, "a", 1),))
LIMITED = (*QUEUE[:4],)
DEAR = (*QUEUE[:2], (arrive(1, "b", 9),), (arrive(1, "c", 7),), (PrefillCompleted(3, "a", 1),))
TAINTED = ((WorkerUpserted(0, WorkerConfig(1, taints=frozenset({"a"}))), WorkerUpserted(0, WorkerConfig(2))),
           (arrive(0, "a", required_taints=frozenset({"a"})),), (arrive(1, "b", pinned=Rank(2)),))
#: All in one batch: worker 1 loses its taint, worker 2 gains it.
UNTAINTED = ((TAINTED[0][0], *TWO_UP, WorkerUpserted(0, WorkerConfig(2, taints=frozenset({"a"}))), *TAINTED[1]),)
PINNED = (TWO_UP, (arrive(0, "a", pinned=Rank(1)),), (arrive(1, "b", allowed_workers=frozenset({2})),))
FULL = Reject("c", R.QUEUE_FULL_REQUESTS, 0, 1, 1)
NEVER_WAITS = config(prefill_busy_threshold=None)
HALF = Overlap(((Rank(1), 1),))
#: b costs less than c by what is cached of it.
HALF_CACHED = (*QUEUE[:2], (arrive(1, "c", 7),), (arrive(2, "b", 9, overlap=HALF),), (PrefillCompleted(3, "a", 1),))
CACHED = (*QUEUE[:2], (arrive(1, "b", overlap=HALF),), (arrive(2, "c"),))
#: a keeps worker 1 busy. b may use no other and hides c, which could run on worker 2; the lane of worker 2 is open.
HIDDEN = (TWO_UP, (arrive(0, "a", pinned=Rank(1)),), (arrive(1, "b", allowed_workers=frozenset({1})),),
          (arrive(2, "c"),), (arrive(3, "d", pinned=Rank(2)),))
#: The head of the shared lane could run on worker 2, but the oldest may not be overtaken, and waits for worker 1.
HELD = (*HIDDEN[:3], (arrive(2, "c", strict_priority=1),), HIDDEN[4])
LOST = (TWO_UP, HIDDEN[1], (arrive(1, "b", pinned=Rank(1)),), (WorkerRemoved(2, 1),))
OLDER_PIN = (*QUEUE[:2], (arrive(1, "b", pinned=Rank(1)),), (PrefillCompleted(2, "a", 1), arrive(2, "c")))
OLDER = (*QUEUE[:3], (arrive(2, "c", pinned=Rank(1)),), QUEUE[4])
LATER = replace(dispatch("c", 2), wait_ns=1)
TOGETHER = (TWO_UP, (arrive(0, "a"), arrive(0, "b")))
CROWD = (UP, (arrive(0, "a", sequence_hashes=(1, 2)), arrive(0, "b", sequence_hashes=(3, 4))))
SHARED = (UP, (arrive(0, "a", sequence_hashes=(1, 2)),), (OutputBlockAdded(1, "a", 1, 0.25),),
          (arrive(2, "b", sequence_hashes=(1, 3)),), (PrefillCompleted(3, "a", 1),), (arrive(4, "c"),))
REFUSED = (*QUEUE[:2], (arrive(1, "b"), arrive(1, "c")))
INDEXED = replace(config(), index=IndexMode.EVENTS)
STORED = (TWO_UP, (BlocksStored(0, 2, 0, 0, (7,)),), (arrive(1, "a", block_hashes=(7, 8)),))

CASES = [
    Case("one_life_each", "stored and not told to wait", config(), QUEUE, 2, without(Park)),
    Case("one_life_each", "dispatched twice", config(), QUEUE, 4, plus(dispatch("a", 3))),
    Case("one_life_each", "rejected while it runs", config(), QUEUE, 4, plus(Reject("a", R.WOULD_QUEUE, 0))),
    Case("one_life_each", "parked again", config(), QUEUE, 3, plus(Park("b", 0))),
    Case("one_life_each", "evicted after its end", config(), FINISHED, 4, plus(EVICT)),
    Case("one_life_each", "ended twice", config(), FINISHED, 3, instead()),
    Case("one_life_each", "two prefills taken", config(), REPEATED, 3, instead()),
    Case("one_life_each", "a current fact ignored", config(), REPEATED, 2, plus(Ignored("a", 1))),
    Case("one_life_each", "a live id taken twice", config(), (*QUEUE[:3], (arrive(2, "b"),)), 3, instead(Park("b", 0))),
    Case("one_life_each", "an unknown id cancelled", config(), (UP, (RequestCancelled(1, "x"),)), 1, instead()),
    Case("dispatches_follow_arrivals", "out of nothing", config(), QUEUE, 4, plus(dispatch("x", 3))),
    Case("dispatches_follow_arrivals", "an attempt left out", config(), QUEUE, 4, first(attempt=3)),
    Case("dispatches_follow_arrivals", "an attempt used again", config(), QUEUE, 4, first(attempt=1)),
    Case("releases_once", "evicted twice", config(), REMOVAL, 2, plus(EVICT)),
    Case("releases_once", "evicted after its end", config(), FINISHED, 4, plus(EVICT)),
    Case("releases_once", "two prefills taken", config(), REPEATED, 3, instead()),
    Case("releases_once", "two ends taken", config(), FINISHED, 3, instead()),
    Case("evictions_are_justified", "the worker is there", config(), QUEUE, 4, plus(EVICT)),
    Case("evictions_are_justified", "another worker named", config(), REMOVAL, 2, first(worker_id=2)),
    Case("evictions_are_justified", "before its time", config(10), TTL, 3, plus(EXPIRED)),
    Case("evictions_are_justified", "without a time to live", config(), QUEUE, 4, plus(EXPIRED)),
    Case("parks_once", "twice in a batch", config(), QUEUE, 2, plus(Park("b", 0))),
    Case("parks_once", "not in its batch of arrival", config(), QUEUE, 3, plus(Park("b", 0))),
    Case("parks_once", "before a dispatch", config(), QUEUE, 2, plus(dispatch("b", 2))),
    Case("parks_once", "in a class of limit 0", config(request_queue_limit_per_worker=0), QUEUE, 2,
         instead(Park("b", 0))),
    Case("lanes_keep_their_order", "last come, first served", config(), QUEUE, 4,
         instead(dispatch("c", 2, wait_ns=1))),
    Case("lanes_keep_their_order", "strict priority passed over", config(), JUMP, 4,
         instead(dispatch("b", 2, wait_ns=2))),
    Case("lanes_keep_their_order", "the dear one first", config(queue_policy=QueuePolicy.WSPT), DEAR, 4,
         instead(dispatch("b", 2, 9, 2))),
    Case("lanes_keep_their_order", "what is cached is not charged", config(queue_policy=QueuePolicy.WSPT), HALF_CACHED,
         4, instead(dispatch("c", 2, 7, 2))),
    Case("classes_are_right", "another family", config(quanta=(10, 10)), QUEUE, 2, first(class_index=1)),
    Case("classes_are_right", "another bucket", replace(config(), profile=BUCKETS), CACHED, 2, first(class_index=1)),
    Case("limits_hold", "one too many", config(request_queue_limit_per_worker=1), LIMITED, 3, instead(Park("c", 0))),
    Case("limits_hold", "tokens beyond the bound", config(raw_isl_token_queue_limit_per_worker=8), LIMITED, 3,
         instead(Park("c", 0))),
    Case("limits_hold", "cached tokens beyond the bound", config(cached_token_queue_limit_per_worker=4), CACHED, 3,
         instead(Park("c", 0))),
    Case("deadlines_hold", "dispatched at its deadline", config(), OVERDUE, 4, instead(dispatch("b", 2, wait_ns=4))),
    Case("deadlines_hold", "waits on", config(), OVERDUE, 4, instead()),
    Case("deadlines_hold", "a wrong wait", config(), QUEUE, 4, first(wait_ns=1)),
    Case("ranks_are_allowed", "no such rank", config(), QUEUE, 4, first(dp_rank=1)),
    Case("ranks_are_allowed", "not the pin", config(), PINNED, 1, first(worker_id=2)),
    Case("ranks_are_allowed", "not on the list", config(), PINNED, 2, first(worker_id=1)),
    Case("ranks_are_allowed", "without a taint", config(), TAINTED, 1, first(worker_id=2)),
    Case("ranks_are_allowed", "a taint that it has lost", config(), UNTAINTED, 0, first(worker_id=1)),
    Case("ranks_are_allowed", "books too little", config(), QUEUE, 4, first(prefill_tokens=7)),
    Case("ranks_are_allowed", "cached beyond the prompt", config(), QUEUE, 4,
         first(cached_tokens=9, prefill_tokens=-1)),
    Case("work_is_conserved", "a free rank unused", config(), QUEUE, 4, instead()),
    Case("work_is_conserved", "in a class that never waits", NEVER_WAITS, QUEUE, 2, instead(Park("b", 0))),
    Case("work_is_conserved", "its pin is free", config(), HIDDEN, 4, instead(Park("d", 0))),
    Case("work_is_conserved", "a rank of its list is free", config(), PINNED, 2, instead(Park("b", 0))),
    Case("work_is_conserved", "its pin has gone", config(), LOST, 3, without(Reject)),
    Case("work_is_conserved", "a free rank, also for the oldest", config(max_overtake_tokens=0), QUEUE, 4, instead()),
    Case("work_is_conserved", "a free pin beside a lane held back", config(max_overtake_tokens=0), HELD, 4,
         instead(Park("d", 0))),
    Case("best_heads_go_first", "a later arrival before an older pin", config(), OLDER_PIN, 3,
         instead(dispatch("c", 2), Park("b", 0))),
    Case("best_heads_go_first", "a later pin before an older head", config(), OLDER, 4, instead(LATER)),
    Case("best_heads_go_first", "also where limits may refuse", config(request_queue_limit_per_worker=9), OLDER, 4,
         instead(LATER)),
    Case("capacity_is_not_exceeded", "onto a busy rank", config(), QUEUE, 2, instead(dispatch("b", 2))),
    Case("capacity_is_not_exceeded", "though its list is busy", config(), HIDDEN, 2, instead(dispatch("b", 2))),
    Case("selections_see_every_booking", "two on one rank", NEVER_WAITS, TOGETHER, 1,
         lambda actions: [actions[0], replace(actions[1], worker_id=actions[0].worker_id, potential_decode_blocks=4)]),
    Case("selections_see_every_booking", "one before it in its batch not counted", NEVER_WAITS, CROWD, 1,
         lambda actions: [actions[0], replace(actions[1], potential_decode_blocks=2)]),
    Case("selections_see_every_booking", "a shared block counted twice", NEVER_WAITS, SHARED, 3,
         first(potential_decode_blocks=4)),
    Case("selections_see_every_booking", "a block counted that has faded", NEVER_WAITS, SHARED, 5,
         first(potential_decode_blocks=7)),
    Case("selections_see_every_booking", "a cache not seen", INDEXED, STORED, 2,
         first(overlap_blocks=0, cached_tokens=0, prefill_tokens=8)),
    Case("selections_see_every_booking", "the cache of another", INDEXED, STORED, 2, first(worker_id=1)),
    Case("counters_are_sums", "one too many", config(request_queue_limit_per_worker=1), LIMITED, 3, first(current=2)),
    Case("counters_are_sums", "tokens of who came", config(raw_isl_token_queue_limit_per_worker=8), LIMITED, 3,
         first(current=16)),
    Case("counters_are_sums", "cached tokens of who runs", config(cached_token_queue_limit_per_worker=4), CACHED, 3,
         first(current=8)),
    Case("counters_are_sums", "of its own batch", config(request_queue_limit_per_worker=0), REFUSED, 2,
         first(current=0)),
    Case("evictions_are_not_forgotten", "on a rank that goes", config(), REMOVAL, 2, without(Evict)),
    Case("evictions_are_not_forgotten", "after its time", config(10), TTL, 4, without(Evict)),
    Case("evictions_are_not_forgotten", "another reason", config(10), TTL, 4, first(reason=EvictReason.WORKER_REMOVED)),
    Case("refusals_are_justified", "it may wait", config(), QUEUE, 3, instead(Reject("c", R.WOULD_QUEUE, 0))),
    Case("refusals_are_justified", "no deadline", config(), QUEUE, 3, instead(Reject("c", R.DEADLINE_EXPIRED, 0))),
    Case("refusals_are_justified", "a worker is there", config(), QUEUE, 3, instead(Reject("c", R.NO_WORKERS))),
    Case("refusals_are_justified", "the rank is there", config(), PINNED, 1,
         instead(Reject("a", R.PINNED_WORKER_UNAVAILABLE))),
    Case("refusals_are_justified", "a rank is allowed", config(), PINNED, 2,
         instead(Reject("b", R.NO_ELIGIBLE_WORKER))),
    Case("refusals_are_justified", "the taint is there", config(), TAINTED, 1,
         instead(Reject("a", R.NO_ELIGIBLE_WORKER))),
    Case("refusals_are_justified", "the pin needs no taint", config(), TAINTED, 2,
         instead(Reject("b", R.NO_ELIGIBLE_WORKER))),
    Case("refusals_are_justified", "no list forbids it", config(), PINNED, 1,
         instead(Reject("a", R.PINNED_WORKER_NOT_ALLOWED))),
    Case("refusals_are_justified", "no such limit", config(), QUEUE, 3, instead(FULL)),
    Case("refusals_are_justified", "another limit", config(request_queue_limit_per_worker=1), LIMITED, 3,
         first(limit=2)),
    Case("refusals_are_justified", "below the limit", config(request_queue_limit_per_worker=1), LIMITED, 3,
         first(current=0)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_checker_bites(case):
    check_case(case)


def drained(made: SchedulerConfig, arrivals: list[RequestArrived]) -> Run:
    """One batch of arrivals, then one prompt at a time until nobody waits."""
    scheduler = Oracle(made)
    run = record(scheduler, (UP, tuple(arrivals)))
    while scheduler.stats().waiting_requests:
        running = next(x for x in scheduler.live.values() if x.booking is not None and not x.booking.prefill_done)
        events = (PrefillCompleted(scheduler.now_ns + 1, running.request.request_id, running.attempt),)
        run.add(events, scheduler.step_many(events))
    return run


def shares_run(arbitration: Arbitration) -> Run:
    """Two classes of equal quanta, costs 2 and 3 quanta."""
    arrivals = [arrive(0, f"r{i}", 20 + 10 * (i % 2), policy_class=f"f{i % 2}") for i in range(60)]
    return drained(config(quanta=(10, 10), arbitration=arbitration), arrivals)


def detours_run(bound: int | None) -> Run:
    """The last to come is the first to go, but for the bound."""
    made = config(max_overtake_tokens=bound, queue_policy=QueuePolicy.LCFS)
    return drained(made, [arrive(i, f"r{i}", 4 + i % 5) for i in range(40)])


@pytest.mark.parametrize("bound", [0, 3, 20, 200])
def test_overtaking_checker_bites(bound):
    """Also where the bound is missed by a request."""
    assert faults_of(detours_run(bound)) == []
    most = max(overtaken for *_, overtaken in detours(detours_run(bound)))
    assert bound - 8 < most <= bound
    run = detours_run(bound + 8)
    run.config = detours_run(bound).config
    assert CHECKERS["overtaking_is_bounded"](run)


def test_shares_checker_bites():
    assert faults_of(shares_run(Arbitration.EXACT)) == []
    run = shares_run(Arbitration.REFERENCE)
    run.config = shares_run(Arbitration.EXACT).config
    assert CHECKERS["shares_are_bounded"](run)


def test_every_checker_has_a_case():
    elsewhere = {"shares_are_bounded", "overtaking_is_bounded", "strict_capacity_holds", "states_are_respected"}
    assert {case.checker for case in CASES} | elsewhere == set(CHECKERS)
