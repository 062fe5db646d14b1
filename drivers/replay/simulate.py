"""The replay loop: rows of a trace, the core and the engine model under one virtual clock. No real clock is read.

The next instant is the earliest of the next arrival, the engine's next event and the core's next deadline. All facts of
one instant form one batch: first the engine's, as Fleet.advance lists them, then arrivals in trace order; TimerFired
stands alone, when the instant is due to the core's deadline and nothing else. The actions of the batch are then carried
out in order. A Dispatch at t reaches the engine at t, and its first iteration may start at t; facts that this causes at
t itself form a further batch at t.

Closed loop (concurrency N): the times of the trace are ignored; N requests are in flight, and the next row arrives at
the instant at which one ends, in the batch that holds its RequestFinished, or in one of its own after a Reject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction

from kvcore.actions import AnyAction, Dispatch, Evict, Park, Reject
from kvcore.config import SchedulerConfig
from kvcore.errors import InvalidConfig
from kvcore.events import AnyEvent, RequestArrived, RequestCancelled, TimerFired, WorkerUpserted
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler

from ._engine import Fleet
from .arrivals import NEVER_NS, ClosedLoop, FittingRows, OpenLoop
from .classes import ClassMix
from .presets import EngineSpec
from .result import (
    CACHED_TOKENS,
    CLASS_INDEX,
    ENGINE_CACHED_TOKENS,
    FINISH_NS,
    FIRST_TOKEN_NS,
    OUTCOME,
    PREEMPTIONS,
    REASON,
    WAIT_NS,
    WORKER,
    ReplayResult,
    RequestTable,
    RunOutcome,
)
from .traces import TraceRow

Tap = Callable[[Sequence[AnyEvent], Sequence[AnyAction], Scheduler], None]

_PROGRESS_STEPS = 1024

COMPLETED, REJECTED, EVICTED = RunOutcome.COMPLETED.value, RunOutcome.REJECTED.value, RunOutcome.EVICTED.value


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
    if classes is not None:
        classes.check(config.effective_profile())
    spec = spec.scaled(config.block_size)
    if spec.kv_blocks < 1:
        raise InvalidConfig(f"block size {config.block_size} is larger than the KV cache of engine {spec.name}")
    source = FittingRows(rows, spec.kv_tokens, paths, skip_unfit)
    arrivals = OpenLoop(source, _ratio(speedup)) if concurrency is None else ClosedLoop(source, concurrency)
    replay = _Replay(config, spec, workers, arrivals, classes, seed, tell_output, tap)
    replay.run(progress)
    return replay.result(source.unfit)


def _ratio(speedup: Fraction | Decimal | float | str) -> Fraction:
    ratio = Fraction(str(speedup)) if isinstance(speedup, float) else Fraction(speedup)
    if ratio <= 0:
        raise InvalidConfig(f"speedup must be above 0, not {speedup}")
    return ratio


class _Replay:
    """One run. live: first cell of each live request in the table; rows: those not dispatched yet."""

    def __init__(
        self, config: SchedulerConfig, spec: EngineSpec, workers: int, arrivals: OpenLoop | ClosedLoop,
        classes: ClassMix | None, seed: int, tell_output: bool, tap: Tap | None,
    ) -> None:
        self.tap = tap
        self.tell_output = tell_output
        self.core = Scheduler(config)
        self.fleet = Fleet(workers, spec, config.block_size)
        self.arrivals = arrivals
        self.classes, self.seed = classes, seed
        self.profile = config.effective_profile()
        self.table = RequestTable()
        self.live: dict[str, int] = {}
        self.rows: dict[str, TraceRow] = {}
        self.answers: list[AnyEvent] = []  # to Evicts, for the next batch
        self.parked: dict[str, int] = {}  # class of every waiting request
        self.waiting = [0] * len(self.profile.classes)
        self.contended: dict[int, list[int]] = {}
        self.events = self.steps = self.ignored = 0
        self.start_ns = self.now_ns = 0
        self._add_workers(spec, workers)

    def _add_workers(self, spec: EngineSpec, workers: int) -> None:
        limits = (spec.max_num_batched_tokens, spec.kv_blocks, spec.max_num_seqs)
        facts: list[AnyEvent] = [WorkerUpserted(0, WorkerConfig(i, 0, 1, *limits)) for i in range(workers)]
        self._step(facts)

    def _step(self, batch: list[AnyEvent]) -> Sequence[AnyAction]:
        actions = self.core.step_many(batch)
        if self.tap is not None:
            self.tap(batch, actions, self.core)
        self.events += len(batch)
        self.steps += 1
        return actions

    def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Step until nothing is left to happen."""
        core, fleet, arrivals = self.core, self.fleet, self.arrivals
        self.start_ns = 0 if arrivals.next_ns == NEVER_NS else arrivals.next_ns
        while True:
            engine_ns, timer_ns = fleet.next_ns, core.next_deadline_ns
            now_ns = arrivals.next_ns
            if engine_ns is not None and engine_ns < now_ns:
                now_ns = engine_ns
            if timer_ns is not None and timer_ns < now_ns:
                now_ns = timer_ns
            if self.answers:
                now_ns = self.now_ns
            if now_ns == NEVER_NS:
                break
            batch, self.answers = self.answers, []
            if engine_ns == now_ns:
                batch += fleet.advance(now_ns)
                self._collect(now_ns)
            while arrivals.next_ns == now_ns:
                batch.append(self._arrive(arrivals.take(), now_ns))
            if not batch:
                if timer_ns != now_ns:
                    continue  # the engine moved on without a fact
                batch.append(TimerFired(now_ns))
            self.now_ns = now_ns
            self._apply(self._step(batch), now_ns)
            if progress is not None and self.steps % _PROGRESS_STEPS == 0:
                progress(len(self.table), now_ns)

    def _arrive(self, row: TraceRow, now_ns: int) -> RequestArrived:
        file_index, number = row.file_index, row.row
        request_id = f"r{file_index}-{number}"
        policy_class = row.policy_class
        if policy_class is None and self.classes is not None:
            policy_class = self.classes.draw(self.seed, file_index, number)
        self.live[request_id] = self.table.add(file_index, number, now_ns, row.prompt_tokens, row.output_tokens)
        self.rows[request_id] = row
        prompt, hashes = row.prompt_tokens, row.block_hashes
        request = Request(
            request_id, prompt, policy_class, row.strict_priority, row.priority, block_hashes=hashes,
            expected_output_tokens=row.output_tokens if self.tell_output else None)
        return RequestArrived(now_ns, request)

    def _collect(self, now_ns: int) -> None:
        """Note the times of requests that the engine has finished."""
        finished = self.fleet.finished()
        cells = self.table.cells
        for request_id, first_token_ns, finish_ns, cached_tokens, preemptions in finished:
            start = self.live.pop(request_id)
            cells[start + OUTCOME] = COMPLETED
            cells[start + FIRST_TOKEN_NS] = first_token_ns
            cells[start + FINISH_NS] = finish_ns
            cells[start + ENGINE_CACHED_TOKENS] = cached_tokens
            cells[start + PREEMPTIONS] = preemptions
        if finished:
            self.arrivals.ended(len(finished), now_ns)

    def _apply(self, actions: Sequence[AnyAction], now_ns: int) -> None:
        for action in actions:
            match action:
                case Dispatch():
                    self._dispatch(action, now_ns)
                case Park():
                    self.parked[action.request_id] = action.class_index
                    self.waiting[action.class_index] += 1
                case Reject():
                    self._reject(action, now_ns)
                case Evict():
                    self._evict(action, now_ns)
                case _:
                    self.ignored += 1

    def _dispatch(self, action: Dispatch, now_ns: int) -> None:
        request_id = action.request_id
        row = self.rows.pop(request_id)
        if self.parked:
            self._contend(action, row.prompt_tokens)
        cells, start = self.table.cells, self.live[request_id]
        cells[start + CLASS_INDEX] = action.class_index
        cells[start + WORKER] = action.worker_id
        cells[start + WAIT_NS] = action.wait_ns
        cells[start + CACHED_TOKENS] = action.cached_tokens
        self.fleet.submit(
            action.worker_id, request_id, action.attempt, row.prompt_tokens, row.output_tokens, row.block_hashes, now_ns
        )

    def _contend(self, action: Dispatch, prompt_tokens: int) -> None:
        """Count tokens dispatched while several classes wait, then the request as waiting no more."""
        waiting = 0
        for index, requests in enumerate(self.waiting):
            if requests:
                waiting |= 1 << index
        if waiting & (waiting - 1) and waiting >> action.class_index & 1:
            tokens = self.contended.setdefault(waiting, [0] * len(self.waiting))
            tokens[action.class_index] += prompt_tokens - action.cached_tokens
        self._unpark(action.request_id)

    def _unpark(self, request_id: str) -> None:
        index = self.parked.pop(request_id, None)
        if index is not None:
            self.waiting[index] -= 1

    def _reject(self, action: Reject, now_ns: int) -> None:
        self._unpark(action.request_id)
        del self.rows[action.request_id]
        self._end(action.request_id, REJECTED, now_ns, action.class_index, action.reason)

    def _evict(self, action: Evict, now_ns: int) -> None:
        """The booking is gone: stop the engine, and tell the core that the request ends here."""
        if action.request_id not in self.live:
            return  # it finished at this very instant, in the same batch
        self.fleet.cancel(action.request_id, now_ns)
        self.answers.append(RequestCancelled(now_ns, action.request_id))
        self._end(action.request_id, EVICTED, now_ns)

    def _end(self, request_id: str, outcome: int, now_ns: int, class_index: int = -1, reason: int = 0) -> None:
        cells, start = self.table.cells, self.live.pop(request_id)
        cells[start + OUTCOME] = outcome
        cells[start + REASON] = reason
        if class_index >= 0:
            cells[start + CLASS_INDEX] = class_index
        self.arrivals.ended(1, now_ns)

    def result(self, unfit: int) -> ReplayResult:
        """The numbers of a finished run."""
        if self.live:
            raise AssertionError(f"{len(self.live)} requests never ended, the first is {next(iter(self.live))}")
        counters = self.fleet.counters()
        workers = [dict(zip(counters.dtype.names or (), row, strict=True)) for row in counters.tolist()]
        return ReplayResult(
            table=self.table, profile=self.profile, stats=self.core.stats(), workers=workers, unfit=unfit,
            ignored=self.ignored, start_ns=self.start_ns, end_ns=self.now_ns, events=self.events, steps=self.steps,
            contended=self.contended, digest=self.core.digest(), audit=self.core.audit(),
        )
