"""The compiled engine model against its plain twin: the same facts at the same nanosecond, on 1,000 random workloads.

The workloads are small and tight, so that chunked prefills, prefix hits, evictions, preemptions and cancellations meet
each other; in the end the test sees to it that they did. tests/slow_engine.py steps through every iteration.
"""

from __future__ import annotations

import random
from collections import Counter

from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import EngineSpec
from slow_engine import SlowEngine

from kvcore.events import AnyEvent, BlocksRemoved, BlocksStored, PrefillCompleted, RequestFinished

WORKLOADS = 1_000
FAR_NS = 1 << 61


class Pair:
    """Both models and one workload. covered: what happened, over all workloads of a run."""

    def __init__(self, seed: int, covered: Counter[str]) -> None:
        self.draw = draw = random.Random(seed)
        self.covered = covered
        seqs = draw.choice([1, 2, 3, 4, 8])
        self.block_size = draw.choice([1, 2, 3, 4, 8, 16])
        spec = EngineSpec(
            name=f"seed {seed}",
            base_ps=draw.choice([1_000, 1_500, 3_333_333, 10_000_000]),
            prefill_token_ps=draw.choice([0, 700, 100_001]),
            decode_seq_ps=draw.choice([0, 77_777]),
            kv_token_ps=draw.choice([0, 1, 999]),
            max_num_batched_tokens=max(seqs, draw.choice([4, 8, 16, 64, 256])),
            max_num_seqs=seqs,
            kv_blocks=draw.randint(6, 60),
            block_size=self.block_size,
        )
        self.tokens_max = spec.kv_tokens
        self.step_ns = spec.base_ps // 1000
        self.total = spec.kv_blocks
        self.workers = draw.choice([1, 1, 2, 3])
        self.fast = Fleet(self.workers, spec, self.block_size)
        self.slow = SlowEngine(self.workers, spec, self.block_size)
        self.prefixes = [[draw.getrandbits(64) for _ in range(100)] for _ in range(2)]
        self.named: list[set[int]] = [set() for _ in range(self.workers)]
        self.live: list[str] = []
        self.prefilled: set[str] = set()
        self.now_ns = 0

    def run(self, requests: int) -> None:
        """Submit so many requests, cancel some, and let the rest end."""
        submitted = 0
        while submitted < requests or self.fast.next_ns is not None:
            self.advance_to(self.next_instant(submitted < requests))
            if self.live and self.draw.random() < 0.2:
                self.cancel(self.live.pop(self.draw.choice([-1, self.draw.randrange(len(self.live))])))
            for _ in range(min(self.draw.choice([1, 1, 1, 2, 5]), requests - submitted)):
                self.submit(f"r{submitted}")
                submitted += 1
        self.advance_to(FAR_NS)
        self.compare_counters()

    def next_instant(self, arrivals: bool) -> int:
        """When the next call comes: at once, at a fact or just before it, or some iterations later."""
        next_ns = self.fast.next_ns
        choice = self.draw.random()
        if next_ns is not None and (not arrivals or choice < 0.2):
            return next_ns
        if next_ns is not None and choice < 0.25:
            return max(self.now_ns, next_ns - 1)
        if choice < 0.5:
            return self.now_ns
        steps = 20 if self.draw.random() < 0.2 else 3
        return self.now_ns + self.draw.randint(0, steps * self.step_ns)

    def advance_to(self, now_ns: int) -> None:
        """From fact to fact: next_ns names exactly the instants at which the twin has one."""
        next_ns = self.fast.next_ns
        while next_ns is not None and next_ns <= now_ns:
            assert self.slow.advance(next_ns - 1) == []
            facts = self.fast.advance(next_ns)
            self.covered["instants"] += 1
            assert facts
            assert facts == self.slow.advance(next_ns)
            self.check(facts)
            next_ns = self.fast.next_ns
        assert self.fast.advance(now_ns) == self.slow.advance(now_ns) == []
        assert sorted(self.fast.finished()) == sorted(self.slow.finished())
        self.now_ns = now_ns

    def check(self, facts: list[AnyEvent]) -> None:
        """What must hold whatever the twin says."""
        for fact in facts:
            match fact:
                case BlocksStored():
                    assert self.named[fact.worker_id].isdisjoint(fact.block_hashes)
                    self.named[fact.worker_id].update(fact.block_hashes)
                case BlocksRemoved():
                    assert self.named[fact.worker_id].issuperset(fact.block_hashes)
                    self.named[fact.worker_id].difference_update(fact.block_hashes)
                case PrefillCompleted():
                    assert fact.request_id not in self.prefilled
                    self.prefilled.add(fact.request_id)
                case RequestFinished():
                    assert fact.request_id in self.prefilled
                    self.live.remove(fact.request_id)
            self.covered[type(fact).__name__] += 1
        for worker in range(self.workers):
            free, held, names = self.fast.blocks(worker)
            assert free + held == self.total
            assert sorted(names) == sorted(self.named[worker])

    def submit(self, request_id: str) -> None:
        """A request of random size with a random prompt, to a random worker."""
        draw, size = self.draw, self.block_size
        prompt = draw.randint(1, max(1, self.tokens_max * 2 // 3 if draw.random() < 0.5 else self.tokens_max // 6))
        output = draw.choice([1, 2, draw.randint(1, 30), draw.randint(1, 100)])
        output = min(output, self.tokens_max - prompt)
        blocks = -(-prompt // size)
        names: list[int] = []
        if blocks <= 100 and draw.random() < 0.8:
            shared = draw.choice([0, blocks, draw.randint(0, blocks)])
            own = [draw.getrandbits(64) for _ in range(blocks - shared)]
            names = draw.choice(self.prefixes)[:shared] + own
            names = names[: draw.choice([blocks, blocks, draw.randint(0, blocks)])]
        call = (draw.randrange(self.workers), request_id, draw.randrange(3), prompt, output, tuple(names), self.now_ns)
        self.fast.submit(*call)
        self.slow.submit(*call)
        self.live.append(request_id)

    def cancel(self, request_id: str) -> None:
        """At any point of a request's life."""
        self.covered["cancelled"] += 1
        assert self.fast.cancel(request_id, self.now_ns)
        assert self.slow.cancel(request_id, self.now_ns)
        assert not self.fast.cancel(request_id, self.now_ns)

    def compare_counters(self) -> None:
        """The sums of the report."""
        for twin, row in zip(self.slow.workers, self.fast.counters(), strict=True):
            busy_ps = twin.count["busy_ps"]
            assert int(row["busy_ns"]) == busy_ps // 1000
            for name in ("preemptions", "stored_blocks", "evicted_blocks", "iterations"):
                assert int(row[name]) == twin.count[name], name
                self.covered[name] += twin.count[name]
            self.covered["cached_tokens"] += int(row["cached_tokens"])


def test_same_facts_at_the_same_nanosecond():
    """And the workloads have it all: one process has run every one of them."""
    covered: Counter[str] = Counter()
    for seed in range(WORKLOADS):
        try:
            Pair(seed, covered).run(requests=seed % 40 + 1)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"workload {seed}") from error
    least = {
        "preemptions": 1_000, "evicted_blocks": 20_000, "cancelled": 5_000, "cached_tokens": 10_000,
        "OutputBlockAdded": 20_000, "RequestFinished": 9_000,
    }
    assert {name: covered[name] for name in least if covered[name] < least[name]} == {}
    # Leaps: many iterations end without being looked at.
    assert covered["iterations"] > 1.5 * covered["instants"]
