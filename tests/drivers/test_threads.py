"""The driver for threads: the same promises with real threads. No test looks at how long anything takes."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from kvcore.drivers.threads import Answer, Misuse, Rejected, Withdrawn, open_scheduler
from live_hand import WAITS
from live_threads import PATIENCE_S, opened, run, threads, until, waiting

from kvcore.actions import Dispatch, EvictReason, RejectReason
from kvcore.config import IndexMode
from kvcore.errors import InvalidEvent
from kvcore.events import (
    AdmissionReleased,
    CapacityHinted,
    DispatchFailed,
    Outcome,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
)
from kvcore.request import Overlap, Rank, Request, WorkerConfig


def test_a_request_waits_in_the_core_and_runs_in_its_block():
    with opened(7, **WAITS) as (router, record), router.admit(Request("a", 8)) as lease:
        assert (lease.worker_id, lease.wait_ns) == (7, 0)
        with threads(lambda: run(router, "b")):
            until(lambda: waiting(router) == 1)
            lease.prefill_done()
    assert [event.outcome for event in record.of(RequestFinished)] == [Outcome.COMPLETED] * 2


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
            with pytest.raises(Misuse, match=r"submit\(RequestCancelled, \.\.\.\)"):
                router.submit(RequestCancelled(0, "a"))
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
