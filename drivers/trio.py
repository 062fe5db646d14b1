"""The trio driver: the core in a task of its own, a lease per `async with`.

    async with open_scheduler(config, tap=journal.batch) as router:
        await router.submit(WorkerUpserted, WorkerConfig(7))
        async with router.admit(request) as lease:      # waits in the core's queue
            async for item in stream_from(lease.worker_id, request):
                ...

The block of a lease is cancelled when its booking is taken away, and Evicted comes out of it. Leaving it normally
completes the request, an exception or a cancellation aborts it, unless the lease has been told how it ended. Wherever a
cancellation lands, nothing stays booked. All calls belong to the thread that runs trio.

Time is trio's, so it works under trio.testing.MockClock; deadlines of requests are in `router.now_ns()`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from threading import get_ident
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import trio

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
from .protocol import Answer, Clock, Closed, Evicted, Make, Misuse, Rejected, Tap, Withdrawn, maker
from .told import FACTS_MAX
from .trio_lease import Reply
from .trio_lease import TrioLease as Lease

__all__ = ["Answer", "Closed", "Evicted", "Lease", "Misuse", "Rejected", "Router", "Withdrawn", "open_scheduler"]

P = ParamSpec("P")
T = TypeVar("T")
#: What an outside index is: given a request's id and block hashes, it says what is cached where, or None.
Refresh = Callable[[str, tuple[int, ...]], Awaitable[Overlap | None]]

#: Carries a fact to the other replicas; called by the owner, must not wait.
Publish = Callable[[PeerFact], object]

INBOX_MAX = 4096

log = logging.getLogger("kvcore.drivers")


def trio_ns() -> int:
    """trio's clock in nanoseconds."""
    return round(trio.current_time() * 1e9)


class Router:
    """The way to a core that a task of trio owns. Made by `open_scheduler`."""

    def __init__(
        self, core: Scheduler, inbox_max: int, tap: Tap | None, clock: Clock, refresh: Refresh | None,
        publish: Publish | None, mint_ids: bool,
    ) -> None:
        self._thread = get_ident()
        self._room, self._news = trio.Semaphore(inbox_max), trio.Event()
        self._block, self._life = trio.CancelScope(), trio.CancelScope(shield=True)
        self._nursery: trio.Nursery | None = None
        self._refresh, self._mint = refresh, count(1) if mint_ids else None
        self._is_trio_time = clock is trio_ns
        ask = None if refresh is None else self._ask_outside
        self._owner = Desk(
            core, clock, tap, wake=self._wake, took=self._room.release, ask=ask, tell_peers=publish)

    # Requests.

    def admit(self, request: Request, *, cancel_on_evict: bool = True) -> Lease:
        """A lease to be entered with `async with`: waits for room in the inbox, then for the core's decision.

        cancel_on_evict: cancel the block when the booking is taken away; without, `lease.evicted` tells.
        Raises, from `async with`: Rejected, Evicted, Withdrawn, Closed; InvalidEvent for a request that cannot be one.
        """
        if self._mint is not None:
            request = replace(request, request_id=f"{request.request_id}~{next(self._mint)}")
        return Lease(request, self._put, self._owner.told, self._owner.live, cancel_on_evict)

    # Facts.

    async def submit(self, kind: Callable[Concatenate[int, P], AnyEvent], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Step a fact of this kind, stamped now: submit(WorkerRemoved, 7). NO_CHANGE: it was about nothing live.

        Waits for room in the inbox and until it has been stepped. Facts about workers and caches that are stale are
        only counted (stats). Raises InvalidEvent, Closed; Misuse for facts that are a lease's to tell.
        """
        return await self.submit_many([maker(kind, *args, **kwargs)])

    async def submit_many(self, makes: Sequence[Make]) -> Answer:
        """Step several facts at once, each made from the time that it is given."""
        answer: Answer = await self._ask(lambda _: self._owner.submit(makes))
        return answer

    async def upsert_worker(self, config: WorkerConfig, incarnation: int = 0) -> Answer:
        """A worker is there, or has another configuration."""
        return await self.submit(WorkerUpserted, config, incarnation)

    async def remove_worker(self, worker_id: int) -> Answer:
        """A worker is gone."""
        return await self.submit(WorkerRemoved, worker_id)

    def hint(self, ranks: Sequence[Rank] | None = None) -> None:
        """Somebody has seen room on these ranks (None: anywhere). Waits for nothing, not even room in the inbox."""
        self._check()
        self._owner.hint(ranks)

    async def recheck(self) -> bool:
        """A barrier: True once all that leases have told before, and then a recheck of every head, has been stepped.

        False, at once and without a barrier, where no class ever waits for capacity.
        """
        self._check()
        reply = Reply()
        self._owner.recheck(reply)
        return bool(await reply.wait())

    async def drain(self, grace_ns: int = 0) -> None:
        """Let nothing more in, reject what waits; return when nothing runs, at the latest when the grace is over."""
        await self._ask(lambda reply: self._owner.drain(grace_ns, reply))

    # Reading, in the order of the inbox.

    async def read(self, function: Callable[Concatenate[Scheduler, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a pure function of the core returns: read(Scheduler.digest)."""
        answer: T = await self._ask(lambda _: function(self._owner.core, *args, **kwargs))
        return answer

    async def peek(self, request: Request) -> Dispatch | Park | Reject | RefreshOverlap:
        """What would become of this request."""
        return await self.read(Scheduler.peek, request)

    async def stats(self) -> SchedulerStats:
        """Counters and gauges."""
        return await self.read(Scheduler.stats)

    async def loads(self) -> npt.NDArray[np.void]:
        """Load of every rank."""
        return await self.read(Scheduler.loads)

    async def explain(self, request_id: str) -> Explanation:
        """Why this request is where it is."""
        return await self.read(Scheduler.explain, request_id)

    async def queue_dump(self, limit: int) -> tuple[QueueEntry, ...]:
        """What waits, those that have stood longest first."""
        return await self.read(Scheduler.queue_dump, limit)

    def now_ns(self) -> int:
        """The core's time: what deadlines count from."""
        return self._owner.now_ns()

    # The task that owns the core.

    def _check(self) -> None:
        if self._thread != get_ident():
            raise Misuse("this router belongs to another thread: see trio.from_thread")
        if not self._owner.is_open:
            raise self._owner.closed(self._owner.fault)

    async def _put(self, item: PlainLease | Job) -> None:
        self._check()
        try:
            self._room.acquire_nowait()
        except trio.WouldBlock:
            await self._room.acquire()
            if not self._owner.is_open:
                self._room.release()  # to the next who waits
                raise self._owner.closed(self._owner.fault) from None
        self._owner.inbox.append(item)
        self._wake()

    async def _ask(self, work: Callable[[Reply], object]) -> Any:
        reply = Reply()
        await self._put(Job(lambda: work(reply), reply))
        return await reply.wait()

    def _wake(self) -> None:
        self._news.set()

    @trio.lowlevel.enable_ki_protection
    async def _own(self) -> None:
        turn, waiting = self._owner.turn, self._owner.told.waiting
        try:
            with self._life:  # it outlives whoever still tells it how things ended
                while True:
                    done = more = turn()
                    while more and done < FACTS_MAX and not waiting:  # then others hear what has been decided
                        more = turn()
                        done += more
                    if more:
                        await trio.lowlevel.checkpoint()
                    else:
                        await self._sleep()
        except Fault as fault:
            self._owner.close(fault.__cause__)
            self._block.cancel()

    async def _sleep(self) -> None:
        idle_s = self._owner.idle_s()
        self._news = trio.Event()
        with trio.move_on_after(math.inf if idle_s is None else idle_s) as nap:
            await self._news.wait()
        if nap.cancelled_caught:
            self._owner.tick(slept=self._is_trio_time)

    def _close(self) -> None:
        self._owner.close()
        self._life.cancel()
        self._room.release()  # whoever waits for room hears of it, one after the other

    def _ask_outside(self, question: RefreshOverlap) -> None:
        if self._nursery is not None and self._refresh is not None:
            self._nursery.start_soon(self._answer, self._refresh, question)

    async def _answer(self, refresh: Refresh, question: RefreshOverlap) -> None:
        overlap = None
        try:
            with trio.move_on_after(self._owner.core.config.refresh_timeout_ns / 1e9):
                overlap = await refresh(question.request_id, question.block_hashes)
        except Exception:
            log.exception("refresh has failed", extra={"request_id": question.request_id})
        self._owner.answer(question, overlap)


@asynccontextmanager
async def open_scheduler(
    config: SchedulerConfig | None = None, *, admission: Mapping[str, Factory] | None = None,
    inbox_max: int = INBOX_MAX, tap: Tap | None = None, clock: Clock = trio_ns, refresh: Refresh | None = None,
    publish: Publish | None = None, mint_ids: bool = False,
) -> AsyncIterator[Router]:
    """A scheduler that lives as long as the block. Leaving it rejects what waits and evicts what runs.

    admission: see Scheduler. inbox_max: arrivals, facts and reads that may wait to be taken. tap: hears of every step.
    clock: nanoseconds; it should run like trio's, by which the owner sleeps. refresh: asked where the core emits
    RefreshOverlap; none: the core goes on with what it knows. publish: takes facts for other replicas, whose own come
    by `submit`. mint_ids: make request ids unique, so that two callers may use the same; else the second of two live
    ones is Rejected.
    Raises what has made the owner fail: an exception of the tap or of an admission policy.
    """
    router = Router(Scheduler(config, admission=admission), inbox_max, tap, clock, refresh, publish, mint_ids)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        router._nursery = nursery
        nursery.start_soon(router._own)
        try:
            with router._block:
                yield router
        except BaseException as error:  # raised below, as it is: the nursery would wrap it
            failure = error
        finally:
            router._close()
            nursery.cancel_scope.cancel()
    failure = router._owner.fault or failure
    if failure is not None:
        raise failure
