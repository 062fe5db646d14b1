"""Prometheus metrics: they show what the scheduler says, labels are bounded, series vanish with what they are of."""

from __future__ import annotations

import pytest
import trio
from kvcore.drivers import threads
from kvcore.drivers import trio as trio_driver
from kvcore.drivers.metrics import WAITS_S, SchedulerCollector, read
from live_hand import WAITS, Hand
from live_trio import Record
from prometheus_client import CollectorRegistry, generate_latest
from stories import profile

from kvcore.config import SchedulerConfig
from kvcore.events import PolicyReplaced, WorkerRemoved, WorkerUpserted
from kvcore.request import Request, WorkerConfig

S = 10**9


class Watched(Hand):
    """A Hand whose tap is a collector."""

    def __init__(self, *workers, ranks_max=4096, **config):
        self.collector = SchedulerCollector(SchedulerConfig(**config), ranks_max=ranks_max)
        super().__init__(*workers, tap=self.collector.tap, **config)
        self.collector.read_from(lambda: read(self.core))
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)

    def value(self, name, **labels):
        return self.registry.get_sample_value(name, labels)

    def series(self, name) -> set:
        """Label values of a metric."""
        return {tuple(sample.labels.values()) for family in self.registry.collect() for sample in family.samples
                if sample.name == name}


def test_counters_and_gauges_are_those_of_stats():
    hand = Watched(1, **WAITS)
    first = hand.admit("a", 40)
    hand.admit("b", 20)
    hand.admit("late", deadline_ns=0)
    first.completed()
    hand.turns()
    stats = hand.core.stats()
    assert hand.value("kvcore_up") == 1
    assert hand.value("kvcore_arrived_total") == stats.arrived == 3
    assert hand.value("kvcore_completed_total") == 1
    assert hand.value("kvcore_running_requests") == 1
    assert hand.value("kvcore_rejected_total", reason="DEADLINE_EXPIRED") == 1
    assert hand.value("kvcore_audit_faults") == 0
    assert hand.value("kvcore_class_dispatched_cost_tokens_total", policy_class="c0") == 60
    assert hand.value("kvcore_rank_prefill_tokens", worker="1", dp_rank="0") == 20


def test_every_number_of_stats_is_shown():
    hand = Watched(1)
    shown = {family.name.removeprefix("kvcore_") for family in hand.registry.collect()}
    stats = hand.core.stats()
    assert {name for name in stats.__slots__ if name != "classes"} - shown == set()
    assert {f"class_{name}" for name in stats.classes[0].__slots__ if name != "name"} - shown == set()


def test_waits_are_counted_zero_ones_included():
    hand = Watched(1, **WAITS)
    first = hand.admit("a")
    hand.admit("b")
    hand.now = 3 * S
    first.completed()
    hand.turns()
    bucket = "kvcore_wait_seconds_bucket"
    assert hand.value(bucket, policy_class="c0", le="0.0") == 1
    assert hand.value(bucket, policy_class="c0", le="2.0") == 1
    assert hand.value(bucket, policy_class="c0", le="5.0") == 2
    assert hand.value(bucket, policy_class="c0", le="+Inf") == 2
    assert hand.value("kvcore_wait_seconds_count", policy_class="c0") == 2
    assert hand.value("kvcore_wait_seconds_sum", policy_class="c0") == 3


@pytest.mark.parametrize("bound", WAITS_S)
def test_a_bound_belongs_to_its_bucket(bound):
    """`le` is "at most"."""
    hand = Watched(1, **WAITS)
    first = hand.admit("a", pinned=None)
    second = hand.admit("b")
    hand.now = round(bound * S)
    first.completed()
    hand.turns()
    if bound:
        assert second.is_decided
        assert hand.value("kvcore_wait_seconds_bucket", policy_class="c0", le=str(bound)) == 2
        assert hand.value("kvcore_wait_seconds_bucket", policy_class="c0", le="0.0") == 1


def test_E107_series_vanish_with_their_worker():
    """production-stack#936, #943; aibrix#1976: gauges kept dead servers."""
    hand = Watched(1, 2)
    assert hand.series("kvcore_rank_requests") == {("1", "0"), ("2", "0")}
    hand.submit(lambda now_ns: WorkerRemoved(now_ns, 1))
    assert hand.series("kvcore_rank_requests") == {("2", "0")}


def test_series_vanish_with_their_class():
    hand = Watched(1, profile=profile(10, 10))
    hand.admit("a", policy_class="f1")
    hand.submit(lambda now_ns: PolicyReplaced(now_ns, profile(10)))
    hand.admit("b", policy_class="f1")
    assert hand.series("kvcore_wait_seconds_count") == {("c0",)}
    assert hand.series("kvcore_class_waiting_requests") == {("c0",)}
    hand.submit(lambda now_ns: PolicyReplaced(now_ns, profile(10, 20)))
    hand.admit("c", policy_class="f1")
    assert hand.value("kvcore_wait_seconds_count", policy_class="c0") == 1
    assert hand.value("kvcore_wait_seconds_count", policy_class="c1") == 1


def test_E106_labels_are_bounded():
    """llm-d-router#2119 and others: ids as labels, and fleets without bound, exploded Prometheus."""
    hand = Watched(ranks_max=10)
    hand.submit(*[lambda now_ns, i=i: WorkerUpserted(now_ns, WorkerConfig(i)) for i in range(50)])
    for i in range(300):
        hand.admit(f"tenant-{i}", policy_class=f"made-up-{i}", session_id=f"session-{i}")
    text = generate_latest(hand.registry).decode()
    assert "tenant" not in text
    assert "made-up" not in text
    assert "session" not in text
    assert len(hand.series("kvcore_rank_requests")) == 11
    assert hand.value("kvcore_rank_requests", worker="other", dp_rank="") == hand.core.loads()["requests"][10:].sum()


def test_evictions_are_counted_by_reason():
    hand = Watched(1, booking_ttl_ns=5)
    hand.admit("a")
    hand.now = 5
    hand.owner.tick()
    assert hand.value("kvcore_evicted_total", reason="BOOKING_EXPIRED") == 1
    assert hand.value("kvcore_evicted_total", reason="WORKER_REMOVED") == 0


def test_without_a_router_it_is_not_up():
    registry = CollectorRegistry()
    collector = SchedulerCollector()
    registry.register(collector)
    assert registry.get_sample_value("kvcore_up") == 0
    with threads.open_scheduler(tap=collector.tap) as router:
        collector.read_from(lambda: router.read(read))
        assert registry.get_sample_value("kvcore_up") == 1
    assert registry.get_sample_value("kvcore_up") == 0
    assert registry.get_sample_value("kvcore_arrived_total") is None


def test_through_trio_and_with_a_journal_behind_it():
    """The scrape comes from another thread, as a server's would."""
    record, registry = Record(), CollectorRegistry()
    collector = SchedulerCollector(tap=record.tap)
    registry.register(collector)

    async def main():
        async with trio_driver.open_scheduler(tap=collector.tap) as router:
            token = trio.lowlevel.current_trio_token()
            collector.read_from(lambda: trio.from_thread.run(router.read, read, trio_token=token))
            await router.upsert_worker(WorkerConfig(1))
            async with router.admit(Request("a", 8)):
                text = await trio.to_thread.run_sync(generate_latest, registry)
        assert b'kvcore_rank_requests{dp_rank="0",worker="1"} 1.0' in text

    trio.run(main)
    record.check()
