"""The walk through a recorded run: each action with those who wait, and the world just before it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from history import Arrival, Stored, is_end, was_let_in
from history_caches import Caches
from history_load import World
from recording import Run

from kvcore.actions import AnyAction, Dispatch, Park, Reject, RejectReason
from kvcore.events import AnyEvent, DispatchFailed, Drained, RequestArrived, RequestCancelled

#: Why a request is not put back, and never a reason of its placement.
NOT_PUT_BACK = (RejectReason.RETRIES_EXHAUSTED, RejectReason.SHUTTING_DOWN, RejectReason.DEADLINE_EXPIRED)


@dataclass
class Moment:
    """One action of a step, or its end (action None).

    subject: the arrival that the action is about, or None. waiting: who has been parked and not yet left, before the
    action. coming: who else has been let in, or put back, by this batch (all that get an action in it from here on).
    again: whom the batch may have put back. tried: how often the subject has been dispatched. drains: whether nobody is
    let in any more. world: load and caches before the action, as far as they are known.
    """

    step: int
    events: tuple[AnyEvent, ...]
    action: AnyAction | None
    subject: Arrival | None
    waiting: Stored
    coming: Stored
    again: set[str]
    tried: int
    drains: bool
    world: World


class Walk:
    """What the walk remembers from batch to batch. running: by id, its last attempt, and the arrival or None."""

    def __init__(self, run: Run) -> None:
        self.world = World(run.config, Caches(run.config))
        self.waiting: Stored = {}
        self.running: dict[str, tuple[int, Arrival | None]] = {}
        self.tries: Counter = Counter()
        self.arrived = 0
        self.drains = False

    def arrivals(self, step: int, events: tuple[AnyEvent, ...],
                 actions: tuple[AnyAction, ...]) -> dict[str, list[Arrival]]:
        """Everything of a batch but its actions: by id, who has come."""
        found: dict[str, list[Arrival]] = defaultdict(list)
        came = [(i, event) for i, event in enumerate(events) if isinstance(event, RequestArrived)]
        for (i, event), cached in zip(came, self.world.facts(events, actions), strict=True):
            found[event.request.request_id].append(
                Arrival(event.request, event.now_ns, self.arrived, cached, event.now_ns, (step, i)))
            self.arrived += 1
        self.drains = self.drains or any(isinstance(event, Drained) for event in events)
        return found

    def returns(self, step: int, events: tuple[AnyEvent, ...],
                actions: tuple[AnyAction, ...]) -> dict[str, list[Arrival | None]]:
        """By id, whom the batch may have put back: as they were, but for since_ns and age."""
        own = {(action.request_id, action.attempt) for action in actions if isinstance(action, Dispatch)}
        found: dict[str, list[Arrival | None]] = defaultdict(list)
        for i, event in enumerate(events):
            if isinstance(event, DispatchFailed) and event.retry:
                attempt, arrival = self.running.get(event.request_id, (0, None))
                if (event.request_id, event.attempt) in own:
                    found[event.request_id].append(None)
                elif event.attempt == attempt:
                    found[event.request_id].append(
                        None if arrival is None else replace(arrival, since_ns=event.now_ns, age=(step, i)))
        return found

    def applied(self, action: AnyAction, subject: Arrival | None) -> None:
        """Whoever the action is about waits, runs, or has gone."""
        if isinstance(action, Park):
            self.waiting[action.request_id] = (action.class_index, subject)
        elif isinstance(action, Dispatch) or is_end(action):
            self.waiting.pop(action.request_id, None)
        if isinstance(action, Dispatch):
            self.running[action.request_id] = (action.attempt, subject)
            self.tries[None if subject is None else subject.order] += 1
            self.world.dispatched(action, subject)


def moments(run: Run) -> Iterator[Moment]:
    """Walk through all actions of a run."""
    walk = Walk(run)
    for step, (events, actions) in enumerate(run.steps):
        arrivals, returns = walk.arrivals(step, events, actions), walk.returns(step, events, actions)
        cancelled = {event.request_id for event in events if isinstance(event, RequestCancelled)}
        for request_id in cancelled:
            walk.waiting.pop(request_id, None)
        told = {name: [*arrivals.get(name, ()), *returns.get(name, ())] for name in arrivals.keys() | returns.keys()}
        known = {name: found[0] for name, found in told.items() if len(found) == 1 and name not in cancelled}
        coming = {action.request_id: (action.class_index, entered(action, known, returns)) for action in actions
                  if action.request_id in told and was_let_in(action) and not is_refused_again(action, returns)}
        coming |= {name: (coming[name][0], None) for name in coming.keys() & walk.waiting.keys()}
        for action in actions:
            request_id = action.request_id
            subject = walk.waiting[request_id][1] if request_id in walk.waiting else known.get(request_id)
            tried = 0 if subject is None else walk.tries[subject.order]
            yield Moment(step, events, action, subject, walk.waiting, coming, set(returns), tried, walk.drains,
                         walk.world)
            walk.applied(action, subject)
            if was_let_in(action):
                coming.pop(request_id, None)
        yield Moment(step, events, None, None, walk.waiting, coming, set(returns), 0, walk.drains, walk.world)


def is_refused_again(action: AnyAction, returns: dict) -> bool:
    """Whether an action says for certain that its request has not been put back."""
    return action.request_id in returns and isinstance(action, Reject) and action.reason in NOT_PUT_BACK


def entered(action: AnyAction, known: dict[str, Arrival | None], returns: dict) -> Arrival | None:
    """The arrival that was let in. A refusal may come before or after its return to the queue: then None."""
    return None if action.request_id in returns and isinstance(action, Reject) else known.get(action.request_id)


def readings(run: Run) -> Iterator[tuple[Moment, World]]:
    """The moments of a run as long as the world just before each is known."""
    for moment in moments(run):
        if not moment.world.known:
            return
        yield moment, moment.world
