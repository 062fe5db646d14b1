"""`kvcore replay`: its options and their help. What it does with them stands in replay_run.py."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..replay.presets import EngineSpec

WORKERS_MAX = 65_536

#: What `--help` says of each format; the reader knows which there are.
_FORMATS = {
    "mooncake": "JSON lines with timestamp (ms), input_length, output_length, hash_ids; session_id, delay (ms), "
                "request_id, wait_for, class and priorities optional",
    "azure": "CSV with TIMESTAMP, ContextTokens, GeneratedTokens",
    "burstgpt": "CSV with Timestamp (s), Request tokens, Response tokens",
    "vidur": "CSV with arrived_at (s), num_prefill_tokens, num_decode_tokens (also called splitwise)",
    "bailian": "JSON lines with timestamp (s), input_length, output_length, hash_ids, chat_id, parent_chat_id (Qwen)",
    "dynamo": "JSON lines of Dynamo's request traces v1, with the sessions of agents",
    "weka": "JSON of one agent's session with its sub-agents: t (s), in, out, hash_ids, api_time",
    "otel": "JSON of OpenTelemetry GenAI spans; tokens that spans do not count are estimated, one for four bytes",
    "llmservingsim": "JSON lines with input_toks, output_toks, arrival_time_ns, or sub_requests with tool_duration_ns",
}


class _ReplayCommand(click.Command):
    """Its help ends with the engines and formats there are: looked up only when help is asked for."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both lists."""
        from ..replay.presets import PRESETS
        from ..replay.traces import FORMATS

        with formatter.section("Engines"):
            formatter.write_dl([(name, _capacity(spec)) for name, spec in PRESETS.items()])
        with formatter.section("Trace formats"):
            formatter.write_dl([(name, _FORMATS.get(name, "")) for name in FORMATS])


def _capacity(spec: EngineSpec) -> str:
    iteration_ms, prefill_us = spec.base_ps / 1e9, spec.prefill_token_ps / 1e6
    return (
        f"{iteration_ms:.3g} ms an iteration and {prefill_us:.3g} us a prompt token; at most "
        f"{spec.max_num_batched_tokens:,} tokens an iteration, {spec.max_num_seqs:,} sequences, "
        f"{spec.kv_tokens:,} cached tokens"
    )


def _speedup(ctx: click.Context, param: click.Parameter, value: str | None) -> Fraction | None:
    """The number exactly as written."""
    from ..replay.classes import exact

    if value is None:
        return None
    number = exact(value)
    if not number:
        raise click.BadParameter(f"{value!r} is not a plain decimal number above 0, such as 2 or 0.25")
    return number


def read_places(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Names of files to read, - being standard input."""
    return tuple("/dev/stdin" if path == "-" else path for path in value)


def format_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The name that the reader has for a format."""
    return "vidur" if value == "splitwise" else value


class Destination(click.Path):
    """Where something is written, - being standard output, whatever it is called."""

    _CALLED = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")

    def __init__(self) -> None:
        super().__init__(allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name."""
        return "-" if value in self._CALLED else super().convert(value, param, ctx)


#: Shared by all commands that replay.
speedup_option = click.option(
    "--speedup", metavar="X", callback=_speedup,
    help="Requests arrive X times as fast as in the trace; a decimal number.  [default: 1]")


@click.command("replay", cls=_ReplayCommand, short_help="Replay traces through the scheduler and modelled engines.")
@click.argument("traces", nargs=-1, required=True, metavar="TRACE...", callback=read_places)
@click.option("--workers", type=click.IntRange(1, WORKERS_MAX), default=1, show_default=True, metavar="N",
              help="Workers in the fleet.")
@click.option("--engine", metavar="PRESET", default="generic", show_default=True,
              help="What each worker is, see below.")
@click.option("--policy", type=click.Path(), metavar="FILE",
              help="Policy file (YAML) with classes, quanta, thresholds and limits. Without one all requests are of "
                   "one class, ordered by --queue-policy.")
@click.option("--model", metavar="NAME", help="Use the policy file's profile of this model.")
@click.option("--queue-policy", type=click.Choice(["fcfs", "lcfs", "wspt", "edf"]),
              help="Order of waiting requests when there is no policy file.  [default: fcfs]")
@click.option("--queue-threshold", type=float, metavar="F",
              help="Without a policy file: a request waits while every worker has more prefill tokens under way than "
                   "F times its max_num_batched_tokens.  [default: none ever waits]")
@click.option("--capacity", type=click.Choice(["advisory", "strict"]),
              help="strict: a worker never gets more than its KV cache and its sequences allow; what does not fit "
                   "waits.  [default: as in the policy file, else advisory]")
@click.option("--tell-output", is_flag=True,
              help="Tell the scheduler how long each answer will be; strict capacity keeps room for it.")
@click.option("--selection", metavar="SPEC",
              help="Weights of worker selection, such as overlap_score_credit=0.5,temperature=0.7.")
@click.option("--index", type=click.Choice(["events", "approximate", "off"]), default="events", show_default=True,
              help="Where the scheduler knows cached prompts from: the engines' events, its own dispatches, nowhere.")
@click.option("--classes", metavar="SPEC",
              help="Classes of requests whose trace names none, drawn by weight, such as premium=0.2,regular=0.8. "
                   "Needs --policy.")
@click.option("--format", "trace_format", metavar="FORMAT", callback=format_name,
              help="Format of all traces, see below.  [default: by content]")
@click.option("--block-size", type=click.IntRange(1), metavar="N",
              help="Tokens per KV block.  [default: as in the trace, 16 if it has no block hashes]")
@click.option("--trace-block-size", type=click.IntRange(1), metavar="N",
              help="Tokens that one of the trace's block hashes stands for.  [default: as the file says, else 512; "
                   "bailian 16]")
@speedup_option
@click.option("--concurrency", type=click.IntRange(1), metavar="N",
              help="Ignore the trace's times and keep N requests in flight, whatever their sessions.")
@click.option("--closed-loop", is_flag=True,
              help="Sessions wait for their answers: a turn arrives its recorded pause (delay, think or tool time) "
                   "after the answer that it continues and the sub-agents that it waited for are complete here. Only "
                   "requests that wait for none arrive at the trace's times. Turns that continue a rejected or evicted "
                   "request never arrive: they are counted as abandoned. --speedup shortens pauses, too.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S",
              help="Seed of class draws and of the scheduler's tie-breaks.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after the first N requests.")
@click.option("--skip-bad", is_flag=True, help="Skip and count rows that cannot be used, instead of stopping.")
@click.option("--json", "json_path", type=Destination(), metavar="OUT",
              help="Write all numbers and the run's configuration as JSON.")
@click.option("--csv", "csv_path", type=Destination(), metavar="OUT",
              help="Write one line per request as CSV.")
@click.option("--journal", type=click.Path(), metavar="OUT",
              help="Write every event and action as a journal, for `kvcore journal`; gzipped if OUT ends in .gz.")
@click.option("--report", type=Destination(), metavar="OUT",
              help="Write a page (HTML, one file) with the numbers, pictures over time and what became of the slowest "
                   "requests. Runs the replay a second time. Needs the extra 'report'.")
@click.option("--figures", type=click.Path(), metavar="DIR",
              help="Write the pictures as SVG and PNG, and what they show as CSV, into this folder.")
@click.option("--quiet", "-q", is_flag=True, help="No table, no notes and no progress bar.")
def replay_command(**options: Any) -> None:
    """Replay the requests of TRACE files in virtual time through the scheduler and modelled inference engines, and
    report per policy class how long they waited, what share they got and how much of their prompts was cached.

    Traces may be gzipped; several are merged by time; - is standard input. OUT may be - for standard output, in place
    of the table. In JSON and CSV times are nanoseconds (*_ns) and lengths are tokens. The same command and seed give
    the same bytes, except under the JSON key "run".

    \b
    Examples:
      kvcore replay mooncake.jsonl.gz --workers 16
      kvcore replay azure.csv --workers 4 --policy premium.yaml \\
          --classes premium=0.2,regular=0.8
      kvcore replay azure.csv --queue-policy wspt --queue-threshold 0.5 \\
          --speedup 2.5
      kvcore replay burstgpt.csv --concurrency 64 --json - | jq .requests
      kvcore replay agents.jsonl.gz --workers 4 --closed-loop --csv turns.csv
      kvcore replay azure.csv --report azure.html --figures azure-figures
    """
    from .replay_run import Options, run

    run(Options(**options))
