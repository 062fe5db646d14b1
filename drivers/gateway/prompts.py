"""How long a prompt is, and what its blocks are called: from its token ids where they can be had, else an estimate.

The best source that there is, and its name on every response:

    exact       token ids in the request, or a local tokenizer.json (for chats also its template: chat_template.py)
    engine      the engine's own /tokenize
    estimate    bytes of the text, by a ratio that learns from the `usage` of answers

Names of blocks from token ids are those that engines' KV events lead to (drivers/kvevents). Under an estimate, pieces
of the text stand for blocks: no engine event ever matches them, but two prompts that begin alike do, so what was
dispatched before predicts where a prompt is cached.

Never here: HTTP; which worker is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import trio
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest

from kvcore.hashing import sequence_hashes

from ..kvevents.names import BlockNames
from . import chat_template
from .bodies import Body, Token, json_of, prompts_of
from .config import PromptSource, TokenizerSettings
from .refusals import Refused, Trouble

#: Posts a body to /tokenize of a worker, and brings what it answers; None: nobody has.
Ask = Callable[[bytes], Awaitable[bytes | None]]

#: Texts above this are tokenised in a thread: some two milliseconds of work that others need not wait for.
THREAD_CHARS_MIN = 16_384
#: How long nobody is asked who has just not answered.
SILENCE_S = 10.0
#: What a picture, a sound or a file counts in an estimate, and the frame around each message.
PART_TOKENS, MESSAGE_TOKENS = 1024, 4
#: How much of what has been learnt is remembered: tokens, halved when reached.
LEARNT_TOKENS_MAX = 2**22
#: What the ratio of the configuration weighs against what is learnt.
PRIOR_TOKENS = 2048
#: Keeps names of pieces of text apart from names of blocks of tokens.
_PIECES = "kvcore: pieces of text"


class Source(Enum):
    """Where a length comes from."""

    EXACT = "exact"
    ENGINE = "engine"
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True)
class Measured:
    """A prompt. tokens: >= 1. hashes: names of its complete blocks. text_bytes: what an estimate was made from."""

    tokens: int
    hashes: tuple[int, ...]
    source: Source
    text_bytes: int = 0

    @property
    def exact(self) -> bool:
        """Whether the tokens have been counted, by us or the engine."""
        return self.source is not Source.ESTIMATE


class _Part(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None


class _Message(msgspec.Struct, frozen=True, gc=False):
    role: str | None = None
    content: str | list[_Part | str] | None = None


class _Tokenized(msgspec.Struct, frozen=True):
    count: int | None = None
    tokens: list[Token] = []


_MESSAGES = msgspec.json.Decoder(list[_Message])
_TOKENIZED = msgspec.json.Decoder(_Tokenized)


class PromptMeter:
    """Measures prompts. names: how token ids become block names. ask: see Ask; None: engines are not asked."""

    def __init__(self, settings: TokenizerSettings, names: BlockNames, ask: Ask | None = None) -> None:
        self._names = names
        self._tokenizer, self._template = None, None
        if settings.file is not None and settings.source in (PromptSource.AUTO, PromptSource.LOCAL):
            self._tokenizer, self._template = _load(settings.file)
        self._ask = ask if settings.source in (PromptSource.AUTO, PromptSource.ENGINE) else None
        self._silent_until_s = {True: 0.0, False: 0.0}  # by whether it is a chat: some engines know only texts
        self._seen_tokens = PRIOR_TOKENS
        self._seen_bytes = PRIOR_TOKENS * settings.bytes_per_token
        self._piece_bytes = max(1, round(names.block_size * settings.bytes_per_token))

    async def measure(self, body: Body, *, chat: bool) -> Measured:
        """The prompt of a request. Raises: Refused(MALFORMED) for a body without one."""
        return await (self._chat(body) if chat else self._completion(body))

    def learn(self, measured: Measured, prompt_tokens: int) -> None:
        """What the engine has counted in the end: the next estimates are better."""
        if measured.source is Source.ESTIMATE and measured.text_bytes and 0 < prompt_tokens <= measured.text_bytes * 4:
            self._seen_tokens += prompt_tokens
            self._seen_bytes += measured.text_bytes
            if self._seen_tokens > LEARNT_TOKENS_MAX:
                self._seen_tokens //= 2
                self._seen_bytes /= 2

    # Text completions.

    async def _completion(self, body: Body) -> Measured:
        prompts = prompts_of(body)
        specials = body.add_special_tokens is not False
        counted: list[list[int] | str] = []
        for prompt in prompts:
            ids = await self._encode(prompt, specials) if isinstance(prompt, str) else prompt
            counted.append(prompt if ids is None else ids)
        if len(counted) == 1 and isinstance(text := counted[0], str):
            question = {"prompt": text, "content": text, "add_special_tokens": specials, "add_special": specials}
            told = await self._of_engine(body, question, chat=False)
            return self._estimate(body, text) if told is None else self._counted(body, told, Source.ENGINE)
        if len(counted) == 1 and not isinstance(only := counted[0], str):
            return self._counted(body, only, Source.EXACT)
        # Several prompts in one request: their sum, and no names, for no prompt has them all in front of it.
        texts = [item for item in counted if isinstance(item, str)]
        tokens = sum([len(item) for item in counted if not isinstance(item, str)])
        text_bytes = sum([len(item.encode("utf-8", "surrogatepass")) for item in texts])
        tokens += self._tokens_of(text_bytes) if texts else 0
        return Measured(max(1, tokens), (), Source.ESTIMATE if texts else Source.EXACT)

    # Chats.

    async def _chat(self, body: Body) -> Measured:
        if not body.messages:
            raise Refused(Trouble.MALFORMED, "messages: is required", param="messages")
        text = None if self._template is None else self._rendered(body, self._template)
        if text is not None:
            ids = await self._encode(text, body.add_special_tokens is True)
            if ids is not None:
                return self._counted(body, ids, Source.EXACT)
        question: dict[str, Any] = {"messages": body.messages}
        for name in ("tools", "chat_template_kwargs"):
            if getattr(body, name):
                question[name] = getattr(body, name)
        for name in ("add_generation_prompt", "continue_final_message", "add_special_tokens"):
            if getattr(body, name) is not None:
                question[name] = getattr(body, name)
        ids = await self._of_engine(body, question, chat=True)
        return self._estimate_chat(body) if ids is None else self._counted(body, ids, Source.ENGINE)

    def _rendered(self, body: Body, template: chat_template.ChatTemplate) -> str | None:
        if body.tools or body.continue_final_message:
            return None
        messages, arguments = json_of(body.messages), json_of(body.chat_template_kwargs) or {}
        if not isinstance(arguments, dict) or not isinstance(messages, list):
            return None
        if not all(isinstance(item, dict) for item in messages):
            return None
        arguments.setdefault("add_generation_prompt", body.add_generation_prompt is not False)
        return template.render(messages, arguments)

    def _estimate_chat(self, body: Body) -> Measured:
        try:
            messages = _MESSAGES.decode(body.messages)
        except (msgspec.MsgspecError, RecursionError):  # the engine will say what is wrong with them
            return self._estimate(body, bytes(body.messages).decode("utf-8", "replace"))
        texts, others = [], 0
        for message in messages:
            texts.append(message.role or "")
            content = message.content
            for part in [content] if isinstance(content, str) else content or []:
                text = part if isinstance(part, str) else part.text
                others += text is None
                texts.append(text or "")
        tools = bytes(body.tools).decode("utf-8", "replace") if body.tools else ""
        extra = PART_TOKENS * others + MESSAGE_TOKENS * len(messages)
        return self._estimate(body, tools + "\0".join(texts), extra)

    # Sources.

    async def _encode(self, text: str, specials: bool) -> list[int] | None:
        """Token ids by the local tokenizer, or None."""
        if self._tokenizer is None:
            return None
        encode = self._tokenizer.encode
        try:
            if len(text) < THREAD_CHARS_MIN:
                ids: list[int] = encode(text, add_special_tokens=specials).ids
            else:
                ids = await trio.to_thread.run_sync(lambda: encode(text, add_special_tokens=specials).ids)
        except UnicodeEncodeError:  # half of a surrogate pair: engines differ in what they make of it
            return None
        return ids

    async def _of_engine(self, body: Body, question: dict[str, Any], *, chat: bool) -> list[int] | None:
        if self._ask is None or trio.current_time() < self._silent_until_s[chat]:
            return None
        if body.model is not None:
            question["model"] = body.model
        try:
            answer = await self._ask(msgspec.json.encode(question))
            told = None if answer is None else _TOKENIZED.decode(answer)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            told = None
        if told is None or not told.tokens:
            self._silent_until_s[chat] = trio.current_time() + SILENCE_S
            return None
        return told.tokens

    def _counted(self, body: Body, ids: list[int], source: Source) -> Measured:
        return Measured(max(1, len(ids)), self._names.of(ids, namespace=body.cache_salt or ""), source)

    def _estimate(self, body: Body, text: str, extra_tokens: int = 0) -> Measured:
        data = text.encode("utf-8", "surrogatepass")
        tokens = max(1, self._tokens_of(len(data)) + extra_tokens)
        pieces = min(len(data) // self._piece_bytes, tokens // self._names.block_size)
        hashes = self._piece_names(data, pieces, self._names.seed(_PIECES, body.cache_salt or ""))
        return Measured(tokens, hashes, Source.ESTIMATE, len(data))

    def _piece_names(self, data: bytes, pieces: int, seed: int) -> tuple[int, ...]:
        width = self._piece_bytes
        return sequence_hashes([
            xxh3_64_intdigest(data[index * width:(index + 1) * width], seed) for index in range(pieces)])

    def _tokens_of(self, text_bytes: int) -> int:
        return -(-text_bytes * self._seen_tokens // int(self._seen_bytes))


def _load(file: str) -> tuple[Tokenizer, chat_template.ChatTemplate | None]:
    """Raises: ValueError for a file that is no tokenizer."""
    path = Path(file)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises a plain Exception
        raise ValueError(f"{file}: no tokenizer: {str(error)[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, chat_template.beside(path)
