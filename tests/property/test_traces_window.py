"""Lines read in place: a file of plain and odd Mooncake lines is what the careful parser makes of each line."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvcore.drivers.replay import traces
from kvcore.drivers.replay.mooncake import careful_parser, salt_of
from kvcore.drivers.replay.traces import TraceRow, open_traces
from kvcore.drivers.replay.values import Unusable

from kvcore.hashing import sequence_hashes

TRACE_BLOCK = 8
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
    # Those that detection has looked at are objects already.
    assert parsed == [FIRST] * 16 + [LINES[4]]
