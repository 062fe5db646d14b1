"""What hostile tests share: a gateway over loopback, an upstream that keeps every byte, and clients of raw bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
from kvcore.drivers.gateway.config import (
    Admin,
    GatewayConfig,
    Listen,
    PromptSource,
    TimeoutSettings,
    TokenizerSettings,
)
from kvcore.drivers.gateway.fleet import Health
from kvcore.drivers.gateway.gateway import Gateway, serve
from kvcore.drivers.gateway.policy_desk import PolicyDesk
from kvcore.drivers.gateway.upstreams import UpstreamSpec

BODY = b'{"model":"m","prompt":[1,2,3],"max_tokens":1}'
ANSWER = (
    b'{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"length"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1}}')
MODELS = b'{"object":"list","data":[{"id":"m"}]}'
CONFIG = GatewayConfig(
    listen=Listen(port=0), admin=Admin(port=None), tokenizer=TokenizerSettings(PromptSource.ESTIMATE),
    timeouts=TimeoutSettings(
        header_s=5.0, body_s=5.0, first_byte_s=5.0, idle_s=5.0, probe_interval_s=60.0, drain_s=1.0, pause_s=0.05))


def ok(body: bytes = ANSWER, extra: bytes = b"") -> bytes:
    """A response of an engine, as bytes."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n%s" % (
        len(body), extra, body)


def post(path: str = "/v1/completions", body: bytes = BODY, head: bytes = b"", close: bool = True) -> bytes:
    """A well-formed request, as bytes, with these header lines added."""
    end = b"connection: close\r\n" if close else b""
    return b"POST %s HTTP/1.1\r\nhost: gateway\r\ncontent-length: %d\r\n%s%s\r\n%s" % (
        path.encode("latin-1"), len(body), head, end, body)


class Upstream:
    """Takes connections, keeps the bytes of all requests but probes, answers each request with what `answers` says.

    requests: (head, body) of each completion, as they came. answer: what the next one is told.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.answer: Callable[[trio.SocketStream], Awaitable[None]] | bytes = ok()
        self.port = 0

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._connection, listeners)

    async def _connection(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    part = await stream.receive_some()
                    if not part:
                        return
                    data += part
                head, _, data = data.partition(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                while len(data) < length:
                    data += await stream.receive_some()
                body, data = data[:length], data[length:]
                target = head.split(b" ", 2)[1]
                if target == b"/health":
                    await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                elif target == b"/v1/models":
                    await stream.send_all(ok(MODELS))
                else:
                    self.requests.append((head, body))
                    if isinstance(self.answer, bytes):
                        await stream.send_all(self.answer)
                    else:
                        await self.answer(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def fields(self, index: int = -1) -> dict[bytes, bytes]:
        """Header fields of a request, by lower-case name."""
        return fields_of(self.requests[index][0])


def fields_of(head: bytes) -> dict[bytes, bytes]:
    """Header lines by lower-case name."""
    pairs = [line.partition(b":") for line in head.split(b"\r\n")[1:] if line]
    return {name.lower(): value.strip() for name, _, value in pairs}


class Attacker:
    """A client of the public port that says what it likes."""

    def __init__(self, gateway: Gateway, upstream: Upstream) -> None:
        self.gateway, self.upstream = gateway, upstream

    async def say(self, data: bytes, *, then_close: bool = False) -> bytes:
        """All that comes back until the gateway closes, or for three seconds."""
        async with await trio.open_tcp_stream("127.0.0.1", self.gateway.port) as stream:
            try:
                await stream.send_all(data)
                if then_close:
                    await stream.send_eof()
            except trio.BrokenResourceError:
                pass  # it has answered and gone before it had read all
            return await everything(stream)

    async def status(self, data: bytes) -> int:
        """The status of the first answer; 0 for none."""
        answer = await self.say(data)
        return int(answer.split(b" ", 2)[1]) if answer else 0

    async def still_serves(self) -> None:
        """What every attack must leave behind: a gateway that serves the next client, and books that are empty."""
        self.upstream.answer = ok()
        answer = await self.say(post())
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert answer.endswith(ANSWER), answer
        stats = await self.gateway.router.stats()
        assert (stats.live_requests, stats.running_requests, stats.waiting_requests) == (0, 0, 0)
        assert await self.gateway.router.read(lambda core: core.audit()) == []


async def everything(stream: trio.abc.ReceiveStream, patience_s: float = 3.0) -> bytes:
    """What comes until the other end closes, or for so long."""
    answer = b""
    with trio.move_on_after(patience_s):
        try:
            async for part in stream:
                answer += part
        except trio.BrokenResourceError:
            pass
    return answer


@asynccontextmanager
async def besieged(config: GatewayConfig = CONFIG) -> AsyncIterator[Attacker]:
    """A gateway with one upstream, and somebody at its door."""
    upstream = Upstream()
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.serve)
        config = replace(config, workers=(UpstreamSpec(f"http://127.0.0.1:{upstream.port}"),))
        gateway = await nursery.start(serve, PolicyDesk(config))
        with trio.fail_after(30):
            while not all(worker.health is Health.UP and worker.models for worker in gateway.fleet):
                await trio.sleep(0.005)
            yield Attacker(gateway, upstream)
            await Attacker(gateway, upstream).still_serves()
        nursery.cancel_scope.cancel()


def attack(story: Callable[[Attacker], Awaitable[None]], config: GatewayConfig = CONFIG) -> None:
    """Run a story against a gateway; afterwards it must still serve, with nothing booked."""
    async def run() -> None:
        async with besieged(config) as attacker:
            await story(attacker)

    trio.run(run)
