"""The engine model behind an asynchronous worker in this process: traffic for live drivers, without a network.

`Engines` owns a modelled fleet in a trio task: it looks now and then what has happened there, tells the router what
concerns caches, and hands everything else to the stream of its request. `client` is a caller: it waits for a lease,
streams, may be slow, may go at any time, and may run into the restart of its worker.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random

import trio
from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import PRESETS
from kvcore.drivers.trio import Evicted, Rejected, Withdrawn, trio_ns

from kvcore.events import (
    BlocksRemoved,
    BlocksStored,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestFinished,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.request import Request, WorkerConfig

#: How often the engines are looked at: a poll, as of a socket, that brings many facts at once.
LOOK_NS = 100_000_000
SPEC = replace(PRESETS["mock"], max_num_seqs=64, kv_blocks=4_096)


class Engines:
    """workers: 0 .. workers - 1, each with so many tokens of KV cache."""

    def __init__(self, workers: int, block_size: int, kv_tokens: int = SPEC.kv_tokens) -> None:
        self.spec = replace(SPEC, kv_blocks=kv_tokens // SPEC.block_size).scaled(block_size)
        self.fleet = Fleet(workers, self.spec, block_size)
        self.incarnations = [0] * workers
        self.streams: dict[str, trio.MemorySendChannel] = {}
        self.news = trio.Event()
        self.orders: list = []

    def config(self, worker_id: int) -> WorkerConfig:
        return WorkerConfig(
            worker_id, max_batched_tokens=self.spec.max_num_batched_tokens, total_kv_blocks=self.spec.kv_blocks,
            max_requests=self.spec.max_num_seqs)

    async def start(self, router) -> None:
        """All workers are there."""
        await router.submit_many([
            lambda now_ns, worker_id=worker_id: WorkerUpserted(now_ns, self.config(worker_id))
            for worker_id in range(len(self.incarnations))])

    async def restart(self, router, worker_id: int) -> None:
        """A worker comes back with another incarnation; what ran there is gone."""
        self.incarnations[worker_id] += 1
        await router.upsert_worker(self.config(worker_id), self.incarnations[worker_id])

    async def run(self, router) -> None:
        """Until it is cancelled."""
        while True:
            if self.fleet.next_ns is None and not self.orders:
                self.news = trio.Event()
                await self.news.wait()
            await trio.sleep(LOOK_NS / 1e9)
            told = []
            for fact in self.fleet.advance(trio_ns()):
                if isinstance(fact, BlocksStored | BlocksRemoved):
                    told.append(fact)
                    continue
                stream = self.streams.get(fact.request_id)
                if stream is not None:
                    stream.send_nowait(fact)
            self.fleet.finished()
            for order in self.orders:
                order(trio_ns())
            self.orders.clear()
            if told:
                await router.submit_many([
                    lambda now_ns, fact=fact: replace(
                        fact, now_ns=now_ns, incarnation=self.incarnations[fact.worker_id]) for fact in told])

    @contextmanager
    def stream(self, lease, output_tokens: int):
        """Facts of one run, as they happen; leaving it early stops the engine."""
        request = lease.request
        send, receive = trio.open_memory_channel(math.inf)
        self.streams[request.request_id] = send
        self.order(partial(
            self.fleet.submit, lease.worker_id, request.request_id, lease.attempt, request.prompt_tokens, output_tokens,
            request.block_hashes))
        try:
            yield receive
        finally:
            del self.streams[request.request_id]
            self.order(partial(self.fleet.cancel, request.request_id))

    def order(self, what) -> None:
        """Something for the engines, at their next look."""
        self.orders.append(what)
        self.news.set()


async def client(router, engines: Engines, request: Request, output_tokens: int, slow_s: float, log) -> None:
    """log: a Counter of how it went."""
    try:
        async with router.admit(request) as lease:
            with engines.stream(lease, output_tokens) as facts:
                lease.accepted()
                async for fact in facts:
                    match fact:
                        case PrefillCompleted():
                            lease.prefill_done()
                        case OutputBlockAdded():
                            lease.output_block()
                        case RequestFinished(outcome=Outcome.COMPLETED):
                            lease.completed(request.prompt_tokens + output_tokens)
                            break
                    if slow_s:
                        await trio.sleep(slow_s)
        log["completed"] += 1
    except Evicted as error:
        log[f"evicted {error.reason.name}"] += 1
    except Rejected as error:
        log[f"rejected {error.reason.name}"] += 1
    except Withdrawn:
        log["withdrawn"] += 1


async def impatient(patience_s: float, work, *arguments, log) -> None:
    """Goes after a while, whatever happens then."""
    with trio.move_on_after(patience_s) as scope:
        await work(*arguments)
    log["gone"] += scope.cancelled_caught


def requests(random: Random, count: int, prefix: str, block_size: int, **fields):
    """Pairs (request, output tokens): prompts that share beginnings."""
    for number in range(count):
        prompt = random.randint(8, 400)
        root = random.randrange(8) * 10_000
        shared = min(prompt // block_size, random.randint(0, 8))
        hashes = tuple(root + i for i in range(shared)) + tuple(
            1_000_000 + number * 200 + i for i in range(prompt // block_size - shared))
        yield Request(f"{prefix}{number}", prompt, block_hashes=hashes, **fields), random.randint(1, 60)


async def traffic(router, engines: Engines, random: Random, count: int, rate: float, log, **fields) -> None:
    """Requests at this mean rate per second; every tenth caller goes early, every twentieth is slow."""
    block_size = router._owner.core.config.block_size
    async with trio.open_nursery() as nursery:
        for number, (request, output_tokens) in enumerate(requests(random, count, "r", block_size, **fields)):
            await trio.sleep(random.expovariate(rate))
            arguments = (router, engines, request, output_tokens, 0.5 * (number % 20 == 0), log)
            if number % 10 == 3:
                nursery.start_soon(partial(impatient, random.expovariate(2), client, *arguments, log=log))
            else:
                nursery.start_soon(client, *arguments)


async def mishaps(router, engines: Engines, random: Random, mean_s: float) -> None:
    """Workers restart and are marked; until it is cancelled."""
    while True:
        await trio.sleep(random.expovariate(1 / mean_s))
        worker_id = random.randrange(len(engines.incarnations))
        if random.random() < 0.5:
            await engines.restart(router, worker_id)
        else:
            await router.submit(
                WorkerStatusChanged, worker_id, engines.incarnations[worker_id], "health", random.random() < 0.5, True,
                10**9)
