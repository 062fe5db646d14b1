"""What `kvcore bench` does once its options are parsed. Imported when the command runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import click

from kvcore.policy import PolicyProfile
from kvcore.policy_file import check_admission, load_policy

from ..bench.child import STEP
from ..bench.gate import (
    INSTRUCTIONS,
    RATIO,
    BaseLines,
    Figures,
    InvalidBaseLine,
    Row,
    Verdict,
    build_key,
    compare,
    processor,
    table,
)
from ..bench.load import Load, Recording, record
from ..bench.measuring import best_ratios, has_valgrind, instructions, python, usual_ratios
from .output import check_output, write_outputs
from .policy import read_policy_text

FIRST = "first run of this build"


@dataclass(frozen=True)
class Options:
    """The options of the command, each valid by itself. tolerance: in per cent."""

    policy: str
    model: str | None
    load: Load
    save: str | None
    reason: str | None
    compare: str | None
    tolerance: float


def run(options: Options) -> bool:
    """Measure, print, save or compare. Returns: False if something has grown.

    Raises: click.ClickException, KvcoreError, OSError; no file is touched then.
    """
    if options.save is not None and options.compare is not None:
        raise click.UsageError("--save and --compare are two different runs: give one or the other")
    if options.reason is not None and (options.save is None or not options.reason.strip()):
        raise click.UsageError("--reason needs --save, and words")
    lines = _lines(options)
    profile = _profile(options)
    recording = record(options.load, profile)
    key = build_key()
    known = None if lines is None else lines.builds.get(key)
    before = {} if known is None else known.on(processor())
    figures = _figures(options, recording, before)
    rows = compare(before, figures, options.tolerance / 100)
    click.echo(f"{options.policy}: {recording.events:,} events, digest {recording.digest}")
    click.echo(key)
    for line in table(rows):
        click.echo(line)
    if lines is None:
        return True
    if options.save is not None or known is None:
        _record(options, lines, key, figures)
        return True
    if all(row.verdict is Verdict.NEW for row in rows if row.name.startswith(RATIO)):
        click.echo(f"kvcore: note: {options.compare} has no ratios of this processor: recorded there", err=True)
        lines.add_ratios(key, figures)
        _write(lines)
        rows = [row for row in rows if not row.name.startswith(RATIO)]
    return _answer(rows, options)


def _lines(options: Options) -> BaseLines | None:
    """The base lines to compare with or to add to. Raises: InvalidBaseLine for those of another load."""
    path = options.save or options.compare
    if path is None:
        return None
    check_output("--compare" if options.save is None else "--save", path, [options.policy])
    asked: dict[str, object] = {"model": options.model, **asdict(options.load)}
    if options.save is not None and not Path(path).exists():
        return BaseLines(Path(path), asked)
    lines = BaseLines.read(Path(path))
    if lines.load != asked:
        others = ", ".join(f"{name} {lines.load.get(name)!r}, not {value!r}"
                           for name, value in asked.items() if lines.load.get(name) != value)
        raise InvalidBaseLine(path, f"its base lines are of another load: {others or 'with more options'}")
    return lines


def _profile(options: Options) -> PolicyProfile:
    document = load_policy(read_policy_text(options.policy), options.policy)
    check_admission(document)
    profile = document.profile_for(options.model)
    if profile is None:
        models = ", ".join(document.models) or "none"
        raise click.UsageError(f"{options.policy} has no root profile: name one of its models with --model ({models})")
    return profile


def _figures(options: Options, recording: Recording, before: Figures) -> dict[str, float]:
    """Everything measured, by name. before: what ratios are to be held against, empty where they are recorded."""
    asked = {"policy": options.policy, "model": options.model, "load": asdict(options.load)}
    command = python("-P", "-m", "kvcore.drivers.bench.child", json.dumps(asked))
    figures: dict[str, float] = dict(recording.counters)
    if has_valgrind():
        figures |= {f"{INSTRUCTIONS}: {name}": round(value, 1) for name, value in instructions(command, [STEP]).items()}
    else:
        click.echo("kvcore: note: there is no valgrind here: instructions are not measured", err=True)
    base = before.get(f"{RATIO}: {STEP}")
    if base is None or options.save is not None:
        ratios = usual_ratios(command, [STEP])
    else:
        limit = base * (1 + options.tolerance / 100)
        ratios = best_ratios(command, [STEP], lambda name, value: value <= limit)
    return figures | {f"{RATIO}: {name}": float(f"{value:.4g}") for name, value in ratios.items()}


def _record(options: Options, lines: BaseLines, key: str, figures: Figures) -> None:
    """Write the figures as base line."""
    if options.save is None:
        click.echo(f"kvcore: note: {options.compare} knows nothing of this build: recorded there", err=True)
    lines.record(key, figures, (options.reason or FIRST).strip())
    _write(lines)


def _write(lines: BaseLines) -> None:
    text = lines.text()

    def fill(stream: IO[str]) -> None:
        stream.write(text)

    write_outputs([(str(lines.path), fill)])


def _answer(rows: list[Row], options: Options) -> bool:
    """Say on stderr what has grown."""
    grown = [row.name for row in rows if row.verdict is Verdict.GROWN]
    new = sum(row.verdict is Verdict.NEW for row in rows)
    if new:
        click.echo(f"kvcore: note: {options.compare} has no base line for {new} of these figures", err=True)
    if grown:
        click.echo(f"kvcore: {len(grown)} of {len(rows)} figures have grown by more than {options.tolerance:g} % over "
                   f"{options.compare}: {', '.join(grown)}", err=True)
    return not grown
