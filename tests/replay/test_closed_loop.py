"""A closed loop of sessions against plain Python: each turn arrives when what it waits for has ended here."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.cli import main
from kvcore.drivers.replay import report, turns
from kvcore.drivers.replay.arrivals import NEVER_NS, FittingRows
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.replay.result import COLUMNS, RunOutcome
from kvcore.drivers.replay.sessions import SessionNames, sessions_of
from kvcore.drivers.replay.simulate import simulate
from kvcore.drivers.replay.spool import Spool
from kvcore.drivers.replay.traces import TraceRow, open_traces
from kvcore.drivers.traces.edits import scale
from kvcore.drivers.traces.synth import Shape, synthetic
from tree import ROOT

from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidConfig
from kvcore.policy import AdmissionSpec, CacheBucket, PolicyClass, PolicyProfile

MS = 10**6
MOCK = PRESETS["mock"]
SAMPLES = ROOT / "examples" / "traces"
#: One request may wait; while a prompt is under way, further ones are refused.
TIGHT = PolicyProfile((PolicyClass(
    "regular", 1, policy_family="regular", cache_bucket="all", prefill_busy_threshold=0,
    request_queue_limit_per_worker=1),), (CacheBucket("all", 0),), "regular")


def run(rows, config=None, workers=1, **options):
    """The run, and of each request that arrived, by (file, row), its line of the CSV."""
    result = simulate(rows, config or SchedulerConfig(), MOCK, workers, closed_loop=True, **options)
    text = io.StringIO()
    report.write_csv(result, ["0", "1"], text)
    text.seek(0)
    lines = {(int(line["file"]), int(line["row"])): line for line in csv.DictReader(text)}
    return result, lines


def arrivals(lines):
    return {key[1]: int(line["arrival_ns"]) for key, line in lines.items()}


def expected(rows, lines, ratio=Fraction(1)):
    """When each request must arrive (None: never), by the rules alone and what the run says of those that it waits for.

    Nobody is evicted here, and who is rejected is so on arrival.
    """
    due, ends = {}, {}
    last = {}
    for row in rows:
        key = (row.file_index, row.row)
        if row.after is not None:
            waits = [(row.file_index, number) for number in row.after]
        else:
            before = last.get((row.file_index, row.session_id)) if row.session_id is not None else None
            waits = [] if before is None else [before]
        if row.session_id is not None:
            last[row.file_index, row.session_id] = key
        recorded = row.arrival_ns // ratio
        if waits and (due[waits[0]] is None or lines[waits[0]]["outcome"] != "completed"):
            due[key], ends[key] = None, ends[waits[0]]
            continue
        if not waits:
            due[key] = recorded
        else:
            ready = max(ends[other] for other in waits)
            due[key] = max(ready, recorded) if row.delay_ns is None else ready + row.delay_ns // ratio
        line = lines[key]
        ends[key] = due[key] + int(line["e2e_ns"]) if line["outcome"] == "completed" else due[key]
    return due


# By hand.


def test_turns_wait_for_answers():
    """Alone, 100 tokens and 5 answers take 11 + 4 * 10 ms. Recorded times of later turns count only without a delay."""
    rows = [
        TraceRow(0, 100, 5, (), "a", row=1), TraceRow(1 * MS, 100, 5, (), "a", 7 * MS, row=2),
        TraceRow(9000 * MS, 100, 5, (), "a", 0, row=3), TraceRow(9000 * MS, 100, 5, (), "a", row=4),
        TraceRow(9001 * MS, 100, 5, (), "a", row=5), TraceRow(9500 * MS, 100, 5, (), None, 3 * MS, row=6)]
    result, lines = run(rows)
    assert arrivals(lines) == {
        1: 0, 2: 58 * MS, 3: 109 * MS, 4: 9000 * MS, 5: 9051 * MS, 6: 9500 * MS}
    assert [line["session"] for line in lines.values()] == ["a"] * 5 + [""]
    assert result.abandoned == 0


def test_a_parent_waits_for_its_sub_agents():
    """Three sub-agents start 2, 3 and 3 ms after their parent's turn and go on alone; the join waits for two."""
    rows = [
        TraceRow(0, 100, 5, (), "a", after=(), row=1), TraceRow(5, 100, 2, (), "a", 2 * MS, after=(1,), row=2),
        TraceRow(5, 100, 4, (), "a", 3 * MS, after=(1,), row=3),
        TraceRow(5, 100, 90, (), "a", 3 * MS, after=(1,), row=4),
        TraceRow(6, 100, 2, (), "a", 50 * MS, after=(2,), row=5),
        TraceRow(7, 100, 1, (), "a", 10 * MS, after=(1, 5, 3), row=6)]
    _, lines = run(rows)
    times = arrivals(lines)
    end = {row: times[row] + int(lines[0, row]["e2e_ns"]) for row in times}
    assert end[1] == 51 * MS
    assert (times[2], times[3], times[4], times[5]) == (53 * MS, 54 * MS, 54 * MS, end[2] + 50 * MS)
    assert end[2] < end[3] < end[5] < end[4]
    assert times[6] == end[5] + 10 * MS


def test_what_continues_a_refused_request_never_arrives():
    """Rows 1 and 2 run and wait; 3, 4 are refused at 2 ms. Row 5 continues 3; 6 joins it; 7 continues 6."""
    rows = [
        TraceRow(0, 2000, 1, (), "a", row=1), TraceRow(1 * MS, 2000, 1, (), "b", row=2),
        TraceRow(2 * MS, 100, 1, (), "c", row=3), TraceRow(2 * MS, 100, 1, (), "d", row=4),
        TraceRow(3 * MS, 100, 1, (), "c", 1 * MS, row=5),
        TraceRow(3 * MS, 100, 1, (), "e", 500 * MS, after=(1, 3, 5), row=6),
        TraceRow(3 * MS, 100, 1, (), "e", 500 * MS, after=(6,), row=7),
        TraceRow(4 * MS, 100, 1, (), "c", 1 * MS, row=8), TraceRow(9 * MS, 100, 1, (), "c", after=(8, 1), row=9)]
    result, lines = run(rows, SchedulerConfig(profile=TIGHT))
    assert [key[1] for key, line in lines.items() if line["outcome"] == "rejected"] == [3, 4]
    assert sorted(key[1] for key in lines) == [1, 2, 3, 4, 6, 7]
    assert result.abandoned == 3
    times = arrivals(lines)
    assert times[6] == int(lines[0, 1]["e2e_ns"]) + 500 * MS
    figures = report.summarize(result)
    assert figures["requests"] == {"completed": 4, "rejected": 2, "evicted": 0, "abandoned": 3}
    assert (figures["sessions"]["sessions"], figures["sessions"]["completed"]) == (5, 3)


def test_an_evicted_request_ends_its_session():
    rows = [TraceRow(0, 100, 3, (), "a", row=1), TraceRow(1, 100, 3, (), "a", 0, row=2)]
    result, lines = run(rows, SchedulerConfig(booking_ttl_ns=5 * MS))
    assert [line["outcome"] for line in lines.values()] == ["evicted"]
    assert result.abandoned == 1


def test_a_row_that_fits_nowhere_is_passed_over():
    """Who waits for it waits for the one that it continues."""
    huge = MOCK.kv_tokens
    rows = [
        TraceRow(0, 100, 5, (), "a", row=1), TraceRow(1, huge, 5, (), "a", 9, row=2),
        TraceRow(2, 100, 5, (), "a", 7 * MS, row=3), TraceRow(3, huge, 5, (), "b", 9, after=(3,), row=4),
        TraceRow(4, 100, 5, (), "b", 1 * MS, after=(4,), row=5)]
    result, lines = run(rows, skip_unfit=True)
    assert (result.unfit, result.abandoned) == (2, 0)
    assert arrivals(lines) == {1: 0, 3: 58 * MS, 5: 110 * MS}


def test_equal_times_go_by_file_and_row():
    """Rows 3 of both files are due at 61 ms, when others have their recorded times."""
    rows = [
        TraceRow(0, 100, 5, (), "a", row=1), TraceRow(0, 100, 5, (), "a", 0, file_index=1, row=1),
        TraceRow(1, 100, 5, (), "a", 9 * MS, row=3), TraceRow(1, 100, 5, (), "a", 9 * MS, file_index=1, row=3),
        TraceRow(61 * MS, 100, 5, row=9), TraceRow(61 * MS, 100, 5, file_index=1, row=2)]
    _, lines = run(rows)
    assert [int(line["e2e_ns"]) for key, line in lines.items() if key[1] == 1] == [52 * MS, 52 * MS]
    assert list(lines) == [(0, 1), (1, 1), (0, 3), (0, 9), (1, 2), (1, 3)]


# Against the rules.


@st.composite
def traces(draw):
    """Rows of two files in order of time: sessions, and requests that wait for some before them."""
    rows, now = [], 0
    numbers = [0, 0]
    for _ in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0, 0, 1, 10, 80])) * MS
        file = draw(st.integers(0, 1))
        numbers[file] += 1
        after = None
        if draw(st.booleans()):
            after = tuple(draw(st.lists(st.integers(1, max(1, numbers[file] - 1)), max_size=3, unique=True)))
            after = after if numbers[file] > 1 else ()
        delay = draw(st.sampled_from([None, 0, 5 * MS, 61 * MS]))
        rows.append(TraceRow(
            now, draw(st.sampled_from([16, 100, 900])), draw(st.integers(1, 4)), (),
            draw(st.sampled_from([None, "a", "b"])), delay, file_index=file, row=numbers[file], after=after))
    return sorted(rows, key=lambda row: (row.arrival_ns, row.file_index, row.row))


@given(traces(), st.booleans(), st.sampled_from(["1", "2.5"]))
def test_every_turn_arrives_when_the_rules_say(rows, tight, speedup):
    config = SchedulerConfig(profile=TIGHT) if tight else SchedulerConfig()
    result, lines = run(rows, config, speedup=speedup)
    due = expected(rows, lines, Fraction(speedup))
    assert {key: int(line["arrival_ns"]) for key, line in lines.items()} == {
        key: time for key, time in due.items() if time is not None}
    assert result.abandoned == sum(time is None for time in due.values())
    times = [int(line["arrival_ns"]) for line in lines.values()]
    assert times == sorted(times)


@pytest.mark.parametrize("kind", ["sessions", "agents"])
def test_drawn_sessions_wait_too(kind):
    rows = list(synthetic(kind, Shape(250, 30.0, prompt_tokens=300, output_tokens=20, think_s=0.4), 5))
    result, lines = run(rows, workers=2)
    assert arrivals(lines) == {key[1]: time for key, time in expected(rows, lines).items()}
    assert sum(row.arrival_ns != int(lines[0, row.row]["arrival_ns"]) for row in rows) > 100
    assert result.digest == run(rows, workers=2)[0].digest


@pytest.mark.parametrize("name", ["weka_sample.json.gz", "dynamo_sample.jsonl.gz", "otel_sample.json"])
def test_samples_of_agents(name):
    rows = list(open_traces([SAMPLES / name]))
    _, lines = run(rows, SchedulerConfig(block_size=64 if "weka" in name else 16), workers=2)
    assert arrivals(lines) == {key[1]: time for key, time in expected(rows, lines).items()}


def test_without_sessions_it_is_the_open_loop():
    path = SAMPLES / "mooncake_sample.jsonl"
    closed, opened = (simulate(open_traces([path]), SchedulerConfig(block_size=512), MOCK, 4, closed_loop=loop)
                      for loop in (True, False))
    assert closed.digest == opened.digest
    assert np.array_equal(closed.table.rows(), opened.table.rows())
    assert (closed.abandoned, opened.abandoned) == (0, None)


def test_a_faster_trace_is_a_scaled_one():
    rows = list(synthetic("sessions", Shape(120, 30.0, prompt_tokens=300, think_s=0.4), 6))
    one = Fraction(1)
    scaled = list(scale(rows, 512, Fraction("2.5"), one, one))
    assert run(rows, speedup="2.5")[1] == run(scaled)[1]


def test_a_large_trace_lies_on_disk(monkeypatch):
    rows = list(synthetic("agents", Shape(150, 30.0, prompt_tokens=300, output_tokens=20), 7))
    near = run(rows)
    monkeypatch.setattr(turns, "_MEMORY_BYTES", 100)
    monkeypatch.setattr("kvcore.drivers.replay.sessions._MEMORY_BYTES", 10)
    monkeypatch.setattr("kvcore.drivers.replay.sessions._READ_BYTES", 7)
    far = run(rows)
    assert far[1] == near[1]
    assert far[0].digest == near[0].digest


def test_what_is_held_is_what_is_live():
    """A thousand sessions, of which a few overlap: places in the file are kept for those alone."""
    rows = synthetic("agents", Shape(4000, 20.0, prompt_tokens=10, output_tokens=20), 8)
    loop = turns.SessionLoop(FittingRows(rows, 10**9, (), False), Fraction(1))
    running, most, taken = [], 0, 0
    while loop.next_ns < NEVER_NS or running:
        if running and running[0][0] <= loop.next_ns:
            now_ns, row = heappop(running)
            loop.follow(0, row, row % 50 > 0, now_ns)
        else:
            now_ns = loop.next_ns
            row = loop.take().row
            heappush(running, (now_ns + 300 * MS, row))
            taken += 1
        most = max(most, len(loop._due) + len(loop._running) + len(loop._waiting))
    assert taken + loop.abandoned == 4000
    assert loop.abandoned > 50
    assert most < 60
    assert (loop._due, loop._running, loop._waiting) == ([], {}, {})


def test_a_spool_is_the_same_in_memory_and_on_disk():
    near, far = Spool(1000), Spool(5)
    for spool in (near, far):
        assert [spool.append(text) for text in (b"abc", b"", b"defg", b"hi")] == [0, 3, 3, 7]
        spool.write(2, b"XY")
        assert (spool.read(0, 100), spool.read(1, 3), spool.read(9, 4), spool.end) == (b"abXYefghi", b"bXY", b"", 9)


def test_two_kinds_of_load_are_one_too_many():
    with pytest.raises(InvalidConfig, match="one of them"):
        simulate([], SchedulerConfig(), MOCK, 1, closed_loop=True, concurrency=2)


def test_times_that_no_run_can_hold():
    rows = [TraceRow(0, 100, 5, (), "a", row=1), TraceRow(0, 100, 5, (), "a", (1 << 62) - 1, row=2)]
    with pytest.raises(OverflowError, match=r"beyond 2\^62 ns"):
        run(rows)


# Figures of sessions.


def test_figures_of_sessions_by_hand():
    """a: 100 + 10 tokens twice in 1 + 3 s, of which 1 s waited; b: 110 once in 1 s, none waited; c never ran."""
    second = 10**9
    table = np.zeros((4, len(COLUMNS)), np.int64)
    names = SessionNames()
    tags = [names.told(0, name) for name in ("a", "b", "a", "c")]
    values = {
        "session": tags, "outcome": [1, 1, 1, RunOutcome.REJECTED], "class_index": [0, 0, 0, 1],
        "arrival_ns": [0, second, 2 * second, 3 * second], "wait_ns": [0, 0, second, -1],
        "finish_ns": [second, 2 * second, 5 * second, -1], "prompt_tokens": [150, 100, 100, 9],
        "cached_tokens": [50, 0, 0, 0], "output_tokens": [10, 10, 10, 9]}
    for name, column in values.items():
        table[:, COLUMNS.index(name)] = column
    table[:, COLUMNS.index("first_token_ns")] = table[:, COLUMNS.index("finish_ns")]
    found = sessions_of(iter([table[:2], table[2:]]), ["x", "y"])
    assert list(names.names()) == ["a", "b", "a", "c"]
    assert (found["sessions"], found["completed"]) == (3, 2)
    assert found["requests"] == {"count": 3, "p50": 1, "p90": 2, "p99": 2, "max": 2}
    assert found["duration_ns"]["p50"] == second
    assert found["duration_ns"]["max"] == 5 * second
    assert found["mean_queue_wait_ns"] == {
        "count": 2, "p50": 0, "p90": second // 2, "p99": second // 2, "max": second // 2}
    assert found["slowdown"] == {"count": 2, "p50": 1.0, "p90": 1.333333, "p99": 1.333333, "max": 1.333333}
    # Rates 220 / 4 and 110 / 1, as 1 to 2: 9 / (2 * 5).
    assert found["jain_index"] == 0.9
    assert [(entry["name"], entry["sessions"], entry["jain_index"]) for entry in found["classes"]] == [
        ("x", 2, 0.9), ("y", 1, None)]
    assert sessions_of(iter([table[:, :] * 0]), ["x"]) is None


# The program.


def test_the_program(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["replay", str(SAMPLES / "dynamo_sample.jsonl.gz"), "--closed-loop", "--csv", "o.csv", "--json", "o.json"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "\nsessions   2, 2 completed; " in out
    assert "0 abandoned" in out
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["config"]["load"] == {"mode": "closed-loop sessions", "speedup": "1"}
    assert found["requests"] == {
        "read": 17, "skipped": 0, "completed": 17, "rejected": 0, "evicted": 0, "abandoned": 0}
    with open("o.csv") as file:
        lines = {int(line["row"]): line for line in csv.DictReader(file)}
    end = {row: int(line["arrival_ns"]) + int(line["e2e_ns"]) for row, line in lines.items()}
    assert int(lines[15]["arrival_ns"]) == max(end[row] for row in (3, 10, 11, 14)) + 22_220_677
    assert main([*argv, "--limit", "5"]) == 0
    assert main([*argv, "--concurrency", "5"]) == 2
    assert "--closed-loop and --concurrency are two kinds of load" in capsys.readouterr().err


def test_a_converted_trace_waits_as_before(tmp_path, monkeypatch, capsys):
    """As mooncake rows, everything is still there; what another format loses is told."""
    monkeypatch.chdir(tmp_path)
    source = str(SAMPLES / "weka_sample.json.gz")
    assert main(["trace", "convert", source, "--to", "mooncake", "--out", "m.jsonl"]) == 0
    before, after = list(open_traces([source])), list(open_traces(["m.jsonl"], trace_block_size=64))
    numbers = {row.row: place for place, row in enumerate(before, 1)}
    assert [row.after for row in after] == [tuple(numbers[other] for other in row.after or ()) for row in before]
    assert [row.delay_ns for row in after] == [row.delay_ns for row in before]
    assert capsys.readouterr().err == "kvcore: note: its blocks are of 64 tokens: read it with --trace-block-size 64\n"
    assert main(["trace", "convert", source, "--to", "burstgpt", "--out", "b.csv"]) == 0
    assert "burstgpt has no place for who waits for whom: left out of 104 rows\n" in capsys.readouterr().err


def test_a_window_cuts_ties(tmp_path, monkeypatch):
    """Rows 2 .. 4 of a session without the first: row 2 then waits for none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({
        "timestamp": row, "input_length": 9, "output_length": 1, "request_id": f"r{row}", "delay": 5,
        "wait_for": [f"r{row - 1}"] if row else []}) + "\n" for row in range(4)))
    assert main(["trace", "cut", "t.jsonl", "--from", "0.001", "--out", "o.jsonl"]) == 0
    assert [(row.after, row.delay_ns) for row in open_traces(["o.jsonl"])] == [
        ((), 5 * MS), ((1,), 5 * MS), ((2,), 5 * MS)]


def test_stats_tell_pauses_and_joins(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "stats", str(SAMPLES / "dynamo_sample.jsonl.gz"), "--json", "o.json"]) == 0
    assert ("\npauses     0.011 s at the median, 0.823 s at most, before 15 requests; of those that wait for several "
            "others: 1\n") in capsys.readouterr().out
    sessions = json.loads((tmp_path / "o.json").read_text())["sessions"]
    assert (sessions["count"], sessions["requests"], sessions["joining_requests"]) == (2, 17, 1)
    assert (sessions["delay_ns"]["count"], sessions["delay_ns"]["max"]) == (15, 822_936_832)


# Sessions as the core sees them.


@pytest.mark.parametrize("closed_loop", [False, True])
def test_admission_policies_see_sessions(closed_loop):
    """One request of a session at a time in each class, and the files' sessions are not each other's.

    Who is held back by such a policy does not compete: no tokens are contended.
    """
    one = PolicyProfile(tuple(PolicyClass(
        name, 1, policy_family=name, cache_bucket="all", prefill_busy_threshold=100_000,
        admission=AdmissionSpec("session_concurrency", {"max_running": 1})) for name in ("x", "y")),
        (CacheBucket("all", 0),), "x")
    rows = [TraceRow(0, 100, 5, (), "a", None, 0.0, 0, name, file_index=file, row=row, after=())
            for file in (0, 1) for row, name in enumerate("xyxy", 1)]
    result = simulate(rows, SchedulerConfig(profile=one), MOCK, 2, closed_loop=closed_loop)
    waits, finish = result.table.column("wait_ns").tolist(), result.table.column("finish_ns").tolist()
    assert [waits[place] for place in (0, 1, 4, 5)] == [0] * 4
    assert [waits[place] for place in (2, 3, 6, 7)] == [finish[place] for place in (0, 1, 4, 5)]
    assert min(finish) > 50 * MS
    assert result.contended == {}
