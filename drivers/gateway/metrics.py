"""One scrape: the scheduler's series and the gateway's own, as prometheus-client writes them.

Labels are bounded: statuses, states of workers, policy classes. No name, id or address that a client or a worker has
made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .. import metrics as scheduler
from ..protocol import Closed
from ..trio import Router
from .fleet import Health

if TYPE_CHECKING:
    from .app import App


class GatewayCollector(Collector):
    """What the public port has seen."""

    def __init__(self, app: App) -> None:
        self._app = app

    def describe(self) -> list[Metric]:
        """Nothing: registering must not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        app = self._app
        answers = CounterMetricFamily(
            "kvcore_gateway_responses",
            "Answers by status; of a stream that broke off, that of why; 499: the client had gone", labels=["status"])
        for status, count in sorted(app.answered.copy().items()):
            answers.add_metric([str(status)], count)
        yield answers
        yield GaugeMetricFamily("kvcore_gateway_requests_inside", "Completions that wait or run", value=app.inside)
        yield CounterMetricFamily(
            "kvcore_gateway_put_back", "Bookings undone because a worker could not take them", value=app.means.put_back)
        if app.server is not None:
            yield GaugeMetricFamily(
                "kvcore_gateway_connections", "Open connections of clients", value=len(app.server.connections))
            yield CounterMetricFamily(
                "kvcore_gateway_refused_connections", "Connections above the limit", value=app.server.refused)
            yield GaugeMetricFamily(
                "kvcore_gateway_body_bytes", "Request bodies that are held", value=app.server.bodies.held)
        states = dict.fromkeys((item.value for item in Health), 0)
        for worker in app.fleet:
            states[worker.health.value] += 1
        workers = GaugeMetricFamily("kvcore_gateway_workers", "Workers by their health", labels=["health"])
        for state, count in states.items():
            workers.add_metric([state], count)
        yield workers
        yield from app.figures.collect()
        yield GaugeMetricFamily(
            "kvcore_gateway_draining", "Whether nothing new is let in", value=float(app.is_draining))


class Scraper:
    """Reads the scheduler in the task of the scrape, and writes the text in a thread."""

    def __init__(self, router: Router, collector: scheduler.SchedulerCollector) -> None:
        self._router, self._collector = router, collector
        self._registry = CollectorRegistry()
        self._registry.register(collector)

    def watch(self, app: App) -> None:
        """Whose answers are counted."""
        self._registry.register(GatewayCollector(app))

    async def __call__(self) -> tuple[bytes, bytes]:
        """The text of one scrape, and its content type."""
        try:
            reading = await self._router.read(scheduler.read)
        except Closed as error:
            self._collector.read_from(_raise(error))
        else:
            self._collector.read_from(lambda: reading)
        text = await trio.to_thread.run_sync(generate_latest, self._registry)
        return text, CONTENT_TYPE_LATEST.encode("ascii")


def _raise(error: Closed) -> Callable[[], scheduler.Reading]:
    def read() -> scheduler.Reading:
        raise error

    return read
