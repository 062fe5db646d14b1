"""Bodies of OpenAI requests: the few fields that a router reads. What it does not read it does not decode.

A body is forwarded as the bytes that came; nothing here is ever written back.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec

from .refusals import Refused, Trouble

#: What is read of a prompt: a text, token ids, or several of either. Token ids are 32 bits wide.
Token = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Prompt = str | list[Token | str | list[Token]]


class AgentHints(msgspec.Struct, frozen=True, gc=False):
    """Dynamo's `nvext.agent_hints`."""

    priority: int | float | None = None
    strict_priority: int | None = None
    osl: int | None = None


class Extension(msgspec.Struct, frozen=True, gc=False):
    """Dynamo's `nvext`."""

    agent_hints: AgentHints | None = None


class StreamOptions(msgspec.Struct, frozen=True, gc=False):
    """`stream_options`."""

    include_usage: bool | None = None


class Body(msgspec.Struct, frozen=True):
    """A chat or text completion request. messages, prompt, tools, chat_template_kwargs: their JSON, not decoded."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    priority: int | float | None = None
    cache_salt: str | None = None
    user: str | None = None
    nvext: Extension | None = None

    @property
    def output_max(self) -> int | None:
        """The most tokens that the answer may have."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


_DECODER = msgspec.json.Decoder(Body)
_IDS: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(list[Token])
_PROMPTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Prompt)
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def parse(data: bytes) -> Body:
    """Read a request's body. Raises: Refused(MALFORMED), with the field in `param` where one is meant."""
    try:
        return _DECODER.decode(data)
    except msgspec.ValidationError as error:
        text = str(error)
        path = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else None
        reason = text.partition(" - at ")[0]
        raise Refused(Trouble.MALFORMED, f"{path or 'The body'}: {reason}", param=path) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Trouble.MALFORMED, f"The body is not valid JSON: {error}") from error


def prompts_of(body: Body) -> list[str | list[int]]:
    """The prompts of a text completion, each a text or token ids; most have one. Raises: Refused(MALFORMED)."""
    reason = "prompt: must be a text, token ids, or a list of either, not empty"
    with suppress(msgspec.MsgspecError):  # looking at each type would cost as much again
        ids = _IDS.decode(body.prompt)
        if ids:
            return [ids]
    try:
        prompt = _PROMPTS.decode(body.prompt)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(Trouble.MALFORMED, reason, param="prompt") from error
    if isinstance(prompt, str):
        return [prompt]
    if len(set(map(type, prompt))) != 1:
        raise Refused(Trouble.MALFORMED, reason, param="prompt")
    prompts: list[str | list[int]] = prompt
    return prompts


def json_of(raw: msgspec.Raw) -> Any:
    """What a field holds, decoded; None for one that is not there. Raises: Refused(MALFORMED)."""
    if not raw:
        return None
    try:
        return _ANYTHING.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(Trouble.MALFORMED, f"The body is not valid JSON: {error}") from error
