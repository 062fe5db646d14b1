"""KV events of a mock worker, as vLLM publishes them since 0.24: events are maps, over ZeroMQ, with a replay.

A message has three frames: topic, sequence number (8 bytes, big endian), and msgpack of [time, events, rank]. Replay: a
DEALER sends ["", first number wanted], and gets ["", topic, number, payload] for each that is still kept, then
["", "", -1, ""].

One thing is different: vLLM connects to a plain tcp endpoint and binds only one with a wildcard. This one always binds,
unless told to connect.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import msgspec
import trio
import zmq

from .model import Step, Stored

#: Messages kept for a replay, and those that may wait for a slow reader: vLLM's defaults.
KEPT_MAX, WAITING_MAX = 10_000, 100_000

_END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """Sends what becomes of the cache. Opened by `open_publisher`.

    number: of the next message. lose: so many next messages are kept for a replay but not sent, which a test asks for.
    """

    def __init__(
        self, pub: zmq.Socket[bytes], router: zmq.Socket[bytes], topic: str, block_size: int, *, wide: bool,
    ) -> None:
        self._pub, self._router, self._topic, self._block_size = pub, router, topic.encode(), block_size
        self._name = _wide if wide else _plain
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_MAX)
        self._encode = msgspec.msgpack.Encoder().encode
        self.number = 0
        self.lose = 0

    def publish(self, step: Step) -> None:
        """Tell of a step, if it has changed the cache. Never waits: ZeroMQ drops what a reader does not take."""
        events: list[dict[str, Any]] = [{"type": "AllBlocksCleared"}] if step.cleared else []
        name = self._name
        events += [
            {"type": "BlockRemoved", "block_hashes": [name(one)], "medium": "GPU", "group_idx": 0}
            for one in step.removed
        ]
        events += [self._stored(stored) for stored in step.stored]
        if not events:
            return
        number = self.number.to_bytes(8, "big")
        payload = self._encode([time.time(), events, 0])
        self.number += 1
        self._kept.append((number, payload))
        if self.lose:
            self.lose -= 1
        else:
            self._pub.send_multipart((self._topic, number, payload), zmq.NOBLOCK)

    def _stored(self, stored: Stored) -> dict[str, Any]:
        name, salts = self._name, [None] * len(stored.names)
        return {
            "type": "BlockStored", "block_hashes": [name(one) for one in stored.names],
            "parent_block_hash": None if stored.parent is None else name(stored.parent),
            "token_ids": stored.tokens.tolist(), "block_size": self._block_size, "lora_id": None, "medium": "GPU",
            "lora_name": None,
            "extra_keys": salts if stored.salt is None or stored.parent is not None else [[stored.salt], *salts[1:]],
            "group_idx": 0, "kv_cache_spec_kind": "full_attention",
        }

    async def run(self) -> None:
        """Serve replays, for ever."""
        router = self._router
        while True:
            # The descriptor tells of changes only: all that is there must be taken before the next wait.
            while router.poll(0):
                self._replay(router, router.recv_multipart(zmq.NOBLOCK))
            await trio.lowlevel.wait_readable(int(router.fd))

    def _replay(self, router: zmq.Socket[bytes], question: list[bytes]) -> None:
        if len(question) != 3 or len(question[2]) != 8:
            return
        peer, first = question[0], question[2]
        for number, payload in self._kept:
            if number >= first:
                router.send_multipart((peer, b"", self._topic, number, payload), zmq.NOBLOCK)
        router.send_multipart((peer, b"", b"", _END, b""), zmq.NOBLOCK)


@contextmanager
def open_publisher(
    endpoint: str, replay: str | None, topic: str, block_size: int, *, wide: bool = False, connect: bool = False,
) -> Iterator[Publisher]:
    """A publisher on these endpoints, as long as the block lasts; the caller runs it.

    wide: names of 32 bytes instead of whole numbers. connect: to a reader that has bound the endpoint. The replay
    endpoint is always bound; None: no replay. Raises: zmq.ZMQError.
    """
    with zmq.Context() as context, context.socket(zmq.PUB) as pub, context.socket(zmq.ROUTER) as router:
        pub.sndhwm = WAITING_MAX
        pub.linger = router.linger = 0
        router.sndhwm = 0                   # a whole replay; the deque bounds it
        pub.ipv6 = router.ipv6 = "[" in f"{endpoint}{replay}"
        (pub.connect if connect else pub.bind)(endpoint)
        if replay is not None:
            router.bind(replay)
        yield Publisher(pub, router, topic, block_size, wide=wide)


def _plain(name: int) -> int:
    return name


def _wide(name: int) -> bytes:
    """32 bytes whose last eight are the number: as in vLLM, whose numbers are cut from SHA-256."""
    low = name.to_bytes(8, "big")
    return blake2b(low, digest_size=24).digest() + low
