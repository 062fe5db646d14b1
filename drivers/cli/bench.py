"""`kvcore bench`: what a policy costs, and whether it costs more than it did. What the command does: bench_run.py."""

from __future__ import annotations

import click

#: Exit status: a figure has grown.
EXIT_GROWN = 3


@click.command("bench", short_help="Measure what a policy costs, and hold it against a base line.")
@click.option("--policy", metavar="FILE", required=True, type=click.Path(), help="Policy file (YAML).")
@click.option("--model", metavar="NAME", help="Use the policy file's profile of this model.")
@click.option("--workers", type=click.IntRange(1, 4096), default=4, show_default=True, metavar="N",
              help="Workers in the fleet.")
@click.option("--requests", type=click.IntRange(1, 1_000_000), default=1_000, show_default=True, metavar="N",
              help="Requests of the load.")
@click.option("--in-flight", type=click.IntRange(1, 65_536), default=64, show_default=True, metavar="N",
              help="Requests per worker that wait or run at any time.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, metavar="S",
              help="Seed of the load and of the scheduler's tie-breaks.")
@click.option("--save", metavar="OUT", type=click.Path(dir_okay=False), help="Record the figures as base line in OUT.")
@click.option("--reason", metavar="TEXT", help="With --save: why the base line is what it is; it stands in OUT.")
@click.option("--compare", metavar="BASE", type=click.Path(dir_okay=False),
              help="Hold the figures against the base line in BASE.")
@click.option("--tolerance", type=click.FloatRange(0, 1000), default=3.0, show_default=True, metavar="PERCENT",
              help="How much a figure may grow.")
@click.pass_context
def bench_command(
    ctx: click.Context, policy: str, model: str | None, workers: int, requests: int, in_flight: int, seed: int,
    save: str | None, reason: str | None, compare: str | None, tolerance: float,
) -> None:
    """Run a synthetic load under the policy in FILE and print its figures; the smaller, the better.

    The load: prompts of 64 to 16,384 tokens, most of them with a shared prefix, spread evenly over the families and
    named classes of the policy, on modelled engines; the same for the same options. Figures: counters of the run, in
    model time; the CPU time of the core's steps as a ratio to a piece of plain Python in the same process; and its
    instructions, where valgrind is installed.

    A base line holds for one build of kvcore; one that BASE does not know is recorded there, with a note. The exit
    status is 0 if nothing has grown by more than the tolerance, 3 if something has, and 2 for errors.

    \b
    Examples:
      kvcore bench --policy premium.yaml --save premium.bench.json
      kvcore bench --policy premium.yaml --compare premium.bench.json
    """
    from ..bench.load import Load
    from .bench_run import Options, run

    if not run(Options(policy, model, Load(workers, requests, in_flight, seed), save, reason, compare, tolerance)):
        ctx.exit(EXIT_GROWN)
