"""The other side: connections to one address, used again when an exchange has been complete, and only then.

    exchange = await pool.start("POST", "/v1/completions", headers, body)
    try:
        while not exchange.is_complete:
            part = await exchange.read()
    finally:
        exchange.close()

Cancelling is closing. Nothing here has a deadline but connecting and `fetch`: whoever runs an exchange bounds it with a
cancel scope of his own, whose deadline he can move as it goes on.
"""

from __future__ import annotations

import ssl

import h11
import trio

from .tls import TlsSocket, reason_of
from .transport import Socket
from .values import BadResponse, ConnectFailed, ConnectionLost, Headers, TimedOut
from .wire import END, fields_of, to_send

#: Idle connections that are kept, and how long: less than the usual five seconds of a server would waste most of them.
IDLE_MAX = 1024
IDLE_S = 60.0
HEAD_BYTES = 65536
#: Most of a body that `fetch` takes.
FETCH_BYTES = 4 * 2**20


class Exchange:
    """One request and its response, on a connection of its own as long as it lasts.

    status, headers: of the response, once `Pool.start` has returned. is_complete: nothing more is to be read.
    """

    __slots__ = (
        "_eof", "_idle_since", "_is_hungry", "_pool", "_protocol", "_socket", "begun", "headers", "is_complete",
        "status",
    )

    def __init__(self, pool: Pool, socket: Socket) -> None:
        self._pool, self._socket = pool, socket
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._idle_since = 0.0
        self._eof = False
        self._is_hungry = True  # h11 has said that it needs more, or has been given nothing yet
        self.begun = self.is_complete = False
        self.status = 0
        self.headers: Headers = []

    async def ask(self, request: h11.Request, body: bytes) -> None:
        """Send a request and read the head of its response."""
        protocol, socket = self._protocol, self._socket
        data = protocol.send(request) or b""
        if body:
            data += protocol.send(h11.Data(data=body)) or b""
        data += protocol.send(END) or b""
        try:
            sent = socket.send_now(data)
            with memoryview(data) as view:
                while sent < len(data):
                    sent += await socket.send_some(view[sent:])
        except OSError:
            pass  # it may have answered before it has read all: that is what reading will tell
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                break
        self.status, self.headers = event.status_code, fields_of(event)

    async def read(self) -> bytes:
        """More of the body, all that has come; b"" only at its end. Raises ConnectionLost, BadResponse."""
        if self.is_complete:
            return b""
        event = await self._next()
        if not isinstance(event, h11.Data):
            self.is_complete = True
            return b""
        first = event.data
        parts: list[bytes] | None = None
        next_event = self._protocol.next_event
        while True:  # what else has come with it
            try:
                more = next_event()
            except h11.RemoteProtocolError:
                break  # said again by the next read
            if isinstance(more, h11.Data):
                if parts is None:
                    parts = [first]
                parts.append(more.data)
            else:
                self._is_hungry = more is h11.NEED_DATA
                self.is_complete = isinstance(more, h11.EndOfMessage)
                break
        return bytes(first) if parts is None else b"".join(parts)

    async def _next(self) -> object:
        protocol = self._protocol
        try:
            event = h11.NEED_DATA if self._is_hungry else protocol.next_event()
            self._is_hungry = False
            while event is h11.NEED_DATA:
                data = await self._socket.receive()
                self._eof = not data
                self.begun |= not self._eof
                protocol.receive_data(data)
                event = protocol.next_event()
        except OSError as error:
            raise ConnectionLost(str(error), self.begun) from error
        except h11.RemoteProtocolError as error:
            kind = ConnectionLost if self._eof else BadResponse
            raise kind(str(error), self.begun) from error
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            raise ConnectionLost("closed without a response", self.begun)
        return event

    def close(self) -> None:
        """It is over: the connection goes back to its pool if the exchange was complete, else it is closed."""
        protocol = self._protocol
        if self.is_complete and protocol.our_state is h11.DONE and protocol.their_state is h11.DONE:
            self._pool._give_back(self)
        else:
            self._socket.close()

    def _renew(self) -> None:
        self._protocol.start_next_cycle()
        self.begun = self.is_complete = False
        self._is_hungry = True
        self._idle_since = trio.current_time()


class Pool:
    """Connections to one address. opened: how many have ever been made. tls: what they must satisfy; None: no TLS."""

    def __init__(
        self, host: str, port: int, *, connect_s: float = 5.0, idle_max: int = IDLE_MAX,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host, self.port = host, port
        self.opened = 0
        self._authority = f"[{host}]:{port}".encode() if ":" in host else f"{host}:{port}".encode()
        self._connect_s, self._idle_max, self._tls = connect_s, idle_max, tls
        self._idle: list[Exchange] = []
        self._closed = False

    async def start(self, method: str, target: str, headers: Headers, body: bytes = b"") -> Exchange:
        """Send a request and wait for the head of its response. Raises UpstreamError.

        headers: without those of the framing, which are written here. A connection that was idle and turns out to be
        closed before it has given a byte is replaced, once, by a new one.
        """
        fields = type(headers)([(b"host", self._authority), *headers])
        if body or method == "POST":
            fields.append((b"content-length", b"%d" % len(body)))
        request = h11.Request(method=method, target=target, headers=to_send(fields))
        exchange = self._take()
        if exchange is not None:
            try:
                await exchange.ask(request, body)
                return exchange
            except ConnectionLost:
                exchange.close()
                if exchange.begun:
                    raise
            except BaseException:
                exchange.close()
                raise
        exchange = await self._connect()
        try:
            await exchange.ask(request, body)
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def fetch(
        self, method: str, target: str, headers: Headers, body: bytes = b"", *, timeout_s: float = 5.0,
        limit: int = FETCH_BYTES,
    ) -> tuple[int, Headers, bytes]:
        """A whole exchange: status, fields, body. Raises UpstreamError, TimedOut among them."""
        with trio.move_on_after(timeout_s):
            exchange = await self.start(method, target, headers, body)
            try:
                parts: list[bytes] = []
                size = 0
                while not exchange.is_complete:
                    part = await exchange.read()
                    size += len(part)
                    if size > limit:
                        raise BadResponse(f"the response is larger than {limit} bytes", True)
                    parts.append(part)
                return exchange.status, exchange.headers, b"".join(parts)
            finally:
                exchange.close()
        raise TimedOut(f"no answer within {timeout_s} s")

    def sweep(self) -> None:
        """Close idle connections that the other side has closed, or that nobody has used for long."""
        oldest = trio.current_time() - IDLE_S
        kept: list[Exchange] = []
        for exchange in self._idle:
            if exchange._idle_since > oldest and exchange._socket.is_quiet():
                kept.append(exchange)
            else:
                exchange._socket.close()
        self._idle = kept

    def close(self) -> None:
        """Close what is idle; what is under way is closed when it is over."""
        self._closed = True
        for exchange in self._idle:
            exchange._socket.close()
        self._idle.clear()

    @property
    def idle(self) -> int:
        """Connections that wait to be used again."""
        return len(self._idle)

    def _take(self) -> Exchange | None:
        while self._idle:
            exchange = self._idle.pop()
            if exchange._socket.is_quiet():
                return exchange
            exchange._socket.close()
        return None

    def _give_back(self, exchange: Exchange) -> None:
        if self._closed or len(self._idle) >= self._idle_max or exchange._protocol.trailing_data[0]:
            exchange._socket.close()
        else:
            exchange._renew()
            self._idle.append(exchange)

    async def _connect(self) -> Exchange:
        try:
            with trio.fail_after(self._connect_s):
                socket = await self._open()
        except trio.TooSlowError:
            raise ConnectFailed(f"no connection within {self._connect_s} s") from None
        except OSError as error:
            raise ConnectFailed(reason_of(error), _is_refusal(error)) from error
        self.opened += 1
        return Exchange(self, socket)

    async def _open(self) -> Socket:
        stream = await trio.open_tcp_stream(self.host, self.port)
        if self._tls is None:
            return Socket(stream)
        socket = TlsSocket(stream, self._tls, self.host)
        try:
            await socket.shake_hands()
        except BaseException:
            socket.close()
            raise
        return socket


def _is_refusal(error: BaseException | None) -> bool:
    """Whether every address has refused: trio gives the errors of all as a group, or the only one."""
    if isinstance(error, ExceptionGroup):
        return all(_is_refusal(item) for item in error.exceptions)
    return isinstance(error, ConnectionRefusedError) or (isinstance(error, OSError) and _is_refusal(error.__cause__))
