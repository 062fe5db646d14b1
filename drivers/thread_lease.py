"""A lease for threads: how a thread, or a future, waits for the owner's decision.

A SimpleQueue carries the wake-up: it may be put to from anywhere, a finaliser in the owner's own thread included.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType

from kvcore.request import Request

from .lease import Lease, Live
from .protocol import Closed, Misuse
from .told import CleanupList

log = logging.getLogger("kvcore.drivers")


class ThreadLease(Lease):
    """A lease as a context manager; see kvcore.drivers.lease for what can be told to it.

    One thread at a time uses it. Its block cannot be interrupted: on_evict is called, in the owner's thread, when the
    booking is taken away or the request withdrawn; it should make the block end, by closing a connection for example,
    and must not wait.
    """

    __slots__ = ("_future", "_news", "_on_evict", "_pid", "_put", "_timeout_s")

    def __init__(
        self, request: Request, put: Callable[[Lease, float | None], None], told: CleanupList, live: Live,
        on_evict: Callable[[ThreadLease], object] | None, timeout_s: float | None,
    ) -> None:
        super().__init__(request, told, live, None)
        self._put, self._on_evict, self._timeout_s, self._pid = put, on_evict, timeout_s, os.getpid()
        self._news: SimpleQueue[None] = SimpleQueue()
        self._future: Future[ThreadLease] | None = None

    def __enter__(self) -> ThreadLease:
        if self._future is not None and not self.is_away:
            self._future = None  # it has come by a future, and is entered now
            return self
        self.enter()
        self._put(self, self._timeout_s)
        try:
            self._placed(self._timeout_s)
        except BaseException:
            if self.error is None:
                self.abandon()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.leave(kind is None)

    def later(self) -> Future[ThreadLease]:
        """Ask now, and have the lease as the result of a future, to be entered then. Cancelling it gives it up."""
        self.enter()
        future: Future[ThreadLease] = Future()
        self._future = future
        future.add_done_callback(lambda done: self.abandon() if done.cancelled() else None)
        self._put(self, self._timeout_s)
        return future

    def again(self, timeout_s: float | None = None) -> None:
        """Wait for the next booking, after failed(retry=True). Raises Rejected if there is none, or TimeoutError."""
        if not self.is_away:
            raise Misuse("again() follows failed(retry=True)")
        self._placed(timeout_s)

    def _placed(self, timeout_s: float | None) -> None:
        if os.getpid() != self._pid:
            raise Closed("the owner of this lease is in the parent process")
        while not self.is_decided:
            try:
                self._news.get(timeout=timeout_s)
            except Empty:
                raise TimeoutError(f"request {self.request_id!r} has waited for {timeout_s} s") from None
        if self.error is not None:
            raise self.error
        self.take_over()

    def decided(self) -> None:
        """See the base: wakes the thread, or answers the future."""
        future = self._future
        if future is None or future.done():
            self._news.put(None)
        elif future.set_running_or_notify_cancel():
            if self.error is not None:
                future.set_exception(self.error)
            else:
                self.take_over()
                future.set_result(self)

    def interrupt(self) -> None:
        """See the base: calls on_evict."""
        if self._on_evict is not None:
            try:
                self._on_evict(self)
            except Exception:
                log.exception("on_evict has failed", extra={"request_id": self.request_id})
