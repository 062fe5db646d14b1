"""A gateway between scripted workers and raw clients, all in one task tree, over real sockets.

A scripted worker answers each completion by the next of its scripts, or by its usual one; a script is a function of the
request. `settled` is what every story ends with: the ledger is empty, and the next request works.
"""

from __future__ import annotations

import functools
import json
from contextlib import asynccontextmanager

import trio
from kvcore.drivers.gateway.config import resolve
from kvcore.drivers.gateway.config_file import Given
from kvcore.drivers.gateway.gateway import serve
from kvcore.drivers.gateway.policy_desk import PolicyDesk
from kvcore.drivers.gateway.upstreams import UpstreamSpec
from kvcore.drivers.http.client import Pool
from kvcore.drivers.http.server import serve_http
from kvcore.drivers.http.values import Limits

from kvcore.scheduler import Scheduler

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
PATIENCE_S = 20
PROMPT = {"model": "m", "prompt": [1, 2, 3, 4], "max_tokens": 3}
STREAM = {**PROMPT, "stream": True}


def chunk(text: str | None = "x", finish: str | None = None, index: int = 0) -> bytes:
    """One event of a text completion."""
    choice = {"index": index, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def plain(tokens: int = 2) -> bytes:
    """A whole answer."""
    return json.dumps({
        "id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "xx", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}}).encode()


DONE = b"data: [DONE]\n\n"


async def usual(request, body) -> None:
    """An answer that is right."""
    if body.get("stream"):
        async with request.stream(200, EVENTS) as send:
            await send(chunk())
            await send(chunk(finish="stop"))
            await send(DONE)
    else:
        await request.respond(200, JSON, plain())


class Stage:
    """A script that stands still where the test wants it to."""

    def __init__(self, *parts: bytes, rest: tuple[bytes, ...] = ()) -> None:
        self.parts, self.rest = parts, rest
        self.is_there, self.go_on = trio.Event(), trio.Event()

    async def __call__(self, request, body) -> None:
        if not self.parts:
            self.is_there.set()
            await self.go_on.wait()
        async with request.stream(200, EVENTS) as send:
            for part in self.parts:
                await send(part)
            self.is_there.set()
            await self.go_on.wait()
            for part in self.rest:
                await send(part)


async def begin(port: int, body) -> trio.SocketStream:
    """A client that has sent its request."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    data = json.dumps(body).encode()
    await stream.send_all(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return stream


async def read_until(stream, text: bytes) -> bytes:
    data = b""
    while text not in data:
        part = await stream.receive_some()
        assert part, data
        data += part
    return data


class Engine:
    """A scripted worker. asked: bodies of the completions that came; fields: their headers; gone: how many clients went
    away while it answered. health: the status of /health.
    """

    def __init__(self) -> None:
        self.asked, self.fields, self.scripts = [], [], []
        self.models = ("m",)
        self.health, self.gone, self.port = 200, 0, 0
        self.max_requests = None
        self.server = None
        self._scope = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request) -> None:
        """One request to it."""
        if request.path == "/health":
            await request.respond(self.health, [])
        elif request.path == "/v1/models":
            await request.respond(200, JSON, json.dumps({"data": [{"id": name} for name in self.models]}).encode())
        elif request.path in ("/v1/completions", "/v1/chat/completions"):
            body = json.loads(await request.body())
            self.asked.append(body)
            self.fields.append(dict(request.headers))
            script = self.scripts.pop(0) if self.scripts else usual
            try:
                await script(request, body)
            finally:
                self.gone += request.gone
        else:
            await request.respond(404, [])

    async def run(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        """Listen, on the port that it had before if it had one, until killed."""
        listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                self.server = await nursery.start(serve_http, listeners, self.handle, Limits())
                task_status.started(self)

    @staticmethod
    async def break_off(request) -> None:
        """As a process that dies while it answers: this connection ends here."""
        request._connection.life.cancel()
        await trio.sleep_forever()

    def kill(self) -> None:
        """As a process that dies: all its connections break."""
        self._scope.cancel()


def configured(*engines: Engine, **settings) -> PolicyDesk:
    """A desk for a gateway; settings by key, with __ for the dot."""
    given = {
        "listen.port": 0, "admin.port": 0,
        "workers": tuple(UpstreamSpec(item.url, max_requests=item.max_requests) for item in engines),
        "timeouts.probe_interval_s": 0.05, "timeouts.pause_s": 0.05, "timeouts.drain_s": 5.0,
        "scheduler.default_busy_threshold_frac": 16.0,
        **{key.replace("__", "."): value for key, value in settings.items()}}
    config, _ = resolve({key: Given(value, "test") for key, value in given.items()})
    return PolicyDesk(config)


class World:
    """What a story acts on. pool: a client of the gateway."""

    def __init__(self, nursery, gateway, engines) -> None:
        self.nursery, self.gateway, self.engines = nursery, gateway, engines
        self.pool = Pool("127.0.0.1", gateway.port)

    async def post(self, body, path="/v1/completions", headers=(), timeout_s=PATIENCE_S):
        """One request: status, headers as a dictionary, body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, fields, answer = await self.pool.fetch("POST", path, [*JSON, *headers], data, timeout_s=timeout_s)
        return status, dict(fields), answer

    async def get(self, path):
        """The same for a GET."""
        status, fields, answer = await self.pool.fetch("GET", path, [], timeout_s=PATIENCE_S)
        return status, dict(fields), answer

    async def loads(self):
        """Requests, prefill tokens and blocks that are booked, and live requests."""
        loads, stats = await self.gateway.router.loads(), await self.gateway.router.stats()
        return [int(loads[name].sum()) for name in ("requests", "prefill_tokens", "active_blocks")] + [
            stats.live_requests]

    async def until(self, condition) -> None:
        """Wait for what must come about."""
        with trio.fail_after(PATIENCE_S):
            while True:
                result = condition()
                if (await result if hasattr(result, "__await__") else result):
                    return
                await trio.sleep(0.005)

    async def settled(self) -> None:
        """Nothing is booked, nothing waits, the books are right, and the next request works."""
        async def is_empty():
            return await self.loads() == [0, 0, 0, 0]

        await self.until(is_empty)
        assert await self.gateway.router.read(Scheduler.audit) == []
        assert self.gateway.app.inside == 0
        assert all(worker.running == 0 for worker in self.gateway.fleet)
        status, _, body = await self.post(PROMPT)
        assert (status, json.loads(body)["choices"][0]["text"]) == (200, "xx")
        await self.until(is_empty)
        await self.until(lambda: self.gateway.app.server.bodies.held == 0)

    async def outcomes(self) -> tuple[int, int]:
        """How many requests have been completed, and how many have ended otherwise after a dispatch."""
        stats = await self.gateway.router.stats()
        return stats.completed, stats.aborted


@asynccontextmanager
async def world(engines: int | list[Engine] = 1, **settings):
    """A gateway in front of workers, all of them known to be up."""
    engines = [Engine() for _ in range(engines)] if isinstance(engines, int) else engines
    async with trio.open_nursery() as nursery:
        for engine in engines:
            await nursery.start(engine.run)
        gateway = await nursery.start(serve, configured(*engines, **settings))
        it = World(nursery, gateway, engines)
        await it.until(lambda: all(worker.models is not None for worker in gateway.fleet))
        yield it
        it.pool.close()
        nursery.cancel_scope.cancel()


def story(function):
    """Run an asynchronous test under trio, for so long at most."""
    @functools.wraps(function)
    def run(*args, **kwargs):
        async def main():
            with trio.fail_after(4 * PATIENCE_S):
                await function(*args, **kwargs)

        trio.run(main)

    return run
