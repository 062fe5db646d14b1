"""Restored schedulers go on alike where policies hold requests back, indexes are asked, losses waited for, profiles
replaced. A walk of its own: what it does next depends on bytes and on what the scheduler has answered."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from stories import profile

from kvcore.actions import Dispatch, RefreshOverlap
from kvcore.admission import AdmissionPolicy, Bypass, Defer, MakeReady, Ready, Refuse
from kvcore.config import IndexMode, PrefillDecay, SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    OutputBlockAdded,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import AdmissionSpec, Capacity, QueuePolicy
from kvcore.request import Overlap, Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

LETTER_BYTES = 6


class Gate(AdmissionPolicy):
    """Lets so many go ahead at a time, and whoever has waited for ten; it knows lengths, and likes rank 1."""

    def __init__(self, parameters) -> None:
        self.most = parameters["most"]
        self.running: dict[str, int] = {}
        self.held: list[tuple[str, int]] = []

    def decide(self, view):
        if view.prompt_tokens % 7 == 0:
            return Bypass()
        if view.prompt_tokens % 11 == 0:
            return Refuse()
        if len(self.running) < self.most:
            self.running[view.request_id] = 0
            return Ready(Rank(1) if view.prompt_tokens % 3 == 0 else None)
        self.held.append((view.request_id, view.now_ns + 10))
        return Defer()

    def advanced(self, request_id, context_tokens, now_ns):
        self.running[request_id] = context_tokens

    def released(self, request_id, now_ns):
        self.forget(request_id)

    def completed(self, request_id, context_tokens, now_ns):
        return self.aborted(request_id, now_ns)

    def aborted(self, request_id, now_ns):
        self.forget(request_id)
        return self.release(now_ns)

    def next_deadline_ns(self):
        return min((due_ns for _, due_ns in self.held), default=None)

    def on_time(self, now_ns):
        return self.release(now_ns)

    def forget(self, request_id):
        self.running.pop(request_id, None)
        self.held = [(name, due_ns) for name, due_ns in self.held if name != request_id]

    def release(self, now_ns):
        room = max(0, self.most - len(self.running))
        out = [name for number, (name, due_ns) in enumerate(self.held) if number < room or due_ns <= now_ns]
        self.held = [item for item in self.held if item[0] not in out]
        self.running |= dict.fromkeys(out, 0)
        return [MakeReady(name, Rank(2) if len(name) % 2 else None) for name in out]

    def dump(self):
        return [sorted(self.running.items()), self.held]

    def load(self, value):
        self.running, self.held = dict(value[0]), [(name, due_ns) for name, due_ns in value[1]]


ADMISSION = {"gate": Gate}


def profiles(bound: int | None):
    """Two classes, of which one has a policy; another order and other quanta; another policy; a class less."""
    plain = profile(5, 3, prefill_busy_threshold=0, max_overtake_tokens=bound)
    gated = replace(plain.classes[0], admission=AdmissionSpec("gate", {"most": 1}))
    first = replace(plain, classes=(gated, plain.classes[1]))
    return (
        first,
        replace(first, classes=(replace(plain.classes[1], quantum=9, queue_policy=QueuePolicy.LCFS), gated)),
        replace(first, classes=(replace(gated, admission=AdmissionSpec("gate", {"most": 3})), plain.classes[1])),
        replace(first, classes=(replace(gated, queue_policy=QueuePolicy.WSPT, prefill_busy_threshold=9),),
                capacity=Capacity.STRICT),
    )


CONFIGS = [
    SchedulerConfig(4, profiles(None)[0], pin_grace_ns=20, empty_fleet_wait_ns=30, booking_ttl_ns=60),
    SchedulerConfig(4, profiles(20)[0], index=IndexMode.OFF, refresh_after_ns=2, refresh_timeout_ns=7, attempts_max=3),
    SchedulerConfig(4, profiles(9)[0], index=IndexMode.OFF, refresh_after_ns=1, pin_grace_ns=9,
                    prefill_decay=PrefillDecay.LINEAR, capacity=Capacity.STRICT),
    SchedulerConfig(4, profiles(None)[0], index=IndexMode.APPROXIMATE, predict_ttl_ns=15, empty_fleet_wait_ns=5),
]


class Walk:
    """Makes up events; knows what it has been told of requests."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.profiles = profiles(config.profile.classes[0].max_overtake_tokens)
        self.now_ns = 0
        self.names: list[str] = []
        self.attempts: dict[str, int] = {}
        self.tickets: dict[str, int] = {}

    def hear(self, actions) -> None:
        for action in actions:
            match action:
                case Dispatch():
                    self.attempts[action.request_id] = action.attempt
                case RefreshOverlap():
                    self.tickets[action.request_id] = action.ticket

    def event(self, letter: bytes):
        kind, step, number, a, b, c = letter
        self.now_ns += (0, 0, 1, 1, 2, 5)[step % 6]
        now_ns, worker_id = self.now_ns, 1 + b % 3
        if kind % 16 < 5:
            return RequestArrived(now_ns, self.request(number, a, b, c))
        if kind % 16 < 12 and self.names:
            return self.progress(kind % 16, self.names[-1 - number % min(len(self.names), 6)], a)
        match kind % 16:
            case 12:
                return WorkerUpserted(now_ns, WorkerConfig(
                    worker_id, 0, 1 + a % 2, total_kv_blocks=40, prefill_tokens_per_s=10**9 if c % 2 else None))
            case 13 if a % 3 == 0:
                return WorkerRemoved(now_ns, worker_id)
            case 14 if a % 4 == 0:
                return PolicyReplaced(now_ns, self.profiles[b % len(self.profiles)])
            case 15:
                return WorkerStatusChanged(now_ns, worker_id, 0, "health", a % 3 > 0, a % 2 > 0,
                                           None if b % 2 else 1 + c % 9)
        return TimerFired(now_ns)

    def request(self, number: int, a: int, b: int, c: int) -> Request:
        self.names.append(f"r{len(self.names)}")
        return Request(
            self.names[-1], 1 + a % 40, ("f0", "c0", "f1", None)[number % 4], priority_jump=b % 3 * 1e-9,
            deadline_ns=self.now_ns + 1 + c if c % 5 == 0 else None, do_not_queue=b % 9 == 0,
            pinned=Rank(1 + c % 4) if c % 4 == 1 else None, block_hashes=tuple(range(b % 5, b % 5 + (a % 40) // 8)))

    def progress(self, kind: int, name: str, a: int):
        now_ns, attempt = self.now_ns, self.attempts.get(name, 1)
        if name in self.tickets and a % 2:
            overlap = Overlap(((Rank(1), a % 3),)) if a % 4 > 1 else None
            return OverlapRefreshed(now_ns, name, self.tickets[name], overlap)
        match kind:
            case 5:
                return PrefillCompleted(now_ns, name, attempt)
            case 6:
                return RequestFinished(now_ns, name, attempt, context_tokens=a if a % 2 else None)
            case 7:
                return DispatchFailed(now_ns, name, attempt, a % 4 > 0)
            case 8:
                return DispatchAccepted(now_ns, name, attempt) if a % 2 else ContextAdvanced(now_ns, name, attempt, a)
            case 9:
                return OutputBlockAdded(now_ns, name, attempt, None if a % 2 else a % 8 / 8)
            case 10:
                return AdmissionReleased(now_ns, name, Rank(1 + a % 3) if a % 2 else None)
        return RequestCancelled(now_ns, name)


def seen(scheduler):
    return (scheduler.digest(), scheduler.next_deadline_ns, scheduler.stats(), scheduler.loads().tolist(),
            scheduler.profile, scheduler.audit())


LETTER = st.binary(min_size=LETTER_BYTES, max_size=LETTER_BYTES)
LETTERS = st.sampled_from((1, 30, 70)).flatmap(lambda fewest: st.lists(LETTER, min_size=fewest, max_size=90))


@given(st.sampled_from(CONFIGS), LETTERS, st.integers(1, 5))
def test_a_restored_scheduler_goes_on_alike(config, letters, every):
    scheduler = Scheduler(config, admission=ADMISSION)
    twin = Scheduler.restore(scheduler.snapshot(), admission=ADMISSION)
    walk = Walk(config)
    scheduler.step(WorkerUpserted(0, WorkerConfig(1)))
    twin.step(WorkerUpserted(0, WorkerConfig(1)))
    for number, letter in enumerate(letters):
        event = walk.event(letter)
        told = scheduler.step(event)
        walk.hear(told)
        assert twin.step(event) == told
        assert seen(twin) == seen(scheduler)
        if number % every == 0:
            data = scheduler.snapshot()
            assert twin.snapshot() == data
            twin = Scheduler.restore(data, admission=ADMISSION)
            assert seen(twin) == seen(scheduler)
