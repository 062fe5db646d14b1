"""Strict capacity (DESIGN D8): no Dispatch takes a rank above a cap, and whoever fits runs at once."""

from __future__ import annotations

import pytest
from capacity_stories import FleetStory, capped, held, strict
from stories import arrive, short

from kvcore.actions import Dispatch
from kvcore.events import PrefillCompleted, RequestFinished, Tier, WorkerRemoved
from kvcore.request import Rank

# What fits.


@pytest.mark.parametrize(("prompt", "blocks"), [(1, 1), (4, 1), (5, 2), (39, 10), (40, 10)])
def test_a_prompt_takes_whole_blocks(prompt, blocks):
    story = capped()
    story.run("a", prompt)
    assert held(story) == blocks
    assert short(story.arrive("b", 4 * (10 - blocks) + 1)) == "P b"
    story.cancel("b")
    assert short(story.arrive("c", max(1, 4 * (10 - blocks)))) == ("P c" if blocks == 10 else "D c")


def test_an_exactly_full_rank_is_dispatched_to_and_the_next_waits():
    story = capped(8)
    for name in "abcd":
        story.run(name, 8)
    assert (held(story), story.core.stats().over_cap_ranks) == (8, 0)
    assert short(story.arrive("e", 1)) == "P e"


@pytest.mark.parametrize("tokens", [0, 1, 4, 5, 8])
def test_the_answer_is_kept_room_for(tokens):
    reserve = -(-tokens // 4)
    story = capped(10)
    story.run("a", 8, expected_output_tokens=tokens)
    assert held(story) == 2 + reserve
    assert short(story.arrive("b", 4 * (8 - reserve))) == "D b"
    assert held(story) == 10


def test_the_own_answer_has_to_fit_too():
    story = capped(10)
    story.run("a", 24)
    assert short(story.arrive("b", 12, expected_output_tokens=5)) == "P b"
    assert short(story.arrive("c", 12, expected_output_tokens=4, strict_priority=1)) == "D c"


def test_caps_are_those_of_each_rank():
    story = FleetStory(profile=strict())
    story.upsert(1, total_kv_blocks=2, dp_size=3)
    actions = [story.run(name, 8) for name in "abc"]
    assert sorted(action.dp_rank for action in actions) == [0, 1, 2]
    assert short(story.arrive("d", 1)) == "P d"


def test_no_cap_is_no_bound():
    story = capped(None)
    for number in range(50):
        story.run(f"r{number}", 10**6)


def test_the_dispatch_goes_where_room_is_though_it_costs_more():
    story = capped(10, workers=2)
    story.store(1, 1, 2, 3)
    story.run("x", 32, pinned=Rank(1), track_prefill=False)
    assert story.run("a", 12, block_hashes=(1, 2, 3)).worker_id == 2
    assert story.core.stats().classes[0].dispatched_cost_tokens == 32 + 1  # the charge is what was reachable


def test_a_cached_block_that_nobody_runs_takes_room_all_the_same():
    """What an engine caches it may drop; only running blocks are shared."""
    story = capped(4)
    story.store_in(Tier.DEVICE, 1, 1, 2)
    story.run("a", 8, block_hashes=(8, 9))
    assert short(story.arrive("b", 12, block_hashes=(1, 2, 3))) == "P b"


# Requests.


@pytest.mark.parametrize("bound", [1, 2, 7])
def test_as_many_requests_as_allowed(bound):
    story = capped(None, bound)
    for number in range(bound):
        story.run(f"r{number}")
    assert short(story.arrive("more")) == "P more"
    assert story.prefill("r0", 1) == ()     # it still runs
    assert short(story.finish("r0", 1)) == "D more"


def test_both_caps_bind():
    story = capped(4, 2)
    story.run("a", 4)
    assert short(story.arrive("b", 16)) == "P b"
    assert short(story.arrive("c", 4)) == "P c"     # one class, one order: b is before it
    assert short(story.finish("a", 1)) == "D b"
    assert short(story.finish("b", 2)) == "D c"


# Output.


def test_output_within_the_reserve_changes_nothing():
    story = capped(6)
    story.run("a", 8, expected_output_tokens=8)
    assert held(story) == 4
    for _ in range(2):
        story.output("a", 1)
        assert held(story) == 4
    assert short(story.arrive("b", 8)) == "D b"


def test_output_beyond_the_reserve_takes_room():
    story = capped(6)
    story.run("a", 8, expected_output_tokens=4)
    story.output("a", 1)
    story.output("a", 1)
    assert held(story) == 4
    assert short(story.arrive("b", 12)) == "P b"
    assert short(story.arrive("c", 8)) == "P c"
    assert short(story.cancel("b")) == "D c"


def test_weights_of_output_play_no_part():
    """Blocks fade in the cost; memory does not."""
    story = capped(6)
    story.run("a", 8, block_hashes=(1, 2))
    story.output("a", 1, 0.0)
    assert (story.row(1)["active_blocks"], held(story)) == (0, 3)
    assert short(story.arrive("b", 16)) == "P b"
    assert short(story.arrive("c", 12, strict_priority=1)) == "D c"


def test_growth_beyond_a_cap_is_seen_and_nothing_is_dispatched_there():
    story = capped(4, workers=2)
    story.run("a", 16, pinned=Rank(1))
    story.output("a", 1)
    assert (held(story), story.core.stats().over_cap_ranks) == (5, 1)
    assert story.run("b", 16).worker_id == 2
    assert short(story.arrive("c", 1)) == "P c"
    assert short(story.finish("b", 2)) == "D c"
    story.finish("a", 1)
    assert story.core.stats().over_cap_ranks == 0


# Sharing.


def test_a_shared_prefix_needs_no_room_twice():
    story = capped(6)
    story.run("a", 16, block_hashes=(1, 2, 3, 4))
    assert short(story.arrive("b", 12, block_hashes=(7, 8, 9))) == "P b"
    assert short(story.arrive("c", 24, block_hashes=(1, 2, 3, 4, 5, 6), strict_priority=1)) == "D c"
    assert held(story) == 6


def test_only_a_prefix_is_shared():
    story = capped(6)
    story.run("a", 16, block_hashes=(1, 2, 3, 4))
    assert short(story.arrive("b", 16, block_hashes=(9, 2, 3, 4))) == "P b"


def test_the_partial_last_block_is_never_shared():
    story = capped(6)
    story.run("a", 18, block_hashes=(1, 2, 3, 4, 5))
    assert held(story) == 5
    story.run("b", 18, block_hashes=(1, 2, 3, 4, 5))
    assert held(story) == 6
    assert short(story.arrive("c", 18, block_hashes=(1, 2, 3, 4, 5))) == "P c"


def test_blocks_without_names_are_never_shared():
    story = capped(6)
    story.run("a", 16, sequence_hashes=(1,))
    story.run("b", 12, sequence_hashes=(1,))
    assert held(story) == 6


def test_a_booking_that_closes_a_gap_lets_a_head_run_in_the_same_step():
    """Blocks 2 and 3 run without block 1 before them; once that runs, the head shares all three."""
    story = FleetStory(profile=strict(10, 10))
    story.upsert(1, total_kv_blocks=6)
    story.run("odd", 8, block_hashes=(2, 3))
    story.run("x", 8)
    assert short(story.arrive("long", 12, block_hashes=(1, 2, 3))) == "P long"
    assert short(story.arrive("gap", 4, block_hashes=(1,), policy_class="f1")) == "D gap, D long"
    assert held(story) == 5


def test_a_booking_of_a_prefix_makes_no_room():
    """What it shares with the head it holds itself: together they need what the head alone would."""
    for room, wanted in ((12, "P long"), (13, "D long")):
        story = FleetStory(profile=strict(10, 10))
        story.upsert(1, total_kv_blocks=room)
        story.run("x", 20)
        path = tuple(range(1, 9))
        story.run("prefix", 24, block_hashes=path[:6])
        assert short(story.arrive("long", 32, block_hashes=path)) == wanted


def test_sharing_ends_with_the_last_who_runs():
    story = capped(8)
    story.run("a", 16, block_hashes=(1, 2, 3, 4))
    story.run("b", 24, block_hashes=(1, 2, 3, 4, 5, 6))
    story.finish("a", 1)
    assert held(story) == 6
    assert short(story.arrive("c", 32, block_hashes=(1, 2, 3, 4, 7, 8))) == "P c"
    assert short(story.finish("b", 2)) == "D c"


def test_a_head_may_lose_what_it_would_have_shared():
    """It waits for the one room, and needs more of it once its sibling has ended."""
    story = capped(8)
    story.run("a", 16, block_hashes=(1, 2, 3, 4))
    story.run("x", 16)
    assert short(story.arrive("b", 20, block_hashes=(1, 2, 3, 4, 5))) == "P b"
    assert short(story.many(RequestFinished(1, "a", 1), PrefillCompleted(1, "x", 2))) == ""
    assert short(story.finish("x", 2)) == "D b"


# Lowered caps.


@pytest.mark.parametrize(("caps", "over"), [
    ({"total_kv_blocks": 8}, 0), ({"total_kv_blocks": 7}, 1), ({"max_requests": 2}, 0), ({"max_requests": 1}, 1),
    ({"total_kv_blocks": 7, "max_requests": 1}, 1), ({}, 0)])
def test_a_lowered_cap_evicts_nobody_and_is_counted(caps, over):
    story = capped(10)
    story.run("a", 16)
    story.run("b", 16)
    assert story.upsert(1, **caps) == ()
    stats = story.core.stats()
    assert (stats.over_cap_ranks, stats.running_requests) == (over, 2)


def test_nothing_is_dispatched_to_a_rank_above_its_cap_until_there_is_room():
    story = capped(10)
    for name in "abc":
        story.run(name, 12)
    story.upsert(1, total_kv_blocks=7)
    assert short(story.arrive("d", 4)) == "P d"
    assert short(story.finish("a", 1)) == "D d"      # six held, one needed
    assert (held(story), story.core.stats().over_cap_ranks) == (7, 0)
    assert short(story.arrive("e", 4)) == "P e"


def test_caps_show_under_advisory_capacity_and_bind_nobody():
    story = FleetStory()
    story.upsert(1, total_kv_blocks=2, max_requests=1)
    for name in "abc":
        story.run(name, 8)
    assert (held(story), story.core.stats().over_cap_ranks) == (6, 1)


# What is reported of others.


def test_reported_load_takes_room_for_its_time():
    story = capped(10, 5, reported_load_ttl_ns=100)
    story.report(1, 1, blocks=6)
    assert short(story.arrive("a", 20)) == "P a"
    assert story.core.next_deadline_ns == 100
    assert story.core.stats().over_cap_ranks == 0
    assert short(story.tick(100)) == "D a"
    story.report(1, 2, requests=5)
    assert short(story.arrive("b", 4)) == "P b"
    assert short(story.report(1, 3, requests=4)) == "D b"


def test_reported_load_makes_nothing_too_large():
    story = capped(10, reported_load_ttl_ns=100)
    story.report(1, 1, blocks=10**6)
    assert short(story.arrive("a", 40)) == "P a"
    assert short(story.tick(100)) == "D a"


def test_a_batch_fills_to_the_brim():
    story = capped(10, workers=3)
    actions = story.many(*[arrive(1, f"r{number}", 12) for number in range(20)])
    assert sum(isinstance(action, Dispatch) for action in actions) == 9
    assert story.column("held_blocks") == [9, 9, 9]


def test_names_that_repeat_make_nothing_fit_that_could_never_be_held():
    """One name three times in a row would share three blocks with a rank that holds one (found by the long run).

    A hash names everything before its block, so no true path repeats one; whatever the names, what no rank could ever
    hold is TOO_LARGE.
    """
    story = FleetStory(block_size=4, profile=strict())
    story.upsert(1, total_kv_blocks=2, max_requests=2)
    story.upsert(2, total_kv_blocks=10, max_requests=1)
    story.arrive("x", 4, pinned=Rank(1), sequence_hashes=(5,))
    story.arrive("y", 4, pinned=Rank(1))
    story.arrive("z", 4, pinned=Rank(2))
    assert short(story.arrive("a", 12, sequence_hashes=(5, 5, 5))) == "P a"
    actions = story.many(RequestFinished(story.now, "y", 2), WorkerRemoved(story.now, 2))
    assert short(actions) == "E z, TOO_LARGE a"
