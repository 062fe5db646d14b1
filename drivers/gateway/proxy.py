"""One request on its way: waits for a worker, goes there, and what the worker says goes back, byte for byte.

It runs in the task of the client's connection, which is cancelled when the client goes away; and each booking in the
lease's guard, which is cancelled when the booking is taken away, and whose deadline is how long the worker is waited
for. So nothing is polled, and wherever a cancellation lands, the lease releases what was booked.

As long as nothing of an answer has reached the client, a worker that is gone, cannot be reached, breaks off (once) or
says 429 or 503 only costs time: the request goes back to its place. After that, what goes wrong is an event in the
stream. The scheduler hears that a request is complete before its last event is forwarded, so a client that goes right
after it has had what it wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio

from kvcore.actions import EvictReason
from kvcore.request import Request

from ..http.client import Exchange
from ..http.request import Request as HttpRequest
from ..http.request import Stream
from ..http.values import BadResponse, ConnectFailed, ConnectionLost, Headers, TimedOut, UpstreamError
from ..http.wire import Checked, end_to_end
from ..protocol import DriverError, Evicted
from ..trio import Lease, Router
from .config import TimeoutSettings
from .echo import NAMES, Echo
from .errors import Errors, reason_of, row_of
from .fleet import Fleet, Worker
from .sse import Scanner, Usage, read_plain

#: A plain answer up to here is read as a whole before it is forwarded; beyond, its parts are.
PLAIN_MAX = 2**20
#: Longest pause that a worker can ask for.
PAUSE_S_MAX = 60.0
#: Fields that a worker gets from this gateway or not at all.
OURS = frozenset({b"accept-encoding", b"x-request-id", b"x-data-parallel-rank", b"x-kvcore-request-id"})
#: A deadline is moved only after this share of its span has passed.
_SLACK = 0.25

log = logging.getLogger("kvcore.gateway")


@dataclass(slots=True)
class Means:
    """What every request needs. class_name: of a class's index. dispatched: hears of every booking. put_back: how many
    bookings were undone because a worker could not take them.
    """

    router: Router
    fleet: Fleet
    errors: Errors
    timeouts: TimeoutSettings
    block_size: int
    class_name: Callable[[int], str | None]
    dispatched: Callable[[int, int, tuple[int, ...]], object] | None = None
    put_back: int = 0


class Passage:
    """One request. asked: as the scheduler sees it; data: its body; choices: how many answers it asks for.

    usage: what the worker has said at the end, or None. status: with which it has been answered, or
    would have been, had not some of a stream been sent.
    """

    __slots__ = (
        "_choices", "_data", "_echo", "_lost", "_means", "_request", "_stream", "asked", "headers", "status", "usage",
    )

    def __init__(
        self, means: Means, request: HttpRequest, asked: Request, data: bytes, echo: Echo, choices: int,
    ) -> None:
        self._means, self._request, self._data, self._echo, self._choices = means, request, data, echo, choices
        self._stream: Stream | None = None
        self._lost = False
        self.asked = asked
        self.headers = end_to_end(request.headers, OURS)
        self.usage: Usage | None = None
        self.status = 0

    async def run(self) -> None:
        """From arrival to the last byte. Raises, while nothing has been answered: DriverError, UpstreamError."""
        async with self._means.router.admit(self.asked, cancel_on_evict=False) as lease:
            while await self._attempt(lease):
                self._means.put_back += 1
                await lease.again()

    # One booking.

    async def _attempt(self, lease: Lease) -> bool:
        """True: it has been put back."""
        means, echo = self._means, self._echo
        decision = lease.dispatch
        echo.policy_class, echo.queue_ns = means.class_name(decision.class_index), decision.wait_ns
        echo.worker_id, echo.dp_rank = decision.worker_id, decision.dp_rank
        echo.expected_cached = decision.cached_tokens
        worker = means.fleet.get(decision.worker_id)
        if worker is None:
            return _put_back(lease)
        if means.dispatched is not None and self.asked.block_hashes:
            means.dispatched(decision.worker_id, decision.dp_rank, self.asked.block_hashes)
        trouble: DriverError | UpstreamError
        worker.running += 1
        try:
            with lease.guard(trio.current_time() + means.timeouts.connect_s + means.timeouts.first_byte_s) as scope:
                return await self._exchange(lease, worker, scope)
        except UpstreamError as error:
            trouble = error
        else:
            trouble = _why(lease)
        finally:
            worker.running -= 1
        return await self._after(lease, worker, trouble)

    async def _exchange(self, lease: Lease, worker: Worker, scope: trio.CancelScope) -> bool:
        fields = Checked(self.headers)
        fields.append((b"x-request-id", f"{self.asked.request_id}-{lease.attempt}".encode()))
        if worker.spec.dp_size > 1:
            fields.append((b"x-data-parallel-rank", b"%d" % lease.dp_rank))
        exchange = await worker.pool.start("POST", self._request.target, fields, self._data)
        try:
            if exchange.status in (429, 503):
                return _put_back(lease, _pause_ns(exchange.headers, self._means.timeouts.pause_s))
            self.status = exchange.status
            headers = end_to_end(exchange.headers, NAMES)
            headers += self._echo.headers()
            if exchange.status == 200 and _is_stream(exchange.headers):
                await self._forward_stream(lease, exchange, scope, headers)
            else:
                await self._forward_plain(lease, exchange, scope, headers)
        finally:
            exchange.close()
        return False

    async def _after(self, lease: Lease, worker: Worker, trouble: DriverError | UpstreamError) -> bool:
        """What becomes of a request whose run has come to nothing."""
        pause_ns = round(self._means.timeouts.pause_s * 1e9)
        if isinstance(trouble, UpstreamError):
            worker.suspect(isinstance(trouble, ConnectFailed) and trouble.refused)
        if self._stream is not None:
            lease.failed()
            self.status = row_of(reason_of(trouble)).status
            await self._stream.finish(self._means.errors.event(trouble))
            return False
        match trouble:
            case Evicted() if trouble.reason is not EvictReason.BOOKING_EXPIRED:
                return _put_back(lease)
            case ConnectFailed():
                return _put_back(lease, pause_ns)
            case ConnectionLost() if not self._lost:
                self._lost = True  # once: it may be the request that ends workers
                return _put_back(lease, pause_ns)
            case _:
                lease.failed()
                raise trouble

    # What the worker says.

    async def _forward_stream(
        self, lease: Lease, exchange: Exchange, scope: trio.CancelScope, headers: Headers,
    ) -> None:
        scanner = Scanner(self._choices)
        idle_s, block_size = self._means.timeouts.idle_s, self._means.block_size
        prompt_tokens, expected = self.asked.prompt_tokens, self.asked.expected_output_tokens
        border = -(-prompt_tokens // block_size) * block_size - prompt_tokens
        stream: Stream | None = None
        told = settled = False
        due = 0.0
        while not exchange.is_complete:
            part = await exchange.read()
            now = trio.current_time()
            if now > due:
                due, scope.deadline = now + _SLACK * idle_s, now + idle_s
            out = scanner.feed(part)
            if scanner.started and not settled:
                if not told:
                    told = True
                    lease.prefill_done()
                    self._echo.first_ns = self._means.router.now_ns()
                tokens = scanner.tokens
                while tokens > border:
                    border += block_size
                    lease.output_block(max(0.0, 1.0 - tokens / expected) if expected else None)
                usage = scanner.usage
                if usage is not self.usage and usage is not None:
                    self.usage = usage
                    lease.context(usage.context_tokens)
                if scanner.is_finished:
                    settled = True
                    lease.completed(prompt_tokens + tokens if usage is None else usage.context_tokens)
            if exchange.is_complete:
                out += scanner.tail
                break
            if out:
                if stream is None:
                    stream = self._stream = self._request.stream(200, headers)
                await stream.send(out)
        self.usage = scanner.usage
        if stream is None:
            if not out:
                raise BadResponse("an empty stream", True)
            stream = self._stream = self._request.stream(200, headers)
        if not settled:
            lease.failed()
        await stream.finish(out)

    async def _forward_plain(
        self, lease: Lease, exchange: Exchange, scope: trio.CancelScope, headers: Headers,
    ) -> None:
        """An answer in one piece. A small one leaves only when all of it has come."""
        idle_s = self._means.timeouts.idle_s
        parts: list[bytes] = []
        size = 0
        while not exchange.is_complete and size <= PLAIN_MAX:
            parts.append(await exchange.read())
            if not exchange.is_complete:
                size += len(parts[-1])
                scope.deadline = trio.current_time() + idle_s
        body = b"".join(parts)
        if exchange.is_complete:
            self._settle(lease, exchange.status, body)
            await self._request.respond(exchange.status, headers, body)
            return
        lease.prefill_done()
        stream = self._stream = self._request.stream(exchange.status, headers)
        while not exchange.is_complete:
            await stream.send(body)
            body = await exchange.read()
            scope.deadline = trio.current_time() + idle_s
        if exchange.status == 200:
            lease.completed()
        else:
            lease.failed()
        await stream.finish(body)

    def _settle(self, lease: Lease, status: int, body: bytes) -> None:
        if status != 200:
            lease.failed()
            return
        try:
            self.usage, is_good = read_plain(body)
        except ValueError as error:
            raise BadResponse("no JSON", True) from error
        if is_good:
            lease.prefill_done()
            lease.completed(None if self.usage is None else self.usage.context_tokens)
        else:
            lease.failed()


def _put_back(lease: Lease, shun_ns: int | None = None) -> bool:
    """The request goes back to its place. Raises what has ended it meanwhile."""
    if lease.failed(retry=True, shun_ns=shun_ns):
        return True
    raise _why(lease)


def _why(lease: Lease) -> DriverError | UpstreamError:
    """Why a guard was left early: the booking is gone, the request has been withdrawn, or its deadline has passed."""
    if lease.evicted is not None:
        return Evicted(lease.evicted)
    if isinstance(lease.error, DriverError):
        return lease.error
    return TimedOut("the worker has been silent for too long")


def _is_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def _pause_ns(headers: Headers, default_s: float) -> int:
    """How long a worker that is full wants to be left alone: its Retry-After in seconds, or the default."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return round(min(max(float(value[:9]), default_s), PAUSE_S_MAX) * 1e9)
    return round(default_s * 1e9)
