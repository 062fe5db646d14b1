"""What the tests of the trace readers share: lines of each format, files to read, and how a refusal is taken apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvcore.drivers.replay.traces import TraceRow, open_traces

from kvcore.errors import InvalidTrace

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]}'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens"
ARXIV = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"

Write = Callable[[str | bytes], str]


def whole_file(path: str | Path, **options: Any) -> str:
    """The reason for which open_traces refuses the file as a whole, skip_bad or not."""
    reasons = set()
    for skip_bad in (False, True):
        with pytest.raises(InvalidTrace) as caught:
            open_traces([path], skip_bad=skip_bad, **options)
        assert (caught.value.file, caught.value.line) == (str(path), None)
        reasons.add(caught.value.reason)
    (reason,) = reasons
    return reason


def bad_row(path: str, line: int | None, **options: Any) -> tuple[str, list[TraceRow]]:
    """The reason for which the one bad row of the file, on this line, is refused; and the other rows."""
    with pytest.raises(InvalidTrace) as caught:
        list(open_traces([path], **options))
    assert (caught.value.file, caught.value.line) == (path, line)
    stream = open_traces([path], skip_bad=True, **options)
    rows = list(stream)
    assert stream.skipped_rows == [(path, line, caught.value.reason)]
    assert (stream.skipped, stream.read) == (1, len(rows) + 1)
    return caught.value.reason, rows
