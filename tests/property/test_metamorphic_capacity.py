"""Marks, reports, caps and rates: what is said twice, or counts for nothing, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from policies import ADMISSION
from strategies import anything, choices, crowds, fadings, overloads, plans
from strategies_letters import resolved

from kvcore.config import PrefillDecay, SchedulerConfig
from kvcore.events import AnyEvent, LoadReported, TimerFired, WorkerStatusChanged, WorkerUpserted
from kvcore.policy import Capacity
from kvcore.scheduler import Scheduler

SWARM = anything(broken=False)
Batches = list[tuple[AnyEvent, ...]]

#: Each of these plays every plan at least twice: a third of the examples of the profile in use.
slow = settings(max_examples=max(60, settings().max_examples // 3))


def batches_of(plan) -> Batches:
    return [events for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps]


def play(config: SchedulerConfig, batches: Batches) -> list[tuple]:
    """What is answered, batch by batch, and when the scheduler wants to be asked again."""
    scheduler = Scheduler(config, ADMISSION)
    return [(scheduler.step_many(events), scheduler.next_deadline_ns) for events in batches]


def changed(batches: Batches, change: Callable[[AnyEvent], list[AnyEvent]]) -> Batches:
    """Each event replaced by others."""
    return [tuple([other for event in events for other in change(event)]) for events in batches]


def without(*kinds: type) -> Callable[[AnyEvent], list[AnyEvent]]:
    """Only time passes where there were events of these kinds."""
    return lambda event: [TimerFired(event.now_ns) if isinstance(event, kinds) else event]


def on_workers(**keys) -> Callable[[AnyEvent], list[AnyEvent]]:
    """Worker configurations with other values."""
    return lambda event: [replace(event, config=replace(event.config, **keys))
                          if isinstance(event, WorkerUpserted) else event]


@slow
@given(plans(st.one_of(overloads(), SWARM)))
def test_marks_may_be_said_twice(plan):
    batches = batches_of(plan)
    twice = changed(batches, lambda event: [event] * (1 + isinstance(event, WorkerStatusChanged)))
    plain, told_twice = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    for events, more in zip(batches, twice, strict=True):
        assert told_twice.step_many(more) == plain.step_many(events)
        assert told_twice.digest() == plain.digest()
        assert told_twice.next_deadline_ns == plain.next_deadline_ns


@slow
@given(plans(st.one_of(fadings(), choices(), crowds(), SWARM)))
def test_reports_count_for_nothing_without_a_time_to_live(plan):
    config, batches = replace(plan.config, reported_load_ttl_ns=None), batches_of(plan)
    silent = changed(batches, without(LoadReported))
    assert play(config, silent) == play(config, batches)


@slow
@given(plans(st.one_of(fadings(), SWARM)))
def test_rates_count_for_nothing_without_decay(plan):
    """Nor does decay without rates."""
    batches = batches_of(plan)
    constant, linear = (replace(plan.config, prefill_decay=decay) for decay in PrefillDecay)
    unknown = changed(batches, on_workers(prefill_tokens_per_s=None))
    wanted = play(constant, unknown)
    assert play(constant, batches) == wanted
    assert play(linear, unknown) == wanted


@slow
@given(plans(st.one_of(choices(), crowds())))
def test_strict_capacity_without_caps_and_marks_is_advisory(plan):
    """Where nothing is ever busy."""
    config, batches = plan.config, batches_of(plan)
    roomy = changed(changed(batches, on_workers(total_kv_blocks=None, max_requests=None)), without(WorkerStatusChanged))
    profile = config.effective_profile()
    classes = tuple([replace(item, prefill_busy_threshold=None, prefill_busy_threshold_frac=None)
                     for item in profile.classes])
    strict, advisory = (replace(config, profile=replace(profile, classes=classes, capacity=capacity))
                        for capacity in (Capacity.STRICT, Capacity.ADVISORY))
    assert play(strict, roomy) == play(advisory, roomy)
