"""A fixed history of a small busy fleet, and a record of what the scheduler made of it.

    python tests/fixed_history.py           prints the record as JSON
    python tests/fixed_history.py --golden  writes it to tests/golden/, after a change that is meant to alter it

Every kind of event and of action occurs but those of admission policies, refresh, reload and replicas: the plain run on
classes and orders, in both modes of arbitration, the full one also on strict capacity, marks, load reports, tiers,
predictions, decay, a temperature, retries and a drain. The
choices come from a generator of its own, so that they depend on nothing but SEED; what the driver remembers is kept in
the order in which the scheduler told it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from kvcore import (
    Arbitration,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheBucket,
    Capacity,
    CapacityHinted,
    Dispatch,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    Evict,
    LoadReported,
    OnOverload,
    Outcome,
    OutputBlockAdded,
    Overlap,
    PolicyClass,
    PolicyProfile,
    PrefillCompleted,
    PrefillDecay,
    QueuePolicy,
    Rank,
    Request,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Scheduler,
    SchedulerConfig,
    SelectionWeights,
    Tier,
    TimerFired,
    WorkerConfig,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)

GOLDEN = Path(__file__).resolve().parent / "golden" / "fixed_history.json"
SEED = 20261130
BATCHES = 1_200
#: Batches between two lines of the record.
STRIDE = 60
BLOCK_SIZE = 16
WORKERS = 5
TAINTS = (frozenset(), frozenset({"fast"}), frozenset({"fast", "large"}), frozenset({"large"}), frozenset())


def profile(arbitration: Arbitration) -> PolicyProfile:
    """Two families in two buckets, each order at work, and an explicit class that never queues."""
    return PolicyProfile(
        classes=(
            PolicyClass("gold-short", 512, QueuePolicy.FCFS, "gold", "short", prefill_busy_threshold=400,
                        request_queue_limit_per_worker=12),
            PolicyClass("gold-long", 384, QueuePolicy.WSPT, "gold", "long", prefill_busy_threshold=200,
                        max_overtake_tokens=900),
            PolicyClass("plain-short", 256, QueuePolicy.EDF, "plain", "short", prefill_busy_threshold_frac=0.125,
                        raw_isl_token_queue_limit_per_worker=100),
            PolicyClass("plain-long", 128, QueuePolicy.LCFS, "plain", "long", prefill_busy_threshold=100,
                        cached_token_queue_limit_per_worker=15),
            PolicyClass("now-or-never", 64, prefill_busy_threshold=150, request_queue_limit_per_worker=0),
        ),
        buckets=(CacheBucket("short", 0), CacheBucket("long", 160)),
        default_policy_family="plain",
        arbitration=arbitration,
    )


class Dice:
    """A linear congruential generator (Knuth's MMIX constants): the same numbers in every Python, for ever."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, n: int) -> int:
        """A number in 0 .. n - 1."""
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def one_in(self, n: int) -> bool:
        return self.below(n) == 0


class History:
    """Makes up one batch after the other, knowing what it has been told so far. full: for the full run."""

    def __init__(self, full: bool) -> None:
        self.full = full
        self.reports = 0
        self.batches = 0
        self.dice = Dice(SEED)
        self.now_ns = 0
        self.count = 0
        self.running: dict[str, int] = {}
        self.waiting: list[str] = []
        self.incarnations = [0] * WORKERS

    def first(self):
        """The batch that sets the fleet up: worker 0 has two ranks."""
        return [self.upsert(worker) for worker in range(WORKERS)]

    def upsert(self, worker: int) -> WorkerUpserted:
        ranks = 2 if worker == 0 else 1
        config = WorkerConfig(worker, dp_size=ranks, max_batched_tokens=2_048, taints=TAINTS[worker])
        if self.full:
            config = replace(config, total_kv_blocks=40 + 20 * worker, max_requests=4 + worker,
                             prefill_tokens_per_s=(2_000, 8_000, None)[worker % 3])
        return WorkerUpserted(self.now_ns, config, self.incarnations[worker])

    def batch(self):
        """One to four facts, a little later."""
        self.now_ns += self.dice.below(40_000_000)
        self.batches += 1
        if self.full and self.batches == BATCHES - STRIDE:
            return [Drained(self.now_ns, self.now_ns + 300_000_000)]
        return [self.fact() for _ in range(1 + self.dice.below(4))]

    def fact(self):
        if self.full and self.dice.one_in(12):
            return self.told_of_worker()
        roll = self.dice.below(100)
        if roll < 38:
            return RequestArrived(self.now_ns, self.request())
        if roll < 88 and self.running:
            return self.progress(roll)
        if roll < 90 and self.waiting:
            return RequestCancelled(self.now_ns, self.waiting.pop(self.dice.below(len(self.waiting))))
        if roll < 97:
            return self.cache_fact()
        if roll < 98:
            worker = self.dice.below(WORKERS)
            self.incarnations[worker] += self.dice.below(2)
            return self.upsert(worker)
        if roll < 99 and self.dice.one_in(4):
            return WorkerRemoved(self.now_ns, self.dice.below(WORKERS + 1))
        return TimerFired(self.now_ns)

    def told_of_worker(self):
        """What somebody says of a worker, or an engine of itself; now and then too late."""
        dice, worker = self.dice, self.dice.below(WORKERS)
        if dice.one_in(6):
            return CapacityHinted(self.now_ns, None if dice.one_in(3) else (Rank(worker),))
        incarnation = max(0, self.incarnations[worker] - dice.one_in(12))
        if dice.one_in(2):
            self.reports += 1 - 3 * dice.one_in(9)
            return LoadReported(self.now_ns, worker, 0, incarnation, max(0, self.reports), dice.below(600),
                                dice.below(30), dice.below(4))
        lease_ns = None if dice.one_in(5) else 1 + dice.below(300_000_000)
        return WorkerStatusChanged(self.now_ns, worker, incarnation, ("health", "router")[dice.below(2)],
                                   available=not dice.one_in(4), overloaded=dice.one_in(2), lease_ns=lease_ns)

    def progress(self, roll: int):
        """A fact about a running request, now and then about an attempt that is over."""
        names = list(self.running)
        name = names[self.dice.below(len(names))]
        attempt = self.running[name] - self.dice.one_in(20)
        if self.full and self.dice.one_in(5):
            if self.dice.one_in(2):
                return DispatchAccepted(self.now_ns, name, max(1, attempt))
            return DispatchFailed(self.now_ns, name, max(1, attempt), retry=not self.dice.one_in(4))
        if roll < 52:
            return PrefillCompleted(self.now_ns, name, max(1, attempt))
        if roll < 66:
            fraction = None if self.dice.one_in(2) else self.dice.below(9) / 8
            return OutputBlockAdded(self.now_ns, name, max(1, attempt), fraction)
        outcome = Outcome.ABORTED if self.dice.one_in(6) else Outcome.COMPLETED
        return RequestFinished(self.now_ns, name, max(1, attempt), outcome)

    def cache_fact(self):
        worker = self.dice.below(WORKERS)
        incarnation = max(0, self.incarnations[worker] - self.dice.one_in(12))
        kind = self.dice.below(9)
        tier = Tier(self.dice.below(3)) if self.full else Tier.DEVICE
        if kind == 0:
            return BlocksCleared(self.now_ns, worker, 0, incarnation, tier if self.full else None)
        make = BlocksRemoved if kind < 3 else BlocksStored
        return make(self.now_ns, worker, 0, incarnation, self.blocks(1 + self.dice.below(12)), tier)

    def blocks(self, length: int):
        """Blocks of six conversations, root to leaf."""
        return tuple(1_000 * self.dice.below(6) + i for i in range(length))

    def request(self) -> Request:
        dice = self.dice
        self.count += not dice.one_in(25)          # the rest repeats an id
        prompt = 1 + dice.below(400)
        device = tuple((Rank(dice.below(WORKERS)), dice.below(8)) for _ in range(3)) if dice.one_in(7) else None
        more = {}
        if self.full:
            more["expected_output_tokens"] = dice.below(200) if dice.one_in(2) else None
            more["preferred_taints"] = (("fast", 0.5), ("large", -0.25)) if dice.one_in(4) else ()
            more["weights"] = SelectionWeights(0.5, 0.5, 2.0, shared_cache_multiplier=0.5) if dice.one_in(5) else None
            prompt *= 1 + 9 * dice.one_in(10)
        return Request(
            f"request-{self.count}",
            prompt,
            policy_class=("gold", "plain", "now-or-never", "silver", None)[dice.below(5)],
            strict_priority=dice.below(2),
            priority_jump=dice.below(3) / 4,
            deadline_ns=self.now_ns + dice.below(900_000_000) if dice.one_in(3) else None,
            do_not_queue=dice.one_in(15),
            pinned=Rank(dice.below(WORKERS + 1), dice.below(2)) if dice.one_in(9) else None,
            allowed_workers=frozenset({dice.below(WORKERS), dice.below(WORKERS), 77}) if dice.one_in(5) else None,
            required_taints=TAINTS[dice.below(WORKERS)] if dice.one_in(6) else frozenset(),
            block_hashes=self.blocks(dice.below(-(-prompt // BLOCK_SIZE) + 1)),
            overlap=None if device is None else Overlap(device),
            track_prefill=not dice.one_in(20),
            **more,
        )

    def hear(self, events, actions) -> None:
        """Take in what a batch has led to."""
        for event in events:
            match event:
                case RequestArrived():
                    self.waiting.append(event.request.request_id)
                case RequestFinished() | DispatchFailed() if self.running.get(event.request_id) == event.attempt:
                    del self.running[event.request_id]
        for action in actions:
            match action:
                case Dispatch():
                    self.running[action.request_id] = action.attempt
                case Evict() if self.dice.one_in(2):
                    self.running.pop(action.request_id, None)


def play(arbitration: Arbitration, full: bool = False):
    """The history on one scheduler: a list of what is recorded of it."""
    config = SchedulerConfig(
        block_size=BLOCK_SIZE, profile=profile(arbitration), booking_ttl_ns=4_000_000_000, seed=7)
    if full:
        config = replace(
            config, capacity=Capacity.STRICT, weights=SelectionWeights(active_request_weight=2.0, temperature=0.25),
            on_overload=OnOverload.WAIT, overload_wait_ns=200_000_000, prefill_decay=PrefillDecay.LINEAR,
            predict_ttl_ns=500_000_000, reported_load_ttl_ns=150_000_000, attempts_max=2)
    scheduler = Scheduler(config)
    history = History(full)
    told = hashlib.sha256()
    kinds: dict[str, int] = {}
    record = []
    for number in range(BATCHES + 1):
        events = history.batch() if number else history.first()
        actions = scheduler.step_many(events)
        history.hear(events, actions)
        told.update(repr(actions).encode())
        for item in (*events, *actions):
            name = type(item).__name__
            kinds[name] = kinds.get(name, 0) + 1
        if number % STRIDE == 0:
            record.append([number, told.hexdigest()[:16], scheduler.digest(), scheduler.next_deadline_ns])
    assert scheduler.audit() == []
    return {
        "kinds": dict(sorted(kinds.items())),
        "rejected": dict(sorted(scheduler.stats().rejected.items())),
        "columns": ["batches", "actions", "digest", "next_deadline_ns"],
        "record": record,
    }


def recorded() -> str:
    """The record of the history in both modes of arbitration, and of the full one, as JSON text."""
    runs = {arbitration.value: play(arbitration) for arbitration in Arbitration}
    runs["full"] = play(Arbitration.EXACT, full=True)
    text = json.dumps(runs, indent=1)
    for run in runs.values():
        for row in run["record"]:
            text = text.replace(json.dumps(row, indent=1).replace("\n", "\n   "), json.dumps(row))
    return text + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--golden"]:
        GOLDEN.write_text(recorded(), encoding="utf-8")
    else:
        sys.stdout.write(recorded())
