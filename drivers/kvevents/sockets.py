"""zmq sockets that tasks of trio wait for: subscriptions, replays, and what a subscription's connections go through."""

from __future__ import annotations

from typing import TypeAlias
from urllib.parse import urlsplit

import trio
import zmq

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
Socket: TypeAlias = "zmq.Socket[bytes]"

#: Longest message that is taken; a connection that sends a longer one is closed and opened again.
MESSAGE_MAX = 64 * 2**20
#: Messages that may wait to be read. PUB drops what is beyond, which leaves a gap, which is asked for.
LIVE_MAX, ANSWERS_MAX = 10_000, 1_000
HEARTBEAT_MS, SILENCE_MS = 5_000, 20_000


def of_rank(endpoint: str, dp_rank: int) -> str:
    """The endpoint of a rank, given that of rank 0: engines count ports up, and mark other addresses by a suffix.

    Raises ValueError for what is no endpoint.
    """
    scheme, _, rest = endpoint.partition("://")
    if scheme not in ("tcp", "ipc") or not rest:
        raise ValueError(f"an endpoint is tcp://HOST:PORT or ipc://PATH, not {endpoint!r}")
    if scheme != "tcp":
        return f"{endpoint}_dp{dp_rank}" if dp_rank else endpoint
    parts = urlsplit(endpoint)
    if not parts.port or not parts.hostname or parts.path or not 0 <= parts.port + dp_rank < 2**16:
        raise ValueError(f"rank {dp_rank} has no port counted from {endpoint!r}")
    return f"{endpoint.rpartition(':')[0]}:{parts.port + dp_rank}"


def subscription(context: Context, endpoint: str, topic: bytes) -> Socket:
    """A SUB socket for this endpoint, not attached to it yet."""
    socket = _socket(context, zmq.SUB, endpoint, LIVE_MAX)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    return socket


def monitor(socket: Socket) -> Socket:
    """Where a message comes each time that a connection of this socket is up; made before the socket is attached."""
    return socket.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)


def attach(socket: Socket, endpoint: str, bind: bool) -> None:
    """bind: publishers connect to us. Raises zmq.ZMQError."""
    if bind:
        socket.bind(endpoint)
    else:
        socket.connect(endpoint)


def question(context: Context, endpoint: str, frames: list[bytes]) -> Socket:
    """A DEALER socket that has asked this; while it is not connected, it keeps the question. Raises zmq.ZMQError."""
    socket = _socket(context, zmq.DEALER, endpoint, ANSWERS_MAX)
    try:
        socket.connect(endpoint)
        socket.send_multipart(frames, zmq.NOBLOCK)
    except BaseException:
        socket.close()
        raise
    return socket


async def receive(socket: Socket) -> list[bytes]:
    """The next message. One task at a time."""
    await trio.lowlevel.checkpoint()
    while True:
        try:
            return socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            await trio.lowlevel.wait_readable(socket.fileno())


def _socket(context: Context, kind: int, endpoint: str, waiting_max: int) -> Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, waiting_max)
    socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_MAX)
    socket.setsockopt(zmq.IPV6, int("[" in endpoint))
    if endpoint.startswith("tcp"):
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    return socket
