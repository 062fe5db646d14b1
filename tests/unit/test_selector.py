"""The cost of a rank (DESIGN D8), ties, the request helpers, and the generator that breaks ties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_ledger import WyRand
from probe_build import load

probe = load("_probe")

ONE = 2**20
TWO_53 = 2**53
U64 = 2**64 - 1


def tied(loads, candidates=None, *, prompt=64, block=16, sequence=0, track=True, cached=None, active=None):
    """Ranks of least cost. loads: (prefill tokens, active blocks) by rank."""
    ranks = range(len(loads))
    return probe.cheapest_of(
        [(prefill, blocks * ONE) for prefill, blocks in loads], list(ranks if candidates is None else candidates),
        prompt, block, sequence, track, cached or [0 for _ in ranks], active or [0 for _ in ranks])


def cost(prefill, weight, prompt, block, sequence, track, cached, active) -> float:
    """DESIGN D8 in its own order of operations."""
    raw = float(prefill + max(prompt, cached * block)) if track else 0.0
    return max(0.0, raw / float(block) - float(cached)) + float(((weight + ONE // 2) >> 20) + sequence - active)


def test_the_least_loaded_rank_wins():
    assert tied([(100, 0), (99, 0), (101, 0)]) == [1]
    assert tied([(0, 3), (0, 2), (0, 4)]) == [1]


def test_prefill_counts_in_blocks_like_active_blocks():
    assert tied([(32, 0), (0, 2)]) == [0, 1]
    assert tied([(33, 0), (0, 2)]) == [1]
    assert tied([(31, 0), (0, 2)]) == [0]


def test_a_cached_prefix_is_worth_its_blocks():
    assert tied([(48, 0), (0, 0)], cached=[3, 0]) == [0, 1]
    assert tied([(48, 0), (0, 0)], cached=[4, 0]) == [0]


def test_cached_blocks_beyond_the_prompt_are_worth_no_more():
    """Four blocks of prompt, nine cached: raw grows by what the credit takes away."""
    assert tied([(0, 0), (0, 0)], cached=[9, 4]) == [0, 1]
    assert tied([(0, 0), (0, 0)], cached=[2**31 - 1, 4], block=2**31 - 1) == [0, 1]


def test_blocks_that_run_already_are_not_added_again():
    assert tied([(0, 5), (0, 3)], sequence=4, active=[3, 0]) == [0]
    assert tied([(0, 5), (0, 3)], sequence=4, active=[2, 0]) == [0, 1]


def test_untracked_prompts_look_at_active_blocks_only():
    assert tied([(10**9, 1), (0, 2)], track=False) == [0]
    assert tied([(10**9, 1), (0, 1)], track=False, cached=[0, 9]) == [0, 1]


def test_active_blocks_are_rounded_half_up_before_they_count():
    def least(*weights):
        return probe.cheapest_of([(0, weight) for weight in weights], [0, 1], 1, 1, 0, False, [0, 0], [0, 0])

    assert least(ONE + ONE // 2 - 1, ONE) == [0, 1]
    assert least(ONE + ONE // 2, ONE) == [1]
    assert least(ONE + ONE // 2, 2 * ONE) == [0, 1]


def test_ties_stand_in_the_order_of_the_candidates():
    assert tied([(7, 0)] * 5) == [0, 1, 2, 3, 4]
    assert tied([(7, 0)] * 5, [3, 1, 4]) == [3, 1, 4]
    assert tied([(7, 0), (9, 0), (7, 0), (8, 0), (7, 0)], [4, 1, 0]) == [4, 0]
    assert tied([(9, 0), (8, 0), (8, 0), (7, 0)]) == [3]


def test_only_candidates_are_looked_at():
    assert tied([(0, 0), (5, 0), (6, 0)], [2, 1]) == [1]
    assert tied([(0, 0), (5, 0)], [1]) == [1]
    assert tied([(0, 0)], []) == []


def test_costs_are_doubles():
    """Above 2^53 neighbours tie; sums beyond 64 bits still compare."""
    assert tied([(TWO_53 * 16, 0), (TWO_53 * 16 + 1, 0)], prompt=1) == [0, 1]
    assert tied([(2**70, 0), (2**69, 0)]) == [1]
    assert tied([(2**63, 0), (2**63 - 1, 0)], prompt=1) == [0, 1]


rows = st.tuples(
    st.integers(0, 100) | st.integers(0, 2**72) | st.sampled_from((TWO_53, 2**63 - 1, 2**63)),
    st.integers(0, 5 * ONE) | st.integers(0, 2**60), st.integers(0, 6) | st.integers(0, 2**31 - 1), st.integers(0, 4))


@given(
    st.lists(rows, min_size=1, max_size=6), st.integers(1, 100) | st.integers(1, TWO_53),
    st.sampled_from((1, 2, 3, 16, 100, 2**31 - 1)), st.integers(4, 9), st.booleans(),
    st.randoms(use_true_random=False))
def test_the_formula_says_the_same(ranks, prompt, block, sequence, track, random):
    candidates = random.sample(range(len(ranks)), random.randint(1, len(ranks)))
    costs = {c: cost(*ranks[c][:2], prompt, block, sequence, track, *ranks[c][2:]) for c in candidates}
    assert probe.cheapest_of(
        [row[:2] for row in ranks], candidates, prompt, block, sequence, track, [row[2] for row in ranks],
        [row[3] for row in ranks]) == [c for c in candidates if costs[c] == min(costs.values())]


@pytest.mark.parametrize(
    ("blocks", "prompt", "size", "wanted"),
    [
        (0, 1, 16, (0, 1, 1)),
        (1, 16, 16, (16, 0, 1)),
        (1, 17, 16, (16, 1, 2)),
        (2, 17, 16, (17, 0, 2)),
        (2, 31, 16, (31, 0, 2)),
        (1, 5, 16, (5, 0, 1)),
        (2**31 - 1, 5, 2**31 - 1, (5, 0, 1)),
        (2**31 - 1, TWO_53, 2**22, (TWO_53 - 2**22, 2**22, 2**31)),
        (3, TWO_53, 1, (3, TWO_53 - 3, TWO_53)),
    ],
)
def test_the_request_helpers(blocks, prompt, size, wanted):
    """Effective cached tokens, prefill delta, blocks of the prompt."""
    assert probe.helpers(blocks, prompt, size, True) == wanted
    assert probe.helpers(blocks, prompt, size, False) == (wanted[0], 0, wanted[2])


def test_the_generator_is_wyrand():
    """selector 3.5: raw outputs from seed 42, and the same as fractions of 2^64."""
    outputs = probe.randoms(42, 5)
    assert [f"{x:016x}" for x in outputs] == [
        "ca71d87c76983989", "7e5ba61552085fc6", "cdf101e3bab88b9f", "0a3825ad73267808", "8ac0adc15d671c29"]
    fractions = [x / 2**64 for x in outputs[:4]]
    assert fractions == pytest.approx([0.790799646746, 0.493585949140, 0.804458730791, 0.039919237944], abs=1e-12)


@given(st.integers(0, U64), st.integers(1, 9) | st.integers(1, U64) | st.sampled_from((2**63, 2**63 + 1, U64)))
def test_draws_are_those_of_the_rule(seed, n):
    model = WyRand(seed)
    wanted = [model.draw(n) for _ in range(20)]
    assert probe.draws(seed, n, 20) == (wanted, model.state)


def test_a_draw_from_one_takes_an_output_too():
    drawn, state = probe.draws(7, 1, 3)
    assert drawn == [0, 0, 0]
    assert state == (7 + 3 * 0x2D358DCCAA6C78A5) & U64


def chi_square(counts, draws: int) -> float:
    wanted = draws / len(counts)
    return math.fsum((count - wanted) ** 2 / wanted for count in counts)


@pytest.mark.parametrize(("n", "bound"), [(2, 10.83), (3, 13.82), (7, 22.46), (10, 27.88), (64, 103.5)])
def test_draws_are_uniform(n, bound):
    """Bounds: the 0.1 % point of the chi-square distribution with n - 1 degrees of freedom."""
    counts = [0] * n
    for value in probe.draws(2024, n, 50_000)[0]:
        counts[value] += 1
    assert chi_square(counts, 50_000) < bound


def test_draws_are_uniform_where_multiplying_alone_would_not_be():
    """Of 3/4 of 2^64 every third value would come twice as often as the others."""
    counts = [0, 0, 0]
    for value in probe.draws(2024, 3 * 2**62, 30_000)[0]:
        counts[value % 3] += 1
    assert chi_square(counts, 30_000) < 13.82
