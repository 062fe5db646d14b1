"""Live runs under load are recorded and replayed: every event kind, every reason, digests equal to the end."""

from __future__ import annotations

import io
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import get_args

import pytest
import trio
from kvcore.drivers import threads
from kvcore.drivers import trio as trio_driver
from live_fleet import Engines, mishaps, traffic
from live_players import ThreadPlayer, TrioPlayer, refresh_later
from live_scenario import ADMISSION, CONFIG, FINALE, MIDDLE, PRELUDE, refreshed
from live_trio import run

from kvcore.actions import Dispatch, Evict, EvictReason, Reject, RejectReason
from kvcore.events import AnyEvent, RequestArrived
from kvcore.journal import JournalReader, JournalWriter, replay
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler

REQUESTS = 5_000
WORKERS = 16


def through_trio(journal, seed: int) -> tuple[Counter, Scheduler]:
    """The scenario in the middle of traffic over modelled engines, in virtual time."""
    random, log, cores = Random(seed), Counter(), []

    async def refresh(request_id, block_hashes):
        await trio.sleep(0.01)
        return refreshed(request_id, block_hashes)

    async def main():
        engines = Engines(WORKERS, CONFIG.block_size)
        opened = trio_driver.open_scheduler(CONFIG, admission=ADMISSION, tap=journal.batch, refresh=refresh)
        async with opened as router, trio.open_nursery() as nursery:
            cores.append(router._owner.core)
            player = TrioPlayer(
                router, nursery, lambda ns: trio.sleep(ns / 1e9), lambda: trio.sleep(0.001))
            await player.play(PRELUDE)
            nursery.start_soon(engines.run, router)
            await engines.start(router)
            async with trio.open_nursery() as busy:
                busy.start_soon(mishaps, router, engines, random, 0.5)
                async with trio.open_nursery() as both:
                    both.start_soon(player.play, MIDDLE)
                    everybody = frozenset(range(WORKERS))
                    await traffic(router, engines, random, REQUESTS, 60.0, log, allowed_workers=everybody)
                busy.cancel_scope.cancel()
            await player.play(FINALE)
            nursery.cancel_scope.cancel()

    run(main, seed)
    return log, cores[0]


class Ticking:
    """A clock that goes on by itself, a little with each look; it can be moved."""

    def __init__(self) -> None:
        self.now = 10**9

    def __call__(self) -> int:
        self.now += 1_000
        return self.now

    def move(self, ns: int) -> None:
        self.now += ns


def through_threads(journal, seed: int) -> tuple[Counter, Scheduler]:
    """The same with threads: eight of them run requests while a ninth plays the scenario."""
    log, clock, ended = Counter(), Ticking(), threading.Lock()
    workers = frozenset(range(WORKERS))

    def client(router, number):
        random = Random(seed * 1_000_003 + number)
        request = Request(f"r{number}", random.randint(8, 400), allowed_workers=workers)
        try:
            with router.admit(request) as lease:
                if random.random() < 0.05:
                    lease.failed(retry=True)
                    lease.again()
                if random.random() < 0.05:
                    raise ConnectionError
                lease.accepted()
                lease.prefill_done()
                for _ in range(random.randint(0, 5)):
                    lease.output_block()
                lease.context(request.prompt_tokens + 20)
            how = "completed" if lease.evicted is None else "evicted"
        except (threads.Rejected, ConnectionError) as error:
            how = type(error).__name__
        with ended:
            log[how] += 1

    opened = threads.open_scheduler(CONFIG, admission=ADMISSION, tap=journal.batch, clock=clock, refresh=refresh_later)
    with opened as router, ThreadPoolExecutor(9) as pool:
        player = ThreadPlayer(router, clock.move, router.stats)
        player.play(PRELUDE)
        for worker_id in workers:
            router.upsert_worker(WorkerConfig(worker_id, total_kv_blocks=4_096, max_requests=8))
        middle = pool.submit(player.play, MIDDLE)
        list(pool.map(lambda number: client(router, number), range(REQUESTS)))
        middle.result(300)
        player.play(FINALE)
    return log, router._owner.core


@pytest.mark.parametrize("driver", [through_trio, through_threads])
def test_a_live_run_replays_to_equal_digests(driver):
    stream = io.StringIO()
    with JournalWriter(stream, CONFIG, digest_every=200) as journal:
        log, core = driver(journal, seed=7)
    assert sum(log.values()) >= REQUESTS
    assert log["completed"] > REQUESTS * 0.8
    assert len(log) >= 2
    assert (core.stats().live_requests, core.audit()) == (0, [])
    assert core.loads()["requests"].sum() == 0

    batches = list(JournalReader(io.StringIO(stream.getvalue())))
    events = [event for batch in batches for event in batch.events]
    actions = [action for batch in batches for action in batch.actions]
    assert sum(isinstance(event, RequestArrived) for event in events) >= REQUESTS
    assert {type(event) for event in events} == set(get_args(AnyEvent))
    assert {action.reason for action in actions if isinstance(action, Reject)} == set(RejectReason)
    assert {action.reason for action in actions if isinstance(action, Evict)} == set(EvictReason)
    assert any(action.wait_ns for action in actions if isinstance(action, Dispatch))

    again = Scheduler(CONFIG, admission=ADMISSION)
    result = replay(JournalReader(io.StringIO(stream.getvalue())), again)
    assert result.batches == len(batches) > REQUESTS
    assert result.digests == len(batches) // 200 + 1
    assert again.digest() == result.digest
