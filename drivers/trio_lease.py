"""A lease in trio, and an answer that a task waits for: how tasks sleep until the owner of the core wakes them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from threading import get_ident
from types import TracebackType
from typing import Any

import trio

from kvcore.request import Request

from .lease import Lease, Live
from .protocol import Evicted, Misuse
from .told import CleanupList


class TrioLease(Lease):
    """A lease as an asynchronous context manager; see kvcore.drivers.lease for what can be told to it."""

    __slots__ = ("_cancel_on_evict", "_guard", "_put", "_scope", "_task")

    def __init__(
        self, request: Request, put: Callable[[Lease], Awaitable[None]], told: CleanupList, live: Live,
        cancel_on_evict: bool,
    ) -> None:
        super().__init__(request, told, live, get_ident())
        self._put, self._cancel_on_evict = put, cancel_on_evict
        self._scope: trio.CancelScope | None = None
        self._guard: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None

    async def __aenter__(self) -> TrioLease:
        self.enter()
        await self._put(self)
        try:
            await self._placed()
        except BaseException:
            if self.error is None:
                self.abandon()
            raise
        if self._cancel_on_evict:
            self._scope = trio.CancelScope().__enter__()
            if self.evicted is not None or self.error is not None:
                self._scope.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.leave(kind is None)
        if self._scope is None or not self._scope.__exit__(kind, error, trace) or kind is None:
            return
        if self.error is not None:
            raise self.error from None
        if self.evicted is not None:
            raise Evicted(self.evicted) from None

    def guard(self, deadline: float = math.inf) -> trio.CancelScope:
        """A scope for the run of the present booking, to be entered with `with`: cancelled when the booking is taken
        away, at once if it has been. For blocks that are not cancelled themselves: they can still put the request back,
        by failed(retry=True), and wait for another booking. One at a time; its deadline, in trio's time, is the caller's.
        """
        self._guard = trio.CancelScope(deadline=deadline)
        if self.evicted is not None or self.error is not None:
            self._guard.cancel()
        return self._guard

    async def again(self) -> None:
        """Wait for the next booking, after failed(retry=True). Raises Rejected if there is none."""
        if not self.is_away:
            raise Misuse("again() follows failed(retry=True)")
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._placed()

    async def _placed(self) -> None:
        if not self.is_decided:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        if self.error is not None:
            raise self.error
        self.take_over()

    def _stop_waiting(self, _: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def decided(self) -> None:
        """See the base: wakes the task that waits."""
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    def interrupt(self) -> None:
        """See the base: cancels the block, or the run."""
        if self._guard is not None:
            self._guard.cancel()
        if self._scope is not None:
            self._scope.cancel()


class Reply:
    """An answer that one task waits for."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._result: Any = None
        self._exception: BaseException | None = None

    def set_result(self, result: Any, /) -> None:
        """The answer."""
        self._result = result
        self._event.set()

    def set_exception(self, exception: BaseException, /) -> None:
        """Why there is none."""
        self._exception = exception
        self._event.set()

    async def wait(self) -> Any:
        """The answer, once it is there."""
        await self._event.wait()
        if self._exception is not None:
            raise self._exception
        return self._result
