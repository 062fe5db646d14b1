"""What `kvcore sweep` does once its options are parsed. Imported when the command runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from typing import IO, Any

import click

from kvcore.errors import KvcoreError
from kvcore.policy import PolicyProfile
from kvcore.policy_file import PolicyDocument, describe

from ..replay.report import write_json
from ..study.case import Case, check_traces, keep_trace
from ..study.objective import InvalidObjective, Objective, parse_objective
from ..study.points import Task, Tried, check_keys, figure_names, policy_text
from ..study.results import ResultFile, fingerprint, read_results, text_of
from ..study.search import CLUSTERS, searching
from ..study.space import InvalidSpace, Point, Space, load_space
from ..study.sweep_text import Verdict, judge, sweep_report, write_points
from .compare_run import LoadOptions, case_of, check_inputs, config_of
from .extras import extra
from .output import STDOUT, check_outputs, write_outputs
from .replay_run import file_digest, machine

_PLOTS = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Options(LoadOptions):
    """The options of the command."""

    space: str
    objective: str | None
    results: str | None
    backend: str
    jobs: int | None
    address: str | None
    best: str | None
    csv_path: str | None
    json_path: str | None
    plot: str | None


def run(options: Options) -> None:
    """Search, then report. Raises: click.ClickException, KvcoreError, OSError."""
    _check(options)
    space = _space(options)
    policy = os.path.join(os.path.dirname(options.space), space.policy)
    if not os.path.exists(policy):
        raise InvalidSpace(space.at("policy"), f"policy {policy}: No such file")
    _check_outputs(options, policy)
    base = case_of(options, policy)
    profile = base.profile
    assert profile is not None
    check_keys({name: space.at("keys", name) for name in space.keys}, profile)
    try:
        check_traces(base.load)
        # Workers of a cluster stand in other folders.
        base = replace(base, load=replace(base.load, traces=tuple(map(os.path.abspath, options.traces))))
        keep_trace(base.load)
    except KvcoreError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    points = dict(enumerate(space.all_points(options.seed), 1))
    names = figure_names(profile, points[1])
    objective = _objective(options, space, names)
    began = time.perf_counter()
    tried, known = _search(options, space, base, profile, points)
    spent = machine(time.perf_counter() - began) | {
        "backend": options.backend, "jobs": options.jobs, "address": options.address, "known_points": known}
    verdict = judge(objective, tried, names)
    _write(options, profile, verdict, lambda: sweep_report(verdict, profile, _config(options, space, policy)) | {
        "run": spent})


def _check(options: Options) -> None:
    backend, on_cluster = options.backend, options.backend in CLUSTERS
    if options.address is not None and not on_cluster:
        raise click.UsageError(f"--address needs --backend {' or '.join(CLUSTERS)}")
    if on_cluster and options.address is None:
        raise click.UsageError(f"--backend {backend} needs --address")
    if on_cluster and options.jobs is not None:
        raise click.UsageError(f"--jobs does nothing beside --backend {backend}: the cluster has as many as it has")
    check_inputs(options)


def _space(options: Options) -> Space:
    try:
        with open(options.space, encoding="utf-8") as stream:
            return load_space(stream.read(), options.space)
    except UnicodeDecodeError as error:
        raise InvalidSpace(options.space, "not UTF-8 text") from error


def _check_outputs(options: Options, policy: str) -> None:
    outputs = [("--results", options.results), ("--best", options.best), ("--csv", options.csv_path),
               ("--json", options.json_path), ("--plot", options.plot)]
    check_outputs(outputs, [*options.traces, options.space, policy], files=("--results", "--best", "--plot"))
    if options.plot is not None:
        if not options.plot.endswith(_PLOTS):
            raise click.UsageError(f"--plot {options.plot}: must end in {', '.join(_PLOTS)}")
        with extra("report", "--plot"):
            import matplotlib  # noqa: F401 - whether it is there


def _objective(options: Options, space: Space, names: list[str]) -> Objective:
    text = options.objective or space.objective
    if text is None:
        raise click.UsageError(f"{options.space} has no `objective`, and there is no --objective")
    try:
        objective = parse_objective(text)
        objective.check(names)
    except InvalidObjective as error:
        place = "--objective" if options.objective else space.at("objective")
        raise click.UsageError(f"{place}: {error}") from error
    if options.plot is not None and len(objective.goals) < 2:
        raise click.UsageError("--plot needs an objective with two goals, such as `minimise A, minimise B`")
    return objective


def _search(
    options: Options, space: Space, base: Case, profile: PolicyProfile, points: dict[int, Point],
) -> tuple[dict[int, Tried], int]:
    """Try all points that are not known yet. Returns: all, by number, and how many were known."""
    from . import program_version

    described = describe(PolicyDocument(root=profile))
    identity = fingerprint({
        "kvcore": program_version(), "space": space.described(), "policy": described, "config": config_of(options)})
    known = {} if options.results is None else read_results(options.results, identity, points)
    if known and not options.quiet:
        click.echo(f"kvcore: note: {len(known):,} of {len(points):,} points are known from {options.results}", err=True)
    tasks = [Task(number, values, base) for number, values in points.items() if number not in known]
    file = None if options.results is None else ResultFile(options.results, identity, known)
    tried = dict(known)
    try:
        # The progress bar has a thread: after the fork.
        with searching(tasks, options.backend, options.jobs, options.address) as answers, \
                _progress(options, len(points), len(known)) as step:
            for answer in answers:
                tried[answer.number] = answer
                if file is not None:
                    file.add(answer)
                step()
    finally:
        if file is not None:
            file.close()
    if options.results is not None:
        text = text_of(identity, tried)
        write_outputs([(options.results, lambda stream: _put(stream, text))])
    return tried, len(known)


def _put(stream: IO[str], text: str) -> None:
    stream.write(text)


@contextmanager
def _progress(options: Options, points: int, known: int) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr, on a terminal only."""
    if options.quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sweep", total=points, completed=known)
        yield lambda: bar.advance(task)


def _config(options: Options, space: Space, policy: str) -> dict[str, Any]:
    """Everything that decides the figures, as JSON values."""
    return config_of(options) | {
        "space": {"path": options.space, "sha256": file_digest(options.space)} | space.described(),
        "policy_file": {"path": policy, "sha256": file_digest(policy)},
        "objective": options.objective or space.objective,
    }


def _write(
    options: Options, profile: PolicyProfile, verdict: Verdict, report: Callable[[], dict[str, Any]]
) -> None:
    outputs: list[tuple[str, Callable[[IO[str]], None]]] = []
    if options.csv_path is not None:
        outputs.append((options.csv_path, lambda stream: write_points(verdict, stream)))
    if options.json_path is not None:
        outputs.append((options.json_path, lambda stream: write_json(report(), stream)))
    if options.best is not None and verdict.ranked:
        text = _best(options, profile, verdict)
        outputs.append((options.best, lambda stream: _put(stream, text)))
    if options.plot is not None:
        _plot(options.plot, verdict)
    write_outputs(outputs)
    if not options.quiet and STDOUT not in (options.csv_path, options.json_path) and sys.stdout is not None:
        from ..study.sweep_text import print_sweep

        print_sweep(verdict)
    if not verdict.figures:
        raise click.ClickException(f"every point failed; the first: {verdict.failed[0].error}")
    if options.best is not None and not verdict.ranked:
        raise click.ClickException(f"no point meets the constraints: {options.best} is not written")


def _best(options: Options, profile: PolicyProfile, verdict: Verdict) -> str:
    """The best policy as a file, which begins with where it comes from."""
    number = verdict.ranked[0]
    values, figures = verdict.tried[number].values, verdict.figures[number]
    lines = [f"# Point {number} of {len(verdict.tried)} of a sweep. What it was, and what it gave (times in ns):"]
    lines += [f"#   {name}: {_plain(value)}" for name, value in values.items()]
    lines += [f"#   {name} = {_plain(figures[name])}" for name in verdict.objective.figures if name not in values]
    return "\n".join(lines) + "\n" + policy_text(profile, values)


def _plain(value: object) -> str:
    return "null" if value is None else str(value)


def _plot(path: str, verdict: Verdict) -> None:
    from ..study.front_plot import plot_front

    drawn = BytesIO()
    plot_front(verdict.objective, verdict.figures, verdict.ranked, verdict.front, drawn, path.rpartition(".")[2])
    part = f"{path}.part"
    with open(part, "wb") as stream:
        stream.write(drawn.getvalue())
    os.replace(part, path)

