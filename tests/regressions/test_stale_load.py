"""Field reports 2.3: stale load, stuck marks, herding. Each test names the public report that it guards against.

Events have this project's names: a "rejected" worker or a tripped signal is WorkerStatusChanged, a "load update" is
LoadReported, a "tick" is TimerFired.
"""

from __future__ import annotations

from collections import Counter

import pytest
from capacity_stories import FleetStory, status, strict
from hypothesis import given
from hypothesis import strategies as st
from stories import arrive, profile, short

from kvcore.actions import Dispatch
from kvcore.config import IndexMode
from kvcore.events import LoadReported, TimerFired, WorkerUpserted
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig
from kvcore.scheduler import Scheduler

WAITS = {"profile": profile(prefill_busy_threshold=0)}
#: 0.1 % points of the chi-square distribution, by degrees of freedom (from a printed table).
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52, 7: 24.32}


@pytest.mark.parametrize("said", [{"overloaded": True}, {"available": False}])
def test_E31_a_leased_mark_ends_by_itself(said):
    """dynamo#12138, dynamo#12540, dynamo#14213, dynamo#14210: an idle fleet answered 529 for ever."""
    story = FleetStory(1)
    story.at(100).say(1, "router", lease_ns=50, **said)
    assert short(story.arrive("a")) in ("ALL_ELIGIBLE_OVERLOADED a", "NO_ELIGIBLE_WORKER a")
    assert story.core.next_deadline_ns == 150
    assert short(story.at(149).arrive("b")) in ("ALL_ELIGIBLE_OVERLOADED b", "NO_ELIGIBLE_WORKER b")
    assert story.tick(150) == ()
    assert short(story.arrive("c")) == "D c"


def test_E31_who_waits_runs_in_the_step_of_the_timer():
    """dynamo#12138 and those with it: expiry needs no new event, only time."""
    story = FleetStory(1, **WAITS)
    story.lose(1, "router", lease_ns=50)
    assert short(story.arrive("a")) == "P a"
    assert story.tick(49) == ()
    (action,) = story.tick(50)
    assert (action.request_id, action.wait_ns) == ("a", 50)


def test_E32_a_signal_that_stops_does_not_hold_the_latch():
    """dynamo#10564, dynamo#13834: the latch cleared only when both signals said so, and one had gone silent."""
    story = FleetStory(1)
    story.overload(1, "engine", lease_ns=100)
    story.overload(1, "router", lease_ns=100)
    story.at(60).say(1, "router")
    assert short(story.arrive("a")) == "ALL_ELIGIBLE_OVERLOADED a"
    story.tick(100)
    assert short(story.arrive("b")) == "D b"


def test_E32_each_signal_clears_itself_only():
    """dynamo#10564, dynamo#13834: low from B says nothing about A, and A's word is not needed for B's."""
    story = FleetStory(1)
    story.overload(1, "A")
    story.overload(1, "B", lease_ns=10)
    story.tick(10)
    assert short(story.arrive("a")) == "ALL_ELIGIBLE_OVERLOADED a"
    story.say(1, "B")
    assert short(story.arrive("b")) == "ALL_ELIGIBLE_OVERLOADED b"
    story.say(1, "A")
    assert short(story.arrive("c")) == "D c"


def test_E34_a_burst_between_two_reports_stops_at_the_gate():
    """llm-d-router#2066: a gate that reads old metrics overshoots by hundreds; own dispatches count at once."""
    story = FleetStory(1, profile=profile(prefill_busy_threshold=100), reported_load_ttl_ns=50_000_000)
    story.report(1, 1, prefill_tokens=20)
    answers = [story.at(1 + number).arrive(f"r{number}", 10)[0] for number in range(200)]
    # 20 reported + 10 k: the ninth still finds 100, which is not above 100; the tenth finds 110.
    assert sum(isinstance(answer, Dispatch) for answer in answers) == 9
    # The next report has seen them; they are not counted twice.
    assert story.at(1000).report(1, 2, prefill_tokens=110) == ()
    assert short(story.prefill("r0", 1)) == "D r9"


def test_E34_a_burst_in_one_batch_stops_at_the_cap():
    """llm-d-router#2066, under strict capacity: to the block, with what the engine reports of others."""
    story = FleetStory(profile=strict(), reported_load_ttl_ns=50)
    story.upsert(1, total_kv_blocks=20)
    story.report(1, 1, blocks=5)
    answers = story.many(*[arrive(1, f"r{number}", 8) for number in range(30)])
    assert sum(isinstance(answer, Dispatch) for answer in answers) == 7  # 15 blocks by two
    assert story.waiting == 23
    assert short(story.tick(50)) == "D r7, D r8, D r9"  # the report ends: six blocks are left


def test_E35_a_report_does_not_erase_own_bookings():
    """vllm-router#177, vllm#48027, vllm#49538: polled load overwrote what had been sent since, and all went one way."""
    story = FleetStory(1, 2, reported_load_ttl_ns=1000)
    first = story.run("a", 40).worker_id
    story.report(first, 1)
    story.report(3 - first, 1)
    assert story.row(first)["prefill_tokens"] == 40
    assert [story.run(name, 8).worker_id for name in "bcd"] == [3 - first] * 3


def test_E35_an_older_report_says_nothing():
    """vllm#49538: a late update with an old sequence is dropped, on its rank only."""
    story = FleetStory(1, 2, reported_load_ttl_ns=1000)
    story.report(1, 7, prefill_tokens=100)
    for sequence in (7, 6, 0):
        story.report(1, sequence)
    assert story.core.stats().stale_events == 3
    assert story.row(1)["reported_prefill_tokens"] == 100
    story.report(2, 3)
    assert story.core.stats().stale_events == 3
    assert {story.run(f"r{number}", 8).worker_id for number in range(5)} == {2}


def test_E35_own_load_is_not_counted_twice_when_the_engine_sees_it():
    """vllm#48027: a report as of n merges with own changes after n; what is above own bookings is of others."""
    story = FleetStory(1, reported_load_ttl_ns=1000)
    story.run("a", 40)
    story.report(1, 1, prefill_tokens=40, requests=1)
    ask = Request("q", 8)
    assert (story.potential(ask, 1)["prefill_tokens"], story.potential(ask, 1)["requests"]) == (48, 1)
    story.report(1, 2, prefill_tokens=50, requests=3)
    assert (story.potential(ask, 1)["prefill_tokens"], story.potential(ask, 1)["requests"]) == (58, 3)
    story.finish("a", 1)
    assert (story.potential(ask, 1)["prefill_tokens"], story.potential(ask, 1)["requests"]) == (18, 2)


def picks(workers: int, seed: int, count: int) -> list[int]:
    """Who gets each of so many requests that end at once, so that all ranks stay equal."""
    story = FleetStory(*range(workers), seed=seed, index=IndexMode.OFF)
    found = []
    for number in range(count):
        action = story.run(f"r{number}")
        found.append(action.worker_id)
        story.finish(action.request_id, action.attempt)
    return found


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 8])
def test_E37_equals_are_chosen_evenly_and_reproducibly(workers):
    """dynamo#9516, dynamo#6253, smg#2096: the first of equals was taken every time."""
    found = picks(workers, 7, 120)
    counts = Counter(found)
    wanted = 120 / workers
    assert sum((counts[worker] - wanted) ** 2 / wanted for worker in range(workers)) < CHI_SQUARE[workers - 1]
    assert found == picks(workers, 7, 120)
    assert found != picks(workers, 8, 120)


def test_E38_a_miss_goes_to_the_idle_worker():
    """sglang#14305, sglang#14532: a miss went to the smallest tree, not to the least load."""
    story = FleetStory(1, 2)
    story.store(2, *range(100, 600))
    story.run("load", 8, pinned=Rank(1))
    assert [story.run(f"r{number}", 4, block_hashes=(number + 1,)).worker_id for number in range(2)] == [2, 2]


def siblings(story: FleetStory, count: int, **fields) -> list[Dispatch]:
    """As many requests at one time with one prompt of six blocks."""
    actions = story.many(*[arrive(story.now, f"s{story.now}.{number}", 24, block_hashes=(1, 2, 3, 4, 5, 6), **fields)
                           for number in range(count)])
    assert all(isinstance(action, Dispatch) for action in actions)
    return list(actions)


def test_E40_siblings_of_one_tick_find_each_other():
    """dynamo#8276: before the first store event every worker got the same prefill; a prediction bridges the gap."""
    warm = {"weights": SelectionWeights(overlap_score_credit=1.5)}
    blind = FleetStory(*range(8), **warm)
    assert len({action.worker_id for action in siblings(blind, 8)}) == 8
    story = FleetStory(*range(8), predict_ttl_ns=1000, **warm)
    first, *others = siblings(story, 8)
    assert {action.worker_id for action in others} == {first.worker_id}
    assert [action.prefill_tokens for action in (first, *others)] == [24] + [0] * 7
    assert story.at(999).run("late", 24, block_hashes=(1, 2, 3, 4, 5, 6)).overlap_blocks == 6


def test_E40_a_prediction_ends_when_no_engine_confirms_it():
    """dynamo#8276: a short time to live restores what is true, to the nanosecond."""
    for ask_ns, overlap in ((999, 2), (1000, 0)):
        story = FleetStory(1, predict_ttl_ns=1000)
        story.run("a", 8, block_hashes=(1, 2))
        assert story.at(ask_ns).run("b", 8, block_hashes=(1, 2)).overlap_blocks == overlap
    story = FleetStory(1, predict_ttl_ns=1000)
    story.run("a", 8, block_hashes=(1, 2))
    story.at(10).store(1, 1)
    assert story.at(5000).run("b", 8, block_hashes=(1, 2)).overlap_blocks == 1


def test_E40_affinity_ends_where_there_is_no_room():
    """dynamo#8276: siblings stay together within the load that a worker can take."""
    story = FleetStory(profile=strict(), predict_ttl_ns=1000, weights=SelectionWeights(overlap_score_credit=1.5))
    for worker_id in range(4):
        story.upsert(worker_id, max_requests=3)
    assert sorted(Counter(action.worker_id for action in siblings(story, 8)).values()) == [2, 3, 3]


sizes = st.floats(0, 1e6, allow_nan=False)
shares = st.floats(0, 1)
weights = st.builds(SelectionWeights, sizes, sizes, sizes, shares, shares, shares, sizes)
blocks = st.integers(0, 40)


@given(weights=weights, device=blocks, host=blocks, disk=blocks, cached=st.none() | st.integers(0, 200),
       shared=st.booleans(), prompt=st.integers(1, 100), taint=st.none() | st.floats(-50, 50), track=st.booleans(),
       loads=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.integers(0, 10)), min_size=1, max_size=6))
def test_E41_a_cost_is_finite_and_never_falls_with_load(
        weights, device, host, disk, cached, shared, prompt, taint, track, loads):
    """dynamo#11714: credit above 1 drove costs below zero and drowned decode load; terms are clamped (DESIGN D8)."""
    core = Scheduler()
    core.step_many([WorkerUpserted(0, WorkerConfig(w, taints=frozenset({"x"} if w else ()))) for w in range(3)])
    ask = Request(
        "q", prompt, sequence_hashes=tuple(range(prompt // 16)), track_prefill=track, weights=weights,
        preferred_taints=() if taint is None else (("x", taint),), overlap=Overlap(
            ((Rank(1), device),), ((Rank(1), host),), ((Rank(0), disk),),
            cached_tokens=() if cached is None else ((Rank(1), cached),), shared=((0, 3),) if shared else ()))
    before = core.potential_loads(ask)["cost"].tolist()
    for number, (worker, tokens, named) in enumerate(loads):
        core.step(arrive(0, f"r{number}", tokens, pinned=Rank(worker),
                         sequence_hashes=tuple(range(min(named, tokens // 16)))))
        after = core.potential_loads(ask)["cost"].tolist()
        assert all(0 <= cost < float("inf") for cost in after)
        assert after[worker] >= before[worker]
        before = after


def test_E41_decode_load_outweighs_any_credit():
    """dynamo#11714: a worker with the whole prompt in its cache and a long decode queue is not the best for ever."""
    story = FleetStory(1, 2, weights=SelectionWeights(overlap_score_credit=100.0))
    ask = Request("q", 16, overlap=Overlap(((Rank(1), 4),)))
    assert story.costs(ask) == [0.0, 4.0]
    for number in range(5):
        story.run(f"r{number}", 4, pinned=Rank(1), block_hashes=(number,))
    assert story.costs(ask) == [5.0, 4.0]


def test_E43_what_nobody_reported_is_not_what_is_zero():
    """llm-d-router#2165, llm-d-router#1580: a missing metric was read as full or as empty. It is shown as missing.

    A reason "stale load" in an explanation waits for `explain`; here a report is seen, and seen to count no longer.
    """
    story = FleetStory(1, 2, reported_load_ttl_ns=100, profile=profile(prefill_busy_threshold=10))
    story.report(1, 1)
    story.report(2, 1, prefill_tokens=50, blocks=3, requests=1)
    fields = ("reported_prefill_tokens", "reported_blocks", "reported_requests")
    assert [story.row(1)[field] for field in fields] == [0, 0, 0]
    story.upsert(3)
    assert [story.row(3)[field] for field in fields] == [-1, -1, -1]
    assert short(story.arrive("a", pinned=Rank(2))) == "P a"
    assert short(story.tick(100)) == "D a"  # reports have stopped: what they said holds nobody up
    assert [story.row(2)[field] for field in fields] == [50, 3, 1]


def test_E44_each_report_has_its_own_time():
    """GAIE#99: one slow scrape delayed the refresh of all. There is no barrier."""
    story = FleetStory(1, 2, 3, reported_load_ttl_ns=100)
    ask = Request("q", 8)
    for worker_id, now_ns in ((1, 0), (2, 30), (3, 70)):
        story.at(now_ns).report(worker_id, 1, prefill_tokens=1000 * worker_id)
    for now_ns, tokens in ((100, [8, 2008, 3008]), (130, [8, 8, 3008]), (170, [8, 8, 8])):
        assert story.core.next_deadline_ns == now_ns
        story.tick(now_ns)
        assert story.core.potential_loads(ask)["prefill_tokens"].tolist() == tokens
    assert story.core.next_deadline_ns is None


def test_E44_a_report_that_comes_again_starts_anew():
    """GAIE#99: the age of a rank's figures is its own."""
    story = FleetStory(1, 2, reported_load_ttl_ns=100)
    for worker_id in (1, 2):
        story.report(worker_id, 1, requests=5)
    story.at(60).report(2, 2, requests=4)
    ask = Request("q", 8)
    story.tick(100)
    assert story.core.potential_loads(ask)["requests"].tolist() == [0, 4]
    assert story.core.next_deadline_ns == 160


def test_E31_E35_marks_and_reports_of_an_earlier_incarnation_are_forgotten():
    """dynamo#12138, vllm#48027: a restarted worker starts with a clean name, and late facts do not stick to it."""
    story = FleetStory(1, reported_load_ttl_ns=1000)
    story.overload(1, "router")
    story.report(1, 9, prefill_tokens=500)
    story.upsert(1, 1)
    story.many(status(0, 1, "router", overloaded=True), LoadReported(0, 1, 0, 0, 10, 500), TimerFired(0))
    assert story.core.stats().stale_events == 2
    row = story.row(1)
    assert (row["state"], row["reported_prefill_tokens"]) == (0, -1)
    assert short(story.arrive("a")) == "D a"
