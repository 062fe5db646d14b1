"""What users of the reference have seen classes get, through whole schedulers: mode `exact` gives the quanta's shares.

One worker that takes one prompt at a time: each PrefillCompleted frees one slot, and one request goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from stories import arrive, profile

from kvcore.actions import Dispatch
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import PrefillCompleted, WorkerUpserted
from kvcore.policy import Arbitration
from kvcore.request import WorkerConfig
from kvcore.scheduler import Scheduler

EXACT, REFERENCE = Arbitration.EXACT, Arbitration.REFERENCE


class Line:
    """Classes of these quanta with a deep backlog each; costs: tokens of a request by class."""

    def __init__(self, arbitration: Arbitration, quanta: tuple[int, ...], costs: tuple[int, ...], depth: int) -> None:
        made = profile(*quanta, arbitration=arbitration, prefill_busy_threshold=0)
        self.core = Scheduler(SchedulerConfig(profile=made, index=IndexMode.OFF))
        self.now, self.names, self.tokens = 0, 0, Counter()
        self.running: list[Dispatch] = []
        self.step(WorkerUpserted(0, WorkerConfig(1)), *[
            self.request(index, cost) for _ in range(depth) for index, cost in enumerate(costs)])

    def request(self, index: int, cost: int, **fields):
        self.names += 1
        return arrive(self.now, f"{self.names}", cost, policy_class=f"f{index}", **fields)

    def step(self, *events) -> None:
        self.running += [action for action in self.core.step_many(events) if isinstance(action, Dispatch)]

    def serve(self, count: int, feed: Callable[[Dispatch], list] = lambda action: []) -> None:
        """One slot at a time; feed: what arrives before the slot of this request is free."""
        for _ in range(count):
            (done,) = self.running
            self.running = []
            self.tokens[done.class_index] += done.prefill_tokens
            self.now += 1
            self.step(*feed(done), PrefillCompleted(self.now, done.request_id, done.attempt))

    def share(self, index: int) -> float:
        """Part of all tokens served."""
        return self.tokens[index] / self.tokens.total()


@pytest.mark.parametrize(("arbitration", "share"), [(REFERENCE, 0.4), (EXACT, 0.5)])
def test_equal_quanta_and_costs_of_two_and_three_quanta(arbitration, share):
    line = Line(arbitration, (10, 10), (20, 30), 600)
    line.serve(1_000)
    assert line.share(0) == pytest.approx(share, abs=0.002)


@pytest.mark.parametrize(("arbitration", "share"), [(REFERENCE, 0.5), (EXACT, 0.75)])
def test_three_to_one_with_one_slot_freed_at_a_time(arbitration, share):
    line = Line(arbitration, (3, 1), (1, 1), 800)
    line.serve(1_000)
    assert line.share(0) == pytest.approx(share, abs=0.002)


@pytest.mark.parametrize("costs", [(15, 25, 35), (7, 100, 10), (1, 1, 1), (1_000, 1, 30)])
def test_shares_are_those_of_the_quanta(costs):
    """Within the bound of DESIGN D5 for each pair, whatever the costs."""
    quanta = (10, 20, 30)
    line = Line(EXACT, quanta, costs, 1_500)
    line.serve(1_400)
    rounds = [line.tokens[index] / quanta[index] for index in range(3)]
    slack = [cost / quantum for cost, quantum in zip(costs, quanta, strict=True)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(rounds[i] - rounds[j]) <= 1 + slack[i] + slack[j]


@pytest.mark.parametrize("cheap", [1, 3, 9])
def test_a_class_fed_with_cheap_urgent_requests_gets_its_full_share(cheap):
    """One per round of the other class: it spends credit that was saved for a dear one, and costs no grant."""
    fed = {}
    for arbitration in Arbitration:
        line = Line(arbitration, (10, 10), (50, 10), 900)
        line.serve(1_000, lambda done, line=line: [
            line.request(0, cheap, strict_priority=1)] if done.class_index == 1 else [])
        fed[arbitration] = line.share(0)
    assert fed[EXACT] == pytest.approx(0.5, abs=0.01)
    assert fed[REFERENCE] < 0.5
