"""Rows of a trace as lines of a file: what is written is read again as the same rows.

Times are exact to the nanosecond. What a format has no place for is left out and counted: nothing is lost unsaid.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from datetime import date
from io import StringIO
from typing import IO, Any

from ..replay.rows import TraceRow
from ..replay.values import SECOND_NS

__all__ = ["WRITTEN", "TraceWriter"]

#: The formats that can be written; mooncake is the one that holds all that is known of a row.
WRITTEN: tuple[str, ...] = ("mooncake", "azure", "burstgpt", "vidur")

_MILLISECOND_NS = 1_000_000
_DAY_S = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_HEADERS = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens",
    "burstgpt": "Timestamp,Session ID,Request tokens,Response tokens,Total tokens",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens",
}


class TraceWriter:
    """Writes rows in one format.

    lost: what the format has no place for -> in how many rows it stood. written: rows so far.
    several: the rows come from several files, whose sessions are kept apart by the number of their file.
    A row that says whom it waits for gets a request_id in a mooncake file. Of those whom it waits for, the ones that
    are not there are left out unsaid: they have been cut off.
    Memory, of mooncake only: an entry for each distinct block name, which becomes a small number in the file, and for
    each request_id.
    """

    def __init__(self, stream: IO[str], format: str, several: bool = False) -> None:
        self.lost: Counter[str] = Counter()
        self.written = 0
        self._stream = stream
        self._several = several
        self._ids: dict[Hashable, int] = {}
        self._named: set[tuple[int, int]] = set()
        self._line: Callable[[TraceRow], str] = {
            "mooncake": self._mooncake, "azure": self._azure, "burstgpt": self._burstgpt, "vidur": self._vidur,
        }[format]
        self._header = _HEADERS.get(format)

    def write(self, rows: Iterable[TraceRow]) -> None:
        """Write all rows. Raises what reading them raises."""
        for row in rows:
            if self._header is not None:
                self._stream.write(self._header + "\n")
                self._header = None
            self._stream.write(self._line(row) + "\n")
            self.written += 1

    def _session(self, row: TraceRow) -> str | None:
        if row.session_id is None or not self._several:
            return row.session_id
        return f"{row.file_index}:{row.session_id}"

    def _request(self, file_index: int, row: int) -> str:
        return f"{file_index}:{row}" if self._several else str(row)

    def _mooncake(self, row: TraceRow) -> str:
        record: dict[str, Any] = {
            "timestamp": _Plain(row.arrival_ns, _MILLISECOND_NS, 6),
            "input_length": row.prompt_tokens, "output_length": row.output_tokens,
        }
        if row.block_hashes:
            ids = self._ids
            record["hash_ids"] = [ids.setdefault(name, len(ids)) for name in row.block_hashes]
        if (session := self._session(row)) is not None:
            record["session_id"] = session
        if row.delay_ns is not None:
            record["delay"] = _Plain(row.delay_ns, _MILLISECOND_NS, 6)
        if row.priority:
            record["priority"] = row.priority
        if row.strict_priority:
            record["strict_priority"] = row.strict_priority
        if row.policy_class is not None:
            record["policy_class"] = row.policy_class
        if row.after is not None:
            self._named.add((row.file_index, row.row))
            record["request_id"] = self._request(row.file_index, row.row)
            record["wait_for"] = [self._request(row.file_index, number) for number in row.after
                                  if (row.file_index, number) in self._named]
        return "{" + ", ".join(f"{json.dumps(key)}: {_value(value)}" for key, value in record.items()) + "}"

    def _azure(self, row: TraceRow) -> str:
        self._count_lost(row, session=True)
        seconds, rest = divmod(row.arrival_ns, SECOND_NS)
        day, second = divmod(seconds, _DAY_S)
        fraction = f"{rest:09d}" if rest % 100 else f"{rest // 100:07d}"
        when = f"{date.fromordinal(_EPOCH_DAY + day)} {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        return f"{when}.{fraction},{row.prompt_tokens},{row.output_tokens}"

    def _burstgpt(self, row: TraceRow) -> str:
        session = self._session(row)
        # What the reader strips, takes for absent or cannot have on one line would come back as something else.
        kept = session is not None and (
            session.strip() == session and session.casefold() != "nan" and session.isprintable())
        self._count_lost(row, session=session is not None and not kept)
        prompt, output = row.prompt_tokens, row.output_tokens
        text = _field(session) if kept and session is not None else ""
        return f"{_Plain(row.arrival_ns, SECOND_NS, 9)},{text},{prompt},{output},{prompt + output}"

    def _vidur(self, row: TraceRow) -> str:
        self._count_lost(row, session=True)
        return f"{_Plain(row.arrival_ns, SECOND_NS, 9)},{row.prompt_tokens},{row.output_tokens}"

    def _count_lost(self, row: TraceRow, session: bool) -> None:
        there = {
            "block hashes": bool(row.block_hashes), "sessions": session and row.session_id is not None,
            "delays": row.delay_ns is not None, "priorities": bool(row.priority or row.strict_priority),
            "policy classes": row.policy_class is not None, "who waits for whom": bool(row.after),
        }
        self.lost.update(what for what, present in there.items() if present)


class _Plain:
    """A quotient of nanoseconds as a plain decimal: no exponent, no float on the way."""

    def __init__(self, value_ns: int, unit_ns: int, digits: int) -> None:
        whole, rest = divmod(value_ns, unit_ns)
        self._text = f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)

    def __str__(self) -> str:
        return self._text


def _value(value: object) -> str:
    return str(value) if isinstance(value, _Plain) else json.dumps(value)


def _field(text: str) -> str:
    quoted = StringIO()
    csv.writer(quoted, lineterminator="").writerow([text])
    return quoted.getvalue()
