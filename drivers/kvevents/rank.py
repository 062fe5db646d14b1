"""RankFeed: one rank between its publisher and the core. What it is told becomes facts, submitted in that order.

A lock is held from the moment that something is taken in until the core has stepped what follows from it, so that live
messages, replays and predictions of one rank never overtake each other, and nobody reads on while the core is behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import trio

from kvcore.request import Rank

from ..protocol import Make
from .predicted import Predicted
from .tracker import Tracker
from .values import Change, Fact, Trust

#: Steps several facts: Router.submit_many.
Submit: TypeAlias = Callable[[Sequence[Make]], Awaitable[object]]

#: Names of blocks that one step tells at most, so that other items of the owner's inbox do not wait for long.
NAMES_MAX = 4096
#: Dispatches that may wait to be noted; of more, the oldest are forgotten.
DISPATCHES_MAX = 1024


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What is known of a rank's publisher.

    reason: why it is not trusted further, or None. blocks: that it is known to hold; predicted: that it probably holds.
    delivered, lost, invalid, stale: messages taken in, never heard, that were no events, and of no use. restarts: how
    often the publisher was seen to have been started anew. orphans, conflicts, refused: blocks that did not fit.
    """

    worker_id: int
    dp_rank: int
    trust: Trust
    reason: str | None
    blocks: int
    predicted: int
    delivered: int
    lost: int
    invalid: int
    stale: int
    restarts: int
    orphans: int
    conflicts: int
    refused: int


class RankFeed:
    """One rank. on_ask: told from where a replay is wanted, whenever one is."""

    def __init__(self, rank: Rank, incarnation: int, tracker: Tracker, predicted: Predicted, submit: Submit) -> None:
        self.rank, self.tracker = rank, tracker
        self.on_ask: Callable[[int], object] | None = None
        self._incarnation, self._predicted, self._submit = incarnation, predicted, submit
        self._lock = trio.Lock()
        self._is_new = True  # the core may still have what an earlier feed has told of this rank
        self._dispatches: deque[Sequence[int]] = deque(maxlen=DISPATCHES_MAX)
        self._news = trio.Event()

    async def tell(self, step: Callable[[], list[Fact]]) -> None:
        """Take one step of the tracker and submit what follows. Raises Closed."""
        async with self._lock:
            was = self.tracker.trust
            facts = step()
            start = self.tracker.take_ask()
            if start is not None and self.on_ask is not None:
                self.on_ask(start)
            if was is Trust.APPROX and self.tracker.trust is not was:
                facts = self._predicted.clear() + facts
            await self._submit_all(facts)

    def dispatched(self, names: Sequence[int]) -> None:
        """A prompt was sent there."""
        if self.tracker.trust is Trust.APPROX and names:
            self._dispatches.append(names)
            self._news.set()

    async def predict(self) -> None:
        """Submit what follows from dispatches and from time, for ever. Raises Closed."""
        async with self._lock:
            await self._submit_all([])
        while True:
            due_ns = self._predicted.due_ns()
            with trio.move_on_at(trio.current_time() + 3600 if due_ns is None else due_ns / 1e9):
                await self._news.wait()
            self._news = trio.Event()
            async with self._lock:
                now_ns = round(trio.current_time() * 1e9)
                facts = self._predicted.expire(now_ns)
                while self._dispatches:
                    names = self._dispatches.popleft()
                    if self.tracker.trust is Trust.APPROX:
                        facts += self._predicted.touch(names, now_ns)
                await self._submit_all(facts)

    def status(self) -> RankStatus:
        """As it stands."""
        tracker, sequence, counts = self.tracker, self.tracker.sequence, self.tracker.mirror.counts
        return RankStatus(
            self.rank.worker_id, self.rank.dp_rank, tracker.trust, tracker.reason, len(tracker.mirror),
            len(self._predicted), tracker.delivered, tracker.lost, tracker.invalid, sequence.stale, sequence.restarts,
            counts.orphans, counts.conflicts, counts.refused)

    async def _submit_all(self, facts: Sequence[Fact]) -> None:
        if self._is_new:
            facts = [Fact(Change.CLEARED), *facts]
            self._is_new = False
        for part in portions(facts):
            await self._submit([self._make(fact) for fact in part])

    def _make(self, fact: Fact) -> Make:
        return lambda now_ns: fact.event(now_ns, self.rank, self._incarnation)


def portions(facts: Sequence[Fact], names_max: int = NAMES_MAX) -> Iterator[list[Fact]]:
    """The same facts in the same order, in portions of at most so many names."""
    part: list[Fact] = []
    room = names_max
    for fact in facts:
        names = fact.names
        if not names:
            part.append(fact)
        while names:
            part.append(Fact(fact.change, fact.tier, names[:room]))
            names, room = names[room:], room - len(names[:room])
            if not room:
                yield part
                part, room = [], names_max
    if part:
        yield part
