"""Trace readers: rows come back as written, and merging with a window equals a plain sort."""

from __future__ import annotations

import json
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvcore.drivers.replay import traces
from kvcore.drivers.replay.traces import TraceRow, open_traces

TRACE_BLOCK = 8
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"

milliseconds = st.one_of(
    st.integers(0, 50),
    st.decimals(0, 50, places=7, allow_nan=False, allow_infinity=False),
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    tokens = draw(st.integers(1, 40))
    record: dict[str, Any] = {
        "timestamp": draw(milliseconds), "input_length": tokens, "output_length": draw(st.integers(1, 2**53)),
    }
    blocks = -(-tokens // TRACE_BLOCK)
    if draw(st.booleans()):
        record["hash_ids"] = draw(st.lists(st.integers(0, 2), min_size=blocks, max_size=blocks))
    for key, values in (
        ("session_id", st.text(min_size=1)), ("delay", milliseconds), ("policy_class", st.text(min_size=1)),
        ("priority", st.floats(-1e300, 1e300)), ("strict_priority", st.integers(0, 2**32 - 1)),
    ):
        if draw(st.booleans()):
            record[key] = draw(values)
    return record


def json_line(record: dict[str, Any]) -> str:
    """As json.dumps, but a Decimal is written out digit by digit."""
    parts = [
        f"{json.dumps(key)}: {value if isinstance(value, Decimal) else json.dumps(value)}"
        for key, value in record.items()
    ]
    return "{" + ", ".join(parts) + "}\n"


def ns(value: int | Decimal) -> int:
    return round(Decimal(value) * 10**6)


@given(st.lists(st.lists(records(), min_size=1, max_size=12), min_size=1, max_size=3), st.sampled_from([8, 4, 1]))
def test_rows_come_back_as_written_and_in_order(files: list[list[dict[str, Any]]], block_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for index, rows in enumerate(files):
            path = Path(folder, str(index))
            path.write_text("".join(map(json_line, rows)), encoding="utf-8")
            paths.append(path)
        stream = open_traces(paths, trace_block_size=TRACE_BLOCK, block_size=block_size)
        read = list(stream)
    expected = sorted(
        (
            (ns(record["timestamp"]), index, number, record)
            for index, rows in enumerate(files)
            for number, record in enumerate(rows, 1)
        ),
        key=lambda entry: entry[:3],
    )
    origin = expected[0][0]
    contents: dict[int, Any] = {}
    for row, (time_ns, index, number, record) in zip(read, expected, strict=True):
        delay = record.get("delay")
        assert row == TraceRow(
            time_ns - origin, record["input_length"], record["output_length"], row.block_hashes,
            record.get("session_id"), None if delay is None else ns(delay), record.get("priority", 0.0),
            record.get("strict_priority", 0), record.get("policy_class"), index, number,
        )
        ids = record.get("hash_ids", [])
        blocks = -(-record["input_length"] // block_size)
        assert len(row.block_hashes) == (blocks if ids else 0)
        # One name, one content: the file, the ids up to and with its own, its place inside the last of them.
        for place, name in enumerate(row.block_hashes):
            whole, part = divmod(place * block_size, TRACE_BLOCK)
            content = (index, tuple(ids[: whole + 1]), part)
            assert contents.setdefault(name, content) == content
    assert len(set(contents.values())) == len(contents)
    assert (stream.read, stream.skipped) == (len(expected), 0)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), min_size=1, max_size=3),
    st.integers(1, 5),
)
@example([[1, 0], [0, 1]], 1)
def test_window_and_merge_equal_a_plain_sort(files: list[list[int]], window: int) -> None:
    """Against the definition: a row is bad iff more than `window` rows before it are later, else all are sorted."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "REORDER_ROWS", window)
        paths = []
        for index, times in enumerate(files):
            path = Path(folder, str(index))
            path.write_text(VIDUR + "".join(f"{time},1,1\n" for time in times))
            paths.append(path)
        stream = open_traces(paths, skip_bad=True)
        read = [(row.arrival_ns // 10**9, row.file_index, row.row) for row in stream]
    kept = []
    reordered = 0
    for index, times in enumerate(files):
        good: list[int] = []
        for number, time in enumerate(times, 1):
            # What has left the window is the smallest of what came in, at any moment: with n rows in, n - window left.
            left = sorted(good)[: max(0, len(good) - window)]
            if left and time < left[-1]:
                continue
            reordered += bool(good) and time < max(good)
            good.append(time)
            kept.append((time, index, number))
    kept.sort()
    origin = kept[0][0]
    assert read == [(time - origin, index, number) for time, index, number in kept]
    assert stream.reordered == reordered
    assert stream.skipped == stream.read - len(kept)
