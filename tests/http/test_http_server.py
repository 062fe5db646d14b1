"""The server: what it reads, bounds and answers; clients that go, dawdle, ask for several things at once."""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from gateway_world import story
from kvcore.drivers.http.server import serve_http
from kvcore.drivers.http.values import HttpError, Limits

#: The end of an answer of /parts.
LAST = b"two\r\n0\r\n\r\n"
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


class Site:
    """What a story acts on. seen: paths of requests; gone: paths whose client went away while they were handled."""

    def __init__(self) -> None:
        self.seen, self.gone = [], []
        self.port, self.server = 0, None
        self.waiting, self.go_on = trio.Event(), trio.Event()

    async def handle(self, request) -> None:
        self.seen.append(request.target)
        if request.path == "/echo":
            await request.respond(200, [(b"x-query", request.query.encode())], await request.body())
        elif request.path == "/small":
            await request.respond(200, [], await request.body(4))
        elif request.path == "/parts":
            async with request.stream(200, [(b"content-type", b"text/plain")]) as send:
                for part in (b"one", b"", b"two"):
                    await send(part)
        elif request.path == "/wait":
            self.waiting.set()
            try:
                await self.go_on.wait()
            finally:
                self.gone += [request.path] * request.gone
            await request.respond(200, [], b"waited")
        elif request.path == "/error":
            raise HttpError(418, "a teapot", "teapot")
        elif request.path == "/bug":
            raise ZeroDivisionError
        elif request.path == "/bug-in-the-middle":
            async with request.stream(200, []) as send:
                await send(b"begun")
                raise ZeroDivisionError
        elif request.path == "/header":
            await request.respond(200, [(b"x", b"a\r\nset-cookie: b")])

    async def say(self, data: bytes, until: bytes | None = None) -> bytes:
        """What one connection answers to these bytes: up to a mark, or to its end."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with stream:
            await stream.send_all(data)
            told = b""
            while until is None or until not in told:
                part = await stream.receive_some()
                if not part:
                    break
                told += part
        return told


@asynccontextmanager
async def site(**limits):
    """A server."""
    it = Site()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    it.port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        it.server = await nursery.start(serve_http, listeners, it.handle, replace(Limits(linger_s=0.2), **limits))
        yield it
        it.go_on.set()
        it.server.stop()
        await it.server.ended.wait()
        assert not it.server.connections


@story
async def test_one_connection_serves_request_after_request():
    async with site() as it:
        post = b"POST /echo?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        told = await it.say(post + GET % b"/parts" + GET % b"/wait", until=LAST)
        assert told.count(b"HTTP/1.1 200") == 2
        assert b"x-query: a=b" in told
        assert b"\r\n\r\nabc" in told
        assert b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" in told
        await it.waiting.wait()
        assert it.seen == ["/echo?a=b", "/parts", "/wait"]


@story
async def test_head_has_no_body():
    async with site() as it:
        told = await it.say(b"HEAD /parts HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (told.partition(b"\r\n\r\n")[2], told[:12]) == (b"", b"HTTP/1.1 200")


@story
async def test_an_old_client_gets_its_parts_until_the_connection_ends():
    async with site() as it:
        told = await it.say(b"GET /parts HTTP/1.0\r\n\r\n")
        assert told.endswith(b"\r\n\r\nonetwo")
        assert b"chunked" not in told


@story
async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it():
    async with site() as it:
        stream = await trio.open_tcp_stream("127.0.0.1", it.port)
        async with stream:
            await stream.send_all(
                b"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
            await stream.send_all(b"ok")
            assert (await stream.receive_some()).endswith(b"\r\n\r\nok")


@pytest.mark.parametrize(("data", "status"), [
    (b"GET / HTTP/1.1\r\n\r\n", b"400"), (b"nonsense\r\n\r\n", b"400"), (GET % b"http://x/", b"400"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", b"400"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
])
@story
async def test_what_is_not_right_is_answered_and_ends_the_connection(data, status):
    async with site() as it:
        told = await it.say(data + GET % b"/parts")
        assert told.split(b" ")[1] == status
        assert told.count(b"HTTP/1.1") == 1
        assert b"connection: close" in told.lower()
        assert "/parts" not in it.seen


@story
async def test_a_body_in_chunks_is_bounded_too():
    async with site() as it:
        told = await it.say(
            b"POST /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n")
        assert told.startswith(b"HTTP/1.1 413")


@story
async def test_errors_of_a_handler_are_answers_and_the_connection_lives_on(caplog):
    caplog.set_level(logging.CRITICAL, "kvcore.http")
    async with site() as it:
        told = await it.say(b"".join(GET % path for path in (b"/error", b"/bug", b"/nothing", b"/parts")), LAST)
        assert re.findall(rb"HTTP/1.1 (\d+)", told) == [b"418", b"500", b"500", b"200"]
        assert b"ZeroDivision" not in told
        told = await it.say(GET % b"/bug-in-the-middle" + GET % b"/parts")
        assert told.endswith(b"5\r\nbegun\r\n")  # without an end, so that the client can tell


@story
async def test_no_field_of_an_answer_can_hold_another(caplog):
    caplog.set_level(logging.CRITICAL, "kvcore.http")
    async with site() as it:
        assert b"set-cookie" not in await it.say(GET % b"/header")


@story
async def test_a_client_that_goes_cancels_what_it_has_asked_for_though_more_is_in_the_pipe():
    async with site() as it:
        stream = await trio.open_tcp_stream("127.0.0.1", it.port)
        await stream.send_all(GET % b"/wait" + GET % b"/parts")
        await it.waiting.wait()
        await stream.aclose()
        while it.server.connections:
            await trio.sleep(0.005)
        assert (it.gone, it.seen) == (["/wait"], ["/wait"])


@pytest.mark.parametrize(("limits", "data"), [
    ({"idle_s": 0.05}, b""), ({"head_s": 0.05}, b"GET / HT"),
    ({"body_s": 0.05}, b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"),
])
@story
async def test_who_sends_too_slowly_is_cut_off(limits, data):
    async with site(**limits) as it:
        assert await it.say(data) == b""


@story
async def test_one_connection_too_many_is_told_so():
    async with site(connections=1) as it:
        stream = await trio.open_tcp_stream("127.0.0.1", it.port)
        async with stream:
            await stream.send_all(GET % b"/wait")
            await it.waiting.wait()
            told = await it.say(GET % b"/parts")
            assert told.startswith(b"HTTP/1.1 503")
            assert b"too_many_connections" in told
            assert it.server.refused == 1
            it.go_on.set()
            assert (await stream.receive_some()).endswith(b"waited")
        assert (await it.say(GET % b"/parts", LAST)).startswith(b"HTTP/1.1 200")


@story
async def test_a_server_that_stops_answers_what_it_has_begun():
    async with site() as it:
        idle = await trio.open_tcp_stream("127.0.0.1", it.port)
        await idle.send_all(GET % b"/parts")
        while LAST not in await idle.receive_some():
            pass
        busy = await trio.open_tcp_stream("127.0.0.1", it.port)
        await busy.send_all(GET % b"/wait")
        await it.waiting.wait()
        it.server.stop()
        assert await idle.receive_some() == b""
        it.go_on.set()
        told = await busy.receive_some()
        assert told.endswith(b"waited")
        assert b"connection: close" in told.lower()
        assert await busy.receive_some() == b""
        await it.server.ended.wait()
        await idle.aclose()
        await busy.aclose()
