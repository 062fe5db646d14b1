"""One replay of a study: everything that decides its numbers, as values that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.policy import PolicyProfile
from kvcore.request import SelectionWeights

from ..replay.classes import ClassMix
from ..replay.presets import PRESETS
from ..replay.result import ReplayResult
from ..replay.simulate import Tap, simulate
from ..replay.traces import open_traces


@dataclass(frozen=True)
class Load:
    """What arrives, and when: the same for all candidates of a comparison. Members are the options of `kvcore replay`.

    seed: of class draws and of the scheduler's tie-breaks.
    """

    traces: tuple[str, ...]
    trace_format: str | None = None
    block_size: int | None = None
    trace_block_size: int | None = None
    classes: ClassMix | None = None
    speedup: Fraction = Fraction(1)
    concurrency: int | None = None
    seed: int = 0
    limit: int | None = None
    skip_bad: bool = False


@dataclass(frozen=True)
class Case:
    """A load, the policy that arbitrates it and the fleet that serves it. profile: None: one class takes everything."""

    load: Load
    profile: PolicyProfile | None
    workers: int = 1
    engine: str = "generic"
    weights: SelectionWeights = field(default_factory=SelectionWeights)
    index: IndexMode = IndexMode.EVENTS
    tell_output: bool = False


def replay(
    case: Case, tap: Tap | None = None, progress: Callable[[int, int], None] | None = None,
) -> tuple[ReplayResult, int]:
    """Replay a case from the beginning. Returns: the result, and how many rows could not be used.

    tap, progress: see simulate. Raises: KvcoreError, ValueError, OverflowError, OSError.
    """
    load = case.load
    with open_traces(
        load.traces, format=load.trace_format, trace_block_size=load.trace_block_size, block_size=load.block_size,
        skip_bad=load.skip_bad, limit=load.limit,
    ) as stream:
        config = SchedulerConfig(
            block_size=stream.block_size, profile=case.profile, seed=load.seed, weights=case.weights, index=case.index)
        result = simulate(
            stream, config, PRESETS[case.engine].scaled(config.block_size), case.workers, classes=load.classes,
            seed=load.seed, speedup=load.speedup, concurrency=load.concurrency, paths=load.traces,
            skip_unfit=load.skip_bad, tell_output=case.tell_output, tap=tap, progress=progress,
        )
        if result.audit:
            raise AssertionError(f"audit: {result.audit}")
        return result, stream.skipped + result.unfit
