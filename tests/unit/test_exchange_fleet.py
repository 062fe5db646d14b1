"""Exchange by itself: ranks on which it makes room, and slots that it borrows."""

from __future__ import annotations

import pytest
from probe_build import load

from kvcore.config import SchedulerConfig
from kvcore.events import PeerBooked, PeerLost, PeerPrefillCompleted, PeerReleased, PeerSynced, TimerFired
from kvcore.request import WorkerConfig

probe = load("_probe_peers")


def fleet(*workers: int):
    found = probe.Ships(SchedulerConfig())
    for worker_id in workers:
        found.upsert(WorkerConfig(worker_id))
    found.noted()
    return found


def test_a_fall_of_load_is_noted_and_a_rise_is_not():
    ships = fleet(1, 2)
    told = [
        (PeerBooked(0, "p", 1, 1, 2, prefill_tokens=5), []), (PeerBooked(0, "p", 1, 2, 1), []),
        (PeerPrefillCompleted(0, "p", 1, 1), [1]), (PeerPrefillCompleted(0, "p", 1, 2), []),
        (PeerReleased(0, "p", 1, 1), [1]), (PeerBooked(0, "p", 1, 3, 2, sequence_hashes=(1,)), [1]),
        (PeerReleased(0, "p", 1, 9), []), (PeerSynced(0, "p", 1, 4), [0, 1]),
        (PeerBooked(0, "p", 1, 4, 1), []), (PeerLost(0, "p", 1), [0])]
    for event, wanted in told:
        assert ships.heard(event) == 0
        assert (event, ships.noted()) == (event, wanted)


def test_slots_are_borrowed_and_given_back():
    ships = fleet(1)
    for attempt in range(1, 51):
        ships.heard(PeerBooked(0, "p", 1, attempt, 1, sequence_hashes=(attempt, attempt + 1)))
        if attempt > 2:
            ships.heard(PeerReleased(0, "p", 1, attempt - 2))
    assert ships.slots() == (3, 0)
    ships.upsert(WorkerConfig(1, dp_start=5))
    ships.upsert(WorkerConfig(1))
    for attempt in range(51, 54):
        ships.heard(PeerBooked(0, "p", 1, attempt, 1))
    assert (ships.slots(), ships.faults()) == ((3, 0), [])


def test_it_hears_nothing_but_peers():
    with pytest.raises(TypeError):
        fleet(1).heard(TimerFired(0))
