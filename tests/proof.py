"""Figures for the reader: how much was tried, and the worst that was seen of each bound against its limit.

    python tests/proof.py [CASES]       random histories per figure, 5 000 unless told otherwise

The tests assert the same bounds; this prints how close one comes to them. The queue is the core's own, behind the
tests' door, and runs beside the oracle, so that each case is also a comparison.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from random import Random

from hypothesis import Phase, given, settings
from lockstep import play
from probe_build import load
from ring import BOUNDS, HEAD, Queue, Ring, made
from stories import profile
from strategies import plans

from kvcore.policy import Arbitration
from kvcore.scheduler import Scheduler

SEED = 20261130
CASES = 5_000
SIZES = (10, 1_000, 100_000)


@dataclass(frozen=True)
class Figure:
    """worst: the largest value seen, as a part of its limit; value: what that was. cases: how many histories."""

    name: str
    worst: float
    value: str
    cases: int

    def __str__(self) -> str:
        return f"{self.name:42} {self.worst:6.3f} of its limit   {self.value:34} {self.cases:7} cases"


def everyone(class_index: int, item: int) -> bool:
    return True


def rings(cases: int, bounded: bool) -> Figure:
    """Everything at once: pushes, cancels, blockades, tiers. The figure: failed tests of heads per change."""
    random, worst, value = Random(SEED), 0.0, ""
    for case in range(cases):
        ring = Ring(made(random.randbytes(HEAD), list(Arbitration)[case % 2], bounded))
        ring.play(random.randbytes(160))
        for place, failed in ring.failed.items():
            ratio = failed / ring.changes[place]
            if ratio > worst:
                worst, value = ratio, f"{failed} for {ring.changes[place]} changes"
    return Figure(f"failed tests per change, {'bounds' if bounded else 'no bounds'}", worst, value, cases)


def shares(cases: int) -> Figure:
    """|S_i/q_i - S_j/q_j| against 1 + max_i/q_i + max_j/q_j, over any stretch in which all classes wait."""
    random, worst, value = Random(SEED), Fraction(0), ""
    for _ in range(cases):
        quanta = [random.choice((1, 2, 3, 7, 10, 30)) for _ in range(random.randint(2, 4))]
        cycles = [[random.choice((1, 2, 5, 9, 10, 11, 40)) for _ in range(random.randint(1, 3))] for _ in quanta]
        queue, costs = Queue(profile(*quanta)), []
        for turn in range(30):
            for index, cycle in enumerate(cycles):
                costs.append((index, cycle[turn % len(cycle)]))
                queue.push(len(costs) - 1, index, (0, len(costs), 0, len(costs)), cost=costs[-1][1])
        left, served = [30] * len(quanta), [Fraction(0)] * len(quanta)
        spans = {pair: [Fraction(0), Fraction(0)] for pair in combinations(range(len(quanta)), 2)}
        while min(left) > 1:
            index, cost = costs[queue.pop(everyone)]
            left[index] -= 1
            served[index] += Fraction(cost, quanta[index])
            for (i, j), span in spans.items():
                span[:] = min(span[0], served[i] - served[j]), max(span[1], served[i] - served[j])
                limit = 1 + sum(Fraction(max(cycles[k]), quanta[k]) for k in (i, j))
                if (span[1] - span[0]) / limit > worst:
                    worst = (span[1] - span[0]) / limit
                    value = f"{float(span[1] - span[0]):.3f} rounds, limit {float(limit):.3f}"
    return Figure("shares apart (D5)", float(worst), value, cases)


def overtaking(cases: int) -> Figure:
    """Cost of younger requests popped past one that waits in an open lane, against M."""
    random, worst, value = Random(SEED), 0.0, ""
    for _ in range(cases):
        bound = random.choice([bound for bound in BOUNDS if bound])
        queue, waiting = Queue(profile(5, max_overtake_tokens=bound)), {}
        for item in range(60):
            cost = random.choice((1, 1, 2, 3, 5, 8))
            queue.push(item, 0, (random.randrange(3), 60 - item, 0, item), cost=cost)
            waiting[item] = [cost, 0]
            if item % 3 == 0:
                served = queue.pop(everyone)
                cost = waiting.pop(served)[0]
                for older in [entry for other, entry in waiting.items() if other < served]:
                    older[1] += cost
                    if older[1] / bound > worst:
                        worst, value = older[1] / bound, f"{older[1]} tokens, limit {bound}"
    return Figure("overtaken (D17)", worst, value, cases)


def visits(cases: int) -> Figure:
    """Classes looked at in a pop, against 2 C + 1; costs up to 2^53 with quantum 1."""
    random, worst, value = Random(SEED), 0.0, ""
    for case in range(cases):
        count = random.choice((1, 2, 5, 20, 50))
        queue = Queue(profile(*[random.choice((1, 1, 3, 2**53)) for _ in range(count)],
                              arbitration=list(Arbitration)[case % 2]))
        for item in range(2 * count):
            queue.push(item, item % count, (0, item, 0, item), cost=random.choice((1, 10**6, 2**53 - 1, 2**53)))
        for _ in range(2 * count):
            before = queue.visits
            queue.pop(everyone)
            ratio = (queue.visits - before) / (2 * count + 1)
            if ratio > worst:
                worst, value = ratio, f"{queue.visits - before} visits, {count} classes"
    return Figure("class visits per pop (2 C + 1)", worst, value, cases)


def moves() -> Iterator[Figure]:
    """Heap nodes moved per dispatch, the index of lanes included, against 2 log2(n) + 8."""
    lanes_of = {"one lane": 1, "n lanes": SIZES[-1]}
    for (name, lanes), size in ((pair, size) for pair in lanes_of.items() for size in SIZES):
        queue = load("_probe_queue").Lanes()
        for item in range(size):
            queue.push(item, (0, item * 7919 % size, 0, item), None if lanes == 1 else item % lanes)
        most, count, start = 0, min(size, 2_000), queue.moves
        for _ in range(count):
            before = queue.moves
            queue.take(queue.candidate(everyone))
            most = max(most, queue.moves - before)
        log = math.log2(size)
        text = f"{most} at most, {(queue.moves - start) / count / log:.2f} log2(n) each"
        yield Figure(f"heap moves per dispatch, {size:,}, {name}", most / (2 * log + 8), text, count)


def plans_played(cases: int) -> Figure:
    """Whole schedulers against the oracle; a difference would end the program."""
    played = []

    @settings(max_examples=cases, derandomize=True, database=None, phases=[Phase.generate])
    @given(plans())
    def compare(plan):
        played.append(sum(len(batch) for batch in plan.batches))
        play(plan, Scheduler)

    compare()
    return Figure("differences to the oracle, whole scheduler", 0.0, f"{sum(played)} events", len(played))


def figures(cases: int) -> Iterator[Figure]:
    """All of them, one by one."""
    yield plans_played(max(1, cases // 10))
    yield rings(cases, bounded=False)
    yield rings(cases, bounded=True)
    yield shares(cases)
    yield overtaking(cases)
    yield visits(cases)
    yield from moves()


if __name__ == "__main__":
    for figure in figures(int(sys.argv[1]) if len(sys.argv) > 1 else CASES):
        print(figure, flush=True)
