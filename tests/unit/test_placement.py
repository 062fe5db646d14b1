"""Where a request may run, whether it may run now, and what its Dispatch says: through the scheduler."""

from __future__ import annotations

import math

import pytest
from oracle_ledger import WyRand
from stories import Story, arrive, profile, short

from kvcore.actions import Dispatch, Park, Reject, RejectReason
from kvcore.config import IndexMode
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Overlap, Rank, Request

WAITS = {"profile": profile(prefill_busy_threshold=0)}


def overlap(*pairs) -> Overlap:
    """Pairs (worker_id, blocks)."""
    return Overlap(tuple((Rank(worker_id), blocks) for worker_id, blocks in pairs))


def worker_of(actions) -> int:
    (action,) = actions
    return action.worker_id


# Who may run anywhere at all.


def test_the_first_failing_check_is_the_reason():
    """Each request breaks its own rule and all that come after it."""
    story = Story(1).at(10)
    story.arrive("live")
    gone = {"pinned": Rank(7), "deadline_ns": 10, "allowed_workers": frozenset({8})}
    assert short(story.arrive("live", **gone)) == "DUPLICATE_ID live"
    assert short(story.arrive("a", **gone)) == "DEADLINE_EXPIRED a"
    del gone["deadline_ns"]
    assert short(story.arrive("a", **gone)) == "PINNED_WORKER_NOT_ALLOWED a"
    assert short(story.arrive("a", pinned=Rank(7), allowed_workers=frozenset())) == "PINNED_WORKER_NOT_ALLOWED a"
    story.remove(1)
    assert short(story.arrive("a", **gone)) == "PINNED_WORKER_NOT_ALLOWED a"
    gone["allowed_workers"] = frozenset({7, 8})
    assert short(story.arrive("a", **gone)) == "NO_WORKERS a"
    assert short(story.arrive("a", allowed_workers=frozenset())) == "NO_WORKERS a"
    assert short(story.arrive("a")) == "NO_WORKERS a"
    story.upsert(1, dp_start=2, dp_size=2)
    assert short(story.arrive("a", **gone)) == "PINNED_WORKER_UNAVAILABLE a"
    for dp_rank in (0, 1, 4, 2**32 - 1):
        assert short(story.arrive("a", pinned=Rank(1, dp_rank))) == "PINNED_WORKER_UNAVAILABLE a"
    assert short(story.arrive("a", allowed_workers=frozenset())) == "NO_ELIGIBLE_WORKER a"
    assert story.arrive("a", allowed_workers=frozenset({7, 8})) == (
        Reject("a", RejectReason.NO_ELIGIBLE_WORKER, -1, 0, 0, None),)
    assert short(story.arrive("a", pinned=Rank(1, 3), allowed_workers=frozenset({1, 7}))) == "D a"


def test_taints_strike_out_workers_that_lack_one():
    story = Story()
    story.upsert(1, taints=frozenset({"gpu"}))
    story.upsert(2, taints=frozenset({"gpu", "fast"}))
    story.upsert(3)
    fast, both, none = frozenset({"fast"}), frozenset({"gpu", "fast"}), frozenset({"slow"})
    assert worker_of(story.arrive("a", required_taints=fast)) == 2
    assert worker_of(story.arrive("b", required_taints=both)) == 2
    assert worker_of(story.arrive("c", required_taints=frozenset({"gpu"}))) == 1
    assert short(story.arrive("d", required_taints=none)) == "NO_ELIGIBLE_WORKER d"
    assert short(story.arrive("d", required_taints=fast, allowed_workers=frozenset({1, 3}))) == "NO_ELIGIBLE_WORKER d"
    assert short(story.arrive("d", required_taints=fast, pinned=Rank(1))) == "NO_ELIGIBLE_WORKER d"
    assert short(story.arrive("d", required_taints=fast, pinned=Rank(7))) == "PINNED_WORKER_UNAVAILABLE d"
    assert worker_of(story.arrive("d", required_taints=fast, pinned=Rank(2))) == 2


# What is cached.


def test_the_index_knows_leading_blocks():
    story = Story(1, 2, 3)
    story.store(2, 11, 12, 14)
    story.store(3, 12, 13)
    (action,) = story.arrive("a", 16, block_hashes=(11, 12, 13, 14))
    assert (action.worker_id, action.overlap_blocks, action.cached_tokens, action.prefill_tokens) == (2, 2, 8, 8)
    story.finish("a", 1)
    story.drop(2, 11)
    story.store(3, 11)
    (action,) = story.arrive("b", 16, block_hashes=(11, 12, 13, 14))
    assert (action.worker_id, action.overlap_blocks) == (3, 3)
    story.finish("b", 2)
    story.clear(3)
    (action,) = story.arrive("c", 16, block_hashes=(11, 12, 13, 14))
    assert action.overlap_blocks == 0


def test_what_the_caller_says_wins_over_the_index():
    story = Story(1, 2)
    story.store(1, 11, 12, 13)
    (action,) = story.arrive("a", 16, block_hashes=(11, 12, 13), overlap=overlap((2, 1)))
    assert (action.worker_id, action.overlap_blocks) == (2, 1)
    (action,) = story.arrive("b", 16, block_hashes=(11, 12, 13), overlap=Overlap(), pinned=Rank(1))
    assert action.overlap_blocks == 0
    (action,) = story.arrive("c", 16, block_hashes=(11, 12, 13), pinned=Rank(1))
    assert action.overlap_blocks == 3


def test_what_a_caller_says_is_forgotten_with_its_request():
    story = Story(1, 2, **WAITS)
    for name, worker_id in (("a", 1), ("b", 2)):
        story.arrive(name, 16, overlap=overlap((1, 2), (2, 2)), pinned=Rank(worker_id))
    assert story.core.peek(Request("c", 16, overlap=Overlap())) == Park("c", 0)
    story.arrive("c", 16, overlap=Overlap(), pinned=Rank(1))
    assert story.core.stats().classes[0].waiting_cached_tokens == 0
    assert story.prefill("a", 1)[0].overlap_blocks == 0
    assert story.arrive("d", 16, overlap=overlap((1, 1)), pinned=Rank(2)) == (Park("d", 0),)
    assert story.prefill("b", 2)[0].overlap_blocks == 0


def test_of_two_statements_about_a_rank_the_last_counts():
    story = Story(1, 2)
    (action,) = story.arrive("a", 16, overlap=overlap((1, 9), (9, 4), (2, 2), (1, 1)))
    assert (action.worker_id, action.overlap_blocks) == (2, 2)
    (action,) = story.arrive("b", 16, pinned=Rank(1))
    assert action.overlap_blocks == 0


def test_without_an_index_only_the_caller_knows():
    story = Story(1, index=IndexMode.OFF)
    story.store(1, 11)
    story.store(5, 11, incarnation=9)
    (action,) = story.arrive("a", 16, block_hashes=(11,))
    assert action.overlap_blocks == 0
    (action,) = story.arrive("b", 16, block_hashes=(11,), overlap=overlap((1, 1)))
    assert action.overlap_blocks == 1
    assert story.core.stats().stale_events == 0
    assert story.core.stats().index_blocks == 0


def test_cached_tokens_are_never_more_than_the_prompt():
    story = Story(1)
    (action,) = story.arrive("a", 6, overlap=overlap((1, 2)))
    assert (action.cached_tokens, action.overlap_blocks, action.prefill_tokens) == (6, 2, 0)
    (action,) = story.arrive("b", 6, overlap=overlap((1, 2**31 - 1)))
    assert (action.cached_tokens, action.overlap_blocks, action.prefill_tokens) == (6, 2**31 - 1, 0)
    (action,) = story.arrive("c", 6, overlap=overlap((1, 1)))
    assert (action.cached_tokens, action.prefill_tokens) == (4, 2)


BUCKETS = PolicyProfile(
    (PolicyClass("small", 1, policy_family="f", cache_bucket="near"),
     PolicyClass("large", 1, policy_family="f", cache_bucket="far")),
    (CacheBucket("near", 0), CacheBucket("far", 9)), "f")


@pytest.mark.parametrize(
    ("fields", "class_index"),
    [
        ({}, 1),
        ({"overlap": overlap((1, 1))}, 1),  # 12 tokens are left
        ({"overlap": overlap((1, 2))}, 0),  # 8 tokens
        ({"overlap": overlap((1, 1), (2, 2))}, 0),  # the best rank counts
        ({"overlap": overlap((2, 2)), "pinned": Rank(1)}, 1),  # a pin knows its own rank only
        ({"overlap": overlap((2, 2)), "pinned": Rank(2)}, 0),
        ({"overlap": overlap((2, 2)), "allowed_workers": frozenset({1})}, 1),
        ({"overlap": overlap((2, 2)), "allowed_workers": frozenset({2, 7})}, 0),
        ({"overlap": overlap((2, 2)), "required_taints": frozenset({"gpu"})}, 1),
        ({"overlap": overlap((1, 2)), "required_taints": frozenset({"gpu"})}, 0),
        ({"overlap": overlap((7, 4))}, 1),  # nobody knows worker 7
        ({"block_hashes": (11, 12)}, 0),
        ({"block_hashes": (11, 12), "pinned": Rank(2)}, 1),
        ({"block_hashes": (11, 12), "allowed_workers": frozenset({2})}, 1),
        ({"block_hashes": (10, 11, 12)}, 1),
    ],
)
def test_the_best_eligible_rank_chooses_the_bucket(fields, class_index):
    """DESIGN D1, D2: uncached tokens of a prompt of 16, buckets from 0 and 9."""
    story = Story(profile=BUCKETS)
    story.upsert(1, taints=frozenset({"gpu"}))
    story.upsert(2)
    story.store(1, 11, 12)
    (action,) = story.arrive("a", 16, **fields)
    assert action.class_index == class_index


def test_overlap_is_read_again_at_the_pop_and_the_charge_is_not():
    story = Story(1, 2, **WAITS)
    story.arrive("x", pinned=Rank(1))
    story.arrive("y", pinned=Rank(2))
    story.store(1, 11, 12)
    assert short(story.arrive("a", 16, block_hashes=(11, 12, 13))) == "P a"
    assert story.core.stats().classes[0].waiting_cost_tokens == 8
    story.clear(1)
    story.store(2, 11)
    (action,) = story.prefill("x", 1)
    assert (action.worker_id, action.overlap_blocks, action.cached_tokens, action.prefill_tokens) == (1, 0, 0, 16)
    assert story.core.stats().classes[0].dispatched_cost_tokens == 8 + 8 + 8


# Which rank.


def test_ties_are_drawn_from_the_seed():
    for seed in (0, 42, 2**64 - 1):
        generator = WyRand(seed)
        story = Story(5, 3, 9, seed=seed)
        for number in range(30):
            (action,) = story.arrive(str(number))
            assert action.worker_id == (3, 5, 9)[generator.draw(3)]
            story.finish(str(number), number + 1)


def test_without_a_tie_nothing_is_drawn():
    story, generator = Story(1, 2, seed=7), WyRand(7)
    for number in range(5):
        names = [f"{kind}{number}" for kind in ("pin", "cheap", "only", "none")]
        assert worker_of(story.arrive(names[0], pinned=Rank(1))) == 1
        assert worker_of(story.arrive(names[1])) == 2
        assert worker_of(story.arrive(names[2], allowed_workers=frozenset({2}))) == 2
        assert short(story.arrive(names[3], allowed_workers=frozenset({5}))) == f"NO_ELIGIBLE_WORKER {names[3]}"
        for name in names[:3]:
            story.cancel(name)
    assert worker_of(story.arrive("tie")) == (1, 2)[generator.draw(2)]


def test_candidates_of_an_allow_list_stand_in_canonical_order():
    story, generator = Story(*range(40), seed=3), WyRand(3)
    for number in range(20):
        allowed = frozenset({31, 4, 17, 99})
        assert worker_of(story.arrive(str(number), allowed_workers=allowed)) == (4, 17, 31)[generator.draw(3)]
        story.finish(str(number), number + 1)


def test_ranks_of_a_worker_are_told_apart():
    story = Story()
    story.upsert(1, dp_start=5, dp_size=3)
    taken = {story.arrive(str(number))[0].dp_rank for number in range(3)}
    assert taken == {5, 6, 7}
    assert [row[:4] for row in story.loads()] == [(1, dp_rank, 1, 8) for dp_rank in (5, 6, 7)]


# What the Dispatch says of blocks.


def test_potential_blocks_are_those_after_placement():
    story = Story(1)
    (action,) = story.arrive("a", 10, block_hashes=(11, 12, 13))
    assert action.potential_decode_blocks == 3  # two complete ones and a tail
    assert story.loads() == [(1, 0, 1, 10, 2)]
    (action,) = story.arrive("b", 10, block_hashes=(11, 15))
    assert action.potential_decode_blocks == 4  # one more complete block, and a tail
    assert story.loads() == [(1, 0, 2, 20, 3)]
    (action,) = story.arrive("c", 9)
    assert action.potential_decode_blocks == 6  # unnamed blocks count for now, not in the load
    assert story.loads() == [(1, 0, 3, 29, 3)]
    story.output("a", 1)
    (action,) = story.arrive("d", 4, sequence_hashes=(11,))
    assert action.potential_decode_blocks == 4
    assert story.loads() == [(1, 0, 4, 33, 4)]


def test_an_untracked_prompt_is_no_load():
    story = Story(1, profile=profile(prefill_busy_threshold=7))
    (action,) = story.arrive("a", 100, track_prefill=False, overlap=overlap((1, 3)))
    assert (action.cached_tokens, action.prefill_tokens) == (12, 0)
    assert short(story.arrive("b", 8)) == "D b"
    assert short(story.arrive("c", 1, track_prefill=False)) == "P c"
    assert short(story.prefill("a", 1)) == ""
    assert short(story.prefill("b", 2)) == "D c"


# Whether it may run now.


@pytest.mark.parametrize(
    ("keys", "cap", "load", "busy"),
    [
        ({"prefill_busy_threshold": 10}, None, 10, False),
        ({"prefill_busy_threshold": 10}, None, 11, True),
        ({"prefill_busy_threshold": 0}, None, 1, True),
        ({"prefill_busy_threshold_frac": 0.5}, 20, 10, False),
        ({"prefill_busy_threshold_frac": 0.5}, 20, 11, True),
        ({"prefill_busy_threshold_frac": 0.0}, 20, 1, True),
        ({"prefill_busy_threshold_frac": 0.5}, None, 5_000_000, False),  # ten million where no cap is known
        ({"prefill_busy_threshold_frac": 0.5}, None, 5_000_001, True),
        ({"prefill_busy_threshold": 10, "prefill_busy_threshold_frac": 0.5}, 10, 6, True),
        ({"prefill_busy_threshold": 10, "prefill_busy_threshold_frac": 0.5}, 10, 5, False),
        ({"prefill_busy_threshold": 10, "prefill_busy_threshold_frac": 0.5}, None, 11, True),
        ({}, 1, 2**53, False),
    ],
)
def test_a_rank_is_busy_above_its_bound(keys, cap, load, busy):
    story = Story(profile=profile(**keys))
    story.upsert(1, max_batched_tokens=cap)
    story.arrive("a", load)
    assert short(story.arrive("b")) == ("P b" if busy else "D b")
    story = Story(profile=profile(**keys))
    story.upsert(1, max_batched_tokens=cap)
    story.arrive("a", load)
    assert short(story.arrive("b", pinned=Rank(1))) == ("P b" if busy else "D b")


def test_an_infinite_threshold_is_never_passed():
    """Not even by a load of more than 64 bits; a finite one is."""
    for frac, waiting in ((math.inf, 0), (2.0**53, 99)):
        story = Story(profile=profile(prefill_busy_threshold_frac=frac))
        story.upsert(1, max_batched_tokens=1_000)
        story.many(*[arrive(0, str(number), 2**53) for number in range(1_100)])
        assert story.core.stats().waiting_requests == waiting


def test_a_rank_is_busy_for_one_class_and_free_for_another():
    classes = (PolicyClass("low", 1, policy_family="f", cache_bucket="all", prefill_busy_threshold=5),
               PolicyClass("high", 1, prefill_busy_threshold=50), PolicyClass("never", 1))
    story = Story(1, profile=PolicyProfile(classes, (CacheBucket("all", 0),), "f"))
    story.arrive("a", 20)
    assert short(story.arrive("b", policy_class="f")) == "P b"
    assert short(story.arrive("c", 40, policy_class="high")) == "D c"
    assert short(story.arrive("d", policy_class="high")) == "P d"
    assert short(story.arrive("e", policy_class="never")) == "D e"


def test_some_eligible_rank_that_is_not_busy_is_enough():
    story = Story(1, 2, 3, **WAITS)
    for worker_id in (1, 2):
        story.arrive(f"x{worker_id}", pinned=Rank(worker_id))
    assert short(story.arrive("a", allowed_workers=frozenset({1, 2}))) == "P a"
    assert short(story.arrive("b", allowed_workers=frozenset({2, 3}), priority_jump=1.0)) == "D b"
    assert short(story.prefill("b", 3)) == ""  # rank 3 is nothing to the head
    assert short(story.prefill("x2", 2)) == "D a"


def test_advisory_means_that_another_rank_may_win():
    """Rank 2 is free, rank 1 has the cache: busy is a matter of waiting, not of choice (DESIGN D8)."""
    story = Story(1, 2, **WAITS)
    story.arrive("x", 1, pinned=Rank(1))
    assert worker_of(story.arrive("a", 16, overlap=overlap((1, 4)))) == 1


def test_a_waiting_request_that_has_become_impossible_is_answered():
    story = Story(1, 2, **WAITS)
    for worker_id in (1, 2):
        story.arrive(f"x{worker_id}", pinned=Rank(worker_id))
    story.arrive("any")
    story.arrive("pin", pinned=Rank(1))
    story.arrive("list", allowed_workers=frozenset({1}), priority_jump=1.0)
    assert story.remove(1)[1:] == (
        Reject("list", RejectReason.NO_ELIGIBLE_WORKER, 0), Reject("pin", RejectReason.PINNED_WORKER_UNAVAILABLE, 0))
    assert short(story.remove(2)) == "E x2, NO_WORKERS any"


def test_taints_that_change_are_judged_anew():
    gpu = frozenset({"gpu"})
    story = Story(**WAITS)
    story.upsert(1, taints=gpu)
    story.upsert(2)
    story.arrive("x", pinned=Rank(1))
    story.arrive("a", required_taints=gpu)
    assert short(story.arrive("b", pinned=Rank(1), required_taints=gpu)) == "P b"
    (action,) = story.upsert(2, taints=gpu)
    assert (action.request_id, action.worker_id) == ("a", 2)
    assert story.upsert(1) == (Reject("b", RejectReason.NO_ELIGIBLE_WORKER, 0),)
    story.arrive("c", required_taints=gpu)
    assert story.upsert(2) == (Reject("c", RejectReason.NO_ELIGIBLE_WORKER, 0),)


def test_the_whole_of_a_dispatch():
    story = Story(7, **WAITS).at(5)
    story.arrive("x")
    story.arrive("a", 21, block_hashes=(1, 2), overlap=overlap((7, 2)))
    assert story.at(1_005).prefill("x", 1) == (
        Dispatch("a", 2, 7, 0, 0, cached_tokens=8, overlap_blocks=2, prefill_tokens=13, potential_decode_blocks=6,
                 wait_ns=1_000),)
