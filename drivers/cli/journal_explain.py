"""`kvcore journal explain`: where in a journal to stop, what to keep until then, what came after; and what is printed.

Nothing is stepped here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvcore import (
    AnyAction,
    Dispatch,
    DispatchFailed,
    Evict,
    Explanation,
    Ignored,
    JournalBatch,
    JournalReader,
    Park,
    Publish,
    RefreshOverlap,
    Reject,
    RejectReason,
    RequestCancelled,
    RequestFinished,
    explanation_text,
)

_ENDS = (RequestCancelled, RequestFinished, DispatchFailed)
_DECISIONS_MAX = 2**20
_WAITS = ("waiting", "deferred", "refreshing")


@dataclass
class Trail:
    """What a journal tells of one request id.

    batch: to stop after, from 0: the one asked for, else the last one after which the request waited or in which it was
        dispatched; None: it never was.
    decisions: how many dispatches there have been since its last one, that one included; at least 1.
    later: what happened to it first after that batch, and when: (batch, now_ns, words); None: nothing.
    """

    batch: int | None = None
    decisions: int = 1
    later: tuple[int, int, str] | None = None


def waits(journal: JournalReader, request_id: str) -> bool:
    """Whether a request waits at the border of a cut."""
    return journal.snapshot is not None and journal.start().explain(request_id).state in _WAITS


def follow(
    batches: Iterable[JournalBatch], request_id: str, at: int | None = None, waits: bool = False,
) -> Trail:
    """Look for a request, up to batch `at`, which is then the one to stop after, or to the end. waits: at first."""
    trail = Trail()
    total = own = 0  # dispatches so far; the number of its last one
    for number, batch in enumerate(batches):
        ends = _facts(batch, request_id)
        waits = waits and not any(isinstance(event, RequestCancelled) for event in ends)
        decided = False
        for action in batch.actions:
            total += isinstance(action, Dispatch)
            if isinstance(action, Publish) or action.request_id != request_id or _about_another(action):
                continue
            waits = isinstance(action, Park | RefreshOverlap)
            if isinstance(action, Dispatch):
                own, decided = total, True
            elif isinstance(action, Reject | Evict):
                ends.append(action)
        if waits or decided or number == at:
            trail.batch, trail.later = number, None
            trail.decisions = min(total - own + 1 if own else 1, _DECISIONS_MAX)
        elif ends and trail.later is None:
            trail.later = (number, batch.events[-1].now_ns, _words(ends[0]))
        if number == at:
            break
    return trail


def _facts(batch: JournalBatch, request_id: str) -> list[Any]:
    """The events of a batch that may have ended a run or a wait of this request, and were not stale."""
    stale = [
        action.attempt for action in batch.actions if isinstance(action, Ignored) and action.request_id == request_id]
    return [event for event in batch.events if isinstance(event, _ENDS) and event.request_id == request_id
            and getattr(event, "attempt", 0) not in stale]


def _about_another(action: AnyAction) -> bool:
    """Whether an action leaves the live request of its id alone."""
    return isinstance(action, Ignored) or (
        isinstance(action, Reject) and action.reason is RejectReason.DUPLICATE_ID)


def _words(item: Any) -> str:
    """An event or action, and its reason or outcome."""
    reason = getattr(item, "reason", getattr(item, "outcome", None))
    return type(item).__name__ + ("" if reason is None else f" {reason.name}")


def as_text(file: str, trail: Trail, told: Explanation) -> str:
    """For people."""
    where = "" if trail.batch is None else f", after batch {trail.batch}, at {told.now_ns} ns"
    later = ""
    if trail.later is not None:
        number, now_ns, words = trail.later
        later = f"later      batch {number}, at {now_ns} ns: {words}\n"
    return f"journal    {file}{where}\n{explanation_text(told)}{later}"


def as_json(file: str, trail: Trail, told: Explanation) -> str:
    """The same, and all that an explanation holds."""
    later = None if trail.later is None else dict(zip(("batch", "now_ns", "what"), trail.later, strict=True))
    content = {
        "journal": file, "batch": trail.batch, "explanation": _plain(dataclasses.asdict(told)), "later": later}
    return json.dumps(content, indent=2) + "\n"


def _plain(value: Any) -> Any:
    """The same for JSON, which lacks infinite numbers: they become texts."""
    if isinstance(value, dict):
        return {name: _plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(own) for own in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
