"""The differential test finds faults of waiting for workers that are lost: mutants, as in test_model_bites.py."""

from __future__ import annotations

import pytest
from oracle_time import GRACE
from stand_in import StandIn, corpus, differs
from strategies_waits import absences

from kvcore.actions import RejectReason


class GraceFromTheArrivalOnly(StandIn):
    def _grace_end_ns(self, request, arrival_ns):
        lost, self.lost_ns = self.lost_ns, {}
        found = super()._grace_end_ns(request, arrival_ns)
        self.lost_ns = lost
        return found


class GraceFromTheLossOnly(StandIn):
    def _grace_end_ns(self, request, arrival_ns):
        return super()._grace_end_ns(request, 0)


class EmptinessIsCountedFromTheArrival(StandIn):
    def _grace_end_ns(self, request, arrival_ns):
        empty, self.empty_since_ns = self.empty_since_ns, None if self.empty_since_ns is None else 0
        found = super()._grace_end_ns(request, arrival_ns)
        self.empty_since_ns = empty
        return found


class LossesAreRenewed(StandIn):
    def _note_losses(self, before):
        super()._note_losses(before | set(self.lost_ns))


class RanksOfNoUseAreThere(StandIn):
    def _usable_ranks(self):
        return set(self.loads_by_rank)


class GraceOneLonger(StandIn):
    def _is_grace(self, request, arrival_ns):
        end_ns = self._grace_end_ns(request, arrival_ns)
        return end_ns is not None and end_ns >= self.now_ns


class GraceHasNoTimer(StandIn):
    def _dues(self):
        return [due for due in super()._dues() if due[1] != GRACE]


class GraceTimersStand(StandIn):
    def _note_losses(self, before):
        kept = {live: live.grace_ns for live in self._waiting()}
        super()._note_losses(before)
        for live, due_ns in kept.items():
            live.grace_ns = due_ns


class PinsOfAnEmptyFleetAreUnavailable(StandIn):
    def _grace_is_over(self, live):
        if live.request.pinned is None:
            super()._grace_is_over(live)
        else:
            self._turn_away(live, RejectReason.PINNED_WORKER_UNAVAILABLE)


class HeadsInGraceMayRun(StandIn):
    def _can_run(self, entry):
        live = entry.payload
        if self._is_grace(live.request, live.arrival_ns) and not self._queues(live.class_index):
            return True
        return super()._can_run(entry)


class GraceBeforeAllowLists(StandIn):
    def _refusal(self, request, arrival_ns):
        return None if self._is_grace(request, arrival_ns) else super()._refusal(request, arrival_ns)


class RetriesKnowNoGrace(StandIn):
    def _refusal_of_retry(self, live):
        return super()._refusal_of_retry(live) or self._refusal_of_fleet(live.request)


MUTANTS = [item for item in globals().values()
           if isinstance(item, type) and issubclass(item, StandIn) and item is not StandIn]
ABSENCES = absences()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant):
    assert any(differs(mutant, *told) for told in corpus(ABSENCES))
