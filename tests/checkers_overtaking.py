"""The overtaking bound (DESIGN D17), judged by a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from checkers_shares import is_service
from history import LastAttempts, costs_its_prompt, is_end
from recording import Run

from kvcore.actions import AnyAction, Park
from kvcore.events import RequestArrived, RequestCancelled


@dataclass
class Waiting:
    """A stored request; overtaken: cost of younger ones that went past it."""

    class_index: int
    cost: int
    overtaken: int = 0


def overtaking_is_bounded(run: Run) -> list[str]:
    """Nobody waits while younger requests of its class that cost more than max_overtake_tokens are popped."""
    bounds = [item.max_overtake_tokens for item in run.config.effective_profile().classes]
    faults = []
    for number, action, class_index, overtaken in detours(run):
        if bounds[class_index] is not None and overtaken > bounds[class_index]:
            faults.append(f"step {number}: {action} makes it {overtaken} tokens past an older request")
    return faults


def detours(run: Run) -> Iterator[tuple[int, AnyAction, int, int]]:
    """(step, action, class_index, overtaken) for each pop, overtaken being the most that anyone older has now.

    Decided in classes with one lane and requests that any rank may take: a lane from which something is popped is not
    blocked, so the promise holds for all who wait in it. Costs must be known (no caches). Whoever is put back is the
    youngest, has been overtaken by nobody, and costs nothing.
    """
    judged = judged_classes(run)
    waiting: dict[str, Waiting] = {}
    attempts = LastAttempts()
    for number, (events, actions) in enumerate(run.steps):
        kept = {a.request_id: a.class_index for a in actions if is_service(a, run.config) or isinstance(a, Park)}
        for event in events:
            if isinstance(event, RequestCancelled):
                waiting.pop(event.request_id, None)
            elif isinstance(event, RequestArrived) and kept.get(event.request.request_id, -1) in judged:
                name = event.request.request_id
                waiting[name] = Waiting(kept[name], event.request.prompt_tokens)
            elif attempts.may_return(event) and kept.get(event.request_id, -1) in judged:
                waiting.setdefault(event.request_id, Waiting(kept[event.request_id], 0))
        attempts.note(actions)
        for action in actions:
            if is_service(action, run.config) and action.request_id in waiting:
                yield number, action, action.class_index, serve(waiting, action.request_id)
            elif is_end(action):
                waiting.pop(action.request_id, None)


def serve(waiting: dict[str, Waiting], request_id: str) -> int:
    """Let one request go past the older ones of its class; the most that one of them has been overtaken by now."""
    served, most = waiting[request_id], 0
    for name, other in waiting.items():
        if name == request_id:
            break
        if other.class_index == served.class_index:
            other.overtaken += served.cost
            most = max(most, other.overtaken)
    del waiting[request_id]
    return most


def judged_classes(run: Run) -> set[int]:
    """Classes in which every request may use any rank and has a known cost and an id of its own."""
    arrivals = [event.request for events, _ in run.steps for event in events if isinstance(event, RequestArrived)]
    times = Counter(request.request_id for request in arrivals)
    odd = {r.request_id for r in arrivals if times[r.request_id] > 1 or r.pinned is not None or r.required_taints
           or r.allowed_workers is not None or not costs_its_prompt(r, run.config)}
    classes = set(range(len(run.config.effective_profile().classes)))
    return classes - {action.class_index for _, actions in run.steps for action in actions
                      if action.request_id in odd and hasattr(action, "class_index")}
