"""Trace readers: formats, exact times, block names, merging, reordering, counters. Bad input: test_traces_bad.py."""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import os
from collections.abc import Callable
from decimal import localcontext
from pathlib import Path
from typing import Any

import pytest
from kvcore.drivers.replay import traces
from kvcore.drivers.replay.traces import TraceRow, TraceStream, open_traces

from kvcore.errors import InvalidTrace
from kvcore.hashing import chain

SAMPLES = Path(__file__).parents[2] / "examples" / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(content, name=...) -> path of a new file; text is written as UTF-8."""
    made = 0

    def make(content: str | bytes, name: str | None = None) -> str:
        nonlocal made
        made += 1
        path = tmp_path / (name or f"trace{made}")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


def mooncake(*records: dict[str, Any]) -> str:
    """JSON lines; a record that names no field of its own is a request of 600 tokens at 0."""
    base = {"timestamp": 0, "input_length": 600, "output_length": 20}
    return "".join(json.dumps(base | record) + "\n" for record in records)


def arrivals(rows: list[TraceRow]) -> list[int]:
    return [row.arrival_ns for row in rows]


# Formats.


def test_mooncake_row_carries_every_field(write: Write) -> None:
    path = write(mooncake(
        {"timestamp": 5, "hash_ids": [3, 4], "session_id": "s", "delay": 1.5, "priority": 2, "strict_priority": 7,
         "policy_class": "gold", "model": "ignored", "extra": {"deep": [1.5, None]}},
        {"timestamp": 7, "session_id": None, "delay": None, "priority": None, "strict_priority": None,
         "policy_class": None, "hash_ids": None},
    ))
    stream = open_traces([path])
    assert (stream.formats, stream.block_size) == (("mooncake",), 512)
    first, second = stream
    assert len(first.block_hashes) == 2
    assert first == TraceRow(
        arrival_ns=0, prompt_tokens=600, output_tokens=20, block_hashes=first.block_hashes, session_id="s",
        delay_ns=1_500_000, priority=2.0, strict_priority=7, policy_class="gold", file_index=0, row=1,
    )
    assert second == TraceRow(2_000_000, 600, 20, (), None, None, 0.0, 0, None, 0, 2)
    assert type(first.priority) is float
    assert (stream.read, stream.skipped, stream.reordered, stream.skipped_rows) == (2, 0, 0, [])


def test_delay_ms_is_a_name_of_delay(write: Write) -> None:
    (row,) = open_traces([write(mooncake({"delay_ms": 3}))])
    assert row.delay_ns == 3_000_000


def test_azure_columns_are_found_by_name_and_need_no_order(write: Write) -> None:
    path = write(
        "timestamp, NumImages,GENERATEDTOKENS,ContextTokens\r\n"
        "2024-10-15T12:00:00.269Z,0,491,770\r\n"
        "2024-10-15T12:00:05.819Z,1,126,949"
    )
    stream = open_traces([path])
    rows = list(stream)
    assert stream.formats == ("azure",)
    assert [(row.arrival_ns, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (0, 770, 491), (5_550_000_000, 949, 126),
    ]
    assert (stream.block_size, rows[0].block_hashes) == (16, ())


def test_burstgpt_with_and_without_sessions(write: Write) -> None:
    old = write(BURSTGPT + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n")
    new = write(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        '0.25,17,1.5,"GPT-4, ""turbo""",1,2,3,API log\n'
        "1,,,ChatGPT,1,2,3,API log\n"
        "2,NaN,nan,ChatGPT,1,2,3,API log\n"
    )
    stream = open_traces([old, new])
    rows = list(stream)
    assert stream.formats == ("burstgpt", "burstgpt")
    assert [(row.arrival_ns, row.file_index, row.session_id) for row in rows] == [
        (0, 1, "17"), (750_000_000, 1, None), (1_750_000_000, 1, None), (4_750_000_000, 0, None),
        (44_750_000_000, 0, None),
    ]


def test_vidur_seconds(write: Write) -> None:
    rows = list(open_traces([write(VIDUR + "0.0,4808,10\n0.052,3180,8\n4.314579,396,109\n")]))
    assert arrivals(rows) == [0, 52_000_000, 4_314_579_000]


def test_quoted_header_and_fields(write: Write) -> None:
    (row,) = open_traces([write('"arrived_at","num_prefill_tokens","num_decode_tokens"\n"1",2,"3"\n')])
    assert (row.prompt_tokens, row.output_tokens) == (2, 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mooncake", mooncake({})),
        ("azure", AZURE + "2024-05-10 00:00:00,1,1\n"),
        ("burstgpt", BURSTGPT + "5,ChatGPT,1,1,2,API log\n"),
        ("vidur", VIDUR + "0,1,1\n"),
    ],
)
def test_format_is_told_by_content_and_can_be_forced(write: Write, name: str, content: str) -> None:
    path = write(content, "misleading.csv.gz.jsonl")
    assert open_traces([path]).formats == (name,)
    assert len(list(open_traces([path], format=name))) == 1
    assert len(list(open_traces([write(gzip.compress(content.encode()), "plain.txt")]))) == 1
    for other in {"azure", "burstgpt", "vidur"} - {name}:
        with pytest.raises(InvalidTrace, match="no column"):
            open_traces([path], format=other)


def test_format_is_told_past_damaged_rows(write: Write) -> None:
    stream = open_traces([write("{oops\n# note\n" + mooncake({}))], skip_bad=True)
    assert [row.row for row in stream] == [3]
    assert [line for _, line, _ in stream.skipped_rows] == [1, 2]


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        ('{"query_type": "prefix_match", "timestamp_us": 1, "input_len": 16, "output_len": 0}\n', "Tair KVCache"),
        ('{"timestamp": 1.5, "token_ids": [1, 2], "is_tool_call": false}\n', "Tair KVCache"),
        ('{\n  "timestamp": 1,\n  "input_length": 1\n}\n', "over several lines"),
        ('{"id": "x", "choices": []}\n', "starts with '{\"id\": \"x\""),
        ("a,b,c\n1,2,3\n", "starts with 'a,b,c'"),
        ("\x00\x01\n", "a NUL byte"),
    ],
)
def test_what_is_no_trace_is_named(write: Write, content: str, seen: str) -> None:
    with pytest.raises(InvalidTrace, match=r"read here|cannot tell|not one object") as caught:
        open_traces([write(content)])
    assert seen in caught.value.reason
    assert caught.value.line is None


def test_a_forced_format_overrules_the_marks_of_another(write: Write) -> None:
    path = write(mooncake({"parent_chat_id": -1}))
    assert len(list(open_traces([path], format="mooncake"))) == 1


# Times.


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0), ("-0", 0), ("-0.0", 0), ("0.1", 100_000), ("0.30000000000000004", 300_000), ("1e3", 1_000_000_000),
        ("1795969738.0590572", 1_795_969_738_059_057), ("0.0000005", 0), ("0.0000015", 2), ("0.00000250001", 3),
        ("1e-400", 0), ("1770000000000", 1_770_000_000_000_000_000),
        ("4611686018427.387903", 2**62 - 1), ("0.1" + "0" * 500 + "1", 100_000),
    ],
)
def test_milliseconds_are_exact(write: Write, text: str, ns: int) -> None:
    lines = mooncake({}) + mooncake({"timestamp": "T"}).replace('"T"', text)
    # A caller's decimal context has no say in what a file means.
    with localcontext() as context:
        context.prec = 3
        context.clear_traps()
        assert list(open_traces([write(lines)]))[-1].arrival_ns == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5", 5_000_000_000), ("45.25", 45_250_000_000), ("1.", 10**9), (".5", 5 * 10**8), ("1e2", 10**11),
        ("0.000000001", 1), ("0.0000000015", 2), (" 3 ", 3 * 10**9), ("+1", 10**9),
        ("0.1234567890123456789", 123_456_789), ("2.5e-9", 2),
    ],
)
def test_seconds_are_exact(write: Write, text: str, ns: int) -> None:
    rows = list(open_traces([write(f"{VIDUR}0,1,1\n{text},1,1\n")]))
    assert arrivals(rows) == [0, ns]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2023-11-16 18:15:46.6805900", 680_590_000), ("2023-11-16 18:15:46.0000001", 100),
        ("2023-11-16 18:15:47", 10**9), ("2023-11-16T18:15:46.269Z", 269_000_000),
        ("2023-11-16 18:15:46.009930+00:00", 9_930_000), ("2023-11-16 19:15:46+01:00", 0),
        ("2023-11-16 12:45:46.5-0530", 500_000_000), ("2023-11-17 00:00:00", (5 * 3600 + 44 * 60 + 14) * 10**9),
        ("2024-03-01 18:15:46", 106 * 86_400 * 10**9), ("2023-11-16 18:15:46.123456789Z", 123_456_789),
        ("2116-02-20 23:53:38.427387903Z", 2**62 - 1 - 1_700_158_546 * 10**9),
    ],
)
def test_calendar_times_are_exact(write: Write, text: str, ns: int) -> None:
    rows = list(open_traces([write(f"{AZURE}2023-11-16 18:15:46,1,1\n{text},1,1\n")]))
    assert arrivals(rows) == [0, ns]


# Block names.


def names(write: Write, *records: dict[str, Any], **options: Any) -> list[tuple[int, ...]]:
    return [row.block_hashes for row in open_traces([write(mooncake(*records))], **options)]


def test_equal_prefixes_have_equal_names_and_nothing_else_has(write: Write) -> None:
    a, b, c, d = names(
        write,
        {"input_length": 1536, "hash_ids": [0, 1, 2]},
        {"input_length": 1400, "hash_ids": [0, 1, 9]},
        {"input_length": 1536, "hash_ids": [5, 1, 2]},
        {"input_length": 2048, "hash_ids": [1, 1, 1, 1]},
    )
    assert a[:2] == b[:2]
    assert len({*a, *b, *c, *d}) == 3 + 1 + 3 + 4
    assert all(0 <= name < 2**64 for name in (*a, *b, *c, *d))


def test_ids_up_to_2_64_are_taken(write: Write) -> None:
    ((first,), (second,)) = names(
        write, {"input_length": 1, "hash_ids": [2**64 - 1]}, {"input_length": 1, "hash_ids": [2**63]}
    )
    assert first != second


def test_names_are_those_of_every_other_run(write: Write) -> None:
    """Golden: journals and reports of older runs name the same blocks."""
    salt = chain(0x6B767472616365, 0)
    assert names(write, {"hash_ids": [0, 7]}) == [(chain(salt, 0), chain(chain(salt, 0), 7))]
    assert names(write, {"hash_ids": [0, 7]}) == [(10971431812131089810, 1158479307897374770)]


def test_the_same_ids_in_two_files_are_two_contents(write: Write) -> None:
    path = write(mooncake({"hash_ids": [0, 1]}, {"hash_ids": [0, 1]}))
    rows = list(open_traces([path, path]))
    by_file = [{row.block_hashes for row in rows if row.file_index == index} for index in (0, 1)]
    assert [len(found) for found in by_file] == [1, 1]
    assert not set().union(*by_file[0]) & set().union(*by_file[1])


def test_trace_blocks_split_into_smaller_ones(write: Write) -> None:
    a, b, c, d = names(
        write,
        {"input_length": 600, "hash_ids": [0, 1]},
        {"input_length": 1024, "hash_ids": [0, 1]},
        {"input_length": 1024, "hash_ids": [0, 2]},
        {"input_length": 1, "hash_ids": [4]},
        block_size=16,
    )
    assert [len(a), len(b), len(c), len(d)] == [38, 64, 64, 1]
    assert a == b[:38]
    assert b[:32] == c[:32]
    assert not set(b[32:]) & set(c[32:])
    assert len({*b, *c, *d}) == 32 + 32 + 32 + 1


def test_trace_block_size_says_what_the_ids_stand_for(write: Write) -> None:
    path = write(mooncake({"input_length": 40, "hash_ids": [1, 2, 3]}))
    stream = open_traces([path], trace_block_size=16)
    assert stream.block_size == 16
    assert len(next(iter(stream)).block_hashes) == 3
    assert len(next(iter(open_traces([path], trace_block_size=16, block_size=1))).block_hashes) == 40
    with pytest.raises(InvalidTrace, match="40 tokens in blocks of 512 need 1 hash_ids, not 3"):
        list(open_traces([path]))


def test_which_block_size_a_stream_has(write: Write) -> None:
    hashed, plain = write(mooncake({})), write(VIDUR + "0,1,1\n")
    assert open_traces([hashed, plain]).block_size == 512
    assert open_traces([plain, hashed], trace_block_size=64).block_size == 64
    assert open_traces([plain], trace_block_size=64).block_size == 16
    assert open_traces([plain], block_size=24).block_size == 24
    assert open_traces([hashed], block_size=512).block_size == 512
    for size in (24, 1024):
        with pytest.raises(InvalidTrace, match=f"block size {size} does not divide its blocks of 512 tokens") as caught:
            open_traces([plain, hashed], block_size=size)
        assert caught.value.file == hashed


# Order.


def test_files_merge_by_time_then_file_then_row(write: Write) -> None:
    first = write(mooncake({"timestamp": 3}, {"timestamp": 3}, {"timestamp": 5}))
    second = write(mooncake({"timestamp": 2}, {"timestamp": 3}, {"timestamp": 4}))
    rows = list(open_traces([first, second]))
    assert [(row.file_index, row.row) for row in rows] == [(1, 1), (0, 1), (0, 2), (1, 2), (1, 3), (0, 3)]
    assert arrivals(rows) == [0, 10**6, 10**6, 10**6, 2 * 10**6, 3 * 10**6]


def test_calendar_files_stand_at_the_zero_of_relative_ones(write: Write) -> None:
    late = write(AZURE + "2024-05-10 00:00:10,1,1\n")
    early = write(AZURE + "2024-05-10 00:00:04,2,1\n2024-05-10 00:00:12,3,1\n")
    relative = write(mooncake({"timestamp": 1000}, {"timestamp": 7000}))
    rows = list(open_traces([late, relative, early]))
    assert [(row.file_index, row.arrival_ns // 10**9) for row in rows] == [(2, 0), (1, 1), (0, 6), (1, 7), (2, 8)]


def test_a_late_first_time_is_shifted_to_zero(write: Write) -> None:
    rows = list(open_traces([write(mooncake({"timestamp": 1_770_000_000_000}, {"timestamp": 1_770_000_000_001}))]))
    assert arrivals(rows) == [0, 10**6]


def test_late_rows_are_put_in_their_place_and_counted(write: Write) -> None:
    stream = open_traces([write(mooncake(*({"timestamp": time} for time in (4, 2, 9, 2, 9, 5))))])
    assert [(row.arrival_ns // 10**6, row.row) for row in stream] == [(0, 2), (0, 4), (2, 1), (3, 6), (7, 3), (7, 5)]
    assert (stream.read, stream.reordered) == (6, 3)


def test_a_row_later_than_the_window_is_bad(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "REORDER_ROWS", 2)
    path = write(mooncake(*({"timestamp": time} for time in (0, 5, 6, 7, 5, 4, 8))))
    with pytest.raises(InvalidTrace, match="more than 2 rows late") as caught:
        list(open_traces([path]))
    assert caught.value.line == 6
    stream = open_traces([path], skip_bad=True)
    assert [row.arrival_ns // 10**6 for row in stream] == [0, 5, 5, 6, 7, 8]
    assert (stream.read, stream.skipped, stream.reordered) == (7, 1, 1)


def test_the_window_holds_65536_rows(write: Write) -> None:
    count = traces.REORDER_ROWS
    ahead = "".join(f"{second},1,1\n" for second in range(1, count + 1))
    assert [row.row for row in open_traces([write(VIDUR + ahead + "0,1,1\n")], limit=1)] == [count + 1]
    with pytest.raises(InvalidTrace, match="65536 rows late"):
        list(open_traces([write(VIDUR + ahead + f"{count + 1},1,1\n0,1,1\n")]))


# The stream as an object.


def open_files() -> set[str]:
    """What this process has open, as far as it can be read."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(link))
    return found


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 9])
def test_limit_counts_rows_given_out(write: Write, limit: int) -> None:
    first = write(mooncake({"timestamp": 1}, {"timestamp": 3}, {"input_length": 0}))
    second = write(mooncake({"timestamp": 2}, {"timestamp": 4}))
    stream = open_traces([first, second], limit=limit, skip_bad=True)
    assert arrivals(list(stream)) == [0, 10**6, 2 * 10**6, 3 * 10**6][:limit]
    assert stream.read == (5 if limit else 0)


def test_row_and_line_numbers_count_differently(write: Write) -> None:
    path = write("\n" + VIDUR + "\n0,1,1\n\n \t\r\noops,1,1\n1,1,1\n2,x,1")
    stream = open_traces([path], skip_bad=True)
    assert [row.row for row in stream] == [1, 3]
    assert [line for _, line, _ in stream.skipped_rows] == [7, 9]
    assert (stream.read, stream.skipped) == (4, 2)


def test_only_the_first_skipped_rows_are_kept(write: Write) -> None:
    stream = open_traces([write(VIDUR + "0,1,1\n" + "x\n" * 30)], skip_bad=True)
    assert len(list(stream)) == 1
    assert (stream.skipped, len(stream.skipped_rows)) == (30, 20)
    assert stream.skipped_rows[0] == (stream.skipped_rows[0][0], 3, "1 fields, but the header has 3")


def test_a_stream_is_read_once(write: Write) -> None:
    stream = open_traces([write(mooncake({}))])
    assert len(list(stream)) == 1
    with pytest.raises(RuntimeError, match="read once"):
        iter(stream)
    with open_traces([write(mooncake({}))]) as closed:
        assert isinstance(closed, TraceStream)
    with pytest.raises(RuntimeError, match="read once"):
        iter(closed)


def test_files_are_closed_however_a_stream_ends(write: Write) -> None:
    """Unclosed files are ResourceWarnings, which the test configuration makes errors."""
    path = write(mooncake({"timestamp": 1}, {"timestamp": 2}))
    packed = write(gzip.compress(b"\n" + Path(path).read_bytes()))
    stream = open_traces([path, packed])
    assert {path, packed} <= open_files()
    stream.close()
    assert not {path, packed} & open_files()
    for options in ({}, {"limit": 1}, {"limit": 0}):
        stream = open_traces([path, packed], **options)
        list(stream)
        assert not {path, packed} & open_files()
    open_traces([path, packed])
    for _ in open_traces([path, packed]):
        break
    next(iter(open_traces([path, packed], limit=1)))
    assert not {path, packed} & open_files()
    with pytest.raises(InvalidTrace) as caught:
        open_traces([path, path, "/nonexistent/trace"])
    # Not only when the exception, whose traceback holds them, is forgotten.
    assert path not in open_files()
    del caught
    gc.collect()


def test_path_objects_and_names(write: Write) -> None:
    path = Path(write(mooncake({"input_length": 0})))
    with pytest.raises(InvalidTrace) as caught:
        list(open_traces([path]))
    assert (caught.value.file, caught.value.line) == (str(path), 1)
    assert str(caught.value) == f"{path}:1: input_length is not in 1..2^53: 0"


@pytest.mark.parametrize(
    ("paths", "options", "kind", "message"),
    [
        ([], {}, ValueError, "no trace file"),
        ("trace", {}, TypeError, "sequence of paths"),
        (["trace"], {"format": "sharegpt"}, ValueError, "unknown trace format 'sharegpt'"),
        (["trace"], {"block_size": 0}, ValueError, "block_size must be"),
        (["trace"], {"trace_block_size": 2**31}, ValueError, "trace_block_size must be"),
        (["trace"], {"limit": -1}, ValueError, "limit must be"),
    ],
)
def test_wrong_arguments(paths: Any, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        open_traces(paths, **options)
    assert not isinstance(caught.value, InvalidTrace)


@pytest.mark.parametrize(
    ("name", "form", "rows", "span_ns", "prompt_tokens"),
    [
        ("azure_code_sample.csv", "azure", 500, 232_801_087_000, 1_081_658),
        ("azure_conv_sample.csv", "azure", 500, 129_012_474_000, 467_684),
        ("burstgpt_sample.csv", "burstgpt", 3, 113_000_000_000, 1_976),
        ("mooncake_sample.jsonl", "mooncake", 200, 58_501_000_000, 2_663_480),
        ("vidur_sample.csv", "vidur", 100, 192_162_141_000, 227_562),
        ("weka_sample.json.gz", "weka", 105, 2_717_000_000_000, 5_990_912),
        ("dynamo_sample.jsonl.gz", "dynamo", 17, 162_147_000_000, 66_520),
        ("otel_sample.json", "otel", 4, 6_000_000_000, 233),
        ("llmservingsim_sample.jsonl", "llmservingsim", 100, 10_659_738_000, 1_110_648),
    ],
)
def test_shipped_samples(name: str, form: str, rows: int, span_ns: int, prompt_tokens: int) -> None:
    stream = open_traces([SAMPLES / name])
    read = list(stream)
    assert stream.formats == (form,)
    assert (len(read), read[-1].arrival_ns) == (rows, span_ns)
    assert sum(row.prompt_tokens for row in read) == prompt_tokens


def test_azure_and_vidur_samples_tell_the_same_story() -> None:
    azure = list(open_traces([SAMPLES / "azure_code_sample.csv"], limit=100))
    assert azure == list(open_traces([SAMPLES / "vidur_sample.csv"]))
