"""Drives a scheduler and the oracle through the same batches and compares all that can be seen of them."""

from __future__ import annotations

import dataclasses
import math

from journals import save_failure
from oracle import Oracle
from oracle_state import ClassStats, Stats
from policies import logged
from recording import as_code
from strategies import Plan
from strategies_letters import Resolver

from kvcore.errors import InvalidEvent

LOAD_FIELDS = ("worker_id", "dp_rank", "requests", "prefill_tokens", "active_blocks", "held_blocks", "state",
               "reported_prefill_tokens", "reported_blocks", "reported_requests", "peer_requests")
POTENTIAL_FIELDS = ("worker_id", "dp_rank", "requests", "prefill_tokens", "decode_blocks", "cached_tokens", "eligible")
SCALARS = [item.name for item in dataclasses.fields(Stats) if item.name != "classes"]
CLASS_SCALARS = [item.name for item in dataclasses.fields(ClassStats)]
#: A peek copies the whole oracle: not after every batch.
PEEK_EVERY = 5


class Difference(AssertionError):
    """The scheduler and the oracle disagree; the text ends with code that shows it, and see journals.py."""


def play(plan: Plan, make_scheduler, make_oracle=Oracle, numbered: bool = False) -> None:
    """Play one plan on both; raises Difference at the first one. numbered: all ids are numbers."""
    calls, wanted_calls = [], []
    scheduler, oracle = make_scheduler(plan.config, logged(calls)), make_oracle(plan.config, logged(wanted_calls))
    resolver = Resolver(plan, oracle, numbered)
    batches = []
    for number, events in enumerate(resolver.batches()):
        batches.append(events)
        before = scheduler.digest()
        told, expected = answer(scheduler, events), answer(oracle, events)
        compare("actions", told, expected, plan, batches)
        compare("calls of policies", calls, wanted_calls, plan, batches)
        calls.clear()
        wanted_calls.clear()
        if told and isinstance(told[0], str):
            compare("digest after a refused batch", scheduler.digest(), before, plan, batches)
        for what, seen, wanted in views(scheduler, oracle):
            compare(what, seen, wanted, plan, batches)
        if number % PEEK_EVERY == 0:
            look(scheduler, oracle, resolver, plan, batches)


def answer(scheduler, events):
    """The actions of a batch, or the place of the event that was refused."""
    try:
        if len(events) == 1:
            return scheduler.step(events[0])
        return scheduler.step_many(events)
    except InvalidEvent as error:
        return "invalid", error.index


def views(scheduler, oracle):
    """What both say of themselves: (what, scheduler's, oracle's)."""
    yield "next_deadline_ns", scheduler.next_deadline_ns, oracle.next_deadline_ns
    yield "loads", load_rows(scheduler), oracle.loads()
    yield "audit", scheduler.audit(), []
    mine, theirs = scheduler.stats(), oracle.stats()
    for name in SCALARS:
        yield f"stats.{name}", getattr(mine, name), getattr(theirs, name)
    for index, wanted in enumerate(theirs.classes):
        for name in CLASS_SCALARS:
            yield f"stats.classes[{index}].{name}", getattr(mine.classes[index], name), getattr(wanted, name)


def load_rows(scheduler) -> list[tuple[int, ...]]:
    """The rows of loads() as plain tuples."""
    rows = scheduler.loads()
    return [tuple(int(row[name]) for name in LOAD_FIELDS) for row in rows]


def potential_rows(scheduler, request) -> list[tuple]:
    """The rows of potential_loads() as plain tuples; the cost is told to the last bit."""
    rows = scheduler.potential_loads(request)
    return [(*(int(row[name]) for name in POTENTIAL_FIELDS), bits(float(row["cost"]))) for row in rows]


def bits(cost: float) -> str:
    return "nan" if math.isnan(cost) else cost.hex()


def look(scheduler, oracle, resolver: Resolver, plan: Plan, batches) -> None:
    """Peeks and projections agree, and looking leaves no trace."""
    before = scheduler.digest()
    request = resolver.probe(plan.batches[len(batches) % len(plan.batches)][-1])
    compare(f"peek of {request}", scheduler.peek(request), oracle.peek(request), plan, batches)
    wanted = [(*map(int, row[:-1]), bits(row[-1])) for row in oracle.potential_loads(request)]
    compare(f"potential_loads of {request}", potential_rows(scheduler, request), wanted, plan, batches)
    compare("digest after reads", scheduler.digest(), before, plan, batches)


def compare(what: str, seen, wanted, plan: Plan, batches) -> None:
    """Raise Difference unless equal."""
    if seen != wanted:
        save_failure(plan.config, batches)
        text = f"{what}: scheduler {seen!r}, oracle {wanted!r}"
        raise Difference(f"{text}\nafter these batches:\n{as_code(plan.config, batches)}")
