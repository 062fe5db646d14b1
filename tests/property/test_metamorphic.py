"""Changes of a run that must change nothing, or only what was changed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import Oracle
from strategies import duels, flavours, plans
from strategies_letters import resolved

from kvcore.config import SchedulerConfig
from kvcore.events import AnyEvent, RequestArrived, TimerFired
from kvcore.policy import PolicyClass
from kvcore.scheduler import Scheduler

SOUND = flavours(broken=False)
SHIFT_NS = 10**15


def batches_of(plan) -> list[tuple[AnyEvent, ...]]:
    return [events for events, _ in resolved(plan, Oracle(plan.config)).steps]


def play(config: SchedulerConfig, batches) -> list[tuple]:
    scheduler = Scheduler(config)
    return [scheduler.step_many(events) for events in batches]


def relabelled(value, names: dict[str, str]):
    """An event or action with its request id exchanged."""
    if isinstance(value, RequestArrived):
        return replace(value, request=replace(value.request, request_id=names[value.request.request_id]))
    return replace(value, request_id=names[value.request_id]) if hasattr(value, "request_id") else value


@given(plans(SOUND), st.randoms(use_true_random=False))
def test_names_of_requests_do_not_matter(plan, random):
    batches = batches_of(plan)
    old = ["ghost", *(f"r{i}" for i in range(1, 1 + sum(map(len, batches))))]
    new = [f"{'ä' * (i % 3)}{i:x}" for i in range(len(old))]
    random.shuffle(new)
    names = dict(zip(old, new, strict=True))
    told = play(plan.config, batches)
    told_again = play(plan.config, [tuple(relabelled(event, names) for event in events) for events in batches])
    assert told_again == [tuple(relabelled(action, names) for action in actions) for actions in told]


@given(plans(SOUND), st.data())
def test_timers_with_nothing_due_change_nothing(plan, data):
    plain, disturbed = Scheduler(plan.config), Scheduler(plan.config)
    now_ns = 0
    for events in batches_of(plan):
        last_ns = events[0].now_ns
        if disturbed.next_deadline_ns is not None:
            last_ns = min(last_ns, disturbed.next_deadline_ns - 1)
        if last_ns >= now_ns and data.draw(st.booleans()):
            before = disturbed.digest()
            assert disturbed.step(TimerFired(data.draw(st.integers(now_ns, last_ns)))) == ()
            assert disturbed.digest() == before
        assert disturbed.step_many(events) == plain.step_many(events)
        assert disturbed.digest() == plain.digest()
        now_ns = events[-1].now_ns


@given(plans(SOUND))
def test_facts_that_do_not_compete_may_be_split(plan):
    """Nothing waits, and only the last event may be an arrival: then a batch is its events one by one."""
    whole, split = Scheduler(plan.config), Scheduler(plan.config)
    for events in batches_of(plan):
        alone = whole.stats().waiting_requests == 0
        if alone and not any(isinstance(event, RequestArrived) for event in events[:-1]):
            told = sum((split.step(event) for event in events), ())
        else:
            told = split.step_many(events)
        assert told == whole.step_many(events)
        assert split.digest() == whole.digest()
        assert split.stats() == whole.stats()


@given(plans(duels(cancels=(0,))))
def test_a_class_that_nobody_uses_changes_nothing(plan):
    """True while requests leave their class by dispatch only.

    A removal that empties the class under the cursor moves the cursor on even if no visit is open (DESIGN D5), and
    whether the cursor stands there after a wrap depends on how many classes there are.
    """
    profile = plan.config.profile
    more = replace(profile, classes=(*profile.classes, PolicyClass("unused", 7, prefill_busy_threshold=3)))
    batches = batches_of(plan)
    assert play(replace(plan.config, profile=more), batches) == play(plan.config, batches)


def later(event: AnyEvent) -> AnyEvent:
    """The same event, and its deadline, SHIFT_NS later."""
    if isinstance(event, RequestArrived) and event.request.deadline_ns is not None:
        event = replace(event, request=replace(event.request, deadline_ns=event.request.deadline_ns + SHIFT_NS))
    return replace(event, now_ns=event.now_ns + SHIFT_NS)


@given(plans(SOUND))
def test_the_origin_of_time_does_not_matter(plan):
    batches = batches_of(plan)
    assume(batches and batches[-1][-1].now_ns < SHIFT_NS)
    assert play(plan.config, [tuple(map(later, events)) for events in batches]) == play(plan.config, batches)
