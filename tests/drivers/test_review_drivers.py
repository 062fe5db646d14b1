"""Review items 2, 5 and 13 of the scheduler that this one re-implements, and what a full inbox must not hold up.

They are about an actor, so they are a driver's business; items about the core are elsewhere. Each test says what it
fails without; that has been taken out once, and the test has failed.
"""

from __future__ import annotations

from concurrent.futures import Future
from itertools import pairwise

import pytest
import trio
import trio.testing
from kvcore.drivers.owner import Job
from kvcore.drivers.protocol import Answer
from kvcore.drivers.trio import Rejected, open_scheduler
from live_hand import WAITS, Hand
from live_trio import play, run

from kvcore.actions import RejectReason
from kvcore.events import CapacityHinted, RequestCancelled, RequestFinished, TimerFired
from kvcore.request import Rank, Request, WorkerConfig

S = 10**9


# Item 2: the owner is gone, and what is told afterwards still reaches the ledger.


@pytest.mark.parametrize("failed", [True, False])
def test_review_02_releases_reach_the_ledger_without_an_owner(failed):
    """Without `pump`: the requests stay live for ever."""
    hand = Hand(1, 2)
    leases = [hand.admit(f"r{i}", 40) for i in range(6)]
    hand.owner.close(OSError("disk full") if failed else None)
    assert hand.core.loads()["prefill_tokens"].sum() == 0  # nothing stays charged, whatever their holders do
    assert hand.core.stats().live_requests == 6
    for lease in leases[:2]:
        assert lease.completed() is Answer.APPLIED
    assert hand.core.stats().live_requests == 4
    leases[2].failed(retry=True)
    assert leases[2].error.reason is RejectReason.SHUTTING_DOWN
    for lease in leases[3:]:
        lease.leave(completed=False)
    assert (hand.core.stats().live_requests, hand.core.audit(), hand.live) == (0, [], {})
    assert (hand.core.stats().completed, hand.core.stats().aborted) == (2, 3)


def test_review_02_through_trio():
    """A client that outlives the router still ends its request."""
    async def client(router, closed, task_status):
        async with router.admit(Request("a", 8), cancel_on_evict=False) as lease:
            task_status.started()
            await closed.wait()
            assert lease.prefill_done() is Answer.NO_CHANGE  # its booking was taken away when the router closed
            assert lease.completed() is Answer.APPLIED

    async def main():
        closed = trio.Event()
        async with trio.open_nursery() as nursery:
            async with open_scheduler() as router:
                await router.upsert_worker(WorkerConfig(1))
                await nursery.start(client, router, closed)
            core = router._owner.core
            assert core.loads()["requests"].tolist() == [0]
            closed.set()
        assert (core.stats().completed, core.stats().live_requests) == (1, 0)

    run(main)


# Item 5: a cancel storm beside frequent completions.


def test_review_05_a_storm_is_taken_in_batches_and_completions_go_on():
    """Without the batch: a step, with a drain and a look at the heads, per dropped request."""
    storm, others = 5_000, 40
    sizes, ends = [], []

    async def client(router, name, order):
        async with router.admit(Request(name, 8)) as lease:
            lease.prefill_done()
            await trio.sleep(1)
        order.append(name)

    async def story(router, record):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as doomed:
                    await trio.sleep(0)
                    for i in range(storm):
                        doomed.start_soon(client, router, f"doomed{i}", [])
                    for i in range(others):
                        nursery.start_soon(client, router, f"r{i}", ends)
                    await trio.testing.wait_all_tasks_blocked()
                    record.on_step = lambda events, actions: sizes.append(
                        (len(events), sum(isinstance(event, RequestFinished) for event in events)))
                    scope.cancel()

    record = play(story, *range(4), inbox_max=10_000)
    record.check()
    assert len(ends) == others
    assert sum(size for size, _ in sizes) <= storm + 3 * others
    assert len(sizes) <= storm // 200 + 2 * others
    assert max(size for size, _ in sizes) <= 256


def test_review_05_an_idle_owner_has_no_steps():
    """Hints and drops of what has ended already wake it, and that is all."""
    async def story(router, record):
        lease = router.admit(Request("a", 8))
        with pytest.raises(Rejected):
            await lease.__aenter__()
        steps = len(record.steps)
        for _ in range(1000):
            lease.abandon()
        router.hint([])
        await trio.testing.wait_all_tasks_blocked()
        assert len(record.steps) == steps

    play(story).check()


# Item 13: `recheck` is a barrier, and says where it is none.


def test_review_13_the_barrier_covers_all_that_was_told_before():
    """Without its place on the list: it is answered while most of the releases are still to be stepped."""
    count = 1_000

    async def story(router, record):
        leases = [router.admit(Request(f"r{i}", 8, pinned=Rank(i)), cancel_on_evict=False) for i in range(count)]
        for lease in leases:
            await lease.__aenter__()
        for lease in leases:
            lease.completed()
        assert await router.recheck() is True
        assert record.core.stats().completed == count
        assert record.steps[-1][0][-1] == CapacityHinted(0)
        for lease in leases:
            lease.leave(completed=True)

    play(story, *range(count), **WAITS).check()


def test_review_13_it_does_not_wait_for_blocked_requests():
    async def story(router, record):
        async with router.admit(Request("a", 8)), trio.open_nursery() as nursery:
            async def waits():
                async with router.admit(Request("b", 8)):
                    pass

            nursery.start_soon(waits)
            await trio.testing.wait_all_tasks_blocked()
            assert await router.recheck() is True
            assert trio.current_time() == 0
            nursery.cancel_scope.cancel()

    play(story, 1, **WAITS).check()


def test_review_13_where_nothing_queues_it_returns_at_once_and_says_so():
    """Documented, not silently no barrier: what was told before is still on the list."""
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            lease.completed()
            steps = len(record.steps)
            reply = Future()
            router._owner.recheck(reply)
            assert reply.result(0) is False
            assert len(record.steps) == steps
        assert await router.recheck() is False
        assert record.of(CapacityHinted) == []

    play(story, 1).check()


def test_review_13_it_needs_no_room_in_the_inbox():
    hand = Hand(1, **WAITS)
    works = [hand.job(lambda _: None) for _ in range(10)]
    reply = Future()
    hand.owner.recheck(reply)
    hand.owner.turn()
    assert reply.result(0) is True
    assert [work.done() for work in works] == [True] + [False] * 9


# Actor.md O6: capacity must not need room in the inbox.


@pytest.mark.parametrize("hints", [1, 257])
def test_a_waiting_pin_is_admitted_however_full_the_inbox(hints):
    """Without the list: a release waits behind what is in the inbox, and behind what waits for room there."""
    hand = Hand(1, 2, **WAITS)
    runs = hand.admit("runs", pinned=Rank(1))
    waits = hand.lease("waits", pinned=Rank(1))
    hand.turns()
    for _ in range(5000):
        hand.put(Job(lambda: None, Future()))
    runs.completed()
    for number in range(hints):
        hand.owner.hint([Rank(number)])
    hand.owner.turn()
    assert waits.is_decided
    assert len(hand.owner.inbox) == 4999


def test_deadlines_fire_and_pins_run_while_the_inbox_is_held_full():
    """Through trio: fifty tasks fight for an inbox of one place, all the time."""
    async def spam(router):
        while True:
            await router.stats()

    async def story(router, record):
        async with trio.open_nursery() as nursery:
            outcome = []

            async def waits(name, **fields):
                try:
                    async with router.admit(Request(name, 8, pinned=Rank(1), **fields)):
                        outcome.append(name)
                except Rejected as error:
                    outcome.append((name, error.reason))

            async with router.admit(Request("runs", 8, pinned=Rank(1))) as lease:
                nursery.start_soon(waits, "pin")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(lambda: waits("late", deadline_ns=S))
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(50):
                    nursery.start_soon(spam, router)
                for _ in range(5):
                    await trio.lowlevel.checkpoint()
                    assert router._room.value == 0
                trio.lowlevel.current_clock().jump(2)
                while not outcome:
                    await trio.lowlevel.checkpoint()
                lease.completed()
                for number in range(257):
                    router.hint([Rank(number)])
                steps = len(record.steps)
                while len(outcome) < 2:
                    await trio.lowlevel.checkpoint()
                assert len(record.steps) <= steps + 2
            assert outcome == [("late", RejectReason.DEADLINE_EXPIRED), "pin"]
            nursery.cancel_scope.cancel()

    record = play(story, 1, inbox_max=1, **WAITS)
    record.check()


def test_time_passes_though_nothing_but_reads_comes():
    """Without the look at the clock: a busy owner whose items step nothing forgets what is due."""
    hand = Hand(1, **WAITS)
    hand.admit("runs")
    late = hand.admit("late", deadline_ns=5)
    hand.now = 7
    for _ in range(3):
        hand.job(lambda _: None)
    hand.owner.turn()
    assert late.error.reason is RejectReason.DEADLINE_EXPIRED
    assert hand.steps[-1][0] == (TimerFired(7),)
    assert len(hand.owner.inbox) == 2


def test_stamps_never_go_back_whatever_comes_between():
    async def story(router, record):
        async def client(name, patience_s):
            with trio.move_on_after(patience_s):
                async with router.admit(Request(name, 8)):
                    await trio.sleep(0.3)

        async with trio.open_nursery() as nursery:
            for i in range(30):
                nursery.start_soon(client, f"r{i}", (0.05, 1, 9)[i % 3])
                await trio.sleep(0.01)

    record = play(story, 1, 2, **WAITS)
    record.check()
    times = [event.now_ns for events, _ in record.steps for event in events]
    assert all(one <= two for one, two in pairwise(times))
    assert record.of(RequestCancelled)
    assert record.of(RequestFinished)
