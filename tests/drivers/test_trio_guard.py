"""The guard of a run: a lease whose block outlives its booking, and can put its request back."""

from __future__ import annotations

import pytest
import trio
from kvcore.drivers.trio import Evicted, Rejected
from live_trio import play

from kvcore.actions import EvictReason, RejectReason
from kvcore.events import DispatchFailed, RequestFinished
from kvcore.request import Request


def test_a_run_whose_worker_is_removed_is_left_and_the_request_goes_to_another_one():
    seen = []

    async def story(router, record):
        async with router.admit(Request("a", 8), cancel_on_evict=False) as lease:
            first = lease.worker_id
            with lease.guard() as scope:
                await router.remove_worker(first)
                await trio.sleep_forever()
            seen.append((scope.cancelled_caught, lease.evicted.reason))
            lease.failed(retry=True)
            await lease.again()
            with lease.guard() as scope:
                await trio.sleep(1)
            seen.append((scope.cancelled_caught, lease.evicted, lease.worker_id != first))

    record = play(story, 7, 8)
    record.check()
    assert seen == [(True, EvictReason.WORKER_REMOVED), (False, None, True)]
    assert [event.retry for event in record.of(DispatchFailed)] == [True]
    assert len(record.of(RequestFinished)) == 1


def test_a_guard_of_a_booking_that_is_gone_is_cancelled_at_once():
    async def story(router, record):
        async with router.admit(Request("a", 8), cancel_on_evict=False) as lease:
            await router.remove_worker(lease.worker_id)
            with lease.guard() as scope:
                await trio.sleep_forever()
            assert scope.cancelled_caught
            lease.failed(retry=True)
            with pytest.raises(Rejected) as caught:
                await lease.again()
            assert caught.value.reason is RejectReason.NO_WORKERS

    play(story, 7).check()


def test_a_guard_changes_nothing_for_a_block_that_is_cancelled_itself():
    async def story(router, record):
        async def run():
            async with router.admit(Request("a", 8)) as lease:
                with lease.guard():
                    await router.remove_worker(lease.worker_id)
                    await trio.sleep_forever()
                await trio.sleep_forever()

        with pytest.raises(Evicted) as caught:
            await run()
        assert caught.value.reason is EvictReason.WORKER_REMOVED

    play(story, 7).check()
