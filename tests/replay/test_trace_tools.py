"""`kvcore trace`: what is written is read again as it was, figures worked out by hand, seeds, messages."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from kvcore.drivers.cli import main, trace, trace_run
from kvcore.drivers.replay.traces import TraceRow, open_traces
from kvcore.drivers.traces import edits
from kvcore.drivers.traces.synth import KINDS, Shape, synthetic
from kvcore.drivers.traces.writers import WRITTEN
from tree import ROOT

SAMPLES = ROOT / "examples" / "traces"
RICH = [
    {"timestamp": 5, "input_length": 1100, "output_length": 10, "hash_ids": [7, 8, 9], "session_id": 'a, "b"',
     "policy_class": "premium", "priority": 0.1, "strict_priority": 3},
    {"timestamp": 1005.000001, "input_length": 1500, "output_length": 20, "hash_ids": [7, 8, 5],
     "session_id": 'a, "b"', "delay": 2.5},
    {"timestamp": 4005, "input_length": 512, "output_length": 30, "hash_ids": [8]},
    {"timestamp": 10005, "input_length": 100, "output_length": 40},
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a trace that has one of everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RICH))
    return tmp_path


@pytest.fixture
def kvcore(capsys):
    """Run `kvcore trace` in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main(["trace", *(str(item) for item in argv)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def rows_of(*paths, **options):
    return list(open_traces(paths, **options))


def bare(row):
    """A row without the names of its blocks, and with what only a Mooncake trace says taken away."""
    return TraceRow(row.arrival_ns, row.prompt_tokens, row.output_tokens, row=row.row)


def sharing(rows):
    """For each row: of how many leading blocks it shares with each row before it."""
    return [
        [next((i for i, (x, y) in enumerate(zip(a.block_hashes, b.block_hashes, strict=False)) if x != y),
              min(len(a.block_hashes), len(b.block_hashes))) for b in rows[:number]]
        for number, a in enumerate(rows)]


# Formats.


@pytest.mark.parametrize("source", ["azure_code_sample.csv", "burstgpt_sample.csv", "vidur_sample.csv",
                                    "mooncake_sample.jsonl"])
@pytest.mark.parametrize("to", WRITTEN)
def test_what_is_converted_is_read_as_it_was(kvcore, source, to):
    path = SAMPLES / source
    assert kvcore("convert", path, "--to", to, "--out", "out", "--quiet") == (0, "", "")
    again = open_traces(["out"])
    assert again.formats == (to,)
    assert [bare(row) for row in again] == [
        replace(bare(row), row=number) for number, row in enumerate(rows_of(path), 1)]


def test_a_mooncake_trace_keeps_everything(kvcore):
    assert kvcore("convert", "t.jsonl", "--to", "mooncake", "--out", "out.jsonl.gz") == (0, "", "")
    before, after = rows_of("t.jsonl"), rows_of("out.jsonl.gz")
    assert [replace(row, block_hashes=()) for row in after] == [replace(row, block_hashes=()) for row in before]
    assert sharing(after) == sharing(before) == [[], [2], [0, 0], [0, 0, 0]]
    assert after[1].delay_ns == 2_500_000
    with gzip.open("out.jsonl.gz", "rt") as file:
        assert json.loads(file.readline())["hash_ids"] == [0, 1, 2]


def test_what_is_lost_is_told(kvcore):
    status, out, err = kvcore("convert", "t.jsonl", "--to", "vidur")
    assert (status, out.splitlines()[:3]) == (
        0, ["arrived_at,num_prefill_tokens,num_decode_tokens", "0,1100,10", "1.000000001,1500,20"])
    assert err.splitlines() == [
        "kvcore: note: vidur has no place for block hashes: left out of 3 rows",
        "kvcore: note: vidur has no place for delays: left out of 1 rows",
        "kvcore: note: vidur has no place for policy classes: left out of 1 rows",
        "kvcore: note: vidur has no place for priorities: left out of 1 rows",
        "kvcore: note: vidur has no place for sessions: left out of 2 rows"]


@pytest.mark.parametrize(("name", "kept"), [('a, "b"', True), ("é", True), ("nan", False), (" a", False),
                                            ("a\nb", False)])
def test_a_session_stays_what_it_is_or_is_left_out(kvcore, folder, name, kept):
    (folder / "s.jsonl").write_text(json.dumps(RICH[3] | {"session_id": name}) + "\n")
    for out in ("out.csv", "out.csv.gz"):
        status, _, err = kvcore("convert", "s.jsonl", "--to", "burstgpt", "--out", out)
        assert (status, "sessions" in err) == (0, not kept)
        assert [row.session_id for row in rows_of(out)] == [name if kept else None]


def test_sessions_of_two_files_are_not_mixed(kvcore):
    assert kvcore("convert", "t.jsonl", "t.jsonl", "--to", "mooncake", "--out", "out")[0] == 0
    rows = rows_of("out")
    assert {row.session_id for row in rows} == {None, '0:a, "b"', '1:a, "b"'}
    assert sharing(rows)[1] == [0]


def test_other_blocks_are_told(kvcore):
    status, _, err = kvcore("convert", "t.jsonl", "--to", "mooncake", "--block-size", 256, "--out", "out")
    assert (status, err) == (
        0, "kvcore: note: its blocks are of 256 tokens: read it with --trace-block-size 256\n")
    assert sharing(rows_of("out", trace_block_size=256)) == sharing(rows_of("t.jsonl", block_size=256))


# Windows and scales.


def test_a_window(kvcore):
    assert kvcore("cut", "t.jsonl", "--from", "1", "--until", "10", "--out", "out") == (0, "", "")
    assert [(row.arrival_ns, row.prompt_tokens) for row in rows_of("out")] == [(0, 1500), (2_999_999_999, 512)]
    assert kvcore("cut", "t.jsonl", "--from", "1.000000002", "--until", "10.000000001", "--out", "out")[0] == 0
    assert [row.prompt_tokens for row in rows_of("out")] == [512, 100]


def test_a_scale(kvcore):
    assert kvcore("scale", "t.jsonl", "--rate", "2.5", "--output-tokens", "0.25", "--out", "out") == (0, "", "")
    rows = rows_of("out")
    assert [row.arrival_ns for row in rows] == [0, 400_000_000, 1_600_000_000, 4_000_000_000]
    assert [row.output_tokens for row in rows] == [2, 5, 8, 10]
    assert rows[1].delay_ns == 1_000_000
    assert [row.prompt_tokens for row in rows] == [1100, 1500, 512, 100]
    assert sharing(rows) == sharing(rows_of("t.jsonl"))


@pytest.mark.parametrize(("by", "shared"), [("2", 4), ("3.5", 7), ("0.5", 1), ("0.25", 0), ("1.5", 3), ("0.75", 1)])
def test_prefixes_grow_with_prompts(by, shared):
    """Two blocks in common: twice as many of prompts twice as long; a block that is only in part of them is none."""
    rows = [TraceRow(0, 5 * 16, 1, (1, 2, 3, 4, 5)), TraceRow(0, 5 * 16, 1, (1, 2, 6, 7, 8))]
    scaled = list(edits.scale(rows, 16, Fraction(1), Fraction(by), Fraction(1)))
    assert all(len(row.block_hashes) == -(-row.prompt_tokens // 16) for row in scaled)
    assert all(len(set(row.block_hashes)) == len(row.block_hashes) for row in scaled)
    assert sharing(scaled)[1] == [shared]


# Statistics.


def test_figures_by_hand(kvcore):
    status, out, err = kvcore("stats", "t.jsonl", "--json", "-")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert found["requests"] == 4
    assert found["arrivals"]["duration_ns"] == 10_000_000_000
    assert found["arrivals"]["per_s"] == pytest.approx(0.3)
    assert [i for i, count in enumerate(found["arrivals"]["windows"]) if count] == [0, 5, 23, 59]
    assert found["prompt_tokens"] == {
        "count": 4, "p50": 512, "p90": 1500, "p99": 1500, "max": 1500, "total": 3212, "mean": 803.0}
    assert found["prefixes"] == {
        "requests": 3, "blocks": 7, "distinct_blocks": 5, "seen_before": 2, "seen_before_share": 2 / 7,
        "sharing_requests": 1}
    assert (found["sessions"]["count"], found["sessions"]["max"]) == (1, 2)
    assert found["classes"] == {"premium": 1}


def test_the_table(kvcore):
    status, out, err = kvcore("stats", "t.jsonl")
    assert (status, err) == (0, "")
    assert "requests   4 in 10.000 s\n" in out
    assert "prefixes   28.6% of 7 blocks of 512 tokens were seen before, by 1 requests\n" in out
    assert "803.0" in out
    assert "not told" in kvcore("stats", SAMPLES / "azure_code_sample.csv")[1]


def test_one_request_has_figures_too(kvcore, folder):
    (folder / "one.jsonl").write_text(json.dumps(RICH[3]) + "\n")
    assert kvcore("stats", "one.jsonl")[0] == 0
    found = json.loads(kvcore("stats", "one.jsonl", "--json", "-")[1])
    assert (found["arrivals"]["per_s"], found["arrivals"]["gap_variation"]) == (None, None)


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_picture_has_the_same_bytes_again(kvcore, folder, kind):
    pytest.importorskip("matplotlib")
    starts = {"svg": b"<?xml", "png": b"\x89PNG"}
    for name in ("one", "two"):
        assert kvcore("stats", "t.jsonl", "--figure", f"{name}.{kind}", "--quiet") == (0, "", "")
    first = (folder / f"one.{kind}").read_bytes()
    assert first.startswith(starts[kind])
    assert (folder / f"two.{kind}").read_bytes() == first
    assert kvcore("stats", SAMPLES / "vidur_sample.csv", "--figure", f"two.{kind}", "--quiet")[0] == 0
    assert (folder / f"two.{kind}").read_bytes() != first


# Traces that are drawn.


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_trace_and_a_shorter_one_is_its_beginning(kvcore, folder, kind):
    for out, count, seed in (("a", 300, 1), ("b", 300, 1), ("c", 100, 1), ("d", 300, 2)):
        assert kvcore("synth", kind, "--requests", count, "--seed", seed, "--families", 5, "--out", out) == (0, "", "")
    a, b, c, d = ((folder / name).read_text() for name in "abcd")
    assert a == b != d
    assert a.startswith(c)
    rows = rows_of("a")
    assert len(rows) == 300
    assert all(x.arrival_ns <= y.arrival_ns for x, y in pairwise(rows))


@pytest.mark.parametrize(("kind", "count"), [("poisson", 20_000), ("bursty", 40_000), ("sessions", 20_000),
                                             ("agents", 20_000)])
def test_the_rate_is_what_was_asked_for(kind, count):
    rows = list(synthetic(kind, Shape(count, 50.0), 3))
    assert count / (rows[-1].arrival_ns / 1e9) == pytest.approx(50, rel=0.15)


def variation(kind):
    rows = list(synthetic(kind, Shape(5_000, 20.0), 1))
    gaps = [y.arrival_ns - x.arrival_ns for x, y in pairwise(rows)]
    mean = sum(gaps) / len(gaps)
    return (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean


def test_bursts_are_bursts():
    assert variation("poisson") == pytest.approx(1, rel=0.1)
    assert variation("bursty") > 2


def test_means_are_what_was_asked_for():
    rows = list(synthetic("poisson", Shape(20_000, 50.0, prompt_tokens=400, output_tokens=90), 3))
    assert sum(row.prompt_tokens for row in rows) / len(rows) == pytest.approx(400, rel=0.03)
    assert sum(row.output_tokens for row in rows) / len(rows) == pytest.approx(90, rel=0.03)
    assert all(shared == 0 for row in sharing(rows[:100]) for shared in row)


def test_families_share_what_they_begin_with():
    rows = list(synthetic("poisson", Shape(50, 5.0, families=2, shared_blocks=3), 1))
    assert {shared for row in sharing(rows) for shared in row} == {0, 3}


def test_a_turn_comes_after_an_answer_and_repeats_what_was_said():
    rows = list(synthetic("sessions", Shape(400, 5.0, think_s=3.0), 1))
    turns = 0
    for session in {row.session_id for row in rows}:
        of_it = [row for row in rows if row.session_id == session]
        assert of_it[0].delay_ns is None
        for before, after in pairwise(of_it):
            turns += 1
            assert after.delay_ns is not None
            gap_ns = after.arrival_ns - before.arrival_ns - before.output_tokens * 20_000_000
            assert abs(gap_ns - after.delay_ns) <= 2_000_000
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            whole = before.prompt_tokens // 512
            assert after.block_hashes[:whole] == before.block_hashes[:whole]
    assert turns > 200


def test_children_begin_with_their_parents_prompt():
    rows = list(synthetic("agents", Shape(300, 5.0, prompt_tokens=2000), 1))
    trees = [[row for row in rows if row.session_id == tree] for tree in sorted({row.session_id for row in rows})]
    assert max(map(len, trees)) > 4
    for root, *others in trees:
        whole = root.prompt_tokens // 512
        for child in others:
            assert child.arrival_ns - root.arrival_ns >= root.output_tokens * 20_000_000 - 1_000_000
            assert child.block_hashes[:whole] == root.block_hashes[:whole]


def test_a_drawn_trace_replays(kvcore, capsys):
    assert kvcore("synth", "agents", "--requests", 50, "--out", "a.jsonl")[0] == 0
    assert main(["replay", "a.jsonl", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"]["completed"] == 50


# Messages.


def test_the_lists_in_the_help_are_those_of_the_readers():
    assert trace._FORMATS == WRITTEN
    assert trace._KINDS == KINDS


@pytest.mark.parametrize(("argv", "message"), [
    (("stats", "gone.csv"), "kvcore: error: gone.csv: "),
    (("stats", "t.jsonl", "--figure", "a.pdf"), "kvcore: error: --figure a.pdf: the name must end in .svg or .png "),
    (("stats", "t.jsonl", "--json", "t.jsonl"), "kvcore: error: --json t.jsonl: is also an input file"),
    (("stats", "t.jsonl", "--json", "a.svg", "--figure", "a.svg"), "kvcore: error: --json and --figure are the same"),
    (("convert", "t.jsonl"), "kvcore: error: Missing option '--to'"),
    (("convert", "t.jsonl", "--to", "azure", "--format", "x"), "kvcore: error: --format: 'x' is none of mooncake, "),
    (("convert", "t.jsonl", "--to", "azure", "--out", "t.jsonl"), "kvcore: error: --out t.jsonl: is also an input"),
    (("cut", "t.jsonl", "--from", "5", "--until", "5"), "kvcore: error: --until must be later than --from"),
    (("cut", "t.jsonl", "--from", "11"), "kvcore: error: no request is left: nothing is written"),
    (("cut", "t.jsonl", "--from", "x"), "kvcore: error: Invalid value for '--from': 'x' is not a plain decimal"),
    (("cut", "t.jsonl", "--until", "9" * 12), "kvcore: error: --until: must be 0 or more, and below 2^62 ns"),
    (("scale", "t.jsonl"), "kvcore: error: nothing to scale: give --rate, "),
    (("scale", "t.jsonl", "--rate", "0"), "kvcore: error: Invalid value for '--rate': 0 is no factor"),
    (("scale", "t.jsonl", "--output-tokens", "9" * 18), "kvcore: error: row 1: its lengths become more than"),
    (("scale", "t.jsonl", "--rate", "0.0000000001", "--out", "o"), "kvcore: error: row 2: its time becomes more"),
    (("synth", "other"), "kvcore: error: Invalid value for 'KIND': 'other' is not one of"),
    (("synth", "poisson", "--rate", "nan"), "kvcore: error: rate: nan is no number to draw with"),
    (("synth", "poisson", "--rate", "0.000001", "--out", "o"), "kvcore: error: the trace becomes longer than 2^62"),
])
def test_what_is_wrong_is_one_line(kvcore, folder, argv, message):
    before = sorted(os.listdir(folder))
    status, _, err = kvcore(*argv)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(message)
    assert sorted(os.listdir(folder)) == before


def test_a_bad_row_ends_it_or_is_told(kvcore, folder):
    (folder / "bad.jsonl").write_text(json.dumps(RICH[0]) + "\n{}\n")
    for argv in (("stats", "bad.jsonl"), ("cut", "bad.jsonl", "--out", "o")):
        status, _, err = kvcore(*argv)
        assert (status, err) == (2, "kvcore: error: bad.jsonl:2: timestamp is missing\n")
        status, _, err = kvcore(*argv, "--skip-bad")
        assert (status, err) == (0, "kvcore: note: skipped 1 rows that cannot be used, the first: bad.jsonl:2: "
                                    "timestamp is missing\n")
        assert not os.path.exists("o") or len(rows_of("o")) == 1


def test_an_interrupt_leaves_nothing(kvcore, folder, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(trace_run.TraceWriter, "write", interrupted)
    before = sorted(os.listdir(folder))
    assert kvcore("convert", "t.jsonl", "--to", "azure", "--out", "o") == (130, "", "kvcore: interrupted\n")
    assert sorted(os.listdir(folder)) == before


def test_a_reader_may_close_the_pipe():
    command = [sys.executable, "-P", "-m", "kvcore", "trace", "synth", "poisson", "--requests", "20000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"timestamp": 0,')
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)
