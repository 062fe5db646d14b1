"""Serves listeners: accepts connections, bounds their number, hears of clients that have gone, stops in good order.

    async with trio.open_nursery() as nursery:
        listeners = await listen("127.0.0.1", 8000)
        server = await nursery.start(serve_http, listeners, handler, Limits())
        ...
        server.stop()   # nothing new; what is under way is answered, then serve_http returns
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence

import trio

from .connection import Connection, Handler, Refuse
from .transport import Socket
from .values import Bodies, HttpError, Limits, plain_answer
from .watch import Watch

#: Connections above the limit that may be told so at a time; beyond, they are closed at once.
REFUSALS = 64
#: Longest time between two looks at what connections are waiting for.
REAP_S = 1.0
#: What accepting fails with while descriptors or memory are short: it is tried again.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
_SHORTAGE_S = 0.1

log = logging.getLogger("kvcore.http")


async def listen(host: str, port: int) -> Sequence[trio.SocketListener]:
    """Listeners for this address; port 0 takes a free one.

    Raises: OSError, whose filename is the address: a message that says only what went wrong does not say where.
    """
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as error:
        error.filename = f"{host}:{port}"
        raise


class Server:
    """What is being served. connections: those that are open. refused: how many there was no room for. bodies: what
    their requests' bodies take.

    ended: set when the last one has been answered after `stop`.
    """

    def __init__(self, handler: Handler, limits: Limits, refuse: Refuse) -> None:
        self.limits = limits
        self.connections: set[Connection] = set()
        self.refused = 0
        self.bodies = Bodies(limits.body_bytes_total)
        self.ended = trio.Event()
        self._handler, self._refuse = handler, refuse
        self._accepting = trio.CancelScope()
        self._watch = Watch()
        self._stopping = False
        self._refusing = 0

    def stop(self) -> None:
        """Accept nothing more; connections end when what is under way on them has been answered."""
        self._stopping = True
        self._accepting.cancel()
        for connection in list(self.connections):
            connection.stop()

    async def _run(self, listeners: Sequence[trio.SocketListener], task_status: trio.TaskStatus[Server]) -> None:
        async with trio.open_nursery() as around:
            around.start_soon(self._watch.run)
            around.start_soon(self._reap)
            async with trio.open_nursery() as nursery:
                try:
                    with self._accepting:
                        async with trio.open_nursery() as accepting:
                            for listener in listeners:
                                accepting.start_soon(self._accept, listener, nursery)
                            task_status.started(self)
                finally:
                    for listener in listeners:
                        listener.socket.close()
            around.cancel_scope.cancel()

    async def _reap(self) -> None:
        """Cut off whoever has been waited for too long, at the latest a quarter of that too late."""
        limits = self.limits
        tick_s = min(REAP_S, limits.idle_s / 4, limits.head_s / 4, limits.body_s / 4, limits.write_s / 4)
        while True:
            await trio.sleep(tick_s)
            now = trio.current_time()
            for connection in self.connections:
                if now > connection.due:
                    connection.life.cancel()

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    continue  # a connection that was gone before it was taken
                log.error("cannot accept: %s", error.strerror)
                await trio.sleep(_SHORTAGE_S)
                continue
            if len(self.connections) < self.limits.connections:
                nursery.start_soon(self._serve, stream)
            elif self._refusing < REFUSALS:
                self._refusing += 1
                nursery.start_soon(self._turn_away, stream)
            else:
                self.refused += 1
                stream.socket.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = self._connect(stream)
        if connection is None:
            return
        self.connections.add(connection)
        descriptor = connection.socket.descriptor
        self._watch.add(descriptor, connection.lose)
        try:
            if self._stopping:
                connection.stopping = True
            await connection.serve(self._handler)
        finally:
            self._watch.forget(descriptor)
            connection.socket.close()
            self.connections.discard(connection)

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        """One request is read and answered: there are too many connections."""
        async def refuse(_: object) -> None:
            raise HttpError(503, "too many connections", "too_many_connections")

        connection = self._connect(stream)
        try:
            if connection is not None:
                self.refused += 1
                with trio.move_on_after(self.limits.linger_s):
                    await connection.serve(refuse)
        finally:
            self._refusing -= 1
            if connection is not None:
                connection.socket.close()

    def _connect(self, stream: trio.SocketStream) -> Connection | None:
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:  # gone before it was looked at
            stream.socket.close()
            return None
        return Connection(Socket(stream), f"{host}:{port}", self.limits, self._refuse, self.bodies)


async def serve_http(
    listeners: Sequence[trio.SocketListener], handler: Handler, limits: Limits | None = None, *,
    refuse: Refuse = plain_answer, task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until stopped or cancelled; cancelled, it cuts all connections. Tells task_status the Server.

    handler: called for each request, in the task of its connection. What it raises becomes an answer: HttpError its
    status, anything else 500. refuse: words such answers.
    """
    server = Server(handler, limits or Limits(), refuse)
    try:
        await server._run(listeners, task_status)
    finally:
        server.ended.set()
