"""Tests of replicas find planted faults: in step with the oracle, and over a link that misbehaves."""

from __future__ import annotations

from random import Random

import pytest
from oracle import Oracle
from oracle_peers import Peer
from replica_net import REQUESTS, WORLD, Faults, Net, play
from stand_in import StandIn, corpus
from strategies import crowds, fadings
from strategies_peers import replicas

from kvcore.actions import Evict, Publish


class NoTombstones(StandIn):
    """What is released before it is booked is booked when it comes."""

    def _peer_released(self, peer, attempt, completed):
        known = attempt in peer.live or attempt in peer.adrift
        super()._peer_released(peer, attempt, completed)
        peer.over.difference_update({attempt} if not known else ())


class ShortMemory(StandIn):
    """What has been released may be booked again."""

    def _peer_released(self, peer, attempt, completed):
        super()._peer_released(peer, attempt, completed)
        peer.over.discard(attempt)


class NoFloor(StandIn):
    """A sync leaves no trace but what it names."""

    def _synced(self, peer, event):
        before = peer.synced_below
        super()._synced(peer, event)
        peer.synced_below = before


class SyncsEndTheFuture(StandIn):
    """A sync also ends what is newer."""

    def _synced(self, peer, event):
        newer = [attempt for attempt in peer.live if attempt >= event.next_attempt]
        self._release_peers(peer, sorted(newer))
        super()._synced(peer, event)


class SyncsOnlyAdd(StandIn):
    """A sync ends nothing."""

    def _release_peers(self, peer, attempts, completed=False):
        if not self.syncing:
            super()._release_peers(peer, attempts, completed)

    syncing = False

    def _synced(self, peer, event):
        self.syncing = True
        super()._synced(peer, event)
        self.syncing = False


class SyncsRaiseTheDead(StandIn):
    """What a sync names lives, whatever has been heard of it since."""

    def _synced(self, peer, event):
        peer.over.difference_update([fact.attempt for fact in event.facts])
        peer.synced_below = 1
        super()._synced(peer, event)


class AnyGeneration(StandIn):
    """Old generations are listened to as well."""

    def _speaker(self, name, generation):
        known = self.peers.get(name)
        return super()._speaker(name, max(generation, known.generation) if known is not None else generation)


class GenerationsAddUp(StandIn):
    """A new generation does not end the old one."""

    def _speaker(self, name, generation):
        before = self.peers.get(name)
        kept = dict(before.live) if before is not None else {}
        if before is not None and generation > before.generation:
            before.live.clear()
        found = super()._speaker(name, generation)
        if found is not None and found is not before:
            found.live.update(kept)
        return found


class LostOnesComeBack(StandIn):
    """What a lost replica has still said counts."""

    def _speaker(self, name, generation):
        known = self.peers.get(name)
        if known is not None and known.lost:
            known.lost = False
        return super()._speaker(name, generation)


class LossesEndEverybody(StandIn):
    def _release_peers(self, peer, attempts, completed=False):
        super()._release_peers(peer, attempts, completed)
        for other in self.peers.values() if len(attempts) > 1 else ():
            super()._release_peers(other, sorted(other.live))


class EarlyPrefillIsForgotten(StandIn):
    def _peer_prefilled(self, peer, attempt):
        super()._peer_prefilled(peer, attempt)
        if attempt not in peer.live:
            peer.prefilled.discard(attempt)


class BookingsAreReplaced(StandIn):
    def _peer_booked(self, peer, event):
        if event.attempt in peer.live and self._is_current((event.worker_id, event.dp_rank), event.incarnation):
            self._release_peers(peer, [event.attempt])
        super()._peer_booked(peer, event)


class AnyIncarnation(StandIn):
    def _is_current(self, rank, incarnation):
        return rank in self.loads_by_rank


class FactsBringRanksBack(StandIn):
    """What went with its rank comes back when it is told again."""

    def _peer_booked(self, peer, event):
        peer.adrift.discard(event.attempt)
        super()._peer_booked(peer, event)


class RanksAreGoneForGood(StandIn):
    """What went with its rank stays away."""

    def _strand(self, ranks):
        before = {name: set(peer.adrift) for name, peer in self.peers.items()}
        super()._strand(ranks)
        for name, peer in self.peers.items():
            peer.over |= peer.adrift - before[name]
            peer.adrift &= before[name]


class HearsItself(StandIn):
    def _speaker(self, name, generation):
        if name == self.config.replica:
            return self.peers.setdefault(name, Peer(generation))
        return super()._speaker(name, generation)


class EveryReleaseIsCredited(StandIn):
    def _release_peers(self, peer, attempts, completed=False):
        super()._release_peers(peer, attempts, True)


class TellsBeforeItEvicts(StandIn):
    def step_many(self, events):
        actions = list(super().step_many(events))
        for at in range(1, len(actions)):
            if isinstance(actions[at], Publish) and isinstance(actions[at - 1], Evict):
                actions[at - 1], actions[at] = actions[at], actions[at - 1]
        return tuple(actions)


class SilentEvictions(StandIn):
    def _evict(self, live, reason):
        before = len(self.actions)
        super()._evict(live, reason)
        self.actions[before:] = [action for action in self.actions[before:] if isinstance(action, Evict)]


#: Theme of the plans that a fault should meet, and the faults: each shows in answers, loads or stale facts.
THEME = replicas(broken=False)
FADING, ROAMING = replicas(base=fadings()), replicas(base=crowds(), calm=False)
MUTANTS = {
    NoTombstones: THEME, ShortMemory: THEME, NoFloor: THEME, SyncsEndTheFuture: THEME, SyncsOnlyAdd: THEME,
    SyncsRaiseTheDead: THEME, AnyGeneration: THEME, GenerationsAddUp: THEME, LostOnesComeBack: THEME,
    LossesEndEverybody: THEME, EarlyPrefillIsForgotten: THEME, BookingsAreReplaced: THEME, AnyIncarnation: THEME,
    FactsBringRanksBack: ROAMING, RanksAreGoneForGood: THEME, HearsItself: THEME, EveryReleaseIsCredited: FADING,
    TellsBeforeItEvicts: THEME, SilentEvictions: THEME}
#: Broken so that replicas do not come to agree: after a round of syncs, or on a link that needs none.
SYNC_MUTANTS = (NoFloor, SyncsEndTheFuture, SyncsOnlyAdd, AnyGeneration, GenerationsAddUp, LostOnesComeBack,
                EarlyPrefillIsForgotten, RanksAreGoneForGood)
FACT_MUTANTS = (NoTombstones, ShortMemory, EarlyPrefillIsForgotten, SilentEvictions)
NETS = 60


def seen(scheduler, batch):
    answers = scheduler.step_many(batch)
    rows = Oracle.loads(scheduler)
    return answers, rows, scheduler.stats().stale_events, scheduler.next_deadline_ns


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_told_apart(mutant):
    for plan, rows in corpus(MUTANTS[mutant]):
        broken, oracle = mutant(plan.config), Oracle(plan.config)
        if any(seen(broken, batch) != seen(oracle, batch) for batch, *_ in rows):
            return
    raise AssertionError(f"{mutant.__name__} was not found")


def run(make, seed: int, faults: Faults, kinds, **config) -> Net:
    random = Random(seed)
    net = Net(make, (2, 3)[seed % 2], faults, seed, **config)
    play(net, [random.randbytes(4) for _ in range(100)], kinds)
    return net


def faults_after_syncs(make, seed: int) -> list[str]:
    """What is wrong with one net after a random run: routers that disagree, then or when all is over or told again."""
    net = run(make, seed, Faults(0.3, 0.3, (0, 30)[seed % 4 > 0]), WORLD)
    for number in range(len(net.routers)):
        net.notice(number)
    net.settle()
    found = net.differences()
    for sender, receiver, told in net.random.sample(net.said, len(net.said)):
        net.hear(sender, receiver, told)
    found += net.differences()
    net.end()
    net.settle()
    return found + net.differences()


def faults_without_syncs(make, seed: int) -> list[str]:
    """The same on a link that loses nothing, and no sync is made."""
    net = run(make, seed, Faults(0.0, 0.4, 30), REQUESTS, booking_ttl_ns=60)
    net.settle(sync=False)
    return net.differences()


def test_nets_of_the_oracle_are_sound():
    assert [seed for seed in range(NETS) if faults_after_syncs(StandIn, seed)] == []
    assert [seed for seed in range(NETS) if faults_without_syncs(StandIn, seed)] == []


@pytest.mark.parametrize("mutant", SYNC_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_disagree_after_syncs(mutant):
    assert any(faults_after_syncs(mutant, seed) for seed in range(NETS))


@pytest.mark.parametrize("mutant", FACT_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_disagree_without_syncs(mutant):
    assert any(faults_without_syncs(mutant, seed) for seed in range(NETS))
