"""What a mock worker does wrong when it is told to: the failures that real engines and their networks have shown.

A fault is a text, in the header `x-mock-fault` of one request or set over POST /mock/faults for the next ones:

    status=503                  this status and an error body, with `retry-after: 1`; 400 .. 599
    stall[;after=N][;seconds=S] no more bytes after N chunks (0: not even headers), for S seconds or until the end
    cut[;after=N]               the connection is closed after N chunks (0: before any byte)
    garbage[;after=N]           N chunks, then bytes that are neither HTTP nor events
    no-finish[;after=N]         the stream ends with [DONE] after N chunks, without a reason (an interrupted llama.cpp)
    error-event[;after=N]       the stream ends with an error as an event after N chunks

Of an answer that is not streamed, nothing has been sent before its body; there N chunks count as none, except that
`cut` and `garbage` with N > 0 come after half of the body. `no-finish` and `error-event` are about streams only.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

#: Faults that may wait for their requests.
FAULTS_MAX = 10_000


class Kind(StrEnum):
    """What goes wrong."""

    STATUS = "status"
    STALL = "stall"
    CUT = "cut"
    GARBAGE = "garbage"
    NO_FINISH = "no-finish"
    ERROR_EVENT = "error-event"


@dataclass(frozen=True)
class Fault:
    """One failure. status: of STATUS. after: chunks before it. seconds: how long a stall lasts."""

    kind: Kind
    after: int = 0
    seconds: float = math.inf
    status: int = 0


def parse(text: str) -> Fault:
    """A fault from its text. Raises: ValueError."""
    name, *rest = text.strip().split(";")
    kind_name, _, status = name.partition("=")
    kind = Kind(kind_name)
    if (kind is Kind.STATUS) != bool(status):
        raise ValueError(f"{text!r}: a status belongs to `status=`, and only there")
    options = dict(part.partition("=")[::2] for part in rest)
    fault = Fault(
        kind, int(options.pop("after", 0)), float(options.pop("seconds", math.inf)), int(status) if status else 0)
    if options or fault.after < 0 or not fault.seconds >= 0 or (status and not 400 <= fault.status <= 599):
        raise ValueError(f"{text!r} is no fault that this worker knows")
    return fault


class Faults:
    """Faults that wait for the requests they befall, first come first served."""

    def __init__(self) -> None:
        self._waiting: deque[Fault] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, fault: Fault, times: int) -> None:
        """The next `times` requests without a fault of their own have this one. Raises: ValueError."""
        if not 0 <= times <= FAULTS_MAX - len(self._waiting):
            raise ValueError(f"times must be 0 .. {FAULTS_MAX}, all waiting ones together")
        self._waiting.extend([fault] * times)

    def clear(self) -> None:
        """No fault is to come."""
        self._waiting.clear()

    def take(self, header: str | None) -> Fault | None:
        """The fault of the next request. Raises: ValueError for a header that is none."""
        if header is not None:
            return parse(header)
        return self._waiting.popleft() if self._waiting else None
