"""The engine model by hand: batching, chunks, leaps, the order of facts. engine_cases has the presets.

Each time below can be checked with pencil and paper. tests/property/test_engine_vs_slow.py has a plain model beside it.
"""

from __future__ import annotations

import numpy as np
import pytest
from engine_cases import MOCK, MS, A, B, C, D, E, blocks, drain, finished, tight, times
from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import EngineSpec

from kvcore.events import BlocksRemoved, BlocksStored, Outcome, OutputBlockAdded, PrefillCompleted, RequestFinished


def test_one_request_computes_its_prompt_and_then_a_token_an_iteration():
    fleet = Fleet(1, MOCK, 16)
    assert fleet.next_ns is None
    fleet.submit(0, "r", 7, 100, 3, (), 0)
    assert fleet.next_ns == 11 * MS
    assert drain(fleet) == [PrefillCompleted(11 * MS, "r", 7), finished("r", 31, 103, 7)]
    assert fleet.finished() == [("r", 11 * MS, 31 * MS, 0, 0)]
    assert fleet.finished() == []


def test_one_output_token_is_the_first_and_the_last():
    fleet = Fleet(1, MOCK, 16)
    fleet.submit(0, "r", 0, 100, 1, (), 5)
    at = 11 * MS + 5
    assert drain(fleet) == [PrefillCompleted(at, "r", 0), RequestFinished(at, "r", 0, Outcome.COMPLETED, 101)]


def test_output_blocks_are_told_with_their_first_token_but_not_with_the_last_one():
    fleet = Fleet(1, MOCK, 16)
    fleet.submit(0, "grows", 0, 16, 34, (), 0)  # tokens 17, 33 and 49 of the context are outputs 1, 17 and 33
    fleet.submit(0, "ends", 0, 16, 33, (), 0)  # the 33rd is its last
    facts = drain(fleet)
    start = 10.32  # both prompts in one iteration
    assert times(facts, PrefillCompleted) == [(start, "grows"), (start, "ends")]
    assert times(facts, OutputBlockAdded) == [
        (start, "grows"), (start, "ends"), (start + 160, "grows"), (start + 160, "ends"), (start + 320, "grows"),
    ]
    assert times(facts, RequestFinished) == [(start + 320, "ends"), (start + 330, "grows")]


def test_a_request_joins_at_the_next_iteration_and_shares_it():
    fleet = Fleet(1, MOCK, 16)
    fleet.submit(0, "a", 0, 100, 4, (), 0)
    assert fleet.advance(5 * MS) == []
    fleet.submit(0, "b", 0, 50, 2, (), 5 * MS)
    facts = drain(fleet)
    assert times(facts, PrefillCompleted) == [(11, "a"), (21.5, "b")]  # 10 + 0.5 ms together with a's second token
    assert times(facts, RequestFinished) == [(31.5, "b"), (41.5, "a")]


def test_a_request_joins_in_the_middle_of_a_leap():
    fleet = Fleet(1, MOCK, 512)
    fleet.submit(0, "a", 0, 100, 100, (), 0)
    assert len(fleet.advance(11 * MS)) == 1
    assert fleet.next_ns == 1_001 * MS  # nothing to tell before the last token
    fleet.submit(0, "b", 0, 100, 1, (), 55 * MS)  # iterations end at 51 and 61 ms
    assert fleet.next_ns == 72 * MS
    facts = drain(fleet)
    assert times(facts, RequestFinished) == [(72, "b"), (1_002, "a")]


def test_next_ns_decides_nothing():
    """A request that comes at the instant at which an iteration has just been planned still joins it."""
    seen = []
    for look in (False, True):
        fleet = Fleet(1, MOCK, 16)
        for number in range(3):
            fleet.submit(0, f"r{number}", 0, 100, 2, (), 0)
            assert not look or fleet.next_ns == (11 + number) * MS
        fleet.advance(13 * MS)
        assert not look or fleet.next_ns == 23 * MS
        fleet.submit(0, "late", 0, 100, 1, (), 13 * MS)
        seen.append(drain(fleet))
    assert seen[0] == seen[1]
    assert times(seen[0], RequestFinished) == [(24, "r0"), (24, "r1"), (24, "r2"), (24, "late")]


def test_facts_of_the_instant_may_be_taken_before_or_after_a_submission():
    seen = []
    for first in (False, True):
        fleet = Fleet(1, MOCK, 16)
        fleet.submit(0, "a", 0, 100, 2, (), 0)
        facts = fleet.advance(11 * MS) if first else []
        fleet.submit(0, "b", 0, 100, 2, (), 11 * MS)
        seen.append(facts + drain(fleet, 11 * MS))
    assert seen[0] == seen[1]
    assert times(seen[0], PrefillCompleted) == [(11, "a"), (22, "b")]


def test_a_long_prompt_is_computed_in_chunks():
    fleet = Fleet(1, MOCK, 1_024)
    fleet.submit(0, "r", 0, 5_000, 1, (A, B, C, D, E), 0)
    facts = drain(fleet)
    # 2,048 tokens, 2,048 and 904; the fifth block is not full and keeps no name.
    assert blocks(facts) == [(30.48, "stored", (A, B)), (60.96, "stored", (C, D))]
    assert times(facts, RequestFinished) == [(80, "r")]


def test_chunks_without_names_are_one_leap():
    fleet = Fleet(1, MOCK, 16)
    fleet.submit(0, "r", 0, 5_000, 1, (), 0)
    assert fleet.next_ns == 80 * MS
    fleet.submit(0, "next", 0, 100, 1, (), 3 * MS)  # finds budget in the last of the three iterations
    assert fleet.next_ns == 81 * MS
    assert times(drain(fleet), PrefillCompleted) == [(81, "r"), (81, "next")]


def test_decoding_sequences_come_first_in_the_token_budget():
    fleet = Fleet(1, tight(100, tokens=10, seqs=4), 4)
    fleet.submit(0, "a", 0, 4, 4, (), 0)
    fleet.submit(0, "b", 0, 20, 1, (), 0)
    # 4 + 6 tokens in 10.1 ms; then 1 of a and 9 of b; then 1 of a and the last 5 of b.
    facts = drain(fleet)
    assert times(facts, PrefillCompleted) == [(10.1, "a"), (30.24, "b")]
    assert times(facts, RequestFinished) == [(30.24, "b"), (40.24, "a")]


def test_max_num_seqs_keeps_others_waiting():
    fleet = Fleet(1, tight(100, seqs=2), 4)
    for name in ("a", "b", "c"):
        fleet.submit(0, name, 0, 10, 2, (), 0)
    assert times(drain(fleet), PrefillCompleted) == [(10.2, "a"), (10.2, "b"), (30.3, "c")]


def test_time_is_exact_over_a_leap_of_growing_iterations():
    spec = EngineSpec("odd", 3_333_333, 777, 1_001, 13, 64, 8, 1_000, 16)
    fleet = Fleet(1, spec, 16)
    fleet.submit(0, "a", 0, 20, 400, (), 3)
    fleet.submit(0, "b", 0, 33, 150, (), 3)
    now_ps = 3_000 + 3_333_333 + 777 * 53
    expected = {"a": [now_ps // 1000], "b": [now_ps // 1000]}
    tokens = {"a": 21, "b": 34}
    while tokens:
        now_ps += 3_333_333 + 1_001 * len(tokens) + 13 * sum(tokens.values())
        tokens = {name: count + 1 for name, count in tokens.items()}
        for name, end in (("a", 420), ("b", 183)):
            if tokens.get(name) == end:
                expected[name].append(now_ps // 1000)
                del tokens[name]
    drain(fleet)
    assert {row[0]: [row[1], row[2]] for row in fleet.finished()} == expected
    row = fleet.counters()[0]
    assert (int(row["iterations"]), int(row["busy_ns"])) == (400, (now_ps - 3_000) // 1000)


def test_an_idle_worker_starts_at_once_and_never_before_its_last_iteration_has_ended():
    fleet = Fleet(1, EngineSpec("half", 1_000_500, 0, 0, 0, 64, 8, 100, 16), 16)
    fleet.submit(0, "a", 0, 5, 1, (), 0)
    assert fleet.advance(1_000)[-1].now_ns == 1_000  # it ends at 1,000.5 ns
    fleet.submit(0, "b", 0, 5, 1, (), 1_000)
    assert fleet.next_ns == 2_001
    drain(fleet)
    fleet.submit(0, "c", 0, 5, 1, (), 9_000)
    assert fleet.next_ns == 10_000


def test_facts_of_one_instant_come_by_worker_and_kind():
    fleet = Fleet(3, tight(4), 4)
    for worker in (2, 1, 0):
        fleet.submit(worker, f"w{worker}", worker, 12, 1, (10 + worker, 20 + worker), 0)
    fleet.advance(11 * MS)
    for worker in (1, 2):
        fleet.submit(worker, f"x{worker}", 0, 8, 2, (30 + worker,), 20 * MS)
        fleet.submit(worker, f"y{worker}", 0, 8, 1, (), 20 * MS)
    at = 30_160_000
    assert fleet.advance(at) == [
        fact
        for worker in (1, 2)
        for fact in (
            BlocksRemoved(at, worker, 0, 0, (20 + worker, 10 + worker)),
            BlocksStored(at, worker, 0, 0, (30 + worker,)),
            PrefillCompleted(at, f"x{worker}", 0),
            PrefillCompleted(at, f"y{worker}", 0),
            OutputBlockAdded(at, f"x{worker}", 0),
            finished(f"y{worker}", 30.16, 9),
        )
    ]


def test_what_never_fits_is_refused_and_changes_nothing():
    fleet = Fleet(2, tight(4), 4)
    fleet.submit(0, "r", 0, 10, 6, (), 5)
    bad = {
        "never fit": (0, "big", 0, 11, 6, (), 5),
        "already in the fleet": (1, "r", 0, 4, 4, (), 5),
        "worker must be": (2, "x", 0, 4, 4, (), 5),
        "prompt_tokens must be": (0, "x", 0, 0, 4, (), 5),
        "output_tokens must be": (0, "x", 0, 4, 0, (), 5),
        "2 block hashes for 4 prompt tokens": (0, "x", 0, 4, 4, (1, 2), 5),
        "time goes back": (0, "x", 0, 4, 4, (), 4),
        "call advance": (0, "x", 0, 4, 4, (), 30 * MS),
    }
    before = fleet.next_ns
    for text, call in bad.items():
        with pytest.raises(ValueError, match=text):
            fleet.submit(*call)
    for name in (-1, 1 << 64, None, "7", 1.5):
        with pytest.raises((OverflowError, TypeError)):
            fleet.submit(0, "x", 0, 4, 4, (name,), 5)
    with pytest.raises(ValueError, match="time goes back"):
        fleet.advance(4)
    with pytest.raises(ValueError, match="time goes back"):
        fleet.cancel("r", 4)
    with pytest.raises(ValueError, match="call advance"):
        fleet.cancel("r", 30 * MS)
    assert fleet.next_ns == before
    assert [row[0] for row in [*drain(fleet), *fleet.finished()][-1:]] == ["r"]
    assert fleet.counters()["requests"].tolist() == [1, 0]


def test_counters_add_up():
    fleet = Fleet(2, MOCK, 4)
    for number in range(10):
        fleet.submit(number % 2, f"r{number}", 0, 20 + number, 5, (A, B, C), number * 100 * MS)
        drain(fleet)
    rows = fleet.counters()
    assert rows.dtype.names == (
        "requests", "cancelled", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "stored_blocks",
        "evicted_blocks", "iterations", "busy_ns",
    )
    assert rows.dtype[0] == np.int64
    prompts = [sum(20 + number for number in range(worker, 10, 2)) for worker in (0, 1)]
    assert rows["requests"].tolist() == [5, 5]
    assert rows["prompt_tokens"].tolist() == prompts
    assert rows["cached_tokens"].tolist() == [4 * 12, 4 * 12]
    assert rows["output_tokens"].tolist() == [25, 25]
    assert rows["iterations"].tolist() == [25, 25]
    assert rows["busy_ns"].tolist() == [25 * 10 * MS + (prompt - 48) * 10_000 for prompt in prompts]
