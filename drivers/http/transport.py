"""A connected socket under trio, without its checkpoints where nothing has to be waited for.

Reading always waits, and so lets others run; writing waits only when there is no room. A task that does both in turn is
as fair as trio's own streams, at half their passes through the scheduler.
"""

from __future__ import annotations

import contextlib
import socket

import trio

RECEIVE_MAX = 65536


class Socket:
    """One connection. Used by one task at a time, which also closes it."""

    __slots__ = ("_descriptor", "_raw")

    def __init__(self, stream: trio.SocketStream) -> None:
        """Take over the socket of a stream, which is not to be used any more."""
        self._raw = socket.socket(fileno=stream.socket.detach())
        self._raw.setblocking(False)
        self._descriptor = self._raw.fileno()

    @property
    def descriptor(self) -> int:
        """The file descriptor; negative once it is closed."""
        return self._raw.fileno()

    async def receive(self) -> bytes:
        """What has come; b"": the peer sends no more. Raises OSError."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                return self._raw.recv(RECEIVE_MAX)
            except BlockingIOError:
                continue

    def send_now(self, data: bytes | memoryview) -> int:
        """Hand over what there is room for; how much that was. Raises OSError."""
        try:
            return self._raw.send(data)
        except BlockingIOError:
            return 0

    async def send_some(self, data: bytes | memoryview) -> int:
        """The same once there is room. Raises OSError."""
        await trio.lowlevel.wait_writable(self._descriptor)
        return self.send_now(data)

    def is_quiet(self) -> bool:
        """Whether it is open and has nothing to read: what an idle connection must be to be used again."""
        try:
            self._raw.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def finish_sending(self) -> None:
        """Tell the peer that nothing more comes."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it; once more does no harm."""
        self._raw.close()
