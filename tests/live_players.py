"""Who plays a scenario: the owner turned by hand, the trio driver, the driver for threads. Each step is settled before
the next one, so that the order of events is the scenario's, whoever plays it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import trio
import trio.testing
from kvcore.drivers import threads
from kvcore.drivers import trio as trio_driver
from kvcore.drivers.owner import Job
from kvcore.drivers.protocol import DriverError
from live_hand import HandLease
from live_scenario import ADMISSION, CONFIG, ClockInHand, refreshed, request_of, state_of
from live_trio import run

from kvcore.events import Drained

#: How often a player looks whether what is expected has come about.
LOOKS = 100_000


def make_of(step):
    """The maker of a `fact` or `drain` step."""
    if step[0] == "drain":
        return lambda now_ns: Drained(now_ns, now_ns + step[1])
    return lambda now_ns: step[1](now_ns, *step[2:])


# By hand.


class HandPlayer:
    """Turns a Hand."""

    def __init__(self, hand) -> None:
        self.hand, self.leases = hand, {}

    def play(self, steps) -> None:
        for step in steps:
            getattr(self, f"do_{step[0]}")(step)
            self.hand.turns()
            while self.hand.owner.tick():
                self.hand.turns()

    def do_fact(self, step):
        self.hand.put(Job(lambda: self.hand.owner.submit([make_of(step)]), Future()))

    do_drain = do_fact

    def do_admit(self, step):
        lease = HandLease(request_of(step[1], step[2]), self.hand.told, self.hand.live)
        lease.enter()
        self.leases[step[1]] = self.hand.put(lease)

    def do_tell(self, step):
        lease = self.leases[step[1]]
        if lease.is_away and lease.error is None:
            lease.take_over()
        getattr(lease, step[2])(**step[3])

    def do_again(self, step):
        self.leases[step[1]].take_over()

    def do_leave(self, step):
        self.do_tell((None, step[1], "leave", {"completed": step[2]}))

    def do_gone(self, step):
        self.leases[step[1]].abandon()

    def do_hint(self, step):
        self.hand.owner.hint(step[1])

    def do_recheck(self, step):
        self.hand.owner.recheck(Future())

    def do_pass(self, step):
        self.hand.now += step[1]

    def do_expect(self, step):
        assert state_of(self.leases[step[1]]) == step[2], step


# Through trio.


class TrioPlayer:
    """Plays on a router. sleep: how time passes; settle: waits until all that the last step causes has happened."""

    def __init__(self, router, nursery, sleep, settle) -> None:
        self.router, self.nursery, self.sleep, self.settle = router, nursery, sleep, settle
        self.leases, self.scopes = {}, {}

    async def play(self, steps) -> None:
        for step in steps:
            await getattr(self, f"do_{step[0]}")(step)
            await self.settle()

    async def do_fact(self, step):
        await self.router.submit_many([make_of(step)])

    do_drain = do_fact

    async def do_admit(self, step):
        name = step[1]
        self.leases[name] = self.router.admit(request_of(name, step[2]), cancel_on_evict=False)
        self.nursery.start_soon(self.enter, name)

    async def enter(self, name):
        with trio.CancelScope() as self.scopes[name]:
            try:
                await self.leases[name].__aenter__()
            except DriverError:
                assert self.leases[name].error is not None

    async def do_tell(self, step):
        getattr(self.leases[step[1]], step[2])(**step[3])

    async def do_again(self, step):
        await self.leases[step[1]].again()

    async def do_leave(self, step):
        await self.leases[step[1]].__aexit__(None if step[2] else KeyError, None, None)

    async def do_gone(self, step):
        self.scopes[step[1]].cancel()

    async def do_hint(self, step):
        self.router.hint(step[1])

    async def do_recheck(self, step):
        assert await self.router.recheck() is True

    async def do_pass(self, step):
        await self.sleep(step[1])

    async def do_expect(self, step):
        for _ in range(LOOKS):
            if state_of(self.leases[step[1]]) == step[2]:
                return
            await self.settle()
        raise AssertionError(f"{step}: {state_of(self.leases[step[1]])}")


def through_trio(steps, tap) -> None:
    """The steps alone, with a clock in hand."""
    clock = ClockInHand()

    async def refresh(request_id, block_hashes):
        return refreshed(request_id, block_hashes)

    async def main():
        opened = trio_driver.open_scheduler(CONFIG, admission=ADMISSION, tap=tap, clock=clock, refresh=refresh)
        async with opened as router, trio.open_nursery() as nursery:
            async def settle():
                await trio.testing.wait_all_tasks_blocked()
                await router.stats()

            async def sleep(ns):
                clock.now += ns

            await TrioPlayer(router, nursery, sleep, settle).play(steps)

    run(main)


# Through threads.


class ThreadPlayer:
    """Plays on a router of threads."""

    def __init__(self, router, sleep, settle) -> None:
        self.router, self.sleep, self.settle = router, sleep, settle
        self.leases, self.futures = {}, {}

    def play(self, steps) -> None:
        for step in steps:
            getattr(self, f"do_{step[0]}")(step)
            self.settle()

    def do_fact(self, step):
        self.router.submit_many([make_of(step)])

    do_drain = do_fact

    def do_admit(self, step):
        lease = self.leases[step[1]] = self.router.admit(request_of(step[1], step[2]))
        self.futures[step[1]] = lease.later()

    def do_tell(self, step):
        getattr(self.leases[step[1]], step[2])(**step[3])

    def do_again(self, step):
        self.leases[step[1]].again()

    def do_leave(self, step):
        self.leases[step[1]].__exit__(None if step[2] else KeyError, None, None)

    def do_gone(self, step):
        assert self.futures[step[1]].cancel()

    def do_hint(self, step):
        self.router.hint(step[1])

    def do_recheck(self, step):
        assert self.router.recheck() is True

    def do_pass(self, step):
        self.sleep(step[1])

    def do_expect(self, step):
        for _ in range(LOOKS):
            if state_of(self.leases[step[1]]) == step[2]:
                return
            self.settle()
        raise AssertionError(f"{step}: {state_of(self.leases[step[1]])}")


def refresh_later(request_id, block_hashes):
    """The outside index as a future that is done."""
    answer: Future = Future()
    answer.set_result(refreshed(request_id, block_hashes))
    return answer


def through_threads(steps, tap) -> None:
    """The steps alone, with a clock in hand."""
    clock = ClockInHand()

    def sleep(ns):
        clock.now += ns

    opened = threads.open_scheduler(CONFIG, admission=ADMISSION, tap=tap, clock=clock, refresh=refresh_later)
    with opened as router, ThreadPoolExecutor(1) as pool:
        # From another thread than the one that has opened it: any may call.
        pool.submit(ThreadPlayer(router, sleep, router.stats).play, steps).result(300)
