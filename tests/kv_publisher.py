"""A publisher of KV events over real sockets: PUB, and a ROUTER that answers replays in a form of choice, or badly."""

from __future__ import annotations

import os
import socket as sockets
from contextlib import ExitStack, contextmanager

import trio
import zmq
from kv_engines import END_MESSAGE, Engine, answer_frames
from kvcore.drivers.kvevents.feed import KvFeed, Patience, Source, open_feed
from kvcore.drivers.kvevents.names import BlockNames
from kvcore.drivers.trio import Router, open_scheduler
from live_trio import Record

from kvcore.config import SchedulerConfig
from kvcore.request import WorkerConfig

#: Seconds after which a story hangs.
PATIENCE_S = 30
#: For publishers that answer badly: soon given up.
HASTY = Patience(silence_s=0.2, tries=3, check_s=0.3, again_s=0.02)
#: For publishers that answer well: only what is sent counts, not what is looked at again.
CALM = Patience(silence_s=PATIENCE_S, check_s=10 * PATIENCE_S, again_s=0.02)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody uses."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        with ExitStack() as taken:
            try:
                for port in range(first, first + count):
                    taken.enter_context(sockets.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise AssertionError("no ports")


class Publisher:
    """form: frames of an answer. cut: answers of the first replays, after which nothing comes; None: to the end."""

    def __init__(self, context, engine=None, form=4, cuts=()) -> None:
        self.engine = engine or Engine()
        self.form, self.cuts, self.asked = form, list(cuts), []
        self._context = context
        self.pub, self.router = self._open(zmq.PUB), self._open(zmq.ROUTER)
        self.endpoint, self.replay = (
            socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0") for socket in (self.pub, self.router))

    def _open(self, kind, endpoint="tcp://127.0.0.1:*"):
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            socket.close()
            raise
        return socket

    def close(self) -> None:
        self.pub.close()
        self.router.close()

    async def reopen(self) -> None:
        """On the same addresses, as soon as these are free."""
        while self.pub.closed or self.router.closed:
            try:
                if self.pub.closed:
                    self.pub = self._open(zmq.PUB, self.endpoint)
                self.router = self._open(zmq.ROUTER, self.replay)
            except zmq.ZMQError:
                await trio.sleep(0.01)

    def source(self, worker_id=7, **more) -> Source:
        return Source(worker_id, self.endpoint, **{"replay": self.replay, **more})

    def send(self, message) -> None:
        self.pub.send_multipart([b"kv@engine", message[0].to_bytes(8, "big"), message[1]])

    def answer(self) -> None:
        """What has been asked so far."""
        while self.router.poll(0):
            identity, _, start = self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            cut = self.cuts.pop(0) if self.cuts else None
            messages = [*self.engine.replay(self.asked[-1]), END_MESSAGE]
            for message in messages[:cut]:
                self.router.send_multipart([identity, *answer_frames(message, self.form)])

    async def run(self) -> None:
        """Answer replays, for ever."""
        while True:
            if not self.router.closed:
                self.answer()
            await trio.sleep(0.005)


class Stage:
    """A story's surroundings: a router with worker 7, a feed, and what the core holds."""

    def __init__(self, router: Router, feed: KvFeed, nursery: trio.Nursery, context, record: Record) -> None:
        self.router, self.feed, self.nursery, self.record = router, feed, nursery, record
        self._context, self.publishers = context, []

    def publisher(self, **options) -> Publisher:
        made = Publisher(self._context, **options)
        self.publishers.append(made)
        self.nursery.start_soon(made.run)
        return made

    def status(self, place=0):
        return self.feed.status()[place]

    async def until(self, holds) -> None:
        while not holds():
            await trio.sleep(0.005)

    async def blocks(self, count) -> None:
        """Wait until the core holds so many."""
        while (await self.router.stats()).index_blocks != count:
            await trio.sleep(0.005)

    async def linked(self, publisher) -> None:
        """Wait until live messages of a publisher arrive: sent for nothing until they do."""
        number = self.status().delivered
        while self.status().delivered <= number:
            publisher.send(publisher.engine.publish())
            await trio.sleep(0.01)
        await self.until(lambda: self.feed._ranks[7, 0].tracker.sequence.last == publisher.engine.sequence - 1)


def play(story, patience=CALM, block_size=4, dp_size=1, **options) -> Record:
    """Run a story; what its core was told gives the same answers again."""
    record = Record()

    async def main() -> None:
        context = zmq.Context()
        with trio.fail_after(PATIENCE_S):
            try:
                async with (
                    open_scheduler(SchedulerConfig(block_size=block_size), tap=record.tap) as router,
                    open_feed(router, BlockNames(block_size), patience=patience, **options) as feed,
                    trio.open_nursery() as nursery,
                ):
                    await router.upsert_worker(WorkerConfig(7, dp_size=dp_size))
                    stage = Stage(router, feed, nursery, context, record)
                    await story(stage)
                    nursery.cancel_scope.cancel()
            finally:
                context.destroy(linger=0)

    with closing_groups():
        trio.run(main)
    record.check()
    return record


@contextmanager
def closing_groups():
    """A failed assertion of a story comes out of its nurseries as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from None
