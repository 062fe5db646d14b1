"""The lease: one request from `admit` until its block is left. What both live drivers share. No trio, no threads.

Its *holder*, one task or thread at a time, calls its methods; the *owner* of the core reads what they noted when it
takes the lease off the list (told.py). Nobody waits: a method notes what has happened and lists the lease. So dropping
100,000 of them costs no task, no channel and no more than a place on the list each.

Every field has one writer, the owner or the holder, and only grows or goes from unset to set. Facts of one lease are
stepped in the order: acceptance, prefill, output blocks, context, end. An acceptance is noted before anybody is
notified, and is told at the latest in front of the end. The first end wins.

What the answer of a method means. NO_CHANGE: it is known here and now that the fact can change nothing (it was told
before, the booking has been taken away, the end has been told), and nothing is told. APPLIED: it will be stepped. In
between only what is decided in that very step can make it stale, such as a booking that expires just then; the core
then ignores it, which `ignored` counts, and the holder is told of the eviction.

Never here: the core, clocks, waiting.
"""

from __future__ import annotations

from enum import Enum
from threading import get_ident

from kvcore.actions import Dispatch, Evict
from kvcore.events import (
    AnyEvent,
    DispatchFailed,
    Outcome,
    RequestCancelled,
)
from kvcore.request import Request

from .protocol import Answer, Misuse, Withdrawn
from .runs import ABORTED, COMPLETED, End, Run
from .told import CleanupList

TOKENS_MAX = 2**53
NS_MAX = 2**62 - 1


class Phase(Enum):
    """Where a request is, as the owner knows it."""

    NEW = 0  # not stepped yet
    WAITING = 1
    BOOKED = 2
    EVICTED = 3
    ENDED = 4


class Live(dict[str, "Lease"]):
    """Requests that the core knows, by id. booked: how many of them have a booking."""

    booked = 0


class Lease:
    """A request, and the right to run it while the `admit` block lasts. See the module for who writes what.

    request_id: as the core has it. ignored: facts of this lease that the core found stale. evicted: set when the
    booking has been taken away; the block may still end it in any way, which answers the eviction.
    """

    __slots__ = (
        "_entered", "_gone", "_held", "_live", "_over", "_run", "_thread", "_told", "error", "evicted", "ignored",
        "listed", "phase", "request", "request_id",
    )

    def __init__(self, request: Request, told: CleanupList, live: Live, thread: int | None) -> None:
        self.request, self.request_id = request, request.request_id
        self._told, self._live, self._thread = told, live, thread
        self.listed = False
        # The owner's.
        self.phase = Phase.NEW
        self.evicted: Evict | None = None
        self.error: BaseException | None = None  # why there will be no booking, or not this one any more
        self.ignored = 0
        self._run: Run | None = None
        # The holder's.
        self._held: Run | None = None
        self._entered = False
        self._gone = False
        self._over = False

    # What the holder sees.

    @property
    def dispatch(self) -> Dispatch:
        """The decision, whole. Raises Misuse before there is one."""
        if self._held is None:
            raise Misuse(f"request {self.request_id!r} has not been dispatched yet")
        return self._held.dispatch

    @property
    def worker_id(self) -> int:
        """Where to send it."""
        return self.dispatch.worker_id

    @property
    def dp_rank(self) -> int:
        """Which rank of that worker."""
        return self.dispatch.dp_rank

    @property
    def attempt(self) -> int:
        """Names this booking."""
        return self.dispatch.attempt

    @property
    def class_index(self) -> int:
        """Its policy class."""
        return self.dispatch.class_index

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens expected in the rank's cache."""
        return self.dispatch.cached_tokens

    @property
    def overlap_blocks(self) -> int:
        """The same in whole blocks."""
        return self.dispatch.overlap_blocks

    @property
    def wait_ns(self) -> int:
        """From arrival to decision; 0 for one that did not wait."""
        return self.dispatch.wait_ns

    # What the holder tells.

    def accepted(self) -> Answer:
        """The worker has taken it."""
        run = self._running()
        if run is None or run.accepted or run.prefilled or run.blocks or run.context_tokens >= 0:
            return Answer.NO_CHANGE  # progress has said it
        run.accepted = True
        return self._tell()

    def prefill_done(self) -> Answer:
        """First token: the prompt is computed."""
        run = self._running()
        if run is None or run.prefilled:
            return Answer.NO_CHANGE
        run.prefilled = True
        return self._tell()

    def output_block(self, decay_fraction: float | None = None) -> Answer:
        """One more block of output; see OutputBlockAdded for the fraction. Raises ValueError for one beyond 0..1."""
        if decay_fraction is not None and not 0.0 <= decay_fraction <= 1.0:
            raise ValueError(f"decay_fraction must be 0..1, not {decay_fraction!r}")
        run = self._running()
        if run is None:
            return Answer.NO_CHANGE
        if decay_fraction is not None:
            run.fraction = (decay_fraction,)
        run.blocks += 1
        return self._tell()

    def context(self, tokens: int) -> Answer:
        """Prompt and output together have grown to so many tokens. The maximum counts. Raises ValueError below 0."""
        _check_tokens(tokens)
        run = self._running()
        if run is None or tokens <= run.context_tokens:
            return Answer.NO_CHANGE
        run.context_tokens = tokens
        return self._tell()

    def completed(self, context_tokens: int | None = None) -> Answer:
        """It has ended well. To be called before the last item is handed on: what comes later changes nothing."""
        if context_tokens is not None:
            _check_tokens(context_tokens)
        return self._end(COMPLETED if context_tokens is None else End(Outcome.COMPLETED, context_tokens))

    def failed(self, *, retry: bool = False, shun_ns: int | None = None) -> Answer:
        """The worker has not taken it, or has lost it: the booking is undone exactly.

        retry: put it back where it stood (DESIGN D11); wait for the next booking with `again()`.
        shun_ns: nothing goes to that worker for so long, by a mark with a lease in the same step. ValueError below 1.
        """
        if shun_ns is not None and not (type(shun_ns) is int and 1 <= shun_ns <= NS_MAX):
            raise ValueError(f"shun_ns must be 1..2^62-1, not {shun_ns!r}")
        return self._end(End(None, retry=bool(retry), shun_ns=shun_ns))

    def _check(self) -> None:
        if self._thread is not None and self._thread != get_ident():
            raise Misuse("a lease of this router belongs to the thread in which the router runs")
        if self._over:
            raise Misuse(f"the lease of request {self.request_id!r} is over: its block has been left")

    def _running(self) -> Run | None:
        """The run that progress can be told of, or None."""
        self._check()
        run = self._held
        return None if run is None or run.ends or self.phase is not Phase.BOOKED else run

    def _end(self, end: End) -> Answer:
        self._check()
        run = self._held
        if run is None or run.ends or self.phase is Phase.ENDED:
            return Answer.NO_CHANGE
        run.ends.append(end)
        return self._tell() if run.ends[0] is end else Answer.NO_CHANGE

    def _tell(self) -> Answer:
        self._told.tell(self)
        return Answer.APPLIED

    # What the driver does for the holder.

    def enter(self) -> None:
        """The block is about to be entered: once, or Misuse."""
        if self._entered:
            raise Misuse(f"the lease of request {self.request_id!r} has been entered before")
        self._entered = True

    @property
    def is_decided(self) -> bool:
        """Whether there is a booking that the holder has not taken over yet, or an error."""
        return self._run is not self._held or self.error is not None

    @property
    def is_away(self) -> bool:
        """Whether the holder has no booking to run: none yet, or put back by failed(retry=True)."""
        return self._held is None or bool(self._held.ends and self._held.ends[0].retry)

    def take_over(self) -> None:
        """The holder has woken up to a booking."""
        self._held = self._run

    def abandon(self) -> None:
        """The holder has gone while it waited: what has been decided meanwhile is undone, what has not is cancelled."""
        self._gone = self._over = True
        self._told.tell(self)

    def leave(self, completed: bool) -> None:
        """The block has been left."""
        run = self._held
        if self.is_away or run is None:
            self.abandon()
            return
        if not run.ends:
            run.ends.append(COMPLETED if completed else ABORTED)
            self._told.tell(self)
        self._over = True

    # What the owner does.

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the decision any more."""
        return self._gone

    def decided(self) -> None:
        """Wake the holder: there is a booking, or an error. The driver's."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Tell the holder, at once if it can be, that `evicted` or `error` is set while it runs. The driver's."""
        raise NotImplementedError

    def book(self, dispatch: Dispatch, incarnation: int) -> None:
        """A decision to run it."""
        self._run = Run(dispatch, incarnation)
        self.evicted = None
        self.phase = Phase.BOOKED
        self._live.booked += 1
        self.decided()

    def refuse(self, error: BaseException) -> None:
        """There will be no booking: the core does not know it, or not any more."""
        self.error = error
        self._close()
        self.decided()

    def evict(self, action: Evict) -> None:
        """Its booking has been taken away. Of an earlier run: its end has answered that."""
        if self.phase is Phase.BOOKED and self._run is not None and self._run.dispatch.attempt == action.attempt:
            self.evicted = action
            self.phase = Phase.EVICTED
            self._live.booked -= 1
            self.interrupt()

    def withdraw(self) -> None:
        """Somebody else has cancelled it."""
        waited = self.phase is Phase.WAITING
        self.error = Withdrawn(self.request_id)
        self._close()
        if waited:
            self.decided()
        else:
            self.interrupt()

    def lose(self, error: BaseException) -> None:
        """The owner gives up: whoever waits is sent away, and what the core may have decided meanwhile is cancelled."""
        self.error = error
        self._gone = True
        self._told.tell(self)
        self.decided()

    def make_room(self) -> None:
        """The core has ended it unasked, and another request has its id now."""
        self._close()

    def count_ignored(self, ignored: set[tuple[str, int]]) -> None:
        """Facts of one step that the core has ignored, as (request_id, attempt)."""
        self.ignored += self._run is not None and (self.request_id, self._run.dispatch.attempt) in ignored

    def _close(self) -> None:
        if self.phase is Phase.BOOKED:
            self._live.booked -= 1
        self.phase = Phase.ENDED
        if self._live.get(self.request_id) is self:
            del self._live[self.request_id]

    def take(self, now_ns: int, room: int) -> list[AnyEvent]:
        """See Teller. Its end, once taken, is final."""
        phase, run = self.phase, self._run
        if phase is Phase.WAITING:
            if not self._gone:
                return []
            self._close()
            return [RequestCancelled(now_ns, self.request_id)]
        if run is None or phase is Phase.ENDED:
            return []
        if self._gone and self._held is not run:
            self._close()  # decided, and delivered to nobody
            return [DispatchFailed(now_ns, self.request_id, run.dispatch.attempt)]
        ended = bool(run.ends)  # read first: all progress was noted before it
        facts = run.progress(now_ns, room - 3) if phase is Phase.BOOKED else []
        if run.blocks > run.said_blocks and phase is Phase.BOOKED:
            self._told.again(self)
        elif ended:
            retry = run.ends[0].retry and not self._gone
            self._close()
            if retry:
                self._live[self.request_id] = self
                self.phase = Phase.WAITING
            facts += run.ending(now_ns, retry)
        return facts


def _check_tokens(tokens: int) -> None:
    if type(tokens) is not int or not 0 <= tokens <= TOKENS_MAX:
        raise ValueError(f"context tokens must be an integer 0..2^53, not {tokens!r}")
