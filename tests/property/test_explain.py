"""Random runs: explanations are pure, agree with what else can be read, and what they say must happen suffices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explain_checks import check
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle
from policies import ADMISSION
from strategies import choices, crowds, detours, duels, fadings, flavours, overloads, plans, retries
from strategies_letters import resolved
from strategies_waits import absences, admissions, questions, reloads

from kvcore._explanation_text import text
from kvcore.actions import Dispatch, RefreshOverlap
from kvcore.events import PrefillCompleted, RequestArrived
from kvcore.explanation import Explanation, RankView
from kvcore.request import Rank
from kvcore.scheduler import Scheduler

FLAVOURS = {
    "any": flavours(broken=False), "duels": duels(), "detours": detours(), "crowds": crowds(), "overloads": overloads(),
    "fadings": fadings(), "retries": retries(), "admissions": admissions(), "questions": questions(),
    "absences": absences(), "reloads": reloads(),
}
SCARCE = st.one_of(crowds(), overloads(), fadings(), retries(), duels(), admissions(), questions(), absences())
KEPT = (1000, 3, 0)


def batches_of(plan):
    return [events for events, _ in resolved(plan, Oracle(plan.config, ADMISSION)).steps]


def names_of(batches):
    """Names that the plan has used so far, and one that it has not."""
    return [event.request.request_id for events in batches for event in events if isinstance(event, RequestArrived)]


@pytest.mark.parametrize("flavour", FLAVOURS)
@settings(max_examples=settings().max_examples // 2)
@given(st.data())
def test_explanations_are_pure_and_true(flavour, data):
    """Beside a scheduler that nobody asks anything: the same actions, and the same digest."""
    plan = data.draw(plans(FLAVOURS[flavour], most_batches=40))
    kept = KEPT[len(plan.batches) % len(KEPT)]
    core = Scheduler(replace(plan.config, decisions_kept=kept), ADMISSION)
    quiet = Scheduler(plan.config, ADMISSION)
    batches = batches_of(plan)
    for number, events in enumerate(batches):
        assert core.step_many(events) == quiet.step_many(events)
        told = check(core, ["nobody", *names_of(batches[: number + 1])[-6:]], events[-1].now_ns)
        assert core.digest() == quiet.digest()
        assert len(core.decisions()) <= kept
        for explanation in told.values():
            assert max(map(len, text(explanation).splitlines())) <= 100
    check_copy(core, names_of(batches))


def check_copy(core: Scheduler, names) -> None:
    """A restored scheduler tells the same, but for decisions: they are no part of a snapshot."""
    copy = Scheduler.restore(core.snapshot(), admission=ADMISSION)
    assert copy.queue_dump(2**40) == core.queue_dump(2**40)
    assert copy.decisions() == ()
    for name in names:
        told = core.explain(name)
        assert copy.explain(name).state == ("unknown" if told.state == "ended" else told.state)
        if told.state != "ended":
            assert copy.explain(name) == replace(told, decision=None)


@given(plans(st.one_of(FLAVOURS["any"], choices(), SCARCE), most_batches=30))
def test_decisions_are_those_that_were_made(plan):
    """Each Dispatch of the last batch is in the ring, and its table is what potential_loads said just before."""
    core = Scheduler(replace(plan.config, decisions_kept=1000), ADMISSION)
    last_ns, count = 0, 0
    for events in batches_of(plan):
        probe = events[0].request if isinstance(events[0], RequestArrived) and len(events) == 1 else None
        rows = core.potential_loads(probe) if probe is not None and events[0].now_ns == last_ns else []
        expected = sorted([(float(row["cost"]), int(row["worker_id"]), int(row["dp_rank"]))
                           for row in rows if row["eligible"]])
        told = [action for action in core.step_many(events) if isinstance(action, Dispatch)]
        last_ns, count = events[-1].now_ns, count + len(told)
        made = core.decisions()
        assert len(made) == min(count, 1000)
        for action, decision in zip(told, made[len(made) - len(told):], strict=True):
            assert (decision.request_id, decision.attempt, decision.class_index, decision.rank) == (
                action.request_id, action.attempt, action.class_index, Rank(action.worker_id, action.dp_rank))
            check_decision(decision)
        if expected and told and told[0].request_id == probe.request_id and (
                core.explain(probe.request_id).lane == probe.pinned):      # no policy has placed it
            assert [(score.cost, score.rank.worker_id, score.rank.dp_rank)
                    for score in made[len(made) - len(told)].candidates] == expected


def check_decision(decision) -> None:
    """The choice follows from the table by the rule."""
    scores = {score.rank: score for score in decision.candidates}
    costs = [score.cost for score in decision.candidates]
    assert costs == sorted(costs)
    assert len(scores) == decision.candidates_count
    chosen = scores[decision.rank]
    others = [score.cost for score in decision.candidates if score is not chosen]
    if others and min(others) == chosen.cost:
        assert decision.margin == 0.0              # also where both are infinite
    else:
        assert decision.margin == (min(others) - chosen.cost if others else None)
    ties = costs.count(costs[0])
    if decision.rule == "only one":
        assert not others
    elif decision.rule == "cheapest":
        assert (ties, chosen.cost) == (1, costs[0])
    elif decision.rule.startswith("tie"):
        assert (decision.rule, chosen.cost) == (f"tie of {ties}, drawn", costs[0])
    else:
        assert decision.rule == "pinned" or decision.rule.startswith("sampled at temperature ")


@given(plans(SCARCE, most_batches=40))
def test_a_rank_whose_load_falls_as_told_is_taken(plan):
    """Where nothing but prefill load keeps a head from a rank, somebody runs once that load is gone."""
    config = replace(plan.config, reported_load_ttl_ns=None)
    batches = batches_of(replace(plan, flavour=replace(plan.flavour, config=config)))
    core = Scheduler(config, ADMISSION)
    for events in batches:
        core.step_many(events)
    names = dict.fromkeys(names_of(batches))
    told = {name: core.explain(name) for name in names}
    found = [(name, view) for name in names for view in only_busy(told[name])]
    if not found or core.stats().peer_bookings:    # what other replicas run there does not end so
        return
    name, view = found[len(batches) % len(found)]
    completed = [
        PrefillCompleted(batches[-1][-1].now_ns, other, told[other].attempt) for other in names
        if told[other].state == "running" and told[other].rank == Rank(view.worker_id, view.dp_rank)]
    assert completed, f"{name} waits for {view}, where nothing runs"
    actions = core.step_many(completed)
    assert any(isinstance(action, Dispatch | RefreshOverlap) for action in actions), (told[name], actions)


def only_busy(told: Explanation) -> list[RankView]:
    """Ranks that a head waits for because of their prefill load alone."""
    if told.state != "waiting" or told.position != 1 or told.grace_end_ns is not None:
        return []
    if told.max_overtake_tokens is not None:
        return []
    return [view for view in told.ranks if view.state == "open" and view.busy and has_room(view)]


def has_room(view: RankView) -> bool:
    """Whether blocks and requests would let it in."""
    return view.needs_blocks is None or (
        view.requests < (view.max_requests or 2**60)
        and view.held_blocks + view.needs_blocks <= (view.total_kv_blocks or 2**60))
