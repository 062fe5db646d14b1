"""Request traces as one stream of rows: open_traces(paths) reads, checks, reorders, merges.

Nothing is dropped silently and nothing is guessed. A row that cannot be used raises InvalidTrace(file, line, reason)
while iterating; with skip_bad it is counted and the reading goes on. A file that cannot be used raises
InvalidTrace(file, None, reason) from open_traces, with skip_bad too.

Formats (told by content, not by name; `format` forces one)
    mooncake  JSON lines: timestamp (ms), input_length, output_length; optional hash_ids, session_id, delay or delay_ms
              (ms), priority (s), strict_priority, policy_class, request_id, wait_for (request_ids of lines before, the
              one whose answer is continued first). Unknown fields are ignored.
    azure     CSV: TIMESTAMP, ContextTokens, GeneratedTokens, located by header name as in every CSV format.
    burstgpt  CSV: Timestamp (s), Request tokens, Response tokens; Total tokens and Session ID where present.
    vidur     CSV: arrived_at (s), num_prefill_tokens, num_decode_tokens.
    bailian   JSON lines: timestamp (s), input_length, output_length, hash_ids of 16 tokens, chat_id, parent_chat_id.
    dynamo    JSON lines of request traces (v1) in order of completion: of each request_end, when it was received, how
              long it took, its tokens and hashes, its session and that session's parent. Other events are no rows.
    weka      one JSON object, a session: requests with t (s), in, out, hash_ids of full blocks, api_time or the
              think_time of the next one; entries of type `subagent` hold requests whose t counts from the entry's.
    otel      one JSON object with GenAI spans; tokens are estimated where a span does not count them (otel.py).
    llmservingsim  JSON lines: input_toks, output_toks, arrival_time_ns; or arrival_time_ns and sub_requests with
              tool_duration_ns, whose later requests stand where they would if answers took no time.

Sessions
    Rows with the same session_id are one session, sub-agents included; of dynamo, that of the topmost parent. Who waits
    for whom is what mooncake, bailian and llmservingsim say, or else each row continues the one before it of its
    session. In dynamo, weka and otel, where requests have ends, it is what had ended when a request began (links.py).

Time
    Exact to the nanosecond; finer digits round half to even. 0 .. 2^62-1 ns on the file's own clock (azure, dynamo and
    otel: since 1970, UTC where no offset is written). Relative formats count from their own zero. The others are placed
    so that the earliest first row among them stands at that zero. Rows are merged by (time, file, row), and the first
    row of the merged stream has arrival_ns 0.
    A row may stand up to REORDER_ROWS rows late in its file; one that belongs before a row already given out is bad.
    A mooncake row without a timestamp stands its delay after the row before it of its session.
    A first timestamp above 0 and calendar milliseconds in a mooncake file are fine; a negative time is a bad row.

Bad rows
    Not UTF-8; not exactly one JSON object (also: two objects, a comment, NaN, Infinity, a key given twice, an integer
    of thousands of digits, an exponent that no decimal holds); a missing or null required field; a bool, string or
    fraction where an integer is meant, 600.0 included; tokens outside 1..2^53, so that a zero output is one (in
    BurstGPT it marks a failed request); a text field that is empty, no string or holds a lone surrogate; priority not
    finite; a request_id that another row has, a wait_for that names none before it; more or fewer hash_ids than
    input_length needs; an id outside 0..2^64-1; more than 2^20 block names.
    CSV: a wrong number of fields, a quoted field that does not end on its line, `Total tokens` that is no sum, more
    than nine digits of fraction, the 60th second.
    In JSON documents a bad entry is one bad row, named by its place in the document; times and tokens as above.
    Any format: a NUL byte, a carriage return inside the line, a line over 16 MiB that is no whole document, a last line
    that is cut. A CSV file that breaks off inside its very last number looks whole: real ones have no final newline.
Bad files
    Empty; only blank lines; a header alone; UTF-16 or UTF-32; carriage returns alone as line ends; a Git LFS pointer;
    other archives; one JSON array; a weka or otel file that is not one JSON object of 256 MiB at most; a header without
    the needed columns or separated by semicolons; a vidur file without times; a format that is not told; a directory;
    whatever the system refuses, also while reading.
    A gzip stream that is cut or damaged is one bad row without a line: with skip_bad the rows before it count, and so
    do rows that a damaged stream yields until its check fails; they may be garbled.
Accepted
    gzip, by its first bytes; a UTF-8 byte order mark; CRLF; blank lines, also between rows; no final newline; float
    timestamps; hash_ids absent, null or empty (content unknown); repeated ids, and ids that are not prefix-closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from math import gcd
from typing import Any

from kvcore.errors import InvalidTrace

from ._window import Feed, Tally, Window
from .agentic import Opened
from .formats import (
    ABSOLUTE,
    BLOCK_SIZES,
    FORMATS,
    HEADED,
    READ_WHOLE,
    detect,
    is_document,
    plain_kind,
    read_whole,
    row_parser,
)
from .lines import Lines
from .links import NamedRows
from .mooncake import NAMES_MAX, salt_of
from .rows import TraceRow
from .values import RowFacts, Unusable

__all__ = ["FORMATS", "REORDER_ROWS", "TraceRow", "TraceStream", "line_of", "open_traces"]

#: How many rows of a file are held back to put late ones in their place.
REORDER_ROWS = 65_536

_DEFAULT_BLOCK_SIZE = 16
_SKIPPED_ROWS_MAX = 20
#: What detection may look at: enough to see past a few damaged rows.
_HEAD_LINES = 16
_HEAD_BYTES = 1 << 20

#: What makes a row of a line; what has been read whole is a row already.
Parse = Callable[[Any], RowFacts]


class TraceStream:
    """The rows of one or several traces in order of arrival: iterable once, TraceRow by TraceRow.

    block_size: tokens per block of every block_hashes. hashed: some file has a format with block ids.
    formats: of each file, in the order of the paths.
    read: data rows seen so far, skipped ones included. Rows that wait in the reorder window are seen already, so that
        with a limit it can exceed the rows given out.
    skipped: bad rows among them (skip_bad only). skipped_rows: (file, line, reason) of the first 20.
    reordered: rows that came after a later one and were put in their place.
    The counters are final when the iteration has ended.

    Files are closed when the iteration ends, fails or is abandoned, and by close() or the end of a `with` block.
    Raises while iterating: InvalidTrace; RuntimeError if iterated again or after close().
    Memory: up to REORDER_ROWS rows a file, whatever its length; block names exist only for the row in hand. All rows of
        dynamo, weka and otel files, and an entry for each request_id of mooncake and chat_id of bailian ones.
    """

    def __init__(
        self, windows: list[Window], lines: list[Lines], tally: Tally, formats: tuple[str, ...], block_size: int,
        limit: int | None,
    ) -> None:
        self.block_size = block_size
        self.hashed = any(name in BLOCK_SIZES or name in READ_WHOLE - {"llmservingsim"} for name in formats)
        self.formats = formats
        self._tally = tally
        self._windows = windows
        self._lines = lines
        self._limit = limit
        self._spent = False

    @property
    def read(self) -> int:
        """See above."""
        return self._tally.read

    @property
    def skipped(self) -> int:
        """See above."""
        return self._tally.skipped

    @property
    def skipped_rows(self) -> list[tuple[str, int | None, str]]:
        """See above."""
        return self._tally.skipped_rows

    @property
    def reordered(self) -> int:
        """See above."""
        return self._tally.reordered

    def __iter__(self) -> Iterator[TraceRow]:
        return self._rows(self.feed())

    def __enter__(self) -> TraceStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def feed(self) -> Feed:
        """The rows for a reader in C: the stream is then iterated."""
        if self._spent:
            raise RuntimeError("a TraceStream is read once: open the traces again")
        self._spent = True
        return Feed(self._windows, self._limit, [lines.close for lines in self._lines])

    def close(self) -> None:
        """Close the files; harmless when repeated."""
        self._spent = True
        for lines in self._lines:
            lines.close()

    def _rows(self, feed: Feed) -> Iterator[TraceRow]:
        try:
            yield from feed
        finally:
            self.close()


def open_traces(
    paths: Iterable[str | os.PathLike[str]],
    *,
    format: str | None = None,
    trace_block_size: int | None = None,
    block_size: int | None = None,
    skip_bad: bool = False,
    limit: int | None = None,
) -> TraceStream:
    """Open trace files, tell their formats and return the merged stream of their rows.

    paths: one or more files, gzip or plain; the same file twice is two traces.
    format: one of FORMATS, for all files; None: each is told by its content.
    trace_block_size: tokens per hash_ids block; None: as the file says, or 512 in mooncake and 16 in bailian files.
    block_size: tokens per block of the names wanted. It must divide trace_block_size, whose blocks are then split.
        None: as in the trace, the largest that divides all of several, or 16 if no file has a format with block ids.
    skip_bad: count bad rows and go on, instead of stopping at the first.
    limit: stop after so many rows of the merged stream; None: all.
    Raises: InvalidTrace with line None for a file that cannot be used, or that block_size does not fit; ValueError or
        TypeError for arguments that are wrong whatever the files hold.
    Cost: reads the first lines of each file, dynamo, weka and otel files whole, and keeps each open until the stream is
        closed.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError("paths is a sequence of paths, not one path")
    files = [os.fsdecode(path) for path in paths]
    if not files:
        raise ValueError("no trace file is given")
    if format is not None and format not in FORMATS:
        raise ValueError(f"unknown trace format {format!r}; known: {', '.join(FORMATS)}")
    for what, size in (("trace_block_size", trace_block_size), ("block_size", block_size)):
        if size is not None and not 1 <= size < 1 << 31:
            raise ValueError(f"{what} must be 1..2^31-1, not {size!r}")
    if limit is not None and limit < 0:
        raise ValueError(f"limit must be at least 0, not {limit!r}")

    opened: list[Lines] = []
    try:
        heads = []
        for file in files:
            lines = Lines(file, is_document)
            opened.append(lines)
            heads.append(_head(lines, format))
        formats = tuple(name for name, _ in heads)
        read = [
            _read_whole(lines, name, trace_block_size, block_size) for lines, name in zip(opened, formats, strict=True)]
        sizes = {
            file: size for file, found in zip(files, read, strict=True) if (size := found.trace_block_size) is not None}
        if block_size is None:
            block_size = gcd(*sizes.values()) or _DEFAULT_BLOCK_SIZE
        for file, size in sizes.items():
            if size % block_size:
                raise InvalidTrace(file, None, f"block size {block_size} does not divide its blocks of {size} tokens")
        windows = []
        tally = Tally(skip_bad, _SKIPPED_ROWS_MAX)
        for index, (lines, (name, first), found) in enumerate(zip(opened, heads, read, strict=True)):
            size = found.trace_block_size or block_size
            whole = name in READ_WHOLE
            parse = _row_itself if whole else _parser(lines, name, first, size, block_size)
            windows.append(Window(
                lines, found.items if whole else None, parse, NamedRows().resolved, tally, file_index=index,
                absolute=name in ABSOLUTE, plain=plain_kind(name, first), salt=salt_of(index), trace_block_size=size,
                block_size=block_size, names_max=NAMES_MAX, rows_max=REORDER_ROWS))
    except BaseException:
        for lines in opened:
            lines.close()
        raise
    return TraceStream(windows, opened, tally, formats, block_size, limit)


def line_of(path: str, row: int) -> int | None:
    """The line of a row of a file that has been read: for an error text, by reading it once more.

    None if that cannot be, as of a pipe, or if the format is none of one row a line.
    """
    if not os.path.isfile(path):
        return None
    try:
        with closing(Lines(path, is_document)) as lines:
            name, _ = _head(lines, None)
            found = None if name in READ_WHOLE else next(islice(lines, row - 1 + (name in HEADED), None), None)
    except InvalidTrace:
        return None
    return None if found is None else found[0]


def _head(lines: Lines, format: str | None) -> tuple[str, bytes | str]:
    """Format of a file, and its first non-blank line or why that one cannot be read."""
    head = lines.peek(_HEAD_LINES, _HEAD_BYTES)
    if not head:
        raise InvalidTrace(lines.file, None, "no data: only blank lines")
    if head[0][0] is None:
        raise InvalidTrace(lines.file, None, str(head[0][1]))
    number, first = head[0]
    if format is None:
        try:
            format = detect([content for _, content in head if isinstance(content, bytes)])
        except Unusable as error:
            unread = f"; line {number}: {first}" if isinstance(first, str) else ""
            raise InvalidTrace(lines.file, None, error.reason + unread) from None
    return format, first


def _read_whole(lines: Lines, name: str, trace_block_size: int | None, block_size: int | None) -> Opened:
    """What is known of a file before its rows are read: of a format that is read whole, they are."""
    if name not in READ_WHOLE:
        usual = BLOCK_SIZES.get(name)
        return Opened(usual if usual is None or trace_block_size is None else trace_block_size, ())
    try:
        found = read_whole(name, lines, block_size)
    except Unusable as error:
        raise InvalidTrace(lines.file, None, error.reason) from None
    if None not in (trace_block_size, found.trace_block_size) and trace_block_size != found.trace_block_size:
        reason = f"its blocks are of {found.trace_block_size} tokens, not of {trace_block_size}"
        raise InvalidTrace(lines.file, None, reason)
    return found


def _row_itself(item: RowFacts) -> RowFacts:
    return item


def _parser(lines: Lines, name: str, first: bytes | str, trace_block_size: int, block_size: int) -> Parse:
    """The parser of an opened file, whose header, if it has one, is taken off its lines."""
    try:
        parse, header = row_parser(name, first, trace_block_size, block_size)
    except Unusable as error:
        raise InvalidTrace(lines.file, None, error.reason) from None
    if header:
        lines.skip_first()
        if not lines.peek(1, 1):
            raise InvalidTrace(lines.file, None, "no data: a header alone")
    return parse
