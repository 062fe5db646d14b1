"""The feed behind a mock worker: what its engine caches is what the core knows, whatever gets lost on the way."""

from __future__ import annotations

import socket

import trio
from kvcore.drivers.kvevents.feed import Source, open_feed
from kvcore.drivers.kvevents.names import BlockNames
from kvcore.drivers.kvevents.values import Trust
from kvcore.drivers.trio import open_scheduler
from mock_world import ask, mock_worker, until

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.request import WorkerConfig


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


async def known_blocks(router) -> int:
    return (await router.stats()).index_blocks


def test_the_core_knows_what_the_engine_caches():
    async def main() -> None:
        ends = free_endpoint(), free_endpoint()
        async with (
            mock_worker(events=ends[0], replay=ends[1]) as worker,
            open_scheduler(SchedulerConfig(block_size=16, index=IndexMode.EVENTS)) as router,
            open_feed(router, BlockNames(16)) as feed,
        ):
            await router.upsert_worker(WorkerConfig(7))
            feed.add(Source(7, ends[0], replay=ends[1]))

            async def send(number: int) -> None:
                body = {"prompt": [number, *range(1, 40)], "max_tokens": 1}
                assert (await ask(worker.url, "POST", "/v1/completions", body)).status == 200

            async def until_known() -> None:
                while await known_blocks(router) != worker.engine.model.cache.named:
                    await trio.sleep(0.01)

            for number in range(3):
                await send(number)
            await until_known()
            assert await known_blocks(router) == 6
            await until(lambda: feed.trust(7) is Trust.EXACT)
            worker.publisher.lose = 2           # a gap, which is seen with the next message and replayed
            for number in range(3, 6):
                await send(number)
            await until(lambda: feed.trust(7) is Trust.EXACT)
            await until_known()
            assert await known_blocks(router) == 12
            feed.remove(7)
            await router.remove_worker(7)
            assert await known_blocks(router) == 0

    trio.run(main)
