"""A cancellation at every point of a trio story: before the inbox, in it, in the queue, between decision and delivery,
while streaming, between two attempts. Nothing stays booked, nobody else is touched, the record replays.

An instrument counts the steps of all tasks and cancels the victim after the nth: so the cancellation falls not only
between the victim's own steps, but also between those of the owner and of others. Every n up to the end of the story is
tried, with an inbox that has room and with one that is full.
"""

from __future__ import annotations

import pytest
import trio
import trio.abc
import trio.testing
from kvcore.drivers.trio import Rejected
from live_hand import WAITS
from live_trio import play

from kvcore.events import DispatchFailed, RequestCancelled, RequestFinished
from kvcore.request import Rank, Request


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after the nth step of any task, counted from when it is armed."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.scope: trio.CancelScope | None = None

    def after_task_step(self, task) -> None:
        if self.scope is None or self.left < 0:
            return
        self.left -= 1
        if self.left < 0:
            self.scope.cancel()


async def stream(lease, log) -> None:
    """A run with a checkpoint between any two facts."""
    for call in (lease.accepted, lease.prefill_done, lease.output_block, lambda: lease.context(12)):
        await trio.lowlevel.checkpoint()
        call()
    await trio.sleep(1)
    lease.output_block(0.5)
    await trio.lowlevel.checkpoint()
    log.append("streamed")


async def victim(router, scope, log) -> None:
    """Waits for its worker, fails there, waits again, streams."""
    with scope:
        async with router.admit(Request("victim", 8, pinned=Rank(1))) as lease:
            await trio.sleep(1)
            lease.failed(retry=True, shun_ns=3 * 10**9)
            await lease.again()
            await stream(lease, log)


async def bystander(router, name, log) -> None:
    async with router.admit(Request(name, 8)) as lease:
        lease.accepted()
        await trio.sleep(2)
    log.append(name)


async def crowd(router) -> None:
    """Keeps an inbox of one place full for a while."""
    for _ in range(12):
        await router.stats()


def cancelled_at(step: int, inbox_max: int, seed: int):
    """One run: whether the cancellation came before the story's end, and what was logged."""
    log: list[str] = []
    instrument = CancelAt(step)

    async def story(router, record):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bystander, router, "before", log)
            await trio.testing.wait_all_tasks_blocked()
            if inbox_max == 1:
                for _ in range(3):
                    nursery.start_soon(crowd, router)
            instrument.scope = trio.CancelScope()
            nursery.start_soon(victim, router, instrument.scope, log)
            nursery.start_soon(bystander, router, "after", log)

    record = play(story, 1, 2, inbox_max=inbox_max, instruments=[instrument], seed=seed, **WAITS)
    record.check()
    assert sorted(set(log) - {"streamed"}) == ["after", "before"]
    return instrument.left < 0, log, record


@pytest.mark.parametrize(("inbox_max", "seeds"), [(1, 4), (100, 10)])
def test_nothing_leaks_wherever_a_cancellation_lands(inbox_max, seeds):
    ends = set()
    for seed in range(seeds):
        ends |= cancelled_everywhere(inbox_max, seed)
    # Before the core saw it, in the queue, decided but not delivered, running.
    assert ends == {"never stepped", "RequestCancelled", "DispatchFailed", "RequestFinished"}


def cancelled_everywhere(inbox_max: int, seed: int) -> set[str]:
    """One order of tasks, each step of it; how the victim's part ended in the core."""
    ends = set()
    for step in range(2000):
        reached, log, record = cancelled_at(step, inbox_max, seed)
        if not reached:
            break
        if "streamed" not in log:
            ends |= {type(event).__name__ for kind in (RequestCancelled, DispatchFailed, RequestFinished)
                     for event in record.of(kind, "victim") if not getattr(event, "retry", False)}
            ends |= {"never stepped"} if not record.of(object, "victim") else set()
    assert step > 30
    assert "streamed" in log
    return ends


def test_delivery_and_cancellation_in_one_pass():
    """The decision is made while the caller is already being cancelled: it is taken back, and so never accepted."""
    async def story(router, record):
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, router, "first")
            with trio.CancelScope() as scope:
                record.on_step = lambda events, actions: scope.cancel() if named_in(actions, "a") else None
                async with router.admit(Request("a", 8)):
                    pytest.fail("its scope is cancelled at its first checkpoint")

    async def hold(router, name, task_status):
        async with router.admit(Request(name, 8)):
            task_status.started()
            await trio.sleep(1)

    def named_in(actions, name):
        return any(action.request_id == name for action in actions if type(action).__name__ == "Dispatch")

    record = play(story, 1, **WAITS)
    record.check()
    assert [event.attempt for event in record.of(DispatchFailed, "a")] == [2]


def test_many_drops_are_one_wake_up_and_small_steps():
    """No task, no channel, no wake-up per dropped request; an arrival waits for one batch of them."""
    count, sizes = 20_000, []

    async def story(router, record):
        leases = [router.admit(Request(f"r{i}", 8), cancel_on_evict=False) for i in range(count)]
        async with trio.open_nursery() as nursery:
            async def enter(batch):
                for lease in batch:
                    await lease.__aenter__()

            for start in range(0, count, 1000):
                nursery.start_soon(enter, leases[start:start + 1000])
        del record.steps[:]
        record.on_step = lambda events, actions: sizes.append(len(events))
        before = trio.lowlevel.current_statistics()
        for lease in leases:
            lease.leave(completed=False)
        after = trio.lowlevel.current_statistics()
        assert (after.tasks_living, after.tasks_runnable) == (before.tasks_living, before.tasks_runnable + 1)
        async with router.admit(Request("new", 8)):
            # One step of what was told before it, then its own. Whether it runs before the next one is trio's choice.
            assert sizes[1] == 1
            assert len(sizes) <= 3
        while router._owner.told.waiting:
            await trio.lowlevel.checkpoint()

    record = play(story, 1, inbox_max=2000)
    assert record.core.stats().live_requests == 0
    assert record.core.audit() == []
    assert max(sizes) <= 256
    assert len(sizes) <= count // 248 + 5


def test_rejected_and_cancelled_at_once():
    """An answer and a cancellation for the same caller: the request has ended either way."""
    async def story(router, record):
        with trio.CancelScope() as scope:
            record.on_step = lambda events, actions: scope.cancel() if actions else None
            with pytest.raises(Rejected):
                async with router.admit(Request("a", 8)):
                    pass

    record = play(story)
    record.check()
    assert record.of(RequestCancelled) == []
