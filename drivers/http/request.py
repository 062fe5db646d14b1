"""One request as its handler sees it, and the way to answer it: whole, or as a stream."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import h11

from .values import Headers
from .wire import END

if TYPE_CHECKING:
    from .connection import Connection


class Request:
    """What a client asks for. Belongs to the task that handles it, which is cancelled when the client goes away.

    method: as sent. target: path and query, as sent. headers: lower-case names, in their order. peer: its address.
    started: whether some of the answer has been given; then no other can be. held: bytes of its body in memory.
    """

    __slots__ = ("_connection", "_fields", "headers", "held", "method", "path", "peer", "query", "started", "target")

    def __init__(self, connection: Connection, method: str, path: str, query: str, headers: Headers) -> None:
        self.method, self.path, self.query, self.headers = method, path, query, headers
        self.target = f"{path}?{query}" if query else path
        self.peer = connection.peer
        self.started = False
        self.held = 0
        self._connection = connection
        self._fields: dict[bytes, bytes] | None = None

    @property
    def fields(self) -> dict[bytes, bytes]:
        """Headers by name; of several with one name, the first."""
        if self._fields is None:
            self._fields = dict(reversed(self.headers))
        return self._fields

    def header(self, name: bytes) -> bytes | None:
        """A field by its lower-case name; of several, the first."""
        return self.fields.get(name)

    @property
    def gone(self) -> bool:
        """Whether the client is known to have closed its connection."""
        return self._connection.gone

    async def body(self, limit: int | None = None) -> bytes:
        """All of the body. Raises TooLarge beyond `limit` bytes, as soon as that is known; None: the server's limit."""
        return await self._connection.read_body(self, limit)

    async def respond(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """The whole answer. Raises ClientGone."""
        self.started = True
        await self._connection.send_answer(self, status, headers, body)

    def stream(self, status: int, headers: Headers) -> Stream:
        """An answer whose body is sent in parts: `async with request.stream(200, headers) as send: await send(b"")`.

        Its head leaves with the first part. An exception out of the block cuts the connection, so that the client can
        tell that the body is not complete.
        """
        self.started = True
        return Stream(self._connection, self, status, headers)


class Stream:
    """A body in parts, as a context manager whose value is `send`."""

    __slots__ = ("_connection", "_head", "_is_empty")

    def __init__(self, connection: Connection, request: Request, status: int, headers: Headers) -> None:
        self._connection = connection
        self._head = connection.start_answer(status, headers)
        self._is_empty = request.method == "HEAD" or status in (204, 304)

    async def send(self, data: bytes) -> None:
        """One part, handed to the kernel when this returns. Raises ClientGone."""
        out = b"" if self._is_empty or not data else self._connection.protocol.send(h11.Data(data=data)) or b""
        if self._head:
            out, self._head = self._head + out, b""
        await self._connection.send_bytes(out)

    async def finish(self, data: bytes = b"") -> None:
        """The last part and the end of the body in one. Raises ClientGone."""
        protocol = self._connection.protocol
        out = b"" if self._is_empty or not data else protocol.send(h11.Data(data=data)) or b""
        out = self._head + out + (protocol.send(END) or b"")
        self._head = b""
        await self._connection.send_bytes(out)

    async def __aenter__(self) -> Stream:
        return self

    async def __call__(self, data: bytes) -> None:
        """The same as `send`."""
        await self.send(data)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        if kind is None and self._connection.protocol.our_state is h11.SEND_BODY:
            await self.finish()
