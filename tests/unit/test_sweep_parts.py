"""Spaces, objectives, points and result files of sweeps."""

from __future__ import annotations

import itertools
import json
import random
from fractions import Fraction

import pytest
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.traces import open_traces
from kvcore.drivers.study import case
from kvcore.drivers.study.case import Case, Load
from kvcore.drivers.study.objective import InvalidObjective, front, parse_objective, ranking
from kvcore.drivers.study.points import Task, Tried, case_of_point, check_keys, policy_text, try_point
from kvcore.drivers.study.results import InvalidResults, ResultFile, head, line, read_results, text_of
from kvcore.drivers.study.space import InvalidSpace, Range, load_space

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.errors import InvalidConfig, InvalidPolicy, InvalidTrace
from kvcore.policy_file import load_policy

POLICY = """
default_policy_family: regular
uncached_isl_buckets:
  - {min_tokens: 0, bucket: short}
  - {min_tokens: 1000, bucket: long}
policy_classes:
  - {name: p.s, policy_family: premium, cache_bucket: short, quantum: 512, prefill_busy_threshold: 500}
  - {name: p.l, policy_family: premium, cache_bucket: long, quantum: 512}
  - {name: r.s, policy_family: regular, cache_bucket: short, quantum: 128}
  - {name: r.l, policy_family: regular, cache_bucket: long, quantum: 128}
"""
PROFILE = load_policy(POLICY).root
BASE = Case(Load(("t.jsonl",)), PROFILE)


def space_of(keys, more=""):
    return load_space(f"policy: p.yaml\n{more}\nkeys:\n" + "".join(f"  {item}\n" for item in keys), "s.yaml")


# Spaces.


def test_a_grid_is_every_combination_the_last_key_fastest():
    space = space_of(["a.quantum: [1, 2]", "fleet.workers: 3", "policy.arbitration: [exact, reference]"])
    points = space.all_points(0)
    assert [tuple(point.values()) for point in points] == [
        (1, 3, "exact"), (1, 3, "reference"), (2, 3, "exact"), (2, 3, "reference")]
    assert points == space.all_points(9), "a grid needs no seed"


RANDOM = ["a.quantum: {min: 1, max: 1000, scale: log}", "a.b: {min: 0.5, max: 2.5}", "a.c: {min: 3, max: 5}",
          "a.d: [x, null, true]"]


def test_random_points_are_seeded_and_inside():
    points = space_of(RANDOM, "search: random\npoints: 400").all_points(1)
    assert points == space_of(RANDOM, "search: random\npoints: 400").all_points(1)
    assert points != space_of(RANDOM, "search: random\npoints: 400").all_points(2)
    assert points[:30] == space_of(RANDOM, "search: random\npoints: 30").all_points(1), "more points change none"
    assert {point["a.c"] for point in points} == {3, 4, 5}
    assert {point["a.d"] for point in points} == {"x", None, True}
    quanta = [point["a.quantum"] for point in points]
    assert all(type(value) is int and 1 <= value <= 1000 for value in quanta)
    assert 150 < sum(value < 32 for value in quanta) < 250, "half of them below the root of 1000"
    assert all(0.5 <= point["a.b"] <= 2.5 for point in points)


def test_no_random_point_comes_twice_and_a_small_space_ends():
    points = space_of(["a.b: {min: 1, max: 4}"], "search: random\npoints: 50").all_points(3)
    assert sorted(point["a.b"] for point in points) == [1, 2, 3, 4]


def test_ends_of_ranges():
    whole = Range(2, 5, True, False)
    assert [whole.at(part) for part in (0.0, 0.2499, 0.25, 0.9999)] == [2, 2, 3, 5]
    assert Range(1, 100, True, True).at(0.5) == 10
    assert Range(0.001, 1.0, False, True).at(0.0) == 0.001


@pytest.mark.parametrize(("text", "words"), [
    ("", ": must be a mapping"),
    ("a: [", ":1:5: not YAML"),
    ("policy: p\nkeys: {a.b: 1}\nkies: 1", ":3:1: unknown key 'kies'; did you mean 'keys'?"),
    ("policy: p\nkeys: {a.b: 1}\npolicy: q", ":3:1: key 'policy' is there twice, first on line 1"),
    ("policy: p\nkeys:\n  a.b: 1\n  a.c: 1\n  a.b: 2", ":5:3: key 'a.b' is there twice, first on line 3"),
    ("keys: {a.b: 1}", ": `policy` must name"),
    ("keys: {a.b: 1}\npolicy: 1", ":2:1: `policy` must name"),
    ("policy: p", ": `keys` must be"),
    ("policy: p\nkeys: {}", ":2:1: `keys` must be"),
    ("policy: p\nkeys: {a.b: 1, 7: 1}", ":2:16: a key must be text, not 7"),
    ("policy: p\nobjective: [1]\nkeys: {a.b: 1}", ":2:1: `objective` must be text"),
    ("policy: p\nsearch: walk\nkeys: {a.b: 1}", ":2:1: `search` must be grid or random"),
    ("policy: p\npoints: 3\nkeys: {a.b: 1}", ":2:1: `points` is for"),
    ("policy: p\nsearch: random\nkeys: {a.b: 1}", ": `points` must be 1..100000, not None"),
    ("policy: p\nsearch: random\npoints: 0\nkeys: {a.b: 1}", ":3:1: `points` must be"),
    ("policy: p\nkeys: {a.b: {min: 1, max: 2}}", ":2:8: a.b: a range needs `search: random`"),
    ("policy: p\nkeys: {a.b: []}", ":2:8: a.b: must list a value or more"),
    ("policy: p\nkeys: {a.b: [1, 1]}", ":2:17: a.b: must list different values, 1 is there twice"),
    ("policy: p\nkeys: {a.b: .nan}", ":2:8: a.b: must list numbers"),
    ("policy: p\nkeys: {a.b: [0, [1]]}", ":2:17: a.b: must list numbers"),
    ("policy: p\nkeys: {a.b: [2020-01-01]}", ":2:14: a.b: must list numbers"),
    ("policy: p\nsearch: random\npoints: 1\nkeys: {a.b: {min: 2, max: 1}}", ":4:8: a.b: needs numbers `min` below"),
    ("policy: p\nsearch: random\npoints: 1\nkeys: {a.b: {min: 0, max: 1, scale: log}}", ":4:8: a.b: `scale` must"),
    ("policy: p\nsearch: random\npoints: 1\nkeys: {a.b: {min: 0, mx: 1}}", ":4:22: unknown key of a.b 'mx'; did"),
])
def test_a_bad_space_is_refused_with_its_place(text, words):
    with pytest.raises(InvalidSpace) as caught:
        load_space(text, "s.yaml")
    assert str(caught.value).startswith(f"s.yaml{words}")


def test_a_grid_may_not_be_endless():
    keys = [f"a.{name}: {list(range(50))}" for name in "bcd"]
    with pytest.raises(InvalidSpace, match="a grid of 125,000 points"):
        space_of(keys).all_points(0)


# Objectives.


def test_an_objective_is_read():
    found = parse_objective("minimise a.ttft_p99, maximize a.completed\n subject to b.e2e_p50 <= 1.5 s and b.share>0.5")
    assert [(goal.figure, goal.minimise) for goal in found.goals] == [("a.ttft_p99", True), ("a.completed", False)]
    assert [(item.figure, item.test, item.limit) for item in found.constraints] == [
        ("b.e2e_p50", "<=", 1_500_000_000), ("b.share", ">", Fraction(1, 2))]
    assert found.figures == ["a.ttft_p99", "a.completed", "b.e2e_p50", "b.share"]


@pytest.mark.parametrize("text", [
    "", "a.b", "minimise", "minimise a b", "minimise a,", "minimise a subject to b", "minimise a subject to b == 1",
    "minimise a subject to b > 1 min", "minimise a subject to b > 1 or c > 1", "minimise a, maximise a",
    "least a",
])
def test_what_is_no_objective_is_refused(text):
    with pytest.raises(InvalidObjective):
        parse_objective(text)


@pytest.mark.parametrize(("test", "value", "holds"), [
    (">=", 0.99, True), (">", 0.99, False), ("<=", 0.99, True), ("<", 0.99, False), (">=", 0.989999, False),
    ("<=", 0.990001, False), (">=", None, False), ("<=", None, False),
])
def test_constraints_hold_exactly(test, value, holds):
    objective = parse_objective(f"minimise a.x subject to a.y {test} 0.99")
    assert (objective.scores({"a.x": 1, "a.y": value}) is not None) is holds


def test_a_goal_without_a_value_has_no_score():
    assert parse_objective("minimise a.x").scores({"a.x": None}) is None


@pytest.mark.parametrize("seed", range(10))
def test_front_and_ranking_against_all_pairs(seed):
    draw = random.Random(seed)
    scores = {number: (Fraction(draw.randint(0, 6)), Fraction(draw.randint(0, 6))) for number in range(1, 20)}
    beaten = {
        one for one, other in itertools.permutations(scores, 2)
        if scores[other] != scores[one] and all(a <= b for a, b in zip(scores[other], scores[one], strict=True))}
    assert set(front(scores)) == scores.keys() - beaten
    order = ranking(scores)
    assert all((scores[a], a) < (scores[b], b) for a, b in itertools.pairwise(order))
    assert front(scores)[0] == order[0]


# Points.


def test_values_reach_what_they_name():
    made = case_of_point(BASE, {
        "p.s.quantum": 7, "*.prefill_busy_threshold": 99, "bucket.long.min_tokens": 2000, "policy.capacity": "strict",
        "fleet.workers": 5, "fleet.engine": "mock", "fleet.index": "off", "fleet.tell_output": True,
        "selection.overlap_score_credit": 0.25, "r.l.prefill_busy_threshold": None,
    })
    classes = {item.name: item for item in made.profile.classes}
    assert [classes[name].quantum for name in ("p.s", "p.l", "r.s")] == [7, 512, 128]
    assert [item.prefill_busy_threshold for item in made.profile.classes] == [99, 99, 99, None]
    assert [item.min_tokens for item in made.profile.buckets] == [0, 2000]
    assert made.profile.capacity.value == "strict"
    assert (made.workers, made.engine, made.index, made.tell_output) == (5, "mock", IndexMode.OFF, True)
    assert made.weights.overlap_score_credit == 0.25
    assert made.load == BASE.load


def test_the_text_of_a_policy_loads_to_it():
    text = policy_text(PROFILE, {"p.l.quantum": 9})
    assert load_policy(text).root == case_of_point(BASE, {"p.l.quantum": 9}).profile
    assert load_policy(policy_text(PROFILE, {})).root == PROFILE


@pytest.mark.parametrize(("values", "kind"), [
    ({"p.s.quantum": 0}, InvalidPolicy), ({"p.s.quantum": "many"}, InvalidPolicy),
    ({"fleet.workers": 0}, InvalidConfig), ({"fleet.workers": True}, InvalidConfig),
    ({"fleet.engine": "none"}, InvalidConfig),
    ({"fleet.index": "some"}, InvalidConfig), ({"fleet.tell_output": 1}, InvalidConfig),
    ({"selection.temperature": -1.0}, InvalidConfig), ({"selection.temperature": "hot"}, InvalidConfig),
])
def test_values_that_can_not_be_are_answers_of_their_point(values, kind):
    with pytest.raises(kind):
        case_of_point(BASE, values)
    tried = try_point(Task(3, values, BASE))
    assert (tried.number, tried.figures) == (3, {})
    assert tried.error


@pytest.mark.parametrize(("name", "words"), [
    ("quantum", "must be OWNER.KEY"), ("p.x.quantum", "unknown class 'p.x'"), ("p.s.quantm", "did you mean 'quantum'?"),
    ("p.s.name", "unknown key of a class"), ("fleet.worker", "did you mean 'workers'?"),
    ("policy.models", "unknown key of the policy"), ("bucket.lng.min_tokens", "did you mean 'long'?"),
    ("bucket.long.max", "unknown key of a bucket"), ("selection.temprature", "did you mean 'temperature'?"),
])
def test_keys_that_nothing_answers_to_are_refused(name, words):
    with pytest.raises(InvalidSpace) as caught:
        check_keys({"p.s.quantum": "s.yaml:1:1", name: "s.yaml:2:1"}, PROFILE)
    assert str(caught.value).startswith("s.yaml:2:1: ")
    assert words in str(caught.value)


# Result files.

POINTS = {number: {"a.quantum": number} for number in (1, 2, 3)}
DONE = {1: Tried(1, POINTS[1], {"a.x": 1}), 3: Tried(3, POINTS[3], {"a.x": 0.5, "a.y": None})}


def test_results_come_back(tmp_path):
    path = str(tmp_path / "r.jsonl")
    assert read_results(path, "id", POINTS) == {}
    file = ResultFile(path, "id", {})
    for number in (3, 1):
        file.add(DONE[number])
    file.close()
    assert read_results(path, "id", POINTS) == DONE
    again = ResultFile(path, "id", DONE)
    again.add(Tried(2, POINTS[2], {}, "no room"))
    again.close()
    assert read_results(path, "id", POINTS) == DONE, "a point that failed is tried again"
    assert text_of("id", DONE).count("\n") == 3


def test_a_line_that_was_cut_is_dropped(tmp_path):
    path = tmp_path / "r.jsonl"
    whole = text_of("id", DONE)
    for length in range(len(head("id")), len(whole)):
        path.write_text(whole[:length])
        first = len(head("id") + line(DONE[1]))
        assert read_results(str(path), "id", POINTS) == ({1: DONE[1]} if length >= first else {})


@pytest.mark.parametrize(("text", "words"), [
    ("hello", "no results of a sweep"),
    ("hello\n", "r.jsonl:1: not JSON"),
    ("[]\n", "r.jsonl:1: not an object"),
    ('{"format": "other"}\n', "its `format` is not"),
    (head("other"), "is of another sweep"),
    (head("id") + "{}\n", "r.jsonl:2: no point of this sweep"),
    (head("id") + json.dumps({"point": 1, "values": {"a.quantum": 2}, "figures": {}}) + "\n", "r.jsonl:2: no point"),
])
def test_other_files_are_refused(tmp_path, text, words):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidResults) as caught:
        read_results(str(path), "id", POINTS)
    assert words in str(caught.value)


# Traces.


def trace(path, tokens):
    rows = [{"timestamp": i, "input_length": count, "output_length": 2} for i, count in enumerate(tokens)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("bytes_max", [0, case.KEPT_BYTES_MAX])
def test_a_trace_that_is_kept_gives_what_one_that_is_read_gives(tmp_path, monkeypatch, bytes_max):
    monkeypatch.setattr(case, "KEPT_BYTES_MAX", bytes_max)
    path = tmp_path / "t.jsonl"
    trace(path, [100, 200, 300])
    base = Case(Load((str(path),)), PROFILE)
    with open_traces([path]) as stream:
        config = SchedulerConfig(block_size=stream.block_size, profile=PROFILE)
        known = simulate(stream, config, PRESETS["generic"], 1, paths=[str(path)])
    assert {case.replay(base)[0].digest for _ in range(2)} == {known.digest}
    trace(path, [100, 200, 301])
    assert case.replay(base)[0].table.column("prompt_tokens").tolist() == [100, 200, 301], "the file has changed"
    with path.open("a", encoding="utf-8") as stream:
        stream.write("nonsense\n")
    with pytest.raises(InvalidTrace):
        case.replay(base)
    assert case.replay(Case(Load((str(path),), skip_bad=True), PROFILE))[1] == 1


def test_a_small_trace_is_read_once(tmp_path):
    path = tmp_path / "t.jsonl"
    trace(path, [100, 200])
    base = Case(Load((str(path),)), PROFILE)
    before = case._read.cache_info().misses
    for workers in (1, 2, 3):
        case.replay(Case(base.load, PROFILE, workers))
    assert case._read.cache_info().misses == before + 1
