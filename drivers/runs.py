"""One run of a request: what its holder has noted, what has been told of it, and the facts that make the difference.

A run begins with a Dispatch and ends with an End. It never comes back: the next booking has a run of its own, so what
is still noted on an old one reaches nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.actions import Dispatch
from kvcore.events import (
    AnyEvent,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestFinished,
    WorkerStatusChanged,
)

#: Source of the marks that `failed(shun_ns=...)` sets.
SHUN_SOURCE = "lease"


@dataclass(frozen=True, slots=True)
class End:
    """How the holder ends a run: a RequestFinished with this outcome, or (None) a DispatchFailed."""

    outcome: Outcome | None
    context_tokens: int | None = None
    retry: bool = False
    shun_ns: int | None = None


COMPLETED = End(Outcome.COMPLETED)
ABORTED = End(Outcome.ABORTED)


class Run:
    """One booking of a request. The first group of fields is the holder's, the second the owner's."""

    __slots__ = (
        "accepted", "blocks", "context_tokens", "dispatch", "ends", "fraction", "incarnation", "prefilled",
        "said_accepted", "said_blocks", "said_context", "said_fraction", "said_prefilled",
    )

    def __init__(self, dispatch: Dispatch, incarnation: int) -> None:
        self.accepted = False
        self.prefilled = False
        self.blocks = 0
        self.fraction: tuple[float] | None = None  # a new tuple each time: telling the same again is news
        self.context_tokens = -1
        self.ends: list[End] = []  # the first counts; appending is what makes it so among threads
        self.dispatch = dispatch
        self.incarnation = incarnation
        self.said_accepted = False
        self.said_prefilled = False
        self.said_blocks = 0
        self.said_fraction: tuple[float] | None = None
        self.said_context = -1

    def progress(self, now_ns: int, room: int) -> list[AnyEvent]:
        """What the holder has noted since the last time, at most `room` facts and a context."""
        name, attempt = self.dispatch.request_id, self.dispatch.attempt
        facts: list[AnyEvent] = []
        if self.accepted and not self.said_accepted:
            self.said_accepted = True
            facts.append(DispatchAccepted(now_ns, name, attempt))
        if self.prefilled and not self.said_prefilled:
            self.said_prefilled = True
            facts.append(PrefillCompleted(now_ns, name, attempt))
        blocks = min(self.blocks - self.said_blocks, room - len(facts))
        if blocks > 0:
            self.said_blocks += blocks
            facts += [OutputBlockAdded(now_ns, name, attempt)] * (blocks - 1)
            fraction = self.fraction
            news = None if fraction is None or fraction is self.said_fraction else fraction[0]
            facts.append(OutputBlockAdded(now_ns, name, attempt, news))
            self.said_fraction = fraction
        context_tokens = self.context_tokens
        if context_tokens > self.said_context:
            self.said_context = context_tokens
            facts.append(ContextAdvanced(now_ns, name, attempt, context_tokens))
        return facts

    def ending(self, now_ns: int, retry: bool) -> list[AnyEvent]:
        """The end that counts; `retry` only if the holder is still there."""
        dispatch, end = self.dispatch, self.ends[0]
        name, attempt = dispatch.request_id, dispatch.attempt
        if end.outcome is not None:
            return [RequestFinished(now_ns, name, attempt, end.outcome, end.context_tokens)]
        failed = DispatchFailed(now_ns, name, attempt, retry)
        if end.shun_ns is None:
            return [failed]
        mark = WorkerStatusChanged(
            now_ns, dispatch.worker_id, self.incarnation, SHUN_SOURCE, available=False, lease_ns=end.shun_ns)
        return [mark, failed]
