"""Dense little runs in which room comes without a word of any request: decay, reports and their end, leases.

Random plans seldom meet them. Each step is made of two numbers; a step that fits nothing is a timer.
"""

from __future__ import annotations

from checkers import faults_of
from hypothesis import event, given
from hypothesis import strategies as st
from recording import Run, as_code
from strategies import one_class

from kvcore.actions import Dispatch
from kvcore.config import PrefillDecay, SchedulerConfig
from kvcore.events import (
    LoadReported,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestFinished,
    TimerFired,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.policy import Capacity
from kvcore.request import Rank, Request, WorkerConfig
from kvcore.scheduler import Scheduler

KINDS = ("arrive", "arrive", "arrive", "report", "report", "due", "due", "due", "prefill", "finish", "output", "mark")
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 15)), min_size=10, max_size=50)
QUIET = (LoadReported, TimerFired)
CONFIGS = st.builds(
    lambda capacity, threshold, ttl_ns: SchedulerConfig(
        4, one_class(threshold, capacity), prefill_decay=PrefillDecay.LINEAR, reported_load_ttl_ns=ttl_ns),
    st.sampled_from(Capacity), st.sampled_from((0, 3, 8, None)), st.sampled_from((5, 20)))
WORKERS = st.lists(st.builds(
    dict, max_requests=st.sampled_from((None, 1, 2)), total_kv_blocks=st.sampled_from((None, 6)),
    prefill_tokens_per_s=st.sampled_from((10**9, 3 * 10**8, None))), min_size=1, max_size=2)


class Player:
    """Makes events of steps, by what a scheduler has told."""

    def __init__(self, scheduler: Scheduler, workers: list[dict]) -> None:
        self.scheduler = scheduler
        self.upserts = [WorkerUpserted(0, WorkerConfig(i, **keys)) for i, keys in enumerate(workers)]
        self.now_ns = 0
        self.count = 0
        self.running: list[Dispatch] = []

    def make(self, kind: str, number: int):
        self.now_ns += number % 2
        worker_id = number // 2 % len(self.upserts)
        self.count += 1
        if kind == "arrive":
            path = ((), (1, 2, 3), (1, 2, 4), (5,))[number % 4]
            pin = Rank(worker_id) if number % 5 == 0 else None
            prompt = 1 + 4 * len(path) + number
            return RequestArrived(self.now_ns, Request(f"r{self.count}", prompt, pinned=pin, sequence_hashes=path))
        if kind == "report":
            return LoadReported(self.now_ns, worker_id, 0, 0, self.count, number, number // 3, number // 6)
        if kind == "mark":
            lease_ns = 1 + number % 7
            return WorkerStatusChanged(self.now_ns, worker_id, 0, "", number % 3 == 0, number % 3 < 2, lease_ns)
        if kind == "due" and self.scheduler.next_deadline_ns is not None:
            self.now_ns = max(self.now_ns, self.scheduler.next_deadline_ns)
        if kind in ("prefill", "finish", "output") and self.running:
            of = self.running[number % len(self.running)]
            if kind == "finish":
                self.running.remove(of)
            make = {"prefill": PrefillCompleted, "finish": RequestFinished, "output": OutputBlockAdded}[kind]
            return make(self.now_ns, of.request_id, of.attempt)
        return TimerFired(self.now_ns)


@given(CONFIGS, WORKERS, STEPS)
def test_room_that_comes_by_itself_is_seen(config, workers, steps):
    """Whoever asks all heads after each event finds nobody else, and the checkers have nothing to say."""
    targeted, full = Scheduler(config), Scheduler(config)
    player, run = Player(targeted, workers), Run(config)
    for made in (*player.upserts, *steps):
        fact = made if isinstance(made, WorkerUpserted) else player.make(*made)
        told = targeted.step(fact)
        assert full.step_many([fact, WorkerStatusChanged(fact.now_ns, 0, 0, "somebody")]) == told
        assert full.digest() == targeted.digest()
        assert full.next_deadline_ns == targeted.next_deadline_ns
        assert targeted.audit() == []
        dispatched = [action for action in told if isinstance(action, Dispatch)]
        if dispatched and isinstance(fact, QUIET):
            event(f"a {type(fact).__name__} lets somebody run")
        player.running += dispatched
        run.add((fact,), told)
    assert faults_of(run) == [], as_code(config, [events for events, _ in run.steps])
