"""Figures of completions by class: time to the first token, time to the end, tokens asked for, cached and made.

Labels are the names of policy classes, which clients cannot make up, and no more than CLASSES_MAX of them in the life
of a process. Counting costs a look-up and a bisection; everything else is done at the scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

#: Upper bounds in seconds. Engines' own histograms are of this kind.
BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
CLASSES_MAX = 64
OTHER = "other"

_TOKENS = {
    "prompt": "Prompt tokens, as the workers have counted them",
    "expected_cached": "Of these, what the scheduler expected in the caches",
    "cached": "Of these, what the workers have found in their caches, where they say so",
    "output": "Tokens of answers",
}


class _Row:
    """One class."""

    __slots__ = ("ends", "firsts", "tokens")

    def __init__(self) -> None:
        self.firsts, self.ends = [0] * (len(BOUNDS_S) + 1), [0] * (len(BOUNDS_S) + 1)
        self.tokens = dict.fromkeys(_TOKENS, 0)
        self.firsts.append(0)  # behind the buckets: their sum in nanoseconds
        self.ends.append(0)


class Figures:
    """What completions that were answered with 200 have taken, by class."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def answered(self, policy_class: str | None, first_ns: int | None, end_ns: int) -> None:
        """One has been answered to its end. first_ns: until its first token, None: not seen, as in a plain answer."""
        row = self._row(policy_class)
        _count(row.ends, end_ns)
        if first_ns is not None:
            _count(row.firsts, first_ns)

    def used(self, policy_class: str | None, prompt: int, expected_cached: int, cached: int, output: int) -> None:
        """What a worker has said of its tokens."""
        tokens = self._row(policy_class).tokens
        tokens["prompt"] += prompt
        tokens["expected_cached"] += expected_cached
        tokens["cached"] += cached
        tokens["output"] += output

    def _row(self, name: str | None) -> _Row:
        row = self._rows.get(name or OTHER)
        if row is None:
            name = OTHER if name is None or len(self._rows) >= CLASSES_MAX else name
            row = self._rows.setdefault(name, _Row())
        return row

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        rows = list(self._rows.items())
        first = HistogramMetricFamily(
            "kvcore_gateway_first_token_seconds", "From arrival to a stream's first token", labels=["policy_class"])
        end = HistogramMetricFamily(
            "kvcore_gateway_request_seconds", "From arrival to the end of the answer", labels=["policy_class"])
        for name, row in rows:
            _add(first, name, row.firsts)
            _add(end, name, row.ends)
        yield first
        yield end
        for kind, text in _TOKENS.items():
            family = CounterMetricFamily(f"kvcore_gateway_{kind}_tokens", text, labels=["policy_class"])
            for name, row in rows:
                family.add_metric([name], row.tokens[kind])
            yield family


def _count(counts: list[int], span_ns: int) -> None:
    counts[bisect_left(BOUNDS_S, span_ns / 1e9)] += 1
    counts[-1] += span_ns


def _add(family: HistogramMetricFamily, name: str, counts: list[int]) -> None:
    *buckets, total_ns = counts
    below, shown = 0, []
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), buckets, strict=True):
        below += count
        shown.append((bound, below))
    family.add_metric([name], shown, total_ns / 1e9)
