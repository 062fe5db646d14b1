"""Trace readers on any bytes: nothing but InvalidTrace comes out, and damaged rows cost themselves only."""

from __future__ import annotations

import gzip
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st
from kvcore.drivers.replay.traces import FORMATS, TraceRow, open_traces
from trace_files import AZURE, BURSTGPT, VIDUR

from kvcore.errors import InvalidTrace

SEEDS = (
    "\n".join(
        json.dumps({"timestamp": time, "input_length": 500 + time, "output_length": time, "hash_ids": [time, 3]})
        for time in range(13, 33)
    ),
    "\r\n".join([AZURE, *(f"2023-11-16 18:15:{time}.0000001,{time},{time}" for time in range(13, 33))]),
    "\n".join([BURSTGPT, *(f'{time}.25,{time},"GPT, 4",{time},1,{time + 1},API log' for time in range(13, 33))]),
    "\n".join([VIDUR, *(f"{time}.5,{time},{time}" for time in range(13, 33))]),
)


def consume(content: bytes, **options: Any) -> list[TraceRow]:
    """Read bytes as a file, checking what must hold of whatever comes out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        path.write_bytes(content)
        stream = open_traces([path], **options)
        rows = list(stream)
    assert stream.read == len(rows) + stream.skipped
    assert len(stream.skipped_rows) == min(stream.skipped, 20)
    latest = 0
    for found in rows:
        assert latest <= found.arrival_ns < 2**62
        assert 1 <= found.prompt_tokens <= 2**53
        assert 1 <= found.output_tokens <= 2**53
        assert len(found.block_hashes) in (0, -(-found.prompt_tokens // stream.block_size))
        latest = found.arrival_ns
    return rows


@given(
    st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), st.sampled_from(SEEDS).map(str.encode)),
    st.sampled_from([None, *FORMATS]), st.booleans(), st.booleans(),
)
def test_any_bytes_raise_nothing_but_invalid_trace(
    content: bytes, form: str | None, skip_bad: bool, packed: bool
) -> None:
    try:
        consume(gzip.compress(content) if packed else content, format=form, skip_bad=skip_bad)
    except InvalidTrace:
        event("refused")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid file with a few bytes cut out, written over or copied elsewhere."""
    content = draw(st.sampled_from(SEEDS)).encode()
    if draw(st.booleans()):
        content = gzip.compress(content, mtime=0)
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted((draw(st.integers(0, len(content))), draw(st.integers(0, len(content)))))
        middle = draw(st.one_of(
            st.just(b""), st.binary(max_size=8), st.just(content[start:end]),
            st.sampled_from([b"\n", b"\r", b'"', b",", b"{", b"[", b"-", b"e", b"9" * 30, b"\xef\xbb\xbf", b"null"]),
        ))
        content = content[:start] + middle + content[min(end, start + draw(st.integers(0, 8))) :]
    return content


@given(damaged(), st.sampled_from([None, *FORMATS]), st.booleans(), st.sampled_from([None, 16, 7]))
def test_damaged_files_raise_nothing_but_invalid_trace(
    content: bytes, form: str | None, skip_bad: bool, block_size: int | None
) -> None:
    try:
        consume(content, format=form, skip_bad=skip_bad, block_size=block_size)
    except InvalidTrace:
        event("refused")


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(2, 20), st.integers(0, 100), st.integers(0, 6), st.binary(max_size=6)), max_size=6),
)
@example(SEEDS[0], [(2, 0, 1, b"[")])
@example(SEEDS[1], [(5, 0, 6, b"\r\r\r")])
def test_damaged_rows_cost_themselves_only(seed: str, damage: list[tuple[int, int, int, bytes]]) -> None:
    """With skip_bad nothing is raised, and a row whose line is untouched comes out as it stands in the sound file."""
    sound = {found.row: found for found in consume(seed.encode())}
    file_lines = seed.encode().split(b"\n")
    headers = 0 if seed.startswith("{") else 1
    hit = set()
    for index, start, length, middle in damage:
        # Fewer or more lines would change the numbers of the rows behind, which is right but not what is compared here.
        if index >= len(file_lines) or b"\n" in middle:
            continue
        line = file_lines[index]
        changed = line[:start] + middle + line[start + length :]
        if changed.strip(b" \t\r\n"):
            file_lines[index] = changed
            hit.add(index + 1 - headers)
    rows = {found.row: found for found in consume(b"\n".join(file_lines), skip_bad=True)}
    shift = {rows[number].arrival_ns - found.arrival_ns for number, found in sound.items() if number not in hit}
    assert len(shift) == 1, "a damaged row that became the first one moves all others alike"
    for number in sound.keys() - hit:
        assert replace(rows[number], arrival_ns=0) == replace(sound[number], arrival_ns=0)
