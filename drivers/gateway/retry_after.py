"""When a client that was turned away should come again: an estimate, and a jitter that spreads those who wait for it.

An estimate comes from who knows best: the scheduler's own for a full queue (DESIGN D18), the end of a pause, the next
health probe; else from how fast requests have been dispatched lately. Clients are told never earlier than that, and
spread over as long again, so that those who were turned away together do not come back together.

Never here: clocks (times are given), statuses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from kvcore.actions import AnyAction, Dispatch
from kvcore.events import AnyEvent

from ..protocol import Tap

SECOND_NS = 10**9
#: Nobody is told to wait longer: an estimate from so slow a drain is none.
ESTIMATE_NS_MAX = 3600 * SECOND_NS
#: Dispatches over which the pace is measured.
WINDOW = 32


class Pace:
    """How fast requests have been dispatched: the times of the last ones. A tap of the scheduler; next: see there."""

    def __init__(self, tap: Tap | None = None) -> None:
        self._next = tap
        self._times_ns: deque[int] = deque(maxlen=WINDOW)

    def tap(self, events: Sequence[AnyEvent], actions: Sequence[AnyAction], core: Any) -> None:
        """Note when something was dispatched; then the next tap."""
        for action in actions:
            if isinstance(action, Dispatch):
                self._times_ns.append(events[-1].now_ns)
        if self._next is not None:
            self._next(events, actions, core)

    def next_ns(self, now_ns: int, ahead: int = 0) -> int | None:
        """How long until one more request is dispatched, behind `ahead` others; None: too little has been seen.

        The time since the last dispatch counts: a fleet that has stopped does not look as fast as it was.
        """
        if len(self._times_ns) < 2:
            return None
        span_ns = max(1, now_ns - self._times_ns[0])
        return min(ESTIMATE_NS_MAX, -(-span_ns * (ahead + 1) // len(self._times_ns)))


class Jitter:
    """Waits that differ from client to client; the same ones for the same seed and calls."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def spread_ns(self, estimate_ns: int) -> int:
        """At least the estimate and a second, at most twice that."""
        least_ns = max(SECOND_NS, min(estimate_ns, ESTIMATE_NS_MAX))
        return least_ns + int(self._random.random() * least_ns)
