"""What other replicas can have said, and what nobody can mean: core and oracle refuse the same, and nothing changes."""

from __future__ import annotations

import pytest
from oracle import Oracle

from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidEvent
from kvcore.events import PeerBooked, PeerLost, PeerPrefillCompleted, PeerReleased, PeerSynced, TimerFired
from kvcore.replica import FactKind, PeerFact, ReplicaFacts
from kvcore.scheduler import Scheduler

BOOKED, PREFILLED, RELEASED = FactKind
TOP, INT64_MAX = 2**64 - 1, 2**63 - 1
SURROGATE = "p\ud800"


def booked(name="p", generation=1, attempt=1, **fields) -> PeerBooked:
    return PeerBooked(1, name, generation, attempt, **{"worker_id": 1, **fields})


def fact(kind=BOOKED, name="p", generation=1, attempt=1, **fields) -> PeerFact:
    return PeerFact(kind, name, generation, attempt, **fields)


def synced(*facts, next_attempt=9, name="p", generation=1) -> PeerSynced:
    return PeerSynced(1, name, generation, next_attempt, facts)


BROKEN = {
    "name none": booked(None), "name empty": booked(""), "name surrogate": booked(SURROGATE),
    "generation negative": booked(generation=-1), "attempt zero": booked(attempt=0),
    "attempt too large": booked(attempt=2**62 + 1), "incarnation negative": booked(incarnation=-1),
    "hashes none": booked(sequence_hashes=None), "hash negative": booked(sequence_hashes=(1, -1)),
    "hash too large": booked(sequence_hashes=(2**64,)), "hash bool": booked(sequence_hashes=(True,)),
    "unnamed negative": booked(unnamed_blocks=-1), "unnamed too large": booked(unnamed_blocks=2**53 + 1),
    "prefill negative": booked(prefill_tokens=-1), "prefill too large": booked(prefill_tokens=2**53 + 1),
    "reserve negative": booked(reserve_blocks=-1), "reserve too large": booked(reserve_blocks=2**53 + 1),
    "prefill completed by nobody": PeerPrefillCompleted(1, "", 1, 1),
    "prefill completed in no generation": PeerPrefillCompleted(1, "p", -1, 1),
    "prefill of no attempt": PeerPrefillCompleted(1, "p", 1, 0), "released by nobody": PeerReleased(1, None, 1, 1),
    "released attempt negative": PeerReleased(1, "p", 1, -5),
    "released too late": PeerReleased(1, "p", 1, 2**62 + 1), "lost nobody": PeerLost(1, SURROGATE, 1),
    "lost no generation": PeerLost(1, "p", -1), "sync of nobody": synced(name=""),
    "sync of no generation": synced(generation=-1), "sync before the first": synced(next_attempt=0),
    "sync too large": synced(next_attempt=2**62 + 1), "facts none": PeerSynced(1, "p", 1, 1, None),
    "facts of another kind": synced(booked()), "fact none": synced(None), "fact of a peer": synced(fact(name="q")),
    "fact of a generation": synced(fact(generation=2)), "fact of an attempt to come": synced(fact(attempt=9)),
    "fact of no attempt": synced(fact(attempt=0)), "a release": synced(fact(), fact(RELEASED)),
    "kind none": synced(fact(None)), "kind a number": synced(fact(1)), "twice": synced(fact(), fact()),
    "downward": synced(fact(attempt=2), fact()), "prefill of nothing": synced(fact(PREFILLED)),
    "prefill of another": synced(fact(), fact(PREFILLED, attempt=2)),
    "prefill twice": synced(fact(), fact(PREFILLED), fact(PREFILLED)),
    "prefill too late": synced(fact(), fact(attempt=2), fact(PREFILLED)),
    "prefill, then booked": synced(fact(), fact(PREFILLED), fact()),
    "booked hash text": synced(fact(sequence_hashes=("1",))), "booked hashes none": synced(fact(sequence_hashes=None)),
    "booked incarnation": synced(fact(incarnation=-1)), "booked prefill": synced(fact(prefill_tokens=2**53 + 1)),
    "booked unnamed": synced(fact(unnamed_blocks=-1)), "booked reserve": synced(fact(reserve_blocks=INT64_MAX)),
}
SOUND = [
    booked("é", INT64_MAX, 2**62, worker_id=TOP, dp_rank=2**32 - 1, incarnation=INT64_MAX, sequence_hashes=(TOP, 0, 0),
           unnamed_blocks=2**53, prefill_tokens=2**53, reserve_blocks=2**53),
    PeerPrefillCompleted(1, "p", 0, 2**62), PeerReleased(1, "p", 0, 2**62, True), PeerLost(1, "p", INT64_MAX),
    synced(next_attempt=1), synced(next_attempt=2**62),
    synced(fact(), fact(PREFILLED), fact(attempt=3), fact(attempt=8), fact(PREFILLED, attempt=8)),
]


@pytest.mark.parametrize("event", BROKEN.values(), ids=BROKEN)
def test_what_nobody_can_mean_is_refused(event):
    core = Scheduler(SchedulerConfig(replica="me"))
    core.step(booked("p", 1, 5))
    before = core.digest(), core.stats()
    for scheduler in (core, Oracle(SchedulerConfig(replica="me"))):
        with pytest.raises(InvalidEvent) as caught:
            scheduler.step_many((TimerFired(1), event, booked("q")))
        assert caught.value.index == 1
    assert (core.digest(), core.stats()) == before


@pytest.mark.parametrize("event", SOUND, ids=lambda event: type(event).__name__)
def test_what_can_be_meant_is_taken(event):
    core = Scheduler()
    assert core.step(event) == Oracle().step(event) == ()
    assert core.audit() == []


def test_a_value_of_another_kind_is_no_event():
    for value in (fact(), ReplicaFacts("p", 1, 1, ())):
        with pytest.raises(InvalidEvent, match="not an event"):
            Scheduler().step(value)
