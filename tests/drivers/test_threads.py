"""The driver for threads: the same promises with real threads. No test looks at how long anything takes."""

from __future__ import annotations

import gc
import io
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from kvcore.drivers.owner import Job
from kvcore.drivers.threads import Answer, Closed, Misuse, Rejected, Withdrawn, open_scheduler
from live_hand import WAITS
from live_trio import Record

from kvcore.actions import Dispatch, EvictReason, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.errors import InvalidEvent
from kvcore.events import (
    AdmissionReleased,
    CapacityHinted,
    DispatchFailed,
    Outcome,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.request import Overlap, Rank, Request, WorkerConfig

#: Seconds after which something hangs.
PATIENCE_S = 60


@contextmanager
def opened(*workers: int, tap=None, **options):
    """A router over workers of one rank, and its record, which is checked when it has closed."""
    record = Record()
    ours = {name: options.pop(name) for name in ("inbox_max", "clock", "refresh", "mint_ids") if name in options}
    config = SchedulerConfig(**{"block_size": 4, **options})
    with open_scheduler(config, tap=tap or record.tap, **ours) as router:
        for worker_id in workers:
            router.upsert_worker(WorkerConfig(worker_id))
        yield router, record
    if tap is None:
        record.check()


@contextmanager
def threads(*works):
    """Each in a thread of its own; joined at the end, and what they raise is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
        yield futures
        for future in futures:
            future.result(PATIENCE_S)


def until(condition) -> None:
    """Wait for something that another thread brings about."""
    pause = threading.Event()
    for _ in range(PATIENCE_S * 1000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it has not come about")


def waiting(router) -> int:
    return router.stats().waiting_requests


def test_a_request_waits_in_the_core_and_runs_in_its_block():
    with opened(7, **WAITS) as (router, record), router.admit(Request("a", 8)) as lease:
        assert (lease.worker_id, lease.wait_ns) == (7, 0)
        with threads(lambda: run(router, "b")):
            until(lambda: waiting(router) == 1)
            lease.prefill_done()
    assert [event.outcome for event in record.of(RequestFinished)] == [Outcome.COMPLETED] * 2


def run(router, name, **fields):
    with router.admit(Request(name, 8, **fields)) as lease:
        lease.accepted()
        lease.output_block()
        return lease.worker_id


def test_many_threads_through_one_owner():
    count = 600
    with opened(*range(4), inbox_max=3, **WAITS) as (router, record):
        with ThreadPoolExecutor(12) as pool:
            workers = list(pool.map(lambda i: run(router, f"r{i}"), range(count)))
        assert router.stats().completed == count
    assert set(workers) == set(range(4))
    assert len(record.of(Dispatch)) == count


def test_an_exception_aborts():
    with opened(1) as (router, _record):
        with pytest.raises(ZeroDivisionError), router.admit(Request("a", 8)):
            _ = 1 // 0
        assert router.stats().aborted == 1


def test_completed_wins_over_what_comes_later():
    def client(router):
        with router.admit(Request("a", 8)) as lease:
            lease.completed(40)
            raise KeyError

    with opened(1) as (router, record), pytest.raises(KeyError):
        client(router)
    assert [event.outcome for event in record.of(RequestFinished)] == [Outcome.COMPLETED]


def test_misuse_is_its_callers_alone():
    with opened(1) as (router, record):
        admission = router.admit(Request("a", 8))
        with admission as lease:
            with pytest.raises(Misuse):
                admission.__enter__()
            with pytest.raises(Rejected) as caught, router.admit(Request("a", 8)):
                pass
            assert caught.value.reason is RejectReason.DUPLICATE_ID
            with pytest.raises(InvalidEvent), router.admit(Request("b", 0)):
                pass
            with pytest.raises(Misuse, match="leases only"):
                router.submit(RequestArrived, Request("c", 8))
        with pytest.raises(Misuse):
            lease.completed()
        with pytest.raises(Misuse):
            lease.again()
        with pytest.raises(Misuse, match="tap"), open_scheduler(tap=record.tap):
            pass
        run(router, "d")


def test_ids_can_be_made_unique():
    with opened(1, mint_ids=True) as (router, _), router.admit(Request("a", 8)) as one, router.admit(
            Request("a", 8)) as two:
        assert (one.request_id, two.request_id) == ("a~1", "a~2")


def test_a_failed_attempt_goes_back_and_comes_again():
    with opened(1, 2) as (router, _record), router.admit(Request("a", 8)) as lease:
        first = lease.worker_id
        lease.failed(retry=True, shun_ns=10**15)
        lease.again()
        assert (lease.worker_id, lease.attempt) == (3 - first, 2)


def test_a_retry_may_be_refused_or_take_too_long():
    with opened(1, attempts_max=1) as (router, _):
        lease = router.admit(Request("a", 8))
        lease.__enter__()
        lease.failed(retry=True)
        with pytest.raises(Rejected, match="RETRIES_EXHAUSTED"):
            lease.again()
        lease.__exit__(None, None, None)
    with opened(1, **WAITS) as (router, _record):
        lease = router.admit(Request("a", 8))
        lease.__enter__()
        lease.failed(retry=True, shun_ns=10**15)
        with pytest.raises(TimeoutError):
            lease.again(timeout_s=0.01)
        lease.__exit__(None, None, None)


# Futures and time-outs.


def test_a_lease_can_be_had_as_a_future():
    with opened(1, **WAITS) as (router, _record):
        first = router.admit_later(Request("a", 8)).result(PATIENCE_S)
        future = router.admit_later(Request("b", 8))
        until(lambda: waiting(router) == 1)
        assert not future.done()
        with first as lease:
            lease.prefill_done()
        with future.result(PATIENCE_S) as lease:
            assert lease.worker_id == 1
            with pytest.raises(Misuse):
                lease.__enter__()
        with pytest.raises(Rejected):
            router.admit_later(Request("c", 8, deadline_ns=1)).result(PATIENCE_S)
        with pytest.raises(InvalidEvent):
            router.admit_later(Request("d", 0)).result(PATIENCE_S)


def test_a_future_can_be_cancelled_while_it_waits():
    with opened(1, **WAITS) as (router, record), router.admit(Request("a", 8)):
        future = router.admit_later(Request("b", 8))
        until(lambda: waiting(router) == 1)
        assert future.cancel()
        until(lambda: waiting(router) == 0)
    assert [event.request_id for event in record.of(RequestCancelled)] == ["b"]


def test_a_future_that_is_cancelled_at_its_decision_is_undone():
    """Cancelled in the tap of the very step that decides: before delivery, after the booking."""
    futures = []

    with opened(1) as (router, record):
        def cancel(events, actions):
            if isinstance(events[0], RequestArrived):
                until(lambda: futures)
                assert futures[0].cancel()

        record.on_step = cancel
        futures.append(router.admit_later(Request("a", 8)))
        until(lambda: record.of(DispatchFailed))
        assert router.stats().live_requests == 0


def test_waiting_can_be_bounded():
    with opened(1, **WAITS) as (router, record), router.admit(Request("a", 8)):
        with pytest.raises(TimeoutError, match="has waited"), router.admit(Request("b", 8), timeout_s=0.01):
            pass
        until(lambda: waiting(router) == 0)
    assert [event.request_id for event in record.of(RequestCancelled)] == ["b"]


def test_a_full_inbox_makes_clients_wait_but_not_leases():
    gate, held = threading.Event(), threading.Event()

    with opened(1, inbox_max=2) as (router, record):
        def hold(events, actions):
            if type(events[0]) is CapacityHinted:
                held.set()
                gate.wait(PATIENCE_S)

        with router.admit(Request("a", 8)) as lease:
            record.on_step = hold
            router.hint()
            held.wait(PATIENCE_S)
            later = [router.admit_later(Request(name, 8)) for name in "bc"]
            with pytest.raises(TimeoutError, match="no room"), router.admit(Request("d", 8), timeout_s=0.01):
                pass
            with pytest.raises(FutureTimeout):
                later[0].result(0.01)
            for _ in range(1000):
                assert lease.output_block() is Answer.APPLIED
            assert lease.completed() is Answer.APPLIED
            gate.set()
        for future in later:
            with future.result(PATIENCE_S):
                pass
    assert not record.of(object, "d")


# Evictions, withdrawals, refreshes.


def test_an_eviction_is_told_in_the_owners_thread():
    told, names = threading.Event(), []

    def on_evict(lease):
        names.append(threading.current_thread().name)
        assert lease.evicted.reason is EvictReason.WORKER_REMOVED
        told.set()

    with opened(1) as (router, _record), router.admit(Request("a", 8), on_evict=on_evict) as lease:
        router.remove_worker(1)
        assert told.wait(PATIENCE_S)
        assert lease.prefill_done() is Answer.NO_CHANGE
        router.upsert_worker(WorkerConfig(2))
        lease.failed(retry=True)
        lease.again()
        assert lease.worker_id == 2
    assert names == ["kvcore-owner"]


def test_on_evict_may_tell_but_not_wait(caplog):
    """No lock is held while it runs; a call that would wait for its own thread is refused."""
    with opened(1) as (router, record):
        def on_evict(lease):
            router.hint()
            lease.failed()
            router.stats()

        with router.admit(Request("a", 8), on_evict=on_evict):
            router.remove_worker(1)
        assert router.stats().live_requests == 0
    assert "would wait for itself" in caplog.text
    assert record.of(CapacityHinted)


def test_others_may_withdraw_a_request():
    with opened(1, **WAITS) as (router, _record):
        told = threading.Event()
        with router.admit(Request("a", 8), on_evict=lambda lease: told.set()) as lease:
            future = router.admit_later(Request("b", 8))
            assert [router.submit(RequestCancelled, name) for name in "ba"] == [Answer.APPLIED] * 2
            assert router.submit(AdmissionReleased, "a") is Answer.NO_CHANGE
            with pytest.raises(Withdrawn):
                future.result(PATIENCE_S)
            assert told.wait(PATIENCE_S)
            assert lease.completed() is Answer.NO_CHANGE
            assert isinstance(lease.error, Withdrawn)


@pytest.mark.parametrize(("outcome", "overlap_blocks"), [("answer", 1), ("error", 0), ("cancelled", 0), ("raise", 0)])
def test_an_outside_index_answers_by_a_future(outcome, overlap_blocks):
    asked: list[Future] = []

    def refresh(request_id, block_hashes):
        assert (request_id, block_hashes) == ("b", (5, 6))
        asked.append(Future())
        if outcome == "raise":
            raise OSError("index is down")
        return asked[0]

    fresh = {"index": IndexMode.OFF, "refresh_after_ns": 1, "refresh_timeout_ns": 10**15, **WAITS}
    with opened(1, refresh=refresh, **fresh) as (router, _record):
        with router.admit(Request("a", 8)):
            future = router.admit_later(Request("b", 8, block_hashes=(5, 6)))
            until(lambda: waiting(router) == 1)
        until(lambda: asked)
        if outcome == "answer":
            asked[0].set_result(Overlap(device=((Rank(1), 1),)))
        elif outcome == "error":
            asked[0].set_exception(OSError("index is down"))
        elif outcome == "cancelled":
            asked[0].cancel()
        with future.result(PATIENCE_S) as lease:
            assert lease.overlap_blocks == overlap_blocks


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
