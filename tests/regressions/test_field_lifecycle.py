"""Field reports 2.1: leaked slots after cancel, disconnect and failure. Each test names the report that it guards.

Events have this project's names: "submit" is RequestArrived, "cancel" RequestCancelled, "deliver failed" and "abort"
DispatchFailed, "finish", "free" and "release" RequestFinished, "first token" PrefillCompleted, "tick" TimerFired, a
"timeout" is booking_ttl_ns, after which an Evict is told; "worker up" and "replaced pod" are WorkerUpserted with a
higher incarnation. Rows that need a driver are in field_rows.py.
"""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from capacity_stories import FleetStory, capped, status, strict
from stories import Story, arrive, profile, short, upsert
from strategies_broken import BREAKERS

from kvcore.actions import Dispatch, Ignored
from kvcore.config import IndexMode, OnOverload, PrefillDecay
from kvcore.errors import InvalidEvent
from kvcore.events import (
    DispatchFailed,
    Outcome,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
)
from kvcore.request import Overlap, Rank

WAITS = {"profile": profile(prefill_busy_threshold=0)}
LOADS = ("requests", "prefill_tokens", "active_blocks", "held_blocks")

#: Where a request may stand when its caller goes: who else waits before and after it, and what it asks for.
PLACES = {
    "alone": ((), {}, ()),
    "at the head": ((), {"strict_priority": 1}, ("z",)),
    "in the middle": (("y",), {}, ("z",)),
    "in a lane": (("y",), {"pinned": Rank(1)}, ("z",)),
    "for one worker": ((), {"allowed_workers": frozenset({1})}, ()),
    "with a deadline": ((), {"deadline_ns": 50}, ("z",)),
}


@pytest.mark.parametrize("batch", [False, True], ids=["later", "one batch"])
@pytest.mark.parametrize("place", PLACES)
def test_E1_nothing_more_is_heard_of_a_cancelled_request(place, batch):
    """dynamo#10878: a cancelled request was still in the scheduler and was booked later, with nobody to free it."""
    before, fields, after = PLACES[place]
    story = FleetStory(1, **WAITS)
    story.run("x")
    for name in before:
        story.arrive(name)
    assert short(story.arrive("a", **fields)) == "P a"
    for name in after:
        story.arrive(name)
    told = []
    if batch:
        told += story.many(RequestCancelled(5, "a"), PrefillCompleted(5, "x", 1))
    else:
        told += story.at(5).cancel("a") + story.prefill("x", 1)
    story.finish("x", 1)
    for attempt, name in enumerate([*before, *after], 2):
        told += story.finish(name, attempt)
    told += story.tick(100)
    assert [action.request_id for action in told] == [*before, *after]
    assert (story.core.stats().aborted, story.core.stats().live_requests, story.loads()) == (1, 0, [(1, 0, 0, 0, 0)])


LIMITS = {
    "requests": {"request_queue_limit_per_worker": 3},
    "raw tokens": {"raw_isl_token_queue_limit_per_worker": 24},
    "cached tokens": {"cached_token_queue_limit_per_worker": 12},
}


@pytest.mark.parametrize("batch", [False, True], ids=["later", "one batch"])
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_E2_a_cancelled_request_counts_no_longer_wherever_it_stands(gone, limit, batch):
    """dynamo#12156: one that was parked behind others counted against limits until it reached the head."""
    story = FleetStory(1, profile=profile(prefill_busy_threshold=0, **LIMITS[limit]))
    story.run("x")
    cached = Overlap(((Rank(1), 1),))
    for name in "abc":
        assert short(story.arrive(name, overlap=cached)) == f"P {name}"
    assert short(story.arrive("d", overlap=cached)).startswith("QUEUE_FULL")
    if batch:
        assert short(story.many(RequestCancelled(0, gone), arrive(0, "d", overlap=cached))) == "P d"
    else:
        story.cancel(gone)
        row = story.core.stats().classes[0]
        assert (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cached_tokens) == (2, 16, 8)
        assert short(story.arrive("d", overlap=cached)) == "P d"
    assert short(story.arrive("e", overlap=cached)).startswith("QUEUE_FULL")


ROLLBACKS = {
    "advisory": {}, "waits": WAITS, "strict": {"profile": strict()}, "predicted": {"predict_ttl_ns": 10**9},
    "fades": {"prefill_decay": PrefillDecay.LINEAR},
}


@pytest.mark.parametrize("config", ROLLBACKS)
def test_E4_a_delivery_that_failed_is_undone_in_one_step(config):
    """dynamo#10331: the channel closed while the request was being booked, and capacity stayed reserved."""
    story = FleetStory(**ROLLBACKS[config])
    story.upsert(1, total_kv_blocks=16, max_requests=2, prefill_tokens_per_s=10**9)
    story.run("x", 8, block_hashes=(1, 2))
    story.prefill("x", 1)
    before = story.core.loads().tolist()
    story.run("a", 24, block_hashes=(1, 2, 3, 4), expected_output_tokens=8)
    assert story.core.loads().tolist() != before
    assert story.fail("a", 2) == ()
    assert story.core.loads().tolist() == before


def test_E4_the_room_of_a_failed_delivery_is_given_away_in_the_same_step():
    """dynamo#10331: to the last block."""
    story = capped(blocks=6)
    story.run("a", 16, expected_output_tokens=8)
    story.arrive("b", 24)
    assert short(story.fail("a", 1)) == "D b"


#: What may go wrong with the booking of a under attempt 2, and whether x goes on.
FAULTS = {
    "the worker goes": (lambda story: story.remove(1), False),
    "the worker restarts": (lambda story: story.upsert(1, 1), False),
    "the rank goes": (lambda story: story.upsert(1, dp_start=1), False),
    "the drain ends": (lambda story: story.drain(0), False),
    "nobody makes progress": (lambda story: story.tick(200), False),
    "it cannot be delivered": (lambda story: story.fail("a", 2), True),
    "the caller goes": (lambda story: story.cancel("a"), True),
}
STAGES = {
    "booked": lambda story: None,
    "accepted": lambda story: story.accept("a", 2),
    "prompt done": lambda story: story.prefill("a", 2),
    "decoding": lambda story: [story.output("a", 2, fraction) for fraction in (None, 0.5, None, 0.0)],
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS)
def test_E5_whatever_fails_after_the_booking_leaves_no_load(fault, stage):
    """dynamo#14570: the reservation stood, a later step failed, and an early return left load behind for minutes.

    Loads are the sums over what runs after each step (Story.check), and x, which shares blocks with a, keeps its own.
    """
    act, stays = FAULTS[fault]
    story = FleetStory(profile=strict(), booking_ttl_ns=200)
    story.upsert(1, total_kv_blocks=100)
    story.run("x", 8, block_hashes=(1, 2))
    story.output("x", 1, 0.25)
    before = story.core.loads().tolist()
    story.run("a", 24, block_hashes=(1, 2, 3), expected_output_tokens=4)
    STAGES[stage](story)
    act(story)
    if stays:
        assert story.core.loads().tolist() == before
    story.finish("x", 1)
    assert {count for field in LOADS for count in story.column(field)} <= {0}


def test_E5_what_fails_before_the_booking_has_none():
    """dynamo#14570: all that can fail comes first: a request that is popped and finds no rank is booked nowhere."""
    story = FleetStory(1, 2, **WAITS)
    story.run("x", pinned=Rank(1))
    story.run("y", pinned=Rank(2))
    story.arrive("a", block_hashes=(1, 2))
    story.overload(1)
    assert short(story.overload(2)) == "ALL_ELIGIBLE_OVERLOADED a"
    assert [row[2:] for row in story.loads()] == [(1, 8, 0), (1, 8, 0)]


@pytest.mark.parametrize("late_ns", [100, 150, 199, 200, 500])
@pytest.mark.parametrize("late", [RequestFinished, DispatchFailed, RequestCancelled], ids=lambda kind: kind.__name__)
def test_E7_a_timeout_frees_the_slot_and_a_late_end_frees_nothing(late, late_ns):
    """litellm#20256: time-outs leaked the counter. Here the slot goes to the next, which a late end must not take."""
    story = capped(blocks=None, requests=1, booking_ttl_ns=100)
    story.run("a")
    story.arrive("b")
    assert short(story.tick(100)) == "E a, D b"
    for now_ns in range(150, late_ns, 50):
        story.at(now_ns).output("b", 2)
    fact = late(late_ns, "a") if late is RequestCancelled else late(late_ns, "a", 1)
    assert short(story.many(fact)) == ("" if late_ns < 200 else "I a")
    assert short(story.many(fact)) == "I a"
    assert story.row(1)["requests"] == 1
    assert short(story.arrive("c")) == "P c"
    assert short(story.finish("b", 2)) == "D c"


@pytest.mark.parametrize("after", [0, 1])
def test_E8_a_malformed_event_reserves_nothing(after):
    """litellm#1477: the error hook never ran, and the slot was gone. Here the batch is as if it had never come."""
    story = capped(blocks=None, requests=1)
    before = story.core.digest()
    for number, breaker in enumerate(BREAKERS.values()):
        batch = [arrive(0, f"r{number}")]
        batch.insert(after, breaker(0))
        with pytest.raises(InvalidEvent):
            story.core.step_many(batch)
        assert story.core.digest() == before
    assert story.core.stats().arrived == 0
    assert short(story.arrive("a")) == "D a"


ENDS = {
    "cancelled": RequestCancelled(9, "a"), "finished": RequestFinished(9, "a", 2),
    "aborted": RequestFinished(9, "a", 2, Outcome.ABORTED), "failed": DispatchFailed(9, "a", 2),
}


@pytest.mark.parametrize("evicted", [False, True], ids=["running", "evicted"])
@pytest.mark.parametrize("batch", [False, True], ids=["later", "one batch"])
@pytest.mark.parametrize(("first", "second"), list(permutations(ENDS, 2)))
def test_E13_two_ends_release_once(first, second, batch, evicted):
    """aibrix#2226: released by the request's own path and by a change of state. The first one ends it, in any order."""
    story = FleetStory(1, booking_ttl_ns=7 if evicted else None)
    story.run("x", 8, block_hashes=(1, 2))
    story.at(1).run("a", 8, block_hashes=(1, 2))
    story.at(4).accept("x", 1)
    if evicted:
        assert short(story.tick(8)) == "E a"
    facts = [ENDS[first], ENDS[second]]
    told = story.many(*facts) if batch else story.many(facts[0]) + story.many(facts[1])
    assert [type(action) for action in told] == [Ignored]
    assert story.loads() == [(1, 0, 1, 8, 2)]
    stats = story.core.stats()
    assert (stats.completed, stats.aborted) == ((1, 0) if first == "finished" else (0, 1))


def test_E14_late_facts_of_a_replaced_worker_touch_its_successor_not():
    """aibrix#2585, aibrix#2424: an end was counted on the pod that had taken the place of the one it was about."""
    story = FleetStory(1)
    story.run("a")
    story.upsert(1, 1)
    story.run("b")
    row = story.row(1)
    assert short(story.prefill("a", 1)) == "I a"
    assert short(story.output("a", 1)) == "I a"
    assert story.finish("a", 1) == ()
    assert short(story.finish("a", 1)) == "I a"
    assert (story.row(1), row["requests"], row["prefill_tokens"]) == (row, 1, 8)


#: What may stick to the memory of a request whose row is used again.
DIRT = {
    "blocks": ({"block_hashes": (1, 2, 3, 4, 5)}, ()),
    "prompt blocks": ({"block_hashes": (1, 2), "sequence_hashes": (7, 8, 9)}, ()),
    "a pin": ({"pinned": Rank(1)}, ()),
    "a list": ({"allowed_workers": frozenset({1})}, ()),
    "priority": ({"strict_priority": 3, "priority_jump": 5.0}, ()),
    "a deadline": ({"deadline_ns": 1000}, ()),
    "a reserve": ({"expected_output_tokens": 40}, ()),
    "no tracking": ({"track_prefill": False}, ()),
    "impatience": ({"do_not_queue": True}, ()),
    "caches": ({"overlap": Overlap(((Rank(1), 2),), cached_tokens=((Rank(1), 0),))}, ()),
    "acceptance": ({}, (lambda story: story.accept("a", 1),)),
    "progress": ({}, (lambda story: story.prefill("a", 1),)),
    "outputs": ({"block_hashes": (1, 2, 3)}, (lambda story: story.output("a", 1),)),
    "fractions": ({"block_hashes": (1, 2, 3)}, (lambda story: story.output("a", 1, 0.25),)),
}


def second_life(fields: dict, facts: tuple) -> list[str]:
    """Digests of the life of a plain request whose row had another before it."""
    story = FleetStory(booking_ttl_ns=500, index=IndexMode.OFF, profile=strict(prefill_busy_threshold=0))
    story.upsert(1, total_kv_blocks=100, max_requests=9)
    story.run("a", 24, **fields)
    for fact in facts:
        fact(story)
    story.cancel("a")
    digests = [story.core.digest()]
    story.run("x")
    for act in (lambda: story.arrive("b", 24, block_hashes=(1, 2)), lambda: story.prefill("x", 2),
                lambda: story.accept("b", 3), lambda: story.output("b", 3), lambda: story.output("b", 3, 0.5),
                lambda: story.fail("b", 3, True), lambda: story.tick(600), lambda: story.finish("b", 4)):
        digests.append(short(act()))
        digests.append(story.core.digest())
    return digests


@pytest.mark.parametrize("dirt", DIRT)
def test_E14_a_row_that_is_used_again_is_clean(dirt):
    """aibrix#2442: a pooled object kept the flag "counted" of the request that had it before."""
    assert second_life(*DIRT[dirt]) == second_life({}, ())


def test_E14_a_second_attempt_starts_clean():
    """aibrix#2442: that the first attempt was accepted and made progress says nothing of the second."""
    story = FleetStory(1, booking_ttl_ns=100)
    story.run("a", 16, block_hashes=(1, 2))
    row = story.row(1)
    story.accept("a", 1)
    story.prefill("a", 1)
    story.output("a", 1, 0.5)
    assert short(story.at(50).fail("a", 1, True)) == "D a"
    assert story.row(1) == row
    assert story.core.next_deadline_ns == 150
    assert story.accept("a", 2) == story.prefill("a", 2) == ()


def test_E16_an_end_may_be_told_again_and_again_and_counts_once():
    """dynamo#13042: one failed call to free, no second, and the load was charged for ever. Telling it again is free."""
    story = FleetStory(1, booking_ttl_ns=100)
    story.run("x")
    story.run("a")
    assert story.finish("a", 2) == ()
    for _ in range(3):
        assert short(story.finish("a", 2)) == "I a"
    assert (story.row(1)["requests"], story.core.stats().completed) == (1, 1)


def test_E16_an_end_that_is_never_told_comes_by_itself():
    """dynamo#13042: and without a word the load goes, too, and the request is forgotten."""
    story = FleetStory(1, booking_ttl_ns=100)
    story.run("a")
    assert short(story.tick(100)) == "E a"
    assert story.tick(200) == ()
    assert (story.row(1)["requests"], story.core.stats().live_requests, story.core.next_deadline_ns) == (0, 0, None)


def churned(seed: int) -> tuple[Story, int]:
    """Workers come, restart, are marked and go, requests come, and their driver forgets every other answer."""
    random = Random(seed)
    made = (profile, strict)[seed % 2](prefill_busy_threshold=0)
    story = Story(profile=made, booking_ttl_ns=50, attempts_max=3,
                  on_overload=list(OnOverload)[seed // 2 % 2], overload_wait_ns=30)
    running: list[Dispatch] = []
    for number in range(300):
        story.at(story.now + random.randrange(6))
        worker_id = random.randrange(4)
        pin = Rank(random.randrange(4)) if number % 7 == 0 else None
        facts = [arrive(story.now, f"r{number}", random.choice((1, 8, 30)), pinned=pin)]
        match random.randrange(9):
            case 0:
                facts.append(WorkerRemoved(story.now, worker_id))
            case 1 | 2:
                facts.append(upsert(story.now, worker_id, random.randrange(number + 1), max_requests=2))
            case 3:
                facts.append(status(story.now, worker_id, available=number % 2 == 0, overloaded=True, lease_ns=9))
            case 4 | 5 | 6 if running:
                answered = running.pop(random.randrange(len(running)))
                kind = random.choice((PrefillCompleted, DispatchFailed, DispatchFailed, RequestFinished))
                more = (True,) if kind is DispatchFailed else ()
                facts.append(kind(story.now, answered.request_id, answered.attempt, *more))
        running += [action for action in story.many(*facts) if isinstance(action, Dispatch)]
    return story, story.now


@pytest.mark.parametrize("seed", range(8))
def test_E17_every_request_ends_in_bounded_time_whatever_becomes_of_workers(seed):
    """dynamo#13088: 1.6 % of requests hung after selection while workers came and went, until the client gave up.

    Nobody answers any more. Whoever runs is evicted after 50 ns and ended after 50 more, then the next one runs.
    """
    story, last_ns = churned(seed)
    live = story.core.stats().live_requests
    assert live > 0
    while story.core.next_deadline_ns is not None:
        story.tick(story.core.next_deadline_ns)
        assert story.now <= last_ns + 100 * (live + 1)
    assert story.core.stats().live_requests == 0
    assert {count for row in story.loads() for count in row[2:]} <= {0}
