"""Stories of requests whose caches an outside index is asked about when their turn comes (DESIGN D13).

Worked out by hand. A rank is busy while the prompt of one request is computed; blocks have four tokens.
"""

from __future__ import annotations

import pytest
from scripted import MAKERS, Play, classes, script
from stories import arrive, short

from kvcore.actions import Dispatch, Ignored, Park, RefreshOverlap, Reject, RejectReason
from kvcore.config import IndexMode, OnOverload
from kvcore.events import Drained, OverlapRefreshed, RequestCancelled, RequestFinished, WorkerStatusChanged
from kvcore.policy import Capacity
from kvcore.request import Overlap, Rank

R = RejectReason
S = 10**9
HASHES = (11, 12)
STRICT = {"capacity": Capacity.STRICT}
pytestmark = pytest.mark.parametrize("make", MAKERS)


def asking(make, *workers: int, keys: dict | None = None, **config) -> Play:
    """Who has waited for 10 ns is asked about; an answer is waited for 100 ns."""
    config = {"index": IndexMode.OFF, "refresh_after_ns": 10, "refresh_timeout_ns": 100, **config}
    return Play(make, *(workers or (1,)), profile=classes(**(keys or {})), **config)


def asked(make, *workers: int, **config) -> Play:
    """`a`, of two blocks, is asked about at 20: ticket 1. Worker 1 has run `run`, which is done with its prompt."""
    story = asking(make, *workers, **config)
    story.arrive("run", pinned=Rank(1))
    for worker_id in workers[1:]:
        story.arrive(f"run{worker_id}", pinned=Rank(worker_id))
    story.arrive("a", block_hashes=HASHES)
    assert story.at(20).prefill("run", 1) == (RefreshOverlap("a", 1, HASHES),)
    return story


def known(blocks: int, worker_id: int = 1) -> Overlap:
    return Overlap(((Rank(worker_id), blocks),))


# Who is asked about.


def test_who_has_waited_long_enough_and_can_be_asked_about(make):
    for waited, hashes, keys, wanted in (
            (9, HASHES, {}, "D a"), (10, HASHES, {}, "R a"), (10, (), {}, "D a"),
            (10, HASHES, {"index": IndexMode.EVENTS}, "D a"), (10, HASHES, {"index": IndexMode.APPROXIMATE}, "D a"),
            (10, HASHES, {"refresh_after_ns": None}, "D a"), (2, HASHES, {"refresh_after_ns": 0}, "R a")):
        story = asking(make, **keys)
        story.arrive("run")
        assert short(story.arrive("a", block_hashes=hashes)) == "P a"
        assert short(story.at(waited).prefill("run", 1)) == wanted


def test_always(make):
    """refresh_after_ns 0: everybody, in the step of the arrival; tickets count."""
    story = asking(make, refresh_after_ns=0)
    assert story.arrive("a", block_hashes=HASHES) == (RefreshOverlap("a", 1, HASHES),)
    assert story.arrive("b", do_not_queue=True, block_hashes=(13,)) == (RefreshOverlap("b", 2, (13,)),)
    assert story.core.peek(arrive(0, "c", block_hashes=HASHES).request) == RefreshOverlap("c", 3, HASHES)
    assert short(story.arrive("c")) == "D c"


def test_it_has_left_its_class_and_others_go_on(make):
    """Its charge is that of a pop; it holds no load."""
    story = asked(make)
    stats = story.core.stats()
    assert (stats.refreshing_requests, stats.waiting_requests, stats.running_requests) == (1, 0, 1)
    assert story.core.loads()[0]["requests"] == 1
    assert stats.classes[0].dispatched_cost_tokens == 8         # of the other one
    assert short(story.arrive("b")) == "D b"


# Answers.


def test_the_answer_places_it(make):
    """Class and charge are those of its arrival, what it finds is what has been said."""
    story = asked(make)
    assert story.at(30).refreshed("a", 1, known(1)) == (Dispatch("a", 2, 1, 0, 0, 4, 1, 4, 2, 30),)
    row = story.core.stats().classes[0]
    assert (row.dispatched, row.dispatched_cost_tokens) == (2, 16)
    assert story.core.next_deadline_ns is None


def test_an_answer_that_knows_nothing_leaves_what_was_known(make):
    story = asking(make)
    story.arrive("run")
    story.arrive("a", block_hashes=HASHES, overlap=known(1))
    story.at(10).prefill("run", 1)
    assert story.refreshed("a", 1) == (Dispatch("a", 2, 1, 0, 0, 4, 1, 4, 2, 10),)


def test_no_answer_in_time_is_one_that_knows_nothing(make):
    story = asked(make)
    assert story.core.next_deadline_ns == 120
    assert story.tick(119) == ()
    assert short(story.tick(120)) == "D a"
    assert story.refreshed("a", 1, known(1)) == (Ignored("a", 0),)
    never = asked(make, refresh_timeout_ns=2**62 - 20)
    assert never.core.next_deadline_ns is None


def test_other_answers_are_stale(make):
    story = asked(make)
    for name, ticket in (("a", 2), ("run", 1), ("nobody", 1)):
        assert story.refreshed(name, ticket, known(2)) == (Ignored(name, 0),)
    assert story.core.stats().stale_events == 3
    assert short(story.refreshed("a", 1)) == "D a"


def test_advisory_has_no_second_look_at_busy_ranks(make):
    """Nor at room; b has taken the only rank meanwhile."""
    story = asked(make)
    assert short(story.arrive("b")) == "D b"
    assert short(story.refreshed("a", 1)) == "D a"


def test_the_answer_is_placed_before_the_drain(make):
    """And so before the best of those that wait for the same rank."""
    for keys in ({}, STRICT):
        story = asked(make, keys=keys)
        assert [short(story.arrive(name)) for name in "bc"] == ["D b", "P c"]
        assert short(story.many(RequestFinished(21, "b", 2), OverlapRefreshed(21, "a", 1))) == "D a"


def test_an_overloaded_or_leased_fleet_is_an_answer(make):
    """advisory: it does not wait again, whatever on_overload says."""
    marks = {"overloaded": True}, {"available": False, "lease_ns": 500}
    for mark, wanted in zip(marks, ("ALL_ELIGIBLE_OVERLOADED a", "NO_ELIGIBLE_WORKER a"), strict=True):
        story = asked(make, on_overload=OnOverload.WAIT)
        story.many(WorkerStatusChanged(20, 1, 0, **mark))
        assert short(story.refreshed("a", 1)) == wanted


def test_workers_may_have_gone(make):
    """The loss does not touch it; the answer finds nobody."""
    story = asked(make)
    assert short(story.remove(1)) == "E run"
    assert story.at(30).refreshed("a", 1, known(2)) == (Reject("a", R.NO_WORKERS, 0),)
    assert story.core.stats().classes[0].rejected == 1


# Strict capacity.


def test_strict_places_it_where_there_is_room(make):
    story = asked(make, 1, 2, keys=STRICT)
    story.at(21).arrive("b")                                # takes worker 1
    assert short(story.many(RequestFinished(21, "run2", 2))) == ""
    assert story.refreshed("a", 1, known(2, 1))[0].worker_id == 2


def test_strict_puts_it_back_where_there_is_none(make):
    """With its place of old and free of charge; that is no retry."""
    story = asked(make, keys=STRICT)
    assert [short(story.at(21).arrive(name)) for name in "bc"] == ["D b", "P c"]
    assert story.at(25).refreshed("a", 1, known(1)) == (Park("a", 0),)
    stats = story.core.stats()
    assert (stats.refreshing_requests, stats.waiting_requests, stats.retried) == (0, 2, 0)
    assert (stats.classes[0].waiting_cost_tokens, stats.classes[0].waiting_cached_tokens) == (8, 0)
    assert story.at(34).prefill("b", 2) == (Dispatch("a", 3, 1, 0, 0, 4, 1, 4, 2, 34),)    # nine after the answer
    assert story.core.stats().classes[0].dispatched_cost_tokens == stats.classes[0].dispatched_cost_tokens == 16


def test_age_counts_from_the_last_answer(make):
    """Or from the time at which it should have come."""
    story = asked(make, keys=STRICT)
    story.at(21).arrive("b")
    assert short(story.tick(120)) == "P a"
    assert story.at(130).prefill("b", 2) == (RefreshOverlap("a", 2, HASHES),)
    assert story.refreshed("a", 1) == (Ignored("a", 0),)
    assert short(story.refreshed("a", 2)) == "D a"


def test_what_cost_nothing_tells_nothing_of_the_pace(make):
    """Charged are eight tokens at 0 and at 10 s; the dispatch at 20 s is of one that has been put back."""
    story = asking(make, keys={"request_queue_limit_per_worker": 2, **STRICT}, refresh_after_ns=5 * S,
                   refresh_timeout_ns=100 * S)
    story.arrive("run")
    story.arrive("a", block_hashes=HASHES)
    assert short(story.at(10 * S).prefill("run", 1)) == "R a"
    assert short(story.arrive("b")) == "D b"
    assert short(story.at(18 * S).refreshed("a", 1)) == "P a"
    assert short(story.at(20 * S).prefill("b", 2)) == "D a"
    assert [short(story.arrive(name)) for name in "cd"] == ["P c", "P d"]
    # Sixteen tokens wait, and one of two requests must go: eight tokens, of which eight take 10 s.
    assert story.arrive("e") == (Reject("e", R.QUEUE_FULL_REQUESTS, 0, 2, 2, 10 * S),)


def test_put_back_it_may_not_wait(make):
    story = asking(make, keys=STRICT, refresh_after_ns=0)
    story.arrive("a", block_hashes=HASHES, do_not_queue=True)
    story.arrive("b")
    assert story.refreshed("a", 1) == (Reject("a", R.WOULD_QUEUE, 0),)


def test_strict_refuses_what_nobody_can_hold(make):
    story = asked(make, keys=STRICT)
    story.upsert(1, total_kv_blocks=1)
    assert short(story.refreshed("a", 1)) == "TOO_LARGE a"


def test_looks_for_overload_go_on_after_it_is_put_back(make):
    story = asked(make, keys=STRICT, on_overload=OnOverload.WAIT, overload_wait_ns=7)
    assert story.core.next_deadline_ns == 120       # no looks while it waits for an answer
    story.many(WorkerStatusChanged(20, 1, 0, overloaded=True))
    assert short(story.at(22).refreshed("a", 1)) == "P a"
    assert short(story.tick(28)) == "ALL_ELIGIBLE_OVERLOADED a"


# Ends while the question is open.


def test_deadline_cancel_and_drain(make):
    story = asking(make, refresh_after_ns=0, refresh_timeout_ns=50)
    story.arrive("a", block_hashes=HASHES, deadline_ns=50)
    story.arrive("b", block_hashes=HASHES)
    story.arrive("c", block_hashes=HASHES, deadline_ns=90)
    assert story.at(1).cancel("b") == ()
    assert short(story.tick(50)) == "DEADLINE_EXPIRED a, D c"      # deadlines come first
    story.arrive("d", block_hashes=HASHES)
    story.arrive("e")
    assert short(story.many(Drained(51, 90), RequestCancelled(51, "c"))) == "SHUTTING_DOWN d, SHUTTING_DOWN e"
    assert story.core.stats().refreshing_requests == 0


def test_its_policy_hears_of_its_end(make):
    story = asking(make, keys={"admission": script()}, refresh_after_ns=0)
    story.arrive("a", block_hashes=HASHES)
    story.remove(1)
    assert short(story.at(3).refreshed("a", 1)) == "NO_WORKERS a"
    assert story.heard() == "decide a @0, aborted a @3"


def test_who_comes_back_from_a_worker_is_asked_about_again(make):
    story = asked(make)
    assert short(story.at(30).refreshed("a", 1)) == "D a"
    assert short(story.at(40).fail("a", 2, retry=True)) == "R a"
    assert short(story.refreshed("a", 2)) == "D a"
    assert short(story.at(49).fail("a", 3, retry=True)) == "D a"
