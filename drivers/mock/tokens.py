"""The mock's language: a token is four bytes of text, so counting, encoding and decoding need no vocabulary file.

A token's id is its four bytes as a little-endian number. Equal prefixes of a text have equal tokens, as with a real
tokenizer; every text comes back from its tokens, save for NUL bytes at its end, which fill up the last token.

The chat template pads what stands before and after each content to whole tokens. So a content has the same tokens in
every conversation, and an answer that comes back in the next turn has those with which it was written: its blocks are
found in the prefix cache, as they would be with a real template.

Answers are words of four letters. They depend on the prompt alone: all mock workers answer alike, like replicas that
decode greedily.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

TOKEN_BYTES = 4
#: Codes of `array` for numbers of four bytes; "I" has four on every platform that CPython knows.
_CODE = "I"
VOCABULARY = 1 << 32

#: A blank and three letters. No letter needs an escape in JSON: a chunk of a stream is put together from bytes.
WORDS = tuple(f" {first}{second}{third}".encode() for first in "bdfgklmn" for second in "aeio" for third in "lmnprstv")
_WORD_IDS = tuple(int.from_bytes(word, "little") for word in WORDS)

#: How far the end of an answer may lie behind the least length of one.
ANSWER_SPREAD = 128


class BadPrompt(ValueError):
    """A prompt that is neither text nor token ids."""


def encode(text: str) -> array[int]:
    """Tokens of a text; surrogates that stand alone are kept."""
    return _from_bytes(text.encode("utf-8", "surrogatepass"))


def decode(tokens: Iterable[int]) -> str:
    """Text of tokens. Bytes that are no UTF-8, as in a token cut out of the middle, are shown as U+FFFD."""
    return b"".join(token.to_bytes(TOKEN_BYTES, "little") for token in tokens).rstrip(b"\0").decode("utf-8", "replace")


def check_ids(ids: Sequence[Any]) -> array[int]:
    """Token ids from a request. Raises: BadPrompt."""
    if not ids:
        raise BadPrompt("a prompt needs at least one token")
    try:
        return array(_CODE, ids)
    except (TypeError, OverflowError) as error:
        raise BadPrompt(f"token ids must be whole numbers from 0 to {VOCABULARY - 1}") from error


def render(messages: Iterable[tuple[str, str]], generation_prompt: bool = True) -> array[int]:
    """Tokens of a conversation: (role, content) in order, and the opening of the answer."""
    parts = []
    for role, content in messages:
        parts.append(_opening(role))
        parts.append(_pad(content.encode("utf-8", "surrogatepass"), b" "))
        parts.append(b"<|end|>\n")
    if generation_prompt:
        parts.append(_opening("assistant"))
    return _from_bytes(b"".join(parts))


def answer_length(prompt: array[int], least: int) -> int:
    """At which length an answer would end by itself: least .. least + 127 tokens, by the prompt."""
    return least + (_seed(prompt) >> 8) % ANSWER_SPREAD


class Answer:
    """The words that follow a prompt, one a call."""

    __slots__ = ("_state",)

    def __init__(self, prompt: array[int]) -> None:
        self._state = _seed(prompt)

    def next(self) -> tuple[int, bytes]:
        """Id and bytes of the next token."""
        # A linear congruential generator (Knuth's MMIX constants need 64 bits; these are Numerical Recipes').
        self._state = state = (self._state * 1_664_525 + 1_013_904_223) & 0xFFFF_FFFF
        word = state >> 24
        return _WORD_IDS[word], WORDS[word]


def _seed(prompt: array[int]) -> int:
    # Near the end prompts differ; all of a long one need not be read for each request.
    return crc32(prompt[-64:], len(prompt))


def _opening(role: str) -> bytes:
    return _pad(f"<|{role}|>\n".encode("utf-8", "surrogatepass"), b"\n")


def _pad(piece: bytes, filler: bytes) -> bytes:
    return piece + filler * (-len(piece) % TOKEN_BYTES)


def _from_bytes(data: bytes) -> array[int]:
    tokens = array(_CODE)
    tokens.frombytes(_pad(data, b"\0"))
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
