"""Prometheus metrics of a scheduler: what `stats()` and `loads()` say at each scrape, and what only a tap can count.

    metrics = SchedulerCollector(SchedulerConfig(...), tap=journal.batch)
    with open_scheduler(config, tap=metrics.tap) as router:
        metrics.read_from(lambda: router.read(read))         # threads; trio: see read_from
        REGISTRY.register(metrics)

Labels are bounded: policy classes in force, reasons, and the ranks of the fleet, up to `ranks_max` (what is beyond is
summed under worker "other"). No request id, no name that a caller has made up. Series are made anew at each scrape, so
they vanish with their worker or class. Needs prometheus-client (extra `metrics`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvcore.actions import AnyAction, Dispatch, Evict, EvictReason
from kvcore.config import SchedulerConfig
from kvcore.events import AnyEvent, PolicyReplaced
from kvcore.policy import PolicyProfile
from kvcore.scheduler import Scheduler
from kvcore.stats import SchedulerStats

from .protocol import Closed, Tap

#: Upper bounds of the wait histogram, in seconds. The first bucket holds those that did not wait at all.
WAITS_S = (0.0, 0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
RANKS_MAX = 4096
#: The largest wait of each bucket, in the nanoseconds of Dispatch.wait_ns.
_BOUNDS_NS = tuple(round(bound * 1e9) for bound in WAITS_S)

_COUNTERS = {
    "arrived": "Requests that have arrived", "dispatched": "Dispatches, retries included",
    "completed": "Requests that ended well", "aborted": "Requests that ended otherwise, once dispatched or cancelled",
    "retried": "Requests put back after a failed dispatch", "stale_events": "Facts that changed nothing",
    "unknown_class_names": "Arrivals whose class name named nothing",
}
_GAUGES = {
    "live_requests": "Requests that have not ended", "waiting_requests": "Requests that wait, deferred ones included",
    "running_requests": "Requests with a booking", "deferred_requests": "Requests that an admission policy holds back",
    "refreshing_requests": "Requests that wait for an outside index", "workers": "Workers", "ranks": "Ranks",
    "index_blocks": "Blocks that engines have told of", "over_cap_ranks": "Ranks above their caps",
}
_CLASS_GAUGES = {
    "waiting_requests": "Requests that wait", "waiting_raw_tokens": "Their prompt tokens",
    "waiting_cached_tokens": "Those of them that are cached", "waiting_cost_tokens": "What they will be charged",
    "deficit_tokens": "Credit of the class",
}
_CLASS_COUNTERS = {
    "dispatched": "Dispatches", "dispatched_cost_tokens": "What they were charged", "rejected": "Rejects",
}
_LOADS = {
    "requests": "Running requests", "prefill_tokens": "Prompt tokens under way", "active_blocks": "Blocks in use",
}


class Reading(NamedTuple):
    """What one scrape takes out of a scheduler. faults: of its audit."""

    stats: SchedulerStats
    loads: npt.NDArray[np.void]
    faults: int


def read(core: Scheduler) -> Reading:
    """Everything at one moment. O(live requests + ranks + classes)."""
    return Reading(core.stats(), core.loads(), len(core.audit()))


class SchedulerCollector(Collector):
    """A collector for prometheus-client's registry, and the tap that feeds it.

    config: the scheduler's. tap: the next one, such as a journal's. ranks_max: ranks with series of their own.
    """

    def __init__(
        self, config: SchedulerConfig | None = None, *, tap: Tap | None = None, ranks_max: int = RANKS_MAX,
    ) -> None:
        self._config = config or SchedulerConfig()
        self._next, self._ranks_max = tap, ranks_max
        self._read: Callable[[], Reading] | None = None
        self._evicted = dict.fromkeys(EvictReason, 0)
        self._names: list[str] = []
        self._waits: dict[str, list[int]] = {}
        self._adopt(self._config.profile)

    def read_from(self, read: Callable[[], Reading]) -> None:
        """Where readings come from; called in the thread of the scrape.

        threads: `lambda: router.read(read)`. trio: `lambda: trio.from_thread.run(router.read, read, trio_token=token)`.
        """
        self._read = read

    def tap(self, events: Sequence[AnyEvent], actions: Sequence[AnyAction], core: Any) -> None:
        """Count what a step has decided; then the next tap."""
        for event in events:
            if isinstance(event, PolicyReplaced):
                self._adopt(event.profile)
        for action in actions:
            if isinstance(action, Dispatch):
                counts = self._waits[self._names[action.class_index]]
                counts[bisect_left(_BOUNDS_NS, action.wait_ns)] += 1
                counts[-1] += action.wait_ns
            elif isinstance(action, Evict):
                self._evicted[action.reason] += 1
        if self._next is not None:
            self._next(events, actions, core)

    def _adopt(self, profile: PolicyProfile | None) -> None:
        """Another policy: classes that live on keep their histograms."""
        self._names = [item.name for item in self._config.in_force(profile).classes]
        old, buckets = self._waits, len(WAITS_S) + 1
        self._waits = {name: old.get(name) or [0] * (buckets + 1) for name in self._names}

    def describe(self) -> list[Metric]:
        """Nothing: registering must not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape. A router that is closed is not up, and has no series."""
        reading = None
        if self._read is not None:
            try:
                reading = self._read()
            except Closed:
                reading = None
        yield GaugeMetricFamily("kvcore_up", "Whether the scheduler answers", value=float(reading is not None))
        if reading is None:
            return
        stats = reading.stats
        for field, text in _COUNTERS.items():
            yield CounterMetricFamily(f"kvcore_{field}", text, value=getattr(stats, field))
        for field, text in _GAUGES.items():
            yield GaugeMetricFamily(f"kvcore_{field}", text, value=getattr(stats, field))
        yield GaugeMetricFamily(
            "kvcore_audit_faults", "Differences between books and live requests: none, ever", value=reading.faults)
        yield _by_reason("kvcore_rejected", "Rejects by reason", stats.rejected)
        evicted = {reason.name: count for reason, count in self._evicted.items()}
        yield _by_reason("kvcore_evicted", "Bookings taken away, by reason", evicted)
        yield from _of_classes(stats)
        yield self._histogram()
        yield from self._of_ranks(reading.loads)

    def _histogram(self) -> Metric:
        family = HistogramMetricFamily(
            "kvcore_wait_seconds", "From arrival to dispatch, zero waits included", labels=["policy_class"])
        for name, counts in list(self._waits.items()):
            *buckets, total_ns = counts
            below, shown = 0, []
            for bound, count in zip((*map(str, WAITS_S), "+Inf"), buckets, strict=True):
                below += count
                shown.append((bound, below))
            family.add_metric([name], shown, total_ns / 1e9)
        return family

    def _of_ranks(self, loads: npt.NDArray[np.void]) -> Iterator[Metric]:
        own, others = loads[: self._ranks_max], loads[self._ranks_max:]
        for field, text in _LOADS.items():
            family = GaugeMetricFamily(f"kvcore_rank_{field}", text, labels=["worker", "dp_rank"])
            for row in own:
                family.add_metric([str(row["worker_id"]), str(row["dp_rank"])], float(row[field]))
            if len(others):
                family.add_metric(["other", ""], float(others[field].sum()))
            yield family


def _by_reason(name: str, text: str, counts: Any) -> Metric:
    family = CounterMetricFamily(name, text, labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family


def _of_classes(stats: SchedulerStats) -> Iterator[Metric]:
    kinds: list[tuple[type[Any], dict[str, str]]] = [
        (GaugeMetricFamily, _CLASS_GAUGES), (CounterMetricFamily, _CLASS_COUNTERS)]
    for kind, fields in kinds:
        for field, text in fields.items():
            family = kind(f"kvcore_class_{field}", text, labels=["policy_class"])
            for row in stats.classes:
                family.add_metric([row.name], getattr(row, field))
            yield family
