"""The engine model by hand: what a cancellation stops, and when. engine_cases has the presets."""

from __future__ import annotations

from engine_cases import MOCK, MS, A, B, C, D, blocks, drain, finished, tight, times
from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import EngineSpec

from kvcore.events import PrefillCompleted, RequestFinished


def test_cancelled_in_the_queue_it_leaves_at_once():
    fleet = Fleet(1, tight(100, seqs=1), 4)
    for name in ("a", "b", "c"):
        fleet.submit(0, name, 0, 10, 2, (), 0)
    assert fleet.cancel("b", 1 * MS)
    assert not fleet.cancel("b", 1 * MS)
    assert not fleet.cancel("never seen", 1 * MS)
    assert times(drain(fleet), RequestFinished) == [(20.1, "a"), (40.2, "c")]
    assert fleet.counters()["cancelled"].tolist() == [1]


def test_cancelled_while_it_decodes_it_leaves_with_its_iteration():
    spec = EngineSpec("two", MOCK.base_ps, MOCK.prefill_token_ps, 1_000_000_000, 0, 64, 8, 100, 512)
    fleet = Fleet(1, spec, 512)  # 1 ms for each decoding sequence
    fleet.submit(0, "a", 0, 10, 5, (), 0)
    fleet.submit(0, "b", 0, 10, 50, (), 0)
    assert len(fleet.advance(10_200_000)) == 2
    assert fleet.next_ns == 58_200_000
    assert fleet.cancel("b", 23 * MS)  # the second decode iteration runs from 22.2 to 34.2
    assert drain(fleet) == [finished("a", 56.2, 15)]
    assert fleet.blocks(0) == (100, 0, [])


def test_cancelled_while_its_prompt_is_computed_it_names_nothing_more():
    fleet = Fleet(1, MOCK, 1_024)
    fleet.submit(0, "r", 0, 5_000, 1, (A, B, C, D), 0)
    fleet.submit(0, "next", 0, 100, 1, (), 0)
    assert blocks(fleet.advance(40 * MS)) == [(30.48, "stored", (A, B))]
    assert fleet.cancel("r", 40 * MS)  # its second chunk ends at 60.96
    facts = drain(fleet)
    assert blocks(facts) == []
    assert times(facts, RequestFinished) == [(71.96, "next")]
    assert sorted(fleet.blocks(0)[2]) == [A, B]


def test_a_cancelled_id_may_come_back_at_once():
    fleet = Fleet(2, MOCK, 16)
    fleet.submit(0, "r", 0, 100, 50, (), 0)
    fleet.advance(15 * MS)
    assert fleet.cancel("r", 15 * MS)
    assert fleet.next_ns is None
    fleet.submit(0, "r", 1, 100, 1, (), 15 * MS)
    fleet.submit(1, "s", 0, 100, 1, (), 15 * MS)
    facts = drain(fleet)
    assert times(facts, PrefillCompleted) == [(26, "s"), (32, "r")]  # worker 0 was busy until 21 ms
    assert [fact.attempt for fact in facts if fact.request_id == "r"] == [1, 1]
    assert fleet.counters()["busy_ns"].tolist() == [32 * MS, 11 * MS]


def test_cancelling_takes_back_what_was_planned():
    """b and c have been given a place in the iteration that starts at 61 ms; b goes before that."""
    fleet = Fleet(1, tight(31), 4)
    fleet.submit(0, "old", 0, 100, 1, tuple(range(25)), 0)
    drain(fleet)
    fleet.submit(0, "a", 0, 8, 3, (), 20 * MS)
    facts = fleet.advance(30_080_000)
    before = fleet.blocks(0)
    fleet.submit(0, "b", 0, 60, 1, tuple(range(10)), 31 * MS)
    fleet.submit(0, "c", 0, 4, 1, (77,), 32 * MS)
    assert fleet.blocks(0) != before
    assert fleet.cancel("b", 33 * MS)
    assert fleet.cancel("c", 34 * MS)
    assert fleet.blocks(0) == before
    facts = drain(fleet)
    assert times(facts, RequestFinished) == [(50.08, "a")]
    assert blocks(facts) == []


def test_cancelled_at_the_instant_of_its_last_token():
    for taken in (True, False):
        fleet = Fleet(1, MOCK, 16)
        fleet.submit(0, "r", 0, 100, 2, (), 0)
        fleet.submit(0, "s", 0, 100, 2, (), 0)
        fleet.advance(12 * MS)
        facts = fleet.advance(22 * MS) if taken else []
        assert fleet.cancel("r", 22 * MS) is not taken
        assert times(facts + drain(fleet, 22 * MS), RequestFinished) == ([(22, "r")] if taken else []) + [(22, "s")]
