"""Random runs: a scheduler that has been restored goes on as if nothing had happened, and so does its own copy."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from lockstep import answer, load_rows, potential_rows
from oracle import Oracle
from policies import ADMISSION, logged
from recording import as_code
from strategies import anything, detours, fadings, flavours, plans, retries
from strategies_letters import Resolver, resolved
from strategies_peers import replicas
from strategies_waits import absences, admissions, questions, reloads

from kvcore.errors import InvalidSnapshot
from kvcore.events import TimerFired
from kvcore.scheduler import Scheduler

CHECKSUM = 16
NS_LAST = 2**62 - 1
WORDS = (0, 1, -1, 2, 255, 2**31 - 1, -2**31, 2**32, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -2**63)


def seen(scheduler, probe):
    """All that can be seen of a scheduler without changing it."""
    return (scheduler.digest(), scheduler.next_deadline_ns, scheduler.stats(), load_rows(scheduler),
            repr(scheduler.peek(probe)), potential_rows(scheduler, probe), scheduler.audit())


def check(plan, every: int) -> None:
    """Play a plan on a scheduler and on one that is restored from the other's state, or its own, again and again."""
    calls, again_calls = [], []
    scheduler, oracle = Scheduler(plan.config, logged(calls)), Oracle(plan.config, ADMISSION)
    twin = Scheduler.restore(scheduler.snapshot(), admission=logged(again_calls))
    resolver = Resolver(plan, oracle)
    batches = []
    for number, events in enumerate(resolver.batches()):
        batches.append(events)
        told, again = answer(scheduler, events), answer(twin, events)
        answer(oracle, events)
        assert (again, again_calls) == (told, calls), as_code(plan.config, batches)
        probe = resolver.probe(plan.batches[number][-1]) if plan.batches[number] else resolver.probe(b"\0" * 20)
        assert seen(twin, probe) == seen(scheduler, probe), as_code(plan.config, batches)
        if number % every == 0:
            data = scheduler.snapshot()
            assert twin.snapshot() == data, as_code(plan.config, batches)
            twin = Scheduler.restore(data, admission=logged(again_calls))
            assert seen(twin, probe) == seen(scheduler, probe), as_code(plan.config, batches)


@given(plans(flavours()), st.integers(1, 7))
def test_a_restored_scheduler_goes_on_alike(plan, every):
    check(plan, every)


@given(plans(st.one_of(retries(), detours(), fadings(), anything())), st.integers(1, 4))
def test_also_where_much_is_remembered(plan, every):
    check(plan, every)


@given(plans(st.one_of(replicas(), replicas(base=fadings()))), st.integers(1, 4))
def test_also_where_peers_speak(plan, every):
    check(plan, every)


@given(plans(st.one_of(admissions(), questions(), absences(), reloads())), st.integers(1, 4))
def test_also_where_much_is_waited_for(plan, every):
    check(plan, every)


@given(plans(st.one_of(flavours(), replicas()), most_batches=15), st.data())
def test_damage_is_refused_or_is_another_snapshot(plan, data):
    """Under a checksum that is right: whatever is restored gives the same bytes, is sound and goes on."""
    scheduler = Scheduler(plan.config, ADMISSION)
    for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps:
        scheduler.step_many(events)
    content = scheduler.snapshot()[:-CHECKSUM]
    for _ in range(5):
        at, size = data.draw(st.integers(12, len(content))), data.draw(st.sampled_from((1, 4, 8)))
        word = data.draw(st.sampled_from(WORDS)).to_bytes(8, "little", signed=True)[:size]
        damaged = content[:at] + word + content[at + data.draw(st.sampled_from((size, size, 0, 2 * size))):]
        damaged += hashlib.blake2b(damaged, digest_size=CHECKSUM).digest()
        with suppress(InvalidSnapshot):
            twin = Scheduler.restore(damaged, admission=ADMISSION)
            assert twin.snapshot() == damaged
            twin.step(TimerFired(NS_LAST))
            assert twin.audit() == []
