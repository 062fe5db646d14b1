"""What a client is told when its request ends otherwise than well: one table, reason by reason.

    429 (or 529, if so configured)  there is capacity, others have it now: come again later
    503                             there is none: no worker, or this gateway is going
    504, 502                        the deadline has passed, or a worker was silent; a worker has failed
    400, 404, 413, ...              the request is wrong

Every member of RejectReason, EvictReason and Trouble has its row, which a test asserts. Bodies are OpenAI's; the reason
stands in `error.code` and in `x-kvcore-reason`. Whoever may come again is told when (retry_after.py); where that is
hopeless, `x-should-retry: false` says so.

Never here: what a reason means for a request's life; secrets, or addresses of workers, in messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import msgspec

from kvcore.actions import EvictReason, RejectReason

from ..http.values import (
    BadResponse,
    ClientGone,
    ConnectFailed,
    ConnectionLost,
    Headers,
    HttpError,
    TimedOut,
)
from ..protocol import Closed, Evicted, Rejected, Withdrawn
from .refusals import Refused, Trouble
from .retry_after import SECOND_NS, Jitter

Reason: TypeAlias = RejectReason | EvictReason | Trouble


class Wait(Enum):
    """What whoever comes again waits for: a pace of dispatches, the end of a pause, a health probe, this drain's end.

    NEVER: it is of no use. UNSAID: nothing is known; the client's own habits decide.
    """

    PACE = 1
    PAUSE = 2
    PROBE = 3
    DRAIN = 4
    NEVER = 5
    UNSAID = 6


class Row(NamedTuple):
    """How one reason is told. dropped: llm-d's word for it, or None. overload: whether `overload_status` applies."""

    status: int
    kind: str
    code: str
    message: str
    wait: Wait
    dropped: str | None = None
    overload: bool = False


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


_BAD, _RATE, _NONE, _SERVER, _LATE = (
    "invalid_request_error", "rate_limit_error", "service_unavailable_error", "server_error", "timeout_error")
_SATURATED, _NO_ENDPOINTS = "rejected-saturated", "rejected-no-endpoints"
_QUEUE = "The queue is full. Please try again later."


def _full(code: str) -> Row:
    return Row(429, _RATE, code, _QUEUE, Wait.PACE, _SATURATED, True)


_REJECTS: Mapping[RejectReason, Row] = {
    # The gateway mints the scheduler's ids: two equal ones are a bug.
    RejectReason.DUPLICATE_ID: Row(500, _SERVER, "duplicate_id", "The gateway has failed.", Wait.UNSAID),
    RejectReason.DEADLINE_EXPIRED: Row(
        504, _LATE, "deadline_expired", "The deadline passed while the request was queued.", Wait.NEVER,
        "rejected-ttl-expired"),
    RejectReason.PINNED_WORKER_NOT_ALLOWED: Row(
        400, _BAD, "pinned_worker_not_allowed", "The chosen worker may not serve this request.", Wait.NEVER),
    RejectReason.PINNED_WORKER_UNAVAILABLE: Row(
        503, _NONE, "pinned_worker_unavailable", "The chosen worker is not available.", Wait.PROBE, _NO_ENDPOINTS),
    RejectReason.NO_WORKERS: Row(
        503, _NONE, "no_workers", "There is no worker at present.", Wait.PROBE, _NO_ENDPOINTS),
    RejectReason.NO_ELIGIBLE_WORKER: Row(
        503, _NONE, "no_eligible_worker", "No available worker may serve this request.", Wait.PROBE, _NO_ENDPOINTS),
    RejectReason.QUEUE_FULL_REQUESTS: _full("queue_full_requests"),
    RejectReason.QUEUE_FULL_RAW_TOKENS: _full("queue_full_raw_tokens"),
    RejectReason.QUEUE_FULL_CACHED_TOKENS: _full("queue_full_cached_tokens"),
    RejectReason.WOULD_QUEUE: Row(
        429, _RATE, "would_queue", "The request would have to wait, and it asks not to.", Wait.PACE, _SATURATED, True),
    RejectReason.PINNED_WORKER_OVERLOADED: Row(
        429, _RATE, "pinned_worker_overloaded", "The chosen worker is overloaded.", Wait.PAUSE, _SATURATED, True),
    RejectReason.ALL_ELIGIBLE_OVERLOADED: Row(
        429, _RATE, "all_workers_overloaded", "All workers are overloaded.", Wait.PAUSE, _SATURATED, True),
    RejectReason.TOO_LARGE: Row(
        400, _BAD, "context_length_exceeded", "The request is larger than any worker's KV cache.", Wait.NEVER),
    RejectReason.SHUTTING_DOWN: Row(
        503, _NONE, "shutting_down", "This gateway is shutting down.", Wait.DRAIN, "rejected-shutting-down"),
    RejectReason.RETRIES_EXHAUSTED: Row(
        503, _NONE, "retries_exhausted", "No worker has taken the request.", Wait.PAUSE, _NO_ENDPOINTS),
    RejectReason.ADMISSION_REFUSED: Row(
        429, _RATE, "admission_refused", "The policy of this class refuses the request.", Wait.NEVER, _SATURATED),
}
_EVICTS: Mapping[EvictReason, Row] = {
    EvictReason.WORKER_REMOVED: Row(
        503, _NONE, "worker_removed", "The worker that ran the request is gone.", Wait.PROBE, "evicted"),
    EvictReason.BOOKING_EXPIRED: Row(
        504, _LATE, "booking_expired", "The worker made no progress in time.", Wait.UNSAID, "evicted"),
    EvictReason.DRAIN_DEADLINE: Row(
        503, _NONE, "drain_deadline", "This gateway is shutting down.", Wait.DRAIN, "evicted"),
}
_TROUBLES: Mapping[Trouble, Row] = {
    Trouble.MALFORMED: Row(400, _BAD, "invalid_request", "The request is malformed.", Wait.NEVER),
    Trouble.UNKNOWN_PATH: Row(404, _BAD, "unknown_path", "There is nothing at this path.", Wait.NEVER),
    Trouble.WRONG_METHOD: Row(405, _BAD, "method_not_allowed", "This path has no such method.", Wait.NEVER),
    Trouble.UNKNOWN_MODEL: Row(404, _BAD, "model_not_found", "The model does not exist.", Wait.NEVER),
    Trouble.BODY_TOO_LARGE: Row(413, _BAD, "request_too_large", "The body is too large.", Wait.NEVER),
    Trouble.HEADERS_TOO_LARGE: Row(431, _BAD, "headers_too_large", "The headers are too large.", Wait.NEVER),
    Trouble.SLOW_CLIENT: Row(408, _BAD, "request_timeout", "The request did not arrive in time.", Wait.UNSAID),
    Trouble.FORBIDDEN: Row(403, _BAD, "forbidden", "This call is not for pages in a browser.", Wait.NEVER),
    Trouble.NOT_FOUND: Row(404, _BAD, "not_found", "There is no such thing.", Wait.NEVER),
    Trouble.CONFLICT: Row(409, _BAD, "conflict", "That is there already.", Wait.NEVER),
    Trouble.GATEWAY_FULL: Row(
        429, _RATE, "gateway_full", "Too many requests are inside the gateway.", Wait.PACE, _SATURATED, True),
    Trouble.DRAINING: Row(
        503, _NONE, "shutting_down", "This gateway is shutting down.", Wait.DRAIN, "rejected-shutting-down"),
    Trouble.WITHDRAWN: Row(
        503, _NONE, "withdrawn", "An administrator has ended the request.", Wait.NEVER, "evicted"),
    # 499 is nobody's answer: it stands in logs and counters.
    Trouble.CLIENT_GONE: Row(
        499, _BAD, "client_gone", "The client has closed the connection.", Wait.NEVER, "rejected-context-cancelled"),
    Trouble.UPSTREAM_UNREACHABLE: Row(
        503, _NONE, "upstream_unreachable", "No worker could be reached.", Wait.PROBE, _NO_ENDPOINTS),
    Trouble.UPSTREAM_BUSY: Row(
        429, _RATE, "upstream_busy", "The worker is overloaded.", Wait.PAUSE, _SATURATED, True),
    Trouble.UPSTREAM_TIMEOUT: Row(504, _LATE, "upstream_timeout", "The worker did not answer in time.", Wait.UNSAID),
    Trouble.UPSTREAM_GARBAGE: Row(502, _SERVER, "upstream_garbage", "The worker's answer is broken.", Wait.UNSAID),
    Trouble.UPSTREAM_CUT: Row(502, _SERVER, "upstream_cut", "The worker ended before its answer did.", Wait.UNSAID),
    Trouble.INTERNAL: Row(500, _SERVER, "internal_error", "The gateway has failed.", Wait.UNSAID),
}

#: The whole, by kind: members of two kinds can be equal, for they are numbers.
TABLE: Mapping[type[Enum], Mapping[Any, Row]] = {
    RejectReason: _REJECTS, EvictReason: _EVICTS, Trouble: _TROUBLES,
}

_OF_HTTP = {
    408: Trouble.SLOW_CLIENT, 413: Trouble.BODY_TOO_LARGE, 429: Trouble.GATEWAY_FULL, 431: Trouble.HEADERS_TOO_LARGE,
}
_OF_OTHERS: tuple[tuple[type[BaseException], Trouble], ...] = (
    (Withdrawn, Trouble.WITHDRAWN), (Closed, Trouble.DRAINING), (ClientGone, Trouble.CLIENT_GONE),
    (ConnectFailed, Trouble.UPSTREAM_UNREACHABLE), (ConnectionLost, Trouble.UPSTREAM_CUT),
    (BadResponse, Trouble.UPSTREAM_GARBAGE), (TimedOut, Trouble.UPSTREAM_TIMEOUT),
)


def row_of(reason: Reason) -> Row:
    """How this reason is told."""
    return TABLE[type(reason)][reason]


def reason_of(error: BaseException) -> Reason:
    """The reason that an exception stands for; INTERNAL for one that is nobody's."""
    if isinstance(error, Rejected | Evicted):
        return error.reason
    if isinstance(error, Refused):
        return error.trouble
    if isinstance(error, HttpError):
        return _OF_HTTP.get(error.status, Trouble.MALFORMED)
    for kind, trouble in _OF_OTHERS:
        if isinstance(error, kind):
            return trouble
    return Trouble.INTERNAL


class Errors:
    """Answers to what went wrong.

    estimates: by what is waited for, how long that will be, in nanoseconds, or None where nobody knows.
    """

    def __init__(
        self, jitter: Jitter, estimates: Mapping[Wait, Callable[[], int | None]] | None = None, *,
        overload_status: int = 429,
    ) -> None:
        self._jitter, self._estimates, self._overload_status = jitter, dict(estimates or {}), overload_status

    def answer(self, what: Reason | BaseException, message: str | None = None) -> Reply:
        """The whole answer to a reason, or to the exception that carries one. message: in place of what is said."""
        reason = reason_of(what) if isinstance(what, BaseException) else what
        row = row_of(reason)
        status = self._overload_status if row.overload else row.status
        if isinstance(what, HttpError) and not row.overload:
            status = what.status
        headers: Headers = [(b"content-type", b"application/json"), (b"x-kvcore-reason", row.code.encode())]
        if row.dropped is not None:
            headers.append((b"x-llm-d-request-dropped-reason", row.dropped.encode()))
        headers += self._when(row.wait, what)
        return Reply(status, headers, msgspec.json.encode({"error": _told(what, reason, message)}))

    def event(self, what: Reason | BaseException, message: str | None = None) -> bytes:
        """The same for a stream whose status has been sent: an unnamed event that ends it."""
        reason = reason_of(what) if isinstance(what, BaseException) else what
        return b"data: " + msgspec.json.encode({"error": _told(what, reason, message)}) + b"\n\n"

    def _when(self, wait: Wait, what: Reason | BaseException) -> Headers:
        if wait is Wait.UNSAID:
            return []
        if wait is Wait.NEVER:
            return [(b"x-should-retry", b"false")]
        estimate_ns = None
        if isinstance(what, Rejected):
            estimate_ns = what.retry_after_ns
        elif isinstance(what, Refused):
            estimate_ns = what.retry_ns
        if estimate_ns is None and wait in self._estimates:
            estimate_ns = self._estimates[wait]()
        wait_ms = -(-self._jitter.spread_ns(estimate_ns or SECOND_NS) // 10**6)
        return [(b"retry-after", str(-(-wait_ms // 1000)).encode()), (b"retry-after-ms", str(wait_ms).encode())]


def _told(what: Reason | BaseException, reason: Reason, message: str | None) -> dict[str, str | None]:
    row = row_of(reason)
    said, param = message or row.message, None
    if isinstance(what, Refused):
        said, param = message or what.message or row.message, what.param
    elif isinstance(what, HttpError):
        said = message or what.message
    elif isinstance(what, Rejected) and what.action.limit:
        said = f"{said} ({what.action.current} of {what.action.limit})"
    return {"message": said, "type": row.kind, "param": param, "code": row.code}
