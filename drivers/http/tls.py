"""A connection under TLS, of the side that has opened it: bytes go through `ssl`, the waiting stays transport.py's.

Records are made and read in memory, so an idle connection can be asked at once whether anything is left in it: trio's
own TLS stream keeps what it has received to itself. A peer that ends without saying so has broken off: a body whose end
is the end of the connection could have been cut by anybody.
"""

from __future__ import annotations

import contextlib
import ssl

import trio

from .transport import RECEIVE_MAX, Socket

#: Most that is encrypted ahead of what the kernel takes.
AHEAD_BYTES = 256 * 1024


class TlsSocket(Socket):
    """One connection; see Socket. Errors of TLS are OSErrors."""

    __slots__ = ("_incoming", "_object", "_outgoing", "_unsent")

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext, host: str) -> None:
        """Take over the socket of a stream. host: whom its certificate must be for."""
        super().__init__(stream)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._unsent = b""

    async def shake_hands(self) -> None:
        """Agree with the peer on keys, and see that it is who it should be. Raises OSError."""
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                self._take(await super().receive())
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # tell the peer why
                    super().send_now(self._outgoing.read())
                raise
        await self._flush()

    async def receive(self) -> bytes:
        """See Socket."""
        while True:
            await self._flush()
            try:
                return self._object.read(RECEIVE_MAX)
            except ssl.SSLWantReadError:
                self._take(await super().receive())

    def send_now(self, data: bytes | memoryview) -> int:
        """See Socket. What is taken and cannot leave at once leaves before anything else is sent or received."""
        if self._unsent:
            return 0
        count = self._object.write(data[:AHEAD_BYTES])
        records = self._outgoing.read()
        self._unsent = records[super().send_now(records):]
        return count

    async def send_some(self, data: bytes | memoryview) -> int:
        """See Socket."""
        await self._flush()
        return self.send_now(data)  # of what does not fit some has been taken all the same

    def is_quiet(self) -> bool:
        """See Socket; nothing may be left of what was received either."""
        return not (self._incoming.pending or self._object.pending() or self._unsent) and super().is_quiet()

    def _take(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        """Send what has been encrypted, or has to be said in answer to what was received."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        while self._unsent:
            self._unsent = self._unsent[super().send_now(self._unsent):]
            if self._unsent:
                await trio.lowlevel.wait_writable(self.descriptor)


def trusting(ca_file: str | None = None) -> ssl.SSLContext:
    """What a connection must satisfy: a certificate for its host, by an authority of the system or one in the file.
    Raises OSError for a file that holds none.
    """
    return ssl.create_default_context(cafile=ca_file)


def reason_of(error: OSError) -> str:
    """What has gone wrong, in words that somebody with the certificate at hand can use."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS connection: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return str(error)
