"""`kvcore compare`: its options and their help. What it does with them stands in compare_run.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from .replay import WORKERS_MAX, Destination, format_name, read_places, speedup_option

Command = TypeVar("Command", bound=Callable[..., Any])

_LOAD = (
    click.option("--trace", "traces", multiple=True, required=True, metavar="TRACE", callback=read_places,
                 help="Trace to replay, see kvcore replay; may be given again, and all are merged by time."),
    click.option("--workers", type=click.IntRange(1, WORKERS_MAX), default=1, show_default=True, metavar="N",
                 help="Workers in the fleet."),
    click.option("--engine", metavar="PRESET", default="generic", show_default=True,
                 help="What each worker is, see kvcore replay."),
    click.option("--model", metavar="NAME", help="Use the policy files' profiles of this model."),
    click.option("--tell-output", is_flag=True, help="Tell the scheduler how long each answer will be."),
    click.option("--selection", metavar="SPEC",
                 help="Weights of worker selection, such as overlap_score_credit=0.5,temperature=0.7."),
    click.option("--index", type=click.Choice(["events", "approximate", "off"]), default="events", show_default=True,
                 help="Where the scheduler knows cached prompts from."),
    click.option("--classes", metavar="SPEC",
                 help="Classes of requests whose trace names none, drawn by weight, such as "
                      "premium=0.2,regular=0.8."),
    click.option("--format", "trace_format", metavar="FORMAT", callback=format_name,
                 help="Format of all traces.  [default: by content]"),
    click.option("--block-size", type=click.IntRange(1), metavar="N",
                 help="Tokens per KV block.  [default: as in the trace, 16 if it has no block hashes]"),
    click.option("--trace-block-size", type=click.IntRange(1), metavar="N",
                 help="Tokens that one of the trace's block hashes stands for.  [default: as the file says, else 512; "
                      "bailian 16]"),
    speedup_option,
    click.option("--concurrency", type=click.IntRange(1), metavar="N",
                 help="Closed loop: ignore the trace's times and keep N requests in flight."),
    click.option("--seed", type=int, default=0, show_default=True, metavar="S",
                 help="Seed of class draws, of the scheduler's tie-breaks, and of everything else that is drawn."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after the first N requests."),
    click.option("--skip-bad", is_flag=True, help="Skip and count rows that cannot be used, instead of stopping."),
)


def load_options(command: Command) -> Command:
    """Give a command the options that say what arrives and on what fleet."""
    for option in reversed(_LOAD):
        command = option(command)
    return command


@click.command("compare", short_help="Replay the same trace under several policies; show what differs.")
@click.argument("policies", nargs=-1, required=True, metavar="A.yaml B.yaml...")
@load_options
@click.option("--resamples", type=click.IntRange(10, 1_000_000), default=1_000, show_default=True, metavar="N",
              help="Draws of the bootstrap.")
@click.option("--confidence", type=click.IntRange(50, 99), default=95, show_default=True, metavar="PERCENT",
              help="What an interval holds of the resampled differences.")
@click.option("--json", "json_path", type=Destination(), metavar="OUT",
              help="Write all numbers and the configuration as JSON; - for standard output, in place of the table.")
@click.option("--report", type=Destination(), metavar="OUT",
              help="Write a page (HTML, one file) with the numbers, the differences and their intervals as pictures, "
                   "and how shares went over time. Runs each replay a second time. Needs the extra 'report'.")
@click.option("--quiet", "-q", is_flag=True, help="No table, no notes and no progress bar.")
def compare_command(**options: Any) -> None:
    """Replay the same requests, with the same seeds, under two or more policy files, and show how each differs from
    the first: per class what was completed, hits of the prefix cache and latencies, with bootstrap intervals over the
    requests; the shares that classes got while several waited; and how far service drifted from the quanta, beside the
    bound of deficit round robin.

    A policy with `arbitration: reference` shows what the router whose policy files kvcore reads would do, and where it
    loses shares. Equal policies differ by exactly 0. The same command gives the same bytes.

    \b
    Examples:
      kvcore compare a.yaml b.yaml --trace azure.csv --workers 4 \\
          --classes premium=0.2,regular=0.8 --speedup 2
      kvcore compare a.yaml b.yaml --trace t.jsonl.gz --json - | jq .differences
      kvcore compare exact.yaml reference.yaml --trace azure.csv \\
          --report shares.html
    """
    from .compare_run import Options, run

    run(Options(**options))
