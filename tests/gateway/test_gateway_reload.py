"""A reload: workers come, change and go as the configuration names them, all of it or nothing."""

from __future__ import annotations

import pytest
import trio
from gateway_world import DONE, PROMPT, STREAM, Engine, Stage, begin, chunk, configured, read_until, story, world
from kvcore.drivers.gateway.config import resolve
from kvcore.drivers.gateway.config_file import InvalidGatewayConfig, read_file
from kvcore.drivers.gateway.reload import Reloader
from kvcore.drivers.gateway.upstreams import UpstreamSpec

from kvcore.request import Request


class File:
    """A configuration file that a test rewrites."""

    def __init__(self, w) -> None:
        self.workers, self.more = [spec.url for spec in w.gateway.desk.config.workers], ""
        self.reload = Reloader(w.gateway.desk, w.gateway.router, w.gateway.fleet, self._again)
        self._config = type(w.gateway.desk.config)

    def _again(self):
        text = "\n".join(["workers:", *[f"- {worker!r}" for worker in self.workers], self.more])
        config, places = resolve(read_file(text, "gateway.yaml", self._config))
        return config, places


def urls(w) -> list[str]:
    return [worker.spec.url for worker in w.gateway.fleet]


@story
async def test_workers_come_and_go_and_what_runs_may_finish():
    async with world(2) as w:
        file, (first, second), third = File(w), w.engines, await w.nursery.start(Engine().run)
        stage = Stage(chunk("a"), rest=(chunk(finish="stop"), DONE))
        first.scripts = [stage]
        assert await w.gateway.fleet.drain(1)
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk("a"))
        assert await w.gateway.fleet.drain(1, draining=False)
        file.workers = [second.url, third.url]
        assert (await file.reload()).workers == [
            f"- {first.url} (worker 0, when nothing runs there)", f"+ {third.url} (worker 2)"]
        await w.until(lambda: w.gateway.fleet.get(2).models is not None)
        assert urls(w) == [first.url, second.url, third.url]
        for _ in range(4):
            assert (await w.post(PROMPT))[1][b"x-kvcore-worker-id"] in (b"1", b"2")
        stage.go_on.set()
        await read_until(client, DONE)
        await client.aclose()
        await w.until(lambda: urls(w) == [second.url, third.url])
        assert (await file.reload()).workers == []
        await w.settled()


@story
async def test_a_worker_that_is_named_again_before_it_has_gone_stays():
    async with world(1) as w:
        file, engine, stage = File(w), w.engines[0], Stage(chunk("a"), rest=(chunk(finish="stop"), DONE))
        engine.scripts = [stage]
        client = await begin(w.gateway.port, STREAM)
        await read_until(client, chunk("a"))
        file.workers = []
        await file.reload()
        file.workers = [engine.url]
        assert (await file.reload()).workers == [f"+ {engine.url} (worker 0, stays)"]
        stage.go_on.set()
        await read_until(client, DONE)
        await client.aclose()
        await w.settled()
        assert not w.gateway.fleet.get(0).is_leaving


@story
async def test_limits_change_in_place_and_what_an_administrator_has_added_stays():
    async with world(1) as w:
        file, added = File(w), await w.nursery.start(Engine().run)
        await w.gateway.fleet.add(UpstreamSpec(added.url))
        file.workers = [f"{w.engines[0].url},max-requests=3,taints=a"]
        file.more = "limits: {queue: 7}"
        changes = await file.reload()
        assert changes.workers == [f"  {w.engines[0].url} (worker 0): max_requests, taints"]
        assert {"limits.queue", "timeouts.pause_s"} <= set(changes.restart)
        assert "limits.inbox" not in changes.restart
        assert urls(w) == [w.engines[0].url, added.url]
        picky = Request("q", 4, required_taints=frozenset({"a"}))
        assert (await w.gateway.router.peek(picky)).worker_id == 0
        await w.settled()


@pytest.mark.parametrize(("worker", "message"), [
    ("{},kv-events=tcp://h:1", "workers: .*: kv_events cannot change while the worker is used"),
    ("{},max-requests=x", r"gateway.yaml:2:3: workers\[0\]: max_requests"),
])
@story
async def test_all_or_nothing(worker, message):
    async with world(1) as w:
        file = File(w)
        file.workers = [worker.format(w.engines[0].url), "http://127.0.0.1:1"]
        for _ in range(2):
            with pytest.raises(InvalidGatewayConfig, match=message):
                await file.reload()
            assert urls(w) == [w.engines[0].url]
        file.workers = [w.engines[0].url]
        assert (await file.reload()).workers == []


def test_without_files_there_is_nothing_to_reload():
    async def main() -> None:
        with pytest.raises(InvalidGatewayConfig, match="no policy file"):
            await Reloader(configured(), None, None)()

    trio.run(main)
