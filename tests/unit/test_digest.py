"""The digest: equal states have equal digests, whatever road led there (DESIGN 6)."""

from __future__ import annotations

import pytest
from stories import Story, arrive, profile

from kvcore.config import IndexMode
from kvcore.events import WorkerStatusChanged
from kvcore.request import Rank

WAITS = {"profile": profile(2, 3, prefill_busy_threshold=0)}


def fresh_slots(order: str) -> Story:
    """Two rows are given back in this order, then taken by `a` and `b`."""
    story = Story(1)
    story.many(arrive(0, "x"), arrive(0, "y"))
    for name in order:
        story.cancel(name)
    story.many(arrive(0, "a", block_hashes=(1, 2)), arrive(0, "b", block_hashes=(1, 3)))
    return story


def many_then_few(at_once: int) -> Story:
    """60 requests have come and gone, so many at a time; then one stays."""
    story = Story(1, profile=profile(2, prefill_busy_threshold=0, max_overtake_tokens=1_000))
    story.arrive("x")
    for start in range(0, 60, at_once):
        names = [f"r{number}" for number in range(start, start + at_once)]
        story.many(*[arrive(0, name, block_hashes=(number,)) for number, name in enumerate(names)])
        for name in names:
            story.cancel(name)
    story.arrive("a")
    return story


def come_and_gone(workers: int) -> Story:
    """So many more workers have been there, with blocks, marks and a request pinned to one of them."""
    story = Story(1, **WAITS)
    for worker_id in range(2, 2 + workers):
        story.upsert(worker_id, dp_size=3, taints=frozenset({str(worker_id)}))
        story.store(worker_id, *range(50))
        story.many(WorkerStatusChanged(0, worker_id, 0, "health", False, False, 5))
    for worker_id in range(2, 2 + workers):
        story.remove(worker_id)
    return story


def upserted(order) -> Story:
    story = Story(index=IndexMode.EVENTS)
    for worker_id in order:
        story.upsert(worker_id, dp_size=2)
        story.store(worker_id, 1, 2)
    for name, rank in (("a", Rank(1, 1)), ("b", Rank(2))):
        story.arrive(name, 20, pinned=rank, block_hashes=(1, 2, 3))
    return story


def stored(*hashes: int) -> Story:
    story = Story(1)
    story.store(1, *hashes)
    story.drop(1, *[number for number in hashes if number > 3])
    return story


def marked(*sources: str) -> Story:
    story = Story(1)
    for source in sources:
        story.many(WorkerStatusChanged(0, 1, 0, source, True, True, 5))
    return story


def shared(order: str) -> Story:
    """Three bookings of the same blocks end but for one, in this order; a fraction has been told of it alone."""
    story = Story(1)
    story.many(*[arrive(0, name, block_hashes=(1, 2)) for name in "abc"])
    for name in order:
        story.cancel(name)
    story.output("c", 3, 0.5)
    return story


@pytest.mark.parametrize(("make", "one", "other"), [
    (fresh_slots, "xy", "yx"),
    (many_then_few, 1, 60),
    (many_then_few, 1, 5),
    (come_and_gone, 0, 1),
    (come_and_gone, 0, 20),
    (upserted, (1, 2, 3), (3, 2, 1)),
    (shared, "ab", "ba"),
])
def test_roads(make, one, other):
    assert make(one).core.digest() == make(other).core.digest()


@pytest.mark.parametrize(("make", "one", "other"), [
    (stored, (1, 2, 3), (3, 1, 2)),
    (stored, (1, 2, 3), (*range(500), 1)[1:]),
    (marked, ("a", "b", "c"), ("c", "a", "b")),
    (marked, ("a", "b"), ("b", "a", "b")),
])
def test_roads_of_many_facts(make, one, other):
    assert make(*one).core.digest() == make(*other).core.digest()


def test_a_block_that_fades_and_ends_leaves_no_trace():
    """What a fraction did to blocks that nobody uses any more is over."""
    digests = set()
    for fraction in (None, 0.5):
        story = Story(1)
        story.arrive("a", block_hashes=(1, 2))
        story.output("a", 1, fraction)
        story.finish("a", 1)
        story.arrive("b", block_hashes=(1, 2))
        digests.add(story.core.digest())
    assert len(digests) == 1


def test_much_state_is_hashed_in_pieces():
    """More than one buffer of it: each request counts, the first as the last."""
    def digest(other: int) -> str:
        story = Story(1)
        story.many(*[arrive(0, f"r{number:04}", 400, block_hashes=(int(number == other), *range(2, 101)))
                     for number in range(300)])
        return story.core.digest()

    assert len({digest(other) for other in (-1, 0, 150, 299)}) == 4
