"""The contract of `step`: batches, order of actions, one owner, failure, pure reads, equal histories."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import Story, arrive, profile, short, upsert

from kvcore.actions import Dispatch, Park, Reject, RejectReason
from kvcore.errors import InvalidEvent
from kvcore.events import (
    BlocksStored,
    OutputBlockAdded,
    PrefillCompleted,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
)
from kvcore.policy import QueuePolicy
from kvcore.request import Rank, Request
from kvcore.scheduler import Scheduler

WAITS = {"profile": profile(prefill_busy_threshold=0)}


def test_nothing_to_do_is_the_shared_empty_tuple():
    story = Story(1)
    nothing = ()
    assert story.core.step(TimerFired(0)) is nothing
    assert story.core.step_many(()) is nothing
    assert story.core.step_many([]) is nothing
    assert story.core.step_many(iter(())) is nothing
    assert story.core.step(WorkerRemoved(0, 9)) is nothing


def test_an_empty_batch_is_no_step():
    story = Story(1).at(5)
    story.arrive("a", deadline_ns=9)
    before = story.core.digest(), story.core.stats()
    assert story.core.step_many(()) == ()
    assert (story.core.digest(), story.core.stats()) == before


def test_a_step_is_a_batch_of_one():
    one, other = Story(1, 2, **WAITS), Story(1, 2, **WAITS)
    for number, event in enumerate((
            arrive(0, "a"), arrive(1, "b"), arrive(2, "c"), PrefillCompleted(3, "a", 1), RequestCancelled(4, "z"))):
        assert one.core.step(event) == other.core.step_many((event,)), number
    assert one.core.digest() == other.core.digest()


def test_actions_stand_in_the_order_in_which_things_happen():
    """Per event what was due, then its own; then decisions in pop order; then those that may not wait; then Parks."""
    story = Story(1, 2, profile=profile(prefill_busy_threshold=0), booking_ttl_ns=100).at(10)
    story.arrive("run1", pinned=Rank(1))
    story.arrive("run2", pinned=Rank(2))
    story.many(arrive(10, "late", deadline_ns=50), arrive(10, "later", deadline_ns=60), arrive(10, "old"))
    actions = story.many(
        RequestFinished(20, "nobody", 7),
        OutputBlockAdded(50, "run1", 1),
        arrive(70, "new", priority_jump=1.0),
        arrive(70, "now", do_not_queue=True),
        WorkerRemoved(70, 2),
        arrive(70, "old"),
        PrefillCompleted(70, "run1", 1),
        RequestCancelled(70, "nobody"),
        arrive(70, "newest"),
    )
    assert short(actions) == (
        "I nobody, DEADLINE_EXPIRED late, DEADLINE_EXPIRED later, E run2, DUPLICATE_ID old, I nobody, "
        "D new, WOULD_QUEUE now, P newest")


def test_time_moves_with_every_event_of_a_batch():
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("a", deadline_ns=5)
    assert short(story.many(TimerFired(4), PrefillCompleted(4, "x", 1), TimerFired(5))) == "DEADLINE_EXPIRED a"
    story.arrive("b", deadline_ns=7)
    assert story.at(6).core.stats().running_requests == 2


def test_a_batch_decides_once_at_its_last_time():
    """Room that comes and goes inside a batch is room; the best of all who wait at the end gets it."""
    story = Story(1, **WAITS)
    story.arrive("x")
    story.arrive("first")
    actions = story.many(PrefillCompleted(1, "x", 1), arrive(2, "second", strict_priority=1), TimerFired(9))
    assert actions == (Dispatch("second", 2, 1, 0, 0, 0, 0, 8, 2, 7),)
    assert short(story.prefill("second", 2)) == "D first"


def test_parks_by_seq_once_per_request():
    story = Story(1, profile=profile(5, 5, prefill_busy_threshold=0))
    story.arrive("x")
    actions = story.many(
        arrive(1, "d"), arrive(1, "a", strict_priority=3), arrive(1, "c", policy_class="f1"), arrive(2, "b"))
    assert actions == (Park("d", 0), Park("a", 0), Park("c", 1), Park("b", 0))
    assert story.tick() == ()


def test_many_parks_in_one_batch():
    story = Story(1, **WAITS)
    names = [f"r{number}" for number in range(100)]
    assert short(story.many(*[arrive(1, name) for name in names])) == ", ".join(
        ["D r0", *[f"P {name}" for name in names[1:]]])


def test_a_cancel_in_the_same_batch_never_books():
    story = Story(1)
    assert story.many(arrive(0, "a"), RequestCancelled(0, "a")) == ()
    assert short(story.many(arrive(0, "a"), arrive(0, "b"), RequestCancelled(0, "a"))) == "D b"
    (action,) = story.arrive("c")
    assert action.attempt == 2
    assert short(story.many(arrive(0, "d"), RequestCancelled(0, "d"), arrive(0, "d"))) == "D d"
    stats = story.core.stats()
    assert (stats.arrived, stats.dispatched, stats.aborted) == (6, 3, 3)


def test_a_slot_used_again_in_the_same_batch_parks_its_new_request():
    story = Story(1, **WAITS)
    story.arrive("x")
    actions = story.many(
        arrive(1, "a"), RequestCancelled(1, "a"), arrive(1, "b"), RequestCancelled(1, "b"), arrive(1, "a"))
    assert short(actions) == "P a"
    assert [row.waiting_requests for row in story.core.stats().classes] == [1]


def test_an_id_may_be_used_again_and_an_attempt_never():
    story = Story(1)
    attempts = []
    for _ in range(3):
        (action,) = story.arrive("a")
        attempts.append(action.attempt)
        assert short(story.finish("a", action.attempt)) == ""
    assert attempts == [1, 2, 3]
    assert short(story.finish("a", 3)) == "I a"


def test_facts_about_another_attempt_or_nobody_are_ignored():
    story = Story(1, **WAITS)
    story.arrive("a")
    story.arrive("w")
    before = story.core.digest()
    for actions in (
            story.prefill("a", 2), story.output("a", 2, 0.5), story.finish("a", 2), story.prefill("w", 1),
            story.output("w", 1), story.finish("w", 1), story.prefill("z", 1), story.output("z", 1),
            story.finish("z", 1)):
        assert short(actions)[0] == "I"
    assert short(story.cancel("z")) == "I z"
    assert story.cancel("z")[0].attempt == 0
    assert story.core.digest() == before
    assert story.core.stats().stale_events == 11
    story.prefill("a", 1)
    assert short(story.prefill("a", 1)) == "I a"


def test_what_a_request_holds_is_given_back_once():
    for end in ("finish", "cancel"):
        story = Story(1)
        story.arrive("a", 16, block_hashes=(1, 2, 3, 4))
        story.output("a", 1)
        story.output("a", 1, 0.5)
        assert story.loads() == [(1, 0, 1, 16, 3)]
        story.prefill("a", 1)
        assert story.loads() == [(1, 0, 1, 0, 3)]
        if end == "finish":
            story.finish("a", 1)
        else:
            story.cancel("a")
        assert story.loads() == [(1, 0, 0, 0, 0)]
        assert story.core.stats().live_requests == 0


# Limits inside a batch.


def test_a_batch_rejects_nothing_that_single_steps_would_run():
    """DESIGN 3, item 5: whoever a limit would refuse first has the others decided at its own time."""
    config = {"profile": profile(prefill_busy_threshold=10, request_queue_limit_per_worker=1)}
    single, batch = Story(1, **config), Story(1, **config)
    assert [short(single.arrive(name)) for name in "abcd"] == ["D a", "D b", "P c", "QUEUE_FULL_REQUESTS d"]
    assert short(batch.many(*[arrive(0, name) for name in "abcd"])) == "D a, D b, QUEUE_FULL_REQUESTS d, P c"
    assert single.core.digest() == batch.core.digest()


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=15), st.integers(0, 20),
       st.integers(1, 3), st.integers(1, 30))
def test_bursts_and_single_steps_end_alike(requests, threshold, requests_limit, raw_limit):
    """Equal keys but for arrival, all at one time: batching changes the order of actions only."""
    keys = {"prefill_busy_threshold": threshold, "request_queue_limit_per_worker": requests_limit,
            "raw_isl_token_queue_limit_per_worker": raw_limit}
    single, batch = Story(1, 2, profile=profile(**keys)), Story(1, 2, profile=profile(**keys))
    events = [arrive(5, str(number), prompt, pinned=Rank(1) if pinned else None)
              for number, (prompt, pinned) in enumerate(requests)]
    apart = [action for event in events for action in single.many(event)]
    together = batch.many(*events)
    assert {(type(a), a.request_id) for a in apart if isinstance(a, Reject)} == {
        (type(a), a.request_id) for a in together if isinstance(a, Reject)}
    assert single.core.stats().waiting_requests == batch.core.stats().waiting_requests


# One owner, and what a failure leaves behind.


def test_a_step_inside_a_step_is_refused_and_changes_nothing(monkeypatch):
    """Nothing in the core calls out; the hash of a reason stands in for it."""
    story, twin = Story(1), Story(1)
    told = []

    def hook(reason):
        for call in (lambda: story.core.step(TimerFired(0)), lambda: story.core.step_many([TimerFired(0)]),
                     lambda: story.core.peek(Request("x", 1))):
            with pytest.raises(RuntimeError):
                call()
        told.append(reason)
        return int(reason)

    with monkeypatch.context() as patch:
        patch.setattr(RejectReason, "__hash__", hook)
        assert short(story.core.step(arrive(0, "a", deadline_ns=0))) == "DEADLINE_EXPIRED a"
    assert RejectReason.DEADLINE_EXPIRED in told
    twin.arrive("a", deadline_ns=0)
    assert short(story.arrive("b")) == short(twin.arrive("b")) == "D b"
    assert story.core.digest() == twin.core.digest()


def test_a_step_inside_the_checks_of_a_step_is_refused():
    """Before anything is applied: the scheduler is as good as before."""
    story = Story(1)

    class Loud:
        def __repr__(self):
            return repr(story.core.step(TimerFired(0)))

    before = story.core.digest()
    with pytest.raises(RuntimeError, match="one owner"):
        story.core.step(BlocksStored(0, 1, 0, 0, (Loud(),)))
    assert story.core.digest() == before
    assert short(story.arrive("a")) == "D a"


def test_a_failure_inside_a_step_poisons_the_scheduler(monkeypatch):
    story = Story(1)
    story.arrive("a")

    def fail(reason):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(RejectReason, "__hash__", fail)
        with pytest.raises(ZeroDivisionError):
            story.core.step_many((arrive(1, "b"), arrive(1, "a"), arrive(1, "c")))
    for call in (lambda: story.core.step(TimerFired(5)), lambda: story.core.step_many([TimerFired(5)]),
                 lambda: story.core.step_many(()), lambda: story.core.step(None)):
        with pytest.raises(RuntimeError, match="cannot be trusted"):
            call()
    assert story.core.stats().live_requests >= 1  # it can still be looked at
    twin = Story(1)
    twin.arrive("a")
    assert story.core.digest() != twin.core.digest()


def test_a_refused_batch_does_not_poison():
    story = Story(1)
    for _ in range(3):
        with pytest.raises(InvalidEvent):
            story.core.step(arrive(0, ""))
    assert short(story.arrive("a")) == "D a"


# Reading.

PEEKS = [
    {}, {"pinned": Rank(1)}, {"pinned": Rank(2)}, {"pinned": Rank(9)}, {"strict_priority": 1},
    {"allowed_workers": frozenset({2})}, {"allowed_workers": frozenset({9})}, {"do_not_queue": True},
    {"do_not_queue": True, "strict_priority": 1}, {"deadline_ns": 0}, {"deadline_ns": 10**9}, {"policy_class": "f1"},
    {"policy_class": "f1", "strict_priority": 1}, {"policy_class": "nobody"}, {"required_taints": frozenset({"x"})},
]


@pytest.mark.parametrize("fields", PEEKS, ids=str)
@pytest.mark.parametrize("busy", ["free", "one", "both", "queue", "full", "nobody"])
@pytest.mark.parametrize("limit", [None, 0, 1])
def test_a_peek_tells_what_a_step_would_and_leaves_no_trace(fields, busy, limit):
    def build():
        keys = {"prefill_busy_threshold": 0, "request_queue_limit_per_worker": limit}
        story = Story(*(() if busy == "nobody" else (1, 2)), profile=profile(3, 3, **keys), seed=11).at(7)
        for worker_id in {"one": (1,), "both": (1, 2), "queue": (1, 2), "full": (1, 2)}.get(busy, ()):
            story.arrive(f"x{worker_id}", pinned=Rank(worker_id), do_not_queue=limit == 0)
        for number in range({"queue": 1, "full": 4}.get(busy, 0)):
            story.arrive(f"w{number}", policy_class="f1" if number % 2 else None)
        return story

    story, twin = build(), build()
    before = story.core.digest(), story.core.stats(), story.core.next_deadline_ns
    request = Request("new", 8, **fields)
    answers = [story.core.peek(request) for _ in range(3)]
    assert (story.core.digest(), story.core.stats(), story.core.next_deadline_ns) == before
    assert answers == [next(a for a in twin.arrive("new", **fields) if a.request_id == "new")] * 3
    assert story.arrive("new", **fields) == build().arrive("new", **fields)
    assert story.core.digest() == twin.core.digest()


def test_a_peek_at_a_live_id():
    story = Story(1)
    story.arrive("a")
    assert story.core.peek(Request("a", 8)) == Reject("a", RejectReason.DUPLICATE_ID)


def test_a_peek_knows_the_overtaking_bound():
    """The newcomer leads its lane and a worker is free, but an older one may not be overtaken (DESIGN D17)."""
    story = Story(1, 2, profile=profile(prefill_busy_threshold=0, max_overtake_tokens=0))
    story.arrive("x", pinned=Rank(1))
    story.arrive("old", allowed_workers=frozenset({1}))
    before = story.core.digest()
    assert story.core.peek(Request("new", 8, strict_priority=1)) == Park("new", 0)
    runs = story.core.peek(Request("new", 8, pinned=Rank(2)))
    assert story.core.digest() == before
    assert story.arrive("late", strict_priority=1) == (Park("late", 0),)
    assert story.arrive("new", pinned=Rank(2)) == (runs,)


def test_a_peek_draws_from_a_copy():
    story, twin = Story(*range(9), seed=5), Story(*range(9), seed=5)
    for number in range(30):
        story.core.peek(Request("x", 8))
        assert story.core.peek(Request(str(number), 8)) == story.arrive(str(number))[0]
        twin.arrive(str(number))
    assert story.core.digest() == twin.core.digest()


def test_reads_leave_no_trace():
    story = Story(1, 2, **WAITS)
    for name in "abcd":
        story.arrive(name, block_hashes=(1, 2))
    before = story.core.digest()
    for _ in range(2):
        story.core.loads()
        story.core.stats()
        story.core.audit()
        story.core.peek(Request("e", 8))
        assert story.core.next_deadline_ns is None
        assert story.core.digest() == before


# Equal histories.


def two_histories(first, second, **config):
    """Two stories whose first part differs in order only, then the same second part; digests along the way."""
    digests = []
    for events in (first, second):
        story = Story(**{**WAITS, **config})
        story.many(*[upsert(0, worker_id) for worker_id in events["workers"]])
        for event in events["churn"]:
            story.many(event)
        digests.append([story.core.digest()])
        for name in "pqrst":
            story.at(50).arrive(name, block_hashes=(ord(name), 1), deadline_ns=900)
            digests[-1].append(story.core.digest())
        story.prefill("p", 5)
        digests[-1].append(story.core.digest())
    return digests


def test_the_digest_knows_no_memory_layout():
    """Four requests ran; they ended in another order, so that later ones lie in other rows; workers came otherwise."""
    start = [arrive(10, name, pinned=Rank(number % 2 + 1), block_hashes=(number,)) for number, name in enumerate("ab")]
    start += [arrive(10, name, pinned=Rank(number % 2 + 1), block_hashes=(number,)) for number, name in enumerate("cd")]
    start += [PrefillCompleted(11, "a", 1), PrefillCompleted(11, "b", 2)]
    ends = [RequestFinished(20, name, attempt) for attempt, name in enumerate("abcd", 1)]
    one = {"workers": (1, 2, 3), "churn": [*start, *ends]}
    for order in ((3, 1, 2, 0), (1, 0, 3, 2)):
        other = {"workers": (3, 1, 2), "churn": [*start, *[ends[i] for i in order]]}
        digests = two_histories(one, other)
        assert digests[0] == digests[1]
        assert len(set(digests[0])) == len(digests[0])


def test_the_digest_knows_how_it_will_go_on():
    """Whatever decides about later steps shows, whatever does not does not."""
    def digest_after(*events, later=(), **config):
        story = Story(1, 2, **{**WAITS, **config})
        story.many(*events)
        for event in later:
            story.many(event)
        return story.core.digest()

    base = digest_after(arrive(5, "a"), arrive(5, "b"), arrive(5, "c"))
    unseen = (TimerFired(900), WorkerRemoved(901, 77), RequestCancelled(902, "z"), arrive(903, "late", deadline_ns=9))
    assert base == digest_after(arrive(5, "a"), arrive(5, "b"), arrive(5, "c"), later=unseen)
    assert base == digest_after(arrive(5, "a"), WorkerRemoved(5, 77), arrive(5, "b"), arrive(5, "c"))
    assert base == digest_after(arrive(5, "a"), arrive(5, "b"), arrive(5, "a"), arrive(5, "c"))
    different = [
        (arrive(5, "a"), arrive(5, "b"), arrive(6, "c")),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "d")),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", 9)),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", strict_priority=1)),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", deadline_ns=99)),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", pinned=Rank(1))),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", allowed_workers=frozenset({1, 2}))),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", block_hashes=(1,))),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c", track_prefill=False)),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c"), RequestCancelled(5, "c")),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c"), upsert(5, 1, max_batched_tokens=9)),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c"), upsert(5, 1, taints=frozenset({"x"}))),
        (arrive(5, "a"), arrive(5, "b"), arrive(5, "c"), BlocksStored(5, 1, 0, 0, (7,))),
    ]
    digests = [digest_after(*events) for events in different]
    assert len({base, *digests}) == len(digests) + 1
    assert base != digest_after(arrive(5, "a"), arrive(5, "b"), arrive(5, "c"), seed=1)
    assert len(base) == 32
    assert int(base, 16) >= 0


@pytest.mark.parametrize("order", list(QueuePolicy))
def test_each_order_serves_by_its_key(order):
    story = Story(1, profile=profile(queue_policy=order, prefill_busy_threshold=0))
    story.arrive("x")
    story.at(1).arrive("a", 8, deadline_ns=900)
    story.at(2).arrive("b", 4, deadline_ns=800)
    story.at(3).arrive("c", 6)
    served = []
    name, attempt = "x", 1
    for _ in range(3):
        (action,) = story.prefill(name, attempt)
        name, attempt = action.request_id, action.attempt
        served.append(name)
    assert "".join(served) == {"fcfs": "abc", "lcfs": "cba", "wspt": "bca", "edf": "bac"}[order.value]


def test_step_says_what_it_takes():
    assert str(inspect.signature(Scheduler.step)) == "(self, event, /)"
    assert Scheduler.step.__doc__.startswith("Apply one fact")
