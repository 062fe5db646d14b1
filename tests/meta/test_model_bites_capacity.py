"""The differential test finds planted faults in marks, room, fading load, reports, tiers and costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracle_ledger import leading
from oracle_state import RankState
from oracle_time import LEASE
from stand_in import StandIn, corpus, differs
from strategies import choices, crowds, fadings, overloads

from kvcore.events import Tier


class LeaseOneLate(StandIn):
    def _dues(self):
        return [(due + (kind == LEASE), kind, *rest) for due, kind, *rest in super()._dues()]


class SourcesReplaceEachOther(StandIn):
    def _status_changed(self, event):
        super()._status_changed(replace(event, source=""))


class RestartsKeepMarks(StandIn):
    def _upserted(self, event):
        known = self.workers.get(event.config.worker_id)
        super()._upserted(event)
        if known is not None:
            self.workers[event.config.worker_id].marks = known.marks


class LeasedIsGone(StandIn):
    def _state(self, rank):
        state = super()._state(rank)
        return RankState.GONE if state is RankState.LEASED else state


class OverloadedIsOpen(StandIn):
    def _state(self, rank):
        state = super()._state(rank)
        return RankState.OPEN if state is RankState.OVERLOADED else state


class LooksForOverloadOnce(StandIn):
    def _look_for_overload(self, live, until_ns):
        super()._look_for_overload(live, until_ns)
        live.look_ns = None


class RoomWhenExactlyFullIsNone(StandIn):
    def _has_room(self, request, rank):
        full = self._held(rank) + self._need(request) - self._depth(request, rank)
        return super()._has_room(request, rank) and full != self.workers[rank[0]].config.total_kv_blocks


class SharedPromptsNeedRoomTwice(StandIn):
    def _depth(self, request, rank):
        return 0


class ReservesAreNotHeld(StandIn):
    def _reserve(self, request):
        return 0


class TooLargeWaits(StandIn):
    def _fits_somewhere(self, request, ranks):
        return True


class DecayGoesOnIntoTheNext(StandIn):
    """An oldest prefill that has had its time eats into those behind it, as in the reference."""

    def _own_tokens(self, rank, now_ns=None):
        load, rate = self.loads_by_rank[rank], self._rate(rank)
        if rate is None or not load.prefilling:
            return super()._own_tokens(rank, now_ns)
        gone_ns = (self.now_ns if now_ns is None else now_ns) - load.anchor_ns
        return max(0, load.prefill_tokens - load.prefilling[0].prefill_tokens * gone_ns // load.front_ns(rate))


class CancelsGiveCredit(StandIn):
    def _release(self, live, completed):
        super()._release(live, True)


class AnchorStaysWithTheNext(StandIn):
    def _progressed(self, event):
        live = self.live.get(event.request_id)
        load = self.loads_by_rank.get(live.rank) if live is not None and live.rank is not None else None
        before = load and load.anchor_ns
        super()._progressed(event)
        if load is not None:
            load.anchor_ns = before


class CrossesOneLate(StandIn):
    def _crossing_ns(self, item, rank):
        due_ns = super()._crossing_ns(item, rank)
        return None if due_ns is None else due_ns + 1


class ReportsEraseBookings(StandIn):
    def _load_reported(self, event):
        super()._load_reported(event)
        rank = (event.worker_id, event.dp_rank)
        report = self.loads_by_rank[rank].report if rank in self.loads_by_rank else None
        if report is not None and report.end_ns is not None:
            report.foreign = (report.prefill_tokens - self._own_tokens(rank), *report.foreign[1:])


class ReportsInAnyOrder(StandIn):
    def _load_reported(self, event):
        load = self.loads_by_rank.get((event.worker_id, event.dp_rank))
        if load is not None and load.report is not None:
            load.report.sequence = -1
        super()._load_reported(event)


class HostFromTheRoot(StandIn):
    def _found(self, request, rank):
        found = super()._found(request, rank)
        if request.overlap is None:
            found = replace(found, host=leading(request.block_hashes, self.index[rank].told[Tier.HOST]))
        return found


class RootIsForgottenFirst(StandIn):
    def _use_blocks(self, live):
        request = live.request
        live.request = replace(request, block_hashes=request.block_hashes[::-1])
        super()._use_blocks(live)
        live.request = request


class IgnoresPreferences(StandIn):
    def _cost(self, request, *rest):
        return super()._cost(replace(request, preferred_taints=()), *rest)


class IgnoresOwnWeights(StandIn):
    def _weights(self, request):
        return self.config.weights


CROWDS, OVERLOADS, FADINGS, CHOICES = crowds(), overloads(), fadings(), choices()
MUTANTS = {
    LeaseOneLate: OVERLOADS,
    SourcesReplaceEachOther: OVERLOADS,
    RestartsKeepMarks: OVERLOADS,
    LeasedIsGone: OVERLOADS,
    OverloadedIsOpen: OVERLOADS,
    LooksForOverloadOnce: OVERLOADS,
    RoomWhenExactlyFullIsNone: CROWDS,
    SharedPromptsNeedRoomTwice: CROWDS,
    ReservesAreNotHeld: CROWDS,
    TooLargeWaits: CROWDS,
    DecayGoesOnIntoTheNext: FADINGS,
    CancelsGiveCredit: FADINGS,
    AnchorStaysWithTheNext: FADINGS,
    CrossesOneLate: FADINGS,
    ReportsEraseBookings: FADINGS,
    ReportsInAnyOrder: FADINGS,
    HostFromTheRoot: CHOICES,
    RootIsForgottenFirst: CHOICES,
    IgnoresPreferences: CHOICES,
    IgnoresOwnWeights: CHOICES,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant):
    assert any(differs(mutant, *told) for told in corpus(MUTANTS[mutant]))
