"""What `kvcore replay` does once its options are parsed. Imported when the command runs."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import click
import numpy as np

from kvcore.config import IndexMode, SchedulerConfig, weights_fault
from kvcore.errors import InvalidConfig, InvalidPolicy, InvalidTrace, KvcoreError
from kvcore.policy import Capacity, PolicyProfile, QueuePolicy
from kvcore.policy_file import PolicyDocument, check_admission, describe, load_policy
from kvcore.request import SelectionWeights

from ..replay.classes import ClassMix, parse_classes
from ..replay.presets import PRESETS, EngineSpec
from ..replay.report import summarize, write_csv, write_json
from ..replay.result import ReplayResult
from ..replay.simulate import Tap, simulate
from ..replay.traces import FORMATS, TraceStream, open_traces
from .journal import write_journal
from .output import STDOUT, check_outputs, naming, write_outputs
from .replay_report import Outputs, check_report, make_report, report_outputs

_BAD_ROWS_SHOWN = 3
_HASH_CHUNK = 1 << 20


@dataclass(frozen=True)
class Options:
    """The options of the command, each valid by itself; what they mean stands in the command's help."""

    traces: tuple[str, ...]
    workers: int
    engine: str
    policy: str | None
    model: str | None
    queue_policy: str | None
    queue_threshold: float | None
    capacity: str | None
    tell_output: bool
    selection: str | None
    index: str
    trace_format: str | None
    block_size: int | None
    trace_block_size: int | None
    speedup: Fraction | None
    concurrency: int | None
    closed_loop: bool
    classes: str | None
    seed: int
    limit: int | None
    skip_bad: bool
    json_path: str | None
    csv_path: str | None
    journal: str | None
    report: str | None
    figures: str | None
    quiet: bool


def run(options: Options) -> None:
    """Replay, then report. Raises: click.ClickException, KvcoreError, OSError; no output file is touched then."""
    _check(options)
    profile = _profile(options)
    mix = _mix(options, profile)
    with _open(options) as stream:
        _replay(options, profile, mix, stream)


@dataclass(frozen=True)
class Checked:
    """What other commands that replay want to know of options that have been looked at."""

    profile: PolicyProfile | None
    mix: ClassMix | None
    weights: SelectionWeights


def check_replay(given: Mapping[str, Any]) -> Checked:
    """Check options of a replay, by name; those that are absent are off. Raises: as run does."""
    known: dict[str, Any] = {item.name: given.get(item.name) for item in fields(Options)}
    options = Options(**known)
    _check(options)
    profile = _profile(options)
    return Checked(profile, _mix(options, profile), _weights(options))


def _open(options: Options) -> TraceStream:
    try:
        return open_traces(
            options.traces, format=options.trace_format, trace_block_size=options.trace_block_size,
            block_size=options.block_size, skip_bad=options.skip_bad, limit=options.limit,
        )
    except KvcoreError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _replay(options: Options, profile: PolicyProfile | None, mix: ClassMix | None, stream: TraceStream) -> None:
    config = SchedulerConfig(
        block_size=stream.block_size, profile=profile, default_queue_policy=QueuePolicy(options.queue_policy or "fcfs"),
        default_busy_threshold_frac=options.queue_threshold, seed=options.seed, weights=_weights(options),
        capacity=None if options.capacity is None else Capacity(options.capacity), index=IndexMode(options.index),
    )
    spec = PRESETS[options.engine].scaled(config.block_size)
    wall, cpu = time.perf_counter(), time.process_time()
    result = _simulate(options, stream, config, spec, mix)
    spent = {"cpu_s": round(time.process_time() - cpu, 6)} | machine(time.perf_counter() - wall)
    spent["events_per_s"] = round(result.events / max(spent["wall_s"], 1e-9))
    numbers = _report(options, stream, config, spec, result)
    _tell_skipped(options, stream, result)
    outputs = _watch(options, config, spec, mix, result, numbers) if options.report or options.figures else []
    _write(options, numbers | {"run": spent}, result, outputs)


def _simulate(
    options: Options, stream: TraceStream, config: SchedulerConfig, spec: EngineSpec, mix: ClassMix | None
) -> ReplayResult:
    """Run the replay, and write its journal meanwhile: the file appears when the run is through."""
    results: list[ReplayResult] = []

    def fill(tap: Tap | None) -> None:
        results.append(_once(options, stream, config, spec, mix, tap))

    try:
        if options.journal is None:
            fill(None)
        else:
            write_journal(options.journal, config, fill)
    except OverflowError as error:
        raise click.ClickException(f"{error} (146 years)") from error
    return results[0]


def _once(
    options: Options, stream: TraceStream, config: SchedulerConfig, spec: EngineSpec, mix: ClassMix | None,
    tap: Tap | None,
) -> ReplayResult:
    with _progress(options) as progress:
        return simulate(
            stream, config, spec, options.workers, classes=mix, seed=options.seed, speedup=options.speedup or 1,
            concurrency=options.concurrency, closed_loop=options.closed_loop, paths=options.traces,
            skip_unfit=options.skip_bad, tell_output=options.tell_output, progress=progress, tap=tap,
        )


def _watch(
    options: Options, config: SchedulerConfig, spec: EngineSpec, mix: ClassMix | None, result: ReplayResult,
    numbers: dict[str, Any],
) -> Outputs:
    """The files of --report and --figures, from a second run that is watched."""
    from ..report.watch import DECISIONS_KEPT

    def again(tap: Tap) -> ReplayResult:
        with _open(options) as stream:
            return _once(options, stream, replace(config, decisions_kept=DECISIONS_KEPT), spec, mix, tap)

    found = make_report(result, numbers, options.workers, config.block_size, again)
    return report_outputs(found, options.report, options.figures)


def _check(options: Options) -> None:
    """Refuse unknown names, options that contradict each other, and destinations that cannot be written."""
    _check_name("--engine", options.engine, list(PRESETS))
    if options.trace_format is not None:
        _check_name("--format", options.trace_format, list(FORMATS))
    if options.policy is not None and (options.queue_policy is not None or options.queue_threshold is not None):
        raise click.UsageError("--queue-policy and --queue-threshold do nothing beside --policy; give one or the other")
    if options.policy is None and options.model is not None:
        raise click.UsageError("--model needs --policy")
    if options.policy is None and options.classes is not None:
        raise click.UsageError("--classes needs --policy: without one every request is of class 'default'")
    if options.concurrency is not None and options.speedup is not None:
        raise click.UsageError("--speedup does nothing beside --concurrency, which ignores the trace's times")
    if options.concurrency is not None and options.closed_loop:
        raise click.UsageError("--closed-loop and --concurrency are two kinds of load; give one or the other")
    threshold = options.queue_threshold
    if threshold is not None and not (math.isfinite(threshold) and threshold >= 0):
        raise click.UsageError(f"--queue-threshold must be a number of 0 or more, not {threshold}")
    if not 0 <= options.seed < 2**64:
        raise click.UsageError(f"--seed must be 0 .. 2^64-1, not {options.seed}")
    outputs = [("--json", options.json_path), ("--csv", options.csv_path), ("--journal", options.journal),
               ("--report", options.report)]
    inputs = list(options.traces) + ([] if options.policy is None else [options.policy])
    check_outputs(outputs, inputs, files=("--journal",))
    if options.report is not None or options.figures is not None:
        check_report("--figures" if options.report is None else "--report", options.figures, options.traces)


def _check_name(option: str, name: str, known: list[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise click.UsageError(f"{option}: unknown {name!r}; {hint}")


def _profile(options: Options) -> PolicyProfile | None:
    """The profile that the policy file has for the model; None without a policy file."""
    if options.policy is None:
        return None
    try:
        with open(options.policy, encoding="utf-8") as stream:
            document = load_policy(stream.read(), options.policy)
        check_admission(document)
    except UnicodeDecodeError as error:
        raise InvalidPolicy("the file is not UTF-8 text", source=options.policy) from error
    profile = document.profile_for(options.model)
    if profile is None:
        models = ", ".join(document.models) or "none"
        raise click.UsageError(f"{options.policy} has no root profile: name one of its models with --model ({models})")
    if options.model is not None and options.model not in document.models and not options.quiet:
        _note(f"{options.policy} has no profile of model {options.model!r}: the root profile applies")
    return profile


def _weights(options: Options) -> SelectionWeights:
    """Selection weights: the defaults, with what --selection says."""
    known = [item.name for item in fields(SelectionWeights)]
    given: dict[str, float] = {}
    for pair in (options.selection or "").split(",") if options.selection is not None else ():
        name, _, text = (part.strip() for part in pair.partition("="))
        if name in given:
            raise click.UsageError(f"--selection: {name} is given twice")
        _check_name("--selection", name, known)
        try:
            given[name] = float(text)
        except ValueError:
            raise click.UsageError(f"--selection: {name} must be a number, not {text!r}") from None
    weights = SelectionWeights(**given)
    fault = weights_fault(weights)
    if fault is not None:
        raise click.UsageError(f"--selection: {fault}")
    return weights


def _mix(options: Options, profile: PolicyProfile | None) -> ClassMix | None:
    if options.classes is None or profile is None:
        return None
    try:
        mix = parse_classes(options.classes)
        mix.check(profile)
    except InvalidConfig as error:
        raise click.UsageError(f"--classes: {error}") from error
    return mix


@contextmanager
def _progress(options: Options) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, on a terminal only. Of an unknown number of requests it shows the count."""
    if options.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("replay"), BarColumn(), TextColumn("{task.completed:,} requests"),
        TextColumn("{task.fields[simulated]:,.0f} s simulated"), TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=options.limit, simulated=0.0)
        yield lambda requests, now_ns: bar.update(task, completed=requests, simulated=now_ns / 1e9)


def _report(
    options: Options, stream: TraceStream, config: SchedulerConfig, spec: EngineSpec, result: ReplayResult
) -> dict[str, Any]:
    """The numbers, the counts of rows, and the configuration in full."""
    if result.audit:
        raise AssertionError(f"audit: {result.audit}")
    report = summarize(result)
    ended: dict[str, int] = report["requests"]
    # With a limit the stream has read ahead of the rows that it gave out; those are not part of this run.
    abandoned = result.abandoned or 0
    read = stream.read if options.limit is None else len(result.table) + result.unfit + abandoned + stream.skipped
    counts = {"read": read, "skipped": stream.skipped + result.unfit, **ended}
    if counts["read"] != counts["skipped"] + sum(ended.values()):
        raise AssertionError(f"requests do not add up: {counts}")
    report |= {"requests": counts, "reordered_rows": stream.reordered}
    return report | {"config": _config(options, stream, config, spec)}


def _config(options: Options, stream: TraceStream, config: SchedulerConfig, spec: EngineSpec) -> dict[str, Any]:
    policy = describe(PolicyDocument(root=config.effective_profile()))
    del policy["models"]
    mode: dict[str, Any] = {"mode": "open", "speedup": str(options.speedup or 1)}
    if options.concurrency is not None:
        mode = {"mode": "closed", "concurrency": options.concurrency}
    elif options.closed_loop:
        mode["mode"] = "closed-loop sessions"
    return {
        "traces": [
            {"path": path, "format": form, "sha256": file_digest(path)}
            for path, form in zip(options.traces, stream.formats, strict=True)
        ],
        "limit": options.limit,
        "skip_bad": options.skip_bad,
        "trace_block_size": options.trace_block_size,
        "load": mode,
        "classes": options.classes,
        "seed": options.seed,
        "workers": options.workers,
        "engine": {"preset": options.engine, **asdict(spec)},
        "policy_file":
            None if options.policy is None else {"path": options.policy, "sha256": file_digest(options.policy)},
        "model": options.model,
        "policy": policy,
        "scheduler": {
            "block_size": config.block_size,
            "booking_ttl_ns": config.booking_ttl_ns,
            "index": config.index.value,
            "seed": config.seed,
            "tell_output": options.tell_output,
            "weights": asdict(config.weights),
        },
    }


def file_digest(path: str) -> str | None:
    """Digest of the bytes of a file as it lies on disk; None for what can be read only once, such as a pipe."""
    if not os.path.isfile(path):
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def machine(wall_s: float) -> dict[str, Any]:
    """Everything that differs from machine to machine and from run to run."""
    from . import program_version

    return {
        "wall_s": round(wall_s, 6),
        "peak_memory_bytes": _peak_memory_bytes(),
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"kvcore": program_version(), "python": platform.python_version(), "numpy": np.__version__},
        "machine": platform.platform(),
    }


def _peak_memory_bytes() -> int:
    """Largest resident size of this process."""
    try:
        with open("/proc/self/status", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    # A child of a big parent inherits its mark here, so this comes second. Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _tell_skipped(options: Options, stream: TraceStream, result: ReplayResult) -> None:
    """Say on stderr how many rows were left out, and why the first ones were."""
    if options.quiet:
        return
    if stream.skipped:
        _note(f"skipped {stream.skipped:,} bad rows; the first:")
    for file, line, reason in stream.skipped_rows[:_BAD_ROWS_SHOWN]:
        _note(str(InvalidTrace(file, line, reason)))
    if result.unfit:
        _note(f"skipped {result.unfit:,} requests that no worker could ever hold")


def _note(text: str) -> None:
    click.echo(f"kvcore: note: {text}", err=True)


def _write(options: Options, report: dict[str, Any], result: ReplayResult, outputs: Outputs) -> None:
    if options.json_path is not None:
        outputs.append((options.json_path, lambda stream: write_json(report, stream)))
    if options.csv_path is not None:
        outputs.append((options.csv_path, lambda stream: write_csv(result, options.traces, stream)))
    write_outputs(outputs)
    taken = STDOUT in (options.json_path, options.csv_path, options.report) or sys.stdout is None
    if not options.quiet and not taken:
        from ..replay.text import print_report

        with naming("standard output"):
            print_report(report)
