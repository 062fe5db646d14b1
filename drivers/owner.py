"""The owner of a core, without its loop: stamp, step, tap, carry out. Both live drivers turn it; it never waits.

A turn is at most one step with what leases have told (at most FACTS_MAX facts) and then one item of the inbox: so what
was freed before is seen by every arrival, and however much is dropped at once delays it by one batch. Items of the
inbox are stepped one by one, each with a stamp of its own: what is wrong with one is told to its caller, and the others
do not notice. Hints, barriers and answers from outside travel on the list of the leases, not in the inbox: capacity
needs no room there.

When its loop has ended, whoever tells something steps it himself (`pump`): releases reach the ledger for as long as
there are leases.

What callers ask for is in desk.py.

Invariants: one thread at a time turns or pumps; the tap hears of a step before anybody else does; no lock is held.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, assert_never

from kvcore.actions import AnyAction, Dispatch, Evict, Ignored, Park, RefreshOverlap, Reject, RejectReason
from kvcore.errors import InvalidEvent
from kvcore.events import (
    AnyEvent,
    Drained,
    RequestArrived,
    TimerFired,
)
from kvcore.request import Overlap
from kvcore.scheduler import Scheduler

from .lease import Lease, Live, Phase
from .protocol import Clock, Closed, Rejected, Reply, Tap, claim, disclaim
from .told import FACTS_MAX, ROOM_MIN, Barrier, CleanupList, Refreshed, Teller

#: What a job answers with if its reply comes later.
LATER = object()

log = logging.getLogger("kvcore.drivers")


class Job:
    """An item of the inbox that is no arrival: some work for the owner, and where its answer goes."""

    __slots__ = ("reply", "work")

    def __init__(self, work: Callable[[], Any], reply: Reply) -> None:
        self.work, self.reply = work, reply


class Fault(Exception):
    """The owner cannot go on; __cause__ says why."""


class Owner:
    """One core, what is to be told to it, and who waits for what it decides.

    took: called for each item taken out of the inbox. ask: somebody outside is to be asked for an overlap; `answer`
    takes what he says. is_open: whether anything new is let in. fault: why the owner has ended before its time.
    """

    def __init__(
        self, core: Scheduler, clock: Clock, tap: Tap | None, *, wake: Callable[[], None], took: Callable[[], None],
        ask: Callable[[RefreshOverlap], None] | None,
    ) -> None:
        claim(tap, self)
        self.core, self.inbox = core, deque[Lease | Job]()
        self.told = CleanupList(wake)
        self.live = Live()
        self.is_open, self.is_done = True, False
        self.fault: BaseException | None = None
        self._clock, self._tap, self._took, self._ask = clock, tap, took, ask
        self.incarnations: dict[int, int] = {}
        self.idlers: list[Reply] = []
        self._now_ns = 0
        self._pumps = [None]

    # Turning.

    def now_ns(self) -> int:
        """The clock, never going back."""
        self._now_ns = max(self._now_ns, self._clock())
        return self._now_ns

    def turn(self) -> int:
        """Step what has been told, then one item of the inbox. How much that was; 0: nothing. Raises Fault."""
        heard = self._hear() + 1 if self.told.waiting else 0
        if not self.inbox:
            return heard
        item = self.inbox.popleft()
        self._took()
        if isinstance(item, Lease):
            self._arrive(item)
        else:
            self._serve(item)
        return heard + 1

    def idle_s(self) -> float | None:
        """How long nothing is due: seconds, or None: for ever."""
        due_ns = self.core.next_deadline_ns
        return None if due_ns is None else max(0, due_ns - self.now_ns()) / 1e9

    def tick(self, slept: bool = False) -> bool:
        """Step TimerFired if something is due. slept: idle_s() has passed, though the clock may lack a nanosecond."""
        due_ns = self.core.next_deadline_ns
        if due_ns is None or (due_ns > self.now_ns() and not slept):
            return False
        self._now_ns = max(self._now_ns, due_ns)
        self.apply(self._must((TimerFired(self._now_ns),)))
        return True

    def step(self, events: tuple[AnyEvent, ...]) -> tuple[AnyAction, ...]:
        """Step and tap. InvalidEvent is the caller's; everything else is a Fault."""
        try:
            actions = self.core.step_many(events)
            if self._tap is not None:
                self._tap(events, actions, self.core)
        except InvalidEvent:
            raise
        except BaseException as error:
            raise Fault from error
        return actions

    def _must(self, events: tuple[AnyEvent, ...]) -> tuple[AnyAction, ...]:
        """Step what nobody outside can have got wrong."""
        try:
            return self.step(events)
        except InvalidEvent as error:
            raise Fault from error

    def _hear(self) -> int:
        """One step with what stands on the list, as far as there is room; how many facts that was."""
        now_ns, waiting = self.now_ns(), self.told.waiting
        events: list[AnyEvent] = []
        heard: list[Teller] = []
        while waiting and len(events) <= FACTS_MAX - ROOM_MIN:
            item = waiting.popleft()
            item.listed = False
            if isinstance(item, Refreshed):
                if events:
                    self.told.again(item)  # what comes from outside is stepped alone: it may be refused
                else:
                    self._refreshed(item)
                break
            events += item.take(now_ns, FACTS_MAX - len(events))
            heard.append(item)
        if not events:
            return 0
        try:
            actions = self._must(tuple(events))
        except Fault as fault:
            self._lose(heard, fault.__cause__)
            raise
        self.apply(actions)
        for item in heard:
            if isinstance(item, Barrier):
                item.reply.set_result(True)
        ignored = {(action.request_id, action.attempt) for action in actions if isinstance(action, Ignored)}
        if ignored:
            for item in heard:
                if isinstance(item, Lease):
                    item.count_ignored(ignored)
        return len(events)

    def _refreshed(self, item: Refreshed) -> None:
        try:
            actions = self.step(tuple(item.take(self.now_ns(), FACTS_MAX)))
        except InvalidEvent as error:
            log.error("refresh answered %s", error.reason, extra={"request_id": item.request_id})
            item.overlap = None
            actions = self._must(tuple(item.take(self.now_ns(), FACTS_MAX)))
        self.apply(actions)

    def _arrive(self, lease: Lease) -> None:
        if lease.is_gone:
            return
        name = lease.request_id
        prior = self.live.get(name)
        try:
            actions = self.step((RequestArrived(self.now_ns(), lease.request),))
        except InvalidEvent as error:
            lease.refuse(error)
            return
        except Fault as fault:
            if prior is None:  # the core may know it by now
                lease.phase = Phase.WAITING
                self.live[name] = lease
            else:
                lease.refuse(self.closed(fault.__cause__))
            raise
        if prior is not None:
            mine = [item for item in actions if isinstance(item, Reject) and item.request_id == name]
            for item in mine:
                if item.reason is RejectReason.DUPLICATE_ID:
                    lease.refuse(Rejected(item))
                    self.apply(tuple(other for other in actions if other is not item))
                    return
            # The earlier request of this id has ended in this very step, by what was due before the arrival.
            if mine and prior.phase is Phase.WAITING:
                prior.refuse(Rejected(mine[0]))
                actions = tuple(item for item in actions if item is not mine[0])
            else:
                prior.make_room()
        lease.phase = Phase.WAITING
        self.live[name] = lease
        self.apply(actions)

    def _serve(self, job: Job) -> None:
        try:
            self.tick()  # reads and their like step nothing themselves
            result = job.work()
        except Fault as fault:
            job.reply.set_exception(self.closed(fault.__cause__))
            raise
        except BaseException as error:
            job.reply.set_exception(error)
        else:
            if result is not LATER:
                job.reply.set_result(result)

    # Carrying out.

    def apply(self, actions: tuple[AnyAction, ...]) -> None:
        """Carry out what a step has decided, in its order."""
        live = self.live
        for action in actions:
            match action:
                case Dispatch():
                    lease = live.get(action.request_id)
                    if lease is not None:
                        lease.book(action, self.incarnations.get(action.worker_id, 0))
                case Reject():
                    lease = live.get(action.request_id)
                    if lease is not None:
                        lease.refuse(Rejected(action))
                case Evict():
                    lease = live.get(action.request_id)
                    if lease is not None:
                        lease.evict(action)
                case RefreshOverlap():
                    if self._ask is None:
                        self.answer(action, None)
                    else:
                        self._ask(action)
                case Park() | Ignored():
                    pass
                case _:
                    assert_never(action)
        if self.idlers and not live.booked:
            for reply in self.idlers:
                reply.set_result(None)
            self.idlers.clear()

    def answer(self, question: RefreshOverlap, overlap: Overlap | None) -> None:
        """What an outside index says."""
        self.told.tell(Refreshed(question.request_id, question.ticket, overlap))

    # The end.

    def closed(self, cause: BaseException | None = None) -> Closed:
        """The exception that says so."""
        error = Closed("the router is closed" if cause is None else f"the router has failed: {cause}")
        error.__cause__ = cause
        return error

    def close(self, fault: BaseException | None = None) -> None:
        """Let nothing more in, reject what waits, evict what runs; from now on whoever tells something steps it."""
        if self.is_open:
            self.is_open = False
            self.fault = fault
            if fault is not None:
                self._give_up()
            try:
                while self.told.waiting:
                    self._hear()
                now_ns = self.now_ns()
                self.apply(self._must((Drained(now_ns, now_ns),)))
                while self.turn():
                    pass
            except Fault as another:
                self.fault = self.fault or another.__cause__
                self._give_up()
            disclaim(self._tap, self)
            self._tap = None  # who gave it may end it now
            self.told.wake = self.pump
            self.is_done = True
            self.sweep()
            self.pump()

    def sweep(self) -> None:
        """Send away what has come into the inbox of an owner that is done: by the owner, or by who has put it there."""
        while self.inbox:
            try:
                item = self.inbox.popleft()
            except IndexError:
                return
            self._took()
            if isinstance(item, Lease):
                item.refuse(self.closed(self.fault))
            else:
                item.reply.set_exception(self.closed(self.fault))

    def _give_up(self) -> None:
        """What was decided in the step that failed may not have been carried out: whoever waits is told to go."""
        disclaim(self._tap, self)
        self._tap = None
        self.sweep()
        for lease in self.live.values():
            if lease.phase is Phase.WAITING:
                lease.lose(self.closed(self.fault))
        for reply in self.idlers:
            reply.set_exception(self.closed(self.fault))
        self.idlers.clear()

    def _lose(self, items: Iterable[Teller], cause: BaseException | None) -> None:
        for item in items:
            if isinstance(item, Barrier):
                item.reply.set_exception(self.closed(cause))

    def pump(self) -> None:
        """Step what has been told; of several callers one does it for all."""
        while self.told.waiting:
            try:
                self._pumps.pop()
            except IndexError:
                return  # somebody is at it, and will look again
            try:
                while self.told.waiting:
                    self._hear()
            except Fault as fault:
                self._lose(self.told.waiting, fault.__cause__)
                self.told.waiting.clear()
                log.error("nothing more can be released: %s", fault.__cause__)
            finally:
                self._pumps.append(None)

