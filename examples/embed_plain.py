"""The core in a while loop of its own: two workers, six requests, everything by hand. No driver, no event loop.

Whoever owns the core does four things: stamp a fact, step it, carry out the actions in their order, and step
TimerFired when next_deadline_ns has come.
"""

import heapq
import time

import kvcore as kv

core = kv.Scheduler(kv.SchedulerConfig(default_busy_threshold_frac=0.0))
events = [kv.WorkerUpserted(0, kv.WorkerConfig(worker_id)) for worker_id in (1, 2)]
events += [kv.RequestArrived(0, kv.Request(f"r{i}", prompt_tokens=100 * (i + 1))) for i in range(6)]
due: list[tuple[int, str, int, bool]] = []  # what the two pretended workers will have done, and when
start_ns = time.monotonic_ns()

while events or due or core.next_deadline_ns is not None:
    if not events:
        times = [due[0][0]] if due else []
        times += [core.next_deadline_ns] if core.next_deadline_ns is not None else []
        time.sleep(max(0, min(times) + start_ns - time.monotonic_ns()) / 1e9)
        now_ns = time.monotonic_ns() - start_ns
        while due and due[0][0] <= now_ns:
            _, request_id, attempt, computed = heapq.heappop(due)
            if computed:
                events.append(kv.PrefillCompleted(now_ns, request_id, attempt))
            else:
                events.append(kv.RequestFinished(now_ns, request_id, attempt))
        events = events or [kv.TimerFired(now_ns)]
    now_ns = events[-1].now_ns
    for action in core.step_many(events):
        match action:
            case kv.Dispatch(request_id, attempt, worker_id):
                print(f"{request_id} runs on worker {worker_id}")
                heapq.heappush(due, (now_ns + 10_000 * action.prefill_tokens, request_id, attempt, True))
                heapq.heappush(due, (now_ns + 15_000 * action.prefill_tokens, request_id, attempt, False))
            case kv.Park(request_id):
                print(f"{request_id} waits")
            case kv.Reject(request_id, reason):
                print(f"{request_id} is rejected: {reason.name}")
    events = []

print(f"{core.stats().completed} completed, {core.audit() or 'ledger at rest'}")
