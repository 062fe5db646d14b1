"""The gateway in front of mock workers, which behave like vLLM: what clients and engines see of it."""

from __future__ import annotations

import socket
import threading
from contextlib import asynccontextmanager

import openai
import pytest
import trio
from gateway_world import PATIENCE_S, configured, story
from kvcore.drivers.gateway.gateway import serve
from kvcore.drivers.gateway.upstreams import UpstreamSpec
from kvcore.drivers.kvevents.values import Trust
from kvcore.drivers.mock.server import MockConfig, serve_mock
from mock_world import ask, chat, open_request, until

from kvcore.policy import Capacity
from kvcore.scheduler import Scheduler

BLOCK_SIZE = 16
OPENING = "an opening that several conversations share, long enough for some blocks of the cache. " * 6


def free_endpoint() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class World:
    """A gateway and its mock workers; url: the gateway's."""

    def __init__(self, gateway, mocks) -> None:
        self.gateway, self.mocks = gateway, mocks
        self.url = f"http://127.0.0.1:{gateway.port}"

    async def settled(self) -> None:
        """Nothing is booked or waits, here and in the engines, and the books are right."""
        while (await self.gateway.router.stats()).live_requests or any(m.engine.model.has_work for m in self.mocks):
            await trio.sleep(0.005)
        assert await self.gateway.router.read(Scheduler.audit) == []
        assert int((await self.gateway.router.loads())["active_blocks"].sum()) == 0


@asynccontextmanager
async def world(workers: int = 1, slots: int = 4, events: bool = False, mock=(), **settings):
    """Everything in this process, over sockets."""
    async with trio.open_nursery() as nursery:
        mocks, specs = [], []
        for _ in range(workers):
            ends = (free_endpoint(), free_endpoint()) if events else (None, None)
            config = MockConfig(
                port=0, speed=10.0, max_num_seqs=slots, block_size=BLOCK_SIZE, events=ends[0], replay=ends[1],
                **dict(mock))
            mocks.append(await nursery.start(serve_mock, config))
            specs.append(UpstreamSpec(mocks[-1].url, max_requests=slots, kv_events=ends[0], kv_replay=ends[1]))
        desk = configured(
            workers=tuple(specs), scheduler__capacity=Capacity.STRICT, scheduler__block_size=BLOCK_SIZE, **settings)
        gateway = await nursery.start(serve, desk)
        await until(lambda: all(worker.models is not None for worker in gateway.fleet))
        yield World(gateway, mocks)
        nursery.cancel_scope.cancel()


async def with_client(w: World, talk, **options) -> None:
    """Run talk(client) in a thread: the official client waits by itself."""
    def run() -> None:
        with openai.OpenAI(base_url=f"{w.url}/v1", api_key="a-key", **options) as client:
            talk(client)

    with trio.fail_after(PATIENCE_S):
        await trio.to_thread.run_sync(run, abandon_on_cancel=True)


@story
async def test_the_official_client_gets_whole_answers_and_streams():
    said = []

    def talk(client) -> None:
        raw = client.chat.completions.with_raw_response.create(
            model="mock", messages=[{"role": "user", "content": OPENING}], max_tokens=9)
        whole = raw.parse()
        assert raw.headers["x-kvcore-policy-class"] == "default"
        assert raw.headers["x-kvcore-queue-ms"].isdigit()
        assert whole.usage.completion_tokens == 9
        stream = client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": OPENING}], max_tokens=9, stream=True,
            stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == (
            whole.choices[0].message.content)
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
        assert [model.id for model in client.models.list()] == ["mock"]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="mock", prompt="hi", max_tokens=-1)
        said.append(whole)

    async with world() as w:
        await with_client(w, talk, max_retries=0)
        assert said
        assert (await w.gateway.router.stats()).completed >= 2
        await w.settled()


@story
async def test_the_official_client_comes_again_when_it_is_told_to():
    """A request that does not want to queue is turned away while the only slot is taken; the client tries again."""
    tries = []

    def refused(client) -> None:
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(
                model="mock", prompt="hi", max_tokens=1, extra_headers={"x-kvcore-do-not-queue": "true"})
        assert int(caught.value.response.headers["retry-after"]) >= 1

    def patient(client) -> None:
        answer = client.completions.with_raw_response.create(
            model="mock", prompt="hi", max_tokens=1, extra_headers={"x-kvcore-do-not-queue": "true"})
        tries.append(answer.retries_taken)

    async with world(slots=1) as w:
        holder = await open_request(w.url, "POST", "/v1/chat/completions",
                                    chat("hold", stream=True, max_tokens=5_000, ignore_eos=True))
        await holder.receive_some()
        await with_client(w, refused, max_retries=0)
        before = w.gateway.app.answered[429]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: with_client(w, patient, max_retries=9))
            await until(lambda: w.gateway.app.answered[429] > before)
            await holder.aclose()
        assert tries[0] >= 1
        await w.settled()


@story
async def test_the_official_client_hears_of_a_stream_that_was_cut():
    def talk(client) -> None:
        stream = client.chat.completions.create(
            model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=9, stream=True,
            extra_headers={"x-mock-fault": "cut;after=3"})
        got = []
        with pytest.raises(openai.APIError):
            got.extend(one.choices[0].delta.content for one in stream)
        assert len(got) >= 2        # what had come by then is not lost

    async with world() as w:
        await with_client(w, talk, max_retries=0)
        await w.settled()
        stats = await w.gateway.router.stats()
        assert (stats.completed, stats.aborted) == (0, 1)


@story
async def test_a_client_that_goes_frees_the_engines_slot():
    async with world(slots=2) as w:
        model = w.mocks[0].engine.model
        streams = [
            await open_request(w.url, "POST", "/v1/chat/completions",
                               chat(f"{number}", stream=number != 1, max_tokens=5_000, ignore_eos=True))
            for number in range(4)]
        await until(lambda: len(model.running) == 2)
        assert not model.waiting        # what does not fit waits in the gateway, not in the engine
        await until(lambda: w.gateway.app.inside == 4)
        for stream in streams:
            await stream.aclose()
        await w.settled()
        assert w.mocks[0].engine.outcomes["length"] == 0
        assert (await ask(w.url, "POST", "/v1/chat/completions", chat())).status == 200


@story
async def test_a_prompt_goes_where_its_opening_is_cached_and_the_engine_agrees():
    async with world(workers=2, events=True, scheduler__decisions_kept=16) as w:
        async def send(number: int):
            body = {"model": "mock", "prompt": OPENING + f"question {number}", "max_tokens": 1}
            return await ask(w.url, "POST", "/v1/completions", body)

        first = await send(0)
        named = sum(mock.engine.model.cache.named for mock in w.mocks)
        assert named > 4
        while (await w.gateway.router.stats()).index_blocks != named:
            await trio.sleep(0.005)
        for number in range(1, 6):
            answer = await send(number)
            decision = (await w.gateway.router.read(Scheduler.decisions))[-1]
            (chosen,) = [one for one in decision.candidates if one.rank == decision.rank]
            assert answer.headers["x-kvcore-worker-id"] == first.headers["x-kvcore-worker-id"]
            cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert chosen.cached_tokens == cached > 100
        await w.settled()


@story
async def test_lost_events_are_asked_for_and_a_cleared_cache_is_forgotten():
    async with world(events=True) as w:
        (mock,), (worker,) = w.mocks, w.gateway.fleet

        async def send(text: str) -> int:
            body = {"model": "mock", "prompt": text + OPENING, "max_tokens": 1}
            answer = await ask(w.url, "POST", "/v1/completions", body)
            return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]

        async def until_known() -> None:
            while (await w.gateway.router.stats()).index_blocks != mock.engine.model.cache.named:
                await trio.sleep(0.005)

        assert await send("one ") == 0
        await until_known()
        mock.publisher.lose = 1
        await send("two ")
        await send("three ")
        await until(lambda: w.gateway.feed.trust(worker.worker_id) is Trust.EXACT)
        await until_known()
        while not mock.engine.model.clear_cache():
            await trio.sleep(0.005)
        assert await send("four ") == 0
        await until_known()
        assert mock.engine.model.cache.named < 12       # of one prompt, not of four
        await w.settled()


@story
async def test_threads_of_clients_share_one_engine():
    """Several clients, each with more requests than there are slots; all are answered, once each."""
    answers, lock = [], threading.Lock()

    def talk(client) -> None:
        for number in range(6):
            said = client.completions.create(model="mock", prompt=f"prompt {number}", max_tokens=3)
            with lock:
                answers.append(said.id)

    async with world(slots=2) as w:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(with_client, w, talk)
        assert len(set(answers)) == 24
        assert w.mocks[0].engine.outcomes == {"length": 24}
        await w.settled()
