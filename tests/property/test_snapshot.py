"""Random runs: a scheduler that has been restored goes on as if nothing had happened, and so does its own copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lockstep import answer, load_rows, potential_rows
from oracle import Oracle
from policies import ADMISSION
from recording import as_code
from strategies import anything, detours, fadings, flavours, plans, retries
from strategies_letters import Resolver
from strategies_peers import replicas

from kvcore.scheduler import Scheduler


def seen(scheduler, probe):
    """All that can be seen of a scheduler without changing it."""
    return (scheduler.digest(), scheduler.next_deadline_ns, scheduler.stats(), load_rows(scheduler),
            repr(scheduler.peek(probe)), potential_rows(scheduler, probe), scheduler.audit())


def check(plan, every: int) -> None:
    """Play a plan on a scheduler and on one that is restored from the other's state, or its own, again and again."""
    scheduler, oracle = Scheduler(plan.config, ADMISSION), Oracle(plan.config, ADMISSION)
    twin = Scheduler.restore(scheduler.snapshot(), admission=ADMISSION)
    resolver = Resolver(plan, oracle)
    batches = []
    for number, events in enumerate(resolver.batches()):
        batches.append(events)
        told, again = answer(scheduler, events), answer(twin, events)
        answer(oracle, events)
        assert again == told, as_code(plan.config, batches)
        probe = resolver.probe(plan.batches[number][-1]) if plan.batches[number] else resolver.probe(b"\0" * 20)
        assert seen(twin, probe) == seen(scheduler, probe), as_code(plan.config, batches)
        if number % every == 0:
            data = scheduler.snapshot()
            assert twin.snapshot() == data, as_code(plan.config, batches)
            twin = Scheduler.restore(data, admission=ADMISSION)
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
