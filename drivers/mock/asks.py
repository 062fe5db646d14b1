"""Requests to a mock worker: what of their bodies it understands, and what it refuses, worded as vLLM does."""

from __future__ import annotations

from array import array
from typing import Any, TypeVar

import msgspec

from .tokens import BadPrompt, answer_length, check_ids, encode, render

#: What /v1/completions makes if nothing is said, as OpenAI and vLLM have it.
COMPLETION_TOKENS = 16

_Body = TypeVar("_Body")


class Refused(Exception):
    """An answer other than 200. kind, param: as vLLM names them in the body."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param


class StreamOptions(msgspec.Struct):
    """What a stream shall contain besides text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Part(msgspec.Struct):
    """A piece of a message's content; all but text is left out."""

    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        """Its content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


class _Generation(msgspec.Struct, kw_only=True):
    """What both kinds of requests have. Fields that the mock does not know are ignored."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    cache_salt: str | None = None


class Completion(_Generation):
    """Body of /v1/completions."""

    prompt: str | list[int | str | list[int]]


class Chat(_Generation):
    """Body of /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None


class Tokenize(msgspec.Struct):
    """Body of /tokenize: a text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True


class Detokenize(msgspec.Struct):
    """Body of /detokenize."""

    tokens: list[int]
    model: str | None = None


class Ask(msgspec.Struct, frozen=True):
    """A request for an answer, understood. ends: whether the answer ends by itself, before its limit."""

    chat: bool
    prompt: array[int]
    output_tokens: int
    ends: bool
    stream: bool
    usage: bool
    usage_always: bool
    salt: str | None


class Reader:
    """Decodes bodies for one worker. answer_tokens: least length at which an answer ends by itself; None: never."""

    def __init__(self, model: str, max_model_len: int, answer_tokens: int | None) -> None:
        self._model, self._max_len, self._answer_tokens = model, max_model_len, answer_tokens
        self._completion = msgspec.json.Decoder(Completion)
        self._chat = msgspec.json.Decoder(Chat)
        self._tokenize = msgspec.json.Decoder(Tokenize)
        self._detokenize = msgspec.json.Decoder(Detokenize)

    def completion(self, body: bytes) -> Ask:
        """A request to /v1/completions. Raises: Refused."""
        asked = _decode(self._completion, body)
        self._check_model(asked.model)
        prompt = _prompt(asked.prompt)
        wanted = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
        return self._ask(asked, prompt, wanted, chat=False)

    def chat(self, body: bytes) -> Ask:
        """A request to /v1/chat/completions. Raises: Refused."""
        asked = _decode(self._chat, body)
        self._check_model(asked.model)
        if not asked.messages:
            raise Refused(400, "messages must not be empty", param="messages")
        prompt = render((message.role, message.text()) for message in asked.messages)
        wanted = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        return self._ask(asked, prompt, wanted, chat=True)

    def tokenize(self, body: bytes) -> array[int]:
        """Tokens of what /tokenize is asked for. Raises: Refused."""
        asked = _decode(self._tokenize, body)
        self._check_model(asked.model)
        if asked.messages is not None:
            return render(((one.role, one.text()) for one in asked.messages), asked.add_generation_prompt)
        if asked.prompt is None:
            raise Refused(400, "prompt or messages is needed", param="prompt")
        return encode(asked.prompt)

    def detokenize(self, body: bytes) -> array[int]:
        """Tokens that /detokenize is asked for. Raises: Refused."""
        return _ids(_decode(self._detokenize, body).tokens)

    def _ask(self, asked: _Generation, prompt: array[int], wanted: int | None, *, chat: bool) -> Ask:
        if asked.n not in (1, None):
            raise Refused(400, f"this engine makes one choice, not {asked.n}", param="n")
        if wanted is not None and wanted < 1:
            raise Refused(
                400, f"max_tokens must be at least 1, got {wanted}. (parameter=max_tokens, value={wanted})",
                param="max_tokens")
        room = self._max_len - len(prompt)
        if room < (wanted or 1):
            raise Refused(
                400, f"This model's maximum context length is {self._max_len} tokens. However, you requested "
                f"{wanted or 1} output tokens and your prompt contains {len(prompt)} input tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens.", param="input_tokens")
        limit = room if wanted is None else wanted
        ends = False
        if self._answer_tokens is not None and not asked.ignore_eos:
            natural = max(answer_length(prompt, self._answer_tokens), asked.min_tokens or 0)
            limit, ends = (natural, True) if natural < limit else (limit, False)
        options = asked.stream_options or StreamOptions()
        return Ask(
            chat, prompt, limit, ends, bool(asked.stream), bool(options.include_usage),
            bool(options.continuous_usage_stats), asked.cache_salt)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model:
            raise Refused(404, f"The model `{name}` does not exist.", "NotFoundError", "model")


def _prompt(prompt: str | list[Any]) -> array[int]:
    if isinstance(prompt, str):
        tokens = encode(prompt)
    elif len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return _prompt(prompt[0])
    else:
        return _ids(prompt)
    if not tokens:
        raise Refused(400, "The prompt must not be empty.", param="prompt")
    return tokens


def _ids(ids: list[Any]) -> array[int]:
    try:
        return check_ids(ids)
    except BadPrompt as error:
        raise Refused(400, str(error), param="prompt") from error


def _decode(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"1 validation error: {error}", "Bad Request", "body") from error
