"""What `kvcore trace` does once its options are parsed. Imported when a command runs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any, cast

import click

from kvcore.errors import InvalidTrace

from ..replay.report import write_json
from ..replay.rows import TraceRow
from ..replay.traces import FORMATS, TraceStream, open_traces
from ..replay.values import SECOND_NS, TIME_END_NS
from ..traces import edits
from ..traces.statistics import Collected
from ..traces.synth import Shape, synthetic
from ..traces.writers import WRITTEN, TraceWriter
from .extras import extra
from .output import STDOUT, check_output, write_outputs, write_text

if TYPE_CHECKING:
    from rich.table import Table

_BLOCK_SIZE = 512
_HASHED = "mooncake"


def stats(*, json_path: str | None, figure: str | None, quiet: bool, **reading: Any) -> None:
    """Read all, then print and write. Raises: click.ClickException, KvcoreError, OSError."""
    traces: tuple[str, ...] = reading["traces"]
    kind = None if figure is None else os.path.splitext(figure)[1].lower().removeprefix(".")
    if kind is not None and kind not in ("svg", "png"):
        raise click.UsageError(f"--figure {figure}: the name must end in .svg or .png")
    if json_path == STDOUT and sys.stdout is None:
        raise click.UsageError("--json -: standard output is closed")
    for option, path in (("--json", json_path), ("--figure", figure)):
        if path is not None:
            check_output(option, path, traces)
    if figure is not None and json_path is not None and os.path.realpath(figure) == os.path.realpath(json_path):
        raise click.UsageError("--json and --figure are the same file")
    if figure is not None:
        with extra("report", "--figure"):
            import matplotlib  # noqa: F401 - whether it is there
    with _opened(reading) as stream:
        found = Collected(stream)
    _tell_skipped(stream, quiet)
    figures = {
        "traces": [{"path": path, "format": name} for path, name in zip(traces, stream.formats, strict=True)],
        "block_size": stream.block_size, "rows_read": stream.read, "rows_skipped": stream.skipped,
        "rows_reordered": stream.reordered,
    } | found.figures()
    outputs: list[tuple[str, Callable[[IO[str]], None]]] = []
    if figure is not None and kind is not None:
        from ..traces.picture import draw

        picture = draw(found, ", ".join(os.path.basename(path) for path in traces), kind)
        outputs.append((figure, lambda text: _write_bytes(text, picture)))
    if json_path is not None:
        outputs.append((json_path, lambda text: write_json(figures, text)))
    write_outputs(outputs)
    if not quiet and json_path != STDOUT and sys.stdout is not None:
        _print(figures)


def convert(*, to: str, out: str, quiet: bool, **reading: Any) -> None:
    """As one trace of the format `to`."""
    _rewrite(reading, to, out, quiet, lambda stream: stream)


def cut(*, start: Fraction | None, end: Fraction | None, to: str | None, out: str, quiet: bool, **reading: Any) -> None:
    """A window of time."""
    from_ns = _nanoseconds("--from", start or Fraction(0))
    until_ns = None if end is None else _nanoseconds("--until", end)
    if until_ns is not None and until_ns <= from_ns:
        raise click.UsageError("--until must be later than --from")
    _rewrite(reading, to, out, quiet, lambda stream: edits.cut(stream, from_ns, until_ns))


def scale(
    *, rate: Fraction | None, prompt_tokens: Fraction | None, output_tokens: Fraction | None, to: str | None,
    out: str, quiet: bool, **reading: Any,
) -> None:
    """Another rate, other lengths."""
    one = Fraction(1)
    if rate is prompt_tokens is output_tokens is None:
        raise click.UsageError("nothing to scale: give --rate, --prompt-tokens or --output-tokens")
    _rewrite(reading, to, out, quiet, lambda stream: edits.scale(
        stream, stream.block_size, rate or one, prompt_tokens or one, output_tokens or one))


def synth(*, kind: str, seed: int, to: str, out: str, quiet: bool, **shape: Any) -> None:
    """A trace that is drawn."""
    for option, value in shape.items():
        if not math.isfinite(value):
            raise click.UsageError(f"{option.removesuffix('_s')}: {value} is no number to draw with")
    _check_out(out, ())
    _write(out, to, False, synthetic(kind, Shape(**shape, block_size=_BLOCK_SIZE), seed), quiet)


def _opened(reading: dict[str, Any]) -> TraceStream:
    name = reading["trace_format"]
    if name is not None and name not in FORMATS:
        raise click.UsageError(f"--format: {name!r} is none of {', '.join(FORMATS)}")
    return open_traces(
        reading["traces"], format=name, trace_block_size=reading["trace_block_size"],
        block_size=reading["block_size"], skip_bad=reading["skip_bad"], limit=reading["limit"])


def _rewrite(
    reading: dict[str, Any], to: str | None, out: str, quiet: bool, edit: Callable[[TraceStream], Iterable[TraceRow]]
) -> None:
    _check_out(out, reading["traces"])
    with _opened(reading) as stream:
        if to is None:
            known = set(stream.formats)
            to = stream.formats[0] if len(known) == 1 and known <= set(WRITTEN) else _HASHED
        written = _write(out, to, len(stream.formats) > 1, edit(stream), quiet)
    _tell_skipped(stream, quiet)
    if to == _HASHED and stream.block_size != _BLOCK_SIZE and written and stream.hashed:
        _note(quiet, f"its blocks are of {stream.block_size} tokens: read it with --trace-block-size "
                     f"{stream.block_size}")


def _check_out(out: str, inputs: Iterable[str]) -> None:
    if out == STDOUT and sys.stdout is None:
        raise click.UsageError("--out -: standard output is closed")
    check_output("--out", out, inputs)


def _write(out: str, to: str, several: bool, rows: Iterable[TraceRow], quiet: bool) -> int:
    """Returns how many rows there were; none is an error, because no reader takes such a file."""
    writers = []

    def fill(stream: IO[str]) -> None:
        writer = TraceWriter(stream, to, several)
        writers.append(writer)
        try:
            writer.write(rows)
        except OverflowError as error:
            raise click.ClickException(str(error)) from error
        if not writer.written:
            raise click.ClickException("no request is left: nothing is written")

    write_text(out, fill)
    (writer,) = writers
    for what, count in sorted(writer.lost.items()):
        _note(quiet, f"{to} has no place for {what}: left out of {count:,} rows")
    return writer.written


def _nanoseconds(option: str, seconds: Fraction) -> int:
    time_ns = -(-seconds * SECOND_NS // 1)
    if not 0 <= time_ns < TIME_END_NS:
        raise click.UsageError(f"{option}: must be 0 or more, and below 2^62 ns (146 years)")
    return int(time_ns)


def _write_bytes(stream: IO[str], content: bytes) -> None:
    stream.flush()
    cast(TextIOWrapper, stream).buffer.write(content)


def _note(quiet: bool, text: str) -> None:
    if not quiet:
        click.echo(f"kvcore: note: {text}", err=True)


def _tell_skipped(stream: TraceStream, quiet: bool) -> None:
    if stream.skipped:
        file, line, reason = stream.skipped_rows[0]
        _note(quiet, f"skipped {stream.skipped:,} rows that cannot be used, the first: "
                     f"{InvalidTrace(file, line, reason)}")


def _print(figures: dict[str, Any]) -> None:
    from rich.console import Console

    from ..replay.text import print_table

    arrivals, prefixes, sessions = figures["arrivals"], figures["prefixes"], figures["sessions"]
    for trace in figures["traces"]:
        click.echo(f"trace      {trace['path']} ({trace['format']})")
    click.echo(f"requests   {figures['requests']:,} in {arrivals['duration_ns'] / SECOND_NS:,.3f} s")
    if arrivals["per_s"] is not None:
        variation = "" if arrivals["gap_variation"] is None else f"; gaps vary by {arrivals['gap_variation']:.2f}"
        click.echo(f"arrivals   {arrivals['per_s']:,.3f} /s, at most {arrivals['busiest_per_s']:,.3f} /s in "
                   f"{arrivals['window_ns'] / SECOND_NS:,.3f} s{variation} (1: Poisson, above: bursts)")
    if prefixes is None:
        click.echo("prefixes   not told")
    else:
        click.echo(f"prefixes   {prefixes['seen_before_share']:.1%} of {prefixes['blocks']:,} blocks of "
                   f"{figures['block_size']} tokens were seen before, by {prefixes['sharing_requests']:,} requests")
    if sessions is not None:
        click.echo(f"sessions   {sessions['count']:,} of {sessions['mean']:.1f} requests on average, "
                   f"{sessions['max']:,} at most")
        if sessions["delay_ns"] is not None:
            click.echo(_pauses(sessions["delay_ns"], sessions["joining_requests"]))
    if figures["classes"] is not None:
        click.echo("classes    " + ", ".join(f"{name} {count:,}" for name, count in figures["classes"].items()))
    click.echo()
    # A file cannot be too narrow.
    console = Console(width=None if sys.stdout.isatty() else 100)
    print_table(console, _table(figures))


def _pauses(delays: dict[str, Any], joins: int) -> str:
    several = f"; of those that wait for several others: {joins:,}" if joins else ""
    return (f"pauses     {delays['p50'] / SECOND_NS:,.3f} s at the median, {delays['max'] / SECOND_NS:,.3f} s at most, "
            f"before {delays['count']:,} requests{several}")


def _table(figures: dict[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    keys = ("mean", "p50", "p90", "p99", "max", "total")
    table = Table("tokens", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for key in keys:
        table.add_column(key, justify="right", no_wrap=True)
    for what in ("prompt_tokens", "output_tokens"):
        values = (figures[what][key] for key in keys)
        table.add_row(what.removesuffix("_tokens"),
                      *("-" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
                        for value in values))
    return table
