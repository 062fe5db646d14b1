"""Traces of agents: sessions whose requests wait for each other. What each format makes of odd input: traces.py.

A reader here yields (line, RowFacts or why the row cannot be used) for each data row of a file, in the order of the
file, in place of its lines; rows say by number which others they wait for (links.py). Except for llmservingsim, a file
is read whole before the first row, because who waits for whom shows only at its end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from .lines import DOCUMENT_MAX, Line
from .links import Span, linked
from .mooncake import block_ids, field, json_object, text, tokens
from .values import RowFacts, Unusable, scaled_ns, show

__all__ = ["Found", "Item", "Opened", "document", "dynamo", "llmservingsim", "ordered", "weka"]

#: 1-based physical line (None: none can be named), and a row or why it cannot be used.
Item: TypeAlias = "tuple[int | None, RowFacts | str]"

_WEKA_BLOCK = 64
_DYNAMO_SCHEMA = "dynamo.request.trace.v1"


@dataclass(frozen=True)
class Opened:
    """A file that has been opened: its rows, and tokens per block of their ids (None: they have none)."""

    trace_block_size: int | None
    items: Iterable[Item]


@dataclass
class Found:
    """A row before it is known what it waits for."""

    line: int | None
    span: Span
    prompt_tokens: int
    output_tokens: int
    ids: array[int] | None
    tree: str | None  # the session of the row, sub-agents included


def _number_ns(record: dict[str, Any], key: str, exponent: int) -> int:
    """A JSON number in units of 10^(exponent - 9) seconds as nanoseconds."""
    value = field(record, key)
    if type(value) is not int and type(value) is not Decimal:
        raise Unusable(f"{key} is not a number: {show(value)}")
    return scaled_ns(value, exponent, key)


def document(lines: Iterable[Line]) -> dict[str, Any]:
    """The one JSON object that a file is. Raises Unusable."""
    parts: list[bytes] = []
    size = 0
    for _, content in lines:
        if isinstance(content, str):
            raise Unusable(content)
        parts.append(content)
        size += len(content) + 1
        if size > DOCUMENT_MAX:
            raise Unusable(f"a JSON document of more than {DOCUMENT_MAX} bytes")
    return json_object(b"\n".join(parts))


def ordered(found: Iterable[Found | Item]) -> Iterator[Item]:
    """The rows with what they wait for; rows that cannot be used stay in their places."""
    rows = list(found)
    links = linked([row.span for row in rows if isinstance(row, Found)])
    for row in rows:
        if not isinstance(row, Found):
            yield row
            continue
        after, delay_ns = links[row.span.row]
        told = None if row.tree is None else (None, None, after)
        yield row.line, (row.span.start_ns, row.prompt_tokens, row.output_tokens, row.ids, row.tree, delay_ns, 0.0, 0,
                         None, told)


# WEKA: one session a file, sub-agents nested.


def weka(lines: Iterable[Line], wanted: int | None) -> Opened:
    """wanted: tokens per block; None: as in the trace. Raises Unusable."""
    whole = document(lines)
    size = whole.get("block_size", _WEKA_BLOCK)
    if type(size) is not int or not 1 <= size < 1 << 31:
        raise Unusable(f"block_size is not an integer in 1..2^31-1: {show(size)}")
    if whole.get("hash_id_scope", "local") != "local":
        raise Unusable(f"hash_id_scope is not \"local\": {show(whole['hash_id_scope'])}")
    entries = field(whole, "requests")
    if type(entries) is not list or not entries:
        raise Unusable(f"requests is not an array of requests: {show(entries)}")
    session = text(whole, "id") or "session"
    return Opened(size, ordered(_Weka(session, size, wanted or size).rows(entries)))


class _Weka:
    """The rows of one document, numbered as they stand."""

    def __init__(self, session: str, size: int, block_size: int) -> None:
        self._session, self._size, self._block_size = session, size, block_size
        self._row = 0

    def rows(
        self, entries: list[Any], path: str = "requests", base_ns: int = 0, agent: str = "", parent: str | None = None,
    ) -> Iterator[Found | Item]:
        """Those of an agent, whose times count from base_ns; those of its sub-agents where they stand."""
        for place, entry in enumerate(entries):
            where = f"{path}[{place}]"
            try:
                if type(entry) is not dict:
                    raise Unusable(f"not a JSON object: {show(entry)}")
                start_ns = base_ns + _number_ns(entry, "t", 9)
                nested = _nested(entry)
                item = self._found(entries, place, start_ns, agent, parent) if nested is None else None
            except Unusable as error:
                nested, item = None, (None, f"{where}: {error.reason}")
            if item is not None:
                self._row += 1
                yield item
            if nested is not None:
                # Numbered by where it stands: the file's own ids of sub-agents need not differ.
                yield from self.rows(nested, f"{where}.requests", start_ns, f"{agent}/{place}", agent)

    def _found(
        self, entries: list[Any], place: int, start_ns: int, agent: str, parent: str | None
    ) -> Found | Item:
        entry, row, end_ns = entries[place], self._row + 1, _end_ns(entries, place, start_ns)
        prompt = tokens(entry, "in")
        ids = entry.get("hash_ids")
        named = None
        if ids:
            # Only full blocks are named; the rest of the prompt gets an id that nothing else has.
            full = prompt // self._size * self._size
            named = block_ids(ids, full, self._size, self._block_size)
            if full < prompt:
                named.append(_own_id(row))
        return Found(None, Span(row, start_ns, end_ns, agent, parent), prompt, tokens(entry, "out"), named,
                      self._session)


def _nested(entry: dict[str, Any]) -> list[Any] | None:
    """The requests of a sub-agent; None: the entry is a request."""
    if entry.get("type") != "subagent":
        return None
    nested = field(entry, "requests")
    if type(nested) is not list:
        raise Unusable(f"requests is not an array: {show(nested)}")
    return nested


def _own_id(row: int) -> int:
    """Far above the small integers that files have."""
    return (1 << 64) - row


def _end_ns(entries: list[Any], place: int, start_ns: int) -> int:
    """When an answer was complete: after api_time; else, when the pause before the next request began."""
    entry = entries[place]
    if entry.get("api_time") is not None:
        return start_ns + _number_ns(entry, "api_time", 9)
    later = (other for other in entries[place + 1 :] if type(other) is dict and other.get("type") != "subagent")
    following = next(later, None)
    if following is None or following.get("think_time") is None:
        return start_ns
    took_ns = _number_ns(following, "t", 9) - _number_ns(entry, "t", 9) - _number_ns(following, "think_time", 9)
    return start_ns + max(0, took_ns)


# Dynamo request traces: JSON lines by completion, with the events of tools between them.


def dynamo(lines: Iterable[Line], wanted: int | None) -> Opened:
    """wanted: tokens per block; None: as in the trace. Raises Unusable."""
    sizes: list[int] = []
    found = list(_dynamo_rows(lines, sizes, wanted))
    trees = {row.span.session: row.span.parent for row in found if isinstance(row, Found)}
    for row in found:
        if isinstance(row, Found):
            row.tree = _root(trees, row.span.session)
    return Opened(sizes[0] if sizes else None, ordered(found))


def _root(parents: dict[str | None, str | None], session: str | None) -> str | None:
    """The session at the top; where sessions are each other's parents, the one that it comes from."""
    seen = set()
    while session is not None and session not in seen:
        seen.add(session)
        parent = parents.get(session)
        if parent is None:
            return session
        session = parent
    return session


def _dynamo_rows(
    lines: Iterable[Line], sizes: list[int], wanted: int | None
) -> Iterator[Found | Item]:
    row = 0
    for line, content in lines:
        item: Found | Item
        try:
            event = _dynamo_event(content)
            if field(event, "event_type") != "request_end":
                continue  # a tool's event: the pause that it makes shows in the next request
            item = _dynamo_row(event, line, row + 1, sizes, wanted)
        except Unusable as error:
            item = (line, error.reason)
        row += 1
        yield item


def _dynamo_event(content: bytes | str) -> dict[str, Any]:
    if isinstance(content, str):
        raise Unusable(content)
    event = _object(json_object(content), "event")
    schema = event.get("schema", _DYNAMO_SCHEMA)
    if schema != _DYNAMO_SCHEMA:
        raise Unusable(f"schema is not {_DYNAMO_SCHEMA!r}: {show(schema)}")
    return event


def _dynamo_row(
    event: dict[str, Any], line: int | None, row: int, sizes: list[int], wanted: int | None
) -> Found:
    request = _object(event, "request")
    start_ns = _number_ns(request, "request_received_ms", 6)
    took_ns = _number_ns(request, "total_time_ms", 6)
    prompt, output = tokens(request, "input_tokens"), tokens(request, "output_tokens")
    ids = None
    if request.get("replay") is not None:
        replay = _object(request, "replay")
        prompt = tokens(replay, "input_length")
        size = field(replay, "trace_block_size")
        if type(size) is not int or not 1 <= size < 1 << 31:
            raise Unusable(f"trace_block_size is not an integer in 1..2^31-1: {show(size)}")
        if not sizes:
            sizes.append(size)
        if size != sizes[0]:
            raise Unusable(f"trace_block_size is {size}, but {sizes[0]} in rows before")
        hashes = replay.get("input_sequence_hashes")
        if hashes:
            ids = block_ids(hashes, prompt, size, wanted or size)
    context = {} if event.get("agent_context") is None else _object(event, "agent_context")
    session = text(context, "session_id")
    span = Span(row, start_ns, start_ns + took_ns, session, text(context, "parent_session_id"))
    return Found(line, span, prompt, output, ids, None)


def _object(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = field(record, key)
    if type(value) is not dict:
        raise Unusable(f"{key} is not an object: {show(value)}")
    return value


# LLMServingSim: requests, and sessions of requests with a tool's time between them.


def llmservingsim(lines: Iterable[Line]) -> Iterator[Item]:
    """The rows of a file, read as they are wanted.

    Of a session only its start is recorded: later requests stand where they would with answers that take no time.
    """
    row = 0
    for line, content in lines:
        try:
            if isinstance(content, str):
                raise Unusable(content)
            record = json_object(content)
            time_ns = _number_ns(record, "arrival_time_ns", 0)
            if "sub_requests" not in record:
                facts = [_simulated(record, time_ns, None, None, None)]
            else:
                facts = _chain(record, time_ns, row)
        except Unusable as error:
            row += 1
            yield line, error.reason
            continue
        row += len(facts)
        for item in facts:
            yield line, item


def _chain(record: dict[str, Any], time_ns: int, row: int) -> list[RowFacts]:
    """The requests of a session, each after the one before it; the first is the row after `row`."""
    entries = field(record, "sub_requests")
    if type(entries) is not list or not entries or any(type(entry) is not dict for entry in entries):
        raise Unusable(f"sub_requests is not an array of objects: {show(entries)}")
    session = record.get("session_id")
    if type(session) is int:
        session = str(session)
    elif session is not None:
        session = text(record, "session_id")
    name = f"row {row + 1}" if session is None else session
    facts: list[RowFacts] = []
    delay_ns: int | None = None
    for entry in entries:
        time_ns += delay_ns or 0
        facts.append(_simulated(entry, time_ns, name, delay_ns, (row + len(facts),) if facts else ()))
        pause = entry.get("tool_duration_ns")
        delay_ns = 0 if pause is None else _number_ns(entry, "tool_duration_ns", 0)
    return facts


def _simulated(
    record: dict[str, Any], time_ns: int, session: str | None, delay_ns: int | None, after: tuple[int, ...] | None
) -> RowFacts:
    links = None if after is None else (None, None, after)
    return (time_ns, tokens(record, "input_toks"), tokens(record, "output_toks"), None, session, delay_ns, 0.0, 0, None,
            links)
