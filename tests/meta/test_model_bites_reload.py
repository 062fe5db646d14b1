"""The differential test finds faults of replacing a policy: mutants of the oracle, as in test_model_bites.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stand_in import StandIn, corpus, differs, story
from strategies_waits import reloads


class ReloadForgetsCredit(StandIn):
    def _replace_classes(self, old, new):
        super()._replace_classes(old, new)
        for ring in self.queue.classes:
            ring.deficit = 0


class ReloadKeepsCredit(StandIn):
    def _replace_classes(self, old, new):
        kept = {item.name: ring.deficit for item, ring in zip(old.classes, self.queue.classes, strict=True)}
        super()._replace_classes(old, new)
        for item, ring in zip(new.classes, self.queue.classes, strict=True):
            ring.deficit = kept.get(item.name, 0)


class ReloadRoundsUp(StandIn):
    def _replace_classes(self, old, new):
        before = {item.name: ring for item, ring in zip(old.classes, self.queue.classes, strict=True)}
        super()._replace_classes(old, new)
        for item, ring in zip(new.classes, self.queue.classes, strict=True):
            if item.name in before:
                ring.deficit = -(-before[item.name].deficit * item.quantum // before[item.name].quantum)


class ReloadStartsTheRingAnew(StandIn):
    def _place_after(self, old, new):
        return 0, "none"


class ReloadKeepsTheCursor(StandIn):
    def _place_after(self, old, new):
        cursor, visit = self.queue.place
        return cursor % len(new.classes), visit


class ReloadEndsTheVisit(StandIn):
    def _place_after(self, old, new):
        return super()._place_after(old, new)[0], "none"


class ReloadKeepsKeys(StandIn):
    def _classify_again(self, live):
        key = live.entry.key
        super()._classify_again(live)
        live.entry.key = key


class ReloadCostsAgain(StandIn):
    def _classify_again(self, live):
        live.entry.cost = max(1, live.request.prompt_tokens - live.cached)
        super()._classify_again(live)


class ReloadLooksAtCachesAgain(StandIn):
    def _classify_again(self, live):
        if live.state == "waiting":
            live.cached = self._snapshot(live.request)
        super()._classify_again(live)


class ReloadLeavesTheRunningAlone(StandIn):
    def _classify_again(self, live):
        index = live.class_index
        super()._classify_again(live)
        if live.state == "running" and index < len(self.profile.classes):
            live.class_index = index


class ReloadSaysAgainWhoMayWait(StandIn):
    def _classify_again(self, live):
        super()._classify_again(live)
        live.may_wait = self._may_wait(live.request, live.class_index)


class ReloadParks(StandIn):
    def _classify_again(self, live):
        super()._classify_again(live)
        if live.state in ("waiting", "deferred"):
            self.queued.add(live)


class ReloadForgetsDispatches(StandIn):
    def _replace_classes(self, old, new):
        super()._replace_classes(old, new)
        for row in self.class_counts:
            row.rejected = 0
        for window in self.recent:
            window.clear()


class ReloadLeavesCreditWithEmptyClasses(StandIn):
    def _close_empty_classes(self):
        pass


class ReloadKeepsPolicies(StandIn):
    def _replace_hosts(self, old, new):
        known = {item.name: host for item, host in zip(old.classes, self.hosts, strict=True)}
        super()._replace_hosts(old, new)
        kept = [known.get(item.name) if item.admission and known.get(item.name) else host
                for item, host in zip(new.classes, self.hosts, strict=True)]
        self.hosts = kept


class ReloadKillsPolicies(StandIn):
    def _replace_hosts(self, old, new):
        super()._replace_hosts(replace(old, classes=tuple(replace(item, admission=None) for item in old.classes)), new)


class ReloadLetsAllGo(StandIn):
    def _decide_anew(self, live):
        self._make_ready(live, None)


class ReloadTellsTheDead(StandIn):
    def _replace_hosts(self, old, new):
        kept = {live: live.host for live in self.live.values() if live.state != "deferred"}
        super()._replace_hosts(old, new)
        for live, host in kept.items():
            live.host = host


class CreditWithoutCeiling(StandIn):
    def _replace_classes(self, old, new):
        before = {item.name: ring for item, ring in zip(old.classes, self.queue.classes, strict=True)}
        super()._replace_classes(old, new)
        for item, ring in zip(new.classes, self.queue.classes, strict=True):
            if item.name in before:
                ring.deficit = before[item.name].deficit * item.quantum // before[item.name].quantum


class ReloadForgetsWhoPaid(StandIn):
    def _place_after(self, old, new):
        cursor, visit = super()._place_after(old, new)
        return cursor, "none" if old.arbitration is not new.arbitration else visit


#: Mutants that random plans seldom meet: who tells them apart.
BY_STORY = {
    ReloadLeavesCreditWithEmptyClasses: ("reload", "a_class_left_empty_gives_its_credit_back"),
    CreditWithoutCeiling: ("reload", "credit_has_a_ceiling"),
    ReloadForgetsWhoPaid: ("reload", "between_both_kinds_of_arbitration"),
}
MUTANTS = [item for item in globals().values()
           if isinstance(item, type) and issubclass(item, StandIn) and item not in (StandIn, *BY_STORY)]
RELOADS = reloads()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant):
    assert any(differs(mutant, *told) for told in corpus(RELOADS))


@pytest.mark.parametrize("mutant", BY_STORY, ids=lambda mutant: mutant.__name__)
def test_mutant_tells_another_story(mutant):
    with pytest.raises(AssertionError):
        story(*BY_STORY[mutant])(mutant)
