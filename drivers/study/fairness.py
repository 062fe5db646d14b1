"""How far apart the service of two classes came while both waited, against what deficit round robin promises.

Service of a class is what it was charged, in rounds: tokens over its quantum. While classes i and j both have work
waiting, the difference of their service changes by at most

    1 + largest_i / quantum_i + largest_j / quantum_j     rounds

with the largest cost that waits. Costs are not seen from outside; a request costs its prompt at most, so the bound is
taken from the largest prompt that waits. Looked at after each step of the core that dispatches while both wait; what
happens inside a step is not seen, nor how one went that ended the waiting with several dispatches.

The promise is made by `arbitration: exact` for classes that can run at the same times: one busy threshold for all, no
strict capacity, no admission policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from kvcore.actions import AnyAction, Dispatch, Evict, Park, ParkReason, Reject
from kvcore.events import AnyEvent, RequestArrived
from kvcore.policy import Arbitration, Capacity, PolicyProfile
from kvcore.scheduler import Scheduler


@dataclass(frozen=True)
class Pair:
    """Two classes that waited together. apart: the most that their service drifted, in rounds; bound: what it may have

    been just then; broken: how often it was more, of so many looks.
    """

    one: str
    other: str
    apart: Fraction
    bound: Fraction
    broken: int
    looks: int


def is_promised(profile: PolicyProfile) -> bool:
    """Whether the bound is a promise under this policy, and not only something to look at."""
    thresholds = {(item.prefill_busy_threshold, item.prefill_busy_threshold_frac) for item in profile.classes}
    return (
        profile.arbitration is Arbitration.EXACT and profile.capacity is not Capacity.STRICT and len(thresholds) == 1
        and all(item.admission is None for item in profile.classes)
    )


class FairnessTap:
    """A tap of simulate that keeps books of all pairs of classes."""

    def __init__(self, profile: PolicyProfile) -> None:
        self._names = [item.name for item in profile.classes]
        self._quanta = [item.quantum for item in profile.classes]
        self._prompts: dict[str, int] = {}
        self._parked: dict[str, int] = {}
        self._waiting = [0] * len(self._quanta)
        self._largest = [0] * len(self._quanta)
        self._served = [0] * len(self._quanta)
        #: Of each pair that waits: least and greatest difference since both do.
        self._spans: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
        self._worst: dict[tuple[int, int], tuple[Fraction, Fraction]] = {}
        self._broken: dict[tuple[int, int], int] = {}
        self._looks: dict[tuple[int, int], int] = {}

    def __call__(self, events: Sequence[AnyEvent], actions: Sequence[AnyAction], core: Scheduler) -> None:
        """A step has been made."""
        for event in events:
            if isinstance(event, RequestArrived):
                self._prompts[event.request.request_id] = event.request.prompt_tokens
        dispatched, ended = 0, 0
        for action in actions:
            if isinstance(action, Park):
                self._park(action)
            elif isinstance(action, Dispatch | Reject | Evict):
                dispatched += isinstance(action, Dispatch)
                ended += self._end(action.request_id)
        if dispatched:
            self._served = [item.dispatched_cost_tokens for item in core.stats().classes]
        if dispatched == 1 and ended <= 1:
            # Whose last waiting request this was, both waited until it went.
            self._judge_all(list(self._spans))
        self._look(dispatched > 1 or ended > 1)

    def _park(self, action: Park) -> None:
        self._unpark(action.request_id)
        if action.reason is ParkReason.DEFERRED:
            return  # held back by an admission policy: it does not compete yet
        index = self._parked[action.request_id] = action.class_index
        self._waiting[index] += 1
        self._largest[index] = max(self._largest[index], self._prompts[action.request_id])

    def _end(self, request_id: str) -> bool:
        """Whether it waited."""
        self._prompts.pop(request_id, None)
        return self._unpark(request_id)

    def _unpark(self, request_id: str) -> bool:
        index = self._parked.pop(request_id, None)
        if index is not None:
            self._waiting[index] -= 1
        return index is not None

    def _look(self, judge: bool) -> None:
        """Which pairs wait now. judge: those that still do, too."""
        waiting = [index for index, count in enumerate(self._waiting) if count]
        for index, count in enumerate(self._waiting):
            if not count:
                self._largest[index] = 0
        pairs = list(combinations(waiting, 2))
        if len(self._spans) > len(pairs) or any(pair not in self._spans for pair in pairs):
            self._spans = {pair: self._spans.get(pair, (self._apart(pair),) * 2) for pair in pairs}
        if judge:
            self._judge_all(pairs)

    def _judge_all(self, pairs: Sequence[tuple[int, int]]) -> None:
        for pair in pairs:
            self._judge(pair)

    def _apart(self, pair: tuple[int, int]) -> Fraction:
        one, other = (Fraction(self._served[index], self._quanta[index]) for index in pair)
        return one - other

    def _judge(self, pair: tuple[int, int]) -> None:
        apart = self._apart(pair)
        least, greatest = self._spans[pair]
        least, greatest = self._spans[pair] = min(least, apart), max(greatest, apart)
        drift = greatest - least
        bound = sum((Fraction(self._largest[index], self._quanta[index]) for index in pair), Fraction(1))
        self._looks[pair] = self._looks.get(pair, 0) + 1
        self._broken[pair] = self._broken.get(pair, 0) + (drift > bound)
        if pair not in self._worst or drift - bound > self._worst[pair][0] - self._worst[pair][1]:
            self._worst[pair] = drift, bound

    def pairs(self) -> list[Pair]:
        """Pairs that were looked at, in the order of the policy's classes."""
        return [
            Pair(self._names[one], self._names[other], *self._worst[one, other], self._broken[one, other],
                 self._looks[one, other])
            for one, other in sorted(self._worst)
        ]
