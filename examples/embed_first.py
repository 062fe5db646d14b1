"""The first program of README.md: a core, its facts and what it answers. Run it in the root of the repository."""

import kvcore as kv

with open("examples/policies/premium.yaml") as file:
    policy = kv.load_policy(file.read(), file.name).root
core = kv.Scheduler(kv.SchedulerConfig(block_size=16, profile=policy, seed=1))


def tell(fact):
    for action in core.step(fact):
        match action:
            case kv.Dispatch():
                print(f"{action.request_id}: send to worker {action.worker_id} as attempt {action.attempt}")
            case kv.Park():
                print(f"{action.request_id}: wait")
            case kv.Reject():
                print(f"{action.request_id}: refuse, {action.reason.name}")


tell(kv.WorkerUpserted(0, kv.WorkerConfig(worker_id=7)))
for name in ["r1", "r2", "r3", "p1"]:
    family = "premium" if name.startswith("p") else "regular"
    tell(kv.RequestArrived(1_000, kv.Request(name, prompt_tokens=1000, policy_class=family)))
tell(kv.PrefillCompleted(90_000_000, "r1", attempt=1))    # its first token is out: the worker has room again
tell(kv.RequestFinished(200_000_000, "r1", attempt=1))
print(core.stats().waiting_requests, "waits; differences in the books:", core.audit())
