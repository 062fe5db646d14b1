"""Traces of agents: what each format says, who waits for whom, and what is refused with which reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcore.drivers.replay import lines
from kvcore.drivers.replay.links import Span, linked
from kvcore.drivers.replay.traces import TraceRow, open_traces
from trace_files import bad_row, whole_file
from tree import ROOT

SAMPLES = ROOT / "examples" / "traces"
MS, SECOND = 10**6, 10**9


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write records as lines, or one as a document; returns the path."""

    def written(*records: Any, indent: int | None = None) -> str:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text("".join(json.dumps(record, indent=indent) + "\n" for record in records))
        return str(path)

    return written


def read(path: str, **options: Any) -> list[TraceRow]:
    return sorted(open_traces([path], **options), key=lambda row: row.row)


def waits(rows: list[TraceRow]) -> list[tuple[tuple[int, ...] | None, int | None]]:
    return [(row.after, row.delay_ns) for row in rows]


# WEKA.


def turn(t: float, prompt: int = 130, output: int = 5, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "in": prompt, "out": output, "hash_ids": [1, 2], "api_time": 1.5} | more


def session(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "one", "block_size": 64, "hash_id_scope": "local", "requests": list(requests)} | more


def test_a_weka_session_with_sub_agents(write: Callable[..., str]) -> None:
    """Parent at 0 (to 1.5); agents at 2 (two turns, to 7.5) and 3 (to 30.5); parent at 10, and, after both, at 40."""
    path = write(session(
        turn(0),
        {"t": 2, "type": "subagent", "agent_id": "x", "requests": [turn(0), turn(4)]},
        {"t": 3, "type": "subagent", "agent_id": "x", "requests": [turn(0, api_time=27.5)]},
        turn(10), turn(40)), indent=2)
    rows = read(path)
    assert [row.arrival_ns // SECOND for row in rows] == [0, 2, 6, 3, 10, 40]
    assert waits(rows) == [
        ((), None), ((1,), SECOND // 2), ((2,), 5 * SECOND // 2), ((1,), 3 * SECOND // 2),
        ((1, 3), 5 * SECOND // 2), ((5, 4), 19 * SECOND // 2)]
    assert {row.session_id for row in rows} == {"one"}


def test_weka_names_full_blocks_and_a_rest_of_its_own(write: Callable[..., str]) -> None:
    path = write(session(turn(0), turn(2), turn(4, prompt=128), turn(6, prompt=40, hash_ids=[])))
    stream = open_traces([path])
    names = [row.block_hashes for row in stream]
    assert stream.block_size == 64
    assert list(map(len, names)) == [3, 3, 2, 0]
    assert names[0][:2] == names[1][:2] == names[2]
    assert names[0][2] != names[1][2]
    split = [row.block_hashes for row in open_traces([path], block_size=16)]
    assert list(map(len, split)) == [9, 9, 8, 0]
    assert split[0][:8] == split[1][:8] == split[2]
    assert split[0][8] != split[1][8]


def test_weka_without_api_times_goes_by_the_next_pause(write: Callable[..., str]) -> None:
    rows = read(write(session(
        turn(0, api_time=None), turn(10, api_time=None, think_time=4), turn(20, api_time=None))))
    assert waits(rows) == [((), None), ((1,), 4 * SECOND), ((2,), 10 * SECOND)]


@pytest.mark.parametrize(("entry", "reason"), [
    (turn(1, output=0), "requests[1]: out is not in 1..2^53: 0"),
    (turn(-1), "requests[1]: t is negative: -1"),
    (turn(1, prompt=200), "requests[1]: 192 tokens in blocks of 64 need 3 hash_ids, not 2"),
    (turn(1, api_time="2"), "requests[1]: api_time is not a number: '2'"),
    ({"type": "s", "in": 1, "out": 1}, "requests[1]: t is missing"),
    ({"t": 1, "type": "subagent"}, "requests[1]: requests is missing"),
    ({"t": 1, "type": "subagent", "requests": [{"t": 0, "in": 5}]}, "requests[1].requests[0]: out is missing"),
    ({"t": 1, "in": True, "out": 1}, "requests[1]: in is not an integer: true"),
])
def test_a_bad_weka_entry_is_one_bad_row(write: Callable[..., str], entry: dict[str, Any], reason: str) -> None:
    path = write(session(turn(0), entry, turn(20)))
    told, rows = bad_row(path, None)
    assert told == reason
    assert [(row.row, row.after) for row in rows] == [(1, ()), (3, (1,))]


@pytest.mark.parametrize(("document", "reason"), [
    (session(), "requests is not an array of requests: []"),
    (session(turn(0), block_size=0), "block_size is not an integer in 1..2^31-1: 0"),
    (session(turn(0), hash_id_scope="global"), "hash_id_scope is not \"local\": 'global'"),
    ({"hash_id_scope": "local"}, "requests is missing"),
])
def test_a_bad_weka_document(write: Callable[..., str], document: dict[str, Any], reason: str) -> None:
    assert whole_file(write(document)) == reason


def test_a_document_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(session(turn(0)), indent=1)[:-9])
    assert whole_file(path).startswith("not one JSON object: ")


def test_a_document_may_be_a_long_line(write: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = write(session(turn(0))), write(mooncake(0, extra="x" * 300))
    monkeypatch.setattr(lines, "LINE_MAX", 100)
    assert len(read(path)) == 1
    assert whole_file(rows).endswith("line 1: longer than 100 bytes")
    monkeypatch.setattr(lines, "DOCUMENT_MAX", 150)
    assert whole_file(path).endswith("longer than 150 bytes")


def test_block_sizes_of_files(write: Callable[..., str]) -> None:
    weka, mooncake = write(session(turn(0))), write({"timestamp": 0, "input_length": 96, "output_length": 1,
                                                     "hash_ids": [1]})
    assert open_traces([weka, mooncake], trace_block_size=None).block_size == 64
    assert open_traces([mooncake, weka]).block_size == 64
    assert whole_file(weka, trace_block_size=32) == "its blocks are of 64 tokens, not of 32"
    assert whole_file(weka, block_size=48) == "block size 48 does not divide its blocks of 64 tokens"


# Dynamo.


def end(
    received: int, took: float, session_id: str | None, parent: str | None = None, **request: Any
) -> dict[str, Any]:
    context = {"session_id": session_id} | ({"parent_session_id": parent} if parent else {})
    return {"timestamp": 1, "event": {
        "schema": "dynamo.request.trace.v1", "event_type": "request_end",
        **({"agent_context": context} if session_id else {}),
        "request": {"request_received_ms": received, "total_time_ms": took, "input_tokens": 20, "output_tokens": 3,
                    "replay": {"trace_block_size": 16, "input_length": 20,
                               "input_sequence_hashes": [2**64 - 1, 2**63]}} | request}}


TOOL = {"timestamp": 2, "event": {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "tool": {}}}


def test_dynamo_sorts_by_reception_and_joins_sub_agents(write: Callable[..., str]) -> None:
    path = write(
        end(1000, 100.5, "root"), TOOL, end(1150, 50, "a", "root"), end(1120, 200, "b", "root"),
        end(1400, 10, "a", "root"), TOOL, end(1500, 1, "root"), end(1010, 900, None))
    rows = read(path)
    assert [row.arrival_ns // MS for row in rows] == [0, 150, 120, 400, 500, 10]
    assert waits(rows) == [
        ((), None), ((1,), 49_500_000), ((1,), 19_500_000), ((2,), 200 * MS), ((1, 4, 3), 90 * MS), (None, None)]
    assert [row.session_id for row in rows] == ["root"] * 5 + [None]
    assert all(len(row.block_hashes) == 2 for row in rows)


def test_dynamo_of_several_files_is_placed_on_one_clock(write: Callable[..., str]) -> None:
    rows = list(open_traces([write(end(5000, 1, "a")), write(end(4000, 1, "b"))]))
    assert [(row.arrival_ns, row.file_index) for row in rows] == [(0, 1), (1000 * MS, 0)]


@pytest.mark.parametrize(("record", "reason"), [
    (end(1, 1, "a", input_tokens=0), "input_tokens is not in 1..2^53: 0"),
    (end(1, -1, "a"), "total_time_ms is negative: -1"),
    (end(1, 1, "a", replay={"trace_block_size": 32, "input_length": 1}),
     "trace_block_size is 32, but 16 in rows before"),
    (end(1, 1, "a", replay={"trace_block_size": 16, "input_length": 1, "input_sequence_hashes": [-1]}),
     "hash_ids holds an id outside 0..2^64-1"),
    (end(1, 1, "a", replay={"trace_block_size": 16, "input_length": 40, "input_sequence_hashes": [1]}),
     "40 tokens in blocks of 16 need 3 hash_ids, not 1"),
    ({"event": {"schema": "dynamo.request.trace.v2", "event_type": "request_end"}},
     "schema is not 'dynamo.request.trace.v1': 'dynamo.request.trace.v2'"),
    ({"event": {"event_type": "request_end"}}, "request is missing"),
    ({"event": 1}, "event is not an object: 1"),
    ({"timestamp": 1}, "event is missing"),
])
def test_a_bad_dynamo_row(write: Callable[..., str], record: dict[str, Any], reason: str) -> None:
    told, rows = bad_row(write(end(0, 1, "a"), TOOL, record, end(9, 1, "a")), 3)
    assert told == reason
    assert [(row.row, row.after) for row in rows] == [(1, ()), (3, (1,))]


def test_sessions_that_are_each_others_parents_end(write: Callable[..., str]) -> None:
    rows = read(write(end(0, 1, "a", "b"), end(5, 1, "b", "a"), end(9, 1, "c", "c")))
    assert waits(rows) == [((), None), ((1,), 4 * MS), ((), None)]


# LLMServingSim, Bailian, Mooncake with dependencies.


def test_llmservingsim_flat_and_chained(write: Callable[..., str]) -> None:
    rows = read(write(
        {"input_toks": 10, "output_toks": 2, "arrival_time_ns": 5},
        {"arrival_time_ns": 7, "session_id": "s", "sub_requests": [
            {"input_toks": 1, "output_toks": 1, "tool_duration_ns": 30}, {"input_toks": 2, "output_toks": 1},
            {"input_toks": 3, "output_toks": 1, "tool_duration_ns": 9}]},
        {"input_toks": 11, "output_toks": 2, "arrival_time_ns": 8}))
    assert [(row.arrival_ns, row.prompt_tokens, row.session_id, row.delay_ns, row.after) for row in rows] == [
        (0, 10, None, None, None), (2, 1, "s", None, ()), (32, 2, "s", 30, (2,)), (32, 3, "s", 0, (3,)),
        (3, 11, None, None, None)]


def test_a_bad_llmservingsim_session_is_one_bad_row(write: Callable[..., str]) -> None:
    good = {"input_toks": 10, "output_toks": 2, "arrival_time_ns": 5}
    told, rows = bad_row(write(good, {"arrival_time_ns": 7, "sub_requests": [good, {"input_toks": 1}]}, good), 2)
    assert told == "output_toks is missing"
    assert [row.row for row in rows] == [1, 3]


def test_bailian_turns_continue_their_parents(write: Callable[..., str]) -> None:
    def chat(number: int, parent: int, time: float) -> dict[str, Any]:
        return {"chat_id": number, "parent_chat_id": parent, "timestamp": time, "input_length": 17, "output_length": 1,
                "type": "text", "turn": 1, "hash_ids": [3, number]}

    stream = open_traces([write(chat(5, -1, 0.5), chat(6, 5, 1), chat(7, 99, 2), chat(8, 6, 2.25))])
    rows = list(stream)
    assert (stream.formats, stream.block_size) == (("bailian",), 16)
    assert [(row.arrival_ns, row.session_id, row.after) for row in rows] == [
        (0, "5", ()), (SECOND // 2, "5", (1,)), (3 * SECOND // 2, "7", ()), (7 * SECOND // 4, "5", (2,))]
    assert rows[0].block_hashes[0] == rows[3].block_hashes[0]


def mooncake(time: float, **more: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": 10, "output_length": 1} | more


def test_mooncake_rows_name_whom_they_wait_for(write: Callable[..., str]) -> None:
    rows = read(write(
        mooncake(0, session_id="s", request_id="a"), mooncake(1, session_id="s"),
        mooncake(2, session_id="s", request_id="b"), mooncake(3, request_id="c", wait_for=["b", "a"], delay=4),
        mooncake(5, request_id="d"), mooncake(6, wait_for=[])))
    assert [row.after for row in rows] == [(), None, (2,), (3, 1), (), ()]
    assert rows[3].delay_ns == 4 * MS


@pytest.mark.parametrize(("more", "reason"), [
    ({"wait_for": ["z"]}, "wait_for names 'z', which no usable row before it has as its request_id"),
    ({"wait_for": ["late"]}, "wait_for names 'late', which arrives later"),
    ({"wait_for": "a"}, "wait_for is not an array of strings: 'a'"),
    ({"wait_for": [1]}, "wait_for is not an array of strings: [1]"),
    ({"request_id": "a"}, "request_id 'a' stands in row 1 too"),
    ({"request_id": ""}, "request_id is not a non-empty string: ''"),
])
def test_a_bad_dependency(write: Callable[..., str], more: dict[str, Any], reason: str) -> None:
    path = write(mooncake(0, request_id="a"), mooncake(9, request_id="late"), mooncake(1, **more))
    assert bad_row(path, 3)[0] == reason


def test_mooncake_turns_without_times_count_from_the_turn_before(write: Callable[..., str]) -> None:
    def turn(**more: Any) -> dict[str, Any]:
        return {"input_length": 10, "output_length": 1, "session_id": "s"} | more

    path = write(
        mooncake(5, session_id="s"), turn(delay=2), mooncake(6, session_id="t"), turn(delay_ms=1, timestamp=None))
    assert [(row.row, row.arrival_ns // MS, row.delay_ns) for row in open_traces([path])] == [
        (1, 0, None), (3, 1, None), (2, 2, 2 * MS), (4, 3, 1 * MS)]
    for row in (turn(), turn(delay=1, session_id="u"), turn(delay=1, session_id=None)):
        assert bad_row(write(mooncake(5, session_id="s"), row), 2)[0] == "timestamp is missing"
    late = write(mooncake(4e12, session_id="s"), turn(delay=4e12))
    assert bad_row(late, 2)[0] == "delay leads beyond 2^62 ns (146 years)"


# OpenTelemetry.


def span(start: str, stop: str, **more: Any) -> dict[str, Any]:
    messages = json.dumps([{"role": "user", "content": "x" * 95}])  # role and two newlines: 101 bytes
    return {"start_time": f"2026-01-01T00:00:{start}", "end_time": f"2026-01-01T00:00:{stop}", "attributes": {
        "gen_ai.input.messages": messages, "gen_ai.output.text": "four", "session.id": "s"} | more}


def test_otel_spans_fan_out_and_in_and_their_text_is_estimated(write: Callable[..., str]) -> None:
    stream = open_traces([write({"spans": [
        span("00", "02"), span("03", "05"), span("03.5", "04.5"), span("09", "10")]}, indent=1)])
    rows = list(stream)
    assert stream.block_size == 16
    assert waits(rows) == [((), None), ((1,), SECOND), ((1,), 3 * SECOND // 2), ((2, 3), 4 * SECOND)]
    assert {(row.prompt_tokens, row.output_tokens, len(row.block_hashes)) for row in rows} == {(26, 1, 2)}
    assert len({row.block_hashes for row in rows}) == 1


def test_otel_counts_come_first_and_tools_are_no_requests(write: Callable[..., str]) -> None:
    counted = {"gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.output_tokens": 9}
    rows = read(write({"spans": [span("00", "01", **{"gen_ai.operation.name": "execute_tool"}),
                                 span("02", "03", **counted)]}))
    assert [(row.row, row.prompt_tokens, row.output_tokens, row.block_hashes) for row in rows] == [(1, 7, 9, ())]


@pytest.mark.parametrize(("bad", "reason"), [
    (span("03", "02"), "spans[1]: end_time is before start_time"),
    (span("xx", "02"), "spans[1]: start_time is not a date and time: '2026-01-01T00:00:xx'"),
    (span("03", "04", **{"gen_ai.input.messages": None}),
     "spans[1]: neither counts of tokens nor gen_ai.input.messages"),
    (span("03", "04", **{"gen_ai.input.messages": "[1]"}),
     "spans[1]: gen_ai.input.messages is not an array of messages: [1]"),
    (span("03", "04", **{"gen_ai.usage.input_tokens": 1.5}),
     "spans[1]: gen_ai.usage.input_tokens is not an integer in 1..2^53: 1.5"),
    ({"attributes": 4}, "spans[1]: attributes is not an object: 4"),
    (7, "spans[1]: not a JSON object: 7"),
])
def test_a_bad_span_is_one_bad_row(write: Callable[..., str], bad: Any, reason: str) -> None:
    assert bad_row(write({"spans": [span("00", "01"), bad]}), None)[0] == reason


# Who waits for whom, from times alone.


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 3)), max_size=12))
def test_links_say_nothing_that_the_times_contradict(drawn: list[tuple[int, int, int]]) -> None:
    """Agent 0 has children 1 and 2, and 2 has 3."""
    parents = {0: None, 1: "0", 2: "0", 3: "2"}
    spans = [Span(number, start, start + length, str(agent), parents[agent])
             for number, (start, length, agent) in enumerate(drawn, 1)]
    found = linked(spans)
    known = {item.row: item for item in spans}
    joined: set[tuple[str | None, int]] = set()
    for item in spans:
        after, delay_ns = found[item.row]
        assert len(set(after)) == len(after)
        assert all(known[row].end_ns <= item.start_ns for row in after)
        assert all((known[row].start_ns, row) < (item.start_ns, item.row) for row in after)
        assert delay_ns == (item.start_ns - max(known[row].end_ns for row in after) if after else None)
        own = [other for other in spans if other.session == item.session and other.end_ns <= item.start_ns
               and (other.start_ns, other.row) < (item.start_ns, item.row)]
        if own:
            assert known[after[0]] in own
            assert known[after[0]].end_ns == max(other.end_ns for other in own)
        elif after:
            assert known[after[0]].session == item.parent
        for row in after[1:]:
            assert (item.session, row) not in joined
            joined.add((item.session, row))
