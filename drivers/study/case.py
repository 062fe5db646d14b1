"""One replay of a study: everything that decides its numbers, as values that can be sent to another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.policy import PolicyProfile
from kvcore.request import SelectionWeights

from ..replay.classes import ClassMix
from ..replay.presets import PRESETS
from ..replay.result import ReplayResult
from ..replay.rows import TraceRow
from ..replay.simulate import Tap, simulate
from ..replay.traces import TraceStream, open_traces

#: Size of traces, as they lie on disk, whose rows are kept between the replays of a process: 50 to 500 MB of them.
KEPT_BYTES_MAX = 16 << 20


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


def check_traces(load: Load) -> int:
    """Refuse files that can not be used as a whole, before any replay. Returns: tokens per KV block.

    Raises: KvcoreError, ValueError, OSError.
    """
    with _open(load) as stream:
        return stream.block_size


def keep_trace(load: Load) -> None:
    """Read a small trace now, for all replays of this process and of those forked from it. Raises: as check_traces."""
    if _is_small(load.traces):
        _read(load, _stamps(load.traces))


def replay(
    case: Case, tap: Tap | None = None, progress: Callable[[int, int], None] | None = None,
) -> tuple[ReplayResult, int]:
    """Replay a case from the beginning. Returns: the result, and how many rows could not be used.

    A small trace is read once per process.
    tap, progress: see simulate. Raises: KvcoreError, ValueError, OverflowError, OSError.
    """
    load = case.load
    trace = _read(load, _stamps(load.traces)) if _is_small(load.traces) else None
    with _open(load) if trace is None else nullcontext(trace) as stream:
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


@dataclass(frozen=True)
class _Trace:
    """All rows of a load, kept for its next replay in this process."""

    rows: tuple[TraceRow, ...]
    block_size: int
    skipped: int

    def __iter__(self) -> Iterator[TraceRow]:
        return iter(self.rows)


def _open(load: Load) -> TraceStream:
    return open_traces(
        load.traces, format=load.trace_format, trace_block_size=load.trace_block_size, block_size=load.block_size,
        skip_bad=load.skip_bad, limit=load.limit)


@lru_cache(maxsize=1)
def _read(load: Load, stamps: tuple[tuple[int, ...], ...]) -> _Trace:
    """stamps: of the files: a process of a cluster may live to see them change."""
    with _open(load) as stream:
        rows = tuple(stream)
        return _Trace(rows, stream.block_size, stream.skipped)


def _stamps(paths: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    found = [os.stat(path) for path in paths]
    return tuple((item.st_dev, item.st_ino, item.st_size, item.st_mtime_ns) for item in found)


def _is_small(paths: tuple[str, ...]) -> bool:
    """Whether all rows may be held at once; what can not be looked at is for open_traces to refuse."""
    return all(map(os.path.isfile, paths)) and sum(map(os.path.getsize, paths)) <= KEPT_BYTES_MAX
