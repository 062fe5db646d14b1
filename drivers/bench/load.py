"""A synthetic load under a user's policy, recorded once and then stepped again and again.

A replay of made-up requests through core and engine model, with so many in flight at any time, gives the batches of
events and the counters; what is measured is a fresh core that steps these batches. All is drawn from a seed, so the
same policy and load give the same events on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from kvcore.actions import AnyAction, Dispatch, Evict, Reject
from kvcore.config import SchedulerConfig
from kvcore.events import AnyEvent, RequestArrived
from kvcore.policy import PolicyProfile
from kvcore.scheduler import Scheduler

from ..replay.classes import ClassMix
from ..replay.presets import PRESETS
from ..replay.report import summarize
from ..replay.simulate import simulate
from ..replay.traces import TraceRow
from .gate import COUNTER

BLOCK_SIZE = 64
#: Prompts of 2^6 to 2^14 tokens, even in the logarithm, so that every cache bucket gets some.
_PROMPT_BITS = (6.0, 14.0)
_OUTPUT_TOKENS_MAX = 256
#: Two of three prompts begin with one of so many shared prefixes of so many blocks.
_PREFIXES, _PREFIX_BLOCKS = 8, 16


@dataclass(frozen=True)
class Load:
    """What runs under the policy. in_flight: requests per worker that wait or run at any time."""

    workers: int
    requests: int
    in_flight: int
    seed: int


@dataclass
class Recording:
    """The batches of one run, and its counters: figures whose names begin with `counter:`."""

    config: SchedulerConfig
    batches: list[Sequence[AnyEvent]]
    counters: dict[str, int]
    digest: str

    @property
    def events(self) -> int:
        """In all batches."""
        return sum(map(len, self.batches))

    def prepare(self) -> Callable[[], str]:
        """What to measure: all batches through a fresh core. It answers with the digest."""
        batches, config = self.batches, self.config

        def run() -> str:
            core = Scheduler(config)
            for batch in batches:
                core.step_many(batch)
            return core.digest()

        return run


def rows(load: Load) -> list[TraceRow]:
    """The requests, without classes."""
    draw = random.Random(load.seed).random
    low, high = _PROMPT_BITS
    found = []
    for i in range(load.requests):
        prompt = int(2 ** (low + (high - low) * draw()))
        blocks = -(-prompt // BLOCK_SIZE)
        prefix = int(_PREFIXES * draw()) if draw() < 2 / 3 else None
        own = (i + _PREFIXES + 1) << 32
        shared = 0 if prefix is None else min(_PREFIX_BLOCKS, blocks - 1)
        names = [((prefix or 0) + 1 << 32) + j for j in range(shared)] + [own + j for j in range(shared, blocks)]
        output = 1 + int(_OUTPUT_TOKENS_MAX * draw())
        found.append(TraceRow(0, prompt, output, tuple(names), row=i + 1))
    return found


def mix(profile: PolicyProfile) -> ClassMix | None:
    """Every family and every class that is asked for by its name, equally often; None where nothing can be named."""
    if profile.default_policy_family is None:
        return None
    names = dict.fromkeys(item.policy_family or item.name for item in profile.classes)
    return ClassMix(tuple((name, Fraction(1)) for name in names))


class _Tap:
    """Keeps the batches, and counts what waits."""

    def __init__(self) -> None:
        self.batches: list[Sequence[AnyEvent]] = []
        self.actions = self.waiting_max = 0
        self._waiting: set[str] = set()

    def __call__(self, events: Sequence[AnyEvent], actions: Sequence[AnyAction], core: Scheduler) -> None:
        self.batches.append(tuple(events))
        self.actions += len(actions)
        self._waiting |= {event.request.request_id for event in events if isinstance(event, RequestArrived)}
        self._waiting -= {action.request_id for action in actions if isinstance(action, (Dispatch, Reject, Evict))}
        self.waiting_max = max(self.waiting_max, len(self._waiting))


def record(load: Load, profile: PolicyProfile) -> Recording:
    """Run the load under a policy. Raises: KvcoreError where the policy cannot be run."""
    config = SchedulerConfig(block_size=BLOCK_SIZE, profile=profile, seed=load.seed)
    tap = _Tap()
    result = simulate(
        rows(load), config, PRESETS["generic"], load.workers, classes=mix(profile), seed=load.seed,
        concurrency=load.in_flight * load.workers, skip_unfit=True, tap=tap)
    report = summarize(result)
    counters = {
        "events": result.events, "steps": result.steps, "actions": tap.actions,
        "requests that wait, at most": tap.waiting_max,
        "requests that end without an answer": report["requests"]["rejected"] + report["requests"]["evicted"],
        "time in all, ms": _ms(report["simulated_ns"]),
    }
    for entry in report["classes"]:
        wait: dict[str, Any] = entry["latency_ns"]["queue_wait"]
        if wait["count"]:
            counters[f"wait in class {entry['name']}, p90, ms"] = _ms(wait["p90"])
    named = {f"{COUNTER}: {name}": value for name, value in counters.items()}
    return Recording(config, tap.batches, named, result.digest)


def _ms(ns: int) -> int:
    """Model time in whole milliseconds, rounded up: what is above nothing stays so."""
    return math.ceil(ns / 1_000_000)
