"""Random runs of the core: every checker holds, nothing is lost, time moves on, everything is given back."""

from __future__ import annotations

from dataclasses import replace

from checkers import faults_of
from hypothesis import given
from hypothesis import strategies as st
from lockstep import load_rows
from oracle import Oracle
from policies import ADMISSION
from recording import Run, as_code, record
from strategies import choices, crowds, detours, duels, fadings, flavours, overloads, plans, retries
from strategies_letters import resolved

from kvcore.events import OutputBlockAdded, RequestCancelled, TimerFired, WorkerUpserted
from kvcore.policy import Capacity
from kvcore.scheduler import Scheduler

SOUND = flavours(broken=False)


def batches_of(run: Run):
    return [events for events, _ in run.steps]


@given(plans(SOUND))
def test_checkers_hold(plan):
    batches = batches_of(resolved(plan, Oracle(plan.config, ADMISSION)))
    assert faults_of(record(Scheduler(plan.config, ADMISSION), batches)) == [], as_code(plan.config, batches)


@given(plans(duels(), most_batches=120))
def test_checkers_hold_where_classes_compete(plan):
    batches = batches_of(resolved(plan, Oracle(plan.config, ADMISSION)))
    assert faults_of(record(Scheduler(plan.config, ADMISSION), batches)) == [], as_code(plan.config, batches)


@given(plans(detours(lanes=False)))
def test_checkers_hold_where_requests_overtake(plan):
    batches = batches_of(resolved(plan, Oracle(plan.config, ADMISSION)))
    assert faults_of(record(Scheduler(plan.config, ADMISSION), batches)) == [], as_code(plan.config, batches)


@given(plans(st.one_of(crowds(), overloads(), fadings(), choices())))
def test_checkers_hold_where_room_is_scarce(plan):
    batches = batches_of(resolved(plan, Oracle(plan.config, ADMISSION)))
    assert faults_of(record(Scheduler(plan.config, ADMISSION), batches)) == [], as_code(plan.config, batches)


@given(plans(retries()))
def test_checkers_hold_where_dispatches_fail(plan):
    batches = batches_of(resolved(plan, Oracle(plan.config)))
    assert faults_of(record(Scheduler(plan.config), batches)) == [], as_code(plan.config, batches)


@given(plans(crowds()))
def test_strict_capacity_is_never_exceeded(plan):
    """Unless somebody takes away what was there, or an answer grows beyond what was foreseen."""
    strict = replace(plan.config, profile=replace(plan.config.profile, capacity=Capacity.STRICT))
    scheduler = Scheduler(strict, ADMISSION)
    for number, (events, _) in enumerate(resolved(plan, Oracle(plan.config, ADMISSION)).steps):
        unforeseen = (OutputBlockAdded, WorkerUpserted) if number else OutputBlockAdded
        scheduler.step_many([TimerFired(event.now_ns) if isinstance(event, unforeseen) else event for event in events])
        assert scheduler.stats().over_cap_ranks == 0


@given(plans(SOUND))
def test_no_request_is_lost_and_every_load_is_given_back(plan):
    scheduler = Scheduler(plan.config, ADMISSION)
    run = resolved(plan, Oracle(plan.config, ADMISSION))
    seen = set()
    for events, _ in run.steps:
        scheduler.step_many(events)
        seen |= {getattr(event, "request", event).request_id for event in events if hasattr(event, "request")}
        stats = scheduler.stats()
        assert stats.arrived == sum(stats.rejected.values()) + stats.completed + stats.aborted + stats.live_requests
        assert stats.waiting_requests == sum(item.waiting_requests for item in stats.classes)
        assert scheduler.audit() == []
    now_ns = run.steps[-1][0][-1].now_ns if run.steps else 0
    scheduler.step_many([RequestCancelled(now_ns, name) for name in sorted(seen)])
    assert scheduler.stats().live_requests == 0
    assert {load for row in load_rows(scheduler) for load in row[2:6]} <= {0}
    scheduler.step(TimerFired(2**62 - 1))          # marks and reports have an end of their own
    assert scheduler.next_deadline_ns is None
    for item in scheduler.stats().classes:
        assert (item.deficit_tokens, item.waiting_raw_tokens, item.waiting_cost_tokens) == (0, 0, 0)


@given(plans(SOUND))
def test_a_timer_at_the_deadline_moves_it_on(plan):
    scheduler = Scheduler(plan.config, ADMISSION)
    for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps:
        scheduler.step_many(events)
    for _ in range(100):
        due_ns = scheduler.next_deadline_ns
        if due_ns is None or due_ns >= 2**62:
            return
        scheduler.step(TimerFired(due_ns))
        assert scheduler.next_deadline_ns is None or scheduler.next_deadline_ns > due_ns


@given(plans(SOUND))
def test_same_events_same_actions_and_digest(plan):
    batches = batches_of(resolved(plan, Oracle(plan.config, ADMISSION)))
    one, other = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    for events in batches:
        assert one.step_many(events) == other.step_many(tuple(events))
        assert one.digest() == other.digest()
