"""KvFeed: the KV events of a fleet, told to a Router. See the package's docstring for how it is used.

Sources come and go while it runs. What goes wrong with one - an address that cannot be used, a publisher that is gone,
silent, or talks nonsense - is its own trouble: it shows in `status` and in the log, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import trio
import zmq

from kvcore.request import Rank

from ..protocol import Closed
from ..trio import Router
from .link import Link, Patience
from .mirror import BLOCKS_MAX
from .names import BlockNames
from .predicted import Predicted
from .rank import RankFeed, RankStatus
from .sockets import Context, of_rank
from .tracker import Tracker
from .values import Trust

__all__ = ["KvFeed", "Patience", "RankStatus", "Source", "Trust", "open_feed"]

log = logging.getLogger("kvcore.drivers")

Work: TypeAlias = Callable[[], Awaitable[None]]

#: Blocks that are predicted for a rank whose capacity is not known.
PREDICTED_MAX = 65_536
PREDICT_TTL_NS = 120 * 10**9


@dataclass(frozen=True)
class Source:
    """Where a worker's KV events come from.

    endpoint: of the publisher of rank 0; that of rank r has its port + r (tcp), or the suffix _dpr (ipc). None: the
        worker publishes nothing.
    replay: where rank 0 answers replays, counted alike; None: nowhere, what is lost is lost.
    incarnation, dp_start, dp_size: of its WorkerUpserted. topic: messages that begin otherwise are not taken.
    bind: the publisher connects to the endpoint, which is ours.
    capacity_blocks: of its cache, per rank; None: unknown.
    """

    worker_id: int
    endpoint: str | None
    replay: str | None = None
    incarnation: int = 0
    dp_start: int = 0
    dp_size: int = 1
    topic: str = ""
    bind: bool = False
    capacity_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.dp_size < 1 or self.dp_start < 0:
            raise ValueError(f"ranks of a worker begin at 0 or above and are 1 or more, not {self!r}")
        if self.capacity_blocks is not None and self.capacity_blocks < 1:
            raise ValueError(f"capacity_blocks must be >= 1 or None, not {self.capacity_blocks!r}")
        for endpoint in (self.endpoint, self.replay):
            if endpoint is not None:
                of_rank(endpoint, self.dp_start)
                of_rank(endpoint, self.dp_start + self.dp_size - 1)


class KvFeed:
    """The feeds of all workers. Made by `open_feed`."""

    def __init__(
        self, router: Router, names: BlockNames, nursery: trio.Nursery, context: Context, patience: Patience,
        blocks_max: int, predict_ttl_ns: int,
    ) -> None:
        self._router, self._names, self._nursery, self._context = router, names, nursery, context
        self._patience, self._blocks_max, self._predict_ttl_ns = patience, blocks_max, predict_ttl_ns
        self._ranks: dict[tuple[int, int], RankFeed] = {}
        self._workers: dict[int, tuple[Source, trio.CancelScope]] = {}

    def add(self, source: Source) -> None:
        """Follow a worker that the router knows, in place of an earlier source of it. Waits for nothing."""
        self.remove(source.worker_id)
        scope = trio.CancelScope()
        self._workers[source.worker_id] = source, scope
        feeds = {
            dp_rank: RankFeed(
                Rank(source.worker_id, dp_rank), source.incarnation,
                Tracker(self._names, source.replay is not None, self._blocks_max),
                Predicted(source.capacity_blocks or PREDICTED_MAX, self._predict_ttl_ns), self._router.submit_many)
            for dp_rank in range(source.dp_start, source.dp_start + source.dp_size)}
        works: list[Work] = []
        for dp_rank, feed in feeds.items():
            self._ranks[source.worker_id, dp_rank] = feed
            works.append(feed.predict)
            if source.endpoint is not None:
                works.append(Link(
                    self._context, of_rank(source.endpoint, dp_rank),
                    None if source.replay is None else of_rank(source.replay, dp_rank), source.topic.encode(),
                    source.bind, feed, feeds, self._patience).run)
        self._nursery.start_soon(self._follow, works, scope)

    def remove(self, worker_id: int) -> None:
        """Follow a worker no more; the core forgets its blocks by WorkerRemoved or a higher incarnation only."""
        if worker_id in self._workers:
            source, scope = self._workers.pop(worker_id)
            scope.cancel()
            for dp_rank in range(source.dp_start, source.dp_start + source.dp_size):
                del self._ranks[worker_id, dp_rank]

    def dispatched(self, worker_id: int, dp_rank: int, block_hashes: Sequence[int]) -> None:
        """A request with these blocks was sent there. Waits for nothing; counts only where nothing better is known."""
        feed = self._ranks.get((worker_id, dp_rank))
        if feed is not None:
            feed.dispatched(block_hashes)

    def trust(self, worker_id: int, dp_rank: int = 0) -> Trust:
        """How far what a rank has published can be believed; APPROX for one that is not followed."""
        feed = self._ranks.get((worker_id, dp_rank))
        return Trust.APPROX if feed is None else feed.tracker.trust

    def status(self) -> list[RankStatus]:
        """Of every rank, in the order of their additions."""
        return [feed.status() for feed in self._ranks.values()]

    async def _follow(self, works: Sequence[Work], scope: trio.CancelScope) -> None:
        """All that is to be done for one worker, until it is removed."""
        with scope:
            async with trio.open_nursery() as nursery:
                for work in works:
                    nursery.start_soon(self._keep, work)

    async def _keep(self, work: Work) -> None:
        """Run this until the router closes; a fault is logged, and it is begun again."""
        is_open = True
        while is_open:
            try:
                await work()
            except* Closed:
                is_open = False
            except* Exception:
                log.exception("the feed of KV events has failed")
                await trio.sleep(self._patience.again_s)


@asynccontextmanager
async def open_feed(
    router: Router, names: BlockNames, *, patience: Patience | None = None, blocks_max: int = BLOCKS_MAX,
    predict_ttl_ns: int = PREDICT_TTL_NS,
) -> AsyncIterator[KvFeed]:
    """A feed that lives as long as the block, inside of the router's.

    blocks_max: blocks that are kept of one rank. predict_ttl_ns: how long a prompt counts as cached on a rank that
    publishes nothing usable.
    """
    context: Context = zmq.Context()
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield KvFeed(router, names, nursery, context, patience or Patience(), blocks_max, predict_ttl_ns)
            except BaseException as error:  # raised below, as it is: the nursery would wrap it
                failure = error
            finally:
                nursery.cancel_scope.cancel()
    finally:
        context.destroy(linger=0)
    if failure is not None:
        raise failure
