"""`--report` and `--figures`, of `kvcore replay` and `kvcore compare`: what is checked first, and what comes out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

import click

from ..replay.result import ReplayResult
from ..replay.simulate import Tap
from .extras import extra

if TYPE_CHECKING:
    from ..report.replay import ReplayReport

Outputs = list[tuple[str, Callable[[IO[str]], None]]]


def check_report(option: str, figures: str | None, traces: tuple[str, ...]) -> None:
    """Refuse what can be told before the run. option: what asks for a report.

    Raises: click.ClickException.
    """
    # What it says of its font cache is not for those who asked for a report.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with extra("report", option):
        from ..report import replay
    del replay
    for path in traces:
        if os.path.exists(path) and not os.path.isfile(path):
            raise click.UsageError(f"{option} reads the traces twice, and {path} is no file that can be read again")
    if figures is not None:
        _check_folder(figures)


def _check_folder(path: str) -> None:
    if not path:
        raise click.ClickException("--figures: the name is empty")
    place = path if os.path.lexists(path) else os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(place):
        raise click.ClickException(f"--figures {path}: {place} is not a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise click.ClickException(f"--figures {path}: {place} is not writable")


def make_report(
    result: ReplayResult, report: dict[str, Any], workers: int, block_size: int, again: Callable[[Tap], ReplayResult]
) -> ReplayReport:
    """Run once more and look. Raises: click.ClickException if the traces are not what they were."""
    from ..report.replay import watched

    with second_run():
        return watched(result, report, workers, block_size, again)


@contextmanager
def second_run() -> Iterator[None]:
    """Around what watches a second run. Raises: click.ClickException if it was another one."""
    from ..report.replay import RunsDiffer

    try:
        yield
    except RunsDiffer as error:
        raise click.ClickException("the second run, for the report, was another one: a trace has changed") from error


def report_outputs(found: ReplayReport, html: str | None, figures: str | None) -> Outputs:
    """Files to be written, for write_outputs; the folder of the figures is made here."""
    outputs: Outputs = []
    if figures is not None:
        os.makedirs(figures, exist_ok=True)
        for name, table in found.tables.items():
            outputs.append((os.path.join(figures, f"{name}.csv"), table.write))
        for drawing in found.drawings:
            outputs.append((os.path.join(figures, f"{drawing.name}.svg"), written(drawing.svg)))
            outputs.append((os.path.join(figures, f"{drawing.name}.png"), _bytes(drawing.png)))
    if html is not None:
        outputs.append((html, written(found.html)))
    return outputs


def written(make: Callable[[], str]) -> Callable[[IO[str]], None]:
    """Fills a file with text, for write_outputs."""
    return lambda stream: cast(None, stream.write(make()))


def _bytes(make: Callable[[], bytes]) -> Callable[[IO[str]], None]:
    return lambda stream: cast(None, cast(TextIO, stream).buffer.write(make()))
