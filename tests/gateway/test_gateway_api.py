"""The public API: paths, answers whole and streamed, what every response says."""

from __future__ import annotations

import json

import pytest
import trio
from gateway_world import DONE, PROMPT, chunk, story, world


@story
async def test_a_plain_answer_passes_through_with_its_headers():
    async with world() as w:
        status, headers, body = await w.post(PROMPT, headers=[(b"authorization", b"Bearer secret")])
        assert status == 200
        assert json.loads(body)["usage"]["completion_tokens"] == 2
        assert headers[b"x-kvcore-queue-ms"] == b"0"
        assert headers[b"x-kvcore-policy-class"] == b"default"
        assert w.engines[0].fields[0][b"authorization"] == b"Bearer secret"
        assert w.engines[0].asked == [PROMPT]
        assert await w.outcomes() == (1, 0)
        await w.settled()
        stats = await w.gateway.router.stats()
        assert stats.stale_events == 0
