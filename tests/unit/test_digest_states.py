"""The digest knows classes and ranks: of two schedulers that differ in one thing alone, each has its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from digests import Pairs
from stories import Story, profile

from kvcore.config import IndexMode, PrefillDecay
from kvcore.events import BlocksStored, LoadReported, Tier, WorkerStatusChanged
from kvcore.policy import QueuePolicy
from kvcore.request import Rank

WAITS = {"profile": profile(10, 10, prefill_busy_threshold=0)}
BOUND = {"profile": profile(2, prefill_busy_threshold=0, max_overtake_tokens=1_000, queue_policy=QueuePolicy.LCFS)}
state = Pairs()


# The scheduler and its classes.


@state
def next_seq(other):
    story = Story(1, profile=profile(2, prefill_busy_threshold=0, max_overtake_tokens=5))
    story.arrive("x")
    if other:
        story.arrive("a")
        story.cancel("a")
    return story


@state
def next_attempt(other):
    """The second dispatch is free of charge, so that the classes are the same."""
    story = Story(1)
    story.arrive("a")
    if other:
        story.fail("a", 1, retry=True)
    story.finish("a", 1 + other)
    return story


@state
def draining(other):
    story = Story(1)
    if other:
        story.drain(0)
    return story


@state
def drain_ns(other):
    story = Story(1)
    story.drain(10 + other)
    return story


@state
def class_name(other):
    classes = profile(2)
    return Story(profile=replace(classes, classes=(replace(classes.classes[0], name="other"),)) if other else classes)


@state
def cursor(other):
    """Both classes have run once."""
    story = Story(1, profile=profile(10, 10))
    for family in ("f1", "f0") if other else ("f0", "f1"):
        story.arrive("a" if family == "f0" else "b", policy_class=family)
    story.cancel("a")
    story.cancel("b")
    return story


@state
def deficit(other):
    """`big` is cancelled before it could earn anything, or after."""
    story = Story(1, **WAITS)
    story.arrive("x", policy_class="f0")
    story.arrive("big", 15, policy_class="f1")
    if other:
        story.cancel("big")
    story.arrive("y", 5, policy_class="f0")
    story.prefill("x", 1)
    story.arrive("small", 5, policy_class="f1")
    if not other:
        story.cancel("big")
    assert [row.deficit_tokens for row in story.core.stats().classes] == [0, 0 if other else 10]
    return story


@state
def order_of_becoming_ready(other):
    """`a` has come back before or after `b` arrived; `x` keeps both waiting."""
    story = Story(1, **BOUND)
    story.arrive("a")
    story.prefill("a", 1)
    story.arrive("x")
    if not other:
        story.arrive("b")
    story.fail("a", 1, retry=True)
    if other:
        story.arrive("b")
    return story


@state
def what_has_gone_past(other):
    """`z` and `w` go before `a`, who came before both of them or only before `w`; `-` takes a seq and goes."""
    story = Story(1, **BOUND)
    story.arrive("x")
    for name in "-az" if other else "za-":
        story.arrive(name, strict_priority=int(name == "z"))
    story.cancel("-")
    story.arrive("w", strict_priority=1)
    story.cancel("x")
    story.cancel("z")
    assert list(map(story.core.stats().__getattribute__, ("waiting_requests", "running_requests"))) == [1, 1]
    return story


# Workers and ranks.


@state
def worker_id(other):
    return Story(2 if other else 1)


def configured(**fields) -> Story:
    story = Story()
    story.upsert(1, **fields)
    return story


@state
def dp_rank(other):
    return configured(dp_start=int(other))


@state
def incarnation(other):
    return configured(incarnation=int(other))


@state
def max_batched_tokens(other):
    return configured(max_batched_tokens=5 + other)


@state
def total_kv_blocks(other):
    return configured(total_kv_blocks=5 + other)


@state
def max_requests(other):
    return configured(max_requests=5 + other)


@state
def prefill_tokens_per_s(other):
    return configured(prefill_tokens_per_s=5 + other)


@state
def taints(other):
    return configured(taints=frozenset({"a", "c"} if other else {"a", "b"}))


@state
def which_worker_has_which_taints(other):
    story = Story()
    for worker_id in (1, 2):
        story.upsert(worker_id, taints=frozenset({"a"}) if other == (worker_id == 2) else frozenset())
    return story


def marked(source="a", available=False, overloaded=True, lease_ns=None) -> Story:
    story = Story(1)
    story.many(WorkerStatusChanged(0, 1, 0, source, available, overloaded, lease_ns))
    return story


@state
def a_mark(other):
    return marked() if other else Story(1)


@state
def source_of_a_mark(other):
    return marked(source="b" if other else "a")


@state
def available(other):
    return marked(available=other)


@state
def overloaded(other):
    return marked(overloaded=other)


@state
def end_of_a_lease(other):
    return marked(lease_ns=5 + other)


@state
def lease_or_none(other):
    return marked(lease_ns=2**62 - 1 if other else None)


def reported(sequence=1, prefill=100, blocks=100, requests=100, at_ns=0, **config) -> Story:
    story = Story(1, **config).at(at_ns)
    story.many(LoadReported(at_ns, 1, 0, 0, sequence, prefill, blocks, requests))
    return story


@state
def sequence_of_a_report(other):
    return reported(sequence=1 + other)


@state
def reported_prefill(other):
    return reported(prefill=100 + other)


@state
def reported_blocks(other):
    return reported(blocks=100 + other)


@state
def reported_requests(other):
    return reported(requests=100 + other)


@state
def end_of_a_report(other):
    return reported(at_ns=int(other), reported_load_ttl_ns=9)


def beyond(other: bool, **amounts) -> Story:
    """The same report, of which a booking explains a part: made before or after it."""
    told = LoadReported(0, 1, 0, 0, 1, *[amounts.get(name, 0) for name in ("prefill", "blocks", "requests")])
    story = Story(1, reported_load_ttl_ns=9)
    if other:
        story.many(told)
    story.arrive("a", block_hashes=(1, 2))
    if not other:
        story.many(told)
    return story


@state
def foreign_prefill(other):
    return beyond(other, prefill=8)


@state
def foreign_blocks(other):
    return beyond(other, blocks=2)


@state
def foreign_requests(other):
    return beyond(other, requests=1)


@state
def anchor_ns(other):
    """`a` has been in front since its dispatch, or since `x` ended; `b` came in between."""
    story = Story(prefill_decay=PrefillDecay.LINEAR)
    story.upsert(1, prefill_tokens_per_s=1)
    story.arrive("x", pinned=Rank(1))
    story.arrive("a", pinned=Rank(1))
    story.at(5 + other).prefill("x", 1)
    story.at(9).finish("x", 1)
    return story


def stored(tier: Tier) -> Story:
    story = Story(1)
    story.many(BlocksStored(0, 1, 0, 0, (5,), tier))
    return story


@state
def device(other):
    return stored(Tier.DEVICE) if other else Story(1)


@state
def host(other):
    return stored(Tier.HOST) if other else Story(1)


@state
def disk(other):
    return stored(Tier.DISK) if other else Story(1)


@state
def device_or_host(other):
    return stored(Tier.HOST if other else Tier.DEVICE)


@state
def predictions(other):
    story = Story(1, index=IndexMode.APPROXIMATE)
    story.arrive("a", block_hashes=(1, 2))
    story.at(5 + other).finish("a", 1)
    return story


@pytest.mark.parametrize("name", state)
def test_it_is_in_the_digest(name):
    state.check(name)
