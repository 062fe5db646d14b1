"""Review items of the scheduler that this one re-implements: hints, drains, ranks. Numbers are those of the review.

Each test says what it fails without; all of that has been taken out once, and the test has failed. Items 9, 10 and 15
are in test_review_shape.py. The others (2, 3, 5, 8, 13, 14) are about an actor and its channels, which this core does
not have, or about benchmarks.
"""

from __future__ import annotations

import pytest
from capacity_stories import FOREVER, FleetStory, strict
from probe_build import load
from stories import Story, arrive, profile, short

from kvcore.actions import Dispatch, Evict, Park, Reject, RejectReason
from kvcore.config import OnOverload, SchedulerConfig
from kvcore.events import (
    BlocksStored,
    DispatchFailed,
    LoadReported,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    TimerFired,
)
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile
from kvcore.policy_lint import worst_cases
from kvcore.request import Overlap, Rank, Request

Hall = load("_probe_fleet").Hall
WAITS = {"profile": profile(prefill_busy_threshold=0)}
U32 = 2**32

#: What frees the rank of a request that prefills there under an attempt.
FREES = {
    "prompt done": PrefillCompleted,
    "run ended": RequestFinished,
    "dispatch failed": DispatchFailed,
    "caller gone": lambda now_ns, name, attempt: RequestCancelled(now_ns, name),
    "no progress": lambda now_ns, name, attempt: TimerFired(now_ns),
}


def crowd(ranks: int, **config) -> Story:
    """One worker, each rank of it busy with x0, x1, ..., and the pins a0, a1, ... parked there."""
    story = Story(**{**WAITS, **config})
    story.upsert(1, dp_size=ranks)
    story.many(*[arrive(0, f"x{i}", pinned=Rank(1, i)) for i in range(ranks)])
    parked = story.many(*[arrive(1, f"a{i}", pinned=Rank(1, i)) for i in range(ranks)])
    assert all(isinstance(action, Park) for action in parked)
    return story


@pytest.mark.parametrize("ranks", [1, 256, 257])
@pytest.mark.parametrize("free", FREES)
def test_review_01_an_older_pin_competes_before_a_later_arrival(free, ranks):
    """Ranks become free and later shared requests come, before anything is decided: the older ones go first.

    Fails without the recheck at the beginning of a drain; without Fleet.note in complete_prefill (first row of FREES)
    or in release (the others); with 257 ranks also without the step from "many" to "all" in Fleet.note.
    """
    story = crowd(ranks, booking_ttl_ns=9 if free == "no progress" else None)
    facts = [FREES[free](9, f"x{i}", i + 1) for i in range(ranks)]
    told = story.many(*facts, *[arrive(9, f"b{i}") for i in range(ranks)])
    assert short([action for action in told if not isinstance(action, Evict)]) == ", ".join(
        [*(f"D a{i}" for i in range(ranks)), *(f"P b{i}" for i in range(ranks))])


@pytest.mark.parametrize("ranks", [1, 257])
def test_review_01_also_where_a_limit_decides_in_the_middle_of_a_batch(ranks):
    """The late arrival finds its class full, so that the drain runs before it is stored (DESIGN 3, item 5).

    Fails without the recheck at the beginning of a drain (the arrival is refused though ranks are free), and without
    that drain.
    """
    story = crowd(ranks, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=ranks))
    assert short(story.arrive("b")) == "QUEUE_FULL_REQUESTS b"
    told = story.many(*[PrefillCompleted(9, f"x{i}", i + 1) for i in range(ranks)], arrive(9, "b"))
    assert short(told) == ", ".join([*(f"D a{i}" for i in range(ranks)), "P b"])


def hall(workers: int, classes: int = 1):
    """Workers 0, 1, ... of one rank each, each busy with a booking of its own: their slots."""
    made = Hall(SchedulerConfig(profile=profile(*[10] * classes, prefill_busy_threshold=0)), range(workers))
    return made, [made.book(worker_id, f"x{worker_id}", 8) for worker_id in range(workers)]


def pins(made, *workers: int) -> None:
    for worker_id in workers:
        made.store(Request(f"a{worker_id}", 8, pinned=Rank(worker_id)))


def served(made) -> list[str]:
    return list(iter(made.pop, None))


def test_review_04_what_becomes_free_while_nothing_waits_is_forgotten_at_once():
    """300 ranks become free in an idle scheduler; no class is looked at. Later on one rank means one lane.

    Fails without the early return of PolicyQueue.pop (50 classes are looked at), and if Backlog.recheck returns before
    it has forgotten the changes (both lanes are judged again, for ever).
    """
    made, slots = hall(300, classes=50)
    for slot in slots:
        made.complete_prefill(slot)
    assert made.changes() == (256, True)
    made.recheck()
    assert made.changes() == (0, False)
    assert served(made) == []
    assert made.asked() == (0, 0)
    busy = [made.book(worker_id, f"y{worker_id}", 8) for worker_id in (1, 2)]
    pins(made, 1, 2)
    assert served(made) == []
    _, before = made.asked()
    made.complete_prefill(busy[0])
    made.recheck()
    assert served(made) == ["a1"]
    assert made.asked()[1] - before == 1


def ranks_of(*ranks: int) -> set[str]:
    """The pins to these ranks of worker 1, two each."""
    return {f"{letter}{rank}" for rank in ranks for letter in "ab"}


#: What happens to worker 1 with its ranks 0, 1 and 2, and the pins that this makes impossible.
LOSSES = {
    "removed": (lambda story: story.remove(1), ranks_of(0, 1, 2)),
    "fewer ranks": (lambda story: story.upsert(1, dp_size=1), ranks_of(1, 2)),
    "other ranks": (lambda story: story.upsert(1, dp_start=1, dp_size=3), ranks_of(0)),
    "restarted with other ranks": (lambda story: story.upsert(1, 1, dp_start=2), ranks_of(0, 1)),
    "gone": (lambda story: story.lose(1, "health"), ranks_of(0, 1, 2)),
}


@pytest.mark.parametrize("held", ["busy", "leased"])
@pytest.mark.parametrize("loss", LOSSES)
def test_review_06_whoever_waits_for_a_rank_that_goes_is_answered_in_that_step(loss, held):
    """No hint names the ranks that vanish: the loss itself judges every lane again, and nobody else is answered.

    Fails without recheck_all in Fleet.remove, drop_ranks and _restate: where all ranks are leased nothing else notices.
    """
    act, lost = LOSSES[loss]
    story = FleetStory(2, **WAITS)
    story.upsert(1, dp_size=3)
    for worker_id, rank in ((1, 0), (1, 1), (1, 2), (2, 0)):
        if held == "busy" or worker_id == 2:
            story.run(f"x{worker_id}{rank}", pinned=Rank(worker_id, rank))
    if held == "leased":
        story.lose(1, "router", lease_ns=FOREVER)
    for rank in range(3):
        for letter in "ab":
            story.arrive(f"{letter}{rank}", pinned=Rank(1, rank))
    story.arrive("other", pinned=Rank(2))
    told = act(story)
    rejects = {action.request_id: action.reason for action in told if isinstance(action, Reject)}
    assert rejects == dict.fromkeys(lost, RejectReason.PINNED_WORKER_UNAVAILABLE)
    assert story.waiting == 7 - len(lost) - len([action for action in told if isinstance(action, Dispatch)])


def test_review_06_a_hint_of_an_unknown_rank_is_about_any():
    """Kept as a defence: room of which the core was not told is found all the same.

    Fails without the step from an unknown rank to "all" in Fleet.hint.
    """
    made, slots = hall(3)
    pins(made, 0, 1, 2)
    assert served(made) == []
    made.complete_prefill(slots[1], noted=False)
    made.recheck()
    assert served(made) == []
    made.hint((Rank(99),))
    assert made.changes() == (0, True)
    made.recheck()
    assert served(made) == ["a1"]


#: Class 0 is for prompts of which at most four tokens are not cached, class 1 for all others.
BY_CACHE = PolicyProfile(
    tuple([PolicyClass(name, 10, policy_family="f", cache_bucket=name) for name in ("hit", "miss")]),
    (CacheBucket("hit", 0), CacheBucket("miss", 5)), "f")


@pytest.mark.parametrize(("start", "size"), [
    (U32 - 1, 1), (U32 - 3, 3), (U32 - 65_536, 65_536), (0, 1), (0, 3), (5, 4), (2**31 - 1, 2)])
def test_review_07_everybody_means_the_same_ranks_by_a_range(start, size):
    """Upsert, pin, snapshot, choice and facts of engines agree, also where the range ends with the last number.

    Fails if WorkerTable.find_rank or Fleet.upsert compares with dp_start + dp_size, which is 0 there.
    """
    story = FleetStory(profile=BY_CACHE)
    story.upsert(2)
    story.upsert(1, dp_start=start, dp_size=size)
    story.upsert(1, dp_start=start, dp_size=size)
    rows = {row[1] for row in story.core.loads()[["worker_id", "dp_rank"]].tolist() if row[0] == 1}
    assert (len(rows), story.core.stats().ranks) == (size, size + 1)
    asked = {0, 1, start - 1, start, start + size - 1, start + size, U32 - 1} - {-1, U32}
    for number, rank in enumerate(sorted(asked)):
        inside = start <= rank < start + size
        assert (rank in rows) is inside
        pinned = story.core.peek(Request("q", 8, pinned=Rank(1, rank)))
        assert getattr(pinned, "dp_rank", None) == (rank if inside else None)
        assert inside or pinned.reason is RejectReason.PINNED_WORKER_UNAVAILABLE
        cached = story.core.peek(Request("q", 8, overlap=Overlap(((Rank(1, rank), 2),))))
        assert cached.class_index == (0 if inside else 1)
        assert not inside or (cached.worker_id, cached.dp_rank, cached.cached_tokens) == (1, rank, 8)
        stale = story.core.stats().stale_events
        story.many(BlocksStored(0, 1, rank, 0, (number + 1,)), LoadReported(0, 1, rank, 0, 1))
        assert story.core.stats().stale_events - stale == (0 if inside else 2)
        assert story.core.peek(Request("q", 4, block_hashes=(number + 1,))).overlap_blocks == inside


@pytest.mark.parametrize("start", [0, 7, U32 - 4])
def test_review_07_a_range_that_shrinks_or_moves_loses_just_what_falls_out(start):
    """Of four ranks the first goes, then the last one.

    Fails if Fleet.leaving compares with dp_start + dp_size, which is 0 where a range ends with the last number.
    """
    story = FleetStory(**WAITS)
    story.upsert(1, dp_start=start, dp_size=4)
    for rank in range(4):
        story.run(f"r{rank}", pinned=Rank(1, start + rank))
    assert short(story.upsert(1, dp_start=start + 1, dp_size=3)) == "E r0"
    assert short(story.upsert(1, dp_start=start + 1, dp_size=2)) == "E r3"
    assert story.column("requests") == [1, 1]


THRESHOLDS = {
    "none": {}, "absolute": {"prefill_busy_threshold": 0}, "fraction": {"prefill_busy_threshold_frac": 0.5},
    "both": {"prefill_busy_threshold": 3, "prefill_busy_threshold_frac": 0.5},
}


@pytest.mark.parametrize("thresholds", THRESHOLDS)
@pytest.mark.parametrize("made", [profile, strict])
def test_review_11_all_who_ask_agree_on_whether_a_class_waits(made, thresholds):
    """Arrival, peek, the drain after a lease, the look for overload, and the linter: there is one flag, Placement's.

    Fails if Backlog.recheck, Backlog._next_look_ns or Placement.may_run asks for thresholds only (strict capacity
    without any), or if the linter does.
    """
    policy = made(**THRESHOLDS[thresholds])
    waits = made is strict or thresholds != "none"
    story = FleetStory(1, profile=policy, on_overload=OnOverload.WAIT, overload_wait_ns=10)
    story.lose(1, "router", lease_ns=5)
    assert short([story.core.peek(Request("a", 8))]) == ("P a" if waits else "NO_ELIGIBLE_WORKER a")
    assert short(story.arrive("a")) == ("P a" if waits else "NO_ELIGIBLE_WORKER a")
    assert short(story.tick(5)) == ("D a" if waits else "")
    story.finish("a", 1)
    story.overload(1)
    assert short([story.core.peek(Request("b", 8))]) == ("P b" if waits else "ALL_ELIGIBLE_OVERLOADED b")
    assert short(story.arrive("b")) == ("P b" if waits else "ALL_ELIGIBLE_OVERLOADED b")
    assert story.core.next_deadline_ns == (15 if waits else None)
    assert short(story.tick(15)) == ("ALL_ELIGIBLE_OVERLOADED b" if waits else "")
    (case,) = worst_cases(policy, 100)
    assert (case.reason == "never waits: no busy threshold") is not waits


#: A hint, and which of the pins a0, a1, a2 it makes the core look at.
HINTS = {
    "one rank": ((Rank(1),), ["a1"]), "two ranks": ((Rank(2), Rank(0)), ["a0", "a2"]),
    "the same rank often": ((Rank(1),) * 256, ["a1"]), "no rank": ((), []), "anywhere": (None, ["a0", "a1", "a2"]),
    "257 ranks": ((Rank(1),) * 257, ["a0", "a1", "a2"]), "an unknown one": ((Rank(1), Rank(1, 1)), ["a0", "a1", "a2"]),
}


@pytest.mark.parametrize("hint", HINTS)
def test_review_12_hints_reach_the_lanes_that_facts_reach(hint):
    """Room comes and nobody is told: only the hint brings it to light, lane by lane or in all. Then it is used up.

    That hints and facts lead to one run is in property/test_metamorphic.py. Fails without Fleet.note in Fleet.hint,
    without the hint "anywhere", and if every hint means anywhere.
    """
    ranks, found = HINTS[hint]
    made, slots = hall(3)
    pins(made, 0, 1, 2)
    assert served(made) == []
    for slot in slots:
        made.complete_prefill(slot, noted=False)
    _, before = made.asked()
    made.hint(ranks)
    made.recheck()
    assert (served(made), made.changes()) == (found, (0, False))
    assert made.asked()[1] - before == len(found)
