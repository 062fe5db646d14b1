"""Checkers of capacity, states and choice: each accepts a true history and rejects it with one thing wrong."""

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
    profile,
)

from kvcore.actions import Park, Reject, RejectReason
from kvcore.config import IndexMode, OnOverload, PrefillDecay, SchedulerConfig
from kvcore.events import (
    BlocksStored,
    LoadReported,
    OutputBlockAdded,
    PrefillCompleted,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import Capacity
from kvcore.request import Overlap, Rank, SelectionWeights, WorkerConfig

R = RejectReason


def strict(**keys) -> SchedulerConfig:
    """Strict capacity, and no thresholds unless said."""
    return config(**{"prefill_busy_threshold": None, "capacity": Capacity.STRICT, **keys})


def free(**keys) -> SchedulerConfig:
    """Nothing waits; costs decide."""
    return SchedulerConfig(4, profile(prefill_busy_threshold=None), **keys)


def up(worker_id: int = 1, **keys) -> tuple[WorkerUpserted, ...]:
    return (WorkerUpserted(0, WorkerConfig(worker_id, **keys)),)


def status(now_ns: int, worker_id: int = 1, lease_ns: int | None = None, source: str = "", **keys):
    return WorkerStatusChanged(now_ns, worker_id, 0, source, lease_ns=lease_ns, **keys)


def overloaded(now_ns: int, worker_id: int = 1, **keys):
    return status(now_ns, worker_id, overloaded=True, **keys)


def away(now_ns: int, worker_id: int = 1, **keys):
    return status(now_ns, worker_id, available=False, **keys)


def reported(now_ns: int, sequence: int, worker_id: int = 1, **keys):
    return LoadReported(now_ns, worker_id, 0, 0, sequence, **keys)


def refused(reason: R, name: str = "b", class_index: int = 0):
    return instead(Reject(name, reason, class_index))


STRICT = strict()
WAIT = replace(config(), on_overload=OnOverload.WAIT, overload_wait_ns=10)
REPORTS = replace(STRICT, reported_load_ttl_ns=10)
FADES = replace(config(), prefill_decay=PrefillDecay.LINEAR)
FAST = up(prefill_tokens_per_s=10**9)
ONE_EACH = (up(max_requests=1), *QUEUE[1:3])
FOUR = up(total_kv_blocks=4)
ANSWERS = (FOUR, (arrive(0, "a", expected_output_tokens=8),), QUEUE[2])
GROWN = (FOUR, (arrive(0, "a"),), (OutputBlockAdded(0, "a", 1),), QUEUE[2], (RequestFinished(2, "a", 1),))
SHARED = (FOUR, (arrive(0, "a", 12, sequence_hashes=(1, 2, 3)),), (arrive(1, "b", 12, sequence_hashes=(1, 2, 4)),),
          (arrive(2, "c", 4),))
OTHERS = (up(max_requests=1), (reported(0, 1, requests=1),), (arrive(1, "a"),), (TimerFired(10),))
OTHER_BLOCKS = (FOUR, (reported(0, 1, blocks=3),), (arrive(1, "a"),), (reported(2, 2, blocks=2),))
SIDE_BY_SIDE = (TWO_UP, (arrive(0, "a", pinned=Rank(1)),), (arrive(1, "b"),))
SMALL = ((*up(total_kv_blocks=2), *up(2, total_kv_blocks=4)), (arrive(0, "a", 16),), (arrive(1, "b", 17),),
         (arrive(2, "c", 16, pinned=Rank(1)),), (arrive(3, "d", 8, expected_output_tokens=9),))
#: b is too large once worker 2 has gone, and is told so while it waits.
SHRINKS = (SMALL[0], SMALL[1], (arrive(1, "b", 12),), (away(2, 2),))
#: Worker 1 is marked, worker 2 is not: a goes to worker 2.
MARKED = {name: (TWO_UP, (mark,), (arrive(1, "a"),), (arrive(2, "b", pinned=Rank(2)),), (arrive(9, "c"),))
          for name, mark in (("overloaded", overloaded(0)), ("gone", away(0)), ("leased", away(0, lease_ns=5)),
                             ("leased as overloaded", overloaded(0, lease_ns=5)))}
OPINIONS = (TWO_UP, (overloaded(0, source="health"), status(0)), (arrive(1, "a"),), (status(2, source="health"),),
            (arrive(3, "b", pinned=Rank(1)),))
RESTARTED = (UP, (overloaded(0),), (WorkerUpserted(1, WorkerConfig(1), 1),), (arrive(2, "a"),))
TIRED = (UP, (overloaded(0),), (arrive(1, "a"),), (arrive(2, "b", pinned=Rank(1)),))
LEASED = (UP, (away(0, lease_ns=20),), (arrive(1, "a"),), (TimerFired(20),))
GONE = (UP, (away(0),), (arrive(1, "a"),), (arrive(2, "b", pinned=Rank(1)),))
#: Worker 1 is overloaded from 1 on; a comes at 2 and is looked at at 12 and 22.
LOOKED_AT = (UP, (overloaded(1),), (arrive(2, "a"),), (TimerFired(11),), (TimerFired(12),))
#: It is busy at the first look and overloaded at the second; this is found out late.
SECOND_LOOK = (UP, (arrive(0, "x"),), (arrive(2, "a"),), (TimerFired(12),), (overloaded(13),), (TimerFired(30),))
#: A lease ends between two looks: at 12 worker 1 was out of reach, at 22 it is overloaded.
LEASE_BETWEEN = (UP, (away(1, lease_ns=14, source="health"), overloaded(1)), (arrive(2, "a"),), (TimerFired(21),),
                 (TimerFired(25),))
FADING = (FAST, (arrive(0, "a"),), (arrive(1, "b"),), (arrive(2, "c"),), (TimerFired(7),), (TimerFired(8),),
          (PrefillCompleted(9, "a", 1),), (TimerFired(16),), (TimerFired(17),))
#: The prefill behind the oldest ends first: its time was not the oldest one's.
CREDIT = (FAST, (arrive(0, "a", 20),), (arrive(3, "b", 4),), (PrefillCompleted(5, "b", 2),), (arrive(6, "c"),),
          (TimerFired(7),))
HOST = (TWO_UP, (BlocksStored(0, 2, 0, 0, (1,), Tier.HOST),), (arrive(1, "a", block_hashes=(1, 2)),))
DECAYED = (TWO_UP, (arrive(0, "x", 40, pinned=Rank(2)),), (BlocksStored(0, 2, 0, 0, tuple(range(1, 16))),),
           (arrive(1, "a", 60, block_hashes=tuple(range(1, 16))),))
PREDICTED = (TWO_UP, (arrive(0, "x", pinned=Rank(2), block_hashes=(1, 2)),), (RequestFinished(1, "x", 1),),
             (arrive(2, "a", block_hashes=(1, 2)),), (RequestFinished(3, "a", 2),),
             (arrive(13, "b", block_hashes=(1, 2)),))
TAINTED = ((*UP, WorkerUpserted(0, WorkerConfig(2, taints=frozenset({"t"})))),
           (arrive(1, "a", preferred_taints=(("t", 1.0),)),))
CROWDED = (TWO_UP, tuple([arrive(0, name, 4, pinned=Rank(worker), track_prefill=False)
                          for name, worker in (("x", 1), ("y", 1), ("z", 2))]), (arrive(1, "a"),))
ELSEWHERE = (TWO_UP, (reported(0, 1, blocks=3),), (arrive(1, "a"),), (TimerFired(10),),
             (arrive(11, "b", pinned=Rank(1)),))
TIERS = Overlap(((Rank(1), 1),), ((Rank(2), 2),), ((Rank(2), 1),), shared=((0, 3),))
TOLD = (TWO_UP, (arrive(0, "a", 16, overlap=TIERS),))
LARGE_FIRST = (FOUR, (arrive(0, "a", 12),), (arrive(1, "b", pinned=Rank(1)),), (arrive(2, "c"),),
               (RequestFinished(3, "a", 1),))
#: Cached on worker 2 only, or in host memory.
ON_TWO = Overlap(((Rank(2), 1),))
AWAY = (TWO_UP, (away(0, 2),), (arrive(1, "a", overlap=ON_TWO),), (away(2, 2, lease_ns=9),),
        (arrive(3, "b", overlap=ON_TWO),))
IN_HOST = (UP, (arrive(0, "a", overlap=Overlap(host=((Rank(1), 1),))),))
OF_A = replace(config(), profile=BUCKETS)

CASES = [
    Case("strict_capacity_holds", "one request too many", STRICT, ONE_EACH, 2, instead(dispatch("b", 2))),
    Case("strict_capacity_holds", "the answer has no room", STRICT, ANSWERS, 2, instead(dispatch("b", 2))),
    Case("strict_capacity_holds", "the answer has grown", STRICT, GROWN, 3, instead(dispatch("b", 2))),
    Case("strict_capacity_holds", "a block beyond a shared prompt", STRICT, SHARED, 3, instead(dispatch("c", 3, 4))),
    Case("strict_capacity_holds", "requests of others", REPORTS, OTHERS, 2, instead(dispatch("a", 1))),
    Case("strict_capacity_holds", "blocks of others", REPORTS, OTHER_BLOCKS, 2, instead(dispatch("a", 1))),
    Case("strict_capacity_holds", "a busy rank beside a free one", strict(prefill_busy_threshold=0), SIDE_BY_SIDE, 2,
         first(worker_id=1, potential_decode_blocks=4)),
    Case("capacity_is_not_exceeded", "no rank has room", STRICT, ONE_EACH, 2, instead(dispatch("b", 2))),
    Case("capacity_is_not_exceeded", "an overloaded rank is none", config(), TIRED, 2, instead(dispatch("a", 1))),
    *[Case("states_are_respected", name, free(), MARKED[name], 2, first(worker_id=1)) for name in MARKED],
    Case("states_are_respected", "another source is content", free(), OPINIONS, 2, first(worker_id=1)),
    Case("ranks_are_allowed", "gone", free(), MARKED["gone"], 2, first(worker_id=1)),
    Case("classes_are_right", "cached where it may not go", OF_A, AWAY, 2, first(class_index=0)),
    Case("classes_are_right", "cached where it may not go yet", OF_A, AWAY, 4, first(class_index=1)),
    Case("classes_are_right", "cached in host memory", OF_A, IN_HOST, 1, first(class_index=1)),
    Case("classes_are_right", "predicted", replace(OF_A, index=IndexMode.APPROXIMATE), PREDICTED, 3,
         first(class_index=1)),
    Case("parks_once", "a class without thresholds, advisory", free(), MARKED["gone"], 2, instead(Park("a", 0))),
    Case("refusals_are_justified", "it is not too large", STRICT, SMALL, 1, refused(R.TOO_LARGE, "a")),
    Case("refusals_are_justified", "not at the door either", STRICT, SMALL, 1, refused(R.TOO_LARGE, "a", -1)),
    Case("refusals_are_justified", "it is not too large yet", STRICT, SHRINKS, 2, refused(R.TOO_LARGE, "b")),
    Case("refusals_are_justified", "nothing is too large by advice", config(prefill_busy_threshold=None), SMALL, 2,
         refused(R.TOO_LARGE, "b", -1)),
    Case("refusals_are_justified", "a rank is open", free(), MARKED["overloaded"], 2,
         refused(R.ALL_ELIGIBLE_OVERLOADED, "a")),
    Case("refusals_are_justified", "its pin is open", free(), MARKED["overloaded"], 3,
         refused(R.PINNED_WORKER_OVERLOADED)),
    Case("refusals_are_justified", "it has no pin", config(), TIRED, 2, first(reason=R.PINNED_WORKER_OVERLOADED)),
    Case("refusals_are_justified", "it has a pin", config(), TIRED, 3, first(reason=R.ALL_ELIGIBLE_OVERLOADED)),
    Case("refusals_are_justified", "overloaded is eligible", config(), TIRED, 2, first(reason=R.NO_ELIGIBLE_WORKER)),
    Case("refusals_are_justified", "overloaded is not away", config(), TIRED, 3,
         first(reason=R.PINNED_WORKER_UNAVAILABLE)),
    Case("refusals_are_justified", "gone is not overloaded", config(), GONE, 2,
         first(reason=R.ALL_ELIGIBLE_OVERLOADED, class_index=0)),
    Case("refusals_are_justified", "out of reach for a while", config(), LEASED, 2, refused(R.NO_ELIGIBLE_WORKER, "a")),
    Case("refusals_are_justified", "out of reach is not overloaded", config(), LEASED, 2,
         refused(R.ALL_ELIGIBLE_OVERLOADED, "a")),
    Case("refusals_are_justified", "before its look", WAIT, LOOKED_AT, 3, refused(R.ALL_ELIGIBLE_OVERLOADED, "a")),
    Case("refusals_are_justified", "at its arrival", WAIT, LOOKED_AT, 2, refused(R.ALL_ELIGIBLE_OVERLOADED, "a")),
    Case("refusals_are_justified", "at a look that finds a busy rank", WAIT, SECOND_LOOK, 3,
         refused(R.ALL_ELIGIBLE_OVERLOADED, "a")),
    Case("deadlines_hold", "past a look", WAIT, LOOKED_AT, 4, instead()),
    Case("deadlines_hold", "past a second look", WAIT, SECOND_LOOK, 5, instead()),
    Case("deadlines_hold", "past a look after a lease", WAIT, LEASE_BETWEEN, 4, instead()),
    Case("work_is_conserved", "room is there again", STRICT, GROWN, 4, instead()),
    Case("work_is_conserved", "a shared prompt needs no room", STRICT, SHARED, 2, instead(Park("b", 0))),
    Case("work_is_conserved", "others have gone", REPORTS, OTHERS, 3, instead()),
    Case("work_is_conserved", "others say less", REPORTS, OTHER_BLOCKS, 3, instead()),
    Case("work_is_conserved", "too large for what is left", STRICT, SHRINKS, 3, instead()),
    Case("work_is_conserved", "overload is answered", config(), TIRED, 2, instead(Park("a", 0))),
    Case("work_is_conserved", "a lease has ended", config(), LEASED, 3, instead()),
    Case("work_is_conserved", "a source has changed its mind", config(), OPINIONS, 4, instead(Park("b", 0))),
    Case("work_is_conserved", "a restart forgets", config(), RESTARTED, 3, instead(Park("a", 0))),
    Case("work_is_conserved", "a prompt has had its time", FADES, FADING, 5, instead()),
    Case("work_is_conserved", "the next prompt too", FADES, FADING, 8, instead()),
    Case("capacity_is_not_exceeded", "the next prompt from its own beginning", FADES, FADING, 7,
         instead(dispatch("c", 3, wait_ns=14))),
    Case("best_heads_go_first", "a later one takes its room", STRICT, LARGE_FIRST, 4,
         instead(replace(dispatch("c", 2), wait_ns=1))),
    Case("selections_see_every_booking", "host memory not seen", free(), HOST, 2, first(worker_id=1)),
    Case("selections_see_every_booking", "cached tokens of host memory", free(), HOST, 2,
         first(cached_tokens=0, prefill_tokens=8)),
    Case("selections_see_every_booking", "credit that shrinks with load",
         free(weights=SelectionWeights(overlap_score_credit_decay=9.0)), DECAYED, 3, first(worker_id=2)),
    Case("selections_see_every_booking", "credit that does not shrink", free(), DECAYED, 3, first(worker_id=1)),
    Case("selections_see_every_booking", "prompts seen before", free(predict_ttl_ns=10), PREDICTED, 3,
         first(worker_id=1)),
    Case("selections_see_every_booking", "prompts of too long ago", free(predict_ttl_ns=10), PREDICTED, 5,
         first(overlap_blocks=2, cached_tokens=8, prefill_tokens=0)),
    Case("selections_see_every_booking", "a preferred worker", free(), TAINTED, 1, first(worker_id=1)),
    Case("selections_see_every_booking", "requests weigh nothing",
         free(weights=SelectionWeights(active_request_weight=2.0)), CROWDED, 2, first(worker_id=1)),
    Case("selections_see_every_booking", "load of others", free(reported_load_ttl_ns=10), ELSEWHERE, 2,
         first(worker_id=1)),
    Case("selections_see_every_booking", "not in what a dispatch tells", free(reported_load_ttl_ns=10), ELSEWHERE, 4,
         first(potential_decode_blocks=5)),
    Case("selections_see_every_booking", "tiers that it was told of", free(), TOLD, 1, first(worker_id=1)),
    Case("selections_see_every_booking", "own weights", free(), (TWO_UP, (arrive(
        0, "a", 16, overlap=TIERS, weights=SelectionWeights(host_cache_hit_weight=0.0, disk_cache_hit_weight=0.0)),)),
         1, first(worker_id=2)),
    Case("capacity_is_not_exceeded", "time given to another prompt", replace(
        FADES, profile=profile(prefill_busy_threshold=17)), CREDIT, 4, instead(dispatch("c", 3))),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_checker_bites(case):
    check_case(case)


def test_every_checker_of_capacity_has_a_case():
    assert {case.checker for case in CASES} >= {"strict_capacity_holds", "states_are_respected"}
