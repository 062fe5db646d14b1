"""The bound of deficit round robin (DESIGN D5), judged by a record."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from history import LIMITS, LastAttempts, costs_its_prompt, is_end, is_strict, queues
from recording import Run

from kvcore.actions import AnyAction, Dispatch, Park, Reject, RejectReason
from kvcore.config import OnOverload, SchedulerConfig
from kvcore.events import RequestArrived, RequestCancelled
from kvcore.policy import Arbitration


def shares_are_bounded(run: Run) -> list[str]:
    """While two classes stay dispatchable, service per quantum differs by at most 1 + largest costs per quantum.

    Decided where a class is dispatchable exactly when it is not empty (one threshold for all, no pins, no allow-lists,
    no taints, no limits, no strict capacity) and costs are known (no caches); there it holds for every stretch of time,
    not only from the beginning.
    """
    if not can_be_judged(run):
        return []
    books = Books([item.quantum for item in run.config.effective_profile().classes])
    attempts = LastAttempts()
    faults = []
    for number, (events, actions) in enumerate(run.steps):
        served = [action for action in actions if is_service(action, run.config)]
        kept = {a.request_id: a.class_index for a in (*served, *(a for a in actions if isinstance(a, Park)))}
        books.remove({event.request_id for event in events if isinstance(event, RequestCancelled)})
        books.remove({a.request_id for a in actions if is_end(a) and not is_service(a, run.config)})
        for event in events:
            if isinstance(event, RequestArrived) and event.request.request_id in kept:
                books.store(kept[event.request.request_id], event.request.request_id, event.request.prompt_tokens)
            elif attempts.may_return(event) and event.request_id in kept:
                books.store(kept[event.request_id], event.request_id, 0)    # it has been charged before
        attempts.note(actions)
        books.open_spans()
        for action in served:
            if books.serve(action.class_index, action.request_id):
                faults.append(f"step {number}: {action} leaves shares too far apart")
    return faults


#: Why a popped request may be refused at its placement, if it has no pin.
AT_PLACEMENT = (RejectReason.NO_WORKERS, RejectReason.NO_ELIGIBLE_WORKER, RejectReason.ALL_ELIGIBLE_OVERLOADED,
                RejectReason.TOO_LARGE)


def is_service(action: AnyAction, config: SchedulerConfig) -> bool:
    """Popped and charged: dispatched, or refused at its placement. What a look ends while it waits is not charged."""
    if isinstance(action, Dispatch):
        return True
    if not isinstance(action, Reject) or action.reason not in AT_PLACEMENT or action.class_index < 0:
        return False
    profile = config.effective_profile()
    looked_at = (config.on_overload is OnOverload.WAIT and queues(profile.classes[action.class_index], profile))
    return action.reason is not RejectReason.ALL_ELIGIBLE_OVERLOADED or not looked_at


class Books:
    """Backlog, largest cost and service of each class, and how far service per quantum came apart."""

    def __init__(self, quanta: list[int]) -> None:
        self.quanta = quanta
        self.costs: list[dict[str, int]] = [{} for _ in quanta]
        self.largest = [0] * len(quanta)
        self.served = [Fraction(0)] * len(quanta)
        #: Least and greatest difference of service of a pair since both are backlogged.
        self.spans: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}

    def store(self, index: int, request_id: str, cost: int) -> None:
        self.costs[index][request_id] = cost
        self.largest[index] = max(self.largest[index], cost)

    def remove(self, names: set[str]) -> None:
        for index, costs in enumerate(self.costs):
            for request_id in names & costs.keys():
                self._leave(index, request_id)

    def _leave(self, index: int, request_id: str) -> int:
        cost = self.costs[index].pop(request_id)
        if not self.costs[index]:
            self.largest[index] = 0
            self.spans = {pair: span for pair, span in self.spans.items() if index not in pair}
        return cost

    def open_spans(self) -> None:
        backlogged = [index for index, costs in enumerate(self.costs) if costs]
        for pair in combinations(backlogged, 2):
            apart = self.served[pair[0]] - self.served[pair[1]]
            self.spans.setdefault(pair, (apart, apart))

    def serve(self, index: int, request_id: str) -> bool:
        """Charge a class; whether a pair is now further apart than the bound allows."""
        self.served[index] += Fraction(self.costs[index][request_id], self.quanta[index])
        broken = False
        for pair in [pair for pair in self.spans if index in pair]:
            one, other = pair
            apart = self.served[one] - self.served[other]
            least, greatest = self.spans[pair]
            self.spans[pair] = (min(least, apart), max(greatest, apart))
            bound = 1 + sum(Fraction(self.largest[i], self.quanta[i]) for i in pair)
            broken = broken or max(greatest, apart) - min(least, apart) > bound
        self._leave(index, request_id)
        return broken


def can_be_judged(run: Run) -> bool:
    """Whether "not empty" means "dispatchable" and every cost is the prompt's."""
    profile = run.config.effective_profile()
    thresholds = {(item.prefill_busy_threshold, item.prefill_busy_threshold_frac) for item in profile.classes}
    limits = {getattr(item, name) for item in profile.classes for name in LIMITS}
    if profile.arbitration is not Arbitration.EXACT or len(thresholds) > 1 or limits != {None} or is_strict(profile):
        return False
    requests = [event.request for events, _ in run.steps for event in events if isinstance(event, RequestArrived)]
    if len({request.request_id for request in requests}) < len(requests):
        return False
    plain = [r.pinned is None and r.allowed_workers is None and not r.required_taints and not r.do_not_queue
             for r in requests]
    return all(plain) and all(costs_its_prompt(request, run.config) for request in requests)
