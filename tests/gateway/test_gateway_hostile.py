"""Upstreams that lie, clients that are slow or greedy, keys that must not leak, and bounds on everything that grows."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
import trio
from hostile import ANSWER, BODY, CONFIG, Attacker, attack, everything, ok, post
from kvcore.drivers.gateway.config import LimitSettings

CHAT = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def part(delta: str = "a", finish: str = "null") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}\n\n' % (
        delta.encode(), finish.encode())


@pytest.mark.parametrize("answer", [
    b"garbage\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"HTTP/1.1 200 OK\r\nx: y\x00\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc",
    b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + ok(),
    b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\nnojsn",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/9.9 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
], ids=lambda answer: answer[:60].decode("latin-1").encode("unicode_escape").decode()[-40:])
def test_an_upstream_that_answers_garbage_is_a_502_and_nothing_of_it_gets_out(answer):
    async def story(attacker: Attacker) -> None:
        attacker.upstream.answer = answer
        told = await attacker.say(post())
        assert told.split(b" ", 2)[1] in (b"502", b"503"), told
        assert set(json.loads(told.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}
        assert b"h2c" not in told
        assert told.count(b"HTTP/1.1 ") == 1

    attack(story)


def test_bytes_behind_an_answer_are_never_the_next_clients_answer():
    """A worker that sends more than it should has poisoned its connection: it is not used again."""
    async def story(attacker: Attacker) -> None:
        attacker.upstream.answer = ok() + ok(b'{"poison":true,"choices":[]}')
        assert b"poison" not in await attacker.say(post())
        attacker.upstream.answer = ok()
        for _ in range(3):
            told = await attacker.say(post())
            assert told.endswith(ANSWER)
            assert b"poison" not in told

    attack(story)


def test_bytes_that_nobody_asked_for_are_nobodys_answer():
    """A worker that speaks on an idle connection."""
    async def story(attacker: Attacker) -> None:
        async def late(stream: trio.SocketStream) -> None:
            await stream.send_all(ok())
            await trio.sleep(0.2)
            await stream.send_all(ok(b'{"poison":true,"choices":[]}'))

        attacker.upstream.answer = late
        assert (await attacker.say(post())).endswith(ANSWER)
        await trio.sleep(0.4)
        attacker.upstream.answer = ok()
        for _ in range(3):
            told = await attacker.say(post())
            assert b"poison" not in told
            assert told.endswith(ANSWER)

    attack(story)


def test_a_worker_cannot_end_the_gateways_events_with_its_own_error_event_unfinished():
    """A stream that is cut inside an event gets its error behind the whole events, not into the broken one."""
    async def story(attacker: Attacker) -> None:
        async def cut(stream: trio.SocketStream) -> None:
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            data = part("one") + b'data: {"choices":[{"broken'
            await stream.send_all(b"%x\r\n%s\r\n" % (len(data), data))
            await stream.aclose()

        attacker.upstream.answer = cut
        told = await attacker.say(post("/v1/chat/completions", CHAT))
        assert told.startswith(b"HTTP/1.1 200 ")
        assert part("one") in told
        assert b"broken" not in told
        events = [line for line in told.split(b"\n") if line.startswith(b"data: ")]
        assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"]

    attack(story)


@pytest.mark.parametrize("key", [b"sk-very-secret-key", b"Basic dXNlcjpwYXNz"])
def test_keys_pass_through_untouched_and_are_never_written_down(key, caplog, capfd):
    caplog.set_level(logging.DEBUG)

    async def story(attacker: Attacker) -> None:
        fields = b"authorization: Bearer %s\r\napi-key: %s\r\ncookie: s=%s\r\n" % (key, key, key)
        for answer in (ok(), b"garbage\r\n\r\n", b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}"):
            attacker.upstream.answer = answer
            told = await attacker.say(post(head=fields))
            assert key not in told
        await attacker.say(post(body=b"{", head=fields))
        assert attacker.upstream.fields(0)[b"authorization"] == b"Bearer " + key
        assert attacker.upstream.fields(0)[b"api-key"] == key
        for line in attacker.gateway.router, await attacker.gateway.router.queue_dump(10):
            assert key.decode() not in repr(line)

    attack(story)
    written = "".join([record.getMessage() + repr(record.__dict__) for record in caplog.records])
    written += "".join(capfd.readouterr())
    assert key.decode() not in written


def test_a_refused_key_is_the_workers_answer():
    async def story(attacker: Attacker) -> None:
        body = b'{"error":{"message":"no such key","type":"x","param":null,"code":"invalid_api_key"}}'
        attacker.upstream.answer = (
            b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nwww-authenticate: Bearer\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body))
        told = await attacker.say(post())
        assert told.startswith(b"HTTP/1.1 401 ")
        assert b"www-authenticate: bearer" in told.lower()
        assert told.endswith(body)

    attack(story)


SMALL = replace(CONFIG, limits=LimitSettings(body_bytes=1000, header_bytes=2048, connections=4))


@pytest.mark.parametrize(("data", "status"), [
    (post(body=b"x" * 1001), 413),
    (b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999999\r\n\r\n", 413),
    (b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n" + b"1f4\r\n%s\r\n" % (
        b"x" * 500) * 3 + b"0\r\n\r\n", 413),
    (post(head=b"x: " + b"y" * 4000 + b"\r\n"), 431),
    (post(head=b"x: y\r\n" * 1000), 431),
    (post("/v1/completions?" + "a" * 4000), 431),
    (b"POST /" + b"a" * 10_000, 431),
])
def test_bodies_and_heads_are_bounded(data, status):
    async def story(attacker: Attacker) -> None:
        assert await attacker.status(data) == status
        assert attacker.upstream.requests == []

    attack(story, SMALL)


def test_an_expectation_of_a_body_that_is_too_large_is_refused_before_it_is_sent():
    async def story(attacker: Attacker) -> None:
        answer = await attacker.say(
            b"POST /v1/completions HTTP/1.1\r\nhost: g\r\nexpect: 100-continue\r\ncontent-length: 1001\r\n\r\n")
        assert b"100 Continue" not in answer
        assert answer.startswith(b"HTTP/1.1 413 ")

    attack(story, SMALL)


def test_connections_are_bounded_and_room_comes_back():
    async def story(attacker: Attacker) -> None:
        port = attacker.gateway.port
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(4)]
        for stream in idle:
            await stream.send_all(b"POST /v1/comp")
        await trio.sleep(0.1)
        assert await attacker.status(post()) in (0, 429, 503)
        for stream in idle:
            await stream.aclose()
        while attacker.gateway.app.server is not None and attacker.gateway.app.server.connections:
            await trio.sleep(0.01)

    attack(story, SMALL)


FAST = replace(CONFIG, timeouts=replace(CONFIG.timeouts, header_s=0.3, body_s=0.3, keep_alive_s=0.3, write_s=0.5))


@pytest.mark.parametrize("begun", [b"", b"POST /v1/comp", post(body=BODY)[:-5], post(head=b"x: y")[:40]])
def test_clients_that_do_not_go_on_are_let_go(begun):
    async def story(attacker: Attacker) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", attacker.gateway.port) as stream:
            if begun:
                await stream.send_all(begun)
            with trio.fail_after(3):
                answer = await everything(stream)
            assert answer == b"" or answer.split(b" ", 2)[1] == b"408", answer
        assert attacker.upstream.requests == []

    attack(story, FAST)


def test_a_client_that_trickles_gets_no_more_time_than_one_that_is_silent():
    async def story(attacker: Attacker) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", attacker.gateway.port) as stream:
            began = trio.current_time()
            try:
                for letter in post(body=BODY):
                    await stream.send_all(bytes([letter]))
                    await trio.sleep(0.05)
            except trio.BrokenResourceError:
                pass
            assert trio.current_time() - began < 2.5
        assert attacker.upstream.requests == []

    attack(story, FAST)


def test_a_client_that_does_not_read_holds_no_worker_for_long():
    async def story(attacker: Attacker) -> None:
        async def endless(stream: trio.SocketStream) -> None:
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            data = part("x" * 60_000)
            while True:
                await stream.send_all(b"%x\r\n%s\r\n" % (len(data), data))

        attacker.upstream.answer = endless
        async with await trio.open_tcp_stream("127.0.0.1", attacker.gateway.port) as stream:
            await stream.send_all(post("/v1/chat/completions", CHAT))
            while not attacker.upstream.requests:
                await trio.sleep(0.01)
            with trio.fail_after(5):
                while (await attacker.gateway.router.stats()).running_requests or not attacker.upstream.requests:
                    await trio.sleep(0.05)

    attack(story, FAST)


@pytest.mark.parametrize("body", [
    b"", b"null", b"[]", b"{", b"\xef\xbb\xbf" + BODY, BODY.decode().encode("utf-16"), b'{"model":"m","prompt":NaN}',
    b'{"model":"m","prompt":' + b"[" * 100_000, b'{"model":"m","prompt":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"model":"m","prompt":"\\ud800"}', b'{"model":"m","prompt":[1],"n":"x"}', b'{"model":"m","prompt":[99999999999]}',
    b'{"model":"m","prompt":[1],"max_tokens":1e400}', b"\x1f\x8b\x08\x00" + b"\0" * 50,
], ids=lambda body: body[:24].decode("latin-1").encode("unicode_escape").decode())
def test_bodies_that_are_no_request_are_400_or_the_workers_business(body):
    async def story(attacker: Attacker) -> None:
        told = await attacker.say(post(body=body))
        status = int(told.split(b" ", 2)[1])
        assert status in (200, 400), told
        if status == 400:
            assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
            assert attacker.upstream.requests == []

    attack(story)


def test_admin_is_nowhere_on_the_public_port():
    async def story(attacker: Attacker) -> None:
        for method in (b"GET", b"POST", b"DELETE"):
            for path in ("/admin", "/admin/", "/admin/workers", "/admin/config", "/admin/queue", "/admin/workers/0"):
                assert await attacker.status(post(path).replace(b"POST", method, 1)) == 404

    attack(story)


def test_what_anybody_may_ask_says_nothing_of_where_workers_are():
    async def story(attacker: Attacker) -> None:
        address = str(attacker.upstream.port).encode()
        for path in (b"/health", b"/ready", b"/v1/models", b"/metrics", b"/version"):
            told = await attacker.say(b"GET %s HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n" % path)
            assert told.startswith(b"HTTP/1.1 200 ")
            assert address not in told.partition(b"\r\n\r\n")[2], path
        attacker.upstream.answer = b"garbage\r\n\r\n"
        assert address not in await attacker.say(post())

    attack(story)


def test_pinning_to_no_worker_is_an_answer_and_not_a_crash():
    async def story(attacker: Attacker) -> None:
        for head in (
            b"x-dynamo-worker-instance-id: 18446744073709551615\r\n",
            b"x-dynamo-worker-instance-id: 18446744073709551616\r\nx-dynamo-dp-rank: 4294967296\r\n",
            b"x-dynamo-worker-instance-id: 0\r\nx-dynamo-dp-rank: 7\r\n",
        ):
            told = await attacker.say(post(head=head))
            assert told.split(b" ", 2)[1] in (b"503", b"400"), told
        assert attacker.upstream.requests == []

    attack(story)
