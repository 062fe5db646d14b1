"""`kvcore mock-worker`: an engine that computes nothing, behind the server of one that does."""

from __future__ import annotations

import signal
from typing import Any

import click

from .extras import extra


@click.command("mock-worker", short_help="Serve a modelled engine over HTTP, as vLLM would.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8101, show_default=True, metavar="N",
              help="Where to listen; 0 takes a free port and prints it.")
@click.option("--engine", default="mock", show_default=True, metavar="PRESET",
              help="What the engine is: a preset of `kvcore replay`, see its help.")
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, metavar="X",
              help="Run X times as fast as the preset.")
@click.option("--model", default="mock", show_default=True, metavar="NAME", help="Name of the model it serves.")
@click.option("--max-num-seqs", type=click.IntRange(1), metavar="N", help="Slots.  [default: the preset's]")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="N",
              help="Tokens of an iteration.  [default: the preset's]")
@click.option("--kv-blocks", type=click.IntRange(1), metavar="N",
              help="Blocks of the KV cache.  [default: the preset's memory]")
@click.option("--block-size", type=click.IntRange(1), metavar="N", help="Tokens of a block.  [default: the preset's]")
@click.option("--max-model-len", type=click.IntRange(1), default=32_768, show_default=True, metavar="N",
              help="Tokens of a prompt and its answer.")
@click.option("--answer-tokens", type=click.IntRange(0), default=64, show_default=True, metavar="N",
              help="An answer ends by itself after N to N + 127 tokens, by its prompt; 0: only at its limit.")
@click.option("--kv-events", "events", metavar="ENDPOINT",
              help="Publish KV events here, such as tcp://127.0.0.1:5557.  [default: publish none]")
@click.option("--kv-replay", "replay", metavar="ENDPOINT", help="Answer requests for past KV events here.")
@click.option("--kv-connect", "connect_events", is_flag=True,
              help="Connect to --kv-events instead of binding it, as vLLM does where it holds no wildcard.")
@click.option("--wide-hashes", is_flag=True, help="Block hashes of 32 bytes instead of whole numbers.")
def mock_worker_command(**options: Any) -> None:
    """Serve the OpenAI API of a vLLM-like worker whose engine computes nothing: it takes as long, queues, batches,
    caches prefixes and evicts as the engine of `kvcore replay` does, in real time. Needs the extra kvcore[gateway].

    It answers /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /health and /metrics, and publishes
    KV events as vLLM does. A token is four bytes of text. A request with the header `x-mock-fault: stall`, `cut`,
    `garbage`, `status=503`, ... fails in that way; POST /mock/faults {"fault": "cut;after=3", "times": 2} does that
    to the next ones. Ctrl-C or SIGTERM ends it.

    \b
    Examples:
      kvcore mock-worker --port 8101 --max-num-seqs 4
      kvcore mock-worker --port 8102 --engine llama-8b-h100 \\
          --kv-events tcp://127.0.0.1:5557 --kv-replay tcp://127.0.0.1:5558
    """
    with extra("gateway", "kvcore mock-worker"):
        import trio
        import zmq

        from ..mock.server import MockConfig, serve_mock

    async def main() -> int:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                worker = await nursery.start(serve_mock, config)
                spec = worker.engine.model.spec
                click.echo(f"kvcore mock-worker: {worker.url} serves {config.model!r} ({spec.name}, "
                           f"{spec.max_num_seqs} slots, {spec.kv_blocks} blocks of {spec.block_size})")
                async for number in signals:
                    nursery.cancel_scope.cancel()
                    return number
        return 0

    config = MockConfig(**options | {"answer_tokens": options["answer_tokens"] or None})
    try:
        config.spec()
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    try:
        ended_by = trio.run(main)
    except* (OSError, zmq.ZMQError) as group:
        raise click.ClickException(_first(group)) from group
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


def _first(group: BaseException) -> str:
    """What the first exception of a group says."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    if isinstance(group, OSError) and group.filename:
        return f"{group.filename}: {group.strerror}"
    return str(group)
