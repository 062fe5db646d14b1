"""`kvcore demo`: two mock workers, a gateway and a small load, in one command; ends with a table and no process."""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .extras import extra

if TYPE_CHECKING:
    from rich.table import Table

    from ..mock.load import Job, Outcome

_PIPED_WIDTH = 100  # so that nothing is folded
QUANTA = {"premium": 512, "regular": 128}
SLOTS = 4
WORKERS = 2
BLOCK_SIZE = 16
#: Conversations share so many openings, of so many words each: what prefix caches are for.
OPENINGS, OPENING_WORDS = 8, 120
ANSWER_TOKENS = 24

_POLICY = """\
default_policy_family: regular
uncached_isl_buckets:
  - min_tokens: 0
    bucket: all
policy_classes:
""" + "".join(f"""\
  - name: {name}
    policy_family: {name}
    cache_bucket: all
    queue_policy: fcfs
    quantum: {quantum}
""" for name, quantum in QUANTA.items())


@dataclass(frozen=True)
class Servers:
    """What the demo has started. commands: how to start the same by hand."""

    url: str
    commands: list[str]


@click.command("demo", short_help="Start two mock workers and a gateway, send a small load, print a table.")
@click.option("--requests", type=click.IntRange(2, 2_000), default=200, show_default=True, metavar="N",
              help="Requests to send, half of each class.")
@click.option("--engine", default="mock", show_default=True, metavar="PRESET", help="What the workers are.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, metavar="N", help="Port of the gateway.  [default: "
              "a free one]")
@click.option("--keep", is_flag=True, help="Go on serving after the table, until Ctrl-C.")
def demo_command(requests: int, engine: str, port: int, keep: bool) -> None:
    """Start two mock workers with four slots each and a gateway in front of them, send premium and regular requests
    all at once, and print what each class got. Needs the extra kvcore[gateway], and nothing else: no GPU, no model.

    Premium has four times the quantum of regular, so it gets four of five places while both wait; and requests go to
    the worker that has their opening cached. Everything ends with the command, also on Ctrl-C.

    \b
    Examples:
      kvcore demo
      kvcore demo --requests 1000 --engine llama-8b-h100
      kvcore demo --port 8000 --keep
    """
    with extra("gateway", "kvcore demo"):
        import trio

        from ..mock.load import Load
        from ..replay.presets import PRESETS
        from .children import ChildFailed, free_port
    if engine not in PRESETS:
        raise click.ClickException(f"no engine preset is called {engine!r}: there are {', '.join(PRESETS)}")
    try:
        with _servers(engine, port or free_port()) as servers:
            for command in servers.commands:
                click.echo(f"$ {command}")
            click.echo(f"\n{requests} requests to {servers.url}, all at once ...\n")
            load = Load("127.0.0.1", int(servers.url.rpartition(":")[2]))
            try:
                outcomes = trio.run(
                    load.all_at_once, jobs(requests), restrict_keyboard_interrupt_to_checkpoints=True)
            except BaseExceptionGroup as group:
                if group.subgroup(KeyboardInterrupt) is None:
                    raise
                raise KeyboardInterrupt from None
            load.close()
            _print(outcomes)
            if keep:
                click.echo(f"\nTry: curl {servers.url}/v1/chat/completions -H 'content-type: application/json' "
                           """-d '{"model": "mock", "messages": [{"role": "user", "content": "hi"}]}'""")
                click.echo("Ctrl-C ends it.")
                trio.run(trio.sleep_forever)
    except ChildFailed as error:
        raise click.ClickException(str(error)) from error
    if not all(outcome.is_good for outcome in outcomes):
        raise click.ClickException("some requests were not answered")


@contextmanager
def _servers(engine: str, port: int) -> Iterator[Servers]:
    from .children import free_port, server

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvcore-demo-")))
        policy = folder / "policy.yaml"
        policy.write_text(_POLICY, encoding="utf-8")
        commands, engines, workers = [], [], []
        for _ in range(WORKERS):
            http, events, replay = free_port(), free_port(), free_port()
            ends = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
            arguments = ["mock-worker", "--port", str(http), "--engine", engine, "--max-num-seqs", str(SLOTS),
                         "--block-size", str(BLOCK_SIZE), "--kv-events", ends[0], "--kv-replay", ends[1]]
            engines.append(stack.enter_context(server(arguments, http, wait=False)))
            known = f"max-requests={SLOTS},kv-events={ends[0]},kv-replay={ends[1]}"
            workers += ["--worker", f"http://127.0.0.1:{http},{known}"]
            commands.append(shlex.join(["kvcore", *arguments]))
        arguments = ["serve", "--port", str(port), "--admin-port", "none", "--policy", str(policy),
                     "--scheduler-capacity", "strict", "--scheduler-block-size", str(BLOCK_SIZE), *workers]
        for child in engines:
            child.wait()
        gateway = stack.enter_context(server(arguments, port, "/ready"))
        yield Servers(gateway.url, [*commands, shlex.join(["kvcore", *arguments])])


def jobs(count: int) -> list[Job]:
    """Chats whose openings are shared, classes in turn."""
    from ..mock.load import Job

    names = list(QUANTA)
    found = []
    for number in range(count):
        opening = number // len(names) % OPENINGS
        text = " ".join(f"rule{opening}.{word}" for word in range(OPENING_WORDS))
        found.append(Job.of({
            "model": "mock", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": ANSWER_TOKENS,
            "messages": [{"role": "system", "content": text}, {"role": "user", "content": f"question {number}"}],
        }, policy_class=names[number % len(names)]))
    return found


def _print(outcomes: Sequence[Outcome]) -> None:
    from rich.console import Console

    from ..replay.text import print_table

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    print_table(console, _classes(outcomes))
    console.print()
    print_table(console, _workers(outcomes))
    share = QUANTA["premium"] / sum(QUANTA.values())
    half = outcomes[:len(outcomes) // 2]
    premium = sum(outcome.job.policy_class == "premium" for outcome in half)
    console.print(f"\nPremium has {premium} of the first {len(half)} answers, {premium / len(half):.0%}; by its "
                  f"quantum it is due {share:.0%} while both classes wait.", soft_wrap=True)


def _classes(outcomes: Sequence[Outcome]) -> Table:
    table = _table("class", "quantum", "answered", "first half", "queue p50", "p95", "TTFT p50", "p95")
    half = outcomes[:len(outcomes) // 2]
    for name, quantum in QUANTA.items():
        own = [outcome for outcome in outcomes if outcome.job.policy_class == name]
        good = [outcome for outcome in own if outcome.is_good]
        waits = [outcome.queue_ms for outcome in good]
        firsts = [(outcome.first_s - outcome.sent_s) * 1e3 for outcome in good]
        table.add_row(
            name, str(quantum), f"{len(good)} of {len(own)}",
            str(sum(outcome.job.policy_class == name for outcome in half)),
            _quantile(waits, 0.5), _quantile(waits, 0.95), _quantile(firsts, 0.5), _quantile(firsts, 0.95))
    return table


def _workers(outcomes: Sequence[Outcome]) -> Table:
    table = _table("worker", "answered", "prompt tokens", "cached", "share")
    for name in sorted({outcome.worker for outcome in outcomes if outcome.is_good}):
        own = [outcome for outcome in outcomes if outcome.worker == name and outcome.is_good]
        prompt, cached = sum(one.prompt_tokens for one in own), sum(one.cached_tokens for one in own)
        table.add_row(name, str(len(own)), f"{prompt:,}", f"{cached:,}", f"{cached / max(1, prompt):.0%}")
    return table


def _table(first: str, *columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _quantile(values: Sequence[float], share: float) -> str:
    """Of times in milliseconds; a dash where there is nothing."""
    if not values:
        return "-"
    return f"{sorted(values)[math.ceil(share * len(values)) - 1] / 1e3:.2f} s"
