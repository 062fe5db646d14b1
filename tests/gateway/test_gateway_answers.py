"""What clients are told over the wire: hints in effect, queue time and class on every answer, each refusal's status."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
import trio
from gateway_world import DONE, EVENTS, JSON, PROMPT, chunk, plain, story, world
from kvcore.drivers.gateway.config import HintCaps
from kvcore.drivers.gateway.upstreams import UpstreamSpec

POLICY = """\
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: premium, policy_family: premium, cache_bucket: all, quantum: 512, prefill_busy_threshold: 0}
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128, prefill_busy_threshold: 0,
     request_queue_limit_per_worker: 2}
"""
PREMIUM = (b"x-kvcore-policy-class", b"premium")
NO_RETRY = b"x-should-retry"


class Gate:
    """A script that answers when it is told to. asked: how many wait for it."""

    def __init__(self) -> None:
        self.asked, self._open = 0, trio.Event()

    async def __call__(self, request, body) -> None:
        self.asked += 1
        await self._open.wait()
        await request.respond(200, JSON, plain())

    def open(self) -> None:
        self._open.set()


@asynccontextmanager
async def busy(tmp_path, **settings):
    """A gateway with the policy, whose one worker is busy until the gate opens."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    gate = Gate()
    async with world(policy=str(tmp_path / "policy.yaml"), **settings) as w, trio.open_nursery() as nursery:
        w.engines[0].scripts.append(gate)
        nursery.start_soon(w.post, PROMPT)
        await w.until(lambda: gate.asked)
        try:
            yield w, nursery
        finally:
            gate.open()
        await w.until(lambda: w.gateway.app.inside == 0)
        await w.settled()


def error_of(answer) -> dict:
    return json.loads(answer[2])["error"]


@story
async def test_hints_in_effect_are_echoed_and_capped(tmp_path):
    (tmp_path / "policy.yaml").write_text(POLICY)
    caps = {"premium": HintCaps(priority_max=5.0, strict_priority_max=1)}
    async with world(policy=str(tmp_path / "policy.yaml"), hints__classes=caps) as w:
        asked = [PREMIUM, (b"x-dynamo-request-priority", b"900"), (b"x-dynamo-request-strict-priority", b"9")]
        status, headers, _ = await w.post(PROMPT, headers=asked)
        assert status == 200
        assert headers[b"x-kvcore-policy-class"] == b"premium"
        assert (headers[b"x-kvcore-priority"], headers[b"x-kvcore-strict-priority"]) == (b"5", b"1")
        assert headers[b"x-kvcore-prompt-tokens-source"] == b"exact"  # token ids
        _, headers, _ = await w.post(PROMPT | {"prompt": "text"})
        assert headers[b"x-kvcore-policy-class"] == b"regular"
        assert headers[b"x-kvcore-prompt-tokens-source"] == b"estimate"
        await w.settled()


@story
async def test_a_stream_says_the_same_before_its_first_byte(tmp_path):
    (tmp_path / "policy.yaml").write_text(POLICY)
    async with world(policy=str(tmp_path / "policy.yaml")) as w:
        status, headers, body = await w.post(
            PROMPT | {"stream": True}, headers=[PREMIUM, (b"x-request-id", b"mine")])
        assert status == 200
        assert body.endswith(DONE)
        assert (headers[b"x-kvcore-policy-class"], headers[b"x-request-id"]) == (b"premium", b"mine")
        assert headers[b"x-kvcore-queue-ms"] == headers[b"x-llm-d-flow-queue-duration-ms"] == b"0"
        await w.settled()


@story
async def test_who_waited_is_told_how_long(tmp_path):
    async with busy(tmp_path) as (w, nursery):
        answers = []

        async def client():
            answers.append(await w.post(PROMPT, headers=[PREMIUM]))

        nursery.start_soon(client)
        await trio.sleep(0.3)
        assert answers == []
        w.engines[0].scripts.append(_usual)
        nursery.start_soon(_release, w)
        await w.until(lambda: answers)
        status, headers, _ = answers[0]
        assert status == 200
        assert 250 <= int(headers[b"x-kvcore-queue-ms"]) < 20_000


async def _usual(request, body) -> None:
    await request.respond(200, JSON, plain())


async def _release(w) -> None:
    """Room on another worker."""
    engine = type(w.engines[0])()
    await w.nursery.start(engine.run)
    w.engines.append(engine)
    await w.gateway.fleet.add(UpstreamSpec(engine.url))


@story
async def test_a_full_queue_is_429_with_the_class_and_a_time_to_come_again(tmp_path):
    async with busy(tmp_path) as (w, nursery):
        for _ in range(2):
            nursery.start_soon(w.post, PROMPT)

        async def are_two():
            return (await w.gateway.router.stats()).waiting_requests == 2

        await w.until(are_two)
        status, headers, body = answer = await w.post(PROMPT)
        assert (status, error_of(answer)["code"], error_of(answer)["type"]) == (
            429, "queue_full_requests", "rate_limit_error")
        assert "(2 of 2)" in json.loads(body)["error"]["message"]
        assert int(headers[b"retry-after"]) >= 1
        assert int(headers[b"retry-after-ms"]) >= 1000
        assert NO_RETRY not in headers
        assert headers[b"x-kvcore-policy-class"] == b"regular"  # though no class was asked for
        assert b"x-kvcore-queue-ms" in headers
        assert headers[b"x-llm-d-request-dropped-reason"] == b"rejected-saturated"


@pytest.mark.parametrize(("hint", "status", "code"), [
    ((b"x-kvcore-do-not-queue", b"true"), 429, "would_queue"),
    ((b"x-kvcore-max-wait-ms", b"0"), 429, "would_queue"),
    ((b"x-kvcore-max-wait-ms", b"100"), 504, "deadline_expired"),
    ((b"x-llm-d-inference-ttl", b"0.1s"), 504, "deadline_expired"),
])
@story
async def test_who_may_not_wait_is_told_so(tmp_path, hint, status, code):
    async with busy(tmp_path) as (w, _):
        answer = await w.post(PROMPT, headers=[PREMIUM, hint])
        assert (answer[0], error_of(answer)["code"]) == (status, code)
        assert (b"retry-after" in answer[1], NO_RETRY in answer[1]) == (status == 429, status == 504)
        assert answer[1][b"x-kvcore-policy-class"] == b"premium"
        if status == 504:
            assert int(answer[1][b"x-kvcore-queue-ms"]) >= 100


@story
async def test_529_where_it_is_asked_for(tmp_path):
    async with busy(tmp_path, overload_status=529) as (w, _):
        answer = await w.post(PROMPT, headers=[(b"x-kvcore-do-not-queue", b"true")])
        assert (answer[0], error_of(answer)["code"]) == (529, "would_queue")


@pytest.mark.parametrize(("body", "headers", "status", "code", "param"), [
    (b"{", [], 400, "invalid_request", None),
    (b'{"model":"m"}', [], 400, "invalid_request", "prompt"),
    (b'{"model":3,"prompt":"x"}', [], 400, "invalid_request", "model"),
    (b'{"model":"nope","prompt":"x"}', [], 404, "model_not_found", "model"),
    (json.dumps(PROMPT).encode(), [(b"x-kvcore-priority", b"high")], 400, "invalid_request", "x-kvcore-priority"),
    (json.dumps(PROMPT).encode(), [(b"x-kvcore-worker-id", b"77")], 503, "no_eligible_worker", None),
])
@story
async def test_what_is_wrong_with_a_request_is_named(body, headers, status, code, param):
    async with world() as w:
        answer = await w.post(body, headers=headers)
        error = error_of(answer)
        assert (answer[0], error["code"], error["param"]) == (status, code, param)
        assert answer[1][b"x-kvcore-queue-ms"] == b"0"
        assert answer[1][b"x-request-id"] == answer[1][b"x-kvcore-request-id"]
        assert (NO_RETRY in answer[1]) == (status != 503)
        await w.settled()


@story
async def test_without_a_worker_it_is_503_and_when_to_look_again():
    async with world() as w:
        await w.gateway.fleet.remove(0)
        answer = await w.post(PROMPT)
        assert (answer[0], error_of(answer)["code"]) == (503, "no_workers")
        assert int(answer[1][b"retry-after"]) >= 1
        assert answer[1][b"x-llm-d-request-dropped-reason"] == b"rejected-no-endpoints"


@story
async def test_a_new_policy_is_in_force_for_the_next_request(tmp_path):
    async with busy(tmp_path) as (w, _):
        text = POLICY.replace("premium", "gold").replace("threshold: 0", "threshold: 99")
        (tmp_path / "policy.yaml").write_text(text)
        diff = await w.gateway.desk.reload(w.gateway.router)
        assert diff
        _, headers, _ = await w.post(PROMPT, headers=[(b"x-kvcore-policy-class", b"gold")])
        assert headers[b"x-kvcore-policy-class"] == b"gold"
        _, headers, _ = await w.post(PROMPT, headers=[PREMIUM])
        assert headers[b"x-kvcore-policy-class"] == b"regular"


@story
async def test_estimates_learn_from_what_workers_count():
    async with world() as w:
        async def dense(request, body):
            await request.respond(200, JSON, plain().replace(b'"prompt_tokens": 4', b'"prompt_tokens": 4000'))

        first = w.gateway.app._meter._tokens_of(4000)
        for _ in range(20):
            w.engines[0].scripts.append(dense)
            await w.post(PROMPT | {"prompt": "x" * 4000})
        assert first == 1000
        assert w.gateway.app._meter._tokens_of(4000) > 3000
        await w.settled()


@story
async def test_a_session_and_an_expected_length_reach_the_scheduler():
    async with world() as w:
        seen = []

        async def look(request, body):
            seen.append(await w.gateway.router.read(lambda core: [item.request_id for item in core.decisions()]))
            async with request.stream(200, EVENTS) as send:
                await send(chunk(finish="stop"))
                await send(DONE)

        w.engines[0].scripts.append(look)
        _, headers, _ = await w.post(PROMPT | {"stream": True}, headers=[(b"x-session-id", b"s1")])
        assert seen == [[headers[b"x-kvcore-request-id"].decode()]]
        await w.settled()
