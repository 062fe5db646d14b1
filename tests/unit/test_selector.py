"""The cost of a rank (DESIGN D8): each of its terms, and the bits of the whole against the oracle."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from probe_build import load
from selector_cases import DEFAULT, ONE, At, Case, probe

from kvcore.request import SelectionWeights

TWO_31 = 2**31
TWO_53 = 2**53
INT64_TOP = 2**63 - 1


def bits(costs: list[float]) -> list[bytes]:
    return [struct.pack("<d", cost) for cost in costs]


def test_the_least_loaded_rank_wins():
    assert Case((At(100), At(99), At(101))).cheapest() == [1]
    assert Case((At(blocks=3), At(blocks=2), At(blocks=4))).cheapest() == [1]


def test_prefill_counts_in_blocks_like_active_blocks():
    assert Case((At(32), At(blocks=2))).cheapest() == [0, 1]
    assert Case((At(33), At(blocks=2))).cheapest() == [1]
    assert Case((At(31), At(blocks=2))).cheapest() == [0]


def test_a_cached_prefix_is_worth_its_blocks():
    assert Case((At(48, device=3), At())).cheapest() == [0, 1]
    assert Case((At(48, device=4), At())).cheapest() == [0]


def test_cached_blocks_beyond_the_prompt_are_worth_no_more():
    """Four blocks of prompt, nine cached: raw grows by what the credit takes away."""
    assert Case((At(device=9), At(device=4))).cheapest() == [0, 1]
    assert Case((At(device=TWO_31 - 1), At(device=4)), block_size=TWO_31 - 1).cheapest() == [0, 1]


def test_a_tier_is_worth_its_weight():
    """A prompt of eight blocks; host blocks count 0.75, those on disk 0.25."""
    case = Case((At(), At(host=4), At(disk=4), At(device=4), At(device=1, host=2, disk=4)), prompt=128)
    assert case.costs() == [8.0, 5.0, 7.0, 4.0, 4.5]
    assert case.weighed(host_cache_hit_weight=0.0).costs() == [8.0, 8.0, 7.0, 4.0, 6.0]
    assert case.weighed(overlap_score_credit=0.0).costs() == [8.0, 5.0, 7.0, 8.0, 5.5]


def test_shared_blocks_count_from_the_device_depth_on():
    case = Case((At(), At(device=2), At(device=6)), prompt=128, shared=((1, 3), (4, 8))).weighed(
        shared_cache_multiplier=0.5)
    assert case.costs() == [8 - 3, 6 - 2.5, 2 - 1]
    assert case.weighed(shared_cache_multiplier=0.0).costs() == [8, 6, 2]


def test_the_device_depth_is_rounded_half_up_for_shared_blocks():
    case = Case((At(effective=1.4), At(effective=1.5), At(effective=0.0)), prompt=128, shared=((1, 2),)).weighed(
        shared_cache_multiplier=1.0)
    assert case.costs() == [8 - 1.4 - 1, 6.5, 7]


def test_told_tokens_count_only_beyond_the_prompt():
    assert Case((At(cached=64), At(cached=0))).costs() == [4.0, 4.0]
    assert Case((At(cached=80), At(cached=0))).costs() == [5.0, 4.0]


def test_blocks_that_run_already_are_not_added_again():
    assert Case((At(blocks=5, active=3), At(blocks=3)), sequence_length=4).cheapest() == [0]
    assert Case((At(blocks=5, active=2), At(blocks=3)), sequence_length=4).cheapest() == [0, 1]


def test_untracked_prompts_look_at_active_blocks_only():
    assert Case((At(10**9, 1), At(0, 2)), track_prefill=False).cheapest() == [0]
    assert Case((At(10**9, 1), At(0, 1, device=9)), track_prefill=False).cheapest() == [0, 1]


def test_on_a_decode_fleet_credit_comes_off_the_decode_term():
    case = Case((At(blocks=10, device=3), At(blocks=2, device=3), At(blocks=8)), track_prefill=False, decode_role=True)
    assert case.costs() == [7, 0, 8]
    assert case.weighed(overlap_score_credit=0.0).costs() == [10, 2, 8]
    assert replace(case, track_prefill=True).costs() == [11, 3, 12]
    assert replace(case, decode_role=False).costs() == [10, 2, 8]


def test_a_request_may_count_as_blocks():
    case = Case((At(requests=4), At(requests=0, blocks=9))).weighed(active_request_weight=2.5)
    assert case.costs() == [14.0, 13.0]


def test_the_prefill_term_is_scaled_after_the_credit():
    assert Case((At(32, 5, device=1),)).weighed(prefill_load_scale=3.0).costs() == [3 * (6 - 1) + 5]


def test_a_device_credit_decays_with_the_load_above_the_least():
    """A prompt of four blocks: eight blocks more than the least loaded rank are twice its own."""
    case = Case((At(128, device=4), At(0), At(16)))
    assert case.weighed(overlap_score_credit_decay=1.0).costs() == [12 - 4 / 3, 4, 5]
    assert case.weighed(overlap_score_credit_decay=1.0).costs([0]) == [8]
    assert case.weighed(overlap_score_credit_decay=1.0).costs([0, 2]) == [12 - 4 / 2.75, 5]


def test_only_the_device_credit_decays():
    case = Case((At(128, device=4, host=4), At(0)), prompt=128).weighed(overlap_score_credit_decay=1.0)
    assert case.costs() == [16 - (4 / 2 + 3), 8]


def test_a_multiplier_is_that_of_the_taint_set():
    case = Case((At(blocks=6), At(blocks=6, taints=1), At(blocks=6, taints=2)), multiplier=(1.0, 0.5, 2.0))
    assert case.costs() == [10, 5, 20]


def test_active_blocks_are_rounded_half_up_before_they_count():
    def costs(*weights):
        return probe.Loads([(0, weight) for weight in weights]).costs([0, 1], Case((), track_prefill=False).query())

    assert costs(ONE + ONE // 2 - 1, ONE) == [1, 1]
    assert costs(ONE + ONE // 2, 2 * ONE) == [2, 2]


def test_foreign_load_counts_like_own():
    rows = [(32, 2 * ONE, 3), (0, 0, 0, 0, 32, 2, 3), (16, ONE, 1, 0, 16, 1, 2)]
    query = Case(()).weighed(active_request_weight=1.0).query()
    assert probe.Loads(rows).costs([0, 1, 2], query) == [11, 11, 11]


def test_only_candidates_are_looked_at():
    assert Case((At(0), At(5), At(6))).cheapest([2, 1]) == [1]
    assert Case((At(0), At(5))).cheapest([1]) == [1]
    assert Case((At(0),)).cheapest([]) == []


def test_costs_are_doubles():
    """Above 2^53 neighbours tie; loads beyond 64 bits stop at the largest."""
    assert Case((At(TWO_53 * 16), At(TWO_53 * 16 + 1)), prompt=1).cheapest() == [0, 1]
    assert Case((At(2**70), At(2**69)), prompt=1).cheapest() == [0, 1]
    assert Case((At(2**63), At(2**62)), prompt=1).cheapest() == [1]
    assert Case((At(2**63 - 1),), prompt=TWO_53, block_size=1).costs() == [float(INT64_TOP)]


@pytest.mark.parametrize(("at", "block_size", "wanted"), [
    (At(), 16, 0), (At(device=3), 16, 48), (At(device=1, host=1), 16, 28), (At(device=1, disk=1), 16, 20),
    (At(device=1, host=1, disk=1), 1, 2), (At(host=2), 1, 2), (At(host=1), 1, 1), (At(disk=1), 1, 0),
    (At(disk=2), 1, 1), (At(effective=2.5), 1, 3), (At(effective=2.49), 1, 2), (At(effective=1e300), 16, TWO_53),
    (At(device=TWO_31 - 1), TWO_31 - 1, TWO_53), (At(device=3, cached=7), 16, 7), (At(effective=2.0, host=4), 16, 80),
    (At(device=1, cached=0), 16, 0), (At(device=TWO_31 - 1), 2**22, TWO_53 - 2**22),
])
def test_cached_tokens(at, block_size, wanted):
    """Told, or derived: weighted blocks in whole tokens, half up, at most 2^53."""
    case = Case((at,), block_size=block_size)
    assert case.query().cached_tokens(0) == wanted == case.expected_cached(at)


def test_a_tier_without_weight_is_not_cached():
    case = Case((At(device=1, host=4, disk=8),), block_size=1)
    assert case.weighed(host_cache_hit_weight=0.0).query().cached_tokens(0) == 3
    assert case.weighed(disk_cache_hit_weight=0.0).query().cached_tokens(0) == 4
    assert case.weighed(overlap_score_credit=0.0).query().cached_tokens(0) == 6


@pytest.mark.parametrize(("at", "wanted"), [
    (At(), 0), (At(device=7), 7), (At(effective=2.99), 2), (At(effective=0.5), 0), (At(effective=1e300), TWO_53)])
def test_device_blocks_are_whole(at, wanted):
    assert Case((at,)).query().device_blocks(0) == wanted


small = st.integers(0, 9)
weight = st.sampled_from((0.0, 1.0, 0.5, 0.1, 3.0, 1e-300, 1e300)) | st.floats(0.0, 4.0)
weights = st.builds(
    SelectionWeights, weight, st.just(0.0) | weight, weight, st.floats(0.0, 1.0), st.floats(0.0, 1.0),
    st.floats(0.0, 1.0), weight)
tokens = st.integers(0, 200) | st.integers(0, INT64_TOP) | st.sampled_from((TWO_53, INT64_TOP))
depth = small | st.integers(0, TWO_31 - 1)
ranks = st.builds(
    At, tokens, small | st.integers(0, 2**42), small | st.integers(0, TWO_31 - 1), depth, st.just(0) | depth,
    st.just(0) | depth, st.integers(0, 4), st.none() | st.floats(0.0, 20.0) | st.floats(0.0, allow_infinity=False),
    st.none() | st.integers(0, TWO_53), st.integers(0, 2))
shared = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=4).map(
    lambda steps: tuple((at - length, at) for at, length in _ends(steps)))
common = st.builds(At, tokens, small, small, depth, active=st.integers(0, 4))


def _ends(steps):
    at = 0
    for gap, length in steps:
        at += gap + length
        yield at, length


cases = st.builds(
    Case, st.lists(ranks, min_size=1, max_size=6).map(tuple), st.integers(1, 100) | st.integers(1, TWO_53),
    st.sampled_from((1, 2, 3, 16, 100, TWO_31 - 1)), st.just(DEFAULT) | weights, st.integers(4, 9), st.booleans(),
    st.booleans(), shared, st.none() | st.tuples(*[st.floats(0.36, 2.72)] * 3))
common_cases = st.builds(
    Case, st.lists(common, min_size=1, max_size=6).map(tuple), st.integers(1, 100) | st.integers(1, TWO_53),
    st.sampled_from((1, 2, 3, 16, 100, TWO_31 - 1)), st.just(DEFAULT) | weights, st.integers(4, 9))


@given(cases | common_cases, st.randoms(use_true_random=False))
@example(Case((At(device=1),), prompt=1, block_size=3).weighed(overlap_score_credit=0.1), None)
def test_costs_are_the_oracle_s_to_the_bit(case, random):
    count = len(case.ranks)
    candidates = random.sample(range(count), random.randint(1, count)) if random else [0]
    wanted = case.expected_costs(candidates)
    assert bits(case.costs(candidates)) == bits(wanted)
    query = case.query()
    tied, best = case.loads().cheapest(candidates, query)
    assert tied == [c for c, cost in zip(candidates, wanted, strict=True) if cost == min(wanted)]
    assert bits([best]) == bits([min(wanted)])
    for rank in candidates:
        assert query.cached_tokens(rank) == case.expected_cached(case.ranks[rank])
        assert query.device_blocks(rank) == min(TWO_53, math.floor(case.expected_depth(case.ranks[rank])))


@given(cases, st.integers(1, 10**6), st.sampled_from(("tokens", "blocks", "requests")))
def test_e41_costs_are_finite_never_negative_and_grow_with_load(case, more, name):
    """Credit above 1 must not swamp the load. Huge weights are left out: they overflow, to infinity, not below 0."""
    limit = dict.fromkeys(("overlap_score_credit", "prefill_load_scale", "active_request_weight"), 1e6)
    case = case.weighed(overlap_score_credit_decay=0.0, **{
        key: min(top, getattr(case.weights, key)) for key, top in limit.items()})
    first = case.ranks[0]
    load = min(getattr(first, name) + more, TWO_31 - 1 if name == "requests" else 2**70)
    heavier = replace(case, ranks=(replace(first, **{name: load}), *case.ranks[1:]))
    before, after = case.costs()[0], heavier.costs()[0]
    assert 0.0 <= before <= after < math.inf


@pytest.mark.parametrize(
    ("blocks", "prompt", "size", "wanted"),
    [
        (0, 1, 16, (0, 1, 1)),
        (1, 16, 16, (16, 0, 1)),
        (1, 17, 16, (16, 1, 2)),
        (2, 17, 16, (17, 0, 2)),
        (2, 31, 16, (31, 0, 2)),
        (1, 5, 16, (5, 0, 1)),
        (TWO_31 - 1, 5, TWO_31 - 1, (5, 0, 1)),
        (TWO_31 - 1, TWO_53, 2**22, (TWO_53 - 2**22, 2**22, TWO_31)),
        (3, TWO_53, 1, (3, TWO_53 - 3, TWO_53)),
    ],
)
def test_the_request_helpers(blocks, prompt, size, wanted):
    """Effective cached tokens, prefill delta, blocks of the prompt."""
    helpers = load("_probe").helpers
    assert helpers(blocks * size, prompt, size, True) == wanted
    assert helpers(blocks * size, prompt, size, False) == (wanted[0], 0, wanted[2])
