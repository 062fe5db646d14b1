"""Trouble: what ends a request besides the scheduler's own reasons; and the exception that carries it."""

from __future__ import annotations

from enum import Enum


class Trouble(Enum):
    """Why a request cannot be served or has not been served to its end, where no reason of the scheduler says so."""

    MALFORMED = "malformed"                        # the body, a field of it, or a hint
    UNKNOWN_PATH = "unknown_path"
    WRONG_METHOD = "wrong_method"
    UNKNOWN_MODEL = "unknown_model"
    BODY_TOO_LARGE = "body_too_large"
    HEADERS_TOO_LARGE = "headers_too_large"
    SLOW_CLIENT = "slow_client"                    # its headers or body have not come in time
    FORBIDDEN = "forbidden"                        # an administrator's call that a browser page could have made
    NOT_FOUND = "not_found"                        # what an administrator names
    CONFLICT = "conflict"
    GATEWAY_FULL = "gateway_full"                  # as many requests inside as limits.queue lets in
    DRAINING = "draining"
    WITHDRAWN = "withdrawn"                        # an administrator has ended it
    CLIENT_GONE = "client_gone"                    # logged, never sent
    UPSTREAM_UNREACHABLE = "upstream_unreachable"  # nothing of the request has reached a worker
    UPSTREAM_BUSY = "upstream_busy"                # the worker says 429 or 503, and it may not be put back
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_GARBAGE = "upstream_garbage"          # what it sends is not what it should be
    UPSTREAM_CUT = "upstream_cut"                  # it has closed the connection before the end
    INTERNAL = "internal"


class Refused(Exception):
    """A request ends with this trouble. message: for the client; param: the field meant; retry_ns: when to come again.

    message and param are shown to whoever asked: nothing of other requests, no address of a worker, no key.
    """

    def __init__(
        self, trouble: Trouble, message: str | None = None, *, param: str | None = None, retry_ns: int | None = None,
    ) -> None:
        super().__init__(message or trouble.value)
        self.trouble, self.message, self.param, self.retry_ns = trouble, message, param, retry_ns
