"""Bodies and chunks of a mock worker: the fields of vLLM 0.32, save for some that are always null there.

A chunk of a stream is put together from bytes: what stands before and after the words is the same in all chunks of an
answer, and words need no escape (see tokens.py). That costs the mock some microseconds less per token.
"""

from __future__ import annotations

import re
import time
from itertools import count

import msgspec

from .asks import Ask, Refused

FINGERPRINT = "vllm-mock-kvcore"
DONE = b"data: [DONE]\n\n"

_OUR_NUMBERS = count(1)
_SAFE_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_encode = msgspec.json.encode


def usage(prompt: int, made: int, cached: int) -> dict[str, object]:
    """The last word about tokens."""
    return {
        "prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made,
        "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": 0},
    }


class Answerer:
    """Words the answer to one request. request_id: of its header; one that is not plain text is replaced."""

    def __init__(self, ask: Ask, model: str, request_id: str | None) -> None:
        if request_id is None or not _SAFE_ID.fullmatch(request_id):
            request_id = f"{next(_OUR_NUMBERS):016x}"
        self._ask = ask
        self._id = ("chatcmpl-" if ask.chat else "cmpl-") + request_id
        self._model, self._created = model, int(time.time())
        self._reason = "stop" if ask.ends else "length"
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        head = _encode({"id": self._id, "object": kind, "created": self._created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":'
        if ask.chat:
            self._before = self._head + b'[{"index":0,"delta":{"content":"'
            self._after = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
            self._last = (f'"}},"logprobs":null,"finish_reason":"{self._reason}","stop_reason":null,'
                          '"token_ids":null}]').encode()
        else:
            self._before = self._head + b'[{"index":0,"text":"'
            self._after = b'","logprobs":null,"finish_reason":null,"stop_reason":null}]'
            self._last = f'","logprobs":null,"finish_reason":"{self._reason}","stop_reason":null}}]'.encode()

    def role(self) -> bytes:
        """The chunk that opens a streamed chat; empty for a completion."""
        if not self._ask.chat:
            return b""
        return (self._head + b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
                b'"finish_reason":null}]' + self._running(0) + b',"prompt_token_ids":null,"prompt_text":null}\n\n')

    def chunk(self, text: bytes, made: int, last: bool) -> bytes:
        """A chunk with these words; made: tokens so far. The last one carries the reason why it is."""
        if last:
            return b"".join((self._before, text, self._last, self._running(made), b"}\n\n"))
        return b"".join((self._before, text, self._after, self._running(made), b"}\n\n"))

    def end(self, made: int, cached: int) -> bytes:
        """What comes after the last words."""
        if not self._ask.usage:
            return DONE
        body = _encode(usage(len(self._ask.prompt), made, cached))
        return b"".join(
            (self._head, b'[],"usage":', body, f',"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode(), DONE))

    def whole(self, text: bytes, made: int, cached: int) -> bytes:
        """The body of an answer that is not streamed."""
        words = text.decode()
        choice: dict[str, object] = {"index": 0}
        if self._ask.chat:
            choice["message"] = {"role": "assistant", "content": words, "refusal": None, "annotations": None,
                                 "audio": None, "function_call": None, "reasoning": None}
        else:
            choice["text"] = words
        choice |= {"logprobs": None, "finish_reason": self._reason, "stop_reason": None, "token_ids": None}
        return _encode({
            "id": self._id, "object": "chat.completion" if self._ask.chat else "text_completion",
            "created": self._created, "model": self._model, "choices": [choice], "service_tier": None,
            "system_fingerprint": FINGERPRINT, "usage": usage(len(self._ask.prompt), made, cached),
            "kv_transfer_params": None,
        })

    def _running(self, made: int) -> bytes:
        """Usage so far, where every chunk shall have it."""
        if not self._ask.usage_always:
            return b""
        prompt = len(self._ask.prompt)
        return (f',"usage":{{"prompt_tokens":{prompt},"total_tokens":{prompt + made},"completion_tokens":{made},'
                '"completion_tokens_details":null}').encode()


def refusal(refused: Refused) -> bytes:
    """The body of an error."""
    return _encode({"error": {
        "message": refused.message, "type": refused.kind, "param": refused.param, "code": refused.status}})


def models(name: str, max_model_len: int, created: int) -> bytes:
    """The body of /v1/models."""
    return _encode({"object": "list", "data": [{
        "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": name, "parent": None,
        "max_model_len": max_model_len, "permission": [],
    }]})
