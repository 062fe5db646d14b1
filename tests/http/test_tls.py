"""Workers under TLS: who is trusted, what is said of those who are not, and what is left in a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from gateway_world import PROMPT, STREAM, Engine, story, world
from kvcore.drivers.gateway.upstreams import UpstreamSpec
from kvcore.drivers.http.client import Pool
from kvcore.drivers.http.tls import trusting
from kvcore.drivers.http.values import ConnectFailed, ConnectionLost

#: A certificate for 127.0.0.1 and localhost that nobody has signed, and its key. They are no secret.
CERTIFICATE, KEY = (str(Path(__file__).parents[1] / "data" / "tls" / name) for name in ("certificate.pem", "key.pem"))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"


def front() -> ssl.SSLContext:
    """What a server shows."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


@asynccontextmanager
async def listening(serve):
    """A server under TLS; its port. serve: one connection."""
    async with trio.open_nursery() as nursery:
        async def handle(stream) -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await serve(stream)  # until the client goes, who may not like the certificate

        listeners = await nursery.start(trio.serve_ssl_over_tcp, handle, 0, front())
        yield listeners[0].transport_listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def pool(port: int, ca_file: str | None = CERTIFICATE, host: str = "127.0.0.1") -> Pool:
    return Pool(host, port, tls=trusting(ca_file))


async def echo(stream) -> None:
    """Answers each request by its body."""
    data = b""
    while True:
        while b"\r\n\r\n" not in data:
            part = await stream.receive_some()
            if not part:
                return
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().rpartition(b"content-length: ")[2])
        while len(body) < length:
            body += await stream.receive_some()
        await stream.send_all(HEAD % length + body)
        data = b""


@story
async def test_large_bodies_pass_both_ways_and_the_connection_is_used_again():
    async with listening(echo) as port:
        it = pool(port)
        for size in (3, 2**21, 0):
            body = bytes(range(256)) * (size // 256) + b"end"
            assert (await it.fetch("POST", "/", [], body, timeout_s=20))[::2] == (200, body)
        assert (it.opened, it.idle) == (1, 1)
        it.close()


@pytest.mark.parametrize(("ca_file", "host", "message"), [
    (None, "127.0.0.1", "its certificate is not trusted: self-signed certificate"),
    (CERTIFICATE, "127.0.0.2", "its certificate is not trusted: IP address mismatch"),
])
@story
async def test_who_is_not_trusted_gets_nothing(ca_file, host, message):
    heard = []

    async def listen(stream) -> None:
        heard.append(await stream.receive_some())

    async with listening(listen) as port:
        with pytest.raises(ConnectFailed, match=message) as caught:
            await pool(port, ca_file, host).start("POST", "/", [], b"secret")
        assert not caught.value.refused
        assert not heard


@story
async def test_a_server_that_speaks_no_tls_is_told_so():
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, lambda stream: stream.send_all(HEAD % 0), 0)
        with pytest.raises(ConnectFailed, match="no TLS connection: "):
            await pool(listeners[0].socket.getsockname()[1]).start("GET", "/", [])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("honest", [True, False])
@story
async def test_a_body_that_ends_with_its_connection_must_end_on_purpose(honest):
    async def serve(stream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        await (stream if honest else stream.transport_stream).aclose()

    async with listening(serve) as port:
        it = pool(port)
        if honest:
            assert (await it.fetch("GET", "/", []))[2] == b"half"
        else:
            with pytest.raises(ConnectionLost):
                await it.fetch("GET", "/", [])
        it.close()


@story
async def test_what_comes_behind_an_answer_is_nobody_s_answer():
    async def serve(stream) -> None:
        while await stream.receive_some():
            option = stream.transport_stream.setsockopt     # two records in one segment: they are received together
            option(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            await stream.send_all(HEAD % 2 + b"ok")
            await stream.send_all(HEAD % 4 + b"evil")
            option(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    async with listening(serve) as port:
        it = pool(port)
        for _ in range(3):
            exchange = await it.start("GET", "/", [])
            assert await exchange.read() == b"ok"
            while not exchange.is_complete:
                await exchange.read()
            exchange.close()
        assert it.opened == 3
        it.close()


# Through the gateway.


@asynccontextmanager
async def fronted(engine: Engine):
    """An engine behind TLS; its address."""
    async def serve(stream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", engine.port) as inner, trio.open_nursery() as nursery:
            async def carry(source, target) -> None:
                with contextlib.suppress(trio.BrokenResourceError):
                    async for part in source:
                        await target.send_all(part)
                nursery.cancel_scope.cancel()

            nursery.start_soon(carry, stream, inner)
            nursery.start_soon(carry, inner, stream)

    async with listening(serve) as port:
        yield f"https://127.0.0.1:{port}"


@story
async def test_the_gateway_sends_to_workers_under_tls():
    async with world(1) as w, fronted(w.engines[0]) as url:
        worker = await w.gateway.fleet.add(UpstreamSpec(url, ca_file=CERTIFICATE))
        await w.gateway.fleet.remove(0)
        await w.until(lambda: worker.models is not None)
        status, fields, _ = await w.post(PROMPT)
        assert (status, fields[b"x-kvcore-worker-id"]) == (200, b"1")
        assert (await w.post(STREAM))[2].endswith(b"data: [DONE]\n\n")
        await w.settled()


@story
async def test_a_worker_that_is_not_trusted_is_down_and_an_administrator_is_told_why():
    async with world(1) as w, fronted(w.engines[0]) as url:
        worker = await w.gateway.fleet.add(UpstreamSpec(url))
        await w.gateway.fleet.remove(0)
        await w.until(lambda: worker.trouble)
        assert worker.trouble == "its certificate is not trusted: self-signed certificate"
        status, _, body = await w.post(PROMPT)
        assert (status, b"certificate" in body, len(w.engines[0].asked)) == (503, False, 0)
        assert json.loads(body)["error"]["code"] in ("upstream_unreachable", "no_eligible_worker")


@pytest.mark.parametrize(("text", "message"), [
    ("https://h,ca-file=/nowhere", "ca_file: /nowhere: No such file"),
    (f"https://h,ca-file={KEY}", "no certificates in PEM"),
    (f"http://h,ca-file={CERTIFICATE}", "ca_file is for https workers"),
])
def test_a_file_of_authorities_is_read_before_anything_starts(text, message):
    with pytest.raises(ValueError, match=message):
        UpstreamSpec.of_text(text)


def test_an_address_under_tls_has_a_port_of_its_own():
    assert UpstreamSpec.of_text("https://h").address == ("h", 443)
    assert UpstreamSpec.of_text("https://[::1]:8443/").url == "https://[::1]:8443"
