"""The core under asyncio, without a driver: one owner, a future per waiting request, the loop's own timer."""

import asyncio
import time

import kvcore as kv


class Router:
    """Owns a core. Everything runs in the event loop's thread, so a step needs no lock."""

    def __init__(self, config: kv.SchedulerConfig) -> None:
        self.core, self.decisions, self.timer = kv.Scheduler(config), {}, None

    def tell(self, kind, *fields):
        """Stamp a fact, step it, carry out what follows, sleep until the core wants a step by itself."""
        for action in self.core.step(kind(time.monotonic_ns(), *fields)):
            if isinstance(action, kv.Dispatch | kv.Reject):
                decision = self.decisions.pop(action.request_id)
                if not decision.done():  # its caller may have gone just now, and says so next
                    decision.set_result(action)
        if self.timer is not None:
            self.timer.cancel()
        due_ns, loop = self.core.next_deadline_ns, asyncio.get_running_loop()
        delay_s = None if due_ns is None else max(0, due_ns - time.monotonic_ns()) / 1e9
        self.timer = None if delay_s is None else loop.call_later(delay_s, self.tell, kv.TimerFired)

    async def run(self, request: kv.Request, send) -> str:
        """Wait for a worker and send the request there; whatever happens then, its load is released once."""
        decision = self.decisions[request.request_id] = asyncio.get_running_loop().create_future()
        try:
            self.tell(kv.RequestArrived, request)
            action = await decision
            if isinstance(action, kv.Reject):
                return f"{request.request_id}: {action.reason.name}"
            answer = await send(action.worker_id)
            self.tell(kv.RequestFinished, request.request_id, action.attempt)
            return f"{request.request_id}: {answer}"
        finally:  # nothing if it has ended; else it goes, wherever it is
            self.tell(kv.RequestCancelled, request.request_id)


async def main() -> None:
    """Six requests over two workers that take one at a time, and one whose caller loses patience."""
    router = Router(kv.SchedulerConfig(default_busy_threshold_frac=0.0))
    for worker_id in (1, 2):
        router.tell(kv.WorkerUpserted, kv.WorkerConfig(worker_id))

    async def send(worker_id: int) -> str:
        await asyncio.sleep(0.01)
        return f"answered by worker {worker_id}"

    runs = [asyncio.create_task(router.run(kv.Request(f"r{i}", 100), send)) for i in range(6)]
    gone = asyncio.create_task(router.run(kv.Request("impatient", 100), send))
    await asyncio.sleep(0)
    gone.cancel()
    print(*await asyncio.gather(*runs), sep="\n")
    print(f"{router.core.stats().completed} completed, {router.core.audit() or 'ledger at rest'}")


asyncio.run(main())
