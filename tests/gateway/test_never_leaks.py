"""Whatever clients, the fleet and the gateway's end do: afterwards the ledger is empty and the next request works."""

from __future__ import annotations

import json

import pytest
import trio
from gateway_world import DONE, EVENTS, PROMPT, STREAM, Engine, Stage, begin, chunk, read_until, story, world

from kvcore.policy import Capacity


def one_at_a_time():
    """A world whose worker takes one request at a time."""
    engine = Engine()
    engine.max_requests = 1
    return world([engine], scheduler__capacity=Capacity.STRICT)


# The client.

@story
async def test_a_client_that_goes_while_it_is_queued():
    async with one_at_a_time() as w:
        stage = Stage()
        w.engines[0].scripts = [stage]
        first = await begin(w.gateway.port, PROMPT)
        await stage.is_there.wait()
        second = await begin(w.gateway.port, PROMPT)

        async def waits():
            return (await w.gateway.router.stats()).waiting_requests == 1

        await w.until(waits)
        await second.aclose()
        await w.until(lambda: w.gateway.app.inside == 1)
        assert len(w.engines[0].asked) == 1
        await first.aclose()
        await w.settled()
        assert len(w.engines[0].asked) == 2  # the one of `settled`; that of the second client never came


@pytest.mark.parametrize("body", [PROMPT, STREAM])
@story
async def test_a_client_that_goes_before_the_first_byte(body):
    async with world() as w:
        stage = Stage()
        w.engines[0].scripts = [stage]
        client = await begin(w.gateway.port, body)
        await stage.is_there.wait()
        await client.aclose()
        await w.until(lambda: w.engines[0].gone == 1)  # the worker hears of it
        assert await w.outcomes() == (0, 1)
        await w.settled()
        assert w.gateway.app.answered[499] == 1


@story
async def test_a_client_that_goes_in_the_middle_of_a_stream_while_the_worker_is_silent():
    async with world() as w:
        stage = Stage(chunk())
        w.engines[0].scripts = [stage]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk())
        await client.aclose()
        await w.until(lambda: w.engines[0].gone == 1)
        assert await w.outcomes() == (0, 1)
        await w.settled()


@story
async def test_a_client_that_goes_right_after_the_last_chunk_has_had_its_answer():
    async with world() as w:
        stage = Stage(chunk(), chunk(finish="stop"))  # [DONE] never comes
        w.engines[0].scripts = [stage]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk(finish="stop"))
        await client.aclose()
        await w.until(lambda: w.engines[0].gone == 1)
        assert await w.outcomes() == (1, 0)
        await w.settled()


@story
async def test_it_is_complete_before_its_last_chunk_reaches_the_client():
    async with world() as w:
        w.engines[0].scripts = [Stage(chunk(), chunk(finish="length"))]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk(finish="length"))
        assert await w.loads() == [0, 0, 0, 0]
        assert await w.outcomes() == (1, 0)
        await client.aclose()
        await w.settled()


@story
async def test_each_of_several_answers_must_end_before_it_is_complete():
    async with world() as w:
        w.engines[0].scripts = [Stage(chunk(finish="stop", index=0), rest=(chunk(finish="stop", index=1), DONE))]
        stage = w.engines[0].scripts[0]
        client = await begin(w.gateway.port, {**STREAM, "n": 2})
        await read_until(client, chunk(finish="stop", index=0))
        assert (await w.loads())[0] == 1
        stage.go_on.set()
        await read_until(client, DONE)
        assert await w.outcomes() == (1, 0)
        await client.aclose()
        await w.settled()


@story
async def test_a_client_that_does_not_read():
    """The worker is not read either, so nothing grows; after write_s the connection is cut."""
    sent = []

    async def flood(request, body):
        async with request.stream(200, EVENTS) as send:
            while True:
                await send(chunk("x" * 60_000))
                sent.append(1)

    async with world(timeouts__write_s=0.3) as w:
        w.engines[0].scripts = [flood]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, b"xxx")
        await w.until(lambda: w.engines[0].gone == 1)
        assert len(sent) < 1000  # what sockets hold, not what the engine could say in that time
        assert await w.outcomes() == (0, 1)
        await client.aclose()
        await w.settled()


@story
async def test_a_client_that_never_sends_its_body():
    async with world(timeouts__body_s=0.1) as w:
        client = await trio.open_tcp_stream("127.0.0.1", w.gateway.port)
        await client.send_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert await client.receive_some() == b""
        await client.aclose()
        assert w.gateway.app.inside == 0
        await w.settled()


# The fleet.

@story
async def test_a_worker_removed_between_decision_and_send_puts_the_request_back():
    async with world(2) as w:
        fleet, router = w.gateway.fleet, w.gateway.router
        first = int((await w.post(PROMPT))[1][b"x-kvcore-worker-id"])
        look, seen = fleet.get, []

        def vanish(worker_id):
            seen.append(worker_id)
            if len(seen) == 1:
                fleet._workers.pop(worker_id).pool.close()
                w.nursery.start_soon(router.remove_worker, worker_id)
            return look(worker_id)

        fleet.get = vanish
        charged = (await router.stats()).classes[0].dispatched_cost_tokens
        status, headers, _ = await w.post(PROMPT)
        fleet.get = look
        assert (status, len(set(seen)), first in (0, 1)) == (200, 2, True)
        assert int(headers[b"x-kvcore-worker-id"]) == seen[-1] != seen[0]
        stats = await router.stats()
        assert stats.retried == len(seen) - 1
        assert stats.classes[0].dispatched_cost_tokens - charged == 4  # once
        await w.settled()


@story
async def test_a_worker_removed_while_it_computes_gives_its_request_to_another():
    async with world(2) as w:
        stage = Stage()
        for engine in w.engines:
            engine.scripts = [stage]
        answers = []

        async def ask():
            answers.append(await w.post(PROMPT))

        w.nursery.start_soon(ask)
        await stage.is_there.wait()
        busy = next(worker for worker in w.gateway.fleet if worker.running)
        for engine in w.engines:
            engine.scripts = []
        assert await w.gateway.fleet.remove(busy.worker_id)
        await w.until(lambda: answers)
        assert answers[0][0] == 200
        assert int(answers[0][1][b"x-kvcore-worker-id"]) != busy.worker_id
        assert sum(engine.gone for engine in w.engines) == 1
        await w.settled()


@story
async def test_a_worker_removed_in_the_middle_of_a_stream_ends_it_with_an_error():
    async with world() as w:
        stage = Stage(chunk("a"))
        w.engines[0].scripts = [stage]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk("a"))
        spec = w.gateway.fleet.get(0).spec
        await w.gateway.fleet.remove(0)
        assert b'"code":"worker_removed"' in await read_until(client, b"0\r\n\r\n")
        await client.aclose()
        assert (await w.post(PROMPT))[0] == 503
        await w.gateway.fleet.add(spec)
        await w.settled()


@story
async def test_a_drained_worker_finishes_what_it_has():
    async with world(2) as w:
        stage = Stage(chunk("a"), rest=(chunk(finish="stop"), DONE))
        for engine in w.engines:
            engine.scripts = [stage]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk("a"))
        busy = next(worker for worker in w.gateway.fleet if worker.running)
        for engine in w.engines:
            engine.scripts = []
        assert await w.gateway.fleet.drain(busy.worker_id)
        answers = [await w.post(PROMPT) for _ in range(4)]
        assert all(int(headers[b"x-kvcore-worker-id"]) != busy.worker_id for _, headers, _ in answers)
        stage.go_on.set()
        await read_until(client, DONE)
        await client.aclose()
        assert await w.gateway.fleet.drain(busy.worker_id, draining=False)
        await w.settled()


# Limits.

@story
async def test_no_more_requests_inside_than_the_limit():
    async with world(limits__queue=1) as w:
        stage = Stage()
        w.engines[0].scripts = [stage]
        client = await begin(w.gateway.port, PROMPT)
        await stage.is_there.wait()
        status, headers, body = await w.post(PROMPT)
        assert (status, json.loads(body)["error"]["code"]) == (429, "gateway_full")
        assert int(headers[b"retry-after"]) >= 1
        await client.aclose()
        await w.until(lambda: w.gateway.app.inside == 0)
        await w.settled()


@pytest.mark.parametrize("status", [429, 529])
@story
async def test_no_more_bytes_of_bodies_than_the_limit(status):
    async with world(limits__body_bytes=1000, limits__body_bytes_total=1500, overload_status=status) as w:
        stage, bodies = Stage(), w.gateway.app.server.bodies
        w.engines[0].scripts = [stage]
        large = {**PROMPT, "user": "x" * 800}
        client = await begin(w.gateway.port, large)
        await stage.is_there.wait()
        data = json.dumps(large).encode()
        assert bodies.held == len(data)
        announced = await trio.open_tcp_stream("127.0.0.1", w.gateway.port)
        await announced.send_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n")
        chunked = await trio.open_tcp_stream("127.0.0.1", w.gateway.port)
        await chunked.send_all(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"".join([b"1\r\n%c\r\n" % byte for byte in data]))
        for stream in (announced, chunked):
            told = await read_until(stream, b"}}")
            assert told.startswith(b"HTTP/1.1 %d " % status)
            assert b'"code":"gateway_full"' in told
            assert b"retry-after: " in told.lower()
            await stream.aclose()
        await w.until(lambda: bodies.held == len(data))
        assert (await w.post(PROMPT))[0] == 200
        await client.aclose()
        await w.settled()


# The end.

@story
async def test_a_drain_answers_everybody():
    async with one_at_a_time() as w:
        stage = Stage(chunk("a"), rest=(chunk(finish="stop"), DONE))
        w.engines[0].scripts = [stage]
        running = await begin(w.gateway.port, STREAM)
        await read_until(running, chunk("a"))
        waiting = await begin(w.gateway.port, PROMPT)

        async def waits():
            return (await w.gateway.router.stats()).waiting_requests == 1

        await w.until(waits)
        w.gateway.stop()
        told = await read_until(waiting, b"}}")
        assert told.startswith(b"HTTP/1.1 503")
        assert b'"code":"shutting_down"' in told
        assert b"retry-after: " in told.lower()
        assert (await w.get("/ready"))[0] == 503
        assert (await w.post(PROMPT))[0] == 503
        stage.go_on.set()
        await read_until(running, DONE)
        server = w.gateway.app.server
        await server.ended.wait()
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", w.gateway.port)
        await running.aclose()
        await waiting.aclose()


@story
async def test_a_drain_has_an_end():
    async with world(timeouts__drain_s=0.2) as w:
        w.engines[0].scripts = [Stage(chunk("a"))]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk("a"))
        w.gateway.stop()
        assert b'"code":"drain_deadline"' in await read_until(client, b"0\r\n\r\n")
        await w.gateway.app.server.ended.wait()
        assert w.engines[0].gone == 1
        await client.aclose()
