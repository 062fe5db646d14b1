"""Tables of HTTP: which fields belong to one hop, and which targets are let in. Stateless."""

from __future__ import annotations

import re
from typing import Any

import h11

from .values import Headers, HttpError

#: The end of a message without trailers. Events are frozen, so one serves for all.
END = h11.EndOfMessage()
#: Fields of one connection, never handed on; see also `Connection`, which can name more.
HOP_BY_HOP = frozenset({
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"trailers", b"transfer-encoding", b"upgrade", b"http2-settings",
})
#: What is said anew in front of a body of our own.
_FRAMING = frozenset({b"content-length", b"expect", b"host"})


class Checked(list[tuple[bytes, bytes]]):
    """Fields whose names and values h11 has checked when it parsed them, or that this program has made up itself."""

    __slots__ = ()


def end_to_end(headers: Headers, also: frozenset[bytes] = frozenset()) -> Checked:
    """Of fields that h11 has parsed, those that are handed on: not this hop's, what `Connection` names, or `also`."""
    drop = HOP_BY_HOP
    for name, value in headers:
        if name == b"connection":
            named = {item.strip().lower() for item in value.split(b",")}
            if not named <= _USUAL:
                drop = drop | named
    return Checked([
        item for item in headers if item[0] not in drop and item[0] not in _FRAMING and item[0] not in also])


def to_send(headers: Headers) -> Any:
    """Fields as h11 takes them: those that are checked in its own type, which it does not check a second time."""
    if not _TAKES_ITS_OWN or type(headers) is not Checked or _BROKEN(b"".join([value for _, value in headers])):
        return headers
    return _Own([(name, name, value) for name, value in headers])


def _takes_its_own() -> bool:
    """Whether h11 is still as this was written for; else it simply checks again."""
    try:
        request = h11.Request(method="GET", target="/", headers=_Own([(b"host", b"host", b"x")]))
    except Exception:
        return False
    return type(request.headers) is _Own and list(request.headers) == [(b"host", b"x")]


#: The type of an event's headers, which its constructors take as they are.
_Own: Any = type(h11.Request(method="GET", target="/", headers=[("host", "x")]).headers)
_TAKES_ITS_OWN = _takes_its_own()
_BROKEN = re.compile(rb"[\x00\r\n]").search

#: Options of `Connection` that name no field to be dropped beyond the table.
_USUAL = frozenset({b"", b"close", b"keep-alive"})


def malformed(error: h11.RemoteProtocolError) -> HttpError:
    """What is said of bytes that are no HTTP: what is wrong, and not what they were."""
    return HttpError(error.error_status_hint, f"malformed HTTP: {str(error).partition(':')[0][:80]}", "malformed_http")


def check_head(event: h11.Request, limit: int) -> None:
    """Refuse a request line and fields of more than so many bytes. Raises HttpError."""
    size = len(event.method) + len(event.target) + sum([len(name) + len(value) + 4 for name, value in event.headers])
    if size > limit:
        raise HttpError(431, f"the head of the request is larger than {limit} bytes", "headers_too_large")


def fields_of(event: h11.Request | h11.Response) -> Headers:
    """The fields of a parsed head, with lower-case names. h11's own iteration makes several calls for each."""
    return [(name.lower(), value) for name, value in event.headers.raw_items()]


def check_request(event: h11.Request) -> tuple[str, str, Headers]:
    """Path, query and fields of a request that can be understood in one way only. Raises HttpError.

    A message with two lengths, or with a length in a version that has none, is what smuggling is made of.
    """
    if event.http_version not in (b"1.1", b"1.0"):
        raise HttpError(505, "the version of HTTP must be 1.1 or 1.0")
    headers = fields_of(event)
    names = [name for name, _ in headers]
    codings, lengths = names.count(b"transfer-encoding"), names.count(b"content-length")
    if codings and (lengths or event.http_version != b"1.1"):
        raise HttpError(400, "Content-Length and Transfer-Encoding contradict each other")
    target = event.target
    if not target.startswith(b"/") or b"#" in target:
        raise HttpError(400, "the request target must be a path")
    path, _, query = target.decode("ascii").partition("?")
    return path, query, headers
