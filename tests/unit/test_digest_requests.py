"""The digest knows requests: what their senders say, and what has become of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from digests import Pairs
from stories import Story, arrive, profile

from kvcore.config import OnOverload
from kvcore.events import PolicyReplaced, RequestArrived
from kvcore.request import Overlap, Rank, Request, SelectionWeights

NAN = float("nan")
WAITS = {"profile": profile(10, 10, prefill_busy_threshold=0)}
state = Pairs()
PLAIN = Request("a", 40, "f0", block_hashes=(1, 2, 3))
WEIGHTS = SelectionWeights()
OVERLAP = Overlap()
#: A request with this field is not the plain one, wherever it is.
OTHER_REQUESTS = {
    "request_id": "b",
    "prompt_tokens": 41,
    "policy_class": "f9",
    "strict_priority": 1,
    "priority_jump": 0.5,
    "deadline_ns": 10**9,
    "do_not_queue": True,
    "pinned": Rank(1),
    "allowed_workers": frozenset({1}),
    "block_hashes": (1, 2, 4),
    "sequence_hashes": (1, 2, 5),
    "overlap": OVERLAP,
    "expected_output_tokens": 0,
    "track_prefill": False,
    "required_taints": frozenset({"t"}),
    "preferred_taints": (("t", 0.5),),
    "weights": WEIGHTS,
    "session_id": "",
    "lifecycle": False,
}
#: What a request may say: field, one value, another. Nobody runs on worker 8 or 9.
PAIRS = [
    ("policy_class", None, ""),
    ("session_id", "s", "t"),
    ("pinned", Rank(1), Rank(1, 1)),
    ("allowed_workers", frozenset({1}), frozenset({1, 9})),
    ("allowed_workers", frozenset({1, 7}), frozenset({1, 8})),
    ("expected_output_tokens", 1, 2),
    ("preferred_taints", (("t", 0.5),), (("t", 0.25),)),
    ("preferred_taints", (("t", 0.5),), (("u", 0.5),)),
    ("preferred_taints", (("t", 0.5), ("u", 0.5)), (("u", 0.5), ("t", 0.5))),
    ("required_taints", frozenset({"t"}), frozenset({"t", "u"})),
    ("overlap", Overlap(shared=((0, 1),)), Overlap(shared=((0, 2),))),
    ("overlap", Overlap(shared=((0, 2),)), Overlap(shared=((1, 2),))),
    ("sequence_hashes", (), (1,)),
    ("sequence_hashes", (9, 2), (1, 9)),
    *[("weights", WEIGHTS, replace(WEIGHTS, **{name: 0.125})) for name in WEIGHTS.__dataclass_fields__],
    *[("overlap", Overlap(**{name: ((Rank(8), 1),)}), Overlap(**{name: ((rank, blocks),)}))
      for name in ("device", "host", "disk", "effective", "cached_tokens")
      for rank, blocks in ((Rank(8), 2), (Rank(9), 1), (Rank(8, 1), 1))],
    *[("overlap", OVERLAP, Overlap(**{name: ((Rank(1), 1),)}))
      for name in ("device", "host", "disk", "effective", "cached_tokens")],
]
#: The same to the core.
SAME = [
    ("priority_jump", 0.0, NAN),
    ("priority_jump", -1.0, -0.0),
    ("sequence_hashes", None, (1, 2, 3)),
    ("preferred_taints", (("t", 1),), (("t", 1.0),)),
    ("allowed_workers", frozenset(range(100)), frozenset(reversed(range(100)))),
]


def fleet(**config) -> Story:
    """A worker of two ranks with every taint, and classes that wait."""
    story = Story(**{**WAITS, **config})
    story.upsert(1, dp_size=2, taints=frozenset({"t", "u"}))
    return story


def running(request: Request) -> str:
    story = fleet()
    story.many(RequestArrived(0, request))
    assert story.core.stats().running_requests == 1
    return story.core.digest()


def waiting(request: Request) -> str:
    story = fleet()
    story.arrive("x", pinned=Rank(1))
    story.arrive("y", pinned=Rank(1, 1))
    story.many(RequestArrived(0, request))
    assert story.core.stats().waiting_requests == 1
    return story.core.digest()


def test_no_field_is_forgotten():
    assert set(OTHER_REQUESTS) == set(Request.__dataclass_fields__)


@pytest.mark.parametrize(("place", "name"), [
    (place, name) for place in (running, waiting) for name in OTHER_REQUESTS
    if (place, name) != (waiting, "do_not_queue")])
def test_every_field_of_a_request(place, name):
    assert place(replace(PLAIN, **{name: OTHER_REQUESTS[name]})) != place(PLAIN) == place(PLAIN)


@pytest.mark.parametrize("place", [running, waiting])
@pytest.mark.parametrize(("name", "one", "other"), PAIRS)
def test_every_value_of_a_request(name, one, other, place):
    assert place(replace(PLAIN, **{name: one})) != place(replace(PLAIN, **{name: other}))


@pytest.mark.parametrize(("name", "one", "other"), SAME)
def test_what_is_the_same_to_the_core(name, one, other):
    assert running(replace(PLAIN, **{name: one})) == running(replace(PLAIN, **{name: other}))


@state
def arrival_ns(other):
    """Both make progress at the same time."""
    story = Story(1)
    story.at(int(other)).arrive("a")
    story.at(2).accept("a", 1)
    return story


@state
def class_index(other):
    """Two buckets of one family, which nothing else tells apart."""
    story = Story(1, profile=profile(10, 10))
    story.arrive("a", policy_class="c1" if other else "c0")
    return story


@state
def seq(other):
    story = Story(1, **WAITS)
    story.arrive("x")
    for name in "ba" if other else "ab":
        story.arrive(name)
    return story


@state
def attempt(other):
    """Which of two has which attempt; both were stored in the same order, by priority or not."""
    story = Story(1)
    story.many(*[arrive(0, name, pinned=Rank(1)) for name in "ab"])
    for name in "ba" if other else "ab":
        story.fail(name, 1 + (name == "b"), retry=True)
    return story


@state
def attempts(other):
    """`a` has attempt 5 and `b` attempt 4 in the end; it was their third and second, or the other way round."""
    story = Story(1)
    story.many(arrive(0, "a"), arrive(0, "b"))
    present = {"a": 1, "b": 2}
    for attempt, name in enumerate("bba" if other else "aba", 3):
        story.fail(name, present[name], retry=True)
        present[name] = attempt
    assert present == {"a": 5, "b": 4}
    return story


@state
def evicted(other):
    story = Story(1, 2)
    story.arrive("a", pinned=Rank(1))
    if other:
        story.remove(1)
        story.upsert(1)
    return story


@state
def evicted_at(other):
    story = Story(1)
    story.arrive("a", pinned=Rank(1))
    story.at(5 + other).remove(1)
    return story


@state
def progress_ns(other):
    story = Story(1)
    story.arrive("a", track_prefill=False)
    story.at(5).output("a", 1)
    story.at(5 + other).output("a", 1)
    return story


@state
def accepted(other):
    story = Story(1)
    story.arrive("a")
    if other:
        story.accept("a", 1)
    return story


@state
def cached_when_it_came(other):
    """Dispatched to a rank that had it all by then."""
    story = Story(1, profile=profile(10))
    story.arrive("a", 40, overlap=Overlap(cached_tokens=((Rank(1), 8 + other),)))
    story.prefill("a", 1)
    return story


@state
def cost(other):
    """It waits for the first time, or once more."""
    story = Story(1, **WAITS)
    if other:
        story.arrive("a")
        story.arrive("x")
        story.fail("a", 1, retry=True)
    else:
        story.arrive("x")
        story.arrive("a")
    return story


@state
def look_ns(other):
    """The next look, of every three, has been left out or not."""
    story = Story(1, **WAITS, on_overload=OnOverload.WAIT, overload_wait_ns=3)
    story.at(int(other)).arrive("x")
    story.arrive("a")
    return story


@state
def may_wait(other):
    """It came when its class took nobody in who would have had to wait, or when that was over."""
    story = Story(1, profile=profile(10, request_queue_limit_per_worker=0))
    now = PolicyReplaced(0, profile(10))
    story.many(*(arrive(0, "a"), now) if other else (now, arrive(0, "a")))
    return story


def placed(*ranks: Rank) -> Story:
    """`a` and `b` run, one on each of two ranks; `x` was on the first of these when `a` came."""
    story = Story()
    for worker_id in sorted({rank.worker_id for rank in ranks}):
        story.upsert(worker_id, dp_size=sum(rank.worker_id == worker_id for rank in ranks))
    story.arrive("x", pinned=ranks[0])
    for name in "ab":
        story.arrive(name, allowed_workers=frozenset(rank.worker_id for rank in ranks))
        story.cancel("x")
    assert story.core.loads()["requests"].tolist() == [1, 1]
    return story


@state
def rank_of_a_booking(other):
    return placed(Rank(1), Rank(2)) if other else placed(Rank(2), Rank(1))


@state
def dp_rank_of_a_booking(other):
    return placed(Rank(1, 0), Rank(1, 1)) if other else placed(Rank(1, 1), Rank(1, 0))


@state
def prefilling(other):
    story = Story(1)
    story.arrive("a", track_prefill=False)
    if other:
        story.prefill("a", 1)
    else:
        story.accept("a", 1)
    return story


@state
def prefill(other):
    """What it had cached when it came is the same, what it had when it was dispatched is not."""
    story = Story(1, 2, **WAITS)
    story.arrive("x", allowed_workers=frozenset({1}))
    story.arrive("y", allowed_workers=frozenset({2}))
    story.arrive("a", 8, block_hashes=(1, 2), allowed_workers=frozenset({1}))
    if other:
        story.store(1, 1)
    story.prefill("x", 1)
    story.drop(1, 1)
    story.prefill("a", 3)
    return story


def two_running() -> Story:
    """`a` and `b` run and have been taken."""
    story = Story(1)
    for attempt, name in enumerate("ab", 1):
        story.arrive(name)
        story.accept(name, attempt)
    return story


@state
def outputs(other):
    story = two_running()
    story.output(*(("b", 2) if other else ("a", 1)))
    return story


@state
def outputs_decayed(other):
    """Three blocks that weigh nothing: two of the one, and one of the other."""
    story = two_running()
    for name, attempt in (("a", 1), ("b", 2), ("b", 2) if other else ("a", 1)):
        story.output(name, attempt, 0.0)
    return story


@state
def decayed_weight(other):
    story = two_running()
    story.output("a", 1, 0.5 if other else 0.25)
    story.output("b", 2, 0.25 if other else 0.5)
    return story


@state
def weights_of_a_prompt(other):
    """Each block weighs what it weighed when it was shared, though whoever that was is gone."""
    story = Story(1)
    for number, fraction in enumerate((0.0, 0.5) if other else (0.5, 0.0), 1):
        story.arrive(f"gone{number}", 8, block_hashes=(number, 10 + number))
        story.output(f"gone{number}", 2 * number - 1, fraction)
        story.arrive(f"here{number}", 8, block_hashes=(number, 20 + number))
    story.cancel("gone1")
    story.cancel("gone2")
    return story


@pytest.mark.parametrize("name", state)
def test_what_has_become_of_it(name):
    state.check(name)
