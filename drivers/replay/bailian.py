"""The Bailian (Qwen) format: JSON lines whose requests name the request of the turn before."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from .mooncake import block_ids, field, json_object, tokens
from .values import Links, RowFacts, RowParser, Unusable, scaled_ns, show

__all__ = ["bailian_parser"]


def bailian_parser(trace_block_size: int, block_size: int) -> RowParser:
    """A parser that remembers the chats of its file: an entry for each."""
    roots: dict[str, str] = {}  # chat_id -> that of the first turn

    def parse(line: bytes) -> RowFacts:
        record = json_object(line)
        value = field(record, "timestamp")
        if type(value) is not int and type(value) is not Decimal:
            raise Unusable(f"timestamp is not a number of seconds: {show(value)}")
        time_ns = scaled_ns(value, 9, "timestamp")
        prompt, output = tokens(record, "input_length"), tokens(record, "output_length")
        ids = record.get("hash_ids")
        named = None if ids is None or ids == [] else block_ids(ids, prompt, trace_block_size, block_size)
        chat, parent = _chat(record, "chat_id"), _chat(record, "parent_chat_id")
        # Published files are samples: a turn whose first turns are missing begins a session.
        root = roots.get(parent, chat)
        links: Links = (chat, (parent,) if parent in roots else (), None)
        roots[chat] = root
        return (time_ns, prompt, output, named, root, None, 0.0, 0, None, links)

    return parse


def _chat(record: dict[str, Any], key: str) -> str:
    value = field(record, key)
    if type(value) is not int and (type(value) is not str or not value):
        raise Unusable(f"{key} is neither an integer nor a text: {show(value)}")
    return str(value)
