"""The list of what has something to tell the core: leases, hints, barriers, answers from outside. It is never full.

An item stands on it once, however much it has to tell, so it is as long as there are leases and waiting callers. One
wake-up covers all of it. Whoever tells notes first and lists then; the owner takes an item off the list first and reads
then: so nothing is missed, and at worst an item is taken once more with nothing to tell.

Never here: locks, tasks, threads. The deque's own atomicity is all that several threads need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from kvcore.events import AnyEvent, CapacityHinted, OverlapRefreshed
from kvcore.request import Overlap, Rank

from .protocol import Reply

#: Most facts in one step of what has been told: what an arrival waits for at most, however many leases are dropped.
FACTS_MAX = 256
#: Least room that an item is given.
ROOM_MIN = 8
#: Ranks that are remembered one by one between two steps; more of them are "all".
HINTS_MAX = 256


class Teller(Protocol):
    """What can stand on the list."""

    listed: bool

    def take(self, now_ns: int, room: int) -> list[AnyEvent]:
        """What it has to tell: at most so many facts, >= ROOM_MIN. With more to tell it goes back in front."""


class CleanupList:
    """What has something to tell. `wake` is called when that is news: it must be cheap, and may be called in vain."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.waiting: deque[Teller] = deque()

    def tell(self, item: Teller) -> None:
        """Put it on the list, unless it is there."""
        if not item.listed:
            item.listed = True
            self.waiting.append(item)
            self.wake()

    def again(self, item: Teller) -> None:
        """Called from `take`: there is more than there was room for."""
        item.listed = True
        self.waiting.appendleft(item)


class Hints:
    """Ranks of which somebody says that they may have room; one CapacityHinted a step."""

    def __init__(self) -> None:
        self.listed = False
        self._ranks: deque[Rank] = deque()
        self._all = False

    def add(self, ranks: Sequence[Rank] | None) -> None:
        """None, or too many of them: all."""
        if ranks is None or len(self._ranks) + len(ranks) > HINTS_MAX:
            self._all = True
        else:
            self._ranks.extend(ranks)

    def take(self, now_ns: int, room: int) -> list[AnyEvent]:
        """See Teller. The flag is lowered before the ranks are read: what is added meanwhile is not lost."""
        everything, self._all = self._all, False
        ranks = tuple(self._ranks.popleft() for _ in range(len(self._ranks)))
        return [CapacityHinted(now_ns, None if everything else ranks)] if everything or ranks else []


class Barrier:
    """A full recheck, answered once it and all that was told before it have been stepped."""

    def __init__(self, reply: Reply) -> None:
        self.listed = False
        self.reply = reply

    def take(self, now_ns: int, room: int) -> list[AnyEvent]:
        """See Teller."""
        return [CapacityHinted(now_ns)]


class Refreshed:
    """What an outside index has answered."""

    def __init__(self, request_id: str, ticket: int, overlap: Overlap | None) -> None:
        self.listed = False
        self.request_id, self.ticket, self.overlap = request_id, ticket, overlap

    def take(self, now_ns: int, room: int) -> list[AnyEvent]:
        """See Teller."""
        return [OverlapRefreshed(now_ns, self.request_id, self.ticket, self.overlap)]
