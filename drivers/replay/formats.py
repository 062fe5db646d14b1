"""The trace formats: which one a file is, and one parser of rows for each; those of agents have readers (agentic.py).

A parser takes the bytes of one data line and returns RowFacts or raises Unusable; it holds no state beyond the header's
column positions and, for bailian, the chats so far. What each format makes of odd input stands in the docstring of
traces.py.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence

from ._scan import PLAIN
from .agentic import Opened, dynamo, llmservingsim, weka
from .bailian import bailian_parser
from .lines import LINE_MAX, Lines
from .mooncake import mooncake_parser
from .otel import otel
from .values import (
    RowFacts,
    RowParser,
    Unusable,
    positive_tokens_text,
    seconds_text_ns,
    show,
    tokens_text,
    wall_text_ns,
)

FORMATS: tuple[str, ...] = (
    "mooncake", "azure", "burstgpt", "vidur", "bailian", "dynamo", "weka", "otel", "llmservingsim")
#: Formats whose times are points of the calendar; the others count from a zero of their own.
ABSOLUTE = frozenset({"azure", "dynamo", "otel"})
#: Formats whose rows name the blocks of their prompts but do not say how large these are: what is usual.
BLOCK_SIZES = {"mooncake": 512, "bailian": 16}
#: Formats that are read by a reader of their own, not line by line.
READ_WHOLE = frozenset({"dynamo", "weka", "otel", "llmservingsim"})
_NAMES = ", ".join(FORMATS)
#: The columns a CSV format needs, in the order its parser wants them; matched without regard to case.
_COLUMNS = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
    "vidur": ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
}
#: Formats whose first line is a header.
HEADED = frozenset(_COLUMNS)
_WHOLE_ARRAY = re.compile(rb"\[\s*(?:[\[{\]]|$)")
_JSON_KEY = re.compile(rb'"([A-Za-z_]+)"\s*:')
#: Keys that mark a format of JSON. A Bailian row would pass for mooncake, with seconds read as milliseconds.
_KEYS = {
    "parent_chat_id": "bailian", "input_length": "mooncake", "output_length": "mooncake", "event": "dynamo",
    "hash_id_scope": "weka", "spans": "otel", "input_toks": "llmservingsim", "sub_requests": "llmservingsim",
}
#: Keys that mark JSON lines of another kind.
_FOREIGN_KEYS = {
    "query_type": "a Tair KVCache optimizer trace, whose requests have no output",
    "token_ids": "a trace of Tair KVCache's token ids, whose requests have no output",
}
#: Formats of one JSON object, which may stand on many lines.
_DOCUMENTS = frozenset({"weka", "otel"})


def detect(lines: Sequence[bytes]) -> str:
    """The format of a file by its first non-blank lines. Raises Unusable, saying what was seen."""
    if not lines:
        raise Unusable(f"cannot tell the format ({_NAMES}): no readable line at the start")
    _refuse_array(lines[0])
    if not lines[0].startswith(b"{"):
        text = lines[0].decode("utf-8", "replace")
        header = _header_fields(text)
        for name in _COLUMNS:
            if _missing(name, header) == []:
                return name
        _refuse_header(text, header)
    if lines[0] == b"{":
        known = _marked({key.decode() for line in lines for key in _JSON_KEY.findall(line)})
        if known in _DOCUMENTS:
            return known
        raise Unusable("one JSON document over several lines, not one object a line")
    for line in lines:
        if line.startswith(b"{"):
            keys = _json_keys(line)
            if (known := _marked(keys)) is not None:
                return known
            for key, kind in _FOREIGN_KEYS.items():
                if key in keys:
                    raise Unusable(f"{kind}; the formats read here: {_NAMES}")
    seen = lines[0][:60].decode("utf-8", "replace")
    raise Unusable(f"cannot tell the format ({_NAMES}): the file starts with {seen!r}")


def row_parser(name: str, first: bytes | str, trace_block_size: int, block_size: int) -> tuple[RowParser, bool]:
    """The parser of a file of the format `name`, and whether its first line is a header rather than a row.

    first: the first non-blank line, or why it cannot be read. Raises Unusable if it cannot begin such a file.
    """
    if name == "mooncake":
        if isinstance(first, bytes):
            _refuse_array(first)
        return mooncake_parser(trace_block_size, block_size), False
    if name == "bailian":
        return bailian_parser(trace_block_size, block_size), False
    if isinstance(first, str):
        raise Unusable(f"the header cannot be read: {first}")
    text = first.decode("utf-8", "replace")
    header = _header_fields(text)
    missing = _missing(name, header)
    if missing:
        _refuse_header(text, header)
        raise Unusable(f"no column {' and '.join(missing)} in the header of this {name} file")
    folded = [field.casefold() for field in header]
    for column in _COLUMNS[name]:
        if folded.count(column.casefold()) > 1:
            raise Unusable(f"column {column} stands twice in the header")
    return {"azure": _azure, "burstgpt": _burstgpt, "vidur": _vidur}[name](folded), True


def plain_kind(name: str, first: bytes | str) -> int:
    """What plain rows of a file are, for _scan; 0: it has none. first: its first non-blank line.

    Of CSV files those whose columns are the ones that the parser wants, in its order, and no others.
    """
    if name in _COLUMNS:
        header = _header_fields(first.decode("utf-8", "replace")) if isinstance(first, bytes) else []
        if [field.casefold() for field in header] != [column.casefold() for column in _COLUMNS[name]]:
            return 0
    return PLAIN.get(name, 0)


def read_whole(name: str, lines: Lines, wanted: int | None) -> Opened:
    """The rows of a file of one of READ_WHOLE. wanted: tokens per block. Raises Unusable."""
    if name == "llmservingsim":
        return Opened(None, llmservingsim(lines))
    return {"dynamo": dynamo, "weka": weka}[name](lines, wanted) if name != "otel" else otel(lines)


def is_document(start: bytes) -> bool:
    """Whether a file whose first line begins so is one JSON object, which may be long."""
    return _marked({key.decode() for key in _JSON_KEY.findall(start)}) in _DOCUMENTS


def _marked(keys: set[str]) -> str | None:
    return next((name for key, name in _KEYS.items() if key in keys), None)


def _refuse_array(first: bytes) -> None:
    if _WHOLE_ARRAY.match(first):
        raise Unusable("one JSON array: convert it to one object a line")


def _json_keys(line: bytes) -> set[str]:
    """Top-level keys of a JSON object, or every key in sight if it is damaged or long."""
    try:
        record = json.loads(line.decode("utf-8", "replace")) if len(line) <= LINE_MAX else None
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict):
        return set(record)
    return {key.decode() for key in _JSON_KEY.findall(line[: 1 << 16])}


# CSV: the columns are located by the names in the header.


def _fields(text: str) -> list[str]:
    """The fields of one CSV line. A quoted field must end on its line: a line number then is a row's address."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise Unusable(f"CSV quoting, which may not run over a line end: {error}") from None


def _header_fields(text: str) -> list[str]:
    try:
        return [field.strip() for field in _fields(text)]
    except Unusable:
        return []


def _missing(name: str, header: Sequence[str]) -> list[str]:
    present = {field.casefold() for field in header}
    return [column for column in _COLUMNS[name] if column.casefold() not in present]


def _refuse_header(text: str, header: Sequence[str]) -> None:
    """Raise Unusable for the two kinds of header that are nearly right."""
    if _missing("vidur", header) == ["arrived_at"]:
        raise Unusable("a vidur file of lengths without times (no column arrived_at): it cannot be replayed")
    for separator in (";", "\t", "|"):
        split = [field.strip() for field in text.split(separator)]
        if any(_missing(name, split) == [] for name in _COLUMNS):
            raise Unusable(f"the columns are separated by {separator!r}, not by commas")


def _csv_line(line: bytes, width: int) -> list[str]:
    try:
        fields = _fields(line.decode())
    except UnicodeDecodeError as error:
        raise Unusable(f"not UTF-8 at byte {error.start + 1} of the line") from None
    if len(fields) != width:
        raise Unusable(f"{len(fields)} fields, but the header has {width}")
    return fields


def _positions(name: str, header: list[str]) -> list[int]:
    return [header.index(column.casefold()) for column in _COLUMNS[name]]


def _azure(header: list[str]) -> RowParser:
    width = len(header)
    when, prompt, output = _positions("azure", header)

    def parse(line: bytes) -> RowFacts:
        fields = _csv_line(line, width)
        return (
            wall_text_ns(fields[when], "TIMESTAMP"),
            positive_tokens_text(fields[prompt], "ContextTokens"),
            positive_tokens_text(fields[output], "GeneratedTokens"),
            None, None, None, 0.0, 0, None, None,
        )

    return parse


def _vidur(header: list[str]) -> RowParser:
    width = len(header)
    when, prompt, output = _positions("vidur", header)

    def parse(line: bytes) -> RowFacts:
        fields = _csv_line(line, width)
        return (
            seconds_text_ns(fields[when], "arrived_at"),
            positive_tokens_text(fields[prompt], "num_prefill_tokens"),
            positive_tokens_text(fields[output], "num_decode_tokens"),
            None, None, None, 0.0, 0, None, None,
        )

    return parse


def _burstgpt(header: list[str]) -> RowParser:
    width = len(header)
    when, prompt, output = _positions("burstgpt", header)
    total = header.index("total tokens") if "total tokens" in header else None
    session = header.index("session id") if "session id" in header else None

    def parse(line: bytes) -> RowFacts:
        fields = _csv_line(line, width)
        time_ns = seconds_text_ns(fields[when], "Timestamp")
        prompt_tokens = positive_tokens_text(fields[prompt], "Request tokens")
        output_tokens = tokens_text(fields[output], "Response tokens")
        if output_tokens == 0:
            raise Unusable("Response tokens is 0: a failed request")
        # The data set defines the total as the sum, so that it tells a row whose fields have slipped.
        if total is not None and tokens_text(fields[total], "Total tokens") != prompt_tokens + output_tokens:
            raise Unusable(f"Total tokens is not {prompt_tokens} + {output_tokens}: {show(fields[total])}")
        session_id = None if session is None else fields[session].strip()
        # `nan` is how pandas writes an absent value.
        if session_id is not None and session_id.casefold() in ("", "nan"):
            session_id = None
        return (time_ns, prompt_tokens, output_tokens, None, session_id, None, 0.0, 0, None, None)

    return parse
