"""exp and tanh: close to the true ones, and the same bits as the oracle's (DESIGN D8)."""

from __future__ import annotations

import math
import struct

import oracle_cost
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from probe_build import load

probe = load("_probe_selector")

any_float = st.floats() | st.floats(-746.0, 710.0) | st.floats(-2.0, 2.0)


def bits(x: float) -> bytes:
    return b"nan" if x != x else struct.pack("<d", x)


@given(any_float)
@example(-745.2)
@example(math.nextafter(-745.2, 0.0))
@example(709.79)
@example(math.nextafter(709.79, 0.0))
@example(709.782712893384)
@example(-708.3964185322641)
@example(-0.0)
@example(math.nan)
def test_exp_is_the_oracle_s_to_the_bit(x):
    assert bits(probe.exp(x)) == bits(oracle_cost.kv_exp(x))


@given(any_float)
@example(0.25)
@example(math.nextafter(0.25, 0.0))
@example(20.0)
@example(math.nextafter(20.0, 0.0))
@example(2.0**-28)
@example(-0.0)
@example(-math.inf)
@example(math.nan)
def test_tanh_is_the_oracle_s_to_the_bit(x):
    assert bits(probe.tanh(x)) == bits(oracle_cost.kv_tanh(x))


@given(st.floats(-708.0, 709.7))
def test_exp_is_exp(x):
    assert probe.exp(x) == pytest.approx(math.exp(x), rel=1e-12, abs=0.0)


@given(st.floats(-25.0, 25.0) | st.floats(-0.3, 0.3) | st.floats(-1e-6, 1e-6))
def test_tanh_is_tanh(x):
    assert probe.tanh(x) == pytest.approx(math.tanh(x), rel=1e-12, abs=0.0)


@pytest.mark.parametrize(("x", "wanted"), [
    (0.0, 1.0), (-0.0, 1.0), (-745.2, 0.0), (-1e300, 0.0), (-math.inf, 0.0), (709.79, math.inf), (math.inf, math.inf),
    (-745.1, 5e-324),
])
def test_exp_at_its_ends(x, wanted):
    assert bits(probe.exp(x)) == bits(wanted)


@pytest.mark.parametrize(("x", "wanted"), [
    (0.0, 0.0), (-0.0, -0.0), (1e-300, 1e-300), (-1e-9, -1e-9), (20.0, 1.0), (-20.0, -1.0), (math.inf, 1.0),
    (-math.inf, -1.0),
])
def test_tanh_at_its_ends(x, wanted):
    assert bits(probe.tanh(x)) == bits(wanted)


@given(st.floats(-740.0, -708.0))
def test_tiny_results_are_rounded_once(x):
    """Below the least normal number a unit of the last place is 2^-1074."""
    assert abs(probe.exp(x) - math.exp(x)) <= 2.0**-1074


def test_the_multipliers_of_the_reference():
    """selector 2.4, there with single-precision weights: 0.85 and -0.25."""
    single = struct.unpack("<f", struct.pack("<f", 0.85))[0]
    assert probe.exp(-probe.tanh(single)) == pytest.approx(0.501039929, abs=1e-9)
    assert probe.exp(-probe.tanh(-0.25)) == pytest.approx(1.277517398, abs=1e-9)
    assert oracle_cost.multiplier((("a", 1e308), ("b", 1e308), ("c", -1.0)), {"a", "b"}) == probe.exp(-1.0)
    assert oracle_cost.multiplier((("a", 1.0),), set()) == 1.0
