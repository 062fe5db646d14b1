"""Figures of completions: which bucket, whose class, and a bound on labels; and what a scrape of a gateway shows."""

from __future__ import annotations

import json
import re

from gateway_world import DONE, EVENTS, JSON, PROMPT, chunk, story, world
from kvcore.drivers.gateway.figures import BOUNDS_S, CLASSES_MAX, OTHER, Figures
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tree import ROOT

MS = 10**6


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    return {
        (sample.name, *[value for _, value in sorted(sample.labels.items())]): sample.value
        for family in text_string_to_metric_families(text) for sample in family.samples}


def scraped(figures: Figures) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(figures)
    return samples(generate_latest(registry).decode())


def test_a_time_falls_into_its_bucket_and_into_all_above():
    figures = Figures()
    figures.answered("premium", 5 * MS, 26 * MS)
    figures.answered("premium", None, 700_000 * MS)
    found = scraped(figures)
    first, end = "kvcore_gateway_first_token_seconds", "kvcore_gateway_request_seconds"
    assert [found[f"{first}_bucket", str(bound), "premium"] for bound in BOUNDS_S[:3]] == [0, 1, 1]
    assert (found[f"{first}_count", "premium"], found[f"{first}_sum", "premium"]) == (1, 0.005)
    assert [found[f"{end}_bucket", bound, "premium"] for bound in ("0.025", "0.05", "600.0", "+Inf")] == [0, 1, 1, 2]
    assert found[f"{end}_sum", "premium"] == 700.026


def test_tokens_are_summed_by_class():
    figures = Figures()
    figures.used("a", 100, 60, 50, 7)
    figures.used("a", 10, 0, 0, 1)
    figures.used(None, 1, 1, 1, 1)
    found = scraped(figures)
    assert [found[f"kvcore_gateway_{kind}_tokens_total", "a"] for kind in (
        "prompt", "expected_cached", "cached", "output")] == [110, 60, 50, 8]
    assert found["kvcore_gateway_prompt_tokens_total", OTHER] == 1


def test_ten_thousand_classes_make_no_ten_thousand_series():
    figures = Figures()
    for number in range(10_000):
        figures.answered(f"class-{number}", 1, 1)
    names = {key[-1] for key in scraped(figures) if key[0] == "kvcore_gateway_request_seconds_count"}
    assert len(names) == CLASSES_MAX + 1
    assert scraped(figures)["kvcore_gateway_request_seconds_count", OTHER] == 10_000 - CLASSES_MAX


@story
async def test_a_scrape_agrees_with_what_the_worker_has_said():
    async with world() as w:
        async def stream(request, body):
            usage = {"prompt_tokens": 40, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 32}}
            async with request.stream(200, EVENTS) as send:
                await send(chunk())
                await send(chunk(finish="stop"))
                await send(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
                await send(DONE)

        async def refuse(request, body):
            await request.respond(400, JSON, b'{"error":{"message":"no"}}')

        async def cut(request, body):
            async with request.stream(200, EVENTS) as send:
                await send(chunk())
                raise RuntimeError("a worker that dies")

        w.engines[0].scripts += [cut, stream, refuse]
        status, _, body = await w.post(PROMPT | {"stream": True})
        assert (status, b'"code":"upstream_cut"' in body) == (200, True)
        assert (await w.post(PROMPT | {"stream": True}))[0] == 200
        assert (await w.post(PROMPT))[0] == 400
        found = samples((await w.get("/metrics"))[2].decode())
        assert [found[f"kvcore_gateway_{kind}_tokens_total", "default"] for kind in ("prompt", "cached", "output")] == [
            40, 32, 5]
        assert found["kvcore_gateway_first_token_seconds_count", "default"] == 1
        assert found["kvcore_gateway_request_seconds_count", "default"] == 1  # of those answered with 200
        assert found["kvcore_gateway_responses_total", "400"] == 1
        assert found["kvcore_gateway_responses_total", "502"] == 1  # begun with 200, and cut
        assert 0 < found["kvcore_gateway_first_token_seconds_sum", "default"] <= found[
            "kvcore_gateway_request_seconds_sum", "default"]
        named = set(re.findall(r"`(kvcore_\w+)`", (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")))
        assert named
        shown = {key[0] for key in found} | {"kvcore_rejected_total"}  # which has no sample before a reason occurs
        assert [name for name in named if not {name, f"{name}_count"} & shown] == []
        await w.settled()
