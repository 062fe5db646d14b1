"""The trio driver: waiting, leases, evictions, refreshes, reads, drains and ends, in virtual time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

import pytest
import trio
from kvcore.drivers.owner import Job
from kvcore.drivers.trio import (
    Answer,
    Evicted,
    Misuse,
    Rejected,
    Withdrawn,
)
from live_hand import WAITS
from live_trio import play
from stories import profile

from kvcore.actions import Dispatch, EvictReason, RejectReason
from kvcore.admission import AdmissionPolicy, Defer
from kvcore.errors import InvalidEvent
from kvcore.events import (
    AdmissionReleased,
    CapacityHinted,
    DispatchFailed,
    Outcome,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import AdmissionSpec
from kvcore.request import Rank, Request, WorkerConfig

S = 10**9


async def hold(router, name: str, seconds: float = 1, *, task_status=trio.TASK_STATUS_IGNORED, **fields) -> None:
    """A client that runs for a while. Tells task_status its lease."""
    async with router.admit(Request(name, 8, **fields)) as lease:
        task_status.started(lease)
        await trio.sleep(seconds)


def test_a_request_waits_in_the_core_and_runs_in_its_block():
    waits = []

    async def story(router, record):
        async def client(name):
            async with router.admit(Request(name, 8)) as lease:
                waits.append((lease.worker_id, lease.wait_ns))
                await trio.sleep(2)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(client, name)

    record = play(story, 7, **WAITS)
    record.check()
    assert waits == [(7, 0), (7, 2 * S), (7, 4 * S)]
    assert [event.outcome for event in record.of(RequestFinished)] == [Outcome.COMPLETED] * 3


def test_times_are_those_of_trio_and_deadlines_fire():
    async def story(router, record):
        await trio.sleep(3)
        assert router.now_ns() == 3 * S
        async with router.admit(Request("a", 8)):
            with pytest.raises(Rejected) as caught:
                async with router.admit(Request("b", 8, deadline_ns=router.now_ns() + 1)):
                    raise AssertionError("it cannot run")
        assert caught.value.reason is RejectReason.DEADLINE_EXPIRED
        assert trio.current_time() == pytest.approx(3, abs=1e-8)

    record = play(story, 1, **WAITS)
    record.check()
    assert TimerFired(3 * S + 1) in record.of(TimerFired)


def test_deadlines_that_no_float_can_hold_fire_all_the_same():
    """A sleep is rounded; the driver must neither spin nor miss the time."""
    async def story(router, record):
        await trio.sleep(98_765_432.1)
        async with router.admit(Request("a", 8)):
            for odd in range(1, 200, 7):
                with pytest.raises(Rejected):
                    await router.admit(Request("b", 8, deadline_ns=router.now_ns() + odd)).__aenter__()

    record = play(story, 1, **WAITS)
    record.check()
    assert len(record.of(TimerFired)) == len(range(1, 200, 7))


def test_an_exception_aborts_and_comes_through_as_it_is():
    async def story(router, record):
        with pytest.raises(ZeroDivisionError):
            async with router.admit(Request("a", 8)):
                _ = 1 // 0

    record = play(story, 1)
    record.check()
    assert record.of(RequestFinished) == [RequestFinished(0, "a", 1, Outcome.ABORTED)]


def test_completed_before_the_last_item_survives_a_cancellation():
    async def story(router, record):
        with trio.move_on_after(1):
            async with router.admit(Request("a", 8)) as lease:
                assert lease.completed(40) is Answer.APPLIED
                await trio.sleep_forever()

    record = play(story, 1)
    record.check()
    assert record.of(RequestFinished) == [RequestFinished(0, "a", 1, Outcome.COMPLETED, 40)]


def test_the_only_way_from_router_to_body_is_the_lease():
    """A lease after its block, and one that is entered twice, are refused; nobody else notices."""
    async def story(router, record):
        admission = router.admit(Request("a", 8))
        async with admission as lease:
            with pytest.raises(Misuse):
                async with admission:
                    pass
        with pytest.raises(Misuse):
            lease.completed()
        with pytest.raises(Misuse, match="follows"):
            await lease.again()
        async with router.admit(Request("b", 8)):
            pass

    record = play(story, 1)
    record.check()
    assert len(record.of(RequestFinished)) == 2


def test_a_duplicate_id_is_refused_or_made_unique():
    async def story(router, record):
        async with router.admit(Request("a", 8)):
            with pytest.raises(Rejected, match="DUPLICATE_ID"):
                async with router.admit(Request("a", 8)):
                    pass

    play(story, 1).check()
    names = []

    async def minted(router, record):
        async with router.admit(Request("a", 8)) as one, router.admit(Request("a", 8)) as two:
            names.extend([one.request_id, two.request_id])

    play(minted, 1, mint_ids=True).check()
    assert names == ["a~1", "a~2"]


def test_a_request_that_is_none_is_its_callers_mistake():
    async def story(router, record):
        with pytest.raises(InvalidEvent):
            async with router.admit(Request("a", 0)):
                pass
        async with router.admit(Request("a", 8)):
            pass

    play(story, 1).check()


# Retries.


def test_a_failed_attempt_goes_back_and_comes_again():
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            first = lease.worker_id
            assert lease.failed(retry=True, shun_ns=5 * S) is Answer.APPLIED
            await lease.again()
            assert (lease.worker_id, lease.attempt) == (3 - first, 2)

    record = play(story, 1, 2)
    record.check()
    assert [event.attempt for event in record.of(Dispatch)] == [1, 2]


def test_where_all_are_shunned_it_waits_for_the_end_of_the_lease():
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            lease.failed(retry=True, shun_ns=5 * S)
            await lease.again()
            assert (trio.current_time(), lease.wait_ns) == (5, 5 * S)

    play(story, 1, **WAITS).check()


def test_a_retry_that_is_refused_raises_the_reason():
    async def client(router):
        async with router.admit(Request("a", 8)) as lease:
            lease.failed(retry=True)
            await lease.again()

    async def story(router, record):
        with pytest.raises(Rejected, match="RETRIES_EXHAUSTED"):
            await client(router)

    play(story, 1, attempts_max=1).check()


def test_leaving_without_again_gives_the_request_up():
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            lease.failed(retry=True)
            await router.stats()  # by now it has been booked again

    record = play(story, 1)
    record.check()
    assert record.of(DispatchFailed) == [DispatchFailed(0, "a", 1, True), DispatchFailed(0, "a", 2, False)]


# Evictions and withdrawals.


def test_an_eviction_cancels_the_block():
    async def story(router, record):
        async with trio.open_nursery() as nursery:
            async def client():
                with pytest.raises(Evicted) as caught:
                    await hold(router, "a", 100)
                assert (caught.value.reason, caught.value.request_id) == (EvictReason.WORKER_REMOVED, "a")
                assert trio.current_time() == 3

            nursery.start_soon(client)
            await trio.sleep(3)
            await router.remove_worker(1)

    record = play(story, 1)
    record.check()
    assert record.of(RequestFinished) == [RequestFinished(3 * S, "a", 1, Outcome.ABORTED)]


def test_an_eviction_may_only_be_a_flag():
    async def story(router, record):
        async with router.admit(Request("a", 8), cancel_on_evict=False) as lease:
            await router.submit_many([
                lambda now_ns: WorkerRemoved(now_ns, 1), lambda now_ns: WorkerUpserted(now_ns, WorkerConfig(2))])
            assert lease.evicted.reason is EvictReason.WORKER_REMOVED
            lease.failed(retry=True)
            await lease.again()
            assert (lease.worker_id, lease.evicted) == (2, None)

    play(story, 1).check()


def test_an_error_of_the_block_is_not_hidden_by_the_eviction():
    async def client(router):
        async with router.admit(Request("a", 8)):
            try:
                await router.remove_worker(1)
                await trio.sleep_forever()
            finally:
                raise ConnectionResetError

    async def story(router, record):
        with pytest.raises(ConnectionResetError):
            await client(router)

    play(story, 1).check()


def test_a_block_that_ends_well_before_it_notices_has_completed():
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            with trio.CancelScope(shield=True):
                await router.remove_worker(1)
            assert lease.evicted is not None

    record = play(story, 1)
    record.check()
    assert [event.outcome for event in record.of(RequestFinished)] == [Outcome.COMPLETED]


def test_one_that_is_evicted_before_its_block_begins():
    """Decision and eviction in one pass of the owner: the block ends at its first checkpoint."""
    seen = []

    async def client(router):
        async with router.admit(Request("a", 8)) as lease:
            seen.append(lease.evicted.reason)
            await trio.lowlevel.checkpoint()
            seen.append("never")

    async def story(router, record):
        def lose_the_worker(events, actions):
            if isinstance(events[0], RequestArrived):
                work = partial(router._owner.submit, [lambda now_ns: WorkerRemoved(now_ns, 1)])
                router._owner.inbox.append(Job(work, Future()))

        record.on_step = lose_the_worker
        with pytest.raises(Evicted):
            await client(router)

    play(story, 1).check()
    assert seen == [EvictReason.WORKER_REMOVED]


def test_others_may_withdraw_a_request():
    async def story(router, record):
        async with trio.open_nursery() as nursery:
            async def client(name):
                with pytest.raises(Withdrawn):
                    await hold(router, name, 100)

            for name in "ab":
                nursery.start_soon(client, name)
            await trio.sleep(1)
            assert [await router.submit(RequestCancelled, name) for name in "ab"] == [Answer.APPLIED] * 2
        assert trio.current_time() == 1
        assert await router.submit(RequestCancelled, "a") is Answer.NO_CHANGE

    record = play(story, 1, **WAITS)
    record.check()
    assert record.of(RequestFinished) == []


# Facts, hints, barriers.


def test_facts_are_stamped_by_the_owner():
    async def story(router, record):
        await trio.sleep(1)
        assert await router.submit(WorkerUpserted, WorkerConfig(1), incarnation=3) is Answer.APPLIED
        assert await router.submit(CapacityHinted, None) is Answer.APPLIED
        with pytest.raises(Misuse, match="leases only"):
            await router.submit(RequestArrived, Request("a", 8))
        with pytest.raises(InvalidEvent):
            await router.submit(WorkerUpserted, WorkerConfig(1, dp_size=0))

    record = play(story)
    assert record.steps[0] == ((WorkerUpserted(S, WorkerConfig(1), 3),), ())
    record.check()


def test_hints_do_not_wait():
    async def story(router, record):
        router.hint([Rank(1)])
        router.hint()
        await router.recheck()

    record = play(story, 1, **WAITS)
    assert record.of(CapacityHinted) == [CapacityHinted(0), CapacityHinted(0)]
    record.check()


def test_another_thread_is_refused():
    caught = []

    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            def elsewhere():
                for call in (lease.completed, router.hint):
                    with pytest.raises(Misuse, match="thread"):
                        call()
                    caught.append(call)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    play(story, 1).check()
    assert len(caught) == 2


def test_a_deferred_request_is_released_from_outside():
    class Door(AdmissionPolicy):
        def decide(self, view):
            return Defer()

    async def story(router, record):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, router, "a")
            await trio.sleep(5)
            assert await router.submit(AdmissionReleased, "a") is Answer.APPLIED
            assert await router.submit(AdmissionReleased, "a") is Answer.NO_CHANGE

    admission = {"door": lambda parameters: Door()}
    record = play(story, 1, admission=admission, profile=profile(admission=AdmissionSpec("door")))
    record.check(admission)
    assert record.of(Dispatch)[0].wait_ns == 5 * S
