"""What keeps a request from ranks that it may use: views and sentences, and that they are so (DESIGN D7, D8, D14)."""

from __future__ import annotations

from explain_checks import explained, status, view
from stories import Story, arrive, profile, short

from kvcore.config import OnOverload
from kvcore.policy import Capacity
from kvcore.request import Rank

NEVER = 2**62 - 1


def test_a_room_that_is_too_small_is_told_in_blocks():
    story = Story(capacity=Capacity.STRICT)
    story.upsert(1, total_kv_blocks=10)
    story.upsert(2, total_kv_blocks=6)
    story.many(arrive(0, "x", 28, pinned=Rank(1)), arrive(0, "y", 16, pinned=Rank(2)))
    story.arrive("a", 16)
    told = explained(story, "a")
    assert told.reasons == (
        "2 of 2 ranks are without room for it: on worker 1 rank 0 3 of 10 KV blocks are free, it needs 4",)
    assert told.ranks == (
        view(1, prefill_tokens=28, requests=1, held_blocks=7, total_kv_blocks=10, needs_blocks=4),
        view(2, prefill_tokens=16, requests=1, held_blocks=4, total_kv_blocks=6, needs_blocks=4))
    assert story.prefill("x", 1) == ()
    assert short(story.finish("x", 1)) == "D a"


def test_what_runs_there_already_is_not_needed_twice():
    story = Story(capacity=Capacity.STRICT)
    story.upsert(1, total_kv_blocks=5)
    story.upsert(2, total_kv_blocks=4)
    story.arrive("x", 16, pinned=Rank(1), block_hashes=(1, 2, 3, 4))
    story.arrive("y", 16, pinned=Rank(2))
    story.arrive("a", 16, block_hashes=(1, 2, 9, 8))
    told = explained(story, "a")
    assert [row.needs_blocks for row in told.ranks] == [2, 4]
    assert told.reasons == (
        "2 of 2 ranks are without room for it: on worker 1 rank 0 1 of 5 KV blocks are free, it needs 2",)


def test_a_rank_that_runs_as_many_as_it_may():
    story = Story(capacity=Capacity.STRICT)
    story.upsert(1, max_requests=1)
    story.arrive("x")
    story.arrive("a")
    assert explained(story, "a").reasons == (
        "1 of 1 ranks is full: worker 1 rank 0 runs 1 requests and may run 1",)
    assert short(story.finish("x", 1)) == "D a"


def test_obstacles_add_up_and_the_one_that_stands_alone_is_named():
    """Worker 1 lacks room too, so it is worker 2 whose load matters, although it is further away."""
    story = Story(profile=profile(prefill_busy_threshold=10), capacity=Capacity.STRICT)
    story.upsert(1, total_kv_blocks=4)
    story.upsert(2)
    story.many(arrive(0, "x", 12, pinned=Rank(1)), arrive(0, "y", 40, pinned=Rank(2)))
    story.arrive("a", 8)
    assert explained(story, "a").reasons == (
        "2 of 2 ranks are busy for class 'c0': the prefill load of worker 2 rank 0 must fall from 40 to 10 tokens",
        "1 of 2 ranks is without room for it: on worker 1 rank 0 1 of 4 KV blocks are free, it needs 2",
    )
    assert story.prefill("x", 1) == ()
    assert short(story.prefill("y", 2)) == "D a"


def test_leases_and_overload_are_told():
    story = Story(1, 2, profile=profile(prefill_busy_threshold=0), on_overload=OnOverload.WAIT, overload_wait_ns=500)
    story.many(status(0, 1, available=False, lease_ns=3_000_000_000), status(0, 2, overloaded=True))
    story.arrive("a")
    told = explained(story, "a")
    assert told.reasons == (
        "1 of 2 ranks is overloaded, worker 2 rank 0 for one",
        "1 of 2 ranks is unavailable for a while, worker 1 rank 0 for another 3.000 s",
    )
    assert told.next_look_ns == 500
    assert [row.state for row in told.ranks] == ["leased", "overloaded"]
    assert short(story.tick(3_000_000_000)) == "D a"


def test_a_lease_without_end():
    story = Story(1, profile=profile(prefill_busy_threshold=0))
    story.many(status(1, 1, available=False, lease_ns=NEVER))
    story.arrive("a")
    assert explained(story, "a").reasons == (
        "1 of 1 ranks is unavailable for a while, worker 1 rank 0 for ever",)


def test_graces():
    story = Story(1, pin_grace_ns=5_000, empty_fleet_wait_ns=2_000_000)
    story.at(10).arrive("a", pinned=Rank(7))
    told = explained(story, "a")
    assert told.reasons == (
        "worker 7 rank 0, to which it is pinned, is lost; it waits another 5.000 us for that to change",)
    assert (told.grace_end_ns, told.ranks, told.ranks_count) == (5_010, (view(7, state="gone"),), 0)
    story.at(20).remove(1)
    story.arrive("b")
    told = explained(story, "b")
    assert told.reasons == ("the fleet has no workers; it waits another 2.000 ms for that to change",)
    assert told.ranks == ()
    assert short(story.upsert(1)) == "D b"
    assert short(story.tick(5_010)) == "PINNED_WORKER_UNAVAILABLE a"


def test_a_grace_for_ever():
    story = Story(1, pin_grace_ns=NEVER)
    story.at(1).arrive("a", pinned=Rank(7))
    told = explained(story, "a")
    assert told.grace_end_ns == 2**62
    assert told.reasons[0].endswith("is lost; it waits without end for that to change")


def test_at_most_64_ranks_are_told_of_but_all_are_counted():
    story = Story(profile=profile(prefill_busy_threshold=0))
    story.upsert(1, dp_size=100)
    story.many(*[arrive(0, f"x{i}", 10 + (i != 80), pinned=Rank(1, i)) for i in range(100)])
    story.arrive("a")
    told = explained(story, "a")
    assert [row.dp_rank for row in told.ranks] == list(range(64))
    assert told.ranks_count == 100
    assert told.reasons == (
        "100 of 100 ranks are busy for class 'c0': the prefill load of worker 1 rank 80 must fall from 10 to 0 "
        "tokens",)


def test_ranks_are_those_that_it_may_use():
    story = Story(1, 2, 3, 4, profile=profile(prefill_busy_threshold=0))
    story.upsert(3, taints=frozenset({"big"}))
    story.many(*[arrive(0, f"x{w}", pinned=Rank(w)) for w in (1, 2, 3, 4)])
    story.arrive("a", allowed_workers=frozenset({1, 3, 9}))
    story.arrive("b", required_taints=frozenset({"big"}))
    story.many(status(0, 1, available=False))
    assert [row.worker_id for row in explained(story, "a").ranks] == [3]
    assert [row.worker_id for row in explained(story, "b").ranks] == [3]


def test_a_present_pin_that_lacks_a_taint_is_not_lost():
    """Behind a head that waits it waits too; when its turn comes it is answered NO_ELIGIBLE_WORKER."""
    story = Story(profile=profile(prefill_busy_threshold=0))
    story.upsert(1, taints=frozenset({"big"}))
    story.many(arrive(0, "x"), arrive(0, "a", pinned=Rank(1)),
               arrive(0, "b", pinned=Rank(1), required_taints=frozenset({"big"})))
    story.upsert(1)
    told = explained(story, "b")
    assert (told.position, told.ranks, told.ranks_count) == (2, (), 0)
    assert short(story.prefill("x", 1)) == "D a, NO_ELIGIBLE_WORKER b"
