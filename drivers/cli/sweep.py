"""`kvcore sweep`: its options and their help. What it does with them stands in sweep_run.py."""

from __future__ import annotations

from typing import Any

import click

from .compare import load_options
from .replay import Destination


@click.command("sweep", short_help="Search a space of policies and fleets for the best one.")
@click.argument("space", metavar="SPACE.yaml")
@load_options
@click.option("--objective", metavar="TEXT", help="What to look for, in place of what SPACE.yaml says.")
@click.option("--results", metavar="FILE", type=click.Path(dir_okay=False),
              help="Keep what is known in FILE (JSON lines); a sweep that was interrupted goes on from there.")
@click.option("--backend", type=click.Choice(["processes", "loky", "dask", "ray"]), default="processes",
              show_default=True,
              help="Where points are tried: in processes of this machine (loky: those of joblib), or on a cluster.")
@click.option("--jobs", type=click.IntRange(1, 4096), metavar="N", help="Processes.  [default: one per core]")
@click.option("--address", metavar="URL",
              help="Where the cluster is: dask's scheduler, such as tcp://10.0.0.1:8786, or ray's head, such as "
                   "10.0.0.1:6379.")
@click.option("--best", metavar="OUT", type=click.Path(), help="Write the best policy as a policy file (YAML).")
@click.option("--csv", "csv_path", type=Destination(), metavar="OUT",
              help="Write one line per point as CSV; - for standard output, in place of the table.")
@click.option("--json", "json_path", type=Destination(), metavar="OUT",
              help="Write all points, the ranking, the best policy and the configuration as JSON.")
@click.option("--plot", metavar="OUT", type=click.Path(dir_okay=False),
              help="Draw the Pareto front of the first two goals: .svg, .png or .pdf.")
@click.option("--quiet", "-q", is_flag=True, help="No table, no notes and no progress bar.")
def sweep_command(**options: Any) -> None:
    """Replay a trace under every point of a space (a grid, or seeded random points) and rank the points by an
    objective, such as `minimise premium.ttft_p99, maximise regular.completed subject to regular.ttft_p99 <= 2 s`.

    SPACE.yaml names a policy file, and values for keys of its classes, of the policy, of the fleet and of worker
    selection; the module kvcore.drivers.study.space describes it. Figures are CLASS.NAME, with `all` for all requests:
    completed, prefix_hit, share, and queue_wait, ttft, itl or e2e with _mean, _p50, _p90 or _p99. A key of the space
    that is a number counts as a figure too.

    A point that fails is reported and ends nothing. The same command gives the same table, whatever the back end and
    the number of processes.

    \b
    Examples:
      kvcore sweep space.yaml --trace azure.csv \\
          --classes premium=0.2,regular=0.8 \\
          --results sweep.jsonl --best best.yaml --plot front.svg
      kvcore sweep space.yaml --trace azure.csv --backend dask \\
          --address tcp://10.0.0.1:8786
      kvcore sweep space.yaml --trace azure.csv --json - | jq .best.policy
    """
    from .sweep_run import Options, run

    run(Options(**options))
