"""OpenTelemetry GenAI spans in a JSON document: requests with the text of their messages instead of counts of tokens.

Counts stand in gen_ai.usage.* where a span has them. Where it has not, they are estimated from the text: a token for
every four bytes of UTF-8, begun ones included, which is what common tokenizers come to in English. Only estimated
prompts name their blocks, by the text up to the end of each, so that prompts share what their texts share.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from .agentic import Found, Item, Opened, document, ordered
from .links import Span
from .mooncake import NAMES_MAX, field, text
from .values import TOKENS_MAX, Unusable, show, wall_text_ns

__all__ = ["otel"]

_TOKEN_BYTES = 4
_BLOCK = 16
_SESSION_KEYS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
_PROMPT_KEYS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_KEYS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_PROMPT_TEXTS = ("gen_ai.input.messages",)
_OUTPUT_TEXTS = ("gen_ai.output.messages", "gen_ai.output.text")
#: Operations that are no requests to a model.
_OTHER_OPERATIONS = frozenset({"execute_tool", "invoke_agent", "create_agent", "embeddings"})


def otel(lines: Iterable[tuple[int | None, bytes | str]]) -> Opened:
    """A file whose spans of one session are one agent's. Raises Unusable."""
    whole = document(lines)
    spans = field(whole, "spans")
    if type(spans) is not list or not spans:
        raise Unusable(f"spans is not an array of spans: {show(spans)}")
    session = text(whole, "trace_id") or "trace"
    return Opened(_BLOCK, ordered(_rows(spans, session)))


def _rows(spans: list[Any], session: str) -> Iterator[Found | Item]:
    row = 0
    for place, span in enumerate(spans):
        item: Found | Item
        try:
            if type(span) is not dict:
                raise Unusable(f"not a JSON object: {show(span)}")
            attributes = field(span, "attributes")
            if type(attributes) is not dict:
                raise Unusable(f"attributes is not an object: {show(attributes)}")
            if attributes.get("gen_ai.operation.name") in _OTHER_OPERATIONS:
                continue
            item = _row(span, attributes, row + 1, session)
        except Unusable as error:
            item = (None, f"spans[{place}]: {error.reason}")
        row += 1
        yield item


def _row(span: dict[str, Any], attributes: dict[str, Any], row: int, session: str) -> Found:
    start_ns, end_ns = (_time_ns(span, key) for key in ("start_time", "end_time"))
    if end_ns < start_ns:
        raise Unusable("end_time is before start_time")
    named = next((name for key in _SESSION_KEYS if (name := text(attributes, key)) is not None), session)
    prompt, ids = _count(attributes, _PROMPT_KEYS), None
    if prompt is None:
        content = _content(attributes, _PROMPT_TEXTS)
        prompt, ids = _estimate(content), _ids(content)
    output = _count(attributes, _OUTPUT_KEYS)
    if output is None:
        output = _estimate(_content(attributes, _OUTPUT_TEXTS))
    return Found(None, Span(row, start_ns, end_ns, named), prompt, output, ids, named)


def _time_ns(span: dict[str, Any], key: str) -> int:
    value = text(span, key)
    if value is None:
        raise Unusable(f"{key} is missing")
    return wall_text_ns(value, key)


def _count(attributes: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    """What the span says itself."""
    for key in keys:
        value = attributes.get(key)
        if value is not None:
            if type(value) is not int or not 1 <= value <= TOKENS_MAX:
                raise Unusable(f"{key} is not an integer in 1..2^53: {show(value)}")
            return value
    return None


def _content(attributes: dict[str, Any], keys: tuple[str, ...]) -> bytes:
    """Text of the messages, each after its role."""
    for key in keys:
        value = text(attributes, key)
        if value is None:
            continue
        if not key.endswith(".messages"):
            return value.encode()
        try:
            messages = json.loads(value)
        except (ValueError, RecursionError):
            raise Unusable(f"{key} is not JSON: {show(value)}") from None
        if type(messages) is not list or any(type(message) is not dict for message in messages):
            raise Unusable(f"{key} is not an array of messages: {show(messages)}")
        return "".join(f"{message.get('role', '')}\n{_said(message)}\n" for message in messages).encode(
            "utf-8", "surrogatepass")
    raise Unusable(f"neither counts of tokens nor {' or '.join(keys)}")


def _said(message: dict[str, Any]) -> str:
    content = message.get("content", message.get("parts", ""))
    return content if type(content) is str else json.dumps(content, sort_keys=True, ensure_ascii=False)


def _estimate(content: bytes) -> int:
    return max(1, -(-len(content) // _TOKEN_BYTES))


def _ids(content: bytes) -> array[int]:
    """Of each block of tokens, as estimated, an id of its text; what is before it the name of the block takes in."""
    size = _BLOCK * _TOKEN_BYTES
    if len(content) > NAMES_MAX * size:
        raise Unusable(f"a prompt of more than {NAMES_MAX} blocks of {_BLOCK} tokens")
    return array("Q", (
        int.from_bytes(hashlib.blake2b(content[place : place + size], digest_size=8).digest(), "little")
        for place in range(0, max(1, len(content)), size)))
