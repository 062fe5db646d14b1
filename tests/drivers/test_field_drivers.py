"""Field reports that only a driver can show: clients that go, transports that fail, workers that fall silent.

Each test names the report that it guards against; rows about the core alone are elsewhere.
"""

from __future__ import annotations

import gc
import threading
import weakref
from random import Random

import pytest
import trio
import trio.testing
from kvcore.drivers import threads
from kvcore.drivers.trio import Answer, Closed, Evicted, Rejected, open_scheduler
from live_hand import WAITS, Hand
from live_trio import play, run

from kvcore.actions import Dispatch, EvictReason
from kvcore.config import SchedulerConfig
from kvcore.events import DispatchFailed, Outcome, PrefillCompleted, RequestCancelled, RequestFinished
from kvcore.request import Request, WorkerConfig

S = 10**9


def test_E10_a_client_that_goes_is_seen_though_its_upstream_is_silent():
    """vllm#18784, vllm-router#215, smg#2064, smg#2136: the counter went down only when a chunk was sent."""
    async def story(router, record):
        async def client(gone):
            async with trio.open_nursery() as nursery:
                async def watch():
                    await gone.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                async with router.admit(Request("a", 8)):
                    await trio.sleep_forever()  # the upstream says nothing

        gone = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client, gone)
            await trio.sleep(5)
            assert (await router.stats()).running_requests == 1
            gone.set()
            await trio.testing.wait_all_tasks_blocked()
            assert record.of(RequestFinished) == [RequestFinished(5 * S, "a", 1, Outcome.ABORTED)]

    play(story, 1).check()


def test_E10_threads_watch_the_client_beside_the_stream():
    """The same without cancellation: whoever sees the client go says so; the stuck thread changes nothing any more."""
    with threads.open_scheduler() as router:
        router.upsert_worker(WorkerConfig(1))
        silent, entered = threading.Event(), threading.Event()
        leases = []

        def client():
            with router.admit(Request("a", 8)) as lease:
                leases.append(lease)
                entered.set()
                silent.wait(60)

        thread = threading.Thread(target=client)
        thread.start()
        assert entered.wait(60)
        assert leases[0].failed() is Answer.APPLIED
        assert router.stats().running_requests == 0
        silent.set()
        thread.join()
        assert (router.stats().aborted, router.stats().completed) == (1, 0)


def test_E11_accounting_first_then_the_transport_that_fails_to_close():
    """sglang-omni#931: an exception in aclose() skipped the decrement."""
    class Transport:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *reason):
            raise OSError("already closed")

    async def inside(router):
        async with router.admit(Request("inside", 8)) as lease, Transport():
            lease.completed()

    async def outside(router):
        async with Transport(), router.admit(Request("outside", 8)):
            pass

    async def story(router, record):
        for client, outcome in ((inside, Outcome.COMPLETED), (outside, Outcome.COMPLETED)):
            with pytest.raises(OSError, match="already closed"):
                await client(router)
            await trio.testing.wait_all_tasks_blocked()
            assert record.of(RequestFinished)[-1].outcome is outcome

    play(story, 1).check()


def test_E4_a_response_that_cannot_be_delivered_is_undone():
    """dynamo#10331: capacity stayed reserved when the channel of the answer was closed while it was being booked."""
    hand = Hand(1, **WAITS)
    busy = hand.admit("busy")
    gone, patient = hand.admit("gone"), hand.admit("patient")
    busy.completed()
    hand.turns()
    gone.abandon()  # decided, not taken over
    hand.turns()
    assert [event for events, _ in hand.steps for event in events if isinstance(event, DispatchFailed)] == [
        DispatchFailed(0, "gone", 2)]
    assert patient.is_decided
    patient.take_over()
    patient.completed()
    hand.turns()
    assert (hand.core.stats().live_requests, hand.core.audit()) == (0, [])


@pytest.mark.parametrize("first", ["completed", "cancelled"])
def test_E13_an_end_from_two_sides_counts_once(first):
    """aibrix#2226: released by the sync path and again by an asynchronous change of state."""
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            if first == "completed":
                assert lease.completed() is Answer.APPLIED
                assert await router.submit(RequestCancelled, "a") is Answer.NO_CHANGE
            else:
                with trio.CancelScope(shield=True):
                    assert await router.submit(RequestCancelled, "a") is Answer.APPLIED
                assert lease.completed() is Answer.NO_CHANGE
        stats = await router.stats()
        assert stats.completed + stats.aborted == 1

    play(story, 1).check()


def test_E16_a_release_is_told_once_however_often_it_is_called():
    """dynamo#13042: one failed call to free, no retry, charged for ever. Here nothing can fail on the way."""
    hand = Hand(1)
    lease = hand.admit("a", 40)
    assert [bool(lease.completed()) for _ in range(3)] == [True, False, False]
    hand.turns()
    assert hand.heard().count("RequestFinished a") == 1
    assert hand.core.loads()["prefill_tokens"].tolist() == [0]


@pytest.mark.parametrize("seed", range(3))
def test_E17_nobody_hangs_while_workers_come_and_go(seed):
    """dynamo#13088: 1.6 % of requests hung after selection until the client gave up."""
    random, ends = Random(seed), []

    async def story(router, record):
        async def client(name):
            try:
                async with router.admit(Request(name, 8)) as lease:
                    lease.accepted()
                    await (trio.sleep_forever() if random.random() < 0.3 else trio.sleep(random.random()))
                ends.append("completed")
            except (Evicted, Rejected) as error:
                ends.append(error.reason.name)

        async def churn():
            incarnation = 0
            while True:
                await trio.sleep(random.expovariate(2))
                incarnation += 1
                worker_id = random.randint(1, 3)
                if random.random() < 0.5:
                    await router.remove_worker(worker_id)
                await router.upsert_worker(WorkerConfig(worker_id), incarnation)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(churn)
            async with trio.open_nursery() as clients:
                for i in range(200):
                    clients.start_soon(client, f"r{i}")
                    await trio.sleep(random.expovariate(20))
            nursery.cancel_scope.cancel()

    play(story, 1, 2, 3, booking_ttl_ns=20 * S, seed=seed).check()
    assert len(ends) == 200
    assert {"completed", "WORKER_REMOVED"} <= set(ends)


def test_E22_what_is_left_of_the_first_attempt_does_not_touch_the_second():
    """dynamo#14123: the cleanup of a failed attempt came late and freed the new one."""
    hand = Hand(1)
    lease = hand.admit("a")
    old = lease._held
    lease.failed(retry=True)
    hand.turns()
    lease.take_over()
    assert lease.attempt == 2
    old.ends.append(old.ends[0])  # as a second holder of the first attempt would
    old.prefilled = True
    hand.told.tell(lease)
    assert hand.hear() == []
    assert hand.core.stats().running_requests == 1


def test_E79_a_shutdown_answers_everybody():
    """llm-d-router#2156, llm-d-router#2099: queued requests were left without an answer."""
    answers = []

    async def client(router, name):
        try:
            async with router.admit(Request(name, 8)):
                await trio.sleep(1000)
            answers.append("completed")
        except (Rejected, Evicted) as error:
            answers.append(error.reason.name)
        except Closed:
            answers.append("closed")

    async def main():
        async with trio.open_nursery() as nursery:
            async with open_scheduler(SchedulerConfig(**WAITS), inbox_max=3) as router:
                await router.upsert_worker(WorkerConfig(1))
                for i in range(20):
                    nursery.start_soon(client, router, f"r{i}")
                await trio.sleep(1)
                for i in range(20, 30):
                    nursery.start_soon(client, router, f"r{i}")
                await trio.sleep(0)
            assert trio.current_time() == 1

    run(main)
    assert len(answers) == 30
    assert answers.count("DRAIN_DEADLINE") == 1
    assert answers.count("SHUTTING_DOWN") >= 19


def test_E110_the_time_of_the_first_token_is_kept():
    """aibrix#2477, aibrix#2481: time to first token was taken from the last chunk."""
    async def story(router, record):
        async with router.admit(Request("a", 8)) as lease:
            for second in range(3):
                await trio.sleep(1)
                assert bool(lease.prefill_done()) is (second == 0)
        assert record.of(PrefillCompleted) == [PrefillCompleted(S, "a", 1)]

    play(story, 1).check()


def test_E116_routers_that_come_and_go_leave_nothing_behind():
    """dynamo#10729: memory and threads grew under churn."""
    alive, before = [], threading.active_count()

    async def main():
        tasks = trio.lowlevel.current_statistics().tasks_living
        for _ in range(20):
            async with open_scheduler(tap=lambda *step: None) as router:
                await router.upsert_worker(WorkerConfig(1))
                async with router.admit(Request("a", 8)):
                    pass
            alive.append(weakref.ref(router))
            del router
        assert trio.lowlevel.current_statistics().tasks_living == tasks

    run(main)
    for _ in range(20):
        with threads.open_scheduler(tap=lambda *step: None) as router:
            router.upsert_worker(WorkerConfig(1))
            with router.admit(Request("a", 8)):
                pass
        alive.append(weakref.ref(router))
        del router
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []
    assert threading.active_count() == before
    assert len(threads._OPEN) == 0


def test_E121_every_lease_says_how_long_it_has_waited():
    """llm-d-router#2486 and those with it: clients saw queueing only when they were rejected."""
    waits = []

    async def story(router, record):
        async def client(name):
            async with router.admit(Request(name, 8)) as lease:
                waits.append(lease.wait_ns)
                await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(client, name)
        assert [action.wait_ns for action in record.of(Dispatch)] == waits

    play(story, 1, **WAITS).check()
    assert waits == [0, S, 2 * S]


def test_E31_a_silent_worker_is_given_up_and_its_holder_hears_of_it():
    """dynamo#10564 and others: what nobody keeps alive ends by itself."""
    async def story(router, record):
        with pytest.raises(Evicted) as caught:
            async with router.admit(Request("a", 8)):
                await trio.sleep_forever()
        assert caught.value.reason is EvictReason.BOOKING_EXPIRED
        assert trio.current_time() == 30

    play(story, 1, booking_ttl_ns=30 * S).check()
