"""The reference's own numbers for selection (selector facts 7.1, 7.4, 7.7, 7.8 and 8.1), by number and name.

Ranks are numbered here; where the reference names workers 10, 20, 30, they are ranks 0, 1, 2. What it tests of
eligibility is a matter of who is a candidate: there the candidates are given. The refusals (7, 8, 9) and 43 need a
scheduler: test_selector_fleet.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import oracle_cost
import pytest
from probe_build import load
from selector_cases import At, Case, probe

PICKS_T0 = (
    "10 30 10 10 30 20 10 10 10 20 10 20 30 10 20 20 10 30 20 10 10 20 30 10 30 20 30 10 20 30 10 20 20 10 30 20 30 10 "
    "10 10 20 20 30 30 10 20 20 20 10 20 20 30 10 10 20 20 30 10 30 30 20 30 30 20")
PICKS_T07 = (
    "30 20 30 10 20 20 30 20 30 10 10 30 30 20 30 30 30 30 10 30 20 20 20 30 30 10 30 30 10 20 10 20 30 20 30 10 10 30 "
    "30 30 30 30 10 30 30 10 20 30 20 10 10 20 30 10 20 30 20 30 20 10 30 30 10 30")
IDLE = Case((At(), At(), At()), prompt=16)


def workers(text: str) -> list[int]:
    """Ranks of the workers 10, 20, 30."""
    return [int(word) // 10 - 1 for word in text.split()]


def test_1_minimum_prefill_load_is_only_computed_when_requested():
    case = Case((At(7), At(11)))
    asked = case.weighed(overlap_score_credit_decay=1.0)
    assert case.loads().least_tokens([0, 1], case.query()) == 0
    assert case.loads().least_tokens([0, 1], asked.query()) == 7
    assert case.loads().least_tokens([0, 1], replace(asked, track_prefill=False).query()) == 0
    assert case.loads().least_tokens([1], asked.query()) == 11


def test_2_softmax_sample_orders_extreme_finite_costs():
    top = 1.7976931348623157e308
    assert probe.softmax_index([-top, top], 1.0, 0.6) == 0
    assert oracle_cost.softmax([-top, top], 1.0)[0] == pytest.approx(0.731059, abs=1e-6)


def test_3_default_selector_randomizes_zero_temperature_ties():
    assert len(set(IDLE.picks(1, 120))) >= 2


def test_4_seeded_selector_is_stable_for_ties_at_temperature_0():
    """The reference draws once per tied candidate (reservoir sampling), from the same generator. One draw will do."""
    state, found = 42, []
    for _ in range(64):
        kept = 0
        for i, rank in enumerate(IDLE.cheapest()[1:], 2):
            (drawn,), state = probe.draws(state, i, 1)
            kept = rank if drawn == 0 else kept
        found.append(kept)
    assert found == workers(PICKS_T0)


def test_4_seeded_selector_is_stable_for_temperature_sampling():
    assert IDLE.weighed(temperature=0.7).picks(42, 64) == workers(PICKS_T07)


def test_5_per_request_overrides_change_selection():
    base = Case((At(device=2, blocks=1), At()), prompt=4, block_size=1, shared=((0, 4),))
    assert (base.costs(), base.choose(42)[0]) == ([3.0, 4.0], 0)
    without = base.weighed(overlap_score_credit=0.0)
    assert (without.costs(), without.choose(42)[0]) == ([5.0, 4.0], 1)
    unscaled = base.weighed(prefill_load_scale=0.0)
    assert (unscaled.costs(), unscaled.choose(42)[0]) == ([1.0, 0.0], 1)
    shared = base.weighed(shared_cache_multiplier=1.0)
    assert (shared.costs(), shared.choose(42)[0]) == ([1.0, 0.0], 1)
    assert base.weighed(temperature=1.0).choose(42)[0] == 1


def test_6_overloaded_high_overlap_worker_is_skipped():
    case = Case((At(effective=4.0, cached=64), At()))
    assert case.cheapest() == [0]
    assert case.choose(1, [1]) == (1, 1)


def test_10_required_taints_filter_out_incompatible_workers():
    assert Case((At(), At()), prompt=16).choose(42, [1]) == (1, 42)


def test_11_required_taints_switch_matching_worker_sets_by_label():
    case = Case((At(), At(blocks=400_000)) * 3, prompt=16)
    for first in (0, 2, 4):
        assert case.costs([first, first + 1]) == [1.0, 400_001.0]
        assert case.cheapest([first, first + 1]) == [first]


def test_12_preferred_taints_prefer_matching_worker():
    prefer = (("a", 0.85),)
    case = Case((At(blocks=100), At(blocks=90, taints=1)), prompt=16, multiplier=(
        oracle_cost.multiplier(prefer, {"a"}), oracle_cost.multiplier(prefer, {"b"})))
    assert case.costs() == pytest.approx([50.6050, 91.0], abs=1e-4)
    assert case.costs()[0] == pytest.approx(101.0 * math.exp(-math.tanh(0.85)), rel=1e-12)
    assert case.cheapest() == [0]


def test_13_negative_preferred_taints_avoid_matching_worker():
    prefer = (("a", -0.25),)
    case = Case((At(blocks=90), At(blocks=100, taints=1)), prompt=16, multiplier=(
        oracle_cost.multiplier(prefer, {"a"}), oracle_cost.multiplier(prefer, {"b"})))
    assert case.costs() == pytest.approx([116.254, 101.0], abs=1e-3)
    assert case.cheapest() == [1]


def test_14_shared_cache_hits_scoring():
    case = Case((At(device=2), At()), prompt=4, block_size=1, shared=((0, 4),)).weighed(shared_cache_multiplier=0.5)
    assert (case.costs(), case.cheapest()) == ([1.0, 2.0], [0])


def test_15_prefill_load_scale_applies_after_overlap_credits():
    case = Case((At(device=2, cached=32, blocks=3), At())).weighed(prefill_load_scale=2.0)
    assert (case.costs(), case.cheapest()) == ([7.0, 8.0], [0])


def test_16_overlap_credit_above_one_can_prefer_colocated_worker():
    case = Case((At(device=4, cached=64, blocks=5), At()), prompt=128)
    assert (case.costs(), case.cheapest()) == ([9.0, 8.0], [1])
    more = case.weighed(overlap_score_credit=1.5)
    assert (more.costs(), more.cheapest()) == ([7.0, 8.0], [0])


def test_17_worker_logit_clamps_non_decode_overlap_credit():
    case = Case((At(16, 2, device=6, cached=96),), sequence_length=3).weighed(prefill_load_scale=2.0)
    assert case.costs() == [7.0]
    assert replace(case, track_prefill=False).costs() == [5.0]


def test_18_worker_logit_can_charge_active_requests():
    case = Case((At(blocks=100, requests=4),), prompt=0)
    assert case.costs() == [100.0]
    assert case.weighed(active_request_weight=32.0).costs() == [228.0]


def test_19_decode_worker_logit_credits_overlap_without_prefill_tracking():
    assert Case((At(blocks=10, device=3),), track_prefill=False, decode_role=True).costs() == [7.0]


def test_20_overlap_credit_decay_can_prefer_less_loaded_cold_worker():
    case = Case((At(48, device=4, cached=64), At()))
    assert (case.costs(), case.cheapest()) == ([3.0, 4.0], [0])
    decayed = case.weighed(overlap_score_credit_decay=1.0)
    assert decayed.costs() == pytest.approx([4.714286, 4.0], abs=1e-6)
    assert decayed.cheapest() == [1]


def test_21_effective_overlap_falls_back_when_tier_blocks_are_absent():
    case = Case((At(blocks=1, effective=4.0), At()))
    assert (case.costs(), case.cheapest()) == ([1.0, 4.0], [0])


def test_22_summary_overlap_fallback_preserves_default_shared_prefix():
    """Shared blocks count beyond an effective depth as beyond a device depth: 64 - 2 - 2."""
    case = Case((At(effective=2.0),), block_size=1, shared=((0, 4),)).weighed(shared_cache_multiplier=1.0)
    query = case.query()
    assert (query.device_blocks(0), query.hits_beyond(2.0), query.hits_beyond(0.0)) == (2, 2, 4)
    assert case.costs() == [60.0]


def test_23_no_shared_cache_unchanged():
    case = Case((At(effective=2.0),))
    assert (case.costs(), case.choose(42)) == ([2.0], (0, 42))


def test_44_converts_weighted_and_raw_tier_overlap_once():
    """2 on the device, 3 in host memory, 4 + 5 on disk, weights 0.5 and 0.25: 5.75 blocks of 16."""
    case = Case((At(device=2, host=3, disk=9),), prompt=1600).weighed(
        host_cache_hit_weight=0.5, disk_cache_hit_weight=0.25)
    assert case.query().cached_tokens(0) == 92
    assert case.costs() == [100 - 5.75]


def test_45_score_response_uses_explicit_block_count_and_shared_credit():
    case = Case((At(device=2, host=1, disk=2), At()), prompt=144, shared=((0, 4),)).weighed(
        overlap_score_credit=0.5, host_cache_hit_weight=0.25, disk_cache_hit_weight=0.1, shared_cache_multiplier=0.5)
    assert case.query().hits_beyond(2.0) == 2
    assert case.costs() == pytest.approx([9 - 2.45, 9 - 2.0], rel=1e-12)


def test_46_blocks_saturate():
    """The reference's largest count is ours, too, in a device tier; an effective one stops where tokens do."""
    largest = Case((At(device=2**31 - 1, host=2**31 - 1, disk=2**31 - 1),), block_size=2**31 - 1)
    assert largest.query().cached_tokens(0) == 2**53
    assert largest.query().device_blocks(0) == 2**31 - 1
    assert largest.costs() == [0.0]


def test_47_effective_prefill():
    assert load("_probe").helpers(40, 100, 1, True)[1] == 60
    assert load("_probe").helpers(120, 100, 1, True)[1] == 0


@pytest.mark.parametrize(("name", "ranges", "hits"), [
    ("112 TTTT", ((0, 4),), {0: 4}),
    ("112 TFTTFT", ((0, 1), (2, 4), (5, 6)), {0: 4, 1: 3, 3: 2, 5: 1, 6: 0}),
    ("112 FFF", (), {0: 0}),
    ("113", ((0, 4),), {2: 2, 0: 4, 4: 0, 10: 0}),
    ("114", ((1, 3), (5, 8)), {0: 5, 2: 4, 3: 3, 6: 2, 8: 0}),
])
def test_112_to_114_hits_beyond(name, ranges, hits):
    query = Case((At(),), shared=ranges).query()
    assert {p: query.hits_beyond(float(p)) for p in hits} == hits
    assert {p: oracle_cost.hits_beyond(ranges, p) for p in hits} == hits


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_7_8_an_empty_prompt_is_no_reason_to_prefer_load(decay):
    """Prompts have a token, so the bug that this pins (0 blocks, 0/0) is out of reach."""
    case = Case((At(1600, 50), At(1600, 50), At(1616, 0)), prompt=1).weighed(overlap_score_credit_decay=decay)
    assert case.costs() == [150.0625, 150.0625, 101.0625]
    assert case.cheapest() == [2]


def fixture(count: int, decay: float) -> Case:
    """selector 8.1."""
    return Case(tuple(
        At(16 * w, w % 127, w % 17, effective=4.0 * (w % 32), cached=64 * (w % 32)) for w in range(count)),
        prompt=2048).weighed(overlap_score_credit_decay=decay)


@pytest.mark.parametrize("count", [2, 32, 64, 128, 256, 512, 1024, 2048, 10_000])
def test_8_1_winner_and_cost_without_decay(count):
    case = fixture(count, 0.0)
    costs = case.costs()
    assert costs == [w + 128 - 4 * (w % 32) + w % 127 for w in range(count)]
    winner = 1 if count == 2 else 31
    assert case.loads().cheapest(range(count), case.query()) == ([winner], 126.0 if count == 2 else 66.0)
    sums = {64: 8256, 128: 24577, 256: 65539, 512: 196618, 1024: 655396, 2048: 2359432}
    assert sum(costs) == sums.get(count, sum(costs))


@pytest.mark.parametrize("count", [2, 32, 1024, 10_000])
def test_8_1_winner_and_cost_with_decay(count):
    case = fixture(count, 1.0)
    winner, cost = (1, 126.03100775193798) if count == 2 else (31, 90.17610062893081)
    assert case.loads().cheapest(range(count), case.query()) == ([winner], cost)
