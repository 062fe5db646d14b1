"""The differential test finds faults of retry and of draining: mutants of the oracle, as in test_model_bites.py.

The checkers find most of them as well, each on its own.
"""

from __future__ import annotations

import pytest
from checkers import faults_of
from oracle import Oracle
from oracle_time import BOOKING, DRAIN
from recording import record
from retry_stories import STORIES
from stand_in import StandIn, corpus, differs
from strategies import retries

from kvcore.actions import Park
from kvcore.events import Drained


class PutBackCosts(StandIn):
    def _put_back(self, live):
        cost = live.entry.cost
        super()._put_back(live)
        live.entry.cost = cost


class PutBackBehindAll(StandIn):
    def _put_back(self, live):
        live.entry.key = (*live.entry.key[:-1], self.next_seq)
        super()._put_back(live)


class PutBackRemembersWhoOvertook(StandIn):
    def _put_back(self, live):
        overtaken = live.entry.overtaken
        super()._put_back(live)
        live.entry.overtaken = overtaken


class PutBackAsOldAsItIs(StandIn):
    def _put_back(self, live):
        super()._put_back(live)
        self.queue.classes[live.class_index].entries.sort(key=lambda entry: entry.payload.seq)


class PutBackArrivesAnew(StandIn):
    def _put_back(self, live):
        live.arrival_ns = self.now_ns
        super()._put_back(live)


class PutBackIsLookedAtLater(StandIn):
    def _put_back(self, live):
        super()._put_back(live)
        if live.look_ns is not None:
            live.look_ns = self.now_ns + self.config.overload_wait_ns


class PutBackMayNotWait(StandIn):
    def _put_back(self, live):
        super()._put_back(live)
        self._settle()


class PutBackIsNotParked(StandIn):
    def _put_back(self, live):
        super()._put_back(live)
        self.queued.discard(live)


class ParksTwice(StandIn):
    def _put_back(self, live):
        super()._put_back(live)
        self.actions.append(Park(live.request.request_id, live.class_index))


class OneAttemptMore(StandIn):
    def _refusal_of_retry(self, live):
        live.dispatches -= 1
        reason = super()._refusal_of_retry(live)
        live.dispatches += 1
        return reason


class RetriesPastTheDeadline(StandIn):
    def _refusal_of_retry(self, live):
        reason = super()._refusal_of_retry(live)
        return None if reason is not None and reason.name == "DEADLINE_EXPIRED" else reason


class RetriesWhileDraining(StandIn):
    def _refusal_of_retry(self, live):
        self.draining, draining = False, self.draining
        reason = super()._refusal_of_retry(live)
        self.draining = draining
        return reason


class RetriesWithoutAFleet(StandIn):
    def _refusal_of_fleet(self, request):
        reason = super()._refusal_of_fleet(request)
        return None if request.request_id in self.live else reason


class FailureIsCompletion(StandIn):
    def _failed(self, event):
        release = self._release
        self._release = lambda live, completed: release(live, True)
        super()._failed(event)
        self._release = release


class FailureUsesItsBlocks(StandIn):
    def _failed(self, event):
        live = self.live.get(event.request_id)
        if live is not None and live.state == "running" and live.attempt == event.attempt:
            self._use_blocks(live)
        super()._failed(event)


class EvictedMayNotComeBack(StandIn):
    def _failed(self, event):
        live = self.live.get(event.request_id)
        if live is not None and live.state == "evicted":
            self._ignore(event.request_id, event.attempt)
        else:
            super()._failed(event)


class AcceptedAgain(StandIn):
    def _accepted(self, event):
        live = self.live.get(event.request_id)
        if live is not None:
            live.accepted = False
        super()._accepted(event)


class AcceptanceIsNoProgress(StandIn):
    def _accepted(self, event):
        live = self.live.get(event.request_id)
        before = live.progress_ns if live is not None else 0
        super()._accepted(event)
        if live is not None:
            live.progress_ns = before


class ProgressIsNotAcceptance(StandIn):
    def _progressed(self, event):
        live = self.live.get(event.request_id)
        before = live.accepted if live is not None else False
        super()._progressed(event)
        if live is not None:
            live.accepted = before


class AcceptedForEver(StandIn):
    def _place(self, live):
        before = live.accepted
        super()._place(live)
        live.accepted = before


class DrainLetsIn(StandIn):
    def _refusal_at_arrival(self, request):
        self.draining, draining = False, self.draining
        reason = super()._refusal_at_arrival(request)
        self.draining = draining
        return reason


class DrainLetsTheWaitingRun(StandIn):
    def _drained(self, event):
        self._settle()
        super()._drained(event)


class DrainNeverEnds(StandIn):
    def _drain_is_over(self):
        self.drain_ns = None


class DrainInThePastIsLate(StandIn):
    def _drained(self, event):
        super()._drained(Drained(event.now_ns, max(event.deadline_ns, event.now_ns + 1)))


class DrainBeforeBookings(StandIn):
    def _dues(self):
        return [(due[0], BOOKING - 0.5, *due[2:]) if due[3] is None else due for due in super()._dues()]

    def _fall_due(self, kind, what, until_ns):
        super()._fall_due(DRAIN if what is None else kind, what, until_ns)


class FirstDrainCounts(StandIn):
    def _drained(self, event):
        known = self.drain_ns
        super()._drained(event)
        self.drain_ns = known if known is not None else self.drain_ns


#: Mutants that random plans seldom meet: who tells them apart.
BY_STORY = {
    DrainBeforeBookings: "drain is the last thing due",
    FailureIsCompletion: "what failed has not run",
    PutBackRemembersWhoOvertook: "put back, nobody has overtaken it",
}
MUTANTS = [
    item for item in globals().values()
    if isinstance(item, type) and issubclass(item, StandIn) and item not in (StandIn, *BY_STORY)]
RETRIES = retries()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant):
    assert any(differs(mutant, *told) for told in corpus(RETRIES))


#: Mutants that no checker finds in these records: what they do wrong shows too seldom there, or not at all.
UNSEEN = (PutBackCosts, PutBackBehindAll, PutBackAsOldAsItIs, PutBackIsLookedAtLater, DrainLetsTheWaitingRun,
          FirstDrainCounts)


@pytest.mark.parametrize("mutant", [item for item in MUTANTS if item not in UNSEEN], ids=lambda mutant: mutant.__name__)
def test_checkers_find_mutant(mutant):
    """By its record alone, without being told what is right."""
    assert any(faults_of(record(mutant(plan.config), [batch for batch, *_ in rows]))
               for plan, rows in corpus(RETRIES) if differs(mutant, plan, rows))


@pytest.mark.parametrize("mutant", BY_STORY, ids=lambda mutant: mutant.__name__)
def test_mutant_tells_another_story(mutant):
    config, batches, _ = STORIES[BY_STORY[mutant]]
    told, wanted = mutant(config), Oracle(config)
    assert [told.step_many(batch) for batch in batches] != [wanted.step_many(batch) for batch in batches]
