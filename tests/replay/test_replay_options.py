"""`kvcore replay`: options of capacity and selection, and what they make of a run."""

from __future__ import annotations

import json

import pytest
from kvcore.drivers.cli import main


@pytest.fixture
def trace(tmp_path):
    """Prompts of four kinds, close together; answers that grow."""
    path = tmp_path / "t.jsonl"
    rows = [{"timestamp": i, "input_length": 4_000 + 37 * i % 900, "output_length": 1_500 + i % 40,
             "hash_ids": [i % 4, *range(1_000 + 10 * i, 1_009 + 10 * i)][: -(-(4_000 + 37 * i % 900) // 512)]}
            for i in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def kvcore(trace, capsys):
    """Replay the trace: (status, report or None, stderr)."""

    def run(*argv):
        status = main(["replay", str(trace), "--json", "-", *argv])
        captured = capsys.readouterr()
        return status, json.loads(captured.out) if status == 0 else None, captured.err

    return run


def report_of(kvcore, *argv):
    status, report, error = kvcore(*argv)
    assert (status, error) == (0, "")
    assert report["requests"]["completed"] == 120
    return report


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--selection", "overlap_score_credits=1"),
         "unknown 'overlap_score_credits'; did you mean 'overlap_score_credit'?"),
        (("--selection", "temperature=warm"), "temperature must be a number, not 'warm'"),
        (("--selection", "temperature=-1"), "temperature must be finite and >= 0, not -1.0"),
        (("--selection", "temperature=nan"), "temperature must be finite and >= 0, not nan"),
        (("--selection", "temperature=1,temperature=2"), "temperature is given twice"),
        (("--selection", "disk_cache_hit_weight=1.5"), "disk_cache_hit_weight must be 0..1, not 1.5"),
        (("--selection", ""), "unknown ''"),
        (("--capacity", "loose"), "'loose' is not one of 'advisory', 'strict'"),
        (("--index", "maybe"), "'maybe' is not one of 'events', 'approximate', 'off'"),
    ],
)
def test_wrong_values_are_one_line(kvcore, argv, reason):
    status, _, error = kvcore(*argv)
    assert status == 2
    assert error.count("\n") == 1
    assert reason in error


def test_what_was_asked_for_is_in_the_report(kvcore):
    report = report_of(
        kvcore, "--capacity", "strict", "--tell-output", "--selection", "overlap_score_credit=0.5,temperature=0.7",
        "--index", "approximate")
    assert report["config"]["policy"]["capacity"] == "strict"
    scheduler = report["config"]["scheduler"]
    assert (scheduler["index"], scheduler["tell_output"]) == ("approximate", True)
    assert scheduler["weights"] == {
        "overlap_score_credit": 0.5, "overlap_score_credit_decay": 0.0, "prefill_load_scale": 1.0,
        "host_cache_hit_weight": 0.75, "disk_cache_hit_weight": 0.25, "shared_cache_multiplier": 0.0,
        "active_request_weight": 0.0, "temperature": 0.7}


def test_the_defaults_are_those_without_options(kvcore):
    assert report_of(kvcore)["digest"] == report_of(
        kvcore, "--capacity", "advisory", "--index", "events", "--selection", "temperature=0")["digest"]


def test_strict_capacity_with_told_answers_preempts_nobody(kvcore):
    """The engine model preempts when its cache overflows: advisory lets that happen, strict keeps room."""
    advisory = report_of(kvcore)
    strict = report_of(kvcore, "--capacity", "strict", "--tell-output")
    assert advisory["total"]["preemptions"] > 0
    assert strict["total"]["preemptions"] == 0


def test_an_index_finds_what_none_does_not(kvcore):
    hits = [report_of(kvcore, "--speedup", "0.005", "--index", index)["total"]["prefix_hit"]["expected_tokens"]
            for index in ("events", "approximate", "off")]
    assert hits[0] > 0
    assert hits[1] > 0
    assert hits[2] == 0
