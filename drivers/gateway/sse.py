"""Scanner of an answer as it passes through: first token, tokens so far, finish reasons, usage. Sans-IO.

Events are forwarded as the bytes that came, whole: what is not yet complete is held back, so that an error can be put
behind what has been sent without breaking an event in two. Most parts cost a count and two searches; JSON is decoded
for the first events, for those with a finish reason and for usage. A key in quotes cannot be faked by generated text:
inside of a JSON string its quotes are escaped.

A token is counted per event, which is what engines send; where `usage` says how many there were, that counts.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

#: A longer event is forwarded unread.
EVENT_MAX = 2**20
#: Finish reasons by which an engine says that it has given up.
FAILURES = frozenset({"abort", "error", "cancel", "cancelled"})

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"').search
_USAGE = re.compile(rb'"usage"\s*:\s*\{').search
_DATA = b"data:"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Details(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: Count | None = None


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What an engine says it has done."""

    prompt_tokens: Count = 0
    completion_tokens: Count | None = 0
    prompt_tokens_details: _Details | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer."""
        return self.completion_tokens or 0

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in the engine's cache, where it says so."""
        details = self.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0

    @property
    def context_tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    finish_reason: str | None = None
    text: str | None = None
    delta: dict[str, Any] | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: Usage | None = None


class _Ends(msgspec.Struct, frozen=True):
    finish_reason: str | None = None


class _Plain(msgspec.Struct, frozen=True):
    choices: list[_Ends] = []
    usage: Usage | None = None


_CHUNK = msgspec.json.Decoder(_Chunk).decode
_PLAIN = msgspec.json.Decoder(_Plain).decode


class Scanner:
    """What is known of one stream. choices: how many answers it has, each with a finish reason of its own.

    started: there has been output. tokens: of output, so far. usage: the last one told. failed: the engine has given
    up. tail: bytes of an event that is not complete.
    """

    __slots__ = ("_choices", "_ended", "failed", "started", "tail", "tokens", "usage")

    def __init__(self, choices: int = 1) -> None:
        self._choices = max(1, choices)
        self._ended: set[int] = set()
        self.started = self.failed = False
        self.tokens = 0
        self.usage: Usage | None = None
        self.tail = b""

    @property
    def is_finished(self) -> bool:
        """Every answer has ended, and well."""
        return len(self._ended) >= self._choices and not self.failed

    def feed(self, part: bytes) -> bytes:
        """Take what has come; what of it may be forwarded now."""
        data = self.tail + part if self.tail else part
        if data.endswith(b"\n\n"):
            self.tail = b""
        else:
            end = max(_behind(data, b"\n\n"), _behind(data, b"\n\r\n"))
            data, self.tail = data[:end], data[end:]
            if len(self.tail) > EVENT_MAX:
                data, self.tail = data + self.tail, b""
        if data:
            self._scan(data)
        return data

    def _scan(self, data: bytes) -> None:
        ends, tells = _FINISH(data) is not None, _USAGE(data) is not None
        lines = _lines(data) if ends or tells or not self.started else []
        if self.started:
            self.tokens += data.count(b"\ndata: {") + data.count(b"\ndata:{") + data.startswith((b"data: {", b"data:{"))
        else:
            self._begin(lines)
        if ends:
            self._finish(lines)
        if tells:
            for line in lines:
                if _USAGE(line) is not None:
                    chunk = _decode(line)
                    if chunk is not None and chunk.usage is not None:
                        self.usage = chunk.usage
                        self.tokens = chunk.usage.output_tokens

    def _begin(self, lines: list[bytes]) -> None:
        for line in lines:
            if not self.started:
                chunk = _decode(line)
                self.started = chunk is not None and any(_says_something(item) for item in chunk.choices)
            self.tokens += self.started and line.lstrip().startswith(b"{")

    def _finish(self, lines: list[bytes]) -> None:
        self.started = True
        for line in lines:
            if _FINISH(line) is not None:
                chunk = _decode(line)
                for choice in () if chunk is None else chunk.choices:
                    if choice.finish_reason is not None:
                        self._ended.add(choice.index)
                        self.failed |= choice.finish_reason in FAILURES


def read_plain(body: bytes) -> tuple[Usage | None, bool]:
    """Of an answer in one piece: its usage, and whether it has ended well. Raises ValueError for what is no JSON."""
    try:
        answer = _PLAIN(body)
    except msgspec.ValidationError:
        return None, False
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError("no JSON") from error
    return answer.usage, bool(answer.choices) and not any(item.finish_reason in FAILURES for item in answer.choices)


def _behind(data: bytes, mark: bytes) -> int:
    found = data.rfind(mark)
    return 0 if found < 0 else found + len(mark)


def _lines(data: bytes) -> list[bytes]:
    return [line[len(_DATA):] for line in data.splitlines() if line.startswith(_DATA)]


def _decode(line: bytes) -> _Chunk | None:
    try:
        return _CHUNK(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _says_something(choice: _Choice) -> bool:
    """Whether there is more in it than the role, which some servers send before they compute anything."""
    if choice.text or choice.finish_reason is not None:
        return True
    return choice.delta is not None and any(value and name != "role" for name, value in choice.delta.items())
