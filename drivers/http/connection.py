"""One connection of a server: its requests one after the other, in one task.

Everything that ends a connection early cancels its one scope, `life`: a client that has gone, is too slow to send or to
read, or a server that stops. `due` is until when what is waited for must have come; a handler has for ever. The server
looks at it now and then, which costs a request less than a deadline that is moved six times.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

import h11
import trio

from .request import Request
from .transport import Socket
from .values import Answer, Bodies, ClientGone, Headers, HttpError, Limits, TooLarge
from .wire import END, check_head, check_request, malformed, to_send

Handler = Callable[[Request], Awaitable[None]]
#: Words an error that no handler has answered.
Refuse = Callable[[HttpError], Answer]

#: Most that is read of a body that nobody wants, so that its sender hears of it.
LINGER_BYTES = 2**20
#: Fields of an answer that this end writes itself.
_OURS = frozenset({b"connection", b"content-length", b"transfer-encoding", b"keep-alive"})

log = logging.getLogger("kvcore.http")


class Connection:
    """A client's connection. is_idle: it is between two requests. stopping: it is not to be used again. due: in seconds
    of trio's clock.
    """

    def __init__(self, socket: Socket, peer: str, limits: Limits, refuse: Refuse, bodies: Bodies) -> None:
        self.socket, self.peer = socket, peer
        self.protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self.life = trio.CancelScope()
        self.due = math.inf
        self.gone = self.is_idle = self.stopping = False
        self._limits, self._refuse, self._bodies = limits, refuse, bodies

    def lose(self) -> None:
        """The peer has gone."""
        self.gone = True
        self.life.cancel()

    def stop(self) -> None:
        """End it as soon as no request is under way."""
        self.stopping = True
        if self.is_idle and self.socket.is_quiet():
            self.life.cancel()

    # Requests.

    async def serve(self, handler: Handler) -> None:
        """Serve until one side ends it."""
        with self.life:
            try:
                while await self._serve_one(handler):
                    pass
            except (ClientGone, OSError, h11.LocalProtocolError) as error:
                log.debug("connection of %s: %s", self.peer, error)

    async def _serve_one(self, handler: Handler) -> bool:
        request = None
        try:
            request = await self._next_request()
            if request is None:
                return False
            await handler(request)
            if not request.started:
                raise HttpError(500, "the request was not answered", "internal_error")
        except HttpError as error:
            await self._fail(request, error)
        except h11.RemoteProtocolError as error:
            await self._fail(request, malformed(error))
        except (ClientGone, h11.LocalProtocolError):
            raise
        except Exception:
            log.exception("a handler has failed")
            await self._fail(request, HttpError(500, "internal error", "internal_error"))
        finally:
            if request is not None:
                self._bodies.give_back(request.held)
        return await self._is_reusable()

    async def _next_request(self) -> Request | None:
        protocol, limits = self.protocol, self._limits
        self.due = trio.current_time() + limits.idle_s
        self.is_idle = not protocol.trailing_data[0]
        received = 0
        event = h11.NEED_DATA if self.is_idle else protocol.next_event()
        while not isinstance(event, h11.Request):
            if event is not h11.NEED_DATA:
                return None
            data = await self._receive()
            if self.is_idle:
                self.is_idle = False
                self.due = trio.current_time() + limits.head_s
            received += len(data)
            protocol.receive_data(data)
            event = protocol.next_event()
        self.due = math.inf
        if received > limits.head_bytes:  # what has come at once is bounded by what is read at once only
            check_head(event, limits.head_bytes)
        path, query, headers = check_request(event)
        return Request(self, event.method.decode("ascii"), path, query, headers)

    async def read_body(self, request: Request, limit: int | None) -> bytes:
        """See Request.body."""
        protocol = self.protocol
        most = self._limits.body_bytes if limit is None else limit
        length = request.header(b"content-length")
        if length is not None and int(length) > most:
            raise TooLarge(most)
        if length is not None:  # only what has come takes room: who announces much and sends nothing takes none
            self._bodies.look(int(length))
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                event = protocol.next_event()
            except h11.RemoteProtocolError as error:
                raise malformed(error) from error
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > most:
                    raise TooLarge(most)
                self._bodies.take(len(event.data))
                request.held = size
                parts.append(bytes(event.data))
            elif event is h11.NEED_DATA:
                if protocol.they_are_waiting_for_100_continue:
                    go_on = protocol.send(h11.InformationalResponse(status_code=100, headers=[]))
                    await self.send_bytes(go_on or b"")
                if self.due == math.inf:
                    self.due = trio.current_time() + self._limits.body_s
                protocol.receive_data(await self._receive())
            else:
                break
        self.due = math.inf
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _receive(self) -> bytes:
        try:
            return await self.socket.receive()
        except OSError as error:
            self.gone = True
            raise ClientGone(str(error)) from error

    # Answers.

    def start_answer(self, status: int, headers: Headers, length: int | None = None) -> bytes:
        """The head of an answer; length: of its body, None: sent in parts."""
        fields = type(headers)([item for item in headers if item[0] not in _OURS])
        if length is not None:
            fields.append((b"content-length", b"%d" % length))
        if self.stopping or not self._has_all():
            fields.append((b"connection", b"close"))
        return self.protocol.send(h11.Response(status_code=status, headers=to_send(fields))) or b""

    async def send_answer(self, request: Request | None, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer."""
        protocol = self.protocol
        out = self.start_answer(status, headers, len(body))
        if body and (request is None or request.method != "HEAD") and status not in (204, 304):
            out += protocol.send(h11.Data(data=body)) or b""
        out += protocol.send(END) or b""
        await self.send_bytes(out)

    async def send_bytes(self, data: bytes) -> None:
        """Hand all of it to the kernel. Raises ClientGone; a client that takes nothing for too long ends it all."""
        try:
            sent = self.socket.send_now(data)
            if sent < len(data):
                await self._send_rest(data, sent)
        except OSError as error:
            self.gone = True
            raise ClientGone(str(error)) from error

    async def _send_rest(self, data: bytes, sent: int) -> None:
        with memoryview(data) as view:
            while sent < len(data):
                self.due = trio.current_time() + self._limits.write_s
                sent += await self.socket.send_some(view[sent:])
        self.due = math.inf

    async def _fail(self, request: Request | None, error: HttpError) -> None:
        """Answer with an error, where that can still be done; else cut the connection."""
        self.stopping |= request is None  # nobody knows where its body ends
        if self.protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ClientGone("an answer that has begun cannot be finished")
        await self.send_answer(request, *self._refuse(error))

    # Between requests.

    def _has_all(self) -> bool:
        """Whether the whole request has come. What of its body is here already, and nobody has read, is dropped."""
        protocol = self.protocol
        while protocol.their_state is h11.SEND_BODY:
            try:
                if protocol.next_event() is h11.NEED_DATA:
                    return False
            except h11.RemoteProtocolError:
                return False
        return protocol.their_state in (h11.DONE, h11.MUST_CLOSE)

    async def _is_reusable(self) -> bool:
        protocol = self.protocol
        if protocol.our_state is h11.DONE and protocol.their_state is h11.DONE and not self.stopping:
            protocol.start_next_cycle()
            return True
        if protocol.their_state not in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            await self._linger()
        return False

    async def _linger(self) -> None:
        """Take some of what the client still sends: closing at once would destroy the answer on its way to it."""
        self.socket.finish_sending()
        self.due = trio.current_time() + self._limits.linger_s
        room = LINGER_BYTES
        while room > 0:
            data = await self.socket.receive()
            if not data:
                return
            room -= len(data)
