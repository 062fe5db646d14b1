"""Field reports 2.6: cache events and prefix credit. Each test names the public report that it guards against.

Of the numbers of a cache hit, "achieved" is what a Dispatch says, "reachable" the best that `potential_loads` shows.
"""

from __future__ import annotations

import pytest
from capacity_stories import FleetStory
from stories import Story, arrive, profile, short

from kvcore.config import IndexMode
from kvcore.events import BlocksRemoved, BlocksStored, PrefillCompleted, Tier, WorkerRemoved, WorkerUpserted
from kvcore.request import Overlap, Rank, Request, SelectionWeights, WorkerConfig

WAITS = {"profile": profile(prefill_busy_threshold=0)}
PATH = (1, 2, 3, 4)


@pytest.mark.parametrize("index", list(IndexMode))
def test_E88_a_storm_of_workers_leaves_nothing_behind(index):
    """smg#2132, dynamo#11785, dynamo#8127: removed workers kept owning prefixes. State returns to what it was."""
    story = FleetStory(100, index=index, predict_ttl_ns=None if index is IndexMode.OFF else 10**9)
    story.store(100, 1, 2, 3)
    base, stats = story.core.digest(), story.core.stats()
    for storm in range(3):
        for worker_id in range(20):
            story.upsert(worker_id, dp_size=2)
            for tier in Tier:
                story.store_in(tier, worker_id, *range(storm, storm + 30))
        for worker_id in range(20):
            story.remove(worker_id)
            story.remove(worker_id)
    assert story.core.digest() == base
    after = story.core.stats()
    assert (after.index_blocks, after.workers, after.ranks) == (stats.index_blocks, stats.workers, stats.ranks)


def test_E88_a_removed_worker_owns_no_prefix():
    """smg#2132: neither while it is gone nor when its id comes back."""
    story = FleetStory(1, 2, index=IndexMode.APPROXIMATE)
    warm = story.run("a", 16, block_hashes=PATH).worker_id
    story.remove(warm)
    story.upsert(warm)
    assert [row["cached_tokens"] for row in story.core.potential_loads(Request("q", 16, block_hashes=PATH))] == [0, 0]


def test_E88_removal_is_idempotent_and_what_is_unknown_leaves_no_trace():
    """dynamo#11785: an unresolved removal left garbage, and a second one had to find it."""
    story = Story(1)
    before = story.core.digest()
    story.drop(1, 7, 8)
    story.store(1, *PATH)
    story.drop(1, *PATH)
    story.drop(1, *PATH)
    assert story.core.digest() == before
    assert story.core.stats().stale_events == 0


@pytest.mark.parametrize("batch", [(1, 99, 3), (99, 98, 1, 3), (3, 3, 1, 1, 99)])
def test_E89_an_absent_block_does_not_stop_the_rest_of_a_batch(batch):
    """dynamo#14652: the first unknown hash aborted a delete."""
    story = Story(1)
    story.store(1, 1, 2, 3, 4)
    story.drop(1, *batch)
    assert story.core.stats().index_blocks == 2
    assert story.arrive("a", 16, block_hashes=PATH)[0].overlap_blocks == 0
    story.store(1, 1)
    assert story.arrive("b", 16, block_hashes=PATH)[0].overlap_blocks == 2


def test_E89_facts_of_a_mixed_batch_stand_for_themselves():
    """dynamo#14652: stored, unknown, of another rank, of an unknown worker: each does what it can."""
    story = Story(1)
    story.many(BlocksStored(0, 1, 0, 0, (1, 2)), BlocksRemoved(0, 9, 0, 0, (1,)), BlocksRemoved(0, 1, 0, 0, (9, 2)),
               BlocksRemoved(0, 1, 5, 0, (1,)), BlocksStored(0, 1, 0, 0, (3,)))
    assert (story.core.stats().index_blocks, story.core.stats().stale_events) == (2, 2)


def dead(story: FleetStory, how: str) -> None:
    """Worker 1 is no more."""
    if how == "removed":
        story.remove(1)
    elif how == "restarted":
        story.upsert(1, 1)
    else:
        story.lose(1, "health")


@pytest.mark.parametrize("how", ["removed", "restarted", "unavailable"])
def test_E91_a_dead_holder_earns_nothing(how):
    """LMCache#4808, LMCache#4038, production-stack#1055: dead instances earned credit for the longest prefix."""
    story = FleetStory(1, 2, 3)
    story.store(1, *PATH)
    story.store(2, 1, 2)
    story.store(3, 1)
    dead(story, how)
    before = story.core.stats().classes[0].dispatched_cost_tokens
    action = story.run("a", 16, block_hashes=PATH)
    assert (action.worker_id, action.overlap_blocks, action.cached_tokens) == (2, 2, 8)
    # The charge counts on nobody who cannot serve: 16 - 8.
    assert story.core.stats().classes[0].dispatched_cost_tokens - before == 8


def test_E91_a_dead_holder_earns_nothing_from_a_callers_index_either():
    """LMCache#3448: an outside registry may name who is long gone."""
    story = FleetStory(1, 2)
    overlap = Overlap(((Rank(1), 4), (Rank(2), 1), (Rank(9), 4)))
    story.lose(1)
    action = story.run("a", 16, overlap=overlap)
    assert (action.worker_id, action.cached_tokens) == (2, 4)
    assert story.core.stats().classes[0].dispatched_cost_tokens == 12


def test_E91_silence_is_no_death():
    """LMCache#4808: a registry reaped workers that send no heartbeat. Only a fact or the end of a lease changes one."""
    story = FleetStory(1)
    story.store(1, *PATH)
    story.tick(10**18)
    assert story.run("a", 16, block_hashes=PATH).overlap_blocks == 4


@pytest.mark.parametrize("holders", [{1: 1, 2: 3}, {1: 3, 2: 1}, {1: 2, 2: 4}])
def test_E91_the_longest_match_wins_over_the_first(holders):
    """LMCache#3448: the first key that matched was taken."""
    story = FleetStory(1, 2)
    for worker_id, depth in holders.items():
        story.store(worker_id, *PATH[:depth])
    best = max(holders, key=holders.get)
    assert story.run("a", 16, block_hashes=PATH).worker_id == best


def test_E92_overlap_is_read_again_at_the_dispatch_and_the_charge_stays():
    """dynamo#9663: a request waited for minutes, and went where its prefix had been when it came."""
    story = FleetStory(1, 2, **WAITS)
    story.store(1, *PATH[:3])
    for worker_id in (1, 2):
        story.run(f"x{worker_id}", 8, pinned=Rank(worker_id))
    charged = story.core.stats().classes[0].dispatched_cost_tokens
    assert short(story.arrive("a", 16, block_hashes=PATH)) == "P a"
    assert story.core.stats().classes[0].waiting_cost_tokens == 4
    story.at(10**12)
    story.drop(1, *PATH)
    story.store(2, *PATH[:2])
    (action,) = story.many(*[PrefillCompleted(story.now, f"x{w}", w) for w in (1, 2)])
    assert (action.worker_id, action.cached_tokens, action.prefill_tokens) == (2, 8, 8)
    assert story.core.stats().classes[0].dispatched_cost_tokens - charged == 4


def test_E92_overlap_that_came_while_it_waited_counts_too():
    """dynamo#9663: the other way round; its class and its charge are those of its arrival."""
    story = FleetStory(1, 2, **WAITS)
    for worker_id in (1, 2):
        story.run(f"x{worker_id}", 8, pinned=Rank(worker_id))
    charged = story.core.stats().classes[0].dispatched_cost_tokens
    story.arrive("a", 16, block_hashes=PATH)
    story.store(2, *PATH)
    (action,) = story.many(*[PrefillCompleted(5, f"x{w}", w) for w in (1, 2)])
    assert (action.worker_id, action.overlap_blocks, action.prefill_tokens) == (2, 4, 0)
    assert story.core.stats().classes[0].dispatched_cost_tokens - charged == 16


#: Ways to a worker that do not go by its cache.
FIRST = {
    "free": {}, "pin": {"pinned": Rank(2)}, "list": {"allowed_workers": frozenset({2})},
    "taint": {"required_taints": frozenset({"x"})}, "told": {"overlap": Overlap(((Rank(2), 1),))},
    "no tracking": {"track_prefill": False}, "lot": {"weights": SelectionWeights(temperature=1.0)},
}


@pytest.mark.parametrize("crowd", [0, 80], ids=["few", "many"])
@pytest.mark.parametrize("index", [IndexMode.APPROXIMATE, IndexMode.EVENTS], ids=lambda mode: mode.value)
@pytest.mark.parametrize("way", FIRST)
def test_E94_every_dispatch_feeds_the_prediction(way, index, crowd):
    """production-stack#990: the fallback path did not seed the trie, so affinity never formed."""
    story = FleetStory(index=index, predict_ttl_ns=1000)
    story.many(*[WorkerUpserted(0, WorkerConfig(w, taints=frozenset({"x"} if w == 2 else ())))
                 for w in (1, 2, 3, *range(10, 10 + crowd))])
    first = story.run("a", 16, block_hashes=PATH, **FIRST[way])
    story.prefill("a", 1)
    second = story.run("b", 20, block_hashes=(*PATH, 5))
    assert (second.worker_id, second.overlap_blocks) == (first.worker_id, 4)


def test_E94_a_dispatch_that_had_to_wait_feeds_it_too():
    """production-stack#990: the path through the queue."""
    story = FleetStory(1, 2, index=IndexMode.APPROXIMATE, **WAITS)
    for worker_id in (1, 2):
        story.run(f"x{worker_id}", 8, pinned=Rank(worker_id))
    story.arrive("a", 16, block_hashes=PATH)
    assert short(story.prefill("x2", 2)) == "D a"
    story.prefill("x1", 1)
    story.prefill("a", 3)
    assert story.run("b", 16, block_hashes=PATH, pinned=Rank(1)).overlap_blocks == 0
    assert story.run("c", 16, block_hashes=PATH, pinned=Rank(2)).overlap_blocks == 4


def test_E95_achieved_reachable_and_lost_overlap():
    """dynamo#14776, dynamo#13987, llm-d-router#2400: a hit rate does not say what could have been hit.

    The numbers can be read before and at a dispatch; counters of them are not kept yet.
    """
    story = FleetStory(1, 2, 3, 4)
    for worker_id, depth in ((1, 4), (2, 1), (3, 3)):
        story.store(worker_id, *PATH[:depth])
    story.lose(1)
    story.run("load", 400, pinned=Rank(3))
    ask = Request("a", 16, block_hashes=PATH)
    rows = story.core.potential_loads(ask)
    assert rows["cached_tokens"].tolist() == [16, 4, 12, 0]
    reachable = max(row["cached_tokens"] for row in rows if row["eligible"])
    achieved = story.many(arrive(0, "a", 16, block_hashes=PATH))[0].cached_tokens
    assert (reachable, achieved, reachable - achieved) == (12, 4, 8)
    # What it is charged is what was reachable when it came.
    assert story.core.stats().classes[0].dispatched_cost_tokens == 400 + 4


def test_E88_E95_removal_in_the_same_batch_makes_it_unreachable():
    """smg#2132, dynamo#14776: each decision sees the facts before it."""
    story = FleetStory(1, 2)
    story.store(1, *PATH)
    (action,) = story.many(WorkerRemoved(1, 1), arrive(1, "a", 16, block_hashes=PATH))
    assert (action.worker_id, action.cached_tokens) == (2, 0)
    assert story.core.stats().classes[0].dispatched_cost_tokens == 16
