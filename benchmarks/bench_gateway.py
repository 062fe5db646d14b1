"""`kvcore serve` in front of mock workers, over loopback: what a request costs, what it adds, what open streams hold.

    pytest benchmarks/bench_gateway.py --benchmark-only --size large

Gateway, two mock workers and the load are four processes. The engines take next to no time (a thousand times as fast as
the preset), so what is seen is HTTP. "time" is CPU of the gateway's process per request: it leaves out the clients and
the workers, which run on the same processors and cost about as much. "per s" is by the clock on the wall and is bounded
by all four together. "adds" is by the same clock, too: the quantile through the gateway less that of a direct
connection to one worker.

A request is an answer of one token (whole), or a stream of 16 with its usage (stream), to a prompt of 64 token ids.
Nothing waits: the queue has benchmarks of its own.
"""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
import trio
from harness import BaseLine, digest, shown, times
from kvcore.drivers.cli.children import Child, free_port, server
from kvcore.drivers.mock.load import TEXT, Job, Load, Outcome

TABLE = "Gateway: one request"
SHARED = "Gateway: open streams"
WORKERS = 2
PROMPT = 64
KINDS = {"whole": {"max_tokens": 1}, "stream": {"max_tokens": 16, "stream": True,
                                                "stream_options": {"include_usage": True}}}
REQUESTS = {"small": 64, "large": 2_000}
ROUNDS = {"small": 1, "large": 3}
#: Of one connection a tenth of the requests is enough: it is slow, and there is little to average over.
FEW = 10
STREAMS = {"small": 20, "large": 5_000}
#: An iteration is one token for every stream. With thousands it lasts seconds, for so many tokens at once are work.
SPEED = {"small": "1", "large": "0.002"}
#: How long streams are watched once all are open.
WATCH_S = {"small": 0.5, "large": 30.0}


class Fleet:
    """A gateway and its workers. spent_s: CPU of the gateway, the clock of these benchmarks."""

    def __init__(self, gateway: Child, workers: list[Child]) -> None:
        self.gateway, self.workers = gateway, workers

    def spent_s(self) -> float:
        return self.gateway.cpu_s


class Clock:
    """Tells the CPU time of whichever gateway there is."""

    fleet: Fleet | None = None

    def __call__(self) -> float:
        return 0.0 if self.fleet is None else self.fleet.spent_s()


CLOCK = Clock()
BASE = BaseLine()


def start(stack: ExitStack, folder, mock: list[str], workers: int, **options) -> Fleet:
    """Processes that end with the stack."""
    ports = [free_port() for _ in range(workers)]
    engines = [
        stack.enter_context(server(["mock-worker", "--port", str(port), *mock], port, wait=False)) for port in ports]
    for engine in engines:
        engine.wait()
    port, path = free_port(), folder / "gateway.yaml"
    path.write_text(json.dumps({
        "listen": {"port": port}, "admin": {"port": None}, "workers": [{"url": engine.url} for engine in engines],
        **options}), encoding="utf-8")
    gateway = stack.enter_context(server(["serve", "--config", str(path)], port, "/ready"))
    return Fleet(gateway, engines)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A gateway and two fast workers."""
    with ExitStack() as stack:
        mock = ["--speed", "1000", "--max-num-seqs", "1024", "--max-num-batched-tokens", "65536"]
        CLOCK.fleet = start(stack, tmp_path_factory.mktemp("gateway"), mock, WORKERS)
        yield CLOCK.fleet


def jobs(kind: str, count: int) -> list[Job]:
    """So many, with different prompts."""
    prompts = [[number, *range(1, PROMPT)] for number in range(count)]
    return [Job.of({"model": "mock", "prompt": prompt, **KINDS[kind]}, TEXT) for prompt in prompts]


def send(target: Child, work: list[Job], connections: int) -> tuple[list[Outcome], float]:
    """What came of all of them, and how long that took by the clock on the wall."""
    load = Load("127.0.0.1", int(target.url.rpartition(":")[2]))

    async def main() -> float:
        began_s = trio.current_time()
        with trio.fail_after(600):
            await load.some_at_a_time(work, connections)
        return trio.current_time() - began_s

    wall_s = trio.run(main)
    load.close()
    assert [outcome for outcome in load.outcomes if not outcome.is_good] == []
    return load.outcomes, wall_s


def quantiles_ms(outcomes: list[Outcome]) -> tuple[float, float]:
    """p50 and p99 of the time to the last byte."""
    waits = sorted(outcome.done_s - outcome.sent_s for outcome in outcomes)
    return waits[len(waits) // 2] * 1e3, waits[min(len(waits) - 1, len(waits) * 99 // 100)] * 1e3


def answers(outcomes: list[Outcome]) -> str:
    """What the engines say they have done, in any order of completion."""
    return digest(sorted((one.prompt_tokens, one.made_tokens, one.finish) for one in outcomes))


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("connections", [1, 16, 64, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_request(kind, connections, fleet, benchmark, report, size):
    count = REQUESTS[size] // (FEW if connections == 1 else 1)
    work = jobs(kind, count)
    runs = []
    send(fleet.gateway, work[:connections], connections)    # connections to the workers are there
    benchmark.pedantic(lambda: runs.append(send(fleet.gateway, work, connections)), rounds=ROUNDS[size])
    texts = {answers(outcomes) for outcomes, _ in runs}
    assert len(texts) == 1
    figure = report.note(benchmark, BASE.ns(), count, texts.pop())
    row = f"{kind}, {connections} connection{'s' * (connections > 1)}"
    report.add(TABLE, row, time=shown(figure), x=times(figure))
    if figure is not None:
        direct, _ = send(fleet.workers[0], work, connections)
        best = min(runs, key=lambda run: run[1])
        (p50, p99), (direct_p50, direct_p99) = quantiles_ms(best[0]), quantiles_ms(direct)
        report.add(
            TABLE, row, per_s=f"{count / best[1]:,.0f}", p50=f"{p50:.2f} ms", adds=f"{p50 - direct_p50:+.2f} ms",
            p99=f"{p99:.2f} ms", adds_p99=f"{p99 - direct_p99:+.2f} ms")
    report.add(TABLE, row, digest=benchmark.extra_info["digest"])


def test_open_streams(benchmark, report, size, tmp_path):
    """All are open at once, each gets a token now and then; the gateway's memory is looked at all the time."""
    count, watch_s = STREAMS[size], WATCH_S[size]
    with ExitStack() as stack:
        mock = ["--speed", SPEED[size], "--max-num-seqs", str(count), "--max-num-batched-tokens", "2000000",
                "--kv-blocks", "100000", "--answer-tokens", "0"]
        limits = {"connections": 2 * count, "queue": 2 * count}
        gateway = start(stack, tmp_path, mock, 1, limits=limits).gateway
        before = gateway.resident_bytes
        held: list[int] = []

        async def watch(load: Load) -> None:
            body = {"prompt": [1, 2, 3, 4], "max_tokens": 10_000, "stream": True}
            async with trio.open_nursery() as nursery:
                for _ in range(count):
                    nursery.start_soon(load.send, Job.of(body, TEXT))
                    await trio.sleep(0)
                while load.begun < count:
                    await trio.sleep(0.05)
                until_s = trio.current_time() + watch_s
                while trio.current_time() < until_s:
                    held.append(gateway.resident_bytes)
                    await trio.sleep(watch_s / 20)
                assert not load.outcomes      # nobody has been let down
                nursery.cancel_scope.cancel()

        load = Load("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        spent_s = gateway.cpu_s
        benchmark.pedantic(lambda: trio.run(watch, load), rounds=1)
        spent_s = gateway.cpu_s - spent_s
    text = digest(count)
    report.note(benchmark, BASE.ns(), count, text)
    # The first quarter of the watch may still fill pools; from there on nothing may grow.
    settled = held[len(held) // 4:]
    report.add(
        SHARED, f"{count:,} streams", before=f"{before / 1e6:.1f} MB", open=f"{settled[0] / 1e6:.1f} MB",
        end=f"{settled[-1] / 1e6:.1f} MB", per_stream=f"{(settled[0] - before) / count / 1e3:.1f} kB",
        growth=f"{(settled[-1] - settled[0]) / count / 1e3:+.2f} kB", CPU=f"{spent_s:.2f} s", digest=text)
