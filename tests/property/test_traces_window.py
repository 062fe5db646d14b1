"""Lines read in place: a file of plain and odd Mooncake lines is what the careful parser makes of each line."""

from __future__ import annotations

import gzip
import tempfile
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvcore.drivers.replay import traces
from kvcore.drivers.replay.formats import row_parser
from kvcore.drivers.replay.mooncake import careful_parser, salt_of
from kvcore.drivers.replay.traces import TraceRow, open_traces
from kvcore.drivers.replay.values import Unusable

from kvcore.hashing import sequence_hashes

TRACE_BLOCK = 8


@pytest.fixture(autouse=True, scope="module")
def nearly_all_lines_are_read_in_place():
    """What detection looks at goes to the parser, whatever it is: one line, not sixteen, and one behind a header."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "_HEAD_LINES", 1)
        yield


#: The first line tells the format and is plain.
FIRST = b'{"timestamp": 5, "input_length": 9, "output_length": 1, "hash_ids": [1, 2]}'
#: What lines may be, each but for its end; whatever is odd stands beside something plain.
LINES = [
    b'{"timestamp": 7, "input_length": 17, "output_length": 3, "hash_ids": [1, 2, 3]}',
    b'{"timestamp":7,"input_length":3,"output_length":3}', b'\t{"timestamp" : 3 , "input_length":3,"output_length":3} ',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "hash_ids": [18446744073709551615]}',
    b'{"timestamp": 4.25, "input_length": 8, "output_length": 2, "hash_ids": [1]}',
    b'{"timestamp": 1e1, "input_length": 8, "output_length": 2}', b'{"timestamp": NaN, "input_length": 1}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "hash_ids": [-1]}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "hash_ids": null}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "hash_ids": []}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 0}', b'{"timestamp": 4, "input_length": true}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "output_length": 2}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "extra": {"deep": [1, "}"]}}',
    b'{"timestamp": 4, "input_length": 8, "output_length": 2, "session_id": "s", "delay": 3}',
    b'{"input_length": 8, "output_length": 2, "session_id": "s", "delay": 1}',
    b'{"timestamp": 9, "input_length": 8, "output_length": 2, "policy_class": "\\u00e9", "priority": 2}',
    b'{"timestamp": 9, "input_length": 8, "output_length": 2, "policy_class": "\\ud800"}',
    b'{"timest\\u0061mp": 9, "input_length": 8, "output_length": 2}', b'{"timestamp": 9} {"timestamp": 9}',
    b'{"timestamp": 9, "input_length": 8, "output_length": 2}x', b'[1]', b'{"timestamp": 9, "input_length": 8',
    b'{"timestamp": 9, "input_length": 8, "output_length": 2\x00}', b'{"timestamp": 9,\r"input_length": 8}', b"\xff{}",
    b"", b" \t", b"\r", b'{"timestamp": 4611686018428, "input_length": 8, "output_length": 2}',
    b'{"timestamp": 4, "input_length": 9007199254740993, "output_length": 2}',
    b'{"timestamp": 4, "input_length": 8388609, "output_length": 2}', b"9" * 5000,
    b'{"timestamp": ' + b"1" * 5000 + b', "input_length": 8, "output_length": 2}',
]


def expected(lines: list[bytes], block_size: int) -> tuple[list[TraceRow], list[int]]:
    """The rows by time, and the numbers of the lines that are bad, by the careful parser alone."""
    parse = careful_parser(TRACE_BLOCK, block_size)
    rows, bad, number = [], [], 0
    for place, line in enumerate(lines, 1):
        content = line.strip(b" \t\r\n")
        if not content:
            continue
        number += 1
        try:
            if b"\r" in content or b"\0" in content:
                raise Unusable("")
            facts = parse(content)
        except Unusable:
            bad.append(place)
        else:
            rows.append((facts[0], number, facts))
    rows.sort(key=lambda row: row[:2])
    return [
        TraceRow(time_ns - rows[0][0], facts[1], facts[2], names(facts, block_size), *facts[4:9], 0, number)
        for time_ns, number, facts in rows], bad


def names(facts, block_size: int) -> tuple[int, ...]:
    """As mooncake.salt_of has it."""
    if facts[3] is None:
        return ()
    parts = TRACE_BLOCK // block_size
    local = [part or block_id for block_id in facts[3] for part in [0, *range(1, parts)]]
    for k, block_id in enumerate(facts[3]):
        local[k * parts] = block_id
    return sequence_hashes((salt_of(0), *local[: -(-facts[1] // block_size)]))[1:]


ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"  \n"])


@given(st.lists(st.tuples(st.sampled_from(LINES), ENDS), max_size=8), st.sampled_from([8, 4, 1]),
       st.booleans(), st.booleans(), st.booleans())
@example([(line, b"\n") for line in LINES], 4, True, False, False)
@example([(line, b"\r\n") for line in LINES], 8, False, True, True)
def test_a_file_is_what_its_lines_are(lines, block_size, mark, packed, cut):
    content = b"".join([FIRST, b"\n", *(line + end for line, end in lines)])
    if cut:
        content = content.rstrip(b"\r\n")
    rows, bad = expected(content.split(b"\n"), block_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        content = b"\xef\xbb\xbf" * mark + content
        path.write_bytes(gzip.compress(content) if packed else content)
        with open_traces([path], format="mooncake", trace_block_size=TRACE_BLOCK, block_size=block_size,
                         skip_bad=True) as stream:
            found = list(stream)
            assert found == rows
            assert [line for _, line, _ in stream.skipped_rows] == bad[:20]
            assert (stream.read, stream.skipped) == (len(rows) + len(bad), len(bad))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 5))
@example([5, 1, 0], 1)
def test_plain_lines_wait_and_are_late_as_others_are(times, window):
    """Against the same rows in a format whose lines are parsed."""
    plain = [f'{{"timestamp": {time}, "input_length": 1, "output_length": 1}}' for time in times]
    parsed = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(f"0.00{time},1,1" for time in times)]
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "REORDER_ROWS", window)
        for lines in (plain, parsed):
            path = Path(folder, "trace")
            path.write_text("\n".join(lines))
            stream = open_traces([path], skip_bad=True)
            rows = list(stream)
            skipped = [(line - len(lines), reason) for _, line, reason in stream.skipped_rows]
            found.append((rows, skipped, stream.read, stream.skipped, stream.reordered))
    assert found[0] == found[1]


TIMES = {
    "azure": ["1970-01-01 00:00:00", "2023-11-16 18:17:03.9799600", "2024-02-29T23:59:59.999999999",
              "2000-02-29 00:00:00", "2023-02-29 00:00:00", "2100-02-29 00:00:00", "2023-13-01 00:00:00",
              "2023-00-01 00:00:00", "2023-04-31 00:00:00", "2023-12-00 00:00:00", "2023-11-16 24:00:00",
              "2023-11-16 23:60:00",
              "2023-11-16 23:59:60", "2023-11-16 18:17:03.", "2023-11-16 18:17:03.0000000001", "1969-12-31 23:59:59",
              "2023-11-16 18:17:03+01:00", "2023-11-16 18:17:03Z", "2116-03-01 00:00:00", "2115-12-31 23:59:59.5",
              "2023-11-16_18:17:03", "2023-1-16 18:17:03", "20 3-11-16 18:17:03", "2023-11-16 18:17", "", "5",
              '"2023-11-16 18:17:03"', " 2023-11-16 18:17:03 ", "2023/11/16 18:17:03", "0000-01-01 00:00:00"],
    "vidur": ["0", "0.0", "12.25", "007.5", "999999999.999999999", "1000000000", "999999999999", "1.", ".5", "1e3",
              "-1", "+1", "1.0000000005", "nan", "inf", "4611686018.5", "", " 3 ", '"3"', "3_0", "1:00"],
}
COUNTS = ["1", "374", "0", "007", "000000000000000001", "999999999999999", "9007199254740992", "9007199254740993",
          "1.0", "-1", "", " 5", '"5"', "1e2", "x", "\u0661"]
HEADERS = {
    "azure": ["TIMESTAMP,ContextTokens,GeneratedTokens", "timestamp, contexttokens ,GENERATEDTOKENS",
              "TIMESTAMP,GeneratedTokens,ContextTokens", "TIMESTAMP,ContextTokens,GeneratedTokens,x"],
    "vidur": ["arrived_at,num_prefill_tokens,num_decode_tokens", "num_prefill_tokens,num_decode_tokens,arrived_at"],
}


def check_csv(name: str, header: str, lines: list[str]) -> None:
    """The rows of a file are what the parser of its format makes of each line."""
    parse, _ = row_parser(name, header.encode(), 16, 16)
    lines = [f"{TIMES[name][0]},1,1", *lines]
    rows, bad = [], []
    for number, line in enumerate(lines, 1):
        try:
            rows.append((parse(line.strip().encode()), number))
        except Unusable as error:
            bad.append((number + 1, error.reason))
    rows.sort(key=lambda row: (row[0][0], row[1]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        path.write_text("\n".join([header, *lines]), encoding="utf-8")
        stream = open_traces([path], format=name, skip_bad=True)
        assert [(row.arrival_ns, row.prompt_tokens, row.output_tokens, row.row) for row in stream] == [
            (facts[0] - rows[0][0][0], facts[1], facts[2], number) for facts, number in rows]
        assert [(line, reason) for _, line, reason in stream.skipped_rows] == bad[:20]


@given(st.sampled_from(sorted(TIMES)), st.data())
def test_a_csv_file_is_what_its_lines_are(name, data):
    field = st.one_of(st.sampled_from(TIMES[name][:3]), st.sampled_from(TIMES[name]))
    count = st.one_of(st.just("7"), st.sampled_from(COUNTS))
    line = st.lists(count, min_size=1, max_size=3).flatmap(
        lambda counts: field.map(lambda time: ",".join([time, *counts])))
    check_csv(name, data.draw(st.sampled_from(HEADERS[name])), data.draw(st.lists(line, min_size=1, max_size=8)))


@pytest.mark.parametrize("name", sorted(TIMES))
def test_every_odd_field_of_a_csv_file(name):
    for header in HEADERS[name]:
        for time in TIMES[name]:
            check_csv(name, header, [f"{time},3,4", f"{time},3,4,", f"{time},3"])
        for count in COUNTS:
            check_csv(name, header, [f"{TIMES[name][1]},{count},4", f"{TIMES[name][1]},4,{count}"])


@given(st.datetimes(datetime(1970, 1, 1), datetime(2115, 12, 31)))
def test_days_are_those_of_the_calendar(time):
    check_csv("azure", HEADERS["azure"][0], [f"{time.isoformat(' ')},2,3"])


def test_plain_lines_are_not_parsed():
    """Otherwise they would be right because the careful parser has seen them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        path.write_bytes(b"\n".join([FIRST] * 20 + [LINES[0]] * 20 + [LINES[4]]))
        stream = open_traces([path], trace_block_size=TRACE_BLOCK)
        window = stream.feed()
        parsed = []
        parse = window.windows[0].parse
        window.windows[0].parse = lambda line: parsed.append(line) or parse(line)
        assert len(list(window)) == 41
    assert parsed == [FIRST, LINES[4]]


@pytest.mark.parametrize("name", sorted(TIMES))
def test_plain_lines_of_csv_files_are_not_parsed_either(name, tmp_path):
    path = tmp_path / "trace"
    path.write_text("\n".join([HEADERS[name][0], *[f"{TIMES[name][1]},3,4"] * 40]))
    feed = open_traces([path]).feed()
    parsed = []
    parse = feed.windows[0].parse
    feed.windows[0].parse = lambda line: parsed.append(line) or parse(line)
    assert len(list(feed)) == 40
    assert len(parsed) == 1
