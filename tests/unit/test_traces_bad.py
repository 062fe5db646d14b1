"""Trace readers on damaged rows and damaged gzip: only InvalidTrace, with the right place, never a wrong row."""

from __future__ import annotations

import gzip
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from kvcore.drivers.replay.traces import open_traces
from trace_files import AZURE, BURSTGPT, GOOD, VIDUR, Write, bad_row, whole_file

from kvcore.errors import InvalidTrace

MALFORMED = Path(__file__).parents[1] / "data" / "malformed"

@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(content) -> path of a new file; text is written as UTF-8."""

    def make(content: str | bytes) -> str:
        path = tmp_path / f"trace{len(list(tmp_path.iterdir()))}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return make


# One bad line between two good ones.


def row(**fields: Any) -> str:
    """A JSON line in which a str stands for itself, not for a JSON string."""
    record = {"timestamp": 0, "input_length": 600, "output_length": 20} | fields
    return "{" + ", ".join(f'"{key}": {value}' for key, value in record.items()) + "}"


MOONCAKE_ROWS: list[tuple[str | bytes, str]] = [
    # Not one JSON object.
    (GOOD[:40], "not one JSON object"),
    (GOOD + GOOD, "not one JSON object: Extra data"),
    (GOOD + ",", "not one JSON object"),
    ("# comment", "not one JSON object"),
    ("// comment", "not one JSON object"),
    ("{}", "timestamp is missing"),
    ("[1, 2]", "not a JSON object: [1, 2]"),
    ("null", "not a JSON object: null"),
    ("7", "not a JSON object: 7"),
    ("[" * 100_000, "JSON nested too deeply"),
    ('{"a":' * 100_000, "JSON nested too deeply"),
    ("{'timestamp': 0}", "not one JSON object"),
    ('{"timestamp": 0, "timestamp": 0, "input_length": 1, "output_length": 1}', "a JSON key stands twice"),
    (row(extra='{"a": 1, "a": 2}'), "a JSON key stands twice"),
    (row(extra="NaN"), "NaN is not a JSON number"),
    (row(extra="9" * 5000), "an integer with too many digits"),
    (row(extra="1e99999999999999999999"), "a number out of range"),
    ('{"timestamp":0,"input_length":600,"output_length":2748 610}', "not one JSON object"),
    # Bytes.
    (b'{"timestamp": 0, "input_length": 1, "output_length": 1, "model": "\xff"}', "not UTF-8 at byte 67"),
    (b'{"timestamp": 0, "session_id": "\xed\xa0\x80"}', "not UTF-8 at byte 33"),
    (GOOD.replace("600", "6\x0000"), "a NUL byte in the line"),
    (GOOD + "\r" + GOOD, "a carriage return inside the line"),
    ("\ufeff" + GOOD, "not one JSON object"),
    # timestamp.
    (row(timestamp="null"), "timestamp is not a number of milliseconds: null"),
    (row(timestamp="true"), "timestamp is not a number of milliseconds: true"),
    (row(timestamp='"7"'), "timestamp is not a number of milliseconds: '7'"),
    (row(timestamp="[0]"), "timestamp is not a number of milliseconds: [0]"),
    (row(timestamp="NaN"), "NaN is not a JSON number"),
    (row(timestamp="-Infinity"), "-Infinity is not a JSON number"),
    (row(timestamp="-1"), "timestamp is negative: -1"),
    (row(timestamp="-0.5"), "timestamp is negative: -0.5"),
    (row(timestamp="-1e-9"), "timestamp is negative: -1E-9"),
    (row(timestamp="1e999"), "timestamp is beyond 2^62 ns (146 years): 1E+999"),
    (row(timestamp="1e999999999"), "timestamp is beyond 2^62 ns"),
    (row(timestamp="4611686018427.387904"), "timestamp is beyond 2^62 ns"),
    (row(timestamp="4611686018427.3879039"), "timestamp is beyond 2^62 ns"),
    (row(timestamp="1770000000000000"), "timestamp is beyond 2^62 ns"),
    (row(timestamp="9" * 4000), "timestamp is beyond 2^62 ns"),
    # Token counts.
    ('{"timestamp": 0, "output_length": 1}', "input_length is missing"),
    ('{"timestamp": 0, "input_length": 1}', "output_length is missing"),
    (row(input_length="0"), "input_length is not in 1..2^53: 0"),
    (row(input_length="-600"), "input_length is not in 1..2^53: -600"),
    (row(input_length="600.0"), "input_length is not an integer: 600.0"),
    (row(input_length="600.5"), "input_length is not an integer: 600.5"),
    (row(input_length="6e2"), "input_length is not an integer: 6E+2"),
    (row(input_length="true"), "input_length is not an integer: true"),
    (row(input_length='"600"'), "input_length is not an integer: '600'"),
    (row(input_length="NaN"), "NaN is not a JSON number"),
    (row(input_length=str(2**53 + 1)), "input_length is not in 1..2^53: 9007199254740993"),
    (row(output_length="0"), "output_length is not in 1..2^53: 0"),
    (row(output_length="null"), "output_length is not an integer: null"),
    (row(output_length=str(2**64)), "output_length is not in 1..2^53"),
    # hash_ids.
    (row(hash_ids="[0]"), "600 tokens in blocks of 512 need 2 hash_ids, not 1"),
    (row(hash_ids="[0, 1, 2]"), "need 2 hash_ids, not 3"),
    (row(input_length="512", hash_ids="[0, 1]"), "need 1 hash_ids, not 2"),
    (row(input_length="513", hash_ids="[0]"), "need 2 hash_ids, not 1"),
    (row(input_length=str(2**53), hash_ids="[0]"), "need 17592186044416 hash_ids, not 1"),
    (row(hash_ids='"0,1"'), "hash_ids is not an array: '0,1'"),
    (row(hash_ids="{}"), "hash_ids is not an array: {}"),
    (row(hash_ids="0"), "hash_ids is not an array: 0"),
    (row(hash_ids="false"), "hash_ids is not an array: false"),
    (row(hash_ids='[0, "1"]'), "hash_ids holds '1', not an integer"),
    (row(hash_ids="[0, null]"), "hash_ids holds null, not an integer"),
    (row(hash_ids="[0, 1.0]"), "hash_ids holds 1.0, not an integer"),
    (row(hash_ids="[true, 1]"), "hash_ids holds true, not an integer"),
    (row(hash_ids="[0, [1]]"), "hash_ids holds [1], not an integer"),
    (row(hash_ids="[0, -1]"), "hash_ids holds an id outside 0..2^64-1"),
    (row(hash_ids=f"[0, {2**64}]"), "hash_ids holds an id outside 0..2^64-1"),
    # The rest.
    (row(session_id='""'), "session_id is not a non-empty string: ''"),
    (row(session_id="7"), "session_id is not a non-empty string: 7"),
    (row(session_id='"\\ud800"'), "session_id holds a lone surrogate"),
    (row(policy_class="true"), "policy_class is not a non-empty string: true"),
    (row(policy_class='"\\udfff"'), "policy_class holds a lone surrogate"),
    (row(delay="-1"), "delay is negative: -1"),
    (row(delay="true"), "delay is not a number of milliseconds: true"),
    (row(delay="1", delay_ms="1"), "both delay and delay_ms are given"),
    (row(delay_ms="1e400"), "delay is beyond 2^62 ns"),
    (row(priority="1e999"), "priority is not a finite number: 1E+999"),
    (row(priority="9" * 400), "priority is not a finite number: 9999"),
    (row(priority="false"), "priority is not a finite number: false"),
    (row(priority='"1"'), "priority is not a finite number: '1'"),
    (row(strict_priority="-1"), "strict_priority is not an integer in 0..2^32-1: -1"),
    (row(strict_priority=str(2**32)), "strict_priority is not an integer in 0..2^32-1: 4294967296"),
    (row(strict_priority="1.0"), "strict_priority is not an integer in 0..2^32-1: 1.0"),
]


@pytest.mark.parametrize(("line", "reason"), MOONCAKE_ROWS, ids=range(len(MOONCAKE_ROWS)))
def test_bad_mooncake_row(write: Write, line: str | bytes, reason: str) -> None:
    content = b"\n".join([b"", GOOD.encode(), line if isinstance(line, bytes) else line.encode(), GOOD.encode()])
    found, rows = bad_row(write(content), 3)
    assert found.startswith(reason) or reason in found
    assert [(row.row, row.prompt_tokens) for row in rows] == [(1, 600), (3, 600)]
    assert len(found) < 200, "a reason is one phrase, whatever the row holds"


AZURE_ROWS = [
    ("2023-11-16 18:15:46,374", "2 fields, but the header has 3"),
    ("2023-11-16 18:15:46,374,44,", "4 fields, but the header has 3"),
    ("2023-11-16 18:15:46;374;44", "1 fields, but the header has 3"),
    ('2023-11-16 18:15:46,374,"44', "CSV quoting"),
    ('2023-11-16 18:15:46,374,"4"4', "CSV quoting"),
    ("# comment", "1 fields, but the header has 3"),
    (AZURE, "TIMESTAMP is not a date and time: 'TIMESTAMP'"),
    (",374,44", "TIMESTAMP is not a date and time: ''"),
    ("2023-11-16,374,44", "TIMESTAMP is not a date and time"),
    ("16/11/2023 18:15:46,374,44", "TIMESTAMP is not a date and time"),
    ("2023-11-16 18:15:46.,374,44", "TIMESTAMP is not a date and time"),
    ("2023-11-16 18:15:46.1234567890,374,44", "TIMESTAMP is not a date and time"),
    ("2023-11-16 18:15:46+5,374,44", "TIMESTAMP is not a date and time"),
    ("2023-11-16 18:15:46 PM,374,44", "TIMESTAMP is not a date and time"),
    ("1700158546,374,44", "TIMESTAMP is not a date and time"),
    ("٢٠٢٣-11-16 18:15:46,374,44", "TIMESTAMP is not a date and time"),
    ("2023-02-29 18:15:46,374,44", "TIMESTAMP has no such day: '2023-02-29'"),
    ("2023-13-01 18:15:46,374,44", "TIMESTAMP has no such day"),
    ("0000-01-01 18:15:46,374,44", "TIMESTAMP has no such day"),
    ("2023-11-16 24:00:00,374,44", "TIMESTAMP has no such time of day"),
    ("2023-11-16 18:60:00,374,44", "TIMESTAMP has no such time of day"),
    ("2016-12-31 23:59:60,374,44", "TIMESTAMP has no such time of day"),
    ("2023-11-16 18:15:46+24:00,374,44", "TIMESTAMP has no such offset"),
    ("1969-12-31 23:59:59,374,44", "TIMESTAMP is outside 1970 to 2116"),
    ("1970-01-01 00:00:00+00:01,374,44", "TIMESTAMP is outside 1970 to 2116"),
    ("2116-02-20 23:53:38.427387904,374,44", "TIMESTAMP is outside 1970 to 2116"),
    ("9999-12-31 23:59:59,374,44", "TIMESTAMP is outside 1970 to 2116"),
    ("2023-11-16 18:15:46,,44", "ContextTokens is not a whole number: ''"),
    ("2023-11-16 18:15:46,0,44", "ContextTokens is 0"),
    ("2023-11-16 18:15:46,-1,44", "ContextTokens is not a whole number: '-1'"),
    ("2023-11-16 18:15:46,374.0,44", "ContextTokens is not a whole number: '374.0'"),
    ("2023-11-16 18:15:46,1e3,44", "ContextTokens is not a whole number: '1e3'"),
    ("2023-11-16 18:15:46,1_000,44", "ContextTokens is not a whole number: '1_000'"),
    ("2023-11-16 18:15:46,²,44", "ContextTokens is not a whole number"),
    ("2023-11-16 18:15:46,٣,44", "ContextTokens is not a whole number"),
    ("2023-11-16 18:15:46,9007199254740993,44", "ContextTokens is above 2^53"),
    ("2023-11-16 18:15:46,374," + "9" * 5000, "GeneratedTokens is above 2^53"),
    ("2023-11-16 18:15:46,374,nan", "GeneratedTokens is not a whole number: 'nan'"),
    ("2023-11-16 18:15:46,374,0", "GeneratedTokens is 0"),
]

BURSTGPT_ROWS = [
    ("5,,ChatGPT,472,0,472,API log", "Response tokens is 0: a failed request"),
    ("5,,ChatGPT,0,18,18,API log", "Request tokens is 0"),
    ("5,,ChatGPT,472,18,491,API log", "Total tokens is not 472 + 18: '491'"),
    ("5,,ChatGPT,472,18,,API log", "Total tokens is not a whole number: ''"),
    ("5,,GPT-4, turbo,472,18,490,API log", "8 fields, but the header has 7"),
    ('5,,"GPT-4,472,18,490,API log', "CSV quoting"),
    ("-5,,ChatGPT,472,18,490,API log", "Timestamp is negative: -5"),
    ("nan,,ChatGPT,472,18,490,API log", "Timestamp is not a number of seconds: 'nan'"),
    ("inf,,ChatGPT,472,18,490,API log", "Timestamp is not a number of seconds: 'inf'"),
    (",,ChatGPT,472,18,490,API log", "Timestamp is not a number of seconds: ''"),
    ("0x10,,ChatGPT,472,18,490,API log", "Timestamp is not a number of seconds: '0x10'"),
    ("1_0,,ChatGPT,472,18,490,API log", "Timestamp is not a number of seconds: '1_0'"),
    ("٣,,ChatGPT,472,18,490,API log", "Timestamp is not a number of seconds"),
    ("1e999999999,,ChatGPT,472,18,490,API log", "Timestamp is beyond 2^62 ns"),
    ("1e9999999999999999999999,,ChatGPT,472,18,490,API log", "a number out of range"),
    ("4611686018.427387904,,ChatGPT,472,18,490,API log", "Timestamp is beyond 2^62 ns"),
    ("4611686018.4273879039,,ChatGPT,472,18,490,API log", "Timestamp is beyond 2^62 ns"),
    ("9" * 5000 + ",,ChatGPT,472,18,490,API log", "Timestamp is beyond 2^62 ns"),
]


@pytest.mark.parametrize(
    ("header", "good", "line", "reason"),
    [(AZURE, "2023-11-16 18:15:46,600,20", *case) for case in AZURE_ROWS]
    + [(BURSTGPT, "5,,ChatGPT,600,20,620,API log", *case) for case in BURSTGPT_ROWS],
)
def test_bad_csv_row(write: Write, header: str, good: str, line: str, reason: str) -> None:
    found, rows = bad_row(write("\r\n".join(["", header, good, line, good])), 4)
    assert found.startswith(reason)
    assert [(row.row, row.prompt_tokens) for row in rows] == [(1, 600), (3, 600)]
    assert len(found) < 200


def test_csv_bytes(write: Write) -> None:
    content = f"{VIDUR},note\n0,1,1,ok\n1,1,1,\0\n2,1,1,".encode() + b"\xff\n3,1,1,a\rb\n"
    stream = open_traces([write(content)], skip_bad=True)
    assert len(list(stream)) == 1
    assert [(line, reason) for _, line, reason in stream.skipped_rows] == [
        (3, "a NUL byte in the line"), (4, "not UTF-8 at byte 7 of the line"), (5, "a carriage return inside the line"),
    ]


def test_a_quoted_newline_costs_both_its_lines(write: Write) -> None:
    path = write(f'{VIDUR},note\n0,1,1,"a\nb"\n7,1,1,\n')
    stream = open_traces([path], skip_bad=True)
    assert [row.row for row in stream] == [3]
    assert [line for _, line, _ in stream.skipped_rows] == [2, 3]


def test_a_prompt_of_too_many_blocks(write: Write) -> None:
    path = write(row(input_length=str(2**20 + 1), hash_ids="[7]") + "\n" + row(input_length=str(2**20), hash_ids="[7]"))
    options = {"trace_block_size": 2**21, "block_size": 1}
    reason, (last,) = bad_row(path, 1, **options)
    assert reason == "a prompt of more than 1048576 blocks of 1 tokens"
    assert len(set(last.block_hashes)) == 2**20


# Damaged gzip.


def plain(count: int) -> bytes:
    """Rows of incompressible lengths, so that the compressed file is large as well."""
    source = random.Random(1)
    body = "".join(f"{time},{source.randrange(1, 2**53)},{source.randrange(1, 2**53)}\n" for time in range(count))
    return f"{VIDUR}\n{body}".encode()


def test_cut_gzip_keeps_the_rows_before_the_cut(write: Write) -> None:
    packed = gzip.compress(plain(20_000))
    whole = list(open_traces([write(packed)]))
    for part in (0.3, 0.9, 0.99999):
        cut = packed[: int(len(packed) * part)]
        reason, rows = bad_row(write(cut), None)
        assert reason == "the gzip data ends too early"
        assert rows == whole[: len(rows)]
        # Nothing that the cut file still holds is lost, but the line it breaks off in.
        decompressed = zlib.decompressobj(31).decompress(cut)
        assert len(rows) == decompressed.count(b"\n") - 1


def test_a_wrong_checksum_is_one_bad_row_after_all_others(write: Write) -> None:
    packed = bytearray(gzip.compress(plain(20_000)))
    packed[-8] ^= 1
    reason, rows = bad_row(write(bytes(packed)), None)
    assert reason.startswith("the gzip data is damaged: CRC check failed")
    assert len(rows) == 20_000


def test_damaged_gzip_keeps_the_rows_before_the_damage(write: Write) -> None:
    """Rows behind it may come out garbled until the stream's check fails; the failure is always told."""
    packed = bytearray(gzip.compress(plain(20_000)))
    whole = list(open_traces([write(bytes(packed))]))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    path = write(bytes(packed))
    with pytest.raises(InvalidTrace):
        list(open_traces([path]))
    stream = open_traces([path], skip_bad=True)
    numbered = {row.row: row for row in stream}
    assert stream.skipped > 0
    assert [numbered[number] for number in range(1, 9_000)] == whole[:8_999]


def test_gzip_of_several_members_and_rubbish_behind(write: Write) -> None:
    members = gzip.compress(f"{GOOD}\n".encode()) + gzip.compress(f"{GOOD}\n".encode())
    assert len(list(open_traces([write(members + bytes(64))]))) == 2
    reason, rows = bad_row(write(members + b"rubbish"), None)
    assert reason.startswith("the gzip data is damaged: Not a gzipped file")
    assert len(rows) == 2


# The fixtures.

BAD_FIXTURES: dict[str, tuple[int, list[int | None]] | str] = {
    # name: rows that are left and lines that are refused, or the reason against the whole file.
    "azure_bom_semicolon.csv": "the columns are separated by ';', not by commas",
    "blank_lines.jsonl": (2, []),
    "burstgpt_rows.csv": (2, [3, 5]),
    "cr_only.jsonl": "carriage returns alone end the lines: convert them to newlines",
    "cut_short.jsonl.gz": (2, [None]),
    "empty.jsonl": "the file is empty",
    "float_times.jsonl": (5, []),
    "hash_count.jsonl": (2, [1, 2, 3, 4]),
    "invalid_utf8.jsonl": (1, [2]),
    "missing_fields.jsonl": (1, [1, 2, 3]),
    "nan_inf.jsonl": (0, [1, 2, 3, 4, 5]),
    "no_final_newline.jsonl": (2, []),
    "not_prefix_closed.jsonl": (2, []),
    "only_newlines.jsonl": "no data: only blank lines",
    "repeated_ids.jsonl": (2, []),
    "truncated.jsonl": (1, [2]),
    "utf16.jsonl": "UTF-16 text: convert it to UTF-8",
    "wrong_types.jsonl": (0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
}


def test_every_fixture_has_an_outcome() -> None:
    assert {path.name for path in MALFORMED.iterdir() if not path.name.startswith(".")} == set(BAD_FIXTURES)


@pytest.mark.parametrize("name", BAD_FIXTURES)
def test_fixture(name: str) -> None:
    path = MALFORMED / name
    outcome = BAD_FIXTURES[name]
    if isinstance(outcome, str):
        assert whole_file(path) == outcome
        return
    rows, bad_lines = outcome
    stream = open_traces([path], skip_bad=True)
    assert len(list(stream)) == rows
    assert [line for _, line, _ in stream.skipped_rows] == bad_lines
    if bad_lines:
        with pytest.raises(InvalidTrace) as caught:
            list(open_traces([path]))
        assert caught.value.line == bad_lines[0]
    else:
        assert len(list(open_traces([path]))) == rows
