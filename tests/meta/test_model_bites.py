"""The differential test finds planted faults: each mutant of the oracle is told apart from the oracle itself."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial

import pytest
from bound_stories import CONFIG, STORIES
from hypothesis import given, settings
from lockstep import Difference, play
from oracle import Oracle
from oracle_ledger import ONE, leading
from oracle_time import DEADLINE
from policies import ADMISSION
from stand_in import StandIn, corpus, differs
from strategies import anything, caches, detours, duels, plans, rushes

from kvcore import config, events, policy, request
from kvcore.actions import EvictReason, RejectReason
from kvcore.events import Tier
from kvcore.policy import Arbitration


class OneDrawForAll(StandIn):
    def _select(self, *request):
        self.generator.state = 0
        return super()._select(*request)


class LastComeOfEquals(StandIn):
    def _store(self, request, *rest):
        super()._store(request, *rest)
        entry = self.live[request.request_id].entry
        entry.key = (*entry.key[:-1], -entry.key[-1])


class KeepsCreditWhenEmpty(StandIn):
    def _unqueue(self, live):
        queue = self.queue.classes[live.class_index]
        kept = queue.deficit
        super()._unqueue(live)
        queue.deficit = kept


class ForgetsTheVisit(StandIn):
    def _settle(self):
        super()._settle()
        self.queue.paid = False


class StaysOnAnEmptiedClass(StandIn):
    def _unqueue(self, live):
        cursor, paid = self.queue.cursor, self.queue.paid
        super()._unqueue(live)
        self.queue.cursor, self.queue.paid = cursor, paid


class ReferenceByExact(StandIn):
    def __init__(self, config, admission=None):
        super().__init__(config, admission)
        self.queue.arbitration = Arbitration.EXACT


class ReferenceMovesOnRemoval(StandIn):
    def _unqueue(self, live):
        super()._unqueue(live)
        queue = self.queue
        emptied = not queue.classes[live.class_index].entries and queue.cursor == live.class_index
        if emptied and queue.arbitration is Arbitration.REFERENCE:
            queue._go_on()


class RemovalIsNoProgress(StandIn):
    def _evict(self, live, reason):
        before = live.progress_ns
        super()._evict(live, reason)
        if reason is EvictReason.WORKER_REMOVED:
            live.progress_ns = before


class OutputIsNoProgress(StandIn):
    def _progressed(self, event):
        live = self.live.get(event.request_id)
        before = live and live.progress_ns
        super()._progressed(event)
        if live is not None and hasattr(event, "decay_fraction"):
            live.progress_ns = before


class EvictsById(StandIn):
    def _remove_ranks(self, ranks):
        for live in sorted(self.live.values(), key=lambda x: x.request.request_id):
            if live.state == "running" and live.rank in ranks:
                self._evict(live, EvictReason.WORKER_REMOVED)
        super()._remove_ranks(ranks)


class KeepsIndexOfLostRanks(StandIn):
    def _remove_ranks(self, ranks):
        kept = {rank: self.index[rank] for rank in ranks}
        super()._remove_ranks(ranks)
        self.lost = {**getattr(self, "lost", {}), **kept}

    def _upserted(self, event):
        super()._upserted(event)
        self.index.update({rank: self.lost.pop(rank) for rank in self.index if rank in getattr(self, "lost", {})})


class DeadlineOneLate(StandIn):
    def _dues(self):
        return [(due + (kind == DEADLINE), kind, *rest) for due, kind, *rest in super()._dues()]


class BusyAtThreshold(StandIn):
    def _busy(self, item, rank, *now_ns):
        tokens = self._tokens(rank, *now_ns)
        return super()._busy(item, rank, *now_ns) or (tokens > 0 and tokens == item.prefill_busy_threshold)


class SettlesAfterEveryEvent(StandIn):
    def _apply(self, event):
        super()._apply(event)
        self._settle()


class RefusesWithoutSettling(StandIn):
    def _arrived(self, request):
        settle, self._settle = self._settle, lambda: None
        super()._arrived(request)
        self._settle = settle


class DecaysSharedBlocks(StandIn):
    def _progressed(self, event):
        super()._progressed(event)
        live = self.live.get(event.request_id)
        if live is not None and live.booking is not None and getattr(event, "decay_fraction", None) == 0.0:
            for name in live.booking.blocks:
                self.loads_by_rank[live.rank].live[name].weight = 0


class SharersRestoreWeight(StandIn):
    def _place(self, live):
        super()._place(live)
        if live.booking is not None:
            for name in live.booking.blocks:
                self.loads_by_rank[live.rank].live[name].weight = ONE


class CountsBlocksBehindAHole(StandIn):
    def _found(self, request, rank):
        found = super()._found(request, rank)
        known = self.index[rank].told[Tier.DEVICE]
        if request.overlap is None and leading(request.block_hashes, known):
            return replace(found, device=float(len([name for name in request.block_hashes if name in known])))
        return found


class SnapshotAgainAtThePop(StandIn):
    def _settle(self):
        for live in self._waiting():
            live.entry.cost = max(1, live.request.prompt_tokens - self._snapshot(live.request))
        super()._settle()


class LimitOneTooMany(StandIn):
    def _over_limit(self, request, class_index):
        over = super()._over_limit(request, class_index)
        return None if over is not None and over[1] == over[2] else over


class ChargesRefusedPops(StandIn):
    def _reject(self, request, reason, class_index=-1, *rest):
        if class_index >= 0:
            self.recent[class_index].append((self.now_ns, 1))
        super()._reject(request, reason, class_index, *rest)


class WindowOf31(StandIn):
    def __init__(self, config, admission=None):
        super().__init__(config, admission)
        self.recent = [deque(maxlen=31) for _ in self.recent]


class ReuseOfAttempts(StandIn):
    def _end(self, live, outcome):
        super()._end(live, outcome)
        if live.attempt == self.next_attempt - 1:
            self.next_attempt -= 1


class EvictedNeverEnds(StandIn):
    def _evict(self, live, reason):
        super()._evict(live, reason)
        live.progress_ns = 2**62


class ParksInTheMiddle(StandIn):
    def step_many(self, events):
        actions = super().step_many(events)
        return tuple(sorted(actions, key=lambda a: (type(a).__name__ != "Park", 0)))


class IgnoresTaints(StandIn):
    def _eligible(self, request):
        return super()._eligible(replace(request, required_taints=frozenset()))


class TaintedPinIsUnavailable(StandIn):
    def _reject(self, request, reason, *rest):
        pinned = reason is RejectReason.NO_ELIGIBLE_WORKER and request.pinned is not None
        super()._reject(request, RejectReason.PINNED_WORKER_UNAVAILABLE if pinned else reason, *rest)


class BoundOneMore(StandIn):
    def __init__(self, config, admission=None):
        super().__init__(config, admission)
        for queue in self.queue.classes:
            queue.bound = None if queue.bound is None else queue.bound + 1


class RemembersWhoStoodAside(StandIn):
    """A lane that is left out of one choice stays out of all."""

    def __init__(self, config, admission=None):
        super().__init__(config, admission)
        for queue in self.queue.classes:
            queue.candidate = partial(self._choose, queue, set())

    @staticmethod
    def _choose(queue, out, can_run):
        asked = []

        def test(entry):
            passes = entry.lane not in out and can_run(entry)
            if not passes:
                asked.append(entry)
            return passes

        while True:
            asked.clear()
            found = type(queue).candidate(queue, test)
            aside = {e.lane for e in asked if e is not queue.head(e.lane)} - out
            if not aside:
                return found
            out |= aside


class RemovedOnesOvertake(StandIn):
    def _unqueue(self, live):
        self.queue.classes[live.class_index].serve(live.entry)
        super()._unqueue(live)


class OtherLanesOvertakeFreely(StandIn):
    def _place(self, live):
        for entry in self.queue.classes[live.class_index].entries:
            if entry.key[-1] < live.seq and entry.lane != live.entry.lane:
                entry.overtaken -= live.entry.cost
        super()._place(live)


#: Theme of the plans that a fault should meet, and the faults.
SWARM, DUELS, RUSHES, CACHES, DETOURS = anything(broken=False), duels(), rushes(), caches(), detours()
MUTANTS = {
    OneDrawForAll: SWARM,
    LastComeOfEquals: SWARM,
    KeepsCreditWhenEmpty: DUELS,
    ForgetsTheVisit: DUELS,
    StaysOnAnEmptiedClass: DUELS,
    ReferenceByExact: DUELS,
    ReferenceMovesOnRemoval: DUELS,
    SnapshotAgainAtThePop: DUELS,
    OutputIsNoProgress: SWARM,
    RemovalIsNoProgress: SWARM,
    EvictsById: SWARM,
    DeadlineOneLate: SWARM,
    BusyAtThreshold: DETOURS,
    SettlesAfterEveryEvent: SWARM,
    ReuseOfAttempts: SWARM,
    EvictedNeverEnds: SWARM,
    ParksInTheMiddle: SWARM,
    IgnoresTaints: DETOURS,
    TaintedPinIsUnavailable: SWARM,
    BoundOneMore: DETOURS,
    RemovedOnesOvertake: DETOURS,
    OtherLanesOvertakeFreely: DETOURS,
    KeepsIndexOfLostRanks: CACHES,
    DecaysSharedBlocks: CACHES,
    SharersRestoreWeight: CACHES,
    CountsBlocksBehindAHole: CACHES,
    RefusesWithoutSettling: RUSHES,
    LimitOneTooMany: RUSHES,
    ChargesRefusedPops: RUSHES,
    WindowOf31: RUSHES,
}
#: Faults that random plans seldom meet.
STORY_MUTANTS = (RemembersWhoStoodAside,)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant):
    assert any(differs(mutant, *told) for told in corpus(MUTANTS[mutant]))


@pytest.mark.parametrize("mutant", STORY_MUTANTS)
def test_mutant_tells_a_story_wrong(mutant):
    told = []
    for story in STORIES.values():
        scheduler, oracle = mutant(CONFIG), Oracle(CONFIG)
        told.append(all(scheduler.step_many(events) == oracle.step_many(events) for events, _ in story))
    assert not all(told)


@settings(max_examples=50)
@given(plans())
def test_the_oracle_agrees_with_itself(plan):
    play(plan, StandIn)


def test_a_difference_is_told_as_code():
    plan = next(told[0] for told in corpus(SWARM) if differs(SettlesAfterEveryEvent, *told))
    with pytest.raises(Difference) as caught:
        play(plan, SettlesAfterEveryEvent)
    names = {}
    for module in (config, events, policy, request):
        names.update(vars(module))
    exec(str(caught.value).split("after these batches:\n")[1], names)
    mutant, oracle = SettlesAfterEveryEvent(names["config"], ADMISSION), Oracle(names["config"], ADMISSION)
    assert [mutant.step_many(b) for b in names["batches"]] != [oracle.step_many(b) for b in names["batches"]]
