"""The walk through a recorded run: each action with those who wait, and the world just before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from history import Arrival, Stored, is_end, was_let_in
from history_caches import Caches
from history_load import World
from recording import Run

from kvcore.actions import AnyAction, Dispatch, Park
from kvcore.events import AnyEvent, RequestArrived, RequestCancelled


@dataclass
class Moment:
    """One action of a step, or its end (action None).

    subject: the arrival that the action is about, or None. waiting: who has been parked and not yet left, before the
    action. coming: who else has been let in by this batch (all that get an action in it from here on). world: load and
    caches before the action, as far as they are known.
    """

    step: int
    events: tuple[AnyEvent, ...]
    action: AnyAction | None
    subject: Arrival | None
    waiting: Stored
    coming: Stored
    world: World


def moments(run: Run) -> Iterator[Moment]:
    """Walk through all actions of a run."""
    waiting: Stored = {}
    world = World(run.config, Caches(run.config))
    order = 0
    for step, (events, actions) in enumerate(run.steps):
        arrivals: dict[str, list[Arrival]] = defaultdict(list)
        cancelled = {event.request_id for event in events if isinstance(event, RequestCancelled)}
        came = [event for event in events if isinstance(event, RequestArrived)]
        for event, cached in zip(came, world.facts(events, actions), strict=True):
            arrivals[event.request.request_id].append(Arrival(event.request, event.now_ns, order, cached))
            order += 1
        for request_id in cancelled:
            waiting.pop(request_id, None)
        known = {name: found[0] for name, found in arrivals.items() if len(found) == 1 and name not in cancelled}
        coming = {action.request_id: (action.class_index, known.get(action.request_id)) for action in actions
                  if action.request_id in arrivals and was_let_in(action)}
        coming |= {name: (coming[name][0], None) for name in coming.keys() & waiting.keys()}
        for action in actions:
            request_id = action.request_id
            subject = waiting[request_id][1] if request_id in waiting else known.get(request_id)
            yield Moment(step, events, action, subject, waiting, coming, world)
            if isinstance(action, Park):
                waiting[request_id] = (action.class_index, subject)
            elif isinstance(action, Dispatch) or is_end(action):
                waiting.pop(request_id, None)
            if isinstance(action, Dispatch):
                world.dispatched(action, subject)
            if was_let_in(action):
                coming.pop(request_id, None)
        yield Moment(step, events, None, None, waiting, coming, world)


def readings(run: Run) -> Iterator[tuple[Moment, World]]:
    """The moments of a run as long as the world just before each is known."""
    for moment in moments(run):
        if not moment.world.known:
            return
        yield moment, moment.world
