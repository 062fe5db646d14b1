"""Who has gone: one task hears of every connection whose peer has closed it, whatever its own task waits for.

The kernel keeps the list (an epoll of its own, of which trio waits for the descriptor), so a connection costs one call
when it opens, and a request nothing. A peer that has closed only its sending half counts as gone, as it does for most
servers: nobody can tell the two apart until something is written.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable

import trio

_GONE = select.EPOLLRDHUP | select.EPOLLET  # errors and hang-ups are always told


class Watch:
    """Calls back, once per descriptor, when its peer has gone."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], object]] = {}

    def add(self, descriptor: int, call: Callable[[], object]) -> None:
        """Watch an open descriptor until it is forgotten, which must be before it is closed."""
        self._watched[descriptor] = call
        self._epoll.register(descriptor, _GONE)

    def forget(self, descriptor: int) -> None:
        """Watch it no more."""
        if self._watched.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Call back until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for descriptor, _ in self._epoll.poll(0):
                    call = self._watched.get(descriptor)
                    if call is not None:
                        call()
        finally:
            self._watched.clear()
            self._epoll.close()
