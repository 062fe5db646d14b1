"""Random walks through states that plans of strategies.py do not reach: deferred, refreshing, in grace, reloaded."""

from __future__ import annotations

from explain_checks import check
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import profile

from kvcore.config import IndexMode, OnOverload, SchedulerConfig
from kvcore.events import (
    AdmissionReleased,
    DispatchFailed,
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
from kvcore.explanation_text import text
from kvcore.policy import AdmissionSpec, Capacity, QueuePolicy
from kvcore.request import Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

BY_SESSION = AdmissionSpec("session_concurrency", {"max_running": 1})
POLICIES = (
    profile(3, 5, prefill_busy_threshold=5, admission=BY_SESSION),
    profile(4, queue_policy=QueuePolicy.LCFS, prefill_busy_threshold=0, max_overtake_tokens=9),
    profile(1, 1, 9, prefill_busy_threshold=8, admission=AdmissionSpec("session_concurrency", {"max_running": 2})),
    profile(2),
)
KINDS = ("arrive",) * 10 + ("prefill", "answer", "status") * 3 + (
    "finish", "finish", "cancel", "fail", "release", "upsert", "remove", "reload", "timer")
LETTERS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 255), st.sampled_from((0, 0, 1, 2, 7, 30))), min_size=5,
    max_size=40)


class Walk:
    """A scheduler and the names that it has heard; what a letter is about it finds out by asking."""

    def __init__(self, capacity: Capacity) -> None:
        self.core = Scheduler(SchedulerConfig(
            block_size=4, profile=POLICIES[0], index=IndexMode.OFF, refresh_after_ns=3, refresh_timeout_ns=6,
            pin_grace_ns=9, empty_fleet_wait_ns=5, booking_ttl_ns=60, on_overload=OnOverload.WAIT, overload_wait_ns=20,
            capacity=capacity, decisions_kept=3))
        self.now_ns = 0
        self.names: list[str] = []
        self.core.step_many((self.upsert(28), self.upsert(29)))

    def step(self, kind: str, number: int, step_ns: int) -> None:
        self.now_ns += step_ns
        self.core.step(getattr(self, kind)(number) or TimerFired(self.now_ns))

    def one_in(self, states: tuple[str, ...], number: int):
        """An explanation of a request in one of these states, or None."""
        found = [told for told in map(self.core.explain, self.names) if told.state in states]
        return found[number % len(found)] if found else None

    def arrive(self, number: int):
        self.names.append(f"r{len(self.names)}")
        pinned = (None, None, Rank(0), Rank(1, 1))[number % 4]
        return RequestArrived(self.now_ns, Request(
            self.names[-1], 1 + number % 11, (None, "f1", "f2", "f0")[number // 4 % 4], pinned=pinned,
            deadline_ns=self.now_ns + 50 if number % 16 == 7 else None,
            block_hashes=(number,) if number % 3 else (), session_id=(None, "s", "t")[number // 16 % 3]))

    def prefill(self, number: int):
        told = self.one_in(("running",), number)
        return told and PrefillCompleted(self.now_ns, told.request_id, told.attempt)

    def finish(self, number: int):
        told = self.one_in(("running", "evicted"), number)
        return told and RequestFinished(self.now_ns, told.request_id, told.attempt)

    def fail(self, number: int):
        told = self.one_in(("running", "evicted"), number)
        return told and DispatchFailed(self.now_ns, told.request_id, told.attempt, number % 4 > 0)

    def cancel(self, number: int):
        told = self.one_in(("waiting", "deferred", "refreshing", "running", "evicted"), number)
        return told and RequestCancelled(self.now_ns, told.request_id)

    def release(self, number: int):
        told = self.one_in(("deferred",), number)
        return told and AdmissionReleased(self.now_ns, told.request_id, (None, Rank(0), Rank(1, 1))[number % 3])

    def answer(self, number: int):
        told = self.one_in(("refreshing",), number)
        return told and OverlapRefreshed(self.now_ns, told.request_id, told.ticket)

    def upsert(self, number: int):
        caps = {"total_kv_blocks": 2 + number // 4 % 9, "max_requests": 1 + number // 2 % 3}
        return WorkerUpserted(self.now_ns, WorkerConfig(number % 2, dp_size=1 + number % 2, **caps))

    def remove(self, number: int):
        return WorkerRemoved(self.now_ns, number % 5)

    def status(self, number: int):
        return WorkerStatusChanged(self.now_ns, number % 2, 0, "", number % 3 > 0, number % 5 > 2,
                                   lease_ns=(None, 5, 40)[number // 8 % 3])

    def reload(self, number: int):
        return PolicyReplaced(self.now_ns, POLICIES[number % len(POLICIES)])

    def timer(self, number: int):
        return TimerFired(self.now_ns)


@settings(max_examples=2 * settings().max_examples)
@given(st.sampled_from(list(Capacity)), LETTERS)
def test_explanations_are_pure_and_true_in_every_state(capacity, letters):
    walk = Walk(capacity)
    for letter in letters:
        walk.step(*letter)
        told = check(walk.core, walk.names[-12:], walk.now_ns)
        for explanation in told.values():
            assert max(map(len, text(explanation).splitlines())) <= 100
