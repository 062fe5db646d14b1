"""Queue limits, requests that may not wait, and how long to stay away (DESIGN D6, D18): through the scheduler."""

from __future__ import annotations

import pytest
from stories import Story, arrive, profile, short

from kvcore.actions import Park, Reject, RejectReason
from kvcore.events import PrefillCompleted, RequestCancelled
from kvcore.policy import CacheBucket, PolicyClass, PolicyProfile
from kvcore.request import Overlap, Rank

MS = 1_000_000
FULL = RejectReason


def limited(requests=None, raw=None, cached=None, threshold=0, workers=(1,)):
    """Busy workers: the next request waits."""
    keys = {"request_queue_limit_per_worker": requests, "raw_isl_token_queue_limit_per_worker": raw,
            "cached_token_queue_limit_per_worker": cached}
    story = Story(*workers, profile=profile(prefill_busy_threshold=threshold, **keys))
    for worker_id in workers:
        story.arrive(f"x{worker_id}", pinned=Rank(worker_id))
    return story


def test_the_first_limit_that_is_reached_is_named():
    overlap = Overlap(((Rank(1), 1),))
    story = limited(requests=2, raw=20, cached=8)
    assert story.arrive("a", 12, overlap=overlap) == (Park("a", 0),)
    assert story.arrive("b", 12, overlap=overlap) == (Park("b", 0),)  # may cross the limits of tokens
    assert story.arrive("c", 1) == (Reject("c", FULL.QUEUE_FULL_REQUESTS, 0, 2, 2, None),)
    story = limited(requests=9, raw=20, cached=8)
    for name in "ab":
        story.arrive(name, 12, overlap=overlap)
    assert story.arrive("c", 1) == (Reject("c", FULL.QUEUE_FULL_RAW_TOKENS, 0, 24, 20, None),)
    story = limited(requests=9, raw=99, cached=8)
    for name in "ab":
        story.arrive(name, 12, overlap=overlap)
    assert story.arrive("c", 1) == (Reject("c", FULL.QUEUE_FULL_CACHED_TOKENS, 0, 8, 8, None),)


def test_an_uncontended_request_meets_no_limit():
    """It is stored and popped in the same step; usage is that of others."""
    story = Story(1, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=1))
    for number in range(5):
        (action,) = story.arrive(str(number))
        story.prefill(str(number), action.attempt)
    assert story.core.stats().dispatched == 5


def test_limits_grow_with_the_fleet_and_room_reopens_them():
    story = limited(requests=1, workers=(1, 2))
    assert [short(story.arrive(name)) for name in "abc"] == ["P a", "P b", "QUEUE_FULL_REQUESTS c"]
    story.cancel("a")
    assert [short(story.arrive(name)) for name in "cd"] == ["P c", "QUEUE_FULL_REQUESTS d"]
    assert short(story.prefill("x1", 1)) == "D b"
    assert [short(story.arrive(name)) for name in "de"] == ["P d", "QUEUE_FULL_REQUESTS e"]


def test_a_refusal_takes_no_seq_and_leaves_no_trace():
    story, twin = limited(requests=1), limited(requests=1)
    for one in (story, twin):
        one.arrive("a")
    for number in range(5):
        story.arrive(f"r{number}")
    assert story.core.digest() == twin.core.digest()


def test_limits_are_those_of_the_class():
    classes = (PolicyClass("small", 1, policy_family="f", cache_bucket="all", prefill_busy_threshold=0,
                           request_queue_limit_per_worker=1), PolicyClass("open", 1, prefill_busy_threshold=0))
    story = Story(1, profile=PolicyProfile(classes, (CacheBucket("all", 0),), "f"))
    story.arrive("x")
    assert [short(story.arrive(name)) for name in "ab"] == ["P a", "QUEUE_FULL_REQUESTS b"]
    assert [short(story.arrive(name, policy_class="open")) for name in "cd"] == ["P c", "P d"]
    assert [row.rejected for row in story.core.stats().classes] == [1, 0]


def test_a_request_that_may_not_wait_runs_or_is_refused():
    story = limited()
    assert story.arrive("a", do_not_queue=True) == (Reject("a", FULL.WOULD_QUEUE, 0, 0, 0, None),)
    story.prefill("x1", 1)
    assert short(story.arrive("a", do_not_queue=True)) == "D a"


def test_who_may_not_wait_meets_no_limit():
    story = limited(requests=1, workers=(1, 2))
    for name in "ab":
        story.arrive(name, pinned=Rank(1))
    assert short(story.arrive("c", do_not_queue=True, pinned=Rank(1))) == "WOULD_QUEUE c"
    story.prefill("x2", 2)
    assert short(story.arrive("d", do_not_queue=True)) == "D d"
    assert short(story.arrive("e")) == "QUEUE_FULL_REQUESTS e"


def test_who_may_not_wait_competes_like_others():
    """In the drain of its own step, by its key; then it leaves and the next head gets its chance."""
    story = limited()
    story.arrive("old")
    actions = story.many(PrefillCompleted(1, "x1", 1), arrive(1, "now", do_not_queue=True))
    assert short(actions) == "D old, WOULD_QUEUE now"
    story = limited(workers=(1, 2))
    story.prefill("x2", 2)
    # The head may use worker 1 only and may not wait; behind it somebody could have run all the time.
    actions = story.many(
        arrive(1, "now", do_not_queue=True, allowed_workers=frozenset({1}), strict_priority=1), arrive(1, "behind"))
    assert short(actions) == "WOULD_QUEUE now, D behind"


def test_those_that_may_not_wait_leave_in_order_of_arrival():
    story = limited()
    names = ("d", "a", "c", "b")
    actions = story.many(*[
        arrive(1, name, do_not_queue=name != "c", strict_priority=ord(name)) for name in names])
    assert short(actions) == "WOULD_QUEUE d, WOULD_QUEUE a, WOULD_QUEUE b, P c"


def test_what_may_not_wait_leaves_one_by_one():
    """Who stands behind a refused one gets its turn before it is refused itself: a batch refuses no more than steps."""
    story = limited(workers=(1, 2))
    story.prefill("x2", 2)
    head = arrive(1, "head", do_not_queue=True, allowed_workers=frozenset({1}), strict_priority=1)
    assert short(story.many(head, arrive(1, "behind", do_not_queue=True))) == "WOULD_QUEUE head, D behind"


@pytest.mark.parametrize(
    ("limits", "reason", "current"),
    [
        ({"requests": 0}, FULL.QUEUE_FULL_REQUESTS, 0), ({"raw": 0}, FULL.QUEUE_FULL_RAW_TOKENS, 0),
        ({"cached": 0}, FULL.QUEUE_FULL_CACHED_TOKENS, 0),
        ({"requests": 5, "raw": 0, "cached": 0}, FULL.QUEUE_FULL_RAW_TOKENS, 0),
        ({"requests": 0, "raw": 0, "cached": 0}, FULL.QUEUE_FULL_REQUESTS, 0),
        ({"requests": 1, "cached": 0}, FULL.QUEUE_FULL_CACHED_TOKENS, 0),
    ],
)
def test_a_limit_of_zero_means_now_or_not_at_all(limits, reason, current):
    """The first limit of zero is named, not the first that is reached; usage is counted without the request."""
    story = limited(**limits)
    assert story.arrive("a") == (Reject("a", reason, 0, current, 0, None),)
    assert story.arrive("b", do_not_queue=True) == (Reject("b", reason, 0, current, 0, None),)
    story.prefill("x1", 1)
    assert short(story.arrive("a")) == "D a"


def test_a_limit_of_zero_and_many_at_once():
    """Each is counted without itself and those that left before it."""
    story = limited(requests=0)
    actions = story.many(*[arrive(1, name) for name in "abc"])
    assert [(a.request_id, a.current, a.limit) for a in actions] == [("a", 2, 0), ("b", 1, 0), ("c", 0, 0)]
    story = limited(raw=0)
    actions = story.many(*[arrive(1, name, prompt) for name, prompt in (("a", 5), ("b", 7), ("c", 9))])
    assert [(a.request_id, a.current, a.limit) for a in actions] == [("a", 16, 0), ("b", 9, 0), ("c", 0, 0)]


def test_one_that_may_not_wait_is_gone_before_limits_are_tested_again():
    """Inside a batch the test of a limit settles first: who may not wait has been answered by then."""
    story = limited(requests=1)
    actions = story.many(
        arrive(1, "now", do_not_queue=True), arrive(1, "a"), arrive(1, "b"), RequestCancelled(1, "z"))
    assert short(actions) == "WOULD_QUEUE now, QUEUE_FULL_REQUESTS b, I z, P a"


def test_a_hint_comes_from_the_pace_of_the_class():
    story = Story(1, profile=profile(prefill_busy_threshold=0, request_queue_limit_per_worker=2)).at(MS)
    name = "x0"
    story.arrive(name, 10)
    for number in range(1, 4):
        story.arrive(f"x{number}", 10)
        story.at(story.now + 100 * MS).prefill(f"x{number - 1}", number)
    story.arrive("a", 30)
    story.arrive("b", 10)
    # 30 tokens in 300 ms; 40 wait, of which ceil(40 * 1 / 2) must go.
    assert story.arrive("c", 1) == (Reject("c", FULL.QUEUE_FULL_REQUESTS, 0, 2, 2, 200 * MS),)
    assert story.core.peek(arrive(0, "d").request) == Reject("d", FULL.QUEUE_FULL_REQUESTS, 0, 2, 2, 200 * MS)


def test_a_hint_needs_two_dispatches_at_two_times():
    story = limited(requests=1, workers=(1, 2))
    for name in "ab":
        story.arrive(name)
    assert story.arrive("c")[0].retry_after_ns is None  # both ran at time 0
    story.at(10 * MS).prefill("x1", 1)
    story.arrive("d")
    assert story.arrive("c")[0].retry_after_ns == 5 * MS  # 8 + 8 tokens in 10 ms, of 16 half must go


def test_only_queue_full_has_a_hint():
    story = limited()
    for number in range(1, 4):
        story.at(story.now + MS).cancel(f"x{number}")
        story.arrive(f"x{number + 1}")
    for action in (*story.arrive("a", do_not_queue=True), *story.arrive("x4"), *story.arrive("a", pinned=Rank(9))):
        assert isinstance(action, Reject)
        assert (action.current, action.limit, action.retry_after_ns) == (0, 0, None)


def test_the_charge_of_a_refused_pop_is_kept_and_not_part_of_the_pace():
    """A popped head that cannot be placed has had its turn (DESIGN D15)."""
    story = Story(1, profile=profile(8, prefill_busy_threshold=0))
    story.arrive("x")
    story.arrive("pin", 5, pinned=Rank(1))
    story.arrive("any", 5)
    assert short(story.upsert(2)) == "D any"
    assert short(story.arrive("z", 1, pinned=Rank(2))) == "P z"
    before = story.core.stats().classes[0]
    assert short(story.remove(1)) == "E x, PINNED_WORKER_UNAVAILABLE pin"
    after = story.core.stats().classes[0]
    assert (before.deficit_tokens, after.deficit_tokens) == (8 - 5, 8 - 5 + 8 - 5)
    assert (after.dispatched, after.dispatched_cost_tokens) == (before.dispatched, before.dispatched_cost_tokens)
