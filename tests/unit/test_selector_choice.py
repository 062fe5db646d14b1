"""The choice among ranks (DESIGN D8): the generator, ties, softmax, and what draws and what does not."""

from __future__ import annotations

import math
from collections import Counter

import oracle_cost
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_ledger import WyRand
from selector_cases import At, Case, Generator, chi_square, probe

U64 = 2**64 - 1
STEP = 0x2D358DCCAA6C78A5

#: The 0.1 % points of the chi-square distribution, by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 6: 22.46, 9: 27.88, 63: 103.44}


def idle(count: int) -> Case:
    return Case((At(),) * count)


def test_the_generator_is_wyrand():
    """selector 3.5: raw outputs from seed 42, and the same as fractions."""
    assert [f"{x:016x}" for x in probe.randoms(42, 5)] == [
        "ca71d87c76983989", "7e5ba61552085fc6", "cdf101e3bab88b9f", "0a3825ad73267808", "8ac0adc15d671c29"]
    uniforms, state = probe.uniforms(42, 4)
    assert uniforms == pytest.approx([0.790799646746, 0.493585949140, 0.804458730791, 0.039919237944], abs=1e-12)
    assert state == (42 + 4 * STEP) & U64


@given(st.integers(0, U64))
def test_a_uniform_is_the_high_53_bits(seed):
    generator = Generator(seed)
    assert probe.uniforms(seed, 5) == ([generator.uniform() for _ in range(5)], generator.state)
    assert all(0.0 <= u < 1.0 for u in probe.uniforms(seed, 5)[0])


@given(st.integers(0, U64), st.integers(1, 9) | st.integers(1, U64) | st.sampled_from((2**63, 2**63 + 1, U64)))
def test_draws_are_those_of_the_rule(seed, n):
    model = WyRand(seed)
    wanted = [model.draw(n) for _ in range(20)]
    assert probe.draws(seed, n, 20) == (wanted, model.state)


def test_a_draw_from_one_takes_an_output_too():
    assert probe.draws(7, 1, 3) == ([0, 0, 0], (7 + 3 * STEP) & U64)


@pytest.mark.parametrize("n", [2, 3, 7, 10, 64])
def test_draws_are_uniform(n):
    counts = Counter(probe.draws(2024, n, 50_000)[0])
    assert chi_square([counts[i] for i in range(n)]) < CHI_SQUARE[n - 1]


def test_draws_are_uniform_where_multiplying_alone_would_not_be():
    """Of 3/4 of 2^64 every third value would come twice as often as the others."""
    counts = Counter(value % 3 for value in probe.draws(2024, 3 * 2**62, 30_000)[0])
    assert chi_square([counts[i] for i in range(3)]) < CHI_SQUARE[2]


def test_ties_stand_in_the_order_of_the_candidates():
    assert idle(5).cheapest() == [0, 1, 2, 3, 4]
    assert idle(5).cheapest([3, 1, 4]) == [3, 1, 4]
    assert Case((At(7), At(9), At(7), At(8), At(7))).cheapest([4, 1, 0]) == [4, 0]
    assert Case((At(9), At(8), At(8), At(7))).cheapest() == [3]


def test_what_needs_no_draw_takes_none():
    """No candidate; one; one that is cheaper than the others."""
    assert idle(3).choose(9, []) == (None, 9)
    assert idle(3).choose(9, [2]) == (2, 9)
    assert Case((At(5), At(4), At(5))).choose(9) == (1, 9)
    assert idle(3).weighed(temperature=1.0).choose(9, [2]) == (2, 9)


def test_ties_take_one_draw_and_softmax_one_uniform():
    assert idle(3).choose(9)[1] == (9 + STEP) & U64
    assert idle(3).weighed(temperature=1.0).choose(9)[1] == (9 + STEP) & U64
    assert Case((At(5), At(4))).weighed(temperature=0.5).choose(9)[1] == (9 + STEP) & U64


def test_a_tie_is_settled_by_index_among_the_tied():
    case = Case((At(9), At(7), At(9), At(7), At(7)))
    for seed in range(50):
        (index,), state = probe.draws(seed, 3, 1)
        assert case.choose(seed) == ([1, 3, 4][index], state)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7])
def test_e37_equals_are_chosen_alike_and_reproducibly(n):
    case = idle(n)
    assert case.picks(7, 120) == case.picks(7, 120) != case.picks(8, 120)
    counts = Counter(case.picks(7, 5000))
    assert chi_square([counts[i] for i in range(n)]) < CHI_SQUARE[n - 1]
    assert chi_square([Counter(case.picks(7, 120))[i] for i in range(n)]) < CHI_SQUARE[n - 1]


def test_e25_no_rank_is_not_rank_0():
    """Over four ranks all get some; a pin is one candidate, so it is taken, without a draw."""
    assert set(idle(4).picks(1, 60)) == {0, 1, 2, 3}
    assert {idle(4).choose(seed, [0]) for seed in range(60)} == {(0, seed) for seed in range(60)}


def test_e38_a_miss_goes_to_the_least_loaded():
    """Neither rank has the prompt cached. What else one of them caches does not enter a cost."""
    assert set(Case((At(160, 10, 3), At(0))).picks(3, 30)) == {1}
    assert set(Case((At(0), At(0, 1))).picks(3, 30)) == {0}


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 5.0])
def test_softmax_draws_as_often_as_it_says(temperature):
    case = Case((At(blocks=0), At(blocks=4), At(blocks=1), At(blocks=10), At(blocks=10))).weighed(
        temperature=temperature)
    shares = oracle_cost.softmax(case.costs(), temperature)
    assert math.fsum(shares) == pytest.approx(1.0)
    assert shares[3] == shares[4] == pytest.approx(shares[0] * math.exp(-1 / temperature), rel=1e-12)
    counts = Counter(case.picks(11, 20_000))
    kept = [i for i, share in enumerate(shares) if share > 1e-3]
    rest = 1.0 - sum(shares[i] for i in kept)
    found = [counts[i] for i in kept] + ([sum(counts.values()) - sum(counts[i] for i in kept)] if rest > 1e-3 else [])
    wanted = [shares[i] for i in kept] + ([rest] if rest > 1e-3 else [])
    scale = sum(wanted)
    assert chi_square(found, [share / scale for share in wanted]) < CHI_SQUARE[len(found) - 1]


def test_two_costs_at_a_temperature():
    """The better of two gets 1 / (1 + exp(-1/T)): 0.731059 at 1 (selector 3.4) and 0.806679 at 0.7."""
    assert oracle_cost.softmax([3.0, 4.0], 1.0)[0] == pytest.approx(0.731059, abs=1e-6)
    assert oracle_cost.softmax([3.0, 4.0], 0.7)[0] == pytest.approx(0.806679, abs=1e-6)
    assert probe.softmax_index([3.0, 4.0], 1.0, 0.7310) == 0
    assert probe.softmax_index([3.0, 4.0], 1.0, 0.7311) == 1
    assert probe.softmax_index([3.0, 4.0], 0.7, 0.8066) == 0
    assert probe.softmax_index([3.0, 4.0], 0.7, 0.8067) == 1


def test_equal_costs_share_alike():
    assert [probe.softmax_index([2.0] * 4, 0.5, u) for u in (0.0, 0.25, 0.26, 0.5, 0.51, 0.75, 0.76, 0.99)] == [
        0, 0, 1, 1, 2, 2, 3, 3]
    assert probe.softmax_index([math.inf] * 2, 0.5, 0.51) == 1


def test_what_is_left_by_rounding_goes_to_the_last():
    """Ten tenths come to less than the largest uniform."""
    assert probe.softmax_index([1.0] * 10, 1.0, 1.0 - 2.0**-53) == 9


@pytest.mark.parametrize(("costs", "temperature"), [
    ([5.0, 3.0, 4.0, 3.0], 1e-320), ([5.0, 3.0, 4.0, 3.0], 5e-324), ([math.inf, 3.0, 4.0, 3.0], 1.0),
    ([1e17 + 64, 1e17, 1e17 + 16, 1e17], 1e-300),
])
def test_where_shares_cannot_be_told_the_first_of_least_cost_is_taken(costs, temperature):
    for u in (0.0, 0.3, 1.0 - 2.0**-53):
        assert probe.softmax_index(costs, temperature, u) == 1
    assert oracle_cost.softmax(costs, temperature) == [0.0, 1.0, 0.0, 0.0]
    assert oracle_cost.choose(costs, temperature, Generator(1), False) == 1


def test_costs_far_apart_are_scaled_first():
    """selector 7.1, 2: the spread of the largest doubles is not finite."""
    top = 1.7976931348623157e308
    assert probe.softmax_index([-top, top], 1.0, 0.6) == 0
    assert probe.softmax_index([-top, top], 1.0, 0.74) == 1


finite = st.floats(0.0, 1e6) | st.sampled_from((0.0, 1.0, 2.0, 1e300, 1.7e308, math.inf))


@given(
    st.lists(finite, min_size=2, max_size=8), st.floats(1e-3, 10.0) | st.floats(5e-324, 1.7e308), st.integers(0, U64))
def test_softmax_is_the_oracle_s(costs, temperature, seed):
    (u,), _ = probe.uniforms(seed, 1)
    assert probe.softmax_index(costs, temperature, u) == oracle_cost.choose(costs, temperature, Generator(seed), False)


@given(
    st.lists(st.builds(At, st.integers(0, 3), st.integers(0, 2), device=st.integers(0, 2)), min_size=1, max_size=9),
    st.sampled_from((0.0, 0.0, 0.7, 1e-9)), st.sampled_from((0.0, 1.0)), st.integers(0, U64))
def test_choices_are_the_oracle_s(ranks, temperature, decay, seed):
    case = Case(tuple(ranks), block_size=1, prompt=3).weighed(
        temperature=temperature, overlap_score_credit_decay=decay)
    assert case.choose(seed) == case.expected_choice(seed)
