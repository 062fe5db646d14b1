"""Field reports 2.2: double counting, underflow, wrong identity. Each test names the report that it guards against.

Events have this project's names: "first token" is PrefillCompleted, "free" and "abort" are RequestFinished, a "flow"
that is deleted is a worker or a waiting request that goes, "worker up" is WorkerUpserted.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace

import pytest
import xxhash
from capacity_stories import FleetStory, strict
from stories import Story, arrive, profile, short, upsert

from kvcore.actions import Dispatch, Ignored, RejectReason
from kvcore.config import IndexMode
from kvcore.events import Outcome, RequestCancelled, RequestFinished, TimerFired, WorkerRemoved
from kvcore.hashing import sequence_hashes
from kvcore.request import Overlap, Rank

WAITS = {"profile": profile(prefill_busy_threshold=0)}
LOAD_FIELDS = ("requests", "prefill_tokens", "active_blocks", "held_blocks")


def idle(story: FleetStory) -> bool:
    return all(story.column(field) == [0] * len(story.column(field)) for field in LOAD_FIELDS)


@pytest.mark.parametrize("ends", ["finish first", "remove first", "one batch"])
def test_E19_what_goes_while_it_drains_is_deducted_once(ends):
    """llm-d-router#2382: deleting a flow deducts twice and wraps around; here a worker goes while requests end."""
    story = FleetStory(1, 2)
    for number in range(6):
        story.run(f"r{number}", block_hashes=(1, 2 + number), pinned=Rank(1 + number % 2))
    finishes = [RequestFinished(0, f"r{number}", number + 1) for number in range(6)]
    gone = WorkerRemoved(0, 1)
    if ends == "one batch":
        story.many(*finishes[:2], gone, *finishes[2:], gone, *finishes)
    else:
        for event in ([*finishes, gone] if ends == "finish first" else [gone, *finishes]):
            story.many(event)
        story.many(gone)
    assert idle(story)
    stats = story.core.stats()
    assert (stats.completed, stats.live_requests, stats.workers) == (6, 0, 1)
    story.upsert(1)
    assert idle(story)


def test_E19_counters_of_a_class_are_sums_over_what_waits():
    """llm-d-router#2382: limits must not be corrupted by what is taken out twice: cancel, deadline, cancel again."""
    story = Story(1, profile=profile(prefill_busy_threshold=0, raw_isl_token_queue_limit_per_worker=30))
    story.arrive("x", 10)
    story.arrive("a", 10, deadline_ns=5)
    story.arrive("b", 10)
    story.many(RequestCancelled(3, "a"), TimerFired(5), RequestCancelled(5, "a"), RequestCancelled(6, "a"))
    row = story.core.stats().classes[0]
    assert (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cost_tokens) == (1, 10, 10)
    assert short(story.many(*[arrive(7, name, 10) for name in "cde"])) == "QUEUE_FULL_RAW_TOKENS e, P c, P d"


def test_E20_prefill_load_ends_with_the_first_token():
    """llm-d-router#2243: the prefill counter was held through the whole decode."""
    story = FleetStory(1)
    story.run("a", 12, block_hashes=(1, 2, 3))
    assert (story.row(1)["prefill_tokens"], story.row(1)["active_blocks"]) == (12, 3)
    story.prefill("a", 1)
    story.output("a", 1)
    row = story.row(1)
    assert (row["prefill_tokens"], row["active_blocks"], row["held_blocks"], row["requests"]) == (0, 4, 4, 1)
    assert short(story.prefill("a", 1)) == "I a"
    assert story.row(1) == row


def test_E22_a_late_end_of_an_earlier_attempt_frees_nothing():
    """dynamo#14123 review: cleanup of the failed attempt frees the booking of the next one."""
    story = FleetStory(1)
    story.run("a", 8, block_hashes=(1, 2))
    story.finish("a", 1, outcome=Outcome.ABORTED)
    assert story.run("a", 8, block_hashes=(1, 2)).attempt == 2
    before, row = story.core.digest(), story.row(1)
    for late in (lambda: story.finish("a", 1), lambda: story.finish("a", 1, outcome=Outcome.ABORTED),
                 lambda: story.prefill("a", 1), lambda: story.output("a", 1)):
        assert late() == (Ignored("a", 1),)
    assert (story.core.digest(), story.row(1)) == (before, row)
    assert short(story.finish("a", 2)) == ""
    assert idle(story)


def test_E23_a_prefix_counts_once_however_often_it_is_told():
    """smg#2126: token ownership was counted once per traversal. Engine caches count on the first store only."""
    story = Story(1)
    for _ in range(5):
        story.store(1, 1, 2, 3)
    story.store(1, 3, 3, 1)
    assert story.core.stats().index_blocks == 3
    story.drop(1, 3)
    assert story.core.stats().index_blocks == 2


def test_E23_running_prefixes_count_once_too():
    """smg#2126, for what runs: n requests with the same prompt hold its blocks once, until the last one ends."""
    story = FleetStory(1)
    for number in range(5):
        story.run(f"r{number}", 8, block_hashes=(1, 2))
        assert (story.row(1)["active_blocks"], story.row(1)["held_blocks"]) == (2, 2)
    for number in range(5):
        assert story.row(1)["held_blocks"] == 2
        story.finish(f"r{number}", number + 1)
    assert idle(story)


def test_E25_an_unset_rank_is_not_rank_0():
    """dynamo#7984, dynamo#7991: dp_rank defaulted to 0, and all load landed there."""
    story = Story()
    story.upsert(1, dp_size=4)
    free = [story.arrive(f"r{number}")[0].dp_rank for number in range(40)]
    assert Counter(free) == dict.fromkeys(range(4), 10)
    assert {story.arrive(f"p{number}", pinned=Rank(1, 0))[0].dp_rank for number in range(20)} == {0}
    assert {story.arrive(f"w{number}", allowed_workers=frozenset({1}))[0].dp_rank for number in range(9)} == {1, 2, 3}


#: Arrivals that are refused: the reason, and what they ask for.
REFUSED = [
    (RejectReason.DUPLICATE_ID, {"name": "running"}),
    (RejectReason.DUPLICATE_ID, {"name": "waiting"}),
    (RejectReason.DEADLINE_EXPIRED, {"deadline_ns": 10}),
    (RejectReason.PINNED_WORKER_NOT_ALLOWED, {"pinned": Rank(1), "allowed_workers": frozenset({2})}),
    (RejectReason.PINNED_WORKER_UNAVAILABLE, {"pinned": Rank(9)}),
    (RejectReason.NO_ELIGIBLE_WORKER, {"required_taints": frozenset({"x"})}),
    (RejectReason.TOO_LARGE, {"prompt": 400}),
    (RejectReason.QUEUE_FULL_REQUESTS, {"policy_class": "f1"}),
    (RejectReason.QUEUE_FULL_RAW_TOKENS, {"policy_class": "f2"}),
    (RejectReason.WOULD_QUEUE, {"do_not_queue": True}),
]


@pytest.mark.parametrize(("reason", "fields"), REFUSED, ids=[f"{r.name}-{next(iter(f))}" for r, f in REFUSED])
def test_E26_a_refused_request_changes_no_other_counter(reason, fields):
    """litellm#39309: what the gate of concurrency refused had already consumed quota of another kind."""
    made = strict(10, 10, 10, prefill_busy_threshold=0)
    limits = ({}, {"request_queue_limit_per_worker": 1}, {"raw_isl_token_queue_limit_per_worker": 8})
    classes = tuple(replace(item, **extra) for item, extra in zip(made.classes, limits, strict=True))
    story = FleetStory(profile=replace(made, classes=classes))
    story.upsert(1, total_kv_blocks=90)
    story.run("running")
    for family in ("f0", "f1", "f2"):
        story.arrive("waiting" if family == "f0" else family, policy_class=family)
    story.at(10).tick()
    before, rows, stats = story.core.digest(), story.core.loads().tolist(), story.core.stats()
    asked = {"name": "new", "prompt": 8, **fields}
    (action,) = story.arrive(**asked)
    assert (action.request_id, action.reason) == (asked["name"], reason)
    after = story.core.stats()
    assert story.core.loads().tolist() == rows
    if reason is not RejectReason.WOULD_QUEUE:  # that one has been let in, in its order, and was taken out again
        assert story.core.digest() == before
    for name in ("waiting_requests", "waiting_raw_tokens", "waiting_cached_tokens", "waiting_cost_tokens",
                 "deficit_tokens", "dispatched", "dispatched_cost_tokens"):
        assert [getattr(row, name) for row in after.classes] == [getattr(row, name) for row in stats.classes]
    assert (after.live_requests, after.running_requests) == (stats.live_requests, stats.running_requests)
    changed = {name: count - stats.rejected.get(name, 0) for name, count in after.rejected.items()}
    assert {name: count for name, count in changed.items() if count} == {reason.name: 1}


@pytest.mark.parametrize("fields", [
    {}, {"allowed_workers": frozenset({7})}, {"pinned": Rank(7)}, {"overlap": Overlap(((Rank(7), 2),))}])
def test_E28_an_unknown_worker_is_not_eligible(fields):
    """dynamo#7919: a worker that had not registered scored as the best target."""
    story = Story()
    (action,) = story.arrive("a", **fields)
    assert action.reason is RejectReason.NO_WORKERS
    story.upsert(1)
    answers = [*story.arrive("b", **fields), *story.arrive("c", **fields)]
    assert all(not isinstance(a, Dispatch) or a.worker_id == 1 for a in answers)
    story.upsert(7)
    assert story.arrive("d", **fields)[0].worker_id == 7
    story.remove(7)
    assert all(getattr(a, "worker_id", 1) == 1 for a in story.arrive("e", **fields))


def test_E28_facts_about_an_unknown_worker_make_none():
    """dynamo#7919: neither cached blocks nor a good word nor a report register a worker."""
    story = FleetStory()
    story.store(7, 1, 2)
    story.say(7)
    story.report(7, 1)
    assert story.core.stats().stale_events == 3
    assert len(story.core.loads()) == 0
    assert short(story.arrive("a", block_hashes=(1, 2))) == "NO_WORKERS a"


SALTS = {"plain": 1337, "adapter": 8842669519798868182, "tenant": 1948188790972764086}


def names_of(tokens, salt: int, images: dict[int, int] | None = None) -> tuple[int, ...]:
    """Names of blocks of four tokens, as a driver forms them: the salt seeds the local hashes, images go into them."""
    local = []
    for number in range(len(tokens) // 4):
        more = b"" if images is None or number not in images else struct.pack("<Q", images[number])
        local.append(xxhash.xxh3_64_intdigest(struct.pack("<4I", *tokens[4 * number:4 * number + 4]) + more, salt))
    return sequence_hashes(local)


@pytest.mark.parametrize("salt", ["adapter", "tenant"])
def test_E29_another_identity_finds_nothing_in_the_cache(salt):
    """dynamo#10500, llm-d-router#1494: cached blocks survived a change of adapter or salt."""
    story = Story(1)
    tokens = range(16)
    story.store(1, *names_of(tokens, SALTS["plain"]))
    same = story.arrive("a", 16, block_hashes=names_of(tokens, SALTS["plain"]))[0]
    other = story.arrive("b", 16, block_hashes=names_of(tokens, SALTS[salt]))[0]
    assert (same.overlap_blocks, same.cached_tokens) == (4, 16)
    assert (other.overlap_blocks, other.cached_tokens) == (0, 0)


def test_E29_an_image_changes_its_block_and_all_that_follow():
    """dynamo#10500: identity of images is part of a block's name, and through the chain of those behind it."""
    story = Story(1)
    tokens = range(16)
    story.store(1, *names_of(tokens, SALTS["plain"], {2: 42}))
    for name, images, overlap in (("a", {2: 42}, 4), ("b", {2: 43}, 2), ("c", None, 2), ("d", {0: 7, 2: 42}, 0)):
        found = story.arrive(name, 16, block_hashes=names_of(tokens, SALTS["plain"], images))[0]
        assert found.overlap_blocks == overlap


def test_E29_other_identities_share_no_running_blocks():
    """dynamo#10500: the same tokens under two adapters are two prompts in the ledger, too."""
    story = FleetStory(1, index=IndexMode.OFF)
    story.run("a", 16, block_hashes=names_of(range(16), SALTS["plain"]))
    story.run("b", 16, block_hashes=names_of(range(16), SALTS["adapter"]))
    assert story.row(1)["held_blocks"] == 8
    story.run("c", 16, block_hashes=names_of(range(16), SALTS["plain"]))
    assert story.row(1)["held_blocks"] == 8


def test_E29_a_worker_that_restarts_with_other_weights_has_an_empty_cache():
    """dynamo#10500: what an earlier incarnation cached is worth nothing to the next."""
    story = Story(1)
    story.store(1, 1, 2)
    story.many(upsert(0, 1, 1))
    assert story.arrive("a", 8, block_hashes=(1, 2))[0].overlap_blocks == 0
    story.store(1, 1, 2)  # a fact of the earlier incarnation
    assert story.core.stats().index_blocks == 0
