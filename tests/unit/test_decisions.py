"""The ring of decisions: what is kept, for how long, and that the table shows what the choice was made on."""

from __future__ import annotations

import math

import pytest
from stories import Story, arrive, profile, short

from kvcore.config import IndexMode, Role
from kvcore.events import LoadReported
from kvcore.explanation import Decision, Score
from kvcore.policy import Capacity
from kvcore.request import Overlap, Rank, SelectionWeights


def last(story: Story) -> Decision:
    return story.core.decisions()[-1]


def table(story: Story, **request) -> list[tuple[Rank, float]]:
    """What potential_loads says of the same request: eligible ranks, cheapest first, in canonical order."""
    rows = story.core.potential_loads(arrive(story.now, "asked", **request).request)
    found = [(Rank(int(row["worker_id"]), int(row["dp_rank"])), float(row["cost"])) for row in rows if row["eligible"]]
    return sorted(found, key=lambda pair: pair[1])


def test_nothing_is_kept_unless_asked_for():
    story = Story(1)
    story.arrive("a")
    assert story.core.decisions() == ()
    assert story.core.explain("a").decision is None


def test_a_decision_and_its_table():
    story = Story(1, 2, decisions_kept=3)
    story.arrive("x", 40, pinned=Rank(1), block_hashes=(1, 2, 3))
    story.store(1, 1, 2)
    story.at(5).arrive("a", 17, block_hashes=(1, 2, 7))
    assert last(story) == Decision(
        "a", 2, 5, 0, "default", Rank(2),
        (Score(Rank(2), 17 / 4 + 3, 0, 0, 0, 3, 0), Score(Rank(1), (40 + 17) / 4 - 2 + 4, 2, 8, 40, 4, 1)),
        2, 16.25 - 7.25, "cheapest")
    assert story.core.explain("a").decision == last(story)


def test_the_last_ones_are_kept_newest_last():
    story = Story(1, decisions_kept=3)
    for number in range(5):
        story.arrive(f"r{number}")
        assert [row.request_id for row in story.core.decisions()] == [
            f"r{i}" for i in range(max(0, number - 2), number + 1)]
    assert [story.core.explain(f"r{number}").decision is not None for number in range(5)] == [False] * 2 + [True] * 3


def test_an_ended_request_is_found_while_it_is_kept():
    story = Story(1, profile=profile(5), decisions_kept=1)
    story.arrive("a")
    story.finish("a", 1)
    told = story.core.explain("a")
    assert (told.state, told.class_name, told.class_index, told.attempt) == ("ended", "c0", 0, 1)
    assert told.decision == last(story)
    assert told.reasons == ("it has ended; the last decision about it is still kept",)
    story.arrive("b")
    assert story.core.explain("a").state == "unknown"


def test_a_name_that_is_used_again_has_its_own_decisions():
    story = Story(1, profile=profile(prefill_busy_threshold=0), decisions_kept=4)
    story.arrive("a")
    story.finish("a", 1)
    story.arrive("x")
    story.arrive("a")
    told = story.core.explain("a")
    assert (told.state, told.decision) == ("waiting", None)
    story.prefill("x", 2)
    assert story.core.explain("a").decision.attempt == 3
    story.finish("a", 3)
    assert story.core.explain("a").decision.attempt == 3


def test_an_older_decision_of_the_same_name_may_be_forgotten():
    story = Story(1, decisions_kept=2)
    for attempt in range(1, 8):
        story.arrive("a")
        assert story.core.explain("a").decision.attempt == attempt
        story.finish("a", attempt)


def test_forgetting_one_decision_forgets_no_other_of_the_same_name():
    story = Story(1, decisions_kept=3)
    story.arrive("a")
    story.fail("a", 1, retry=True)
    story.arrive("b")
    story.arrive("c")
    assert [row.request_id for row in story.core.decisions()] == ["a", "b", "c"]
    assert story.core.explain("a").decision.attempt == 2
    story.arrive("d")
    assert story.core.explain("a").decision is None
    assert story.core.explain("b").decision.attempt == 3


def test_rules():
    story = Story(decisions_kept=1)
    story.upsert(1)
    story.arrive("one")
    assert (last(story).rule, last(story).margin) == ("only one", None)
    story.upsert(2)
    story.arrive("cheap")
    assert (last(story).rule, last(story).rank) == ("cheapest", Rank(2))
    story.arrive("pin", pinned=Rank(1))
    assert (last(story).rule, last(story).margin, last(story).candidates_count) == ("pinned", None, 1)
    story.upsert(3)
    story.upsert(4)
    story.arrive("tie")
    assert (last(story).rule, last(story).margin) == ("tie of 2, drawn", 0.0)
    assert last(story).rank in (Rank(3), Rank(4))
    story.arrive("warm", weights=SelectionWeights(temperature=0.7))
    assert last(story).rule == "sampled at temperature 0.7"


def test_a_drawn_one_that_is_dearer_has_a_margin_below_zero():
    story = Story(1, 2, decisions_kept=50)
    story.arrive("x", 4000, pinned=Rank(1))
    for number in range(40):
        story.arrive(f"r{number}", 1, weights=SelectionWeights(temperature=100.0))
    drawn = [row for row in story.core.decisions() if row.rule.startswith("sampled")]
    assert {row.rank for row in drawn} == {Rank(1), Rank(2)}
    for row in drawn:
        cheap, dear = row.candidates
        assert cheap.cost < dear.cost
        assert row.margin == (dear.cost - cheap.cost if row.rank == cheap.rank else cheap.cost - dear.cost)


def test_of_many_the_cheapest_are_kept_and_the_chosen_one():
    """All cost the same: the first 64 in canonical order are kept, but one of 100 was drawn."""
    seen = set()
    for seed in range(12):
        story = Story(seed=seed, decisions_kept=1)
        story.upsert(1, dp_size=100)
        story.arrive("a")
        decision = last(story)
        assert (decision.candidates_count, decision.rule, len(decision.candidates)) == (100, "tie of 100, drawn", 64)
        ranks = [score.rank.dp_rank for score in decision.candidates]
        chosen = decision.rank.dp_rank
        assert ranks == (list(range(64)) if chosen < 64 else [*range(63), chosen])
        seen.add(chosen < 64)
    assert seen == {True, False}


@pytest.mark.parametrize("size", [1, 64, 65, 200])
def test_the_cheapest_come_first_however_they_arrive(size):
    story = Story(decisions_kept=1)
    story.upsert(1, dp_size=size)
    story.many(*[arrive(0, f"x{i}", 4 * (1 + i * 37 % size), pinned=Rank(1, i)) for i in range(size)])
    expected = table(story)
    story.arrive("a")
    assert [(score.rank, score.cost) for score in last(story).candidates] == expected[:64]
    assert last(story).candidates_count == size
    assert last(story).rank == expected[0][0]


SHAPES = {
    "trees": {},
    "blocks of three": {"block_size": 3},
    "scaled": {"weights": SelectionWeights(prefill_load_scale=0.5, active_request_weight=3.0)},
    "decaying credit": {"weights": SelectionWeights(overlap_score_credit_decay=1.0)},
    "decode": {"role": Role.DECODE},
    "strict": {"capacity": Capacity.STRICT},
    "predicted": {"index": IndexMode.APPROXIMATE},
    "reported": {"reported_load_ttl_ns": 10**9},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_table_is_the_one_of_potential_loads(shape):
    """Choices by trees and by the loop, under every sort of cost: the table is the loop's, and the choice its least."""
    story = Story(decisions_kept=1, **SHAPES[shape])
    for worker in range(1, 10):
        story.upsert(worker, dp_size=2, total_kv_blocks=200 + worker, max_requests=30)
        story.store(worker, *range(1, worker))
        if shape == "reported":
            story.many(LoadReported(story.now, worker, 0, 0, 1, 90 * worker % 7, worker, worker % 3))
    told = Overlap(device=((Rank(3, 1), 2),), cached_tokens=((Rank(3, 1), 7),))
    rules = set()
    for number in range(60):
        request = {
            "prompt": 20 + 5 * number % 31, "block_hashes": tuple(range(1, 4 + number % 3)) if number % 4 else (),
            "track_prefill": number % 7 > 0, "expected_output_tokens": number if number % 5 == 0 else None,
            "allowed_workers": frozenset({1, 4, 5, 7}) if number % 6 == 5 else None,
            "overlap": told if number % 8 == 7 else None,
        }
        expected = table(story, **request)
        story.at(story.now + 3).arrive(f"r{number}", **request)
        decision = last(story)
        assert decision.request_id == f"r{number}"
        assert [(score.rank, score.cost) for score in decision.candidates] == expected
        ties = [rank for rank, cost in expected if cost == expected[0][1]]
        assert decision.rank in ties
        assert decision.rule == ("cheapest" if len(ties) == 1 else f"tie of {len(ties)}, drawn")
        rules.add(decision.rule[:3])
        if number % 3 == 2:
            story.prefill(f"r{number - 1}", number)
    assert rules == {"che", "tie"}


def test_costs_that_are_too_large_for_a_margin():
    story = Story(1, 2, decisions_kept=1, weights=SelectionWeights(active_request_weight=1e308))
    for number in range(6):
        story.arrive(f"r{number}")
    assert [score.cost for score in last(story).candidates] == [math.inf, math.inf]
    assert (last(story).rule, last(story).margin) == ("tie of 2, drawn", 0.0)


def test_keeping_decisions_changes_nothing():
    plain, kept = Story(1, 2), Story(1, 2, decisions_kept=2)
    for number in range(9):
        assert short(plain.arrive(f"r{number}", 5 + number)) == short(kept.arrive(f"r{number}", 5 + number))
        assert plain.core.loads().tolist() == kept.core.loads().tolist()
        assert plain.core.digest() == kept.core.digest()
