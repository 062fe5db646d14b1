"""The engine model by hand: prefix hits, eviction, waiting for blocks, preemption. engine_cases has the presets."""

from __future__ import annotations

from engine_cases import MOCK, MS, A, B, C, D, E, blocks, drain, tight, times
from kvcore.drivers.replay._engine import Fleet

from kvcore.events import BlocksStored, OutputBlockAdded, PrefillCompleted, RequestFinished


def test_a_prefix_is_found_and_not_computed_again():
    fleet = Fleet(1, MOCK, 4)
    fleet.submit(0, "a", 0, 10, 1, (A, B, C), 0)
    facts = drain(fleet)
    assert blocks(facts) == [(10.1, "stored", (A, B))]  # the third block is not full
    fleet.submit(0, "b", 0, 15, 1, (A, B, C, D), 20 * MS)
    facts = drain(fleet)
    assert facts[0] == BlocksStored(30_070_000, 0, 0, 0, (C,))  # 15 - 8 tokens
    assert fleet.finished()[1] == ("b", 30_070_000, 30_070_000, 8, 0)
    fleet.submit(0, "c", 0, 8, 1, (A, B), 40 * MS)  # all cached: the last block is computed for its last token
    assert times(drain(fleet), PrefillCompleted) == [(50.04, "c")]
    assert fleet.finished() == [("c", 50_040_000, 50_040_000, 4, 0)]
    assert fleet.counters()["cached_tokens"].tolist() == [12]


def test_blocks_are_found_only_after_the_iteration_that_computes_them():
    fleet = Fleet(1, MOCK, 4)
    fleet.submit(0, "a", 0, 9, 1, (A, B), 0)
    fleet.submit(0, "b", 0, 9, 1, (A, B), 0)  # in the same iteration: computed twice, announced once
    facts = drain(fleet)
    assert blocks(facts) == [(10.18, "stored", (A, B))]
    assert [row[3] for row in fleet.finished()] == [0, 0]
    assert sorted(fleet.blocks(0)[2]) == [A, B]


def test_a_hole_ends_a_prefix():
    fleet = Fleet(1, MOCK, 4)
    fleet.submit(0, "a", 0, 9, 1, (A, C), 0)
    drain(fleet)
    fleet.submit(0, "b", 0, 13, 1, (A, B, C), 20 * MS)
    assert blocks(drain(fleet)) == [(30.09, "stored", (B,))]  # C has its block and its name already
    assert fleet.finished()[1][3] == 4


def test_the_longest_unused_block_is_evicted_first_and_of_one_request_the_leaf():
    fleet = Fleet(1, tight(5), 4)
    fleet.submit(0, "a", 0, 8, 1, (A, B), 0)
    fleet.submit(0, "b", 0, 8, 1, (C, D), 0)  # both leave at 10.16 ms: first a's blocks, B before A
    drain(fleet)
    fleet.submit(0, "c", 0, 7, 1, (), 20 * MS)  # one block was never used, the other one is B's
    assert blocks(drain(fleet)) == [(30.07, "removed", (B,))]
    fleet.submit(0, "d", 0, 8, 1, (A, E), 40 * MS)  # A is held; D goes for the second block
    assert blocks(drain(fleet)) == [(50.04, "removed", (D,)), (50.04, "stored", (E,))]
    # In order of eviction: C, c's two blocks without names (leaf first), and d's E and A.
    fleet.submit(0, "e", 0, 17, 1, (), 60 * MS)
    assert blocks(drain(fleet)) == [(70.17, "removed", (C, E, A))]
    assert fleet.counters()["evicted_blocks"].tolist() == [5]
    assert fleet.blocks(0) == (5, 0, [])


def test_a_hit_block_in_use_is_not_evicted():
    fleet = Fleet(1, tight(3), 4)
    fleet.submit(0, "a", 0, 5, 7, (A,), 0)  # two blocks, and a third one from its ninth token on, at 40.09 ms
    assert len(fleet.advance(11 * MS)) == 2
    fleet.submit(0, "b", 0, 8, 1, (A, B), 11 * MS)  # the two free their blocks at 30.09, but a still holds A
    assert blocks(drain(fleet)) == [(30.09, "stored", (B,)), (50.09, "removed", (B,))]


def test_the_queue_waits_for_blocks_in_order():
    fleet = Fleet(1, tight(4), 4)
    fleet.submit(0, "a", 0, 12, 3, (), 0)
    fleet.submit(0, "big", 0, 8, 1, (), 0)
    fleet.submit(0, "small", 0, 4, 1, (), 0)  # would fit beside a, but is not next
    assert times(drain(fleet), PrefillCompleted) == [(10.12, "a"), (40.24, "big"), (40.24, "small")]


def test_what_one_request_waited_for_does_not_hold_up_another():
    fleet = Fleet(1, tight(8), 4)
    fleet.submit(0, "long", 0, 4, 28, (), 0)
    fleet.submit(0, "big", 0, 24, 1, (), 0)
    fleet.submit(0, "waits", 0, 8, 1, (), 0)  # for two blocks, until 10.28
    facts = fleet.advance(215 * MS)
    assert times(facts, RequestFinished) == [(10.28, "big"), (20.36, "waits")]
    assert fleet.blocks(0)[:2] == (1, 7)
    fleet.submit(0, "small", 0, 4, 1, (), 215 * MS)  # needs one, and has it at 220.36
    assert times(drain(fleet), PrefillCompleted) == [(230.4, "small")]


def test_without_a_free_block_the_last_sequence_is_preempted_and_computed_again():
    fleet = Fleet(1, tight(4), 4)
    fleet.submit(0, "a", 0, 7, 6, (), 0)  # two blocks; a third with its 9th token
    fleet.submit(0, "b", 0, 7, 3, (A,), 0)  # two blocks
    facts = drain(fleet)
    # 10.14: first tokens. 20.14: both have nine tokens, and need a third block. b gives up its two, and a takes one
    # of them, and has nothing else to wait for: 30.14 to 60.14. Only then is there room for nine tokens of b: of
    # these, block A is still cached, so that five are computed. That makes its third and last token.
    assert times(facts, PrefillCompleted) == [(10.14, "a"), (10.14, "b")]
    assert times(facts, OutputBlockAdded) == [(20.14, "a"), (20.14, "b")]
    assert times(facts, RequestFinished) == [(60.14, "a"), (70.19, "b")]
    assert fleet.finished() == [("a", 10_140_000, 60_140_000, 0, 0), ("b", 10_140_000, 70_190_000, 0, 1)]
    assert fleet.counters()["preemptions"].tolist() == [1]
    assert blocks(facts) == [(10.14, "stored", (A,))]


def test_a_preempting_iteration_admits_nothing():
    fleet = Fleet(1, tight(5), 4)
    fleet.submit(0, "a", 0, 8, 5, (A, B), 0)
    fleet.submit(0, "b", 0, 8, 3, (A, B), 0)  # computes the same blocks once more, in the same iteration
    # 10.16: both have nine tokens; a takes the fifth block, b has to give up its two. It could come back at once, with
    # a's blocks A and B and one of its own, but does so at 20.16: one token computed, 10.01 ms.
    facts = drain(fleet)
    assert times(facts, OutputBlockAdded) == [(10.16, "a"), (10.16, "b")]
    assert times(facts, RequestFinished) == [(40.17, "b"), (50.17, "a")]
    assert fleet.finished() == [("b", 10_160_000, 40_170_000, 0, 1), ("a", 10_160_000, 50_170_000, 0, 0)]


def test_names_are_all_of_64_bits():
    fleet = Fleet(1, MOCK, 4)
    names = (0, (1 << 64) - 1, 1 << 63)
    fleet.submit(0, "r", 0, 12, 1, names, 0)
    assert blocks(drain(fleet)) == [(10.12, "stored", names)]


def test_many_names_and_evictions_keep_the_index_whole():
    fleet = Fleet(1, tight(300), 4)
    now_ns, named = 0, set()
    for number in range(200):
        first = number * 7 % 50 * 100
        fleet.submit(0, f"r{number}", 0, 180, 1, tuple(range(first, first + 45)), now_ns)
        for _, kind, names in blocks(drain(fleet)):
            named = named | set(names) if kind == "stored" else named - set(names)
        assert sorted(fleet.blocks(0)[2]) == sorted(named)
        now_ns += 20 * MS
    row = fleet.counters()[0]
    assert int(row["stored_blocks"]) - int(row["evicted_blocks"]) == len(named) > 200
