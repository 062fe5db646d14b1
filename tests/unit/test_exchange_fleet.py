"""Exchange by itself: ranks on which it makes room, slots that it borrows, and what it gives to a snapshot."""

from __future__ import annotations

import pytest
from probe_build import load

from kvcore.config import SchedulerConfig
from kvcore.events import PeerBooked, PeerLost, PeerPrefillCompleted, PeerReleased, PeerSynced, TimerFired
from kvcore.replica import FactKind, PeerFact
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


def test_what_is_dumped_is_plain_and_loads_again():
    ships = fleet(1, 2)
    booked = PeerFact(FactKind.BOOKED, "q", 3, 2, 7, 0)
    for event in (
        PeerBooked(0, "p", 1, 1, 1, sequence_hashes=(1, 2), unnamed_blocks=3, prefill_tokens=4, reserve_blocks=5),
        PeerBooked(0, "p", 1, 4, 2, sequence_hashes=(1,), prefill_tokens=7), PeerReleased(0, "p", 1, 6),
        PeerPrefillCompleted(0, "p", 1, 8), PeerSynced(0, "q", 3, 5, (booked,)), PeerLost(0, "r", 2),
        PeerBooked(0, "q", 3, 9, 2, prefill_tokens=9), PeerPrefillCompleted(0, "q", 3, 9),
    ):
        ships.heard(event)
    board, bookings = ships.dump()
    assert board == [("p", 1, False, 2, [], [6], [8]), ("q", 3, False, 5, [2], [], []), ("r", 2, True, 1, [], [], [])]
    one = 2**20
    assert bookings == [
        ("p", 1, 1, 0, 4, 3, 5, [1, 2], [one, one]), ("p", 4, 2, 0, 7, 0, 0, [1], [one]),
        ("q", 9, 2, 0, None, 0, 0, [], [])]
    again = fleet(1, 2)
    again.load(board, bookings)
    assert (again.dump(), again.faults()) == ((board, bookings), [])
    for event, stale in ((PeerReleased(0, "p", 1, 4), 0), (PeerBooked(0, "p", 1, 6, 1), 1), (PeerLost(0, "r", 1), 1),
                         (PeerBooked(0, "q", 3, 4, 1), 1), (PeerPrefillCompleted(0, "q", 3, 9), 1)):
        assert (event, again.heard(event)) == (event, stale)


def test_it_hears_nothing_but_peers():
    with pytest.raises(TypeError):
        fleet(1).heard(TimerFired(0))
