"""`kvcore trace`: its commands, their options and help. What they do with them stands in trace_run.py."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import click

from .replay import Destination, format_name, read_places

Command = TypeVar("Command", bound=Callable[..., Any])

#: Formats that can be written; those that can be read are in the help of `kvcore replay`.
_FORMATS = ("mooncake", "azure", "burstgpt", "vidur")
#: What `kvcore trace synth` draws; the maker knows how.
_KINDS = ("poisson", "bursty", "sessions", "agents")

_READ = (
    click.argument("traces", nargs=-1, required=True, metavar="TRACE...", callback=read_places),
    click.option("--format", "trace_format", metavar="FORMAT", callback=format_name,
                 help="Format of all traces, see `kvcore replay --help`.  [default: by content]"),
    click.option("--block-size", type=click.IntRange(1), metavar="N",
                 help="Tokens per KV block.  [default: as in the trace]"),
    click.option("--trace-block-size", type=click.IntRange(1), metavar="N",
                 help="Tokens that one of the trace's block hashes stands for.  [default: as the file says, else 512; "
                      "bailian 16]"),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after the first N requests read."),
    click.option("--skip-bad", is_flag=True, help="Skip and count rows that cannot be used, instead of stopping."),
    click.option("--quiet", "-q", is_flag=True, help="No table and no notes."),
)
_OUT = click.option("--out", "-o", type=Destination(), default="-", metavar="OUT",
                    help="Where the trace goes, gzipped if OUT ends in .gz.  [default: standard output]")
_TO = click.option("--to", type=click.Choice(_FORMATS), metavar="FORMAT",
                   help="Format to write: mooncake, azure, burstgpt or vidur.  [default: as read, or mooncake]")


def _reading(command: Command) -> Command:
    for option in reversed(_READ):
        command = option(command)
    return command


def _number(ctx: click.Context, param: click.Parameter, value: str | None) -> Fraction | None:
    """The decimal number exactly as written."""
    from ..replay.classes import exact

    if value is None:
        return None
    number = exact(value)
    if number is None:
        raise click.BadParameter(f"{value!r} is not a plain decimal number, such as 2 or 0.25")
    return number


def _factor(ctx: click.Context, param: click.Parameter, value: str | None) -> Fraction | None:
    number = _number(ctx, param, value)
    if number == 0:
        raise click.BadParameter("0 is no factor: it must be above 0")
    return number


@click.group("trace", short_help="Look into traces, change them, draw new ones.")
def trace_group() -> None:
    """Look into request traces, change them, draw new ones: what `kvcore replay` reads.

    Formats are those of `kvcore replay --help`. Traces may be gzipped; several are merged by time. A trace that is
    written begins at time 0.
    """


@trace_group.command("stats")
@_reading
@click.option("--json", "json_path", type=Destination(), metavar="OUT",
              help="Write all numbers as JSON; - for standard output, in place of the table.")
@click.option("--figure", type=click.Path(), metavar="OUT",
              help="Draw arrivals, lengths and prefix sharing; OUT ends in .svg or .png. Needs kvcore[report].")
def stats_command(**options: Any) -> None:
    """Count and measure what is in TRACE files: arrivals, lengths, how much of the prompts was seen before, sessions.

    \b
    Example:
      kvcore trace stats mooncake.jsonl.gz --figure mooncake.svg
    """
    from .trace_run import stats

    stats(**options)


@trace_group.command("convert")
@_reading
@click.option("--to", type=click.Choice(_FORMATS), required=True, metavar="FORMAT",
              help="Format to write: mooncake, azure, burstgpt or vidur.")
@_OUT
def convert_command(**options: Any) -> None:
    """Write TRACE files as one trace of another format. A note tells what that format has no place for.

    Block hashes become small numbers, equal where prefixes are. mooncake has a place for everything, also for who waits
    for whom in the sessions of agents.

    \b
    Example:
      kvcore trace convert azure.csv --to mooncake --out azure.jsonl.gz
    """
    from .trace_run import convert

    convert(**options)


@trace_group.command("cut")
@_reading
@click.option("--from", "start", metavar="S", callback=_number, help="First second of the window.  [default: 0]")
@click.option("--until", "end", metavar="S", callback=_number,
              help="The second before which the window ends.  [default: end of trace]")
@_TO
@_OUT
def cut_command(**options: Any) -> None:
    """Write the requests of TRACE files that arrive in a window of time, counted from the first request of all.

    \b
    Example:
      kvcore trace cut azure.csv --from 600 --until 660.5 --out minute.csv
    """
    from .trace_run import cut

    cut(**options)


@trace_group.command("scale")
@_reading
@click.option("--rate", metavar="X", callback=_factor,
              help="Requests arrive X times as fast, and sessions pause 1/X as long.  [default: 1]")
@click.option("--prompt-tokens", metavar="X", callback=_factor,
              help="Prompts are X times as long; what they share grows with them.  [default: 1]")
@click.option("--output-tokens", metavar="X", callback=_factor, help="Answers are X times as long.  [default: 1]")
@_TO
@_OUT
def scale_command(**options: Any) -> None:
    """Write TRACE files with another rate or other lengths. X is a decimal number above 0.

    \b
    Example:
      kvcore trace scale azure.csv --rate 2 --output-tokens 0.5 --out faster.csv
    """
    from .trace_run import scale

    scale(**options)


@trace_group.command("synth")
@click.argument("kind", type=click.Choice(_KINDS), metavar="KIND")
@click.option("--requests", type=click.IntRange(1, 100_000_000), default=10_000, show_default=True, metavar="N",
              help="How many requests.")
@click.option("--rate", type=click.FloatRange(1e-6, 1e6), default=10.0, show_default=True, metavar="R",
              help="Requests per second, on average.")
@click.option("--prompt-tokens", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, metavar="N",
              help="Mean of what a prompt has of its own.")
@click.option("--output-tokens", type=click.IntRange(1, 1_000_000), default=200, show_default=True, metavar="N",
              help="Mean length of an answer.")
@click.option("--families", type=click.IntRange(0, 1_000_000), default=0, show_default=True, metavar="N",
              help="Families of prompts that begin alike, some much more popular than others.")
@click.option("--shared-blocks", type=click.IntRange(1, 10_000), default=2, show_default=True, metavar="N",
              help="Blocks of 512 tokens that a family begins with.")
@click.option("--burst", type=click.FloatRange(1, 1e4, min_open=True), default=4.0, show_default=True, metavar="X",
              help="bursty: rate in a burst, as a multiple of the average.")
@click.option("--think", "think_s", type=click.FloatRange(0, 1e6), default=10.0, show_default=True, metavar="S",
              help="sessions: mean seconds between an answer and the next turn.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Seed of all that is drawn.")
@click.option("--to", type=click.Choice(_FORMATS), default="mooncake", show_default=True, metavar="FORMAT",
              help="Format to write: mooncake, azure, burstgpt or vidur.")
@_OUT
@click.option("--quiet", "-q", is_flag=True, help="No notes.")
def synth_command(**options: Any) -> None:
    """Draw a trace. The same options and seed give the same bytes; fewer requests give the beginning of it.

    \b
    KIND is one of
      poisson   requests that know nothing of each other
      bursty    the same in bursts of about ten seconds, with silence between them
      sessions  about four turns each, whose prompts hold all that was said before
      agents    trees: an answer starts up to three requests at once, twice over

    Answers are taken to last 20 ms a token: a trace has times of its own. Sessions and agents also say who waits for
    whom and for how long, for `kvcore replay --closed-loop`, which waits for a fleet instead.

    \b
    Example:
      kvcore trace synth sessions --requests 5000 --rate 4 --families 20 \\
          --out talk.jsonl.gz
    """
    from .trace_run import synth

    synth(**options)
