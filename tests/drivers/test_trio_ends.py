"""The trio driver: refreshes, reads, drains, and how a router ends. test_trio.py has the rest."""

from __future__ import annotations

import io

import pytest
import trio
from kvcore.drivers.owner import Owner
from kvcore.drivers.trio import (
    Closed,
    Evicted,
    Misuse,
    Rejected,
    open_scheduler,
)
from live_hand import WAITS
from live_trio import play
from stories import profile

from kvcore.actions import Dispatch, EvictReason, Park, RejectReason
from kvcore.admission import AdmissionPolicy
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.errors import AdmissionError, InvalidEvent
from kvcore.events import (
    Outcome,
    RequestArrived,
    RequestFinished,
)
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.policy import AdmissionSpec
from kvcore.request import Overlap, Rank, Request, WorkerConfig

S = 10**9


async def hold(router, name: str, seconds: float = 1, *, task_status=trio.TASK_STATUS_IGNORED, **fields) -> None:
    """A client that runs for a while. Tells task_status its lease."""
    async with router.admit(Request(name, 8, **fields)) as lease:
        task_status.started(lease)
        await trio.sleep(seconds)


# Refreshes.

FRESH = {"index": IndexMode.OFF, "refresh_after_ns": S, "refresh_timeout_ns": 3 * S, **WAITS}


@pytest.mark.parametrize(("takes_s", "overlap_blocks", "wait_ns"), [(1, 2, 3 * S), (10, 0, 5 * S)])
def test_an_outside_index_is_asked_and_has_its_time(takes_s, overlap_blocks, wait_ns):
    async def refresh(request_id, block_hashes):
        assert (request_id, block_hashes) == ("b", (5, 6, 7))
        await trio.sleep(takes_s)
        return Overlap(device=((Rank(1), 2),))

    async def story(router, record):
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, router, "a", 2)
            async with router.admit(Request("b", 12, block_hashes=(5, 6, 7))) as lease:
                assert (lease.overlap_blocks, lease.wait_ns) == (overlap_blocks, wait_ns)

    play(story, 1, refresh=refresh, **FRESH).check()


def test_an_index_that_fails_is_as_good_as_none(caplog):
    async def refresh(request_id, block_hashes):
        raise OSError("index is down")

    async def story(router, record):
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, router, "a", 2)
            async with router.admit(Request("b", 8, block_hashes=(5, 6))) as lease:
                assert lease.wait_ns == 2 * S

    play(story, 1, refresh=refresh, **FRESH).check()
    assert "index is down" in caplog.text


# Reading.


def test_reads_come_through_the_owner_and_see_what_was_told():
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            lease.prefill_done()
            assert (await router.loads())["prefill_tokens"].tolist() == [0]
        assert (await router.stats()).completed == 1
        digest = await router.read(lambda core: core.digest())
        answer = await router.peek(Request("b", 8))
        assert isinstance(answer, Dispatch)
        assert await router.read(lambda core, text: core.digest() + text, "!") == digest + "!"
        with pytest.raises(InvalidEvent):
            await router.peek(Request("b", 0))

    play(story, 1).check()


# Ends.


def test_leaving_the_router_rejects_and_evicts():
    told = []

    async def client(router, name):
        try:
            async with router.admit(Request(name, 8)):
                await trio.sleep_forever()
        except (Evicted, Rejected) as error:
            told.append((name, error.reason))

    async def main():
        async with trio.open_nursery() as nursery:
            async with open_scheduler(SchedulerConfig(**WAITS)) as router:
                await router.upsert_worker(WorkerConfig(1))
                for name in "abc":
                    nursery.start_soon(client, router, name)
                    await trio.testing.wait_all_tasks_blocked()
            for call in (router.stats, router.recheck, router.drain):
                with pytest.raises(Closed):
                    await call()
            with pytest.raises(Closed):
                router.hint()
            with pytest.raises(Closed):
                async with router.admit(Request("d", 8)):
                    pass
        assert router._owner.core.stats().live_requests == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(told) == [
        ("a", EvictReason.DRAIN_DEADLINE), ("b", RejectReason.SHUTTING_DOWN), ("c", RejectReason.SHUTTING_DOWN)]


def test_a_drain_lets_what_runs_finish():
    """FIELD-REPORTS E79: every request gets an answer, and what runs its time."""
    async def story(router, record):
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, router, "short", 2)
            async def evicted():
                with pytest.raises(Evicted, match="DRAIN_DEADLINE"):
                    await hold(router, "long", 100)

            nursery.start_soon(evicted)
            await trio.sleep(1)
            await router.drain(5 * S)
            assert trio.current_time() == 6
            with pytest.raises(Rejected, match="SHUTTING_DOWN"):
                async with router.admit(Request("late", 8)):
                    pass

    record = play(story, 1)
    record.check()
    assert [event.outcome for event in record.of(RequestFinished)] == [Outcome.COMPLETED, Outcome.ABORTED]


def test_a_drain_ends_when_nothing_runs():
    async def story(router, record):
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, router, "a", 2)
            await router.drain(100 * S)
            assert trio.current_time() == 2

    play(story, 1).check()


def test_an_exception_of_the_router_block_comes_out_bare():
    async def main():
        async with open_scheduler() as router:
            await router.upsert_worker(WorkerConfig(1))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        trio.run(main)


def test_a_router_block_that_is_cancelled_ends():
    async def main():
        with trio.move_on_after(1) as scope:
            async with open_scheduler() as router:
                await router.upsert_worker(WorkerConfig(1))
                await hold(router, "a", 100)
        assert scope.cancelled_caught
        assert router._owner.core.stats().live_requests == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_owner_outlives_those_who_clean_up():
    """A cancellation from outside reaches everybody at once; the core still answers until the block is left."""
    seen = []

    async def main():
        with trio.move_on_after(1):
            async with open_scheduler() as router:
                try:
                    await router.upsert_worker(WorkerConfig(1))
                    await hold(router, "a", 100)
                finally:
                    with trio.CancelScope(shield=True):
                        seen.append(await router.stats())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (seen[0].aborted, seen[0].live_requests) == (1, 0)


def test_who_waits_for_room_hears_of_the_end(monkeypatch):
    closed = []

    async def client(router, name):
        try:
            async with router.admit(Request(name, 8)):
                pass
        except (Closed, Rejected) as error:
            closed.append(type(error).__name__)

    async def main():
        async with trio.open_nursery() as nursery, open_scheduler(inbox_max=2) as router:
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.undo()
            for name in "abcdef":
                nursery.start_soon(client, router, name)
            await trio.testing.wait_all_tasks_blocked()
            assert router._room.statistics().tasks_waiting == 4

    monkeypatch.setattr(Owner, "turn", lambda owner: 0)  # an owner that gets to nothing before the block is left
    trio.run(main)
    assert sorted(closed) == ["Closed"] * 4 + ["Rejected"] * 2


def test_a_failing_tap_ends_the_router_with_its_exception():
    async def story(router, record):
        async with router.admit(Request("a", 8)):
            await trio.sleep_forever()

    def tap(events, actions, core):
        if isinstance(events[0], RequestArrived):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        play(story, 1, tap=tap)


def test_a_poisoned_core_ends_the_router_with_its_exception():
    class Quarrel(AdmissionPolicy):
        def decide(self, view):
            return "no"

    async def story(router, record):
        with pytest.raises(Closed):
            async with router.admit(Request("a", 8)):
                pass
        await trio.sleep_forever()

    with pytest.raises(AdmissionError):
        play(story, 1, admission={"quarrel": lambda parameters: Quarrel()},
             profile=profile(admission=AdmissionSpec("quarrel")))


def test_a_tap_in_use_is_refused_where_it_is_given():
    async def story(router, record):
        with pytest.raises(Misuse, match="tap"):
            async with open_scheduler(tap=record.tap):
                pass

    play(story, 1).check()


def test_a_journal_is_a_tap():
    stream = io.StringIO()
    config = SchedulerConfig(**WAITS)

    async def main():
        with JournalWriter(stream, config) as journal:
            async with open_scheduler(config, tap=journal.batch) as router:
                await router.upsert_worker(WorkerConfig(1))
                async with trio.open_nursery() as nursery:
                    for name in "abc":
                        nursery.start_soon(hold, router, name)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    result = replay(JournalReader(io.StringIO(stream.getvalue())))
    assert result.digests == 1


def test_nothing_is_decided_before_it_has_been_recorded():
    order = []

    async def story(router, record):
        record.on_step = lambda events, actions: order.extend(type(action) for action in actions)
        async with trio.open_nursery() as nursery:
            async def client(name):
                async with router.admit(Request(name, 8)):
                    order.append(name)

            for name in "ab":
                nursery.start_soon(client, name)

    play(story, 1, **WAITS).check()
    assert order[0] is Dispatch
    assert sorted(map(str, order[1:])) == sorted(map(str, [Park, "a", Dispatch, "b"]))
