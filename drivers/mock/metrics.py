"""What a mock worker tells Prometheus: vLLM's names and labels, read from the engine at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .engine import Engine

#: Ends that vLLM tells apart; each has a series from the start.
_REASONS = ("stop", "length", "abort")


class EngineCollector(Collector):
    """Metrics of one engine under its model's name."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine, self._labels = engine, {"model_name": model, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """All of them, at this moment."""
        model, spec = self._engine.model, self._engine.model.spec
        totals = model.totals
        yield self._gauge("num_requests_running", "Requests in the batch", len(model.running))
        yield self._gauge("num_requests_waiting", "Requests in the engine's queue", len(model.waiting))
        used = 1 - model.cache.free / spec.kv_blocks
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all", used)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", totals.queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache", totals.hits)
        yield self._counter("num_preemptions", "Preemptions", totals.preemptions)
        yield self._counter("prompt_tokens", "Prompt tokens of requests that were admitted", totals.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens made", totals.output_tokens)
        success = CounterMetricFamily(
            "vllm:request_success", "Requests that have ended", labels=[*self._labels, "finished_reason"])
        for reason in _REASONS:
            success.add_metric([*self._labels.values(), reason], self._engine.outcomes[reason])
        yield success
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache", labels=["engine", "block_size", "num_gpu_blocks"])
        info.add_metric(["0", str(spec.block_size), str(spec.kv_blocks)], 1)
        yield info

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
