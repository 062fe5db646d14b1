"""Figures over weighted requests, bootstrap intervals, drift of service: each against a slow and obvious way."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
from kvcore.drivers.replay.quantiles import rank
from kvcore.drivers.study import bootstrap
from kvcore.drivers.study.comparison import labels
from kvcore.drivers.study.fairness import FairnessTap, is_promised
from kvcore.drivers.study.outcomes import LATENCIES, PERCENTS, Outcomes, Sample

from kvcore.actions import Dispatch, Park, Reject, RejectReason
from kvcore.events import RequestArrived
from kvcore.policy import Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile
from kvcore.request import Request


def outcomes_of(classes, latencies, completed=None, prompts=None, hits=None, names=("a", "b")):
    """Outcomes without a replay: every latency has the same values."""
    made = Outcomes.__new__(Outcomes)
    count = len(classes)
    made.names = list(names)
    made.keys = np.array([[0, i + 1] for i in range(count)]).reshape(count, 2)
    made._classes = np.array(classes, np.int64)
    made.latencies = {name: np.array(latencies, np.int64) for name in LATENCIES}
    made.completed = np.array([1] * count if completed is None else completed, np.int64)
    made.prompts = np.array([10] * count if prompts is None else prompts, np.int64)
    made.hits = np.array([0] * count if hits is None else hits, np.int64)
    return made


# Figures.


@pytest.mark.parametrize("seed", range(20))
def test_weighted_figures_are_those_of_the_repeated_requests(seed):
    draw = random.Random(seed)
    count = draw.randint(1, 40)
    classes = [draw.randint(-1, 1) for _ in range(count)]
    values = [draw.choice([-1, draw.randint(0, 30), draw.randint(0, 2**62)]) for _ in range(count)]
    completed = [draw.randint(0, 1) for _ in range(count)]
    hits = [draw.randint(0, 10) for _ in range(count)]
    outcomes = outcomes_of(classes, values, completed, hits=hits)
    weights = [draw.randint(0, 3) for _ in range(count)]
    for name, inside in (("a", {0}), ("b", {1}), ("all", {-1, 0, 1}), ("none", set())):
        sample = Sample(outcomes, outcomes.members(name), np.arange(count))
        got = sample.figures(np.array(weights, np.int64))
        repeated = [i for i in range(count) for _ in range(weights[i]) if classes[i] in inside]
        assert got["requests"] == len(repeated)
        whole = sum(completed[i] for i in repeated)
        assert got["completed"] == (round(whole / len(repeated), 6) if repeated else None)
        found = sum(hits[i] for i in repeated)
        assert got["prefix_hit"] == (round(found / (10 * len(repeated)), 6) if repeated else None)
        known = sorted(values[i] for i in repeated if values[i] >= 0)
        assert got["ttft_mean"] == (sum(known) // len(known) if known else None)
        for percent in PERCENTS:
            assert got[f"ttft_p{percent}"] == (known[rank(percent, len(known))] if known else None)


def test_a_class_called_all_is_itself():
    outcomes = outcomes_of([0, 0, 1], [1, 2, 3], names=("all", "b"))
    assert outcomes.groups() == ["all", "b"]
    assert outcomes.figures()["all"]["requests"] == 2


# Bootstrap.


def spread(base, other, name="all", **options):
    return bootstrap.differences(base, other, name, **{"seed": 1, "resamples": 200, "percent": 90} | options)


def test_equal_replays_differ_by_exactly_nothing():
    draw = random.Random(3)
    one = outcomes_of([draw.randint(0, 1) for _ in range(99)], [draw.randint(0, 10**12) for _ in range(99)])
    for name in ("a", "b", "all"):
        for found in spread(one, one, name).values():
            assert (found.difference, found.low, found.high, found.is_clear) == (0, 0, 0, False)


def test_a_shift_of_all_requests_is_clear_and_exact():
    draw = random.Random(4)
    classes, values = [draw.randint(0, 1) for _ in range(99)], [draw.randint(0, 10**9) for _ in range(99)]
    found = spread(outcomes_of(classes, values), outcomes_of(classes, [value + 1_000 for value in values]))
    for key in ("ttft_mean", "ttft_p50", "ttft_p99"):
        assert (found[key].difference, found[key].low, found[key].high) == (1_000, 1_000, 1_000)
        assert found[key].is_clear
    assert not found["completed"].is_clear


def test_noise_is_not_clear_and_lies_in_its_interval():
    draw = random.Random(5)
    values = [draw.randint(0, 10**9) for _ in range(300)]
    other = [value + draw.choice([-1, 1]) * draw.randint(0, 1000) for value in values]
    found = spread(outcomes_of([0] * 300, values), outcomes_of([0] * 300, other))["ttft_mean"]
    assert found.low < 0 < found.high
    assert found.low <= found.difference <= found.high


def test_interval_agrees_with_the_normal_approximation():
    """Of a mean: 1.645 standard errors to each side hold 90 %."""
    draw = random.Random(6)
    gaps = [draw.randint(-10**6, 10**6) for _ in range(2_000)]
    base = outcomes_of([0] * 2_000, [10**7] * 2_000)
    found = spread(base, outcomes_of([0] * 2_000, [10**7 + gap for gap in gaps]), resamples=2_000)["ttft_mean"]
    half = 1.645 * np.std(gaps) / np.sqrt(len(gaps))
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)


def test_wider_confidence_is_a_wider_interval():
    draw = random.Random(7)
    base = outcomes_of([0] * 100, [draw.randint(0, 10**9) for _ in range(100)])
    other = outcomes_of([0] * 100, [draw.randint(0, 10**9) for _ in range(100)])
    narrow, wide = (spread(base, other, percent=percent)["ttft_mean"] for percent in (50, 99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_draws_depend_on_the_seed_and_the_class_only():
    draw = random.Random(8)
    classes = [draw.randint(0, 1) for _ in range(60)]
    one = outcomes_of(classes, [draw.randint(0, 10**9) for _ in range(60)])
    two = outcomes_of(classes, [draw.randint(0, 10**9) for _ in range(60)])
    assert spread(one, two) == spread(one, two)
    assert spread(one, two) != spread(one, two, seed=2)
    # The raw words are fixed by numpy: so is what they are made into, here by hand.
    words = np.random.PCG64(7).random_raw(5)
    places = [(int(word) >> 32) * 5 >> 32 for word in words]
    assert bootstrap._draw(np.random.PCG64(7), 5).tolist() == [places.count(i) for i in range(5)]


def test_a_request_counts_where_it_is_of_the_class():
    base = outcomes_of([0, 0, 1], [10, 20, 90])
    moved = outcomes_of([0, 1, 1], [10, 20, 90])
    found = spread(base, moved, "a")["ttft_p99"]
    assert (found.base, found.other, found.difference) == (20, 10, -10)


def test_a_class_that_one_replay_lacks_has_no_difference():
    base, other = outcomes_of([0, 0], [1, 2]), outcomes_of([1, 1], [1, 2])
    found = spread(base, other, "a")["ttft_mean"]
    assert (found.base, found.other, found.difference, found.low) == (1, None, None, None)
    assert spread(base, other, "nobody")["ttft_mean"].base is None


def test_labels_tell_equal_paths_apart():
    assert labels(["a", "b", "a"]) == ["a#1", "b", "a#2"]


# Drift.


def profile_of(*quanta, **options):
    classes = tuple(
        PolicyClass(name, quantum, policy_family=name, cache_bucket="all", prefill_busy_threshold=0)
        for name, quantum in zip("abc", quanta, strict=False))
    return PolicyProfile(classes, (CacheBucket("all", 0),), "a", **options)


class Books:
    """Stands in for a core: what each class was charged."""

    def __init__(self, classes):
        self.served = [0] * classes

    def stats(self):
        return SimpleNamespace(classes=[SimpleNamespace(dispatched_cost_tokens=tokens) for tokens in self.served])


def play(profile, steps):
    """Steps of letters: +a5 a request of class a and 5 tokens parks, -a5 one is dispatched, !a5 one is rejected."""
    tap, core, waiting, number = FairnessTap(profile), Books(len(profile.classes)), {}, 0
    for step in steps:
        events, actions = [], []
        for word in step.split():
            index, tokens = "abc".index(word[1]), int(word[2:])
            if word[0] == "+":
                number += 1
                name = f"r{number}"
                waiting.setdefault(word[1:], []).append(name)
                events.append(RequestArrived(0, Request(name, tokens)))
                actions.append(Park(name, index))
                continue
            name = waiting[word[1:]].pop(0)
            if word[0] == "!":
                actions.append(Reject(name, RejectReason.DEADLINE_EXPIRED, index))
            else:
                core.served[index] += tokens
                actions.append(Dispatch(name, 1, 0, 0, index, 0, 0, tokens, 0, 0))
        tap(events, actions, core)
    return tap.pairs()


def test_fair_turns_stay_inside_the_bound():
    (pair,) = play(profile_of(10, 10), ["+a10 +a10 +b10 +b10", "-a10", "-b10", "-a10"])
    assert (pair.one, pair.other) == ("a", "b")
    assert (pair.apart, pair.bound, pair.broken, pair.looks) == (1, 3, 0, 3)


def test_one_class_all_the_time_breaks_the_bound():
    (pair,) = play(profile_of(10, 10), ["+b10 " + "+a10 " * 6, *["-a10"] * 5])
    assert (pair.apart, pair.bound, pair.broken, pair.looks) == (5, 3, 2, 5)


def test_drift_counts_in_rounds_of_each_quantum():
    (pair,) = play(profile_of(30, 10), ["+a30 +a30 +b10 +b10", "-a30", "-b10"])
    assert (pair.apart, pair.bound) == (1, 3)


def test_what_one_class_is_served_alone_is_no_drift():
    """A span starts anew when a class has been empty."""
    alone = ["-a10"] * 5
    (pair,) = play(profile_of(10, 10), ["+b10 " + "+a10 " * 7, "-b10", *alone, "+b10", "-a10"])
    assert (pair.apart, pair.broken, pair.looks) == (1, 0, 2)


def test_a_step_of_many_dispatches_that_ends_the_waiting_is_not_judged():
    assert play(profile_of(10, 10), ["+a10 +b10 +b10", "-a10 -b10 -b10"]) == []


def test_a_wait_that_a_refusal_ends_is_not_judged():
    assert play(profile_of(10, 10), ["+a10 +b10 +b10", "!a10 -b10"]) == []


def test_three_classes_are_three_pairs():
    pairs = play(profile_of(10, 10, 10), ["+a10 +b10 +c10 +a10", "-a10"])
    assert [(pair.one, pair.other, pair.apart) for pair in pairs] == [("a", "b", 1), ("a", "c", 1), ("b", "c", 0)]


def test_the_bound_is_promised_where_classes_run_at_the_same_times():
    assert is_promised(profile_of(1, 2))
    assert not is_promised(profile_of(1, 2, arbitration=Arbitration.REFERENCE))
    assert not is_promised(profile_of(1, 2, capacity=Capacity.STRICT))
