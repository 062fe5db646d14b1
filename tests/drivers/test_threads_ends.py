"""The driver for threads: facts, reads, ends, and what is put at awkward moments. test_threads.py has the rest."""

from __future__ import annotations

import gc
import io
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from kvcore.drivers.owner import Job
from kvcore.drivers.threads import Answer, Closed, Rejected, open_scheduler
from live_hand import WAITS
from live_threads import PATIENCE_S, opened, run, threads, until
from live_trio import Record

from kvcore.actions import Dispatch, EvictReason, RejectReason
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidEvent
from kvcore.events import (
    CapacityHinted,
    RequestArrived,
    RequestCancelled,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.request import Rank, Request, WorkerConfig

# Facts and reads.


def test_facts_barriers_and_reads():
    with opened(1, **WAITS) as (router, _):
        assert router.submit(WorkerUpserted, WorkerConfig(2), incarnation=3) is Answer.APPLIED
        answer = router.submit_many([
            lambda now_ns: WorkerRemoved(now_ns, 2), lambda now_ns: RequestCancelled(now_ns, "nobody")])
        assert answer is Answer.NO_CHANGE
        with pytest.raises(InvalidEvent):
            router.submit(WorkerUpserted, WorkerConfig(1, dp_size=0))
        with router.admit(Request("a", 8)) as lease:
            lease.prefill_done()
            assert router.recheck() is True
            assert router.loads()["prefill_tokens"].tolist() == [0]
            assert isinstance(router.peek(Request("b", 8)), Dispatch)
            router.hint([Rank(1)])
            assert router.read(lambda core, text: core.digest() + text, "!")[-1] == "!"
        with pytest.raises(Rejected, match="DEADLINE_EXPIRED"), router.admit(Request("c", 8)), router.admit(
                Request("d", 8, deadline_ns=router.now_ns() + 1_000_000)):
            pass
    with opened(1) as (router, _record):
        assert router.recheck() is False


# Ends.


def test_leaving_the_router_rejects_and_evicts():
    told = threading.Event()
    with opened(1, tap=lambda *step: None, **WAITS) as (router, _):
        lease = router.admit(Request("a", 8), on_evict=lambda lease: told.set())
        lease.__enter__()
        future = router.admit_later(Request("b", 8))
    assert told.is_set()
    assert lease.evicted.reason is EvictReason.DRAIN_DEADLINE
    with pytest.raises(Rejected, match="SHUTTING_DOWN"):
        future.result(PATIENCE_S)
    core = router._owner.core
    assert (core.stats().live_requests, core.stats().running_requests) == (1, 0)
    lease.__exit__(None, None, None)
    assert core.stats().live_requests == 0
    for call in (router.stats, router.recheck, router.drain, router.hint):
        with pytest.raises(Closed):
            call()
    with pytest.raises(Closed), router.admit(Request("c", 8)):
        pass
    assert not router._thread.is_alive()


def test_a_drain_waits_for_what_runs():
    with opened(1) as (router, record):
        lease = router.admit(Request("a", 8))
        lease.__enter__()
        with threads(lambda: router.drain(10**15)) as (drain,):
            until(lambda: record.of(type(record.steps[-1][0][0])) and "Drained" in str(record.steps[-1]))
            assert not drain.done()
            lease.__exit__(None, None, None)
    with opened(1) as (router, record), router.admit(Request("a", 8)) as lease:
        router.drain()
        assert lease.evicted.reason is EvictReason.DRAIN_DEADLINE


def test_closing_under_fire():
    """Clients that come, wait, time out and leave while the router closes: each gets an answer, nothing stays."""
    for _ in range(20):
        answers, reasons = [], set()

        def client(router, number, answers=answers, reasons=reasons):
            for i in range(10_000):
                try:
                    with router.admit(Request(f"{number}-{i}", 8), timeout_s=PATIENCE_S):
                        pass
                except Rejected as error:
                    reasons.add(error.reason)
                except Closed:
                    answers.append(number)
                    return

        record = Record()
        with ThreadPoolExecutor(6) as pool, open_scheduler(
                SchedulerConfig(**WAITS), tap=record.tap, inbox_max=2) as router:
            router.upsert_worker(WorkerConfig(1))
            for number in range(6):
                pool.submit(client, router, number)
            until(lambda record=record: len(record.of(Dispatch)) > 10)
        assert sorted(answers) == list(range(6))
        assert reasons <= {RejectReason.SHUTTING_DOWN}
        stats = router._owner.core.stats()
        assert (stats.live_requests, router._owner.core.audit()) == (0, [])


def test_leases_that_outlive_the_router_end_in_any_thread():
    with opened(1, tap=lambda *step: None) as (router, _):
        leases = [router.admit(Request(f"r{i}", 8)) for i in range(200)]
        for lease in leases:
            lease.__enter__()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda lease: lease.__exit__(None, None, None), leases))
    assert (router._owner.core.stats().live_requests, router._owner.core.stats().completed) == (0, 200)


def broken_tap(after: type):
    def tap(events, actions, core):
        if isinstance(events[0], after):
            raise OSError("disk full")
    return tap


def test_a_failing_tap_ends_the_router_with_its_exception():
    seen = []

    def story():
        with opened(1, tap=broken_tap(RequestArrived)) as (router, _):
            seen.append(router._owner.core)
            with pytest.raises(Closed) as caught, router.admit(Request("a", 8)):
                pass
            assert isinstance(caught.value.__cause__, OSError)
            until(lambda: router._owner.is_done)
            with pytest.raises(Closed):
                router.stats()

    with pytest.raises(OSError, match="disk full"):
        story()
    assert seen[0].stats().live_requests == 0


def test_a_barrier_that_fails_is_answered():
    with pytest.raises(OSError, match="disk full"), opened(
            1, tap=broken_tap(CapacityHinted), **WAITS) as (router, _), pytest.raises(Closed):
        router.recheck()


def test_a_journal_is_a_tap():
    stream = io.StringIO()
    config = SchedulerConfig(**WAITS)
    with JournalWriter(stream, config) as journal, open_scheduler(config, tap=journal.batch) as router:
        router.upsert_worker(WorkerConfig(1))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: run(router, f"r{i}"), range(100)))
    assert replay(JournalReader(io.StringIO(stream.getvalue()))).digests == 1


def test_a_finaliser_may_end_a_lease_wherever_it_runs():
    """A generator dropped inside its block is closed by the collector, in whatever thread that runs: in the owner's,
    too, in the middle of a step's tap."""
    with opened(1) as (router, record):
        def stream(name):
            with router.admit(Request(name, 8)):
                yield

        for i in range(6):
            generator = stream(f"r{i}")
            next(generator)
            cycle = [generator]
            cycle.append(cycle)
            record.on_step = (lambda events, actions: gc.collect()) if i % 2 else None
            del generator, cycle
            router.hint()
            gc.collect()
        record.on_step = None
        until(lambda: router.stats().live_requests == 0)
        assert router.stats().aborted == 6


def test_what_is_put_while_the_owner_goes_to_sleep_is_not_lost():
    """It wakes nobody, because a wake-up seems to be under way; the owner has just thrown that one away."""
    with opened(1) as (router, _):
        reply, armed = Future(), []

        class Late(SimpleQueue):
            def qsize(self):
                if armed:
                    armed.pop()
                    router._is_woken = True
                    router._owner.inbox.append(Job(lambda: "seen", reply))
                    router._wake()
                return super().qsize()

        old, router._news = router._news, Late()
        armed.append(True)
        old.put(None)
        assert reply.result(PATIENCE_S / 4) == "seen"
