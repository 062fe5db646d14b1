"""Many at once, and names made to be mistaken for others: expiry of a crowd, bursts against limits, the digest."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from stories import Story, arrive, profile, short, upsert

from kvcore.actions import Evict, EvictReason, Ignored, Park, Reject, RejectReason
from kvcore.events import OutputBlockAdded, PrefillCompleted, RequestCancelled
from kvcore.request import Overlap, Rank, Request

FULL = RejectReason


@pytest.mark.parametrize("count", [1, 2, 7, 200])
def test_bookings_with_equal_progress_expire_together_by_attempt(count):
    """However they were renewed, whatever their names and ranks: all in one step."""
    random = Random(count)
    names = [f"{random.randrange(10**6)}-{i}" for i in range(count)]
    story = Story(3, 1, 2, booking_ttl_ns=100).at(10)
    running = story.many(*[arrive(10, name) for name in names])
    assert [(action.request_id, action.attempt) for action in running] == [(x, i) for i, x in enumerate(names, 1)]
    shuffled = random.sample(running, count)
    story.many(*[OutputBlockAdded(50, action.request_id, action.attempt) for action in shuffled])
    assert story.core.next_deadline_ns == 150
    assert story.tick(149) == ()
    assert story.tick(150) == tuple(
        [Evict(action.request_id, action.attempt, action.worker_id, EvictReason.BOOKING_EXPIRED) for action in running])
    assert [row[2:5] for row in story.loads()] == 3 * [(0, 0, 0)]
    assert (story.core.stats().evicted, story.core.next_deadline_ns) == (count, 250)
    assert story.tick(250) == ()
    assert (story.core.stats().aborted, story.core.stats().live_requests) == (count, 0)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("request_queue_limit_per_worker", FULL.QUEUE_FULL_REQUESTS),
     ("raw_isl_token_queue_limit_per_worker", FULL.QUEUE_FULL_RAW_TOKENS),
     ("cached_token_queue_limit_per_worker", FULL.QUEUE_FULL_CACHED_TOKENS)],
)
def test_a_burst_of_both_kinds_keeps_the_counters_right(limit, reason):
    """Two find room. All others are refused, as in steps of their own, and leave nothing behind in any counter."""
    bound = {FULL.QUEUE_FULL_REQUESTS: 2, FULL.QUEUE_FULL_RAW_TOKENS: 12, FULL.QUEUE_FULL_CACHED_TOKENS: 8}[reason]
    burst = [arrive(1, f"{'nw'[i % 2]}{i // 2}", 4 + i, do_not_queue=i % 2 == 0, overlap=Overlap(((Rank(1), 1),)))
             for i in range(60)]
    stories = []
    for _ in range(2):
        stories.append(Story(1, profile=profile(100, prefill_busy_threshold=0, **{limit: bound})))
        stories[-1].arrive("x")
    story, single = stories
    told = story.many(*burst)
    alone = sum((single.many(event) for event in burst), ())
    assert len(told) == 60
    assert {action.request_id: action for action in told} == {action.request_id: action for action in alone}
    assert told[-2:] == (Park("w0", 0), Park("w1", 0))
    refused = [action for action in told if isinstance(action, Reject)]
    assert Counter(action.reason for action in refused) == {FULL.WOULD_QUEUE: 30, reason: 28}
    assert {(a.current, a.limit) for a in refused if a.reason is reason} == {(bound, bound)}
    for one in stories:
        (row,) = one.core.stats().classes
        assert (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cached_tokens) == (2, 5 + 7, 4 + 4)
        assert (row.waiting_cost_tokens, row.rejected, row.dispatched) == (1 + 3, 58, 1)
        (first, *rest) = one.many(PrefillCompleted(2, "x", 1), *[RequestCancelled(2, f"n{i}") for i in range(30)])
        assert (short(rest[-1:]), {type(action) for action in (first, *rest[:-1])}) == ("D w0", {Ignored})
        one.cancel("w1")
        (row,) = one.core.stats().classes
        assert (row.waiting_requests, row.waiting_raw_tokens, row.waiting_cached_tokens) == (0, 0, 0)
        assert (row.waiting_cost_tokens, row.deficit_tokens, row.dispatched_cost_tokens) == (0, 0, 8 + 1)


def digest_of(*requests: Request, busy: bool) -> str:
    """Of a scheduler in which these wait, or run."""
    story = Story(1, 12, profile=profile(prefill_busy_threshold=0 if busy else None))
    if busy:
        story.many(arrive(0, "x", pinned=Rank(1)), arrive(0, "y", pinned=Rank(12)))
    for request in requests:
        story.arrive(request.request_id, request.prompt_tokens, **{
            name: getattr(request, name) for name in ("block_hashes", "sequence_hashes", "allowed_workers", "overlap")})
    return story.core.digest()


@pytest.mark.parametrize("busy", [False, True])
def test_the_digest_tells_names_apart_that_a_text_might_join(busy):
    crowds = [
        ("a,b",), ("a", "b"), ("ab", "c"), ("a", "bc"), ("abc",), ("a, b", "c"), ("a", "b, c"), ("a', 'b",), ("a\\0b",),
        ("a\0b",), ("'a'",), ("a\nb",), ("(a", "b)"), (" ", "ab"), (" ",), ("a", " "), ("a'", "b"), ("a", "'b"),
    ]
    digests = [digest_of(*[Request(name, 8) for name in names], busy=busy) for names in crowds]
    assert len(set(digests)) == len(crowds)


@pytest.mark.parametrize("busy", [False, True])
def test_the_digest_tells_lists_apart_that_a_text_might_join(busy):
    """Hashes of the path and of the prompt lie side by side; so do ranks and numbers of blocks."""
    fields = [
        {"block_hashes": (1, 2), "sequence_hashes": (3,)}, {"block_hashes": (1,), "sequence_hashes": (2, 3)},
        {"block_hashes": (12,), "sequence_hashes": (3,)}, {"block_hashes": (1,), "sequence_hashes": (23,)},
        {"block_hashes": (1, 2), "sequence_hashes": ()}, {"block_hashes": (), "sequence_hashes": (1, 2)},
        {"block_hashes": (2, 1), "sequence_hashes": (3,)},
    ]
    if busy:
        fields += [{"allowed_workers": frozenset({1, 12})}, {"allowed_workers": frozenset({1})},
                   {"allowed_workers": frozenset({12})}, {"allowed_workers": None}]
        one, other = (Rank(1), 1), (Rank(12), 1)
        fields += [{"overlap": Overlap(pairs)} for pairs in (
            (), ((Rank(1), 12),), ((Rank(1, 12), 1),), (one,), (other,), (one, other))]
    digests = [digest_of(Request("r", 8, **keys), busy=busy) for keys in fields]
    assert len(set(digests)) == len(fields)


def test_the_digest_tells_taints_apart_that_a_text_might_join():
    sets = [frozenset(names) for names in (
        {"a,b"}, {"a", "b"}, {"ab"}, {"a', 'b"}, {"a"}, {"b"}, {""}, set(), {"", "a"}, {"a", "b", "a,b"})]
    of_workers = []
    for taints in sets:
        story = Story()
        story.many(upsert(0, 1, taints=taints))
        of_workers.append(story.core.digest())
    of_requests = []
    for taints in sets:
        story = Story(profile=profile(prefill_busy_threshold=0))
        story.many(upsert(0, 1, taints=frozenset().union(*sets)), arrive(0, "x"))
        story.arrive("r", required_taints=taints)
        assert story.core.stats().waiting_requests == 1
        of_requests.append(story.core.digest())
    assert len(set(of_workers)) == len(set(of_requests)) == len(sets)
