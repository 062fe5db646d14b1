"""The public API: paths, answers whole and streamed, what every response says."""

from __future__ import annotations

import json

import pytest
import trio
from gateway_world import DONE, EVENTS, JSON, PROMPT, Engine, chunk, story, world
from kvcore.drivers.gateway.fleet import Health

from kvcore.events import OutputBlockAdded


@story
async def test_a_plain_answer_passes_through_with_its_headers():
    async with world() as w:
        status, headers, body = await w.post(PROMPT, headers=[(b"authorization", b"Bearer secret")])
        assert status == 200
        assert json.loads(body)["usage"]["completion_tokens"] == 2
        assert headers[b"x-kvcore-queue-ms"] == b"0"
        assert headers[b"x-kvcore-policy-class"] == b"default"
        assert headers[b"x-kvcore-prompt-tokens-source"] == b"exact"
        assert headers[b"x-request-id"] == headers[b"x-kvcore-request-id"]
        assert w.engines[0].fields[0][b"authorization"] == b"Bearer secret"
        assert w.engines[0].asked == [PROMPT]
        assert await w.outcomes() == (1, 0)
        await w.settled()
        assert (await w.gateway.router.stats()).stale_events == 0


@story
async def test_a_stream_passes_through_byte_for_byte():
    sent = [b": ping\n\n", chunk("a") + chunk("b"), chunk(None, "stop"), b'data: {"choices":[],"usage":null}\n\n', DONE]

    async def script(request, body):
        async with request.stream(200, [*EVENTS, (b"x-engine", b"e"), (b"x-request-id", b"its own")]) as send:
            for part in sent:
                await send(part)
                await trio.sleep(0.01)

    async with world() as w:
        w.engines[0].scripts = [script]
        status, headers, body = await w.post({**PROMPT, "stream": True}, headers=[(b"x-request-id", b"mine")])
        assert (status, body) == (200, b"".join(sent))
        assert (headers[b"x-engine"], headers[b"x-request-id"]) == (b"e", b"mine")
        assert await w.outcomes() == (1, 0)
        await w.settled()


@story
async def test_a_chat_goes_to_the_chat_path_of_the_worker():
    seen = []

    async def script(request, body):
        seen.append(request.target)
        await request.respond(200, JSON, b'{"choices":[{"finish_reason":"stop"}]}')

    async with world() as w:
        w.engines[0].scripts = [script]
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        status, headers, _ = await w.post(body, "/v1/chat/completions?api-version=1")
        assert (status, seen) == (200, ["/v1/chat/completions?api-version=1"])
        assert headers[b"x-kvcore-prompt-tokens-source"] == b"estimate"


@story
async def test_the_other_paths():
    engines = [Engine(), Engine()]
    engines[1].models = ("m", "n")
    async with world(engines) as w:
        status, _, body = await w.get("/v1/models")
        assert (status, [item["id"] for item in json.loads(body)["data"]]) == (200, ["m", "n"])
        for path, expected in (("/v1/models/n", 200), ("/v1/models/o", 404), ("/health", 200), ("/version", 200)):
            assert (await w.get(path))[0] == expected
        status, _, body = await w.get("/ready")
        assert (status, json.loads(body)["status"]) == (200, "ready")
        assert b"127.0.0.1" not in body
        status, _, body = await w.get("/nothing")
        assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_path")
        status, headers, body = await w.get("/v1/completions")
        assert (status, headers[b"allow"], json.loads(body)["error"]["code"]) == (405, b"POST", "method_not_allowed")
        status, headers, body = await w.get("/metrics")
        assert status == 200
        assert b"kvcore_up 1.0" in body
        assert b'kvcore_gateway_workers{health="up"} 2.0' in body
        assert b'kvcore_gateway_responses_total{status="404"} 2.0' in body


@story
async def test_ready_says_whether_some_worker_is_up():
    async with world() as w:
        w.engines[0].health = 500
        await w.until(lambda: not w.gateway.fleet.is_ready)
        status, _, body = await w.get("/ready")
        assert (status, json.loads(body)["workers"][0]["health"]) == (503, "down")
        assert (await w.post(PROMPT))[0] == 503
        w.engines[0].health = 200
        await w.until(lambda: w.gateway.fleet.is_ready)
        assert (await w.get("/ready"))[0] == 200
        assert next(iter(w.gateway.fleet)).incarnation == 0  # it was ill, not gone
        await w.settled()


@story
async def test_a_model_is_served_where_it_is():
    engines = [Engine(), Engine()]
    engines[1].models = ("m", "n")
    async with world(engines) as w:
        for _ in range(6):
            status, headers, _ = await w.post({**PROMPT, "model": "n"})
            assert (status, headers[b"x-kvcore-worker-id"]) == (200, b"1")
        status, _, body = await w.post({**PROMPT, "model": "o"})
        assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
        assert json.loads(body)["error"]["param"] == "model"


@story
async def test_a_worker_that_does_not_say_what_it_serves_serves_everything():
    engines = [Engine(), Engine()]
    async with world(engines) as w:
        worker = w.gateway.fleet.get(1)
        worker.models = None
        w.gateway.fleet._is_stale = True
        assert (await w.post({**PROMPT, "model": "whatever"}))[0] == 200


@pytest.mark.parametrize(("body", "status", "code"), [
    (b"{", 400, "invalid_request"), (b"[]", 400, "invalid_request"), (b'{"model": 3}', 400, "invalid_request"),
    (b'{"model": "m"}', 400, "invalid_request"), (b'{"prompt": "", "n": "x"}', 400, "invalid_request"),
    (b'{"prompt":"' + b"x" * 5000 + b'"}', 413, "request_too_large"),
])
@story
async def test_bodies_that_are_wrong(body, status, code):
    async with world(limits__body_bytes=4096) as w:
        got, headers, answer = await w.post(body)
        assert (got, json.loads(answer)["error"]["code"]) == (status, code)
        assert headers[b"x-should-retry"] == b"false"
        assert w.engines[0].asked == []
        await w.settled()


@story
async def test_output_grows_block_by_block_with_its_fraction():
    """Prompt 4, blocks of 4: borders at the 1st, 5th and 9th token of 10; the hint says that 20 are expected."""
    facts = []

    async def script(request, body):
        async with request.stream(200, EVENTS) as send:
            for _ in range(9):
                await send(chunk())
                await trio.sleep(0.005)
            await send(chunk(finish="length"))

    async with world(scheduler__block_size=4) as w:
        owner = w.gateway.router._owner
        tap = owner._tap
        owner._tap = lambda events, *rest: (facts.extend(events), tap(events, *rest))
        w.engines[0].scripts = [script]
        body = {**PROMPT, "stream": True, "nvext": {"agent_hints": {"osl": 20}}}
        await w.post(body)
        owner._tap = tap
        assert [item.decay_fraction for item in facts if isinstance(item, OutputBlockAdded)] == [0.95, 0.75, 0.55]
        await w.settled()


@story
async def test_a_dispatch_costs_one_look_up_whatever_the_fleet():
    counts = {}
    async with world() as w:
        fleet = w.gateway.fleet
        for size in (2, 2048):
            while len(fleet) < size:
                worker = await fleet.add(type(next(iter(fleet)).spec)(f"http://127.0.0.1:{20_000 + len(fleet)}"))
                worker.scope.cancel()  # not probed: nobody is there
                await fleet.drain(worker.worker_id)
            before = fleet.lookups
            for _ in range(5):
                assert (await w.post(PROMPT))[0] == 200
            counts[size] = fleet.lookups - before
        assert counts == {2: 5, 2048: 5}
        assert fleet.get(0).health is Health.UP
