"""The official client, as people use it: whole answers, streams, its retries, its errors, a stream that is cut."""

from __future__ import annotations

import json

import openai
import pytest
import trio
from gateway_world import DONE, EVENTS, JSON, PATIENCE_S, Engine, story, world

MESSAGES = [{"role": "user", "content": "hello"}]


def event(delta: dict, finish: str | None = None) -> bytes:
    """One chunk of a chat."""
    return b"data: " + json.dumps({
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


WHOLE = json.dumps({
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi there"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}).encode()


async def chat(request, body) -> None:
    """A right answer."""
    if not body.get("stream"):
        await request.respond(200, JSON, WHOLE)
        return
    async with request.stream(200, EVENTS) as send:
        await send(event({"role": "assistant", "content": ""}))
        for word in ("hi", " there"):
            await send(event({"content": word}))
        await send(event({}, "stop"))
        await send(DONE)


def client(w, **options) -> openai.OpenAI:
    """Of this gateway."""
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{w.gateway.port}/v1", api_key="sk-test", timeout=PATIENCE_S, **options)


async def ask(w, function, **options):
    """Call function(client) in a thread."""
    def call():
        with client(w, **options) as it:
            return function(it)

    return await trio.to_thread.run_sync(call)


def say(it, **options):
    """One chat."""
    return it.chat.completions.create(model="m", messages=MESSAGES, **options)


@story
async def test_whole_answers_and_models():
    async with world() as w:
        w.engines[0].scripts = [chat, chat]
        answer = await ask(w, say)
        assert answer.choices[0].message.content == "hi there"
        assert answer.usage.total_tokens == 7
        raw = await ask(w, lambda it: it.chat.completions.with_raw_response.create(model="m", messages=MESSAGES))
        assert raw.headers["x-kvcore-queue-ms"] == "0"
        assert w.engines[0].fields[0][b"authorization"] == b"Bearer sk-test"
        assert [item.id for item in (await ask(w, lambda it: it.models.list())).data] == ["m"]
        assert (await ask(w, lambda it: it.models.retrieve("m"))).id == "m"
        assert await w.outcomes() == (2, 0)
        await w.settled()


@story
async def test_streams():
    async with world() as w:
        w.engines[0].scripts = [chat]
        chunks = await ask(w, lambda it: list(say(it, stream=True)))
        assert "".join(item.choices[0].delta.content or "" for item in chunks) == "hi there"
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert await w.outcomes() == (1, 0)
        await w.settled()


@story
async def test_a_client_that_leaves_a_stream_cancels_it():
    async def endless(request, body):
        async with request.stream(200, EVENTS) as send:
            while True:
                await send(event({"content": "x"}))
                await trio.sleep(0.005)

    def leave(it):
        with say(it, stream=True) as stream:
            for _, _ in zip(range(3), stream, strict=False):
                pass

    async with world() as w:
        w.engines[0].scripts = [endless]
        await ask(w, leave)
        await w.until(lambda: w.engines[0].gone == 1)
        assert await w.outcomes() == (0, 1)
        await w.settled()


@story
async def test_it_comes_again_when_it_is_told_to():
    """A full queue is 429 with Retry-After; the client waits for that long and is served."""
    async with world(limits__queue=1) as w:
        inside = w.gateway.app
        inside.inside = 1  # as if somebody else were in

        async def make_room():
            await w.until(lambda: inside.answered.get(429, 0) >= 1)
            inside.inside -= 1

        w.engines[0].scripts = [chat]
        w.nursery.start_soon(make_room)
        answer = await ask(w, say, max_retries=3)
        assert answer.choices[0].message.content == "hi there"
        assert inside.answered[429] == 1
        assert inside.inside == 0
        await w.settled()


@story
async def test_it_does_not_come_again_where_that_is_hopeless():
    async with world() as w:
        with pytest.raises(openai.NotFoundError) as caught:
            await ask(w, lambda it: it.chat.completions.create(model="none", messages=MESSAGES))
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError):
            await ask(w, lambda it: say(it, n="many"))
        assert w.gateway.app.answered[404] == w.gateway.app.answered[400] == 1
        await w.settled()


@story
async def test_what_a_drain_tells_it():
    async with world() as w:
        w.gateway.app.is_draining = True
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(w, say, max_retries=0)
        assert (caught.value.status_code, caught.value.code) == (503, "shutting_down")
        assert int(caught.value.response.headers["retry-after"]) >= 1


@story
async def test_a_stream_that_is_cut_raises_and_says_why():
    async def cut(request, body):
        async with request.stream(200, EVENTS) as send:
            await send(event({"content": "hi"}))
            await send(b'data: {"id":"c","choi')
            await trio.sleep(0.02)
            await Engine.break_off(request)

    seen = []

    def read(it):
        for item in say(it, stream=True):
            seen.append(item.choices[0].delta.content)

    async with world() as w:
        w.engines[0].scripts = [cut]
        with pytest.raises(openai.APIError, match="ended before"):
            await ask(w, read)
        assert seen == ["hi"]
        assert await w.outcomes() == (0, 1)
        await w.settled()
