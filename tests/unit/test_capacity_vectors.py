"""Selection vectors of the reference as whole requests (selector facts 7.1, 7.2, 8.1): costs and picks of a scheduler.

Load is what bookings or a report make it, caches are told with the request. Worker ids are those of the reference.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from capacity_stories import FleetStory

from kvcore.actions import RejectReason
from kvcore.config import IndexMode, Role
from kvcore.request import Overlap, Rank, Request, SelectionWeights

WEIGHTS = SelectionWeights()


def fleet(*workers: int, block_size: int = 16, taints=None, **config) -> FleetStory:
    """Idle workers; reports count for long."""
    story = FleetStory(block_size=block_size, index=IndexMode.OFF, reported_load_ttl_ns=10**9, **config)
    for worker_id in workers:
        story.upsert(worker_id, taints=frozenset((taints or {}).get(worker_id, "")))
    return story


def running(story: FleetStory, worker_id: int, blocks: int = 0, tokens: int = 0) -> None:
    """A worker runs so many blocks, and computes a prompt of so many tokens."""
    size = story.core.config.block_size
    if blocks:
        story.run(f"blocks{worker_id}", blocks * size, pinned=Rank(worker_id), track_prefill=False,
                  sequence_hashes=tuple(range(10**6, 10**6 + blocks)))
    if tokens:
        story.run(f"tokens{worker_id}", tokens, pinned=Rank(worker_id), sequence_hashes=())


def device(**blocks: int) -> Overlap:
    return Overlap(tuple((Rank(int(name[1:])), count) for name, count in blocks.items()))


def check(story: FleetStory, request: Request, costs: list[float], winner: int, rel: float = 0) -> None:
    """What it costs everywhere, and who gets it."""
    found = story.costs(request)
    assert found == (pytest.approx(costs, rel=rel) if rel else costs)
    assert story.core.peek(request).worker_id == winner
    fields = {name: getattr(request, name) for name in (
        "pinned", "overlap", "weights", "preferred_taints", "required_taints", "sequence_hashes", "track_prefill")}
    action = story.run("checked", request.prompt_tokens, **fields)
    assert action.worker_id == winner
    story.finish("checked", action.attempt)


def test_4_a_seeded_scheduler_takes_the_picks_of_the_reference():
    """At a temperature one number is drawn per choice, so picks are the reference's; ties at 0 draw otherwise (D8)."""
    wanted = ("30 20 30 10 20 20 30 20 30 10 10 30 30 20 30 30 30 30 10 30 20 20 20 30 30 10 30 30 10 20 10 20 "
              "30 20 30 10 10 30 30 30 30 30 10 30 30 10 20 30 20 10 10 20 30 10 20 30 20 30 20 10 30 30 10 30")
    for order in ((10, 20, 30), (30, 10, 20)):
        story = fleet(*order, seed=42, weights=replace(WEIGHTS, temperature=0.7))
        picks = []
        for number in range(64):
            action = story.run(f"r{number}", 16)
            picks.append(str(action.worker_id))
            story.finish(f"r{number}", action.attempt)
        assert " ".join(picks) == wanted


@pytest.mark.parametrize(("override", "costs", "winner"), [
    ({}, [3.0, 4.0], 0),
    ({"overlap_score_credit": 0.0}, [5.0, 4.0], 1),
    ({"prefill_load_scale": 0.0}, [1.0, 0.0], 1),
    ({"shared_cache_multiplier": 1.0}, [1.0, 0.0], 1),
    ({"temperature": 1.0}, [3.0, 4.0], 1),
])
def test_5_per_request_overrides_change_selection(override, costs, winner):
    """With a temperature p(0) is 0.731059, and the first number of seed 42 is 0.790800."""
    story = fleet(0, 1, block_size=1, seed=42)
    running(story, 0, blocks=1)
    overlap = Overlap(((Rank(0), 2),), shared=((0, 4),))
    weights = replace(WEIGHTS, **override) if override else None
    check(story, Request("q", 4, overlap=overlap, weights=weights), costs, winner)


def test_6_overloaded_high_overlap_worker_is_skipped():
    story = fleet(0, 1)
    ask = Request("q", 64, overlap=Overlap(effective=((Rank(0), 4.0),), cached_tokens=((Rank(0), 64),)))
    check(story, ask, [0.0, 4.0], 0)
    story.overload(0)
    costs = story.costs(ask)
    assert (math.isnan(costs[0]), costs[1]) == (True, 4.0)
    assert story.core.peek(ask).worker_id == 1


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_7_8_9_refusals(decay):
    story = fleet(0, 1, taints={0: "a"}, weights=replace(WEIGHTS, overlap_score_credit_decay=decay))
    assert story.core.peek(Request("q", 64, required_taints=frozenset("b"))).reason is RejectReason.NO_ELIGIBLE_WORKER
    story.overload(0)
    assert story.core.peek(Request("q", 64, pinned=Rank(0))).reason is RejectReason.PINNED_WORKER_OVERLOADED
    story.overload(1)
    assert story.core.peek(Request("q", 64)).reason is RejectReason.ALL_ELIGIBLE_OVERLOADED
    assert all(math.isnan(cost) for cost in story.costs(Request("q", 64)))


def test_10_required_taints_filter_out_incompatible_workers():
    story = fleet(10, 20, taints={10: "a", 20: "b"})
    ask = Request("q", 16, required_taints=frozenset("b"))
    costs = story.costs(ask)
    assert (math.isnan(costs[0]), costs[1], story.core.peek(ask).worker_id) == (True, 1.0, 20)


def test_11_required_taints_switch_matching_worker_sets_by_label():
    workers = (10, 11, 20, 21, 30, 31)
    story = fleet(*workers, taints=dict(zip(workers, "aabbcc", strict=True)))
    for worker_id in (11, 21, 31):
        story.report(worker_id, 1, blocks=400_000)
    for taint, first in (("a", 10), ("b", 20), ("c", 30)):
        ask = Request("q", 16, required_taints=frozenset(taint))
        costs = dict(zip(workers, story.costs(ask), strict=True))
        assert {w: cost for w, cost in costs.items() if not math.isnan(cost)} == {first: 1.0, first + 1: 400_001.0}
        assert story.core.peek(ask).worker_id == first


@pytest.mark.parametrize(("blocks", "weight", "costs", "winner"), [
    ((100, 90), 0.85, [50.6050, 91.0], 10), ((90, 100), -0.25, [116.254, 101.0], 20), ((100, 90), 0.0, [101, 91], 20)],
    ids=["12", "13", "indifferent"])
def test_12_13_preferred_taints(blocks, weight, costs, winner):
    story = fleet(10, 20, taints={10: "a", 20: "b"})
    for worker_id, count in zip((10, 20), blocks, strict=True):
        running(story, worker_id, blocks=count)
    check(story, Request("q", 16, preferred_taints=(("a", weight),)), costs, winner, rel=1e-5)
    exact = (blocks[0] + 1.0) * math.exp(-math.tanh(weight))
    assert story.costs(Request("q", 16, preferred_taints=(("a", weight),)))[0] == pytest.approx(exact, rel=1e-12)
    # A pin has no choice, so nothing makes it dearer.
    assert story.costs(Request("q", 16, preferred_taints=(("a", weight),), pinned=Rank(10)))[0] == blocks[0] + 1.0


def test_14_shared_cache_hits_scoring():
    story = fleet(0, 1, block_size=1, weights=replace(WEIGHTS, shared_cache_multiplier=0.5))
    check(story, Request("q", 4, overlap=Overlap(((Rank(0), 2),), shared=((0, 4),))), [1.0, 2.0], 0)


def test_15_prefill_load_scale_applies_after_overlap_credits():
    story = fleet(0, 1, weights=replace(WEIGHTS, prefill_load_scale=2.0))
    running(story, 0, blocks=3)
    check(story, Request("q", 64, overlap=device(w0=2)), [7.0, 8.0], 0)


@pytest.mark.parametrize(("credit", "costs", "winner"), [(1.0, [9.0, 8.0], 1), (1.5, [7.0, 8.0], 0)])
def test_16_overlap_credit_above_one_can_prefer_colocated_worker(credit, costs, winner):
    story = fleet(0, 1, weights=replace(WEIGHTS, overlap_score_credit=credit))
    running(story, 0, blocks=5)
    check(story, Request("q", 128, overlap=device(w0=4)), costs, winner)


@pytest.mark.parametrize(("track", "cost"), [(True, 7.0), (False, 5.0)])
def test_17_credit_is_clamped_before_decode_load_is_added(track, cost):
    story = fleet(0, weights=replace(WEIGHTS, prefill_load_scale=2.0))
    running(story, 0, blocks=2, tokens=16)
    ask = Request("q", 64, sequence_hashes=(1, 2, 3), track_prefill=track,
                  overlap=Overlap(((Rank(0), 6),), cached_tokens=((Rank(0), 96),)))
    check(story, ask, [cost], 0)


@pytest.mark.parametrize(("weight", "cost"), [(0.0, 101.0), (32.0, 229.0)])
def test_18_active_requests_can_be_charged(weight, cost):
    """Prompts have a token at least: one block more than in the reference, which calls the formula directly."""
    story = fleet(0, weights=replace(WEIGHTS, active_request_weight=weight))
    story.report(0, 1, blocks=100, requests=4)
    assert story.costs(Request("q", 16)) == [cost]


@pytest.mark.parametrize(("role", "track", "cost"), [
    (Role.DECODE, False, 7.0), (Role.PREFILL, False, 10.0), (Role.DECODE, True, 11.0)])
def test_19_decode_role_credits_overlap_without_prefill_tracking(role, track, cost):
    story = fleet(0, role=role)
    running(story, 0, blocks=10)
    check(story, Request("q", 64, track_prefill=track, overlap=device(w0=3)), [cost], 0)


@pytest.mark.parametrize(("decay", "costs", "winner"), [(0.0, [3.0, 4.0], 0), (1.0, [4.714286, 4.0], 1)])
def test_20_overlap_credit_decay_can_prefer_less_loaded_cold_worker(decay, costs, winner):
    story = fleet(0, 1, weights=replace(WEIGHTS, overlap_score_credit_decay=decay))
    running(story, 0, tokens=48)
    check(story, Request("q", 64, overlap=device(w0=4)), costs, winner, rel=1e-6)
    # Against itself a pin has no load above the least.
    assert story.costs(Request("q", 64, overlap=device(w0=4), pinned=Rank(0)))[0] == 3.0


def test_20_the_least_load_is_that_of_ranks_that_may_be_used():
    """Worker 1 is idle and overloaded: worker 0's credit is whole."""
    story = fleet(0, 1, 2, weights=replace(WEIGHTS, overlap_score_credit_decay=1.0))
    for worker_id in (0, 2):
        running(story, worker_id, tokens=48)
    ask = Request("q", 64, overlap=device(w0=4))
    assert story.costs(ask) == pytest.approx([4.714286, 4.0, 7.0], rel=1e-6)
    story.overload(1)
    costs = story.costs(ask)
    assert (costs[0], math.isnan(costs[1]), costs[2]) == (3.0, True, 7.0)
    story.say(1)
    costs = story.costs(Request("q", 64, overlap=device(w0=4), allowed_workers=frozenset({0, 2})))
    assert (costs[0], costs[2]) == (3.0, 7.0)


def test_21_effective_overlap_falls_back_when_tier_blocks_are_absent():
    story = fleet(0, 1)
    running(story, 0, blocks=1)
    check(story, Request("q", 64, overlap=Overlap(effective=((Rank(0), 4.0),))), [1.0, 4.0], 0)
    # One entry of a tier, of whatever rank, and weighted sums count for nothing.
    told = Overlap(disk=((Rank(9), 0),), effective=((Rank(0), 4.0),))
    assert story.costs(Request("q", 64, overlap=told)) == [5.0, 4.0]


def test_23_24_plain_cases():
    story = fleet(0)
    check(story, Request("q", 64, overlap=Overlap(effective=((Rank(0), 2.0),))), [2.0], 0)
    story = fleet(0, 1)
    running(story, 0, blocks=8)
    running(story, 1, blocks=1)
    check(story, Request("q", 16), [9.0, 2.0], 1)


def test_44_weighted_tiers_become_cached_tokens():
    story = fleet(0, weights=replace(WEIGHTS, host_cache_hit_weight=0.5, disk_cache_hit_weight=0.25))
    told = Overlap(((Rank(0), 2),), ((Rank(0), 3),), ((Rank(0), 9),))
    ask = Request("q", 1600, overlap=told)
    assert story.potential(ask, 0)["cached_tokens"] == 92
    check(story, ask, [100 - 5.75], 0)
    action = story.run("a", 1600, overlap=told)
    assert (action.cached_tokens, action.overlap_blocks, action.prefill_tokens) == (92, 2, 1508)


def test_45_credits_of_all_tiers_and_of_the_shared_cache():
    story = fleet(3, 7, weights=replace(
        WEIGHTS, overlap_score_credit=0.5, host_cache_hit_weight=0.25, disk_cache_hit_weight=0.1,
        shared_cache_multiplier=0.5))
    told = Overlap(((Rank(7), 2),), ((Rank(7), 1),), ((Rank(7), 2),), shared=((0, 4),))
    check(story, Request("q", 144, overlap=told), [9 - 2.0, 9 - 2.45], 7, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("count", [2, 32, 64, 1024])
def test_8_1_the_fixture_of_the_bench(count, decay):
    """Reported load and weighted overlaps on every rank; the winner and its cost are known."""
    story = FleetStory(block_size=16, index=IndexMode.OFF, reported_load_ttl_ns=10**9,
                       weights=replace(WEIGHTS, overlap_score_credit_decay=decay))
    for w in range(count):
        story.upsert(w)
        story.report(w, 1, 16 * w, w % 127, w % 17)
    told = Overlap(effective=tuple((Rank(w), 4.0 * (w % 32)) for w in range(count)),
                   cached_tokens=tuple((Rank(w), 64 * (w % 32)) for w in range(count)))
    ask = Request("q", 2048, sequence_hashes=(), overlap=told)
    costs = story.costs(ask)
    winner = 1 if count == 2 else 31
    least = {(2, 0.0): 126.0, (2, 1.0): 126.03100775193798}.get((count, decay), 90.17610062893081 if decay else 66.0)
    assert (min(costs), costs.index(min(costs)), costs.count(min(costs))) == (least, winner, 1)
    if not decay:
        assert costs == [w + 128 - 4 * (w % 32) + w % 127 for w in range(count)]
    assert story.core.peek(ask).worker_id == winner
    action = story.run("a", 2048, sequence_hashes=(), overlap=told)
    assert (action.worker_id, action.cached_tokens) == (winner, 64 * (winner % 32))
