"""Changes of a run that must change nothing, or only what was changed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from history import Fleet, fleets
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import Oracle
from policies import ADMISSION
from strategies import crowds, duels, fadings, flavours, overloads, plans
from strategies_letters import Resolver, resolved
from strategies_waits import admissions, reloads

from kvcore.actions import Dispatch, Ignored
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    ContextAdvanced,
    DispatchFailed,
    Drained,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import PolicyClass
from kvcore.request import Rank, Request
from kvcore.scheduler import Scheduler

SOUND = flavours(broken=False)
SHIFT_NS = 10**15
#: An attempt that no run reaches, and a worker that no plan has.
NO_ATTEMPT = 2**40
NO_WORKER = 77

#: Each of these plays every plan at least twice: a third of the examples of the profile in use.
slow = settings(max_examples=max(60, settings().max_examples // 3))


def batches_of(plan) -> list[tuple[AnyEvent, ...]]:
    return [events for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps]


def play(config: SchedulerConfig, batches) -> list[tuple]:
    scheduler = Scheduler(config, ADMISSION)
    return [scheduler.step_many(events) for events in batches]


def relabelled(value, names: dict[str, str]):
    """An event or action with its request id exchanged."""
    if isinstance(value, RequestArrived):
        return replace(value, request=replace(value.request, request_id=names[value.request.request_id]))
    return replace(value, request_id=names[value.request_id]) if hasattr(value, "request_id") else value


@slow
@given(plans(SOUND), st.randoms(use_true_random=False))
def test_names_of_requests_do_not_matter(plan, random):
    batches = batches_of(plan)
    numbers = range(1, 1 + sum(map(len, batches)))
    old = ["ghost", *(f"r{i}" for i in numbers), *map(str, numbers)]
    new = [f"{'ä' * (i % 3)}{i:x}" for i in range(len(old))]
    random.shuffle(new)
    names = dict(zip(old, new, strict=True))
    told = play(plan.config, batches)
    told_again = play(plan.config, [tuple(relabelled(event, names) for event in events) for events in batches])
    assert told_again == [tuple(relabelled(action, names) for action in actions) for actions in told]


@slow
@given(plans(SOUND), st.data())
def test_timers_with_nothing_due_change_nothing(plan, data):
    """Predictions are left out: they end with time, and nobody needs to be woken for that."""
    assume(plan.config.predict_ttl_ns is None and plan.config.index is not IndexMode.APPROXIMATE)
    plain, disturbed = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
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


@slow
@given(plans(SOUND))
def test_facts_that_do_not_compete_may_be_split(plan):
    """Nothing waits, not even for an answer, and only the last event may be an arrival or a retry."""
    whole, split = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    for events in batches_of(plan):
        stats = whole.stats()
        alone = stats.waiting_requests + stats.refreshing_requests == 0
        if alone and not any(isinstance(event, RequestArrived | DispatchFailed) for event in events[:-1]):
            told = sum((split.step(event) for event in events), ())
        else:
            told = split.step_many(events)
        assert told == whole.step_many(events)
        assert split.digest() == whole.digest()
        assert split.stats() == whole.stats()


@slow
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
    if isinstance(event, Drained):
        event = replace(event, deadline_ns=min(event.deadline_ns + SHIFT_NS, 2**62 - 1))
    if isinstance(event, RequestArrived) and event.request.deadline_ns is not None:
        event = replace(event, request=replace(event.request, deadline_ns=event.request.deadline_ns + SHIFT_NS))
    return replace(event, now_ns=event.now_ns + SHIFT_NS)


@slow
@given(plans(SOUND))
def test_the_origin_of_time_does_not_matter(plan):
    batches = batches_of(plan)
    assume(batches and batches[-1][-1].now_ns < SHIFT_NS)
    assert play(plan.config, [tuple(map(later, events)) for events in batches]) == play(plan.config, batches)


def same_again(fleet: Fleet, now_ns: int) -> list[AnyEvent]:
    """An upsert that changes nothing."""
    return [WorkerUpserted(now_ns, *known) for known in list(fleet.workers.values())[:1]]


def nothing_said(fleet: Fleet, now_ns: int) -> list[AnyEvent]:
    """A source that has never said anything of a worker says that it is well."""
    return [WorkerStatusChanged(now_ns, worker_id, known[1], "somebody") for worker_id, known in
            list(fleet.workers.items())[-1:]]


def room_anywhere(fleet: Fleet, now_ns: int) -> list[AnyEvent]:
    """Somebody has seen room, without saying where."""
    return [CapacityHinted(now_ns)]


def room_in_many_places(fleet: Fleet, now_ns: int) -> list[AnyEvent]:
    """More hints than are remembered one by one; of ranks that exist, if there are any."""
    ranks = sorted(fleet.ranks()) or [(NO_WORKER, 0)]
    return [CapacityHinted(now_ns, (Rank(*ranks[i % len(ranks)]),)) for i in range(257)]


@pytest.mark.parametrize("fact", [same_again, nothing_said, room_anywhere, room_in_many_places])
@pytest.mark.parametrize("flavour", [SOUND, st.one_of(crowds(), fadings(), overloads())], ids=["all", "capacity"])
@slow
@given(data=st.data())
def test_targeted_rechecks_are_full_rechecks(fact, flavour, data):
    """A fact about a worker that changes nothing makes every verdict be forgotten: asking all heads finds nobody else.

    Whatever made room: progress, decay, reports and their end, marks and theirs. Hints say so in as many words.
    """
    plan = data.draw(plans(flavour))
    run = resolved(plan, Oracle(plan.config, ADMISSION))
    targeted, full = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    for (events, _), (_, *seen) in zip(run.steps, fleets(run), strict=True):
        more = []
        for event, fleet in zip(events, seen, strict=True):
            more += [event, *fact(fleet, event.now_ns)]
        assert full.step_many(more) == targeted.step_many(events)
        assert full.digest() == targeted.digest()
        assert full.stats() == targeted.stats()
        assert full.next_deadline_ns == targeted.next_deadline_ns


def stale(random: Random, now_ns: int, fleet: Fleet, names: list[str], ended: list[tuple[str, int]]) -> AnyEvent:
    """A fact that is not about anything current. names: of requests; ended: attempts that are over."""
    choices = [RequestCancelled(now_ns, "nobody"), WorkerRemoved(now_ns, NO_WORKER),
               AdmissionReleased(now_ns, "nobody", Rank(1))]
    for name, attempt in [(random.choice(names or ["nobody"]), NO_ATTEMPT), *random.sample(ended, min(1, len(ended)))]:
        choices += [
            PrefillCompleted(now_ns, name, attempt), OutputBlockAdded(now_ns, name, attempt, 0.5),
            RequestFinished(now_ns, name, attempt, random.choice(list(Outcome))),
            ContextAdvanced(now_ns, name, attempt, 2**53), OverlapRefreshed(now_ns, name, NO_ATTEMPT),
        ]
    ranks = sorted((worker_id, dp_rank, incarnation + 1) for (worker_id, dp_rank), incarnation in
                   fleet.incarnations().items())
    place = random.choice([*ranks, (NO_WORKER, 0, 0)])
    choices += [BlocksStored(now_ns, *place, (11, 12), random.choice(list(Tier))), BlocksRemoved(now_ns, *place, (11,)),
                BlocksCleared(now_ns, *place), LoadReported(now_ns, *place, 2**53, 2**53, 2**53, 2**53),
                WorkerStatusChanged(now_ns, place[0], place[2], available=False)]
    choices += [WorkerUpserted(now_ns, replace(config, dp_size=1, max_batched_tokens=1), incarnation - 1)
                for config, incarnation in fleet.workers.values() if incarnation > 0]
    return random.choice(choices)


@slow
@given(plans(st.one_of(SOUND, reloads(), admissions())), st.randoms(use_true_random=False))
def test_the_policy_in_force_may_be_said_again(plan, random):
    plain, told_again = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    profile = plan.config.effective_profile()
    for events in batches_of(plan):
        more = []
        for event in events:
            if random.random() < 0.4:
                more.append(PolicyReplaced(event.now_ns, profile))
            more.append(event)
            profile = event.profile if isinstance(event, PolicyReplaced) else profile
        assert told_again.step_many(more) == plain.step_many(events)
        assert told_again.digest() == plain.digest()
        assert told_again.stats() == plain.stats()
        assert told_again.next_deadline_ns == plain.next_deadline_ns


@slow
@given(plans(SOUND), st.randoms(use_true_random=False))
def test_stale_facts_change_nothing(plan, random):
    """Wherever they come in a batch: wrong attempts, what has ended, older incarnations, who was never there."""
    run = resolved(plan, Oracle(plan.config, ADMISSION))
    plain, disturbed = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    oracle = Oracle(plan.config, ADMISSION)
    names, dispatched = [], []
    for (events, _), seen in zip(run.steps, fleets(run), strict=True):
        ended = [(name, attempt) for name, attempt in dispatched
                 if name not in oracle.live or oracle.live[name].attempt != attempt]
        more, added = [], Counter()
        for event, fleet in zip(events, seen, strict=False):
            if random.random() < 0.4:
                more.append(stale(random, event.now_ns, fleet, names, ended))
                if hasattr(more[-1], "request_id"):
                    added[Ignored(more[-1].request_id, getattr(more[-1], "attempt", 0))] += 1
            more.append(event)
        told, told_more = plain.step_many(events), disturbed.step_many(more)
        assert [a for a in told_more if not isinstance(a, Ignored)] == [a for a in told if not isinstance(a, Ignored)]
        assert Counter(a for a in told_more if isinstance(a, Ignored)) == (
            Counter(a for a in told if isinstance(a, Ignored)) + added)
        assert disturbed.digest() == plain.digest()
        assert replace(disturbed.stats(), stale_events=0) == replace(plain.stats(), stale_events=0)
        assert disturbed.next_deadline_ns == plain.next_deadline_ns
        oracle.step_many(events)
        names += [event.request.request_id for event in events if isinstance(event, RequestArrived)]
        dispatched += [(action.request_id, action.attempt) for action in told if isinstance(action, Dispatch)]


def read_everything(scheduler: Scheduler, request: Request) -> None:
    scheduler.peek(request)
    scheduler.loads()
    scheduler.stats()
    scheduler.audit()
    scheduler.digest()


@slow
@given(plans(SOUND), st.randoms(use_true_random=False))
def test_who_reads_changes_nothing(plan, random):
    """Neither the digest nor what happens later, whenever it is read and however often."""
    oracle = Oracle(plan.config, ADMISSION)
    resolver, asked = Resolver(plan, oracle), Resolver(plan, oracle)
    quiet, watched = Scheduler(plan.config, ADMISSION), Scheduler(plan.config, ADMISSION)
    letters = [letter for batch in plan.batches for letter in batch]
    for events in resolver.batches():
        for _ in range(random.choice((0, 1, 3))):
            before = watched.digest()
            asked.now_ns = oracle.now_ns
            read_everything(watched, asked.probe(random.choice(letters)))
            assert watched.digest() == before
        assert watched.step_many(events) == quiet.step_many(events)
        assert watched.next_deadline_ns == quiet.next_deadline_ns
        oracle.step_many(events)
    assert watched.digest() == quiet.digest()
    assert watched.stats() == quiet.stats()
