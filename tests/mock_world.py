"""What tests of the mock worker share: workers on loopback, and a client that sees every byte."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any

import trio
from kvcore.drivers.mock.server import MockConfig, MockWorker, serve_mock

#: Seconds after which a test hangs.
PATIENCE_S = 30


class Answer:
    """A response as read from the socket until the server closed it. is_whole: it has ended as HTTP says."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split()[1]) if raw else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        self.is_whole = bool(raw)
        if self.headers.get("transfer-encoding") == "chunked":
            self.body, self.is_whole = unchunked(rest)
        else:
            self.body = rest
            self.is_whole = len(rest) == int(self.headers.get("content-length", -1))

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """What its events say; [DONE] as it is."""
        parts = [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]
        return [part if part == "[DONE]" else json.loads(part) for part in parts]


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """A chunked body, and whether its end has come."""
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return b"".join(parts), True
        parts.append(data[:length])
        data = data[length + 2:]
    return b"".join(parts), False


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def open_request(url: str, method: str, path: str, body: Any = None, **headers: str) -> trio.SocketStream:
    """A connection on which a request has been sent. headers: x_mock_fault stands for x-mock-fault."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "here", "connection": "close", "content-length": str(len(data)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(url))
    await stream.send_all(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    return stream


async def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request and its whole answer."""
    async with await open_request(url, method, path, body, **headers) as stream:
        parts = []
        try:
            async for part in stream:
                parts.append(part)
        except trio.BrokenResourceError:
            pass            # a reset is an end as well
        return Answer(b"".join(parts))


def chat(text: str = "what is it?", **more: Any) -> dict[str, Any]:
    """Body of a chat."""
    return {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **more}


@asynccontextmanager
async def mock_worker(**options: Any):
    """A worker in this process, ten times as fast unless said otherwise."""
    config = MockConfig(**{"port": 0, "speed": 10.0, "max_num_seqs": 4, **options})
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            worker: MockWorker = await nursery.start(serve_mock, config)
            yield worker
            nursery.cancel_scope.cancel()


async def until(condition) -> None:
    """Wait until something holds; the patience of mock_worker bounds it."""
    while not condition():
        await trio.sleep(0.002)
