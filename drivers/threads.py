"""The driver for threads: the core in a thread of its own, any number of threads as clients, a lease per `with`.

    with open_scheduler(config, tap=journal.batch) as router:
        router.submit(WorkerUpserted, WorkerConfig(7))
        with router.admit(request) as lease:            # waits in the core's queue
            for item in stream_from(lease.worker_id, request):
                ...

As kvcore.drivers.trio, with waiting calls in place of `await`, and futures where a thread should not wait. Leaving a
block normally completes its request, an exception aborts it, unless the lease has been told how it ended. No lock is
held while anybody else's code runs: the inbox and the list of what was told are the only meeting points.

Safe at exit and after fork: a router that is still open when the interpreter ends is closed then, so that no thread of
a pool waits for ever; in a forked child it is Closed, and its leases change nothing.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  its pools end after our routers, because it registers before us
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from kvcore.actions import Dispatch, Park, RefreshOverlap, Reject
from kvcore.admission import Factory
from kvcore.config import SchedulerConfig
from kvcore.events import AnyEvent, WorkerRemoved, WorkerUpserted
from kvcore.explanation import Explanation, QueueEntry
from kvcore.replica import PeerFact
from kvcore.request import Overlap, Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler
from kvcore.stats import SchedulerStats

from .desk import Desk
from .lease import Lease as PlainLease
from .owner import Fault, Job
from .protocol import Answer, Clock, Closed, Make, Misuse, Rejected, Reply, Tap, Withdrawn, maker
from .thread_lease import ThreadLease as Lease

__all__ = ["Answer", "Closed", "Lease", "Misuse", "Rejected", "Router", "Withdrawn", "open_scheduler"]

P = ParamSpec("P")
T = TypeVar("T")
#: What an outside index is: given a request's id and block hashes, it returns at once a future of what is cached where.
Refresh = Callable[[str, tuple[int, ...]], "Future[Overlap | None]"]

#: Carries a fact to the other replicas; called by the owner, must not wait.
Publish = Callable[[PeerFact], object]

INBOX_MAX = 4096
#: Longest sleep: some platforms cannot wait for years.
NAP_S = 3600.0
#: How long the end of the interpreter waits for an owner that a tap holds up.
EXIT_S = 2.0

log = logging.getLogger("kvcore.drivers")


class Router:
    """The way to a core that a thread owns. Made by `open_scheduler`; any thread may call it."""

    def __init__(
        self, core: Scheduler, inbox_max: int, tap: Tap | None, clock: Clock, refresh: Refresh | None,
        publish: Publish | None, mint_ids: bool,
    ) -> None:
        self._pid, self._ending, self._clock = os.getpid(), False, clock
        self._room, self._news = threading.Semaphore(inbox_max), SimpleQueue[None]()
        self._is_woken = False
        self._refresh, self._mint = refresh, count(1) if mint_ids else None
        ask = None if refresh is None else self._ask_outside
        self._owner = Desk(
            core, clock, tap, wake=self._wake, took=self._room.release, ask=ask, tell_peers=publish)
        self._thread = threading.Thread(target=self._own, name="kvcore-owner", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    # Requests.

    def admit(
        self, request: Request, *, timeout_s: float | None = None, on_evict: Callable[[Lease], object] | None = None,
    ) -> Lease:
        """A lease to be entered with `with`: waits for room in the inbox, then for the core's decision.

        timeout_s: for each of the two; then it is given up with TimeoutError. on_evict: see Lease.
        Raises, from `with`: Rejected, Withdrawn, Closed; InvalidEvent for a request that cannot be one.
        """
        if self._mint is not None:
            request = replace(request, request_id=f"{request.request_id}~{next(self._mint)}")
        return Lease(request, self._put, self._owner.told, self._owner.live, on_evict, timeout_s)

    def admit_later(self, request: Request, *, on_evict: Callable[[Lease], object] | None = None) -> Future[Lease]:
        """As `admit`, without waiting for the decision: `with future.result() as lease`. It can be cancelled."""
        return self.admit(request, on_evict=on_evict).later()

    # Facts.

    def submit(self, kind: Callable[Concatenate[int, P], AnyEvent], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Step a fact of this kind, stamped now: submit(WorkerRemoved, 7). NO_CHANGE: it was about nothing live.

        Waits for room in the inbox and until it has been stepped. Facts about workers and caches that are stale are
        only counted (stats). Raises InvalidEvent, Closed; Misuse for facts that are a lease's to tell.
        """
        return self.submit_many([maker(kind, *args, **kwargs)])

    def submit_many(self, makes: Sequence[Make]) -> Answer:
        """Step several facts at once, each made from the time that it is given."""
        answer: Answer = self._ask(lambda _: self._owner.submit(makes))
        return answer

    def upsert_worker(self, config: WorkerConfig, incarnation: int = 0) -> Answer:
        """A worker is there, or has another configuration."""
        return self.submit(WorkerUpserted, config, incarnation)

    def remove_worker(self, worker_id: int) -> Answer:
        """A worker is gone."""
        return self.submit(WorkerRemoved, worker_id)

    def hint(self, ranks: Sequence[Rank] | None = None) -> None:
        """Somebody has seen room on these ranks (None: anywhere). Waits for nothing, not even room in the inbox."""
        self._check()
        self._owner.hint(ranks)

    def recheck(self) -> bool:
        """A barrier: True once all that leases have told before, and then a recheck of every head, has been stepped.

        False, at once and without a barrier, where no class ever waits for capacity.
        """
        self._may_wait()
        reply: Future[bool] = Future()
        self._owner.recheck(reply)
        return reply.result()

    def drain(self, grace_ns: int = 0) -> None:
        """Let nothing more in, reject what waits; return when nothing runs, at the latest when the grace is over."""
        self._ask(lambda reply: self._owner.drain(grace_ns, reply))

    # Reading, in the order of the inbox.

    def read(self, function: Callable[Concatenate[Scheduler, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a pure function of the core returns: read(Scheduler.digest)."""
        answer: T = self._ask(lambda _: function(self._owner.core, *args, **kwargs))
        return answer

    def peek(self, request: Request) -> Dispatch | Park | Reject | RefreshOverlap:
        """What would become of this request."""
        return self.read(Scheduler.peek, request)

    def stats(self) -> SchedulerStats:
        """Counters and gauges."""
        return self.read(Scheduler.stats)

    def loads(self) -> npt.NDArray[np.void]:
        """Load of every rank."""
        return self.read(Scheduler.loads)

    def explain(self, request_id: str) -> Explanation:
        """Why this request is where it is."""
        return self.read(Scheduler.explain, request_id)

    def queue_dump(self, limit: int) -> tuple[QueueEntry, ...]:
        """What waits, those that have stood longest first."""
        return self.read(Scheduler.queue_dump, limit)

    def now_ns(self) -> int:
        """The core's time, about: what deadlines count from."""
        return self._clock()

    # The thread that owns the core.

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise Closed("a router does not survive a fork: open another one in the child")
        if not self._owner.is_open:
            raise self._owner.closed(self._owner.fault)

    def _may_wait(self) -> None:
        self._check()
        if threading.get_ident() == self._thread.ident:
            raise Misuse("the owner's thread would wait for itself: taps, on_evict and callbacks must not")

    def _put(self, item: PlainLease | Job, timeout_s: float | None = None) -> None:
        self._may_wait()
        if not self._room.acquire(timeout=timeout_s):
            raise TimeoutError(f"no room in the inbox for {timeout_s} s")
        if not self._owner.is_open:
            self._room.release()  # to the next who waits
            raise self._owner.closed(self._owner.fault)
        self._owner.inbox.append(item)
        self._wake()
        if self._owner.is_done:
            self._owner.sweep()

    def _ask(self, work: Callable[[Reply], object]) -> Any:
        reply: Future[Any] = Future()
        self._put(Job(lambda: work(reply), reply))
        return reply.result()

    def _wake(self) -> None:
        """One wake-up for all that is told until the owner looks. Callable from anywhere, finalisers included."""
        if not self._is_woken:
            self._is_woken = True
            self._news.put(None)

    def _own(self) -> None:
        owner = self._owner
        try:
            while not self._ending:
                if not (owner.turn() or owner.tick()):
                    self._sleep()
        except Fault as fault:
            owner.close(fault.__cause__)
        except BaseException as error:
            log.exception("the owner has failed")
            owner.close(error)
        else:
            owner.close()
        self._room.release()  # whoever waits for room hears of it, one after the other

    def _sleep(self) -> None:
        for _ in range(self._news.qsize()):
            self._news.get()
        self._is_woken = False
        # What was put before the flag fell has woken nobody: look once more.
        if self._ending or self._owner.turn() or self._owner.tick():
            return
        idle_s = self._owner.idle_s()
        with suppress(Empty):
            self._news.get(timeout=NAP_S if idle_s is None else min(idle_s, NAP_S))

    def _close(self, wait_s: float | None = None) -> None:
        if os.getpid() != self._pid:
            return
        self._ending = True
        self._news.put(None)
        if threading.get_ident() != self._thread.ident:
            self._thread.join(wait_s)
        _OPEN.discard(self)

    def _ask_outside(self, question: RefreshOverlap) -> None:
        try:
            assert self._refresh is not None
            self._refresh(question.request_id, question.block_hashes).add_done_callback(
                lambda done: self._answer(question, done))
        except Exception:
            log.exception("refresh has failed", extra={"request_id": question.request_id})
            self._owner.answer(question, None)

    def _answer(self, question: RefreshOverlap, done: Future[Overlap | None]) -> None:
        overlap = None
        if done.cancelled() or done.exception() is not None:
            log.error("refresh has failed", exc_info=None if done.cancelled() else done.exception(),
                      extra={"request_id": question.request_id})
        else:
            overlap = done.result()
        self._owner.answer(question, overlap)


#: Routers to close when the interpreter ends.
_OPEN: WeakSet[Router] = WeakSet()


def _close_all() -> None:
    """Called before threads of pools are joined: they may be waiting for a lease."""
    for router in list(_OPEN):
        router._close(EXIT_S)


# atexit alone comes too late: after threads that are no daemons, those of pools among them, have been joined.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


@contextmanager
def open_scheduler(
    config: SchedulerConfig | None = None, *, admission: Mapping[str, Factory] | None = None,
    inbox_max: int = INBOX_MAX, tap: Tap | None = None, clock: Clock = time.monotonic_ns,
    refresh: Refresh | None = None, publish: Publish | None = None, mint_ids: bool = False,
) -> Iterator[Router]:
    """A scheduler that lives as long as the block. Leaving it rejects what waits and evicts what runs.

    The tap, on_evict, refresh, publish and done-callbacks of futures run in the owner's thread: they must not wait for
    the router. clock: it should run like the monotonic clock, by which the owner sleeps. The rest is as in
    kvcore.drivers.trio.
    Raises what has made the owner fail: an exception of the tap or of an admission policy.
    """
    router = Router(Scheduler(config, admission=admission), inbox_max, tap, clock, refresh, publish, mint_ids)
    try:
        yield router
    finally:
        router._close()
        if router._owner.fault is not None:
            raise router._owner.fault
