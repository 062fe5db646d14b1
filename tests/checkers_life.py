"""The life of a request, judged by a record: arrival, waiting, running, eviction, one end."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from recording import Run

from kvcore.actions import Dispatch, Evict, Ignored, Park, Reject, RejectReason
from kvcore.config import SchedulerConfig
from kvcore.events import (
    DispatchAccepted,
    DispatchFailed,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
)


@dataclass(frozen=True)
class Life:
    """Where a request may be.

    parked: it has been told that it waits. accepted: its worker is known to have taken it. prefilled: its prompt is
    done. tries: how often it has been dispatched.
    """

    state: str = "none"
    attempt: int = 0
    parked: bool = False
    accepted: bool = False
    prefilled: bool = False
    tries: int = 0


NONE = Life()
ABOUT_REQUESTS = (
    RequestCancelled, DispatchAccepted, DispatchFailed, PrefillCompleted, OutputBlockAdded, RequestFinished)
#: Why a request that comes back is not put back.
NOT_AGAIN = (
    RejectReason.RETRIES_EXHAUSTED, RejectReason.SHUTTING_DOWN, RejectReason.DEADLINE_EXPIRED, RejectReason.NO_WORKERS,
    RejectReason.PINNED_WORKER_UNAVAILABLE, RejectReason.NO_ELIGIBLE_WORKER, RejectReason.TOO_LARGE)


def one_life_each(run: Run) -> list[str]:
    """Facts and actions about an id fit into lives that end once: nothing after an end, no end twice, no step skipped.

    A batch does not say which action answers which event, so all readings are followed at once; a fault is a batch
    that has none. Ends: Reject, an applied RequestFinished, RequestCancelled or DispatchFailed without retry, an Evict
    unanswered for booking_ttl_ns. A retry is no end: the request waits again, until it has had attempts_max dispatches.
    """
    faults = []
    lives: dict[str, set[Life]] = defaultdict(lambda: {NONE})
    for number, (events, actions) in enumerate(run.steps):
        events_of, actions_of = defaultdict(list), defaultdict(list)
        for event in events:
            if isinstance(event, RequestArrived):
                events_of[event.request.request_id].append(event)
            elif isinstance(event, ABOUT_REQUESTS):
                events_of[event.request_id].append(event)
        for action in actions:
            actions_of[action.request_id].append(action)
        for request_id in sorted(events_of.keys() | actions_of.keys()):
            after = readings(lives[request_id], events_of[request_id], actions_of[request_id], run.config)
            if not after:
                faults.append(f"step {number}: {request_id}: {events_of[request_id]} -> {actions_of[request_id]} "
                              f"cannot follow {lives[request_id]}")
            lives[request_id] = after or {NONE}
    return faults


def readings(lives: set[Life], events: list, actions: list, config: SchedulerConfig) -> set[Life]:
    """Where a request may be after a batch, over all ways to lay its events and actions side by side."""
    silent_end, most = config.booking_ttl_ns is not None, config.attempts_max
    open_ends = {(life, 0, 0) for life in lives}
    seen = set(open_ends)
    while open_ends:
        life, e, a = open_ends.pop()
        following = set()
        if a < len(actions) and (after := by_itself(life, actions[a], most)) is not None:
            following.add((after, e, a + 1))
        if e < len(events):
            answer = actions[a] if a < len(actions) else None
            following |= {(after, e + 1, a + used) for after, used in by_event(life, events[e], answer, most)}
        if silent_end and life.state == "evicted":
            following.add((NONE, e, a))
        open_ends |= following - seen
        seen |= following
    return {life for life, e, a in seen
            if (e, a) == (len(events), len(actions)) and (life.state != "waiting" or life.parked)}


def by_itself(life: Life, action, most: int) -> Life | None:
    """What an action of time or of the drain makes of a life; None if it cannot happen to it. most: dispatches."""
    if isinstance(action, Dispatch) and life.state == "waiting":
        return Life("running", action.attempt, tries=life.tries + 1) if life.tries < most else None
    if isinstance(action, Reject) and life.state == "waiting" and action.class_index >= 0:
        return NONE if action.reason is not RejectReason.DUPLICATE_ID else None
    if isinstance(action, Park) and life.state == "waiting" and not life.parked:
        return replace(life, parked=True)
    if isinstance(action, Evict) and life.state == "running" and life.attempt == action.attempt:
        return Life("evicted", action.attempt, tries=life.tries)
    return None


def by_event(life: Life, event, answer, most: int) -> list[tuple[Life, int]]:
    """What an event makes of a life, and how many actions (0 or 1) are its answer. most: dispatches of one life."""
    if isinstance(event, RequestArrived):
        if life.state == "none":
            refused = isinstance(answer, Reject) and answer.reason is not RejectReason.DUPLICATE_ID
            return [(Life("waiting"), 0)] + ([(NONE, 1)] if refused else [])
        duplicate = isinstance(answer, Reject) and answer.reason is RejectReason.DUPLICATE_ID
        return [(life, 1)] if duplicate else []
    attempt = getattr(event, "attempt", 0)
    ignored = [(life, 1)] if isinstance(answer, Ignored) and answer.attempt == attempt else []
    if isinstance(event, RequestCancelled):
        return [(NONE, 0)] if life.state != "none" else ignored
    mine = life.attempt == attempt
    if isinstance(event, (RequestFinished, DispatchFailed)):
        if not mine or life.state not in ("running", "evicted"):
            return ignored
        return came_back(life, answer, most) if getattr(event, "retry", False) else [(NONE, 0)]
    if not mine or life.state != "running":
        return ignored
    if isinstance(event, OutputBlockAdded):
        return [(replace(life, accepted=True), 0)]
    if isinstance(event, DispatchAccepted):
        return ignored if life.accepted else [(replace(life, accepted=True), 0)]
    return ignored if life.prefilled else [(replace(life, accepted=True, prefilled=True), 0)]


def came_back(life: Life, answer, most: int) -> list[tuple[Life, int]]:
    """A dispatch has failed and is to be tried again: it waits, or hears why not."""
    again = [(Life("waiting", tries=life.tries), 0)] if life.tries < most else []
    refused = isinstance(answer, Reject) and answer.class_index >= 0 and answer.reason in NOT_AGAIN
    return again + ([(NONE, 1)] if refused else [])
