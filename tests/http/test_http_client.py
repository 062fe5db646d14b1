"""The pool of connections: when one is used again, and what goes wrong with an upstream."""

from __future__ import annotations

import h11
import pytest
import trio
from gateway_world import story
from kvcore.drivers.http.client import Pool
from kvcore.drivers.http.values import BadResponse, ConnectFailed, ConnectionLost, TimedOut
from kvcore.drivers.http.wire import Checked, end_to_end, to_send

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Upstream:
    """Answers each request by the next of `answers`, as bytes; None: it closes; ...: it stays silent."""

    def __init__(self) -> None:
        self.answers, self.requests = [], []
        self.connections = self.port = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            data = b""
            while True:
                part = await stream.receive_some()
                if not part:
                    return
                data += part
                if b"\r\n\r\n" not in data:
                    continue
                self.requests.append(data)
                data = b""
                answer = self.answers.pop(0) if self.answers else OK
                if answer is None:
                    return
                if answer is ...:
                    await trio.sleep_forever()
                await stream.send_all(answer)

    def pool(self) -> Pool:
        return Pool("127.0.0.1", self.port, connect_s=5)


async def upstream(nursery) -> Upstream:
    """One that listens."""
    it = Upstream()
    listeners = await nursery.start(trio.serve_tcp, it.serve, 0)
    it.port = listeners[0].socket.getsockname()[1]
    return it


def with_upstream(function):
    """Run a story with an upstream and a pool that connects to it."""
    @story
    async def run():
        async with trio.open_nursery() as nursery:
            it = await upstream(nursery)
            pool = it.pool()
            await function(it, pool)
            pool.close()
            nursery.cancel_scope.cancel()

    return run


async def get(pool, **options):
    return await pool.fetch("GET", "/", [], **options)


@with_upstream
async def test_a_connection_is_used_again_after_a_complete_exchange(it, pool):
    for _ in range(3):
        assert (await get(pool))[2] == b"ok"
    assert (it.connections, pool.opened, pool.idle) == (1, 1, 1)
    assert it.requests[0].startswith(b"GET / HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n" % it.port)


@with_upstream
async def test_exchanges_at_the_same_time_have_connections_of_their_own(it, pool):
    first = await pool.start("GET", "/", [])
    second = await pool.start("GET", "/", [])
    for exchange in (first, second):
        assert await exchange.read() == b"ok"
        exchange.close()
    assert (it.connections, pool.idle) == (2, 2)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", OK + b"HTTP/1.1 200 surplus",
    b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"])
def test_a_connection_is_not_used_again(answer):
    @with_upstream
    async def run(it, pool):
        it.answers = [answer]
        assert (await get(pool))[2] == b"ok"
        assert (await get(pool))[2] == b"ok"
        assert it.connections == 2

    run()


@with_upstream
async def test_an_exchange_that_is_left_early_closes_its_connection(it, pool):
    exchange = await pool.start("GET", "/", [])
    exchange.close()
    assert pool.idle == 0
    assert (await get(pool))[2] == b"ok"
    assert it.connections == 2


@with_upstream
async def test_an_idle_connection_that_breaks_is_replaced_once(it, pool):
    await get(pool)
    it.answers = [None]
    assert (await get(pool))[2] == b"ok"
    assert (it.connections, len(it.requests)) == (2, 3)
    it.answers = [None, None, OK]
    with pytest.raises(ConnectionLost):
        await get(pool)
    assert len(it.answers) == 1


@with_upstream
async def test_what_has_begun_is_not_asked_for_again(it, pool):
    await get(pool)
    it.answers = [b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"]
    with pytest.raises((ConnectionLost, TimedOut)):
        await get(pool, timeout_s=0.05)
    assert len(it.requests) == 2


@with_upstream
async def test_a_response_that_is_none(it, pool):
    it.answers = [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + b"x" * 999]
    with pytest.raises(BadResponse):
        await get(pool)
    with pytest.raises(BadResponse, match="larger"):
        await get(pool, limit=100)


@with_upstream
async def test_a_silent_upstream(it, pool):
    it.answers = [...]
    with pytest.raises(TimedOut):
        await get(pool, timeout_s=0.05)
    assert pool.idle == 0


@story
async def test_nobody_there():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    for listener in listeners:
        await listener.aclose()
    with pytest.raises(ConnectFailed) as caught:
        await get(Pool("127.0.0.1", port))
    assert caught.value.refused


@with_upstream
async def test_a_sweep_closes_what_the_other_side_has_closed(it, pool):
    it.answers = [OK]
    await get(pool)
    pool.sweep()
    assert pool.idle == 1
    pool._idle[0]._idle_since -= 3600
    pool.sweep()
    assert pool.idle == 0
    await get(pool)
    pool.close()
    assert pool.idle == 0
    await get(pool)
    assert pool.idle == 0  # closed, it keeps nothing


def test_fields_of_one_hop_stay_behind():
    headers = [
        (b"host", b"h"), (b"connection", b"keep-alive, X-Mine"), (b"x-mine", b"1"), (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c"), (b"content-length", b"3"), (b"a", b"1"), (b"b", b"2"),
        (b"a", b"3")]
    assert end_to_end(headers, frozenset({b"b"})) == [(b"a", b"1"), (b"a", b"3")]


def test_fields_that_are_checked_are_not_checked_again_and_others_are():
    kept = to_send(Checked([(b"host", b"x"), (b"a", b"1")]))
    request = h11.Request(method="GET", target="/", headers=kept)
    assert request.headers is kept
    assert list(kept) == [(b"host", b"x"), (b"a", b"1")]
    for headers in ([(b"host", b"x"), (b"a", b"1\r\nb: 2")], Checked([(b"host", b"x"), (b"a", b"1\r\nb: 2")])):
        with pytest.raises(h11.LocalProtocolError):
            h11.Request(method="GET", target="/", headers=to_send(headers))
