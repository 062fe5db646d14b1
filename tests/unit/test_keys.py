"""The order inside a class (DESIGN D3): worked rows of the reference facts, and keys at the edges of their inputs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle_queue import sort_key
from probe_build import load

from kvcore.policy import QueuePolicy

order_key = load("_probe").order_key

NS = 10**9
NS_LAST = 2**62 - 1
TWO_53 = 2**53
INF, NAN = math.inf, math.nan
ORDERS = ("fcfs", "lcfs", "edf", "wspt")


def key(order: str, *, strict=0, jump=0.0, at=0, deadline=None, cost=1, seq=0) -> tuple:
    return order_key(order, strict, jump, at, deadline, cost, seq)


def served(order: str, **requests: dict) -> str:
    """Names in the order in which their requests are served, stored in the order given."""
    keys = {name: key(order, seq=seq, **fields) for seq, (name, fields) in enumerate(requests.items())}
    return "".join(sorted(keys, key=keys.get))


def test_the_rows_of_the_reference_facts():
    """policy-queue 2.3, seconds turned into nanoseconds."""
    assert served(
        "fcfs", x={"at": 0}, y={"at": 5 * NS, "jump": 50.0}, z={"at": 60 * NS, "jump": 50.0},
        w={"at": 10 * NS, "jump": 10.0}) == "yxwz"
    assert served(
        "lcfs", x={"at": 0}, y={"at": 5 * NS}, z={"at": 1 * NS, "jump": 4.0}, w={"at": 2 * NS, "jump": 3.0}) == "yzwx"
    assert served(
        "wspt", x={"cost": 100}, y={"cost": 50}, z={"cost": 300, "jump": 5.0}, w={"cost": 50}) == "yzwx"


@pytest.mark.parametrize(
    ("order", "first", "second"),
    [
        ("fcfs", {"jump": 50.0, "at": 5 * NS}, {}),
        ("fcfs", {"at": 1}, {"at": 2}),
        ("fcfs", {"jump": 1e-9, "at": 2}, {"at": 2}),
        ("fcfs", {"at": 0}, {"jump": 1e-9, "at": 2}),
        ("lcfs", {"jump": 100.0}, {}),
        ("lcfs", {"at": 2}, {"at": 1}),
        ("wspt", {"cost": 100}, {"cost": 1000}),
        ("wspt", {"cost": 64}, {"cost": 1024}),
        ("wspt", {"cost": 1}, {"cost": 512}),
        ("wspt", {"cost": 1008}, {"cost": 1024}),
        ("wspt", {"cost": 100, "jump": 5.0}, {"cost": 100}),
        ("wspt", {"cost": TWO_53 - 1}, {"cost": TWO_53}),
        ("edf", {"deadline": 5, "at": 9}, {"deadline": 6, "at": 1, "jump": 1e9}),
        ("edf", {"deadline": NS_LAST, "at": 9}, {"at": 1}),
        ("edf", {"at": 1}, {"at": 2}),
        ("edf", {"deadline": 7, "at": 2, "jump": 1.0}, {"deadline": 7, "at": 1}),
    ],
)
def test_the_first_comes_before_the_second(order, first, second):
    assert key(order, seq=1, **first) < key(order, seq=0, **second)


@pytest.mark.parametrize("order", ORDERS)
def test_strict_priority_beats_everything_else(order):
    best = {"jump": INF, "deadline": 0, "cost": 1, "at": NS_LAST if order == "lcfs" else 0, "seq": 0}
    worst = {"deadline": None, "cost": TWO_53, "at": 0 if order == "lcfs" else NS_LAST, "seq": 2**64 - 1}
    assert key(order, strict=1, **worst) < key(order, strict=0, **best)
    assert key(order, strict=2**32 - 1, **worst) < key(order, strict=2**32 - 2, **best)


@pytest.mark.parametrize("order", ORDERS)
def test_of_equals_the_first_stored_comes_first(order):
    same = {"strict": 3, "jump": 0.25, "at": 17, "deadline": 99, "cost": 12}
    assert key(order, seq=0, **same) < key(order, seq=1, **same) < key(order, seq=2**64 - 1, **same)
    assert key(order, seq=5, **same)[:3] == key(order, seq=6, **same)[:3]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("jump", [NAN, -NAN, -1.0, -INF, -0.0, -5e-324, 0.0])
def test_jumps_that_count_as_none(order, jump):
    assert key(order, jump=jump, at=7, cost=3) == key(order, jump=0.0, at=7, cost=3)


@pytest.mark.parametrize("order", ["fcfs", "lcfs", "edf"])
@pytest.mark.parametrize(
    ("jump", "jump_ns"),
    [
        (5e-324, 0), (4.9e-10, 0), (5e-10, 1), (1.4e-9, 1), (1.5e-9, 2), (2.5e-9, 3), (1.0, NS),
        (0.1 + 0.2, 300_000_000), (1e9, NS * 10**9), (4e9, 4 * NS * 10**9),
        (4611686018.427387, math.floor(4611686018.427387 * 1e9 + 0.5)), (4611686018.427388, NS_LAST), (5e9, NS_LAST),
        (1e300, NS_LAST), (1.7976931348623157e308, NS_LAST), (INF, NS_LAST),
    ],
)
def test_a_jump_is_rounded_to_whole_nanoseconds(order, jump, jump_ns):
    """A head start of n nanoseconds ties with an arrival n earlier (LCFS: later)."""
    plain = {"at": jump_ns} if order == "lcfs" else {"at": NS_LAST - jump_ns}
    ahead = {"at": 0} if order == "lcfs" else {"at": NS_LAST}
    assert key(order, jump=jump, **ahead) == key(order, **plain)


def test_no_nanosecond_is_lost_at_any_time():
    for at in (0, 2**53, 2**60 + 1, NS_LAST - 1):
        assert key("fcfs", at=at) < key("fcfs", at=at + 1)
        assert key("lcfs", at=at + 1) < key("lcfs", at=at)
        assert key("fcfs", at=at, jump=INF) < key("fcfs", at=at + 1, jump=INF)
        assert key("lcfs", at=at + 1, jump=INF) < key("lcfs", at=at, jump=INF)


def test_an_infinite_weight_is_the_best_and_ties_with_another():
    assert key("wspt", jump=INF, cost=TWO_53) == key("wspt", jump=INF, cost=1)
    assert key("wspt", jump=INF, cost=TWO_53) < key("wspt", jump=1.7976931348623157e308, cost=1)


def test_wspt_ignores_arrival_and_edf_ignores_cost():
    assert key("wspt", at=5, cost=9) == key("wspt", at=50, cost=9)
    assert key("edf", at=5, cost=9) == key("edf", at=5, cost=10)
    assert key("fcfs", at=5, deadline=9) == key("fcfs", at=5)


jumps = st.floats() | st.sampled_from((0.0, -0.0, 1e-9, 5e-10, 1.0, 50.0, 4611686018.427387, 4611686018.427388, INF))
times = st.integers(0, 20) | st.integers(0, NS_LAST) | st.sampled_from((NS_LAST, 2**53 + 1))
requests = st.tuples(
    st.integers(0, 2) | st.integers(0, 2**32 - 1), jumps, times, st.none() | times,
    st.integers(1, 9) | st.integers(1, TWO_53))


@given(st.sampled_from(ORDERS), requests, requests)
def test_keys_sort_as_the_rule_says(order, first, second):
    policy = QueuePolicy(order)
    mine = order_key(order, *first, 0), order_key(order, *second, 1)
    wanted = sort_key(policy, *first, 0), sort_key(policy, *second, 1)
    assert (mine[0] < mine[1]) == (wanted[0] < wanted[1])
    assert (mine[0][:3] == mine[1][:3]) == (wanted[0][:-1] == wanted[1][:-1])
