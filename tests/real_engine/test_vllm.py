"""The gateway in front of real vLLM engines: tiny ones with random weights. Answers are nonsense, and nothing else is.

    KVCORE_VLLM_PYTHON=V/bin/python pytest tests/real_engine -s

How to make V stands in vllm_processes.py. Starting takes minutes, and each engine some 1.7 GB.
"""

from __future__ import annotations

import json
import random
from contextlib import ExitStack

import vllm_processes
from vllm_fleet import chat, connection, fields, text, until

#: Tokens of an answer that nobody waits for.
LONG = 3_000


def blocks(tokens: int) -> int:
    return tokens // vllm_processes.BLOCK_SIZE * vllm_processes.BLOCK_SIZE


def test_prefix_hits_are_seen_through_its_own_events(fleet):
    opening = text(1)
    first = fleet.ask(chat(opening, "what is the first question?"))
    assert first.headers["x-kvcore-prompt-tokens-source"] != "estimate"
    assert first.cached == 0
    until(lambda: fleet.tell("stats")["index_blocks"] >= blocks(first.prompt) // vllm_processes.BLOCK_SIZE)
    expected = []
    for number in range(4):
        said = fleet.ask(chat(opening, f"and question {number}?"))
        decision = fleet.tell("decisions?limit=1")["decisions"][-1]
        assert decision["request_id"].startswith(said.headers["x-kvcore-request-id"])
        chosen = next(one for one in decision["candidates"] if one["rank"] == decision["rank"])
        # What the gateway has counted on is what the engine has found.
        assert said.worker == first.worker
        assert chosen["cached_tokens"] == said.cached > 0
        expected.append(said.cached)
    print(f"\nprompt of {first.prompt} tokens, cached in the next four: {expected}")


def test_a_cancel_frees_the_slot(fleet):
    """As many streams as both engines have slots, all cut in the middle; then everything is free again."""
    count = vllm_processes.SLOTS * len(fleet.workers)
    made = fleet.metric("vllm:generation_tokens_total")
    with ExitStack() as stack:
        streams = []
        for number in range(count):
            server = stack.enter_context(connection(fleet.url))
            body = chat("a long story", f"number {number}", max_tokens=LONG, stream=True)
            server.request("POST", "/v1/chat/completions", json.dumps(body), fields({}))
            streams.append(server)
        for server in streams:
            assert server.getresponse().readline().startswith(b"data: ")
        until(lambda: fleet.metric("vllm:num_requests_running") == count)
        assert fleet.own_metric("kvcore_running_requests") == count
        assert {row["requests"] for row in fleet.tell("loads")["loads"]} == {vllm_processes.SLOTS}
        cut = fleet.metric("vllm:generation_tokens_total") - made
    until(lambda: fleet.tell("stats")["live_requests"] == 0)
    until(lambda: fleet.metric("vllm:num_requests_running") == 0)
    made = fleet.metric("vllm:generation_tokens_total") - made
    assert made - cut < (count * LONG - cut) / 2      # they were stopped, not waited for
    assert {row["active_blocks"] for row in fleet.tell("loads")["loads"]} == {0}
    assert fleet.ask(chat("short", "and now?")).body["usage"]["completion_tokens"] == 4
    print(f"\n{count} streams cut at {cut:.0f}, ended at {made:.0f} of {count * LONG} tokens, 0 running in both")


def test_the_metrics_agree_with_those_of_the_engines(fleet):
    before = {name: fleet.metric(name) for name in (
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_hits_total")}
    completed = fleet.own_metric("kvcore_completed_total")
    said = [fleet.ask(chat(text(2), f"question {number}")) for number in range(12)]
    prompt, cached = sum(one.prompt for one in said), sum(one.cached for one in said)
    made = sum(one.body["usage"]["completion_tokens"] for one in said)
    assert fleet.own_metric("kvcore_completed_total") == completed + 12
    until(lambda: fleet.metric("vllm:generation_tokens_total") == before["vllm:generation_tokens_total"] + made)
    after = {name: fleet.metric(name) for name in before}
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == prompt
    assert after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"] == cached
    print(f"\n12 requests: {prompt} prompt tokens, {cached} cached, {made} made; by the engines the same")


def test_routing_beats_round_robin_in_cached_tokens(fleet):
    """Eight openings, six requests each, in a random order, one after the other. The two halves share no text."""
    def order(first: int) -> list[dict]:
        found = [chat(text(first + opening), f"question {number}") for opening in range(8) for number in range(6)]
        random.Random(3).shuffle(found)
        return found

    in_turn = [fleet.ask(body, fleet.workers[number % 2]) for number, body in enumerate(order(100))]
    routed = [fleet.ask(body) for body in order(200)]
    shares = [sum(one.cached for one in said) / sum(one.prompt for one in said) for said in (in_turn, routed)]
    assert len({one.worker for one in routed}) == 2      # not all to one, which would have cached as much
    assert shares[1] > shares[0]
    print(f"\ncached: {shares[0]:.1%} round robin, {shares[1]:.1%} routed")
