"""The premium experiment: two classes share one worker of four slots by their quanta, seen by real clients.

320 premium and 320 regular requests of 512 tokens are released at once, and the first 320 completions are counted. A
class that is served as its quantum says has 4 of 5 of them at 512:128 - and at 2048:512 and 4096:1024, too, where the
quantum is worth several requests: a router that ends a class's turn whenever slots free one at a time gets that wrong.

Everything is a process of its own, over loopback; the gateway is a fresh one in each run.
"""

from __future__ import annotations

import json
from itertools import count

import pytest
import trio
from kvcore.drivers.cli.children import free_port, server
from kvcore.drivers.mock.load import TEXT, Job, Load, Outcome

EACH = 320
PROMPT_TOKENS = 512
RUNS = 4
#: Four prompts of 512 tokens take the mock engine 30 ms; this makes it 5 ms, about what the gateway needs for them.
SPEED = 6
#: Tokens differ from the first on: nothing is cached, and every request is charged all of its prompt.
FIRST_TOKENS = count(10_000)


@pytest.fixture(scope="module")
def engine():
    """Its URL: a mock worker with four slots."""
    port = free_port()
    with server(["mock-worker", "--port", str(port), "--max-num-seqs", "4", "--speed", str(SPEED)], port) as worker:
        yield worker.url


def policy(premium: int, regular: int) -> str:
    """Both classes with these quanta."""
    classes = [
        {"name": name, "policy_family": name, "cache_bucket": "all", "queue_policy": "fcfs", "quantum": quantum}
        for name, quantum in (("premium", premium), ("regular", regular))]
    return json.dumps({
        "default_policy_family": "regular", "uncached_isl_buckets": [{"min_tokens": 0, "bucket": "all"}],
        "policy_classes": classes})


def one_run(folder, engine: str, premium: int, regular: int) -> list[Outcome]:
    """What came of all requests, in the order of their completion."""
    port = free_port()
    (folder / "policy.yaml").write_text(policy(premium, regular), encoding="utf-8")
    (folder / "gateway.yaml").write_text(json.dumps({
        "listen": {"port": port}, "admin": {"port": None}, "policy": str(folder / "policy.yaml"),
        "workers": [{"url": engine, "max_requests": 4}], "scheduler": {"capacity": "strict"},
    }), encoding="utf-8")
    jobs = [
        Job.of({"model": "mock", "prompt": [next(FIRST_TOKENS), *range(1, PROMPT_TOKENS)], "max_tokens": 1}, TEXT,
               ("premium", "regular")[number % 2])
        for number in range(2 * EACH)]
    with server(["serve", "--config", str(folder / "gateway.yaml")], port, "/ready"):
        load = Load("127.0.0.1", port)

        async def main() -> None:
            with trio.fail_after(120):
                await load.all_at_once(jobs)

        trio.run(main)
        load.close()
    return load.outcomes


@pytest.mark.parametrize(("premium", "regular", "least", "most"), [
    (512, 128, 250, 260), (512, 512, 155, 165), (2048, 512, 248, 264), (4096, 1024, 248, 264),
])
def test_each_class_gets_its_share(tmp_path, engine, premium, regular, least, most):
    counts = []
    for _ in range(RUNS):
        outcomes = one_run(tmp_path, engine, premium, regular)
        assert [outcome for outcome in outcomes if not outcome.is_good] == []
        assert {outcome.cached_tokens for outcome in outcomes} == {0}
        order = [outcome.job.policy_class for outcome in outcomes]
        counts.append(order[:EACH].count("premium"))
        # Regular traffic always progresses: there is some among any 20 completions in a row.
        assert all("regular" in order[start:start + 20] for start in range(EACH - 20))
    assert all(least <= count <= most for count in counts), counts
