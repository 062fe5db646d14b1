"""Real processes: a gateway that is killed leaves nothing behind in its workers, one that is told to end drains."""

from __future__ import annotations

import json
import signal

import trio
from gateway_world import DONE, JSON, PATIENCE_S, PROMPT, STREAM, Engine, Stage, begin, chunk, read_until, story
from kvcore.drivers.cli.children import free_port, server
from kvcore.drivers.http.client import Pool


async def in_a_stream(port: int) -> trio.SocketStream:
    """A client in the middle of a stream."""
    stream = await begin(port, STREAM)
    await read_until(stream, chunk("a"))
    return stream


async def ask(port: int) -> int:
    """The status of a plain request."""
    pool = Pool("127.0.0.1", port)
    try:
        return (await pool.fetch("POST", "/v1/completions", JSON, json.dumps(PROMPT).encode(), timeout_s=PATIENCE_S))[0]
    finally:
        pool.close()


@story
async def test_killed_it_leaves_nothing_and_told_to_end_it_drains():
    engine, port = Engine(), free_port()
    arguments = ["serve", "--worker", "", "--port", str(port), "--admin-port", "none"]
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        arguments[2] = engine.url
        with server(arguments, port, wait=False) as killed:
            await trio.to_thread.run_sync(killed.wait)
            engine.scripts = [Stage(chunk("a"))]
            client = await in_a_stream(port)
            killed.process.send_signal(signal.SIGKILL)
            assert await client.receive_some() == b""
            await client.aclose()
            while not engine.gone:  # the worker stops computing
                await trio.sleep(0.01)
        with server(arguments, port, wait=False) as told:
            await trio.to_thread.run_sync(told.wait)
            assert await ask(port) == 200
            stage = Stage(chunk("a"), rest=(chunk(finish="stop"), DONE))
            engine.scripts = [stage]
            client = await in_a_stream(port)
            told.process.send_signal(signal.SIGTERM)
            while await ask(port) != 503:
                engine.scripts = []
            stage.go_on.set()
            await read_until(client, DONE)
            await client.aclose()
            assert await trio.to_thread.run_sync(told.process.wait) == 0
        nursery.cancel_scope.cancel()
