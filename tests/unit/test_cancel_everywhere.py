"""Cancel and failure at every point of a request's life: the ledger is, bit for bit, what it was before the dispatch.

A request a meets one of the ACTS at each of the POINTS, beside x, which shares blocks with it. What is compared is all
that loads say, what others would cost, the audit (Story.check), and the digest: a twin in which a has made no progress
and, where no cache remembers prompts, is a plain request of the same length, must end as the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from capacity_stories import FleetStory, status, strict
from stories import arrive, profile, short

from kvcore.actions import Dispatch, Ignored, Park
from kvcore.config import IndexMode, PrefillDecay
from kvcore.events import DispatchFailed, Outcome, OutputBlockAdded, PrefillCompleted, RequestCancelled, RequestFinished
from kvcore.request import Overlap, Rank, Request

CALM = {"profile": profile(prefill_busy_threshold=1000)}
CONFIGS = {
    "advisory": {}, "calm": CALM, "strict": {"profile": strict(prefill_busy_threshold=1000)},
    "fades": {**CALM, "prefill_decay": PrefillDecay.LINEAR},
    "predicted": {**CALM, "index": IndexMode.APPROXIMATE},
    "reported": {**CALM, "reported_load_ttl_ns": 10**6},
}
QUEUES = [name for name in CONFIGS if name != "advisory"]
RICH = {"block_hashes": (1, 2, 3, 4, 5), "expected_output_tokens": 9, "strict_priority": 2, "priority_jump": 3.0,
        "pinned": Rank(1), "deadline_ns": 900}


@dataclass
class Scene:
    """a under attempt 2 beside x under attempt 1, on a worker that is reached again when a lease ends.

    rich: a is what makes a difference to a ledger; else it is plain and makes no progress.
    """

    config: str
    rich: bool = True

    def __post_init__(self) -> None:
        self.story = FleetStory(block_size=4, booking_ttl_ns=500, **CONFIGS[self.config])
        self.story.upsert(1, total_kv_blocks=64, max_requests=8, prefill_tokens_per_s=10**9)
        self.story.report(1, 1, prefill_tokens=40, blocks=3, requests=2)
        self.story.run("x", 12, block_hashes=(1, 2, 9))
        self.story.output("x", 1, 0.25)
        self.before = self.seen()

    def seen(self) -> tuple:
        """What can be seen of loads: all columns, and what requests of several kinds would find."""
        core = self.story.core
        asked = [Request("q", 8), Request("q", 20, block_hashes=(1, 2, 3, 4, 5)),
                 Request("q", 16, overlap=Overlap(((Rank(1), 2),)), track_prefill=False)]
        return core.loads().tolist(), [str(core.potential_loads(request).tolist()) for request in asked]

    def is_undone(self) -> bool:
        """Nothing of a is left in the ledger. A prompt that was sent somewhere may still be predicted there."""
        return self.seen()[0] == self.before[0] and (self.config == "predicted" or self.seen() == self.before)

    def arrive(self):
        fields = RICH if self.rich or self.config == "predicted" else {}
        return self.story.arrive("a", 20, **fields)

    def leave(self):
        return status(self.story.now, 1, "router", available=False, lease_ns=10)

    def run(self, *progress: Callable[[FleetStory], object]) -> None:
        (action,) = self.arrive()
        assert (type(action), action.attempt) == (Dispatch, 2)
        for fact in progress if self.rich else ():
            assert fact(self.story) == ()

    def wait(self) -> None:
        self.story.many(self.leave())
        assert self.arrive() == (Park("a", 0),)

    def evict(self) -> None:
        """a has made no progress for too long, x has."""
        self.run(*DECODING)
        self.story.at(400).output("x", 1)
        assert short(self.story.tick(500)) == "E a"

    def put_back(self) -> None:
        self.run(*DECODING)
        assert short(self.story.many(self.leave(), DispatchFailed(self.story.now, "a", 2, True))) == "P a"


def accept(story: FleetStory):
    return story.accept("a", 2)


def prefill(story: FleetStory):
    return story.prefill("a", 2)


def output(story: FleetStory):
    return story.output("a", 2)


def fade(story: FleetStory):
    return story.output("a", 2, 0.5)


DECODING = (accept, prefill, output, fade, output)
POINTS = {
    "dispatched": lambda scene: scene.run(), "accepted": lambda scene: scene.run(accept),
    "prompt done": lambda scene: scene.run(prefill), "decoding": lambda scene: scene.run(*DECODING),
    "decoding, prompt not done": lambda scene: scene.run(output, fade, output), "evicted": Scene.evict,
}
ACTS = {
    "cancel": lambda now_ns: RequestCancelled(now_ns, "a"),
    "failed": lambda now_ns: DispatchFailed(now_ns, "a", 2),
    "completed": lambda now_ns: RequestFinished(now_ns, "a", 2),
    "aborted": lambda now_ns: RequestFinished(now_ns, "a", 2, Outcome.ABORTED),
}


def ends_empty(story: FleetStory) -> bool:
    """x ends as well; then nothing is left, now or in time."""
    assert story.finish("x", 1) == ()
    stats = story.core.stats()
    (row,) = stats.classes
    gauges = (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cached_tokens, row.waiting_cost_tokens)
    assert (stats.live_requests, stats.waiting_requests, stats.running_requests) == (0, 0, 0)
    assert (gauges, row.deficit_tokens) == ((0, 0, 0, 0), 0)
    assert {count for name in ("requests", "prefill_tokens", "active_blocks", "held_blocks")
            for count in story.column(name)} == {0}
    assert story.tick(2 * 10**6) == ()
    return story.core.next_deadline_ns is None


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("config", CONFIGS)
def test_an_end_undoes_the_booking_to_the_bit(config, point, act):
    scene, twin = Scene(config), Scene(config, rich=False)
    for one in (scene, twin):
        POINTS[point](one)
        assert one.story.many(ACTS[act](one.story.now)) == ()
    if point != "evicted":     # there x has moved on
        assert scene.is_undone()
    assert scene.seen() == twin.seen()
    assert scene.story.core.digest() == twin.story.core.digest()
    stats = scene.story.core.stats()
    assert (stats.completed, stats.aborted) == ((1, 0) if act == "completed" else (0, 1))
    for again in ACTS.values():
        (action,) = scene.story.many(again(scene.story.now))
        assert isinstance(action, Ignored)
    assert scene.story.core.digest() == twin.story.core.digest()
    assert ends_empty(scene.story)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("config", QUEUES)
def test_a_retry_undoes_the_booking_to_the_bit(config, point):
    """It waits until the lease ends, is booked as if for the first time, and then it can be cancelled like any."""
    scene, twin = Scene(config), Scene(config, rich=False)
    for one in (scene, twin):
        POINTS[point](one)
        now_ns = one.story.now
        assert short(one.story.many(one.leave(), DispatchFailed(now_ns, "a", 2, True))) == "P a"
        if point != "evicted":
            assert [row[2:6] for row in one.story.core.loads().tolist()] == [row[2:6] for row in one.before[0]]
    assert scene.seen() == twin.seen()
    for one in (scene, twin):
        (action,) = one.story.tick(one.story.now + 10)
        assert (type(action), action.attempt) == (Dispatch, 3)
        assert one.story.cancel("a") == ()
    assert scene.seen() == twin.seen()
    assert scene.story.core.digest() == twin.story.core.digest()
    assert ends_empty(scene.story)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("point", [Scene.wait, Scene.put_back], ids=["waiting", "put back"])
@pytest.mark.parametrize("config", QUEUES)
def test_who_waits_holds_nothing_and_can_only_be_cancelled(config, point, act):
    """Facts about a run find none, and it goes on waiting."""
    scene = Scene(config)
    point(scene)
    before = scene.story.core.digest()
    assert [row[2:6] for row in scene.story.core.loads().tolist()] == [row[2:6] for row in scene.before[0]]
    (*told,) = scene.story.many(ACTS[act](scene.story.now))
    if act == "cancel":
        assert (told, scene.story.core.stats().aborted) == ([], 1)
    else:
        assert told == [Ignored("a", 2)]
        assert scene.story.core.digest() == before
        assert scene.story.cancel("a") == ()
    assert scene.story.many(status(scene.story.now, 1, "router")) == ()
    assert scene.is_undone()
    assert ends_empty(scene.story)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_cancel_in_the_batch_of_its_arrival_books_nothing(config):
    """Neither an attempt nor a draw of the generator is used up."""
    scene, twin = Scene(config), Scene(config)
    asked = arrive(0, "a", 20, **RICH)
    assert scene.story.many(asked, RequestCancelled(0, "a")) == ()
    assert scene.seen() == scene.before        # not even a prediction
    assert scene.story.many(asked, RequestCancelled(0, "a"), asked) == twin.story.many(asked)
    assert scene.seen() == twin.seen()


@pytest.mark.parametrize("act", [name for name in ACTS if name != "cancel"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_fact_of_a_run_in_the_batch_of_the_arrival_is_too_early(config, act):
    """Even if it guesses the attempt: the decision comes after it."""
    scene = Scene(config)
    told = scene.story.many(arrive(0, "a", 20, **RICH), ACTS[act](0))
    assert short(told) == "I a, D a"
    assert scene.story.many(ACTS[act](0)) == ()
    assert scene.is_undone()


@pytest.mark.parametrize("act", ACTS)
def test_who_is_dispatched_in_the_middle_of_a_batch_can_end_in_it(act):
    """b meets the limit, so that a is decided before it; what comes behind it in the batch is about a run."""
    limited = profile(prefill_busy_threshold=1000, request_queue_limit_per_worker=1)
    story = FleetStory(1, profile=limited)
    story.run("x")
    before = story.loads()
    told = story.many(arrive(0, "a", 20), arrive(0, "b", 4), PrefillCompleted(0, "a", 2), OutputBlockAdded(0, "a", 2),
                      ACTS[act](0))
    assert short(told) == "D a, D b"
    assert story.cancel("b") == ()
    assert story.loads() == before
    assert ends_empty(story)
