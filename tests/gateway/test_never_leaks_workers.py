"""Whatever a worker does: afterwards the ledger is empty and the next request works."""

from __future__ import annotations

import json

import pytest
import trio
from gateway_world import DONE, EVENTS, JSON, PROMPT, STREAM, Engine, Stage, chunk, story, world


async def breaks_off(request, body):
    """Before it has said anything."""
    await Engine.break_off(request)


@story
async def test_a_worker_that_is_not_there_and_comes_back():
    async with world() as w:
        w.engines[0].kill()
        await w.until(lambda: not w.gateway.fleet.is_ready)
        status, headers, body = await w.post(PROMPT)
        assert (status, json.loads(body)["error"]["code"]) == (503, "no_eligible_worker")
        assert int(headers[b"retry-after"]) >= 1
        await w.nursery.start(w.engines[0].run)
        await w.until(lambda: w.gateway.fleet.is_ready)
        assert w.gateway.fleet.get(0).incarnation == 1  # its cache has gone with it
        await w.settled()


@story
async def test_a_worker_that_refuses_costs_time_while_there_is_another():
    async with world(2, timeouts__probe_interval_s=3600.0) as w:
        w.engines[0].kill()
        answers = [await w.post(PROMPT) for _ in range(4)]
        assert [(status, headers[b"x-kvcore-worker-id"]) for status, headers, _ in answers] == [(200, b"1")] * 4
        assert w.gateway.app.means.put_back <= 2  # the first one's, and the probe that it asked for saw to the rest
        await w.settled()


@story
async def test_a_worker_that_breaks_off_before_it_answers_is_tried_once_more_and_no_oftener():
    async with world() as w:
        w.engines[0].scripts = [breaks_off]
        assert (await w.post(PROMPT))[0] == 200
        assert len(w.engines[0].asked) == 2
        # A connection that had been idle may have been closed before, so there the first time does not count.
        w.engines[0].asked.clear()
        w.engines[0].scripts = [breaks_off] * 9
        status, _, body = await w.post(PROMPT)
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_cut")
        assert len(w.engines[0].asked) in (2, 3, 4)
        w.engines[0].scripts.clear()
        await w.settled()


@story
async def test_a_worker_that_is_silent():
    async with world(timeouts__first_byte_s=0.1, timeouts__connect_s=0.1) as w:
        for body in (PROMPT, STREAM):
            w.engines[0].scripts = [Stage()]
            status, _, answer = await w.post(body)
            assert (status, json.loads(answer)["error"]["code"]) == (504, "upstream_timeout")
            await w.until(lambda: w.engines[0].gone)
            await w.settled()


@story
async def test_a_worker_that_falls_silent_in_the_middle():
    async with world(timeouts__idle_s=0.1) as w:
        w.engines[0].scripts = [Stage(chunk("a"), b'data: {"half')]
        status, _, body = await w.post(STREAM)
        *events, last = body.removesuffix(b"\n\n").split(b"\n\n")
        assert (status, events) == (200, [chunk("a").strip()])  # half an event has not been let through
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_timeout"
        assert await w.outcomes() == (0, 1)
        await w.settled()


@story
async def test_a_worker_that_cuts_a_stream():
    async def cut(request, body):
        async with request.stream(200, EVENTS) as send:
            await send(chunk("a"))
            await trio.sleep(0.02)
            await Engine.break_off(request)

    async with world() as w:
        w.engines[0].scripts = [cut]
        status, _, body = await w.post(STREAM)
        assert (status, body.count(b"\n\n")) == (200, 2)
        assert json.loads(body.split(b"\n\n")[1].removeprefix(b"data: "))["error"]["code"] == "upstream_cut"
        assert await w.outcomes() == (0, 1)
        await w.settled()


@story
async def test_a_worker_that_cuts_an_answer_in_one_piece():
    async def cut(request, body):
        request.started = True
        await request._connection.send_bytes(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
        await Engine.break_off(request)

    async with world() as w:
        w.engines[0].scripts = [cut, cut]
        status, _, body = await w.post(PROMPT)
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_cut")
        assert len(w.engines[0].asked) == 2
        await w.settled()


@story
async def test_a_stream_that_ends_without_a_finish_reason_is_not_complete():
    async def interrupted(request, body):
        async with request.stream(200, EVENTS) as send:
            await send(chunk("a") + DONE)

    async with world() as w:
        w.engines[0].scripts = [interrupted]
        assert (await w.post(STREAM))[2] == chunk("a") + DONE
        assert await w.outcomes() == (0, 1)
        await w.settled()


@pytest.mark.parametrize("status", [429, 503])
@story
async def test_a_worker_that_is_full_gets_its_request_later(status):
    async def full(request, body):
        await request.respond(status, [(b"retry-after", b"0")], b"full")

    async with world() as w:
        w.engines[0].scripts = [full, full]
        answer = await w.post(PROMPT)
        assert answer[0] == 200
        assert len(w.engines[0].asked) == 3
        assert (w.gateway.app.means.put_back, (await w.gateway.router.stats()).retried) == (2, 2)
        assert w.gateway.fleet.get(0).health.value == "up"  # being full is no illness
        await w.settled()


@story
async def test_a_worker_that_is_always_full():
    async def full(request, body):
        await request.respond(503, [])

    async with world(scheduler__attempts_max=3, timeouts__pause_s=0.01) as w:
        w.engines[0].scripts = [full] * 3
        status, headers, body = await w.post(PROMPT)
        assert (status, json.loads(body)["error"]["code"]) == (503, "retries_exhausted")
        assert b"retry-after" in headers
        await w.settled()


@story
async def test_a_full_worker_is_no_reason_to_wait_for_one_that_does_not_want_to():
    async def full(request, body):
        await request.respond(429, [])

    async with world() as w:
        w.engines[0].scripts = [full]
        status, _, body = await w.post(PROMPT, headers=[(b"x-kvcore-do-not-queue", b"true")])
        assert (status, json.loads(body)["error"]["code"]) == (429, "would_queue")
        await w.settled()


@pytest.mark.parametrize("garbage", [
    b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nxxxxx",
    b"\x00" * 70_000, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\nxxxxx",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
])
@story
async def test_a_worker_that_answers_garbage(garbage):
    async def answer(request, body):
        request.started = True
        await request._connection.send_bytes(garbage)

    async with world() as w:
        w.engines[0].scripts = [answer]
        status, _, body = await w.post(PROMPT)
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_garbage")
        assert await w.outcomes() == (0, 1)
        await w.settled()


@pytest.mark.parametrize("status", [400, 404, 500])
@story
async def test_what_a_worker_refuses_is_passed_on(status):
    async def answer(request, body):
        await request.respond(status, JSON, b'{"error":{"message":"no"}}')

    async with world() as w:
        w.engines[0].scripts = [answer]
        got, headers, body = await w.post(PROMPT)
        assert (got, body) == (status, b'{"error":{"message":"no"}}')
        assert b"x-kvcore-queue-ms" in headers
        assert await w.outcomes() == (0, 1)
        await w.settled()


@story
async def test_a_long_answer_in_one_piece_is_not_held_in_memory():
    body = b'{"choices":[{"finish_reason":"stop","text":"' + b"x" * 3_000_000 + b'"}]}'

    async def answer(request, asked):
        await request.respond(200, JSON, body)

    async with world() as w:
        w.engines[0].scripts = [answer]
        status, headers, got = await w.post(PROMPT)
        assert (status, got == body, headers[b"transfer-encoding"]) == (200, True, b"chunked")
        assert await w.outcomes() == (1, 0)
        await w.settled()


@story
async def test_a_worker_that_is_killed_while_it_runs_and_started_again():
    async with world() as w:
        stages = [Stage(chunk()), Stage()]
        w.engines[0].scripts = list(stages)
        async with trio.open_nursery() as nursery:
            answers = []

            async def ask(body):
                answers.append(await w.post(body))

            nursery.start_soon(ask, STREAM)
            await stages[0].is_there.wait()
            nursery.start_soon(ask, PROMPT)
            await stages[1].is_there.wait()
            w.engines[0].kill()
            await w.until(lambda: not w.gateway.fleet.is_ready or w.gateway.fleet.get(0).was_refused)
            await w.nursery.start(w.engines[0].run)
        assert sorted(status for status, *_ in answers) in ([200, 200], [200, 503])
        assert any(b"upstream_cut" in body or b"worker_removed" in body for *_, body in answers)
        await w.until(lambda: w.gateway.fleet.is_ready)
        await w.settled()
