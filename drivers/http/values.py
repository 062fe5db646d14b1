"""What the two sides of HTTP share: limits, what can go wrong, and the body of an error."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

#: Fields of a message: lower-case name, value.
Headers = list[tuple[bytes, bytes]]
#: A complete answer: status, fields, body.
Answer = tuple[int, Headers, bytes]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server lets its clients take of it. Seconds; bytes.

    connections: at once; one more is told 503. head_bytes: of a request line and its fields. body_bytes: of a body,
    where the handler names no other bound. body_bytes_total: of all bodies together, each as long as its request is
    handled; what finds no room is told 429.
    idle_s: between two requests. head_s, body_s: for a request's head and for its body to arrive, each as a whole.
    write_s: how long a client may take nothing of what is sent to it. linger_s: how long it may take to hear of an
    error before it has sent all.
    """

    connections: int = 8192
    head_bytes: int = 65536
    body_bytes: int = 8 * 2**20
    body_bytes_total: int = 2**30
    idle_s: float = 75.0
    head_s: float = 10.0
    body_s: float = 60.0
    write_s: float = 30.0
    linger_s: float = 2.0


class HttpError(Exception):
    """A request that cannot be served: which status says so, and why."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class TooLarge(HttpError):
    """A body above its limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"the body is larger than {limit} bytes", "request_too_large")


class NoRoom(HttpError):
    """A body for which there is no memory now."""

    def __init__(self) -> None:
        super().__init__(429, "too many bytes of request bodies are being held", "gateway_full")


class Bodies:
    """What the bodies of one server's requests take together. held: bytes, now."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def look(self, size: int) -> None:
        """Whether there would be room for so much. Raises NoRoom."""
        if self.held + size > self._limit:
            raise NoRoom

    def take(self, size: int) -> None:
        """So much has come. Raises NoRoom; then it does not count."""
        self.look(size)
        self.held += size

    def give_back(self, size: int) -> None:
        """So much is held no more."""
        self.held -= size


class ClientGone(Exception):
    """The client has closed its connection, seen while something was sent to it."""


class UpstreamError(Exception):
    """An exchange with an upstream has failed. `begun`: it had sent some of its response."""

    begun = False


class ConnectFailed(UpstreamError):
    """There is no connection to be had. refused: nobody listens there, so whoever did has ended."""

    def __init__(self, message: str, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class ConnectionLost(UpstreamError):
    """It has closed the connection before its response was complete."""

    def __init__(self, message: str, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class BadResponse(UpstreamError):
    """What it has sent is no HTTP response, or a larger one than was asked for."""

    def __init__(self, message: str, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class TimedOut(UpstreamError):
    """It has not answered in time."""


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """The body of an error, in the shape that clients of this kind of server know."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def plain_answer(error: HttpError) -> Answer:
    """An error as a complete answer."""
    return error.status, [(b"content-type", b"application/json")], error_body(error.status, error.message, error.code)
