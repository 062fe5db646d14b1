"""Snapshots of what other replicas have told: the same bytes for the same state, and a new life under another name."""

from __future__ import annotations

import hashlib
from itertools import permutations
from random import Random

import pytest
from stories import arrive, profile, short

from kvcore.actions import Publish
from kvcore.config import PrefillDecay, SchedulerConfig
from kvcore.errors import InvalidConfig, InvalidSnapshot
from kvcore.events import (
    OutputBlockAdded,
    PeerBooked,
    PeerLost,
    PeerPrefillCompleted,
    PeerReleased,
    PeerSynced,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.replica import FactKind, PeerFact
from kvcore.request import Rank, WorkerConfig
from kvcore.scheduler import Scheduler

CHECKSUM = 16
FAST = WorkerConfig(1, prefill_tokens_per_s=10**9)


def busy(decay: PrefillDecay = PrefillDecay.LINEAR) -> Scheduler:
    """Peers in every state, between own bookings on the same ranks, with blocks that have faded."""
    core = Scheduler(SchedulerConfig(
        4, profile(10, prefill_busy_threshold=90), prefill_decay=decay, replica="me", replica_generation=3))
    adrift = PeerFact(FactKind.BOOKED, "q", 3, 2, 7, 0)
    core.step_many((WorkerUpserted(0, FAST), WorkerUpserted(0, WorkerConfig(2)), WorkerUpserted(0, WorkerConfig(9))))
    for event in (
        PeerBooked(1, "p", 1, 1, 1, sequence_hashes=(1, 2, 3), unnamed_blocks=3, prefill_tokens=4, reserve_blocks=5),
        arrive(2, "a", 20, block_hashes=(1, 2), pinned=Rank(1)), OutputBlockAdded(2, "a", 1, 0.25),
        PeerBooked(3, "q", 3, 9, 1, prefill_tokens=6), PeerBooked(3, "q", 3, 8, 1, prefill_tokens=7),
        arrive(4, "b", 12, block_hashes=(5, 6, 7), pinned=Rank(2)), OutputBlockAdded(4, "b", 2, 0.5),
        PeerBooked(4, "p", 1, 4, 2, sequence_hashes=(5, 6), prefill_tokens=7), PeerReleased(4, "p", 1, 6),
        PeerBooked(5, "p", 1, 5, 1, sequence_hashes=(1, 9), prefill_tokens=11), PeerPrefillCompleted(5, "p", 1, 5),
        PeerPrefillCompleted(5, "p", 1, 8), PeerLost(5, "r", 2), PeerSynced(5, "q", 3, 5, (adrift,)),
        PeerBooked(6, "q", 3, 10, 9), WorkerRemoved(6, 9), RequestFinished(6, "b", 2),
        *[arrive(7, name, 40) for name in "cdef"],
    ):
        core.step(event)
    stats = core.stats()
    assert (stats.peers, stats.peer_bookings, stats.running_requests, stats.waiting_requests > 0) == (2, 5, 5, False)
    return core


def sealed(content: bytes) -> bytes:
    return content + hashlib.blake2b(content, digest_size=CHECKSUM).digest()


@pytest.mark.parametrize("decay", list(PrefillDecay))
def test_what_is_restored_goes_on_alike(decay):
    core = busy(decay)
    twin = Scheduler.restore(core.snapshot())
    assert (twin.snapshot(), twin.digest(), twin.stats()) == (core.snapshot(), core.digest(), core.stats())
    for event in (
        TimerFired(8), PeerReleased(9, "q", 3, 9, True), PeerBooked(9, "p", 1, 6, 1), PeerReleased(10, "p", 1, 1),
        PeerLost(10, "r", 1), PeerBooked(10, "q", 3, 4, 1), PeerBooked(11, "q", 3, 10, 1), arrive(11, "x", 30),
        RequestFinished(12, "a", 1), PeerPrefillCompleted(13, "q", 3, 8),
        PeerBooked(13, "p", 1, 8, 2, prefill_tokens=5),
        PeerLost(20, "p", 1), PeerReleased(30, "q", 4, 1),
    ):
        assert twin.step(event) == core.step(event)
        assert (twin.digest(), twin.stats(), twin.audit()) == (core.digest(), core.stats(), [])
        assert twin.loads().tolist() == core.loads().tolist()
        assert twin.snapshot() == core.snapshot()


def test_the_road_leaves_no_trace():
    """Order of names, slots, and of bookings that no longer prefill."""
    snapshots = set()
    for order in permutations((("p", 1), ("q", 1), ("p", 2))):
        core = Scheduler(SchedulerConfig(prefill_decay=PrefillDecay.LINEAR))
        core.step(WorkerUpserted(0, FAST))
        for name, attempt in order:
            core.step(PeerBooked(0, name, 1, attempt, 1, sequence_hashes=(attempt, 7), prefill_tokens=0))
        snapshots.add(core.snapshot())
    assert len(snapshots) == 1


def test_the_order_of_prefills_is_state_where_they_decay():
    def core(*names: str, decay: PrefillDecay) -> Scheduler:
        made = Scheduler(SchedulerConfig(prefill_decay=decay))
        made.step(WorkerUpserted(0, FAST))
        for name in names:
            made.step(PeerBooked(0, name, 1, 1, 1, prefill_tokens=5) if name != "own" else arrive(0, "own"))
        return made

    for decay, different in ((PrefillDecay.LINEAR, 6), (PrefillDecay.NONE, 1)):
        cores = [core(*order, decay=decay) for order in permutations(("p", "own", "q"))]
        assert len({one.snapshot() for one in cores}) == len({one.digest() for one in cores}) == different
        assert all(Scheduler.restore(one.snapshot()).digest() == one.digest() for one in cores)


def test_a_new_life_has_a_new_generation():
    core = busy()
    twin = Scheduler.restore(core.snapshot(), replica_generation=4)
    assert (twin.config.replica, twin.config.replica_generation, twin.digest()) == ("me", 4, core.digest())
    old, new = core.replica_facts(), twin.replica_facts()
    assert (old.generation, new.generation, new.next_attempt) == (3, 4, old.next_attempt)
    assert {fact.generation for fact in new.facts} == {4}
    (told,) = [action.fact for action in twin.step(RequestFinished(9, "a", 1)) if isinstance(action, Publish)]
    assert (told.generation, told.attempt) == (4, 1)
    assert Scheduler.restore(twin.snapshot()).config.replica_generation == 4
    for wrong in (-1, 2**63, 1.5, True):
        with pytest.raises(InvalidConfig, match="replica_generation must be"):
            Scheduler.restore(core.snapshot(), replica_generation=wrong)


def test_a_listener_follows_it_into_its_new_life():
    core, listener = busy(), Scheduler(SchedulerConfig(4))
    listener.step_many((WorkerUpserted(0, FAST), WorkerUpserted(0, WorkerConfig(2))))
    for scheduler in (core, Scheduler.restore(core.snapshot(), replica_generation=4)):
        facts = scheduler.replica_facts()
        listener.step(PeerSynced(0, facts.replica, facts.generation, facts.next_attempt, facts.facts))
        assert listener.stats().peer_bookings == core.stats().running_requests
    assert listener.stats().stale_events == 0
    assert short(listener.step(PeerReleased(0, "me", 3, 1))) == ""
    assert listener.stats().stale_events == 1


def test_every_byte_counts():
    data = busy().snapshot()
    random = Random(5)
    for at in range(len(data) - CHECKSUM):
        content = bytearray(data[:-CHECKSUM])
        content[at] ^= 1 << random.randrange(8)
        try:
            twin = Scheduler.restore(sealed(bytes(content)))
        except InvalidSnapshot:
            continue
        assert twin.snapshot() == sealed(bytes(content))
        assert twin.audit() == []


def test_every_other_number_is_borne():
    """Eight bytes at a time become something else, under a checksum that is right."""
    data = busy().snapshot()
    for value in (0, 1, -1, 2**62, 2**63 - 1):
        for at in range(12, len(data) - CHECKSUM - 8, 3):
            content = data[:at] + value.to_bytes(8, "little", signed=True) + data[at + 8:-CHECKSUM]
            try:
                assert Scheduler.restore(sealed(content)).audit() == []
            except InvalidSnapshot:
                continue
