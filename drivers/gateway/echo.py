"""What every response says of its request besides the answer: ids, class, time in the queue, worker, hints in effect.

Also the client's own id, made safe: it is a label of logs and responses and names nothing in the scheduler.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from ..http.values import Headers
from .hints import Hints

ID_CHARS_MAX = 128
_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,%d}" % ID_CHARS_MAX)
#: Names of the response fields below: what a worker says under them is not passed on.
NAMES = frozenset((
    b"x-request-id", b"x-kvcore-request-id", b"x-kvcore-policy-class", b"x-kvcore-queue-ms", b"x-kvcore-worker-id",
    b"x-kvcore-dp-rank", b"x-kvcore-prompt-tokens-source", b"x-kvcore-priority", b"x-kvcore-strict-priority",
    b"x-kvcore-reason", b"x-llm-d-flow-queue-duration-ms", b"x-llm-d-request-dropped-reason", b"x-should-retry",
    b"retry-after", b"retry-after-ms",
))


def client_id(value: bytes | None, own_id: str) -> str:
    """The client's request id as it may be echoed and logged: unsafe characters become `_`; without one, our own."""
    if not value:
        return own_id
    if _ID.fullmatch(value):
        return value.decode("ascii")
    return re.sub(rb"[^A-Za-z0-9._:/+=@-]", b"_", value[:ID_CHARS_MAX]).decode("ascii")


@dataclass(slots=True)
class Echo:
    """What is known of a request so far. request_id: the client's or ours; own_id: the scheduler's.

    policy_class: the class that has it, or was asked for while none has; None: not known.
    queue_ns: how long it has waited; 0 for one that has not. first_ns: when its first token was seen, or None.
    expected_cached: tokens of its prompt that the scheduler expects in the worker's cache.
    """

    request_id: str
    own_id: str = ""
    policy_class: str | None = None
    queue_ns: int = 0
    worker_id: int | None = None
    dp_rank: int | None = None
    source: str | None = None
    hints: Hints | None = None
    first_ns: int | None = None
    expected_cached: int = 0

    def headers(self) -> Headers:
        """The response fields."""
        queue_ms = b"%d" % (self.queue_ns // 10**6)
        found: Headers = [
            (b"x-request-id", self.request_id.encode("ascii")),
            (b"x-kvcore-queue-ms", queue_ms), (b"x-llm-d-flow-queue-duration-ms", queue_ms),
        ]
        if self.own_id:
            found.append((b"x-kvcore-request-id", self.own_id.encode("ascii")))
        if self.policy_class is not None:
            found.append((b"x-kvcore-policy-class", _safe(self.policy_class)))
        if self.worker_id is not None:
            found.append((b"x-kvcore-worker-id", b"%d" % self.worker_id))
        if self.dp_rank:
            found.append((b"x-kvcore-dp-rank", b"%d" % self.dp_rank))
        if self.source is not None:
            found.append((b"x-kvcore-prompt-tokens-source", self.source.encode("ascii")))
        if self.hints is not None and self.hints.priority_jump:
            found.append((b"x-kvcore-priority", b"%g" % self.hints.priority_jump))
        if self.hints is not None and self.hints.strict_priority:
            found.append((b"x-kvcore-strict-priority", b"%d" % self.hints.strict_priority))
        return found


@functools.lru_cache(maxsize=256)
def _safe(name: str) -> bytes:
    """A class name that a client may have made up, as a field value."""
    return "".join([c if c.isascii() and c.isprintable() else "_" for c in name[:ID_CHARS_MAX]]).encode("ascii")
