"""What `kvcore compare` does once its options are parsed. Imported when the command runs."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import click

from kvcore.config import IndexMode
from kvcore.errors import KvcoreError

from ..replay.presets import PRESETS
from ..replay.report import write_json
from ..study.case import Case, Load
from ..study.comparison import Candidate, Replayed, compare, groups, labels, replay_candidate
from .output import STDOUT, check_outputs, write_outputs
from .replay_report import Outputs, check_report, second_run, written
from .replay_run import Checked, check_replay, file_digest


@dataclass(frozen=True)
class LoadOptions:
    """The options that say what arrives and on what fleet, each valid by itself."""

    traces: tuple[str, ...]
    workers: int
    engine: str
    model: str | None
    tell_output: bool
    selection: str | None
    index: str
    classes: str | None
    trace_format: str | None
    block_size: int | None
    trace_block_size: int | None
    speedup: Fraction | None
    concurrency: int | None
    seed: int
    limit: int | None
    skip_bad: bool
    quiet: bool


@dataclass(frozen=True)
class Options(LoadOptions):
    """The options of the command."""

    policies: tuple[str, ...]
    resamples: int
    confidence: int
    json_path: str | None
    report: str | None


def run(options: Options) -> None:
    """Replay all, then compare. Raises: click.ClickException, KvcoreError, OSError; no output file is touched then."""
    if len(options.policies) < 2:
        raise click.UsageError("two policy files or more are needed")
    check_inputs(options)
    check_outputs([("--json", options.json_path), ("--report", options.report)], [*options.traces, *options.policies])
    if options.report is not None:
        check_report("--report", None, options.traces)
    names = labels(options.policies)
    candidates = [
        Candidate(label, case_of(options, path)) for label, path in zip(names, options.policies, strict=True)
    ]
    with _progress(options, len(candidates)) as shown:
        runs = [_replay(candidate, shown) for candidate in candidates]
        shown.begin("resampling", sum(len(groups(runs[0], run)) for run in runs[1:]) * options.resamples)
        found = compare(runs, seed=options.seed, resamples=options.resamples, percent=options.confidence,
                        progress=shown.step)
        found |= {"config": config_of(options) | {
            "policies": [{"path": path, "sha256": file_digest(path)} for path in options.policies]}}
        outputs = [] if options.report is None else _watch(options.report, found, candidates, runs, shown)
    _tell_skipped(options, runs)
    _write(options, found, outputs)


def check_inputs(options: LoadOptions) -> None:
    """Refuse traces that can be read only once: each replay reads them again."""
    for path in options.traces:
        if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
            raise click.UsageError(f"{path}: is read once per replay, so it must be a file and not a pipe")


def case_of(options: LoadOptions, policy: str) -> Case:
    """The replay under one policy file. Raises: click.ClickException, KvcoreError, OSError."""
    checked = check_replay({**asdict(options), "policy": policy})
    return Case(load_of(options, checked), checked.profile, options.workers, options.engine, checked.weights,
                IndexMode(options.index), options.tell_output)


def load_of(options: LoadOptions, checked: Checked) -> Load:
    """What arrives."""
    return Load(
        options.traces, options.trace_format, options.block_size, options.trace_block_size, checked.mix,
        Fraction(options.speedup or 1), options.concurrency, options.seed, options.limit, options.skip_bad)


def config_of(options: LoadOptions) -> dict[str, Any]:
    """Everything that decides the numbers, as JSON values."""
    return {
        "traces": [{"path": path, "sha256": file_digest(path)} for path in options.traces],
        "workers": options.workers,
        "engine": {"preset": options.engine, **asdict(PRESETS[options.engine])},
        "model": options.model,
        "tell_output": options.tell_output,
        "selection": options.selection,
        "index": options.index,
        "classes": options.classes,
        "format": options.trace_format,
        "block_size": options.block_size,
        "trace_block_size": options.trace_block_size,
        "speedup": str(options.speedup or 1),
        "concurrency": options.concurrency,
        "seed": options.seed,
        "limit": options.limit,
        "skip_bad": options.skip_bad,
    }


class _Shown:
    """A progress bar, or none: what is done now, and how far it is."""

    def __init__(self, begin: Callable[[str, int | None], None], step: Callable[[int | None], None]) -> None:
        self.begin, self._step = begin, step

    def step(self) -> None:
        """One more."""
        self._step(None)

    def requests(self, count: int, now_ns: int) -> None:
        """So many requests have arrived."""
        self._step(count)


@contextmanager
def _progress(options: Options, candidates: int) -> Iterator[_Shown]:
    """On stderr, on a terminal only."""
    if options.quiet or not sys.stderr.isatty():
        yield _Shown(lambda text, total: None, lambda count: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compare")

        def begin(text: str, total: int | None) -> None:
            bar.reset(task, description=text, total=total)

        def step(count: int | None) -> None:
            if count is None:
                bar.advance(task)
            else:
                bar.update(task, completed=count)

        yield _Shown(begin, step)


def _replay(candidate: Candidate, shown: _Shown) -> Replayed:
    shown.begin(candidate.label, candidate.case.load.limit)
    try:
        return replay_candidate(candidate, shown.requests)
    except OverflowError as error:
        raise click.ClickException(f"{error} (146 years)") from error
    except KvcoreError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _watch(
    path: str, found: dict[str, Any], candidates: list[Candidate], runs: list[Replayed], shown: _Shown
) -> Outputs:
    """The file of --report, from second runs that are watched."""
    from ..report.comparison import compared

    def progress(label: str) -> Callable[[int, int], None]:
        shown.begin(f"{label}, again", len(runs[0].outcomes))
        return shown.requests

    with second_run():
        report = compared(found, candidates, runs, progress)
    return [(path, written(report.html))]


def _tell_skipped(options: Options, runs: list[Replayed]) -> None:
    if runs[0].unusable and not options.quiet:
        click.echo(f"kvcore: note: skipped {runs[0].unusable:,} rows that cannot be used", err=True)


def _write(options: Options, report: dict[str, Any], outputs: Outputs) -> None:
    if options.json_path is not None:
        outputs.append((options.json_path, lambda stream: write_json(report, stream)))
    write_outputs(outputs)
    if not options.quiet and STDOUT not in (options.json_path, options.report) and sys.stdout is not None:
        from ..study.comparison_text import print_comparison

        print_comparison(report)
