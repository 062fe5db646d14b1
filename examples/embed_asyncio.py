"""The core under asyncio, without a driver: one owner, a future per waiting request, the loop's own timer."""

import asyncio
import time

import kvcore as kv


class Router:
    """Owns a core. Everything runs in the event loop's thread, so a step needs no lock. send: asks a worker."""

    def __init__(self, config: kv.SchedulerConfig, send) -> None:
        self.core, self.send, self.timer = kv.Scheduler(config), send, None
        self.decisions, self.answers = {}, {}

    def tell(self, kind, *fields):
        """Stamp a fact, step it, carry out what follows, sleep until the core wants a step by itself."""
        for action in self.core.step(kind(time.monotonic_ns(), *fields)):
            match action:
                case kv.Dispatch(request_id):
                    self.answers[request_id] = asyncio.ensure_future(self.send(request_id, action.worker_id))
                    self.decide(action)
                case kv.Reject():
                    self.decide(action)
                case kv.Evict(request_id):  # its worker has gone; run sees that and asks for another
                    self.answers[request_id].cancel()
        if self.timer is not None:
            self.timer.cancel()
        due_ns, loop = self.core.next_deadline_ns, asyncio.get_running_loop()
        delay_s = None if due_ns is None else max(0, due_ns - time.monotonic_ns()) / 1e9
        self.timer = None if delay_s is None else loop.call_later(delay_s, self.tell, kv.TimerFired)

    def decide(self, action) -> None:
        """Wake whoever waits for it, unless he has gone just now: then he says so next."""
        decision = self.decisions.pop(action.request_id)
        if not decision.done():
            decision.set_result(action)

    async def run(self, request: kv.Request) -> str:
        """Wait for a worker and its answer, and for another if it fails. However this ends, nothing stays booked."""
        request_id, fact = request.request_id, (kv.RequestArrived, request)
        try:
            while True:
                decision = self.decisions[request_id] = asyncio.get_running_loop().create_future()
                self.tell(*fact)
                action = await decision
                if isinstance(action, kv.Reject):
                    return f"{request_id}: {action.reason.name}"
                answer = self.answers[request_id]
                await asyncio.wait([answer])
                if not answer.cancelled() and answer.exception() is None:
                    self.tell(kv.RequestFinished, request_id, action.attempt)
                    return f"{request_id}: {answer.result()}"
                fact = (kv.DispatchFailed, request_id, action.attempt, True)  # back to where it stood
        finally:
            if request_id in self.answers:
                self.answers.pop(request_id).cancel()
            self.tell(kv.RequestCancelled, request_id)  # changes nothing if it has ended


async def main() -> None:
    """Six requests over two workers that take one at a time. A caller loses patience, and a worker dies."""

    async def send(request_id: str, worker_id: int) -> str:
        print(f"{request_id} goes to worker {worker_id}")
        await asyncio.sleep(0.01)
        return f"answered by worker {worker_id}"

    router = Router(kv.SchedulerConfig(default_busy_threshold_frac=0.0), send)
    for worker_id in (1, 2):
        router.tell(kv.WorkerUpserted, kv.WorkerConfig(worker_id))
    runs = [asyncio.create_task(router.run(kv.Request(f"r{i}", 100))) for i in range(6)]
    gone = asyncio.create_task(router.run(kv.Request("impatient", 100)))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    router.tell(kv.WorkerRemoved, 1)
    print(*await asyncio.gather(*runs), sep="\n")
    print(f"{router.core.stats().completed} completed, {router.core.audit() or 'ledger at rest'}")


asyncio.run(main())
