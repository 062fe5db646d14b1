"""The replay loop: rows of a trace, the core and the engine model under one virtual clock. No real clock is read.

The next instant is the earliest of the next arrival, the engine's next event and the core's next deadline. All facts of
one instant form one batch: first the engine's, as Fleet.advance lists them, then arrivals in trace order; TimerFired
stands alone, when the instant is due to the core's deadline and nothing else. The actions of the batch are then carried
out in order. A Dispatch at t reaches the engine at t, and its first iteration may start at t; facts that this causes at
t itself form a further batch at t.

Closed loop (concurrency N): the times of the trace are ignored; N requests are in flight, and the next row arrives at
the instant at which one ends, in the batch that holds its RequestFinished, or in one of its own after a Reject.

Closed loop of sessions: a turn arrives its delay after what it waits for has ended here, see turns.SessionLoop.

Memory: what is live, the blocks that the workers and the core's index hold, and a table of 128 bytes a request, which
moves to a temporary file as it grows (_table), as the trace itself does in a closed loop of sessions (turns). The loop
itself is compiled: over rows (_rowloop), or, where somebody looks on or an admission policy is asked, over events
(_loop).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from kvcore.actions import AnyAction
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidConfig
from kvcore.events import AnyEvent, WorkerUpserted
from kvcore.policy import PolicyProfile
from kvcore.request import WorkerConfig
from kvcore.scheduler import Scheduler

from ._engine import Fleet
from ._loop import Loop
from ._open import OpenRows
from ._rowloop import RowLoop, takes_rows
from ._table import RequestTable
from .arrivals import ClosedLoop, FittingRows, OpenLoop
from .classes import ClassMix
from .presets import EngineSpec
from .result import ReplayResult
from .rows import TraceRow
from .sessions import SessionNames
from .traces import TraceStream
from .turns import SessionLoop

Tap = Callable[[Sequence[AnyEvent], Sequence[AnyAction], Scheduler], None]


def simulate(
    rows: Iterable[TraceRow],
    config: SchedulerConfig,
    spec: EngineSpec,
    workers: int,
    *,
    classes: ClassMix | None = None,
    seed: int = 0,
    speedup: Fraction | Decimal | float | str = 1,
    concurrency: int | None = None,
    closed_loop: bool = False,
    paths: Sequence[str] = (),
    skip_unfit: bool = False,
    tell_output: bool = False,
    progress: Callable[[int, int], None] | None = None,
    tap: Tap | None = None,
) -> ReplayResult:
    """Run rows, in order of arrival_ns, through a fresh core and a fresh fleet until every request has ended.

    workers: worker ids 0 .. workers-1, one rank each, all present at time 0.
    classes: class of rows whose trace names none, drawn with seed. None: such rows name no class.
    speedup: arrival times are divided by it, exactly; a float counts as the decimal that it prints as.
    concurrency: closed loop with so many requests in flight; arrival times and speedup are ignored.
    closed_loop: closed loop of sessions: only what waits for nothing arrives at the times of the trace.
    paths: names of the files, by file_index, for error texts.
    skip_unfit: leave out rows that no worker could ever hold, and count them.
    tell_output: requests say how long their answers will be, as the trace has it.
    progress: called now and then with (requests so far, now_ns).
    tap: called after each step with its events, the actions that came out, and the core; JournalWriter.batch is one.
    Raises: InvalidConfig; InvalidTrace for an unfit row; OverflowError past 2^62 ns; whatever `rows` raises.
    """
    if workers < 1:
        raise InvalidConfig(f"workers must be >= 1, not {workers!r}")
    if concurrency is not None and concurrency < 1:
        raise InvalidConfig(f"concurrency must be >= 1, not {concurrency!r}")
    if concurrency is not None and closed_loop:
        raise InvalidConfig("concurrency and closed_loop are two kinds of load: one of them")
    if classes is not None:
        classes.check(config.effective_profile())
    spec = spec.scaled(config.block_size)
    if spec.kv_blocks < 1:
        raise InvalidConfig(f"block size {config.block_size} is larger than the KV cache of engine {spec.name}")
    core, profile, ratio = Scheduler(config), config.effective_profile(), _ratio(speedup)
    unseen = tap is None and takes_rows(core)
    source: FittingRows | OpenRows
    arrivals: OpenRows | OpenLoop | ClosedLoop | SessionLoop
    if unseen and isinstance(rows, TraceStream) and concurrency is None and not closed_loop:
        arrivals = source = OpenRows(rows.feed(), spec.kv_tokens, paths, skip_unfit, ratio)
    else:
        source = FittingRows(rows, spec.kv_tokens, paths, skip_unfit)
        arrivals = _arrivals(source, ratio, concurrency, closed_loop)
    draw = None if classes is None else partial(classes.draw, seed)
    sessions = SessionNames()
    parts: Any = (core, Fleet(workers, spec, config.block_size), RequestTable(), arrivals)
    told: Any = {"draw": draw, "sessions": sessions, "tell_output": tell_output, "classes": len(profile.classes)}
    loop = RowLoop(*parts, **told, names=_names(profile)) if unseen else Loop(*parts, **told, tap=tap)
    _add_workers(loop, spec, workers)
    loop.run(progress)
    abandoned = arrivals.abandoned if isinstance(arrivals, SessionLoop) else None
    return _result(loop, profile, source.unfit, abandoned, sessions)


def _names(profile: PolicyProfile) -> list[str]:
    """All names of classes that mean something."""
    families = (item.policy_family for item in profile.classes)
    return list(dict.fromkeys([*(item.name for item in profile.classes), *filter(None, families)]))


def _arrivals(
    source: FittingRows, ratio: Fraction, concurrency: int | None, closed_loop: bool
) -> OpenLoop | ClosedLoop | SessionLoop:
    if closed_loop:
        return SessionLoop(source, ratio)
    return OpenLoop(source, ratio) if concurrency is None else ClosedLoop(source, concurrency)


def _ratio(speedup: Fraction | Decimal | float | str) -> Fraction:
    ratio = Fraction(str(speedup)) if isinstance(speedup, float) else Fraction(speedup)
    if ratio <= 0:
        raise InvalidConfig(f"speedup must be above 0, not {speedup}")
    return ratio


def _add_workers(loop: Loop | RowLoop, spec: EngineSpec, workers: int) -> None:
    limits = (spec.max_num_batched_tokens, spec.kv_blocks, spec.max_num_seqs)
    loop.step([WorkerUpserted(0, WorkerConfig(i, 0, 1, *limits)) for i in range(workers)])


def _result(
    loop: Loop | RowLoop, profile: PolicyProfile, unfit: int, abandoned: int | None, sessions: SessionNames
) -> ReplayResult:
    """The numbers of a finished run."""
    unended = loop.unended
    if unended:
        raise AssertionError(f"{len(unended)} requests never ended, the first is {unended[0]}")
    core, counters = loop.core, loop.fleet.counters()
    workers = [dict(zip(counters.dtype.names or (), row, strict=True)) for row in counters.tolist()]
    return ReplayResult(
        table=loop.table, profile=profile, stats=core.stats(), workers=workers, unfit=unfit,
        abandoned=abandoned, sessions=sessions, ignored=loop.ignored,
        start_ns=loop.start_ns, end_ns=loop.now_ns, events=loop.events, steps=loop.steps, contended=loop.contended,
        digest=core.digest(), audit=core.audit(),
    )
