"""The differential test finds faults of admission and refresh: mutants of the oracle, as in test_model_bites.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracle_time import DEADLINE, POLICY, REFRESH
from stand_in import StandIn, corpus, differs, story
from strategies_waits import admissions, questions

from kvcore.actions import RejectReason
from kvcore.policy import Capacity

# Admission.


class DeferredIsUncounted(StandIn):
    def _waiting_in(self, class_index):
        return [live for live in super()._waiting_in(class_index) if live.state == "waiting"]


class DeferredHasNoDeadline(StandIn):
    def _dues_of(self, live):
        return [] if live.state == "deferred" else super()._dues_of(live)


class DeferredIsParkedAsQueued(StandIn):
    def step_many(self, events):
        return tuple(replace(a, reason=1) if getattr(a, "reason", 0) == 2 and type(a).__name__ == "Park" else a
                     for a in super().step_many(events))


class DefersWithoutLimits(StandIn):
    def _defer(self, request, class_index, cached, host):
        limits, self._over_limit = self._over_limit, lambda *_: None
        super()._defer(request, class_index, cached, host)
        self._over_limit = limits


class DefersWhoMayNotWait(StandIn):
    def _defer(self, request, class_index, cached, host):
        may_wait, self._may_wait = self._may_wait, lambda *_: True
        super()._defer(request, class_index, cached, host)
        self._may_wait = may_wait


class PlacementKeepsTheClass(StandIn):
    def _make_ready(self, live, placement):
        index, self._class_of = live.class_index, lambda *_: live.class_index
        done = super()._make_ready(live, placement)
        del self._class_of
        assert live.class_index == index
        return done


class PlacementIsNoNewSnapshot(StandIn):
    def _place_arrival(self, request, class_index, cached, host, answer):
        self._snapshot = lambda _: cached
        super()._place_arrival(request, class_index, cached, host, answer)
        del self._snapshot


class PlacementMovesPins(StandIn):
    def _make_ready(self, live, placement):
        if placement is not None:
            live.request = replace(live.request, pinned=None)
        return super()._make_ready(live, placement)


class ReleaseIsNotRefused(StandIn):
    def _make_ready(self, live, placement):
        self._refusal = lambda *_: None
        done = super()._make_ready(live, placement)
        del self._refusal
        return done


class ReleaseTestsLimits(StandIn):
    def _make_ready(self, live, placement):
        done = super()._make_ready(live, placement)
        if done and (over := self._over_limit(live.request, live.class_index)) is not None:
            self._turn_away(live, over[0])
        return done


class ReleaseIsAnArrival(StandIn):
    def _make_ready(self, live, placement):
        live.arrival_ns = self.now_ns
        live.entry.key = self._key(live)
        return super()._make_ready(live, placement)


class ReleaseIsNotParked(StandIn):
    def _make_ready(self, live, placement):
        known = live in self.queued
        done = super()._make_ready(live, placement)
        if not known:
            self.queued.discard(live)
        return done


class NobodyHearsOfReleases(StandIn):
    def _tell(self, live, call, *arguments):
        if call != "released":
            super()._tell(live, call, *arguments)


class AcceptanceIsNotTold(StandIn):
    def _accepted(self, event):
        self._tell_dispatched = lambda live: None
        super()._accepted(event)
        del self._tell_dispatched


class CompletionIsNoDispatch(StandIn):
    def _end(self, live, outcome):
        live.told_dispatched = True
        super()._end(live, outcome)


class ContextMayShrink(StandIn):
    def _raise_context(self, live, tokens):
        if tokens is not None:
            live.context_tokens = tokens
        return tokens is not None


class ContextIsNoProgress(StandIn):
    def _context_advanced(self, event):
        live = self.live.get(event.request_id)
        before = live and live.progress_ns
        super()._context_advanced(event)
        if live is not None:
            live.progress_ns = before


class TellsAtTheEndOfTheStep(StandIn):
    def _step(self, events):
        deliver, self._deliver = self._deliver, lambda: False
        settle = self._settle
        self._settle = lambda: (setattr(self, "_deliver", deliver), settle())
        try:
            return super()._step(events)
        finally:
            del self._settle, self._deliver


class SettlesOnce(StandIn):
    def _settle(self):
        deliver = self._deliver_all
        self._deliver_all = lambda: deliver() and False
        super()._settle()
        del self._deliver_all


class TellsTheLastFirst(StandIn):
    def _call(self, host, call, *arguments):
        self.calls.appendleft((host, call, arguments))


class AnyPolicyMayRelease(StandIn):
    def _answered(self, host, answer):
        live = self.live.get(answer.request_id)
        super()._answered(host if live is None or live.host is None else live.host, answer)


class PolicyTimersFirst(StandIn):
    def _dues(self):
        return [(due[0], DEADLINE - 0.5 if due[1] == POLICY else due[1], *due[2:]) for due in super()._dues()]

    def _fall_due(self, kind, what, until_ns):
        super()._fall_due(POLICY if kind == DEADLINE - 0.5 else kind, what, until_ns)


class PolicyTimersAreNotForeseen(StandIn):
    @property
    def next_deadline_ns(self):
        kept, self.hosts = self.hosts, []
        found = super().next_deadline_ns
        self.hosts = kept
        return found


class EveryLifeIsManaged(StandIn):
    def _host_of(self, request, class_index):
        return self.hosts[class_index]


# Refresh.


class AsksAlwaysOnce(StandIn):
    def _is_worth_asking(self, live):
        return super()._is_worth_asking(live) and live.ticket == 0


class AsksLater(StandIn):
    def _is_worth_asking(self, live):
        return super()._is_worth_asking(live) and self.now_ns - live.age_ns > self.config.refresh_after_ns


class AgeCountsFromTheArrival(StandIn):
    def _is_worth_asking(self, live):
        live.age_ns = live.arrival_ns
        return super()._is_worth_asking(live)


class AnyTicketWillDo(StandIn):
    def _refreshed(self, event):
        live = self.live.get(event.request_id)
        super()._refreshed(event if live is None else replace(event, ticket=max(1, live.ticket)))


class NoAnswerForgetsWhatWasKnown(StandIn):
    def _go_on(self, live):
        if live.refresh_end_ns <= self.now_ns:
            live.request = replace(live.request, overlap=None)
        super()._go_on(live)


class AnswerIsANewSnapshot(StandIn):
    def _go_on(self, live):
        live.entry.cost = max(1, live.request.prompt_tokens - self._snapshot(live.request))
        super()._go_on(live)


class AdvisoryLooksTwice(StandIn):
    def _go_on(self, live):
        if self.profile.capacity is Capacity.ADVISORY and not self._can_run(live.entry):
            live.age_ns = self.now_ns
            self._back_to_class(live)
        else:
            super()._go_on(live)


class StrictTakesWhatIsThere(StandIn):
    def _go_on(self, live):
        live.age_ns = self.now_ns
        if self._candidates(live.request, self.profile.classes[live.class_index]):
            super()._go_on(live)
        else:
            self._place(live)


class BackFromAQuestionCosts(StandIn):
    def _go_on(self, live):
        before = live.state
        super()._go_on(live)
        if live.state == "waiting" and before == "refreshing":
            live.entry.cost = 1


class RefreshingDiesWithItsWorkers(StandIn):
    def _removed(self, event):
        super()._removed(event)
        for live in self._in("refreshing"):
            if not self.workers:
                self._turn_away(live, RejectReason.NO_WORKERS)


class TimeoutsBeforeDeadlines(StandIn):
    def _dues(self):
        swap = {DEADLINE: REFRESH, REFRESH: DEADLINE}
        return [(due[0], swap.get(due[1], due[1]), *due[2:]) for due in super()._dues()]

    def _fall_due(self, kind, what, until_ns):
        super()._fall_due({DEADLINE: REFRESH, REFRESH: DEADLINE}.get(kind, kind), what, until_ns)


class AsksBeforeItSettles(StandIn):
    asked = True

    def _arrived(self, request):
        self.asked = self._class_of(request, self._snapshot(request)) in self._without_policy()
        super()._arrived(request)
        self.asked = True

    def _without_policy(self):
        return [index for index, host in enumerate(self.hosts) if host is None]

    def _decide(self, *arguments):
        self.asked = True
        return super()._decide(*arguments)

    def _settle(self):
        if self.asked:
            super()._settle()


class WindowCountsWhatCostNothing(StandIn):
    def _count(self, live):
        super()._count(live)
        if live.entry.cost == 0:
            self.recent[live.class_index].append((self.now_ns, 0))


#: Mutants that random plans seldom meet: who tells them apart.
BY_STORY = {
    AsksBeforeItSettles: ("admission", "who_is_not_stored_yet_cannot_be_let_go"),
    SettlesOnce: ("admission", "the_test_of_a_limit_settles_first"),
    ReleaseTestsLimits: ("admission", "a_rank_makes_it_another_request"),
    AnyPolicyMayRelease: ("admission_calls", "answers_about_others_are_passed_over"),
    AgeCountsFromTheArrival: ("refresh", "strict_puts_it_back_where_there_is_none"),
    BackFromAQuestionCosts: ("refresh", "strict_puts_it_back_where_there_is_none"),
    WindowCountsWhatCostNothing: ("refresh", "what_cost_nothing_tells_nothing_of_the_pace"),
    TimeoutsBeforeDeadlines: ("refresh", "deadline_cancel_and_drain"),
}
ADMISSIONS, QUESTIONS = admissions(), questions()
MUTANTS = {
    **dict.fromkeys((
        DeferredIsUncounted, DeferredHasNoDeadline, DeferredIsParkedAsQueued, DefersWithoutLimits, DefersWhoMayNotWait,
        PlacementKeepsTheClass, PlacementIsNoNewSnapshot, PlacementMovesPins, ReleaseIsNotRefused, ReleaseIsAnArrival,
        ReleaseIsNotParked, NobodyHearsOfReleases, AcceptanceIsNotTold, CompletionIsNoDispatch, ContextMayShrink,
        ContextIsNoProgress, TellsAtTheEndOfTheStep, TellsTheLastFirst, PolicyTimersFirst,
        PolicyTimersAreNotForeseen, EveryLifeIsManaged), ADMISSIONS),
    **dict.fromkeys((
        AsksAlwaysOnce, AsksLater, AnyTicketWillDo, NoAnswerForgetsWhatWasKnown, AnswerIsANewSnapshot,
        AdvisoryLooksTwice, StrictTakesWhatIsThere, RefreshingDiesWithItsWorkers), QUESTIONS),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant):
    assert any(differs(mutant, *told) for told in corpus(MUTANTS[mutant]))


@pytest.mark.parametrize("mutant", BY_STORY, ids=lambda mutant: mutant.__name__)
def test_mutant_tells_another_story(mutant):
    with pytest.raises(AssertionError):
        story(*BY_STORY[mutant])(mutant)
