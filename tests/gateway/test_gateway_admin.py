"""The administrators' interface over a real loopback socket: what it shows and does, and whom it turns away."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
import yaml
from kvcore.drivers.gateway.admin import Admin
from kvcore.drivers.gateway.config import GatewayConfig, SchedulerSettings
from kvcore.drivers.gateway.errors import Errors
from kvcore.drivers.gateway.fleet import Fleet
from kvcore.drivers.gateway.policy_desk import PolicyDesk
from kvcore.drivers.gateway.retry_after import Jitter
from kvcore.drivers.gateway.upstreams import UpstreamSpec
from kvcore.drivers.http.client import Pool
from kvcore.drivers.http.request import Request as Asked
from kvcore.drivers.http.server import serve_http
from kvcore.drivers.trio import Router, open_scheduler

from kvcore.policy_file import load_policy
from kvcore.request import Request

POLICY = """\
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128, prefill_busy_threshold: 0}
"""
#: Nobody listens there: port 1 is not for us.
AWAY = UpstreamSpec("http://127.0.0.1:1")


class Desk:
    """An admin interface that is served, and a client of it."""

    def __init__(self, router: Router, fleet: Fleet, pool: Pool, port: int) -> None:
        self.router, self.fleet, self.port, self._pool = router, fleet, port, pool

    async def raw(self, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
        exchange = await self._pool.start(method, path, [], body)
        parts = []
        while not exchange.is_complete:
            parts.append(await exchange.read())
        kind = dict(exchange.headers)[b"content-type"].decode()
        exchange.close()
        return exchange.status, kind, b"".join(parts)

    async def call(self, method: str, path: str, body: object = None, status: int = 200) -> dict:
        found, kind, data = await self.raw(method, path, b"" if body is None else json.dumps(body).encode())
        assert (found, kind) == (status, "application/json"), data
        return json.loads(data)

    async def text(self, path: str) -> str:
        status, kind, data = await self.raw("GET", path)
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        return data.decode()


def play(story: Callable[[Desk], Awaitable[None]], folder: Path | None = None) -> None:
    """Serve, and run the story against it."""
    policy = None
    if folder is not None:
        (folder / "policy.yaml").write_text(POLICY)
        policy = str(folder / "policy.yaml")

    async def run() -> None:
        desk = PolicyDesk(GatewayConfig(policy=policy, scheduler=SchedulerSettings(decisions_kept=8)))
        async with open_scheduler(
            desk.config.scheduler_config, tap=desk.tap,
        ) as router, trio.open_nursery() as nursery:
            fleet = Fleet(router, nursery, interval_s=60.0)
            admin = Admin(router, fleet, desk, Errors(Jitter(0)), {"policy": "--policy"})

            async def handle(request: Asked) -> None:
                if request.path == "/health":
                    await request.respond(200, [], b"")
                else:
                    await admin.handle(request)

            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            await nursery.start(serve_http, listeners, handle)
            pool = Pool("127.0.0.1", port)
            with trio.fail_after(30):
                await story(Desk(router, fleet, pool, port))
            pool.close()
            fleet.close()
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_workers_come_are_drained_and_go():
    async def story(desk: Desk) -> None:
        assert await desk.call("GET", "/admin/workers") == {"workers": []}
        added = await desk.call("POST", "/admin/workers", "http://127.0.0.1:1,max-requests=4")
        second = await desk.call("POST", "/admin/workers", {"url": "http://127.0.0.1:2", "taints": ["a"]})
        assert (added["id"], second["id"], added["url"]) == (0, 1, "http://127.0.0.1:1")
        rows = (await desk.call("GET", "/admin/workers"))["workers"]
        assert [row["id"] for row in rows] == [0, 1]
        assert set(rows[0]) == {
            "id", "url", "health", "trouble", "draining", "running", "incarnation", "models"}
        assert desk.fleet.get(1).spec.taints == ("a",)
        assert (await desk.router.stats()).workers == 2
        assert await desk.call("POST", "/admin/workers/0/drain") == {"id": 0, "is": "drained"}
        assert (await desk.call("GET", "/admin/workers"))["workers"][0]["draining"] is True
        assert await desk.call("POST", "/admin/workers/0/resume") == {"id": 0, "is": "resumed"}
        assert (await desk.call("GET", "/admin/workers"))["workers"][0]["draining"] is False
        assert await desk.call("DELETE", "/admin/workers/0") == {"id": 0, "is": "removed"}
        assert (await desk.router.stats()).workers == 1
        await desk.call("DELETE", "/admin/workers/0", status=404)
        third = await desk.call("POST", "/admin/workers", "http://127.0.0.1:1")
        assert third["id"] == 2  # an id is never used again

    play(story)


@pytest.mark.parametrize(("body", "status"), [
    (b'"http://127.0.0.1:1"', 409), (b'{"url": "http://127.0.0.1:1"}', 409), (b"", 400), (b"{}", 400), (b"7", 400),
    (b'"ftp://x"', 400), (b'{"url": "http://x", "nope": 1}', 400), (b'"http://a", "http://b"', 400),
    (b'"http://a"], listen: {port: 1}, models: [x', 400), (b"\xff", 400), (b"[" * 60_000, 400),
    (b'"' + b"x" * 70_000, 413),
], ids=lambda item: str(item)[:24])
def test_what_is_no_worker_is_refused_and_adds_none(body, status):
    async def story(desk: Desk) -> None:
        await desk.fleet.add(AWAY)
        found, kind, data = await desk.raw("POST", "/admin/workers", body)
        assert (found, kind) == (status, "application/json")
        assert json.loads(data)["error"]["message"]
        assert len(desk.fleet) == 1

    play(story)


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/", 404), ("GET", "/admin", 404), ("GET", "/admin/", 404), ("GET", "/admin/nothing", 404),
    ("GET", "/v1/models", 404), ("GET", "/admin/explain", 404), ("GET", "/admin/explain/", 404),
    ("GET", "/admin/explain/unknown", 404), ("GET", "/admin/explain/a/b", 404), ("DELETE", "/admin/workers", 405),
    ("GET", "/admin/reload", 405), ("POST", "/admin/queue", 405), ("GET", "/admin/workers/0/drain", 405),
    ("DELETE", "/admin/workers/x", 404), ("DELETE", "/admin/workers/-1", 404),
    ("DELETE", "/admin/workers/" + "9" * 30, 404), ("DELETE", "/admin/workers/", 404),
    ("GET", "/admin/queue?limit=0", 400), ("GET", "/admin/queue?limit=x", 400),
    ("GET", "/admin/queue?limit=99999999", 400),
    ("GET", "/admin/../admin/stats", 404), ("GET", "/admin//stats", 404), ("GET", "//admin/stats", 404),
    ("GET", "/admin/workers/*", 405),
])
def test_what_is_not_there_is_said_to_be_not_there(method, path, status):
    async def story(desk: Desk) -> None:
        error = (await desk.call(method, path, status=status))["error"]
        assert set(error) == {"message", "type", "param", "code"}

    play(story)


@pytest.mark.parametrize(("headers", "status"), [
    ({}, 200), ({"host": "localhost:8001"}, 200), ({"host": "[::1]:8001"}, 200), ({"host": "127.0.0.1:8001"}, 200),
    ({"sec_fetch_site": "none"}, 200),
    ({"host": "evil.example"}, 403), ({"host": "127.0.0.1.evil.example"}, 403), ({"host": "10.0.0.1"}, 403),
    ({"host": "[::1"}, 200), ({"host": ""}, 403),
    ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403), ({"origin": "http://127.0.0.1:8001"}, 403),
    ({"sec_fetch_site": "cross-site"}, 403), ({"sec_fetch_site": "same-origin"}, 403),
])
def test_a_page_in_a_browser_is_turned_away(headers, status):
    """By its Origin, or by the name under which it has found loopback (DNS rebinding)."""
    async def story(desk: Desk) -> None:
        fields = {"host": "127.0.0.1"} | headers
        assert (await raw_status(desk, fields)) == status

    async def raw_status(desk: Desk, fields: dict[str, str]) -> int:
        head = "".join([f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items()])
        async with await trio.open_tcp_stream("127.0.0.1", desk.port) as stream:
            await stream.send_all(f"GET /admin/stats HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode())
            answer = b""
            async for part in stream:
                answer += part
        return int(answer.split()[1])

    play(story)


def test_the_policy_is_shown_and_read_again(tmp_path):
    async def story(desk: Desk) -> None:
        shown = await desk.text("/admin/policy")
        assert load_policy(shown).root == load_policy(POLICY).root
        assert await desk.call("POST", "/admin/reload") == {
            "changed": False, "generation": 0, "diff": [], "workers": [], "needs_restart": []}
        (tmp_path / "policy.yaml").write_text(POLICY.replace("quantum: 128", "quantum: 99"))
        told = await desk.call("POST", "/admin/reload")
        assert (told["changed"], told["generation"]) == (True, 1)
        assert "+  quantum: 99" in told["diff"]
        assert "quantum: 99" in await desk.text("/admin/policy")
        (tmp_path / "policy.yaml").write_text(POLICY.replace("quantum: 128", "quantum: -1"))
        error = (await desk.call("POST", "/admin/reload", status=400))["error"]
        assert "policy.yaml:4: " in error["message"]
        assert "quantum: 99" in await desk.text("/admin/policy")

    play(story, tmp_path)


def test_without_a_policy_there_is_none_to_show_or_read():
    async def story(desk: Desk) -> None:
        assert (await desk.text("/admin/policy")).startswith("# no policy")
        await desk.call("POST", "/admin/reload", status=400)

    play(story)


def test_the_configuration_is_shown_with_where_it_came_from(tmp_path):
    async def story(desk: Desk) -> None:
        told = await desk.call("GET", "/admin/config")
        assert told["config"]["policy"] == str(tmp_path / "policy.yaml")
        assert told["config"]["scheduler"]["decisions_kept"] == 8
        assert told["given"] == {"policy": "--policy"}
        assert yaml.safe_dump(told["config"])

    play(story, tmp_path)


def test_the_queue_is_shown_without_content_and_a_request_is_explained(tmp_path):
    async def story(desk: Desk) -> None:
        await desk.fleet.add(UpstreamSpec(f"http://127.0.0.1:{desk.port}"))  # anything that answers probes
        async with trio.open_nursery() as nursery, desk.router.admit(Request("runs", 100)):
            async def wait(name: str) -> None:
                async with desk.router.admit(Request(name, 10)):
                    raise AssertionError("the only worker is busy")

            for name in ("first", "second", "third"):
                nursery.start_soon(wait, name)
                await trio.testing.wait_all_tasks_blocked()
            queue = (await desk.call("GET", "/admin/queue"))["queue"]
            assert [entry["request_id"] for entry in queue] == ["first", "second", "third"]
            assert set(queue[0]) == {
                "request_id", "state", "class_name", "class_index", "lane", "key", "seq", "wait_ns", "cost_tokens"}
            assert len((await desk.call("GET", "/admin/queue?limit=2"))["queue"]) == 2
            told = await desk.call("GET", "/admin/explain/second")
            assert (told["state"], told["position"], told["class_name"]) == ("waiting", 2, "regular")
            assert "second" in await desk.text("/admin/explain/second?format=text")
            assert (await desk.call("GET", "/admin/explain/runs"))["rank"] == {"worker_id": 0, "dp_rank": 0}
            decisions = (await desk.call("GET", "/admin/decisions"))["decisions"]
            assert [item["request_id"] for item in decisions] == ["runs"]
            stats = await desk.call("GET", "/admin/stats")
            assert (stats["waiting_requests"], stats["running_requests"]) == (3, 1)
            assert stats["classes"][0]["name"] == "regular"
            loads = (await desk.call("GET", "/admin/loads"))["loads"]
            assert [(row["worker_id"], row["requests"]) for row in loads] == [(0, 1)]
            before = await desk.router.read(lambda core: core.digest())
            await desk.call("GET", "/admin/queue")
            assert await desk.router.read(lambda core: core.digest()) == before
            nursery.cancel_scope.cancel()

    play(story, tmp_path)
