"""Deficit round robin, all sequences of six letters on two classes: the core picks what the oracle's loop picks.

The loop of mode `exact` grants one quantum at a time; mode `reference` follows the numbered steps of the reference. A
letter that changes nothing (block twice, cancel of nobody) ends no new sequence. So does a poll that finds nobody: it
must leave the state as it is, and whatever follows it is a shorter sequence. Sequences are walked as a tree; the core
plays each branch from the beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest
from oracle_queue import Entry, PolicyQueue
from probe_build import load
from stories import profile

from kvcore.policy import Arbitration

Queue = load("_probe_queue").Queue

LENGTH = 6
CHEAP, DEAR = 2, 3
#: (class, cost)
PUSHES = tuple(product((0, 1), (CHEAP, DEAR)))


class State(NamedTuple):
    """The oracle between two letters. costs: of what waits in each class, in order of service."""

    costs: tuple[tuple[int, ...], ...] = ((), ())
    deficits: tuple[int, ...] = (0, 0)
    cursor: int = 0
    paid: bool = False
    carry: int | None = None


@dataclass(frozen=True)
class Rule:
    """What a letter does to a state. target: the class that can be blocked and cancelled from."""

    arbitration: Arbitration
    quanta: tuple[int, int]
    target: int = 0

    def queue(self, state: State) -> PolicyQueue:
        queue = PolicyQueue(list(self.quanta), self.arbitration)
        for index, costs in enumerate(state.costs):
            for place, cost in enumerate(costs):
                queue.push(index, Entry((place,), cost))
            queue.classes[index].deficit = state.deficits[index]
        queue.cursor, queue.paid, queue.carry = state[2:]
        return queue

    def after(self, queue: PolicyQueue) -> State:
        costs = tuple(tuple(entry.cost for entry in item.entries) for item in queue.classes)
        return State(costs, tuple(item.deficit for item in queue.classes), queue.cursor, queue.paid, queue.carry)

    def pop(self, state: State, blocked: bool) -> tuple[int | None, State]:
        """The class that is served."""
        queue = self.queue(state)
        entry = queue.pop(lambda entry: not blocked or entry.class_index != self.target)
        return entry and entry.class_index, self.after(queue)

    def cancel(self, state: State) -> State:
        queue = self.queue(state)
        queue.remove(queue.classes[self.target].entries[0])
        return self.after(queue)


@dataclass
class Walk:
    """All sequences under one rule. urgent: what is cheap goes before what is dear. played: branches of the tree."""

    rule: Rule
    urgent: bool = False
    played: int = 0
    path: list[tuple] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pop, self.cancel = cache(self.rule.pop), cache(self.rule.cancel)
        self.profile = profile(*self.rule.quanta, arbitration=self.rule.arbitration)

    def extend(self, state: State, items: tuple[tuple[int, ...], ...], blocked: bool, seq: int) -> None:
        """Walk through everything that can follow. items: what waits, as costs; seq: of the next push."""
        if len(self.path) == LENGTH:
            self.play(state)
            return
        for index, cost in PUSHES:
            place = bisect_right(state.costs[index], cost) if self.urgent else len(items[index])
            costs = put(state.costs, index, (*state.costs[index][:place], cost, *state.costs[index][place:]))
            more = put(items, index, (*items[index][:place], seq, *items[index][place:]))
            self.go("push", (seq, index, (0, cost if self.urgent else 0, 0, seq), cost), state._replace(costs=costs),
                    more, blocked, seq + 1)
        self.go("block" if not blocked else "unblock", (), state, items, not blocked, seq)
        target = self.rule.target
        if items[target]:
            self.go("cancel", (items[target][0],), self.cancel(state), put(items, target, items[target][1:]), blocked,
                    seq)
        served, after = self.pop(state, blocked)
        if served is not None:
            self.go("pop", (items[served][0],), after, put(items, served, items[served][1:]), blocked, seq)
        else:
            self.path.append(("pop", (None,)))
            self.play(after)
            self.path.pop()

    def go(self, letter: str, fields: tuple, *after) -> None:
        self.path.append((letter, fields))
        self.extend(*after)
        self.path.pop()

    def play(self, state: State) -> None:
        """The path on the core: every pop, and the state at its end."""
        queue, blocked, target = Queue(self.profile), False, self.rule.target

        def may_run(class_index, item):
            return not blocked or class_index != target

        for letter, fields in self.path:
            if letter == "push":
                seq, index, key, cost = fields
                queue.push(seq, index, key, cost=cost)
            elif letter == "pop":
                assert queue.pop(may_run) == fields[0], self.path
            elif letter == "cancel":
                queue.remove(*fields)
            else:
                blocked = letter == "block"
                queue.lanes(target).recheck_all()
        assert queue.deficits() == list(state.deficits), self.path
        assert place_of(queue, self.rule) == place_wanted(state, self.rule), self.path
        self.played += 1


def put(pair: tuple, index: int, value) -> tuple:
    return (value, pair[1]) if index == 0 else (pair[0], value)


def place_of(queue, rule: Rule) -> tuple:
    """Where the core stands in the ring: mode `reference` has visits for its carry marker."""
    paid = queue.visit is not None if rule.arbitration is Arbitration.REFERENCE else queue.visit == "paid"
    return queue.cursor, paid


def place_wanted(state: State, rule: Rule) -> tuple:
    """Where the oracle stands; a carry to a class without credit means nothing."""
    if rule.arbitration is Arbitration.REFERENCE:
        open_visit = state.carry is not None and state.deficits[state.carry] > 0
        return (state.carry if open_visit else state.cursor), open_visit
    return state.cursor, state.paid


def walk(arbitration: Arbitration, quanta: tuple[int, int], target: int, urgent: bool) -> int:
    """Branches played."""
    found = Walk(Rule(arbitration, quanta, target), urgent)
    found.extend(State(), ((), ()), False, 0)
    return found.played


@pytest.mark.parametrize("quanta", list(product((1, 2, 3), repeat=2)), ids=str)
@pytest.mark.parametrize(("arbitration", "target", "urgent"), [
    *((Arbitration.EXACT, *rest) for rest in product((0, 1), (False, True))),
    (Arbitration.REFERENCE, 0, False), (Arbitration.REFERENCE, 1, True)])
def test_every_sequence(arbitration, quanta, target, urgent):
    assert walk(arbitration, quanta, target, urgent) > 50_000
