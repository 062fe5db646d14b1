"""A mock worker: an OpenAI server like vLLM's, in front of an engine that computes nothing.

    async with trio.open_nursery() as nursery:
        worker = await nursery.start(serve_mock, MockConfig(port=0))
        ...                                     # worker.url, worker.engine, worker.faults

It answers as vLLM 0.32 does, to what a router asks: chat and text completions, streamed or not, /tokenize, /health,
/metrics, /v1/models; and it publishes KV events if it is given an endpoint. A client that goes away frees its slot at
once. What goes wrong on demand is in faults.py.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import trio
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from ..http.request import Request, Stream
from ..http.server import listen, serve_http
from ..http.values import ClientGone, Headers, Limits
from ..replay.presets import PRESETS, EngineSpec
from .answers import DONE, Answerer, models, refusal
from .asks import Ask, Reader, Refused
from .engine import Engine, Tokens
from .faults import Fault, Faults, Kind, parse
from .metrics import EngineCollector
from .model import NeverFits
from .publisher import Publisher, open_publisher
from .tokens import TOKEN_BYTES, decode

_JSON: Headers = [(b"content-type", b"application/json")]
_TEXT: Headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
_EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
_GARBAGE = b"<html>\x00\xff this is no answer {"

_encode = msgspec.json.encode


@dataclass(frozen=True)
class MockConfig:
    """One mock worker.

    port: 0 takes a free one. engine: name of a preset. speed: times faster than the preset. max_num_seqs,
    max_num_batched_tokens, kv_blocks, block_size: instead of the preset's. answer_tokens: least length at which an
    answer ends by itself; None: at its limit only. events, replay: ZeroMQ endpoints of KV events; None: none.
    connect_events: to a reader that has bound `events`. wide_hashes: 32 bytes instead of whole numbers.
    """

    host: str = "127.0.0.1"
    port: int = 8101
    engine: str = "mock"
    model: str = "mock"
    speed: float = 1.0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int = 32_768
    answer_tokens: int | None = 64
    events: str | None = None
    replay: str | None = None
    connect_events: bool = False
    wide_hashes: bool = False

    def spec(self) -> EngineSpec:
        """The engine that this says. Raises: ValueError."""
        if self.engine not in PRESETS:
            raise ValueError(f"no engine preset is called {self.engine!r}: there are {', '.join(PRESETS)}")
        spec = PRESETS[self.engine]
        if self.block_size is not None:
            spec = spec.scaled(self.block_size)
        changes: dict[str, Any] = {
            name: value for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks")
            if (value := getattr(self, name)) is not None}
        spec = replace(spec, **changes)
        if min(spec.max_num_seqs, spec.kv_blocks, spec.block_size) < 1 or not 0 < self.speed < float("inf"):
            raise ValueError("slots, blocks, block size and speed must be positive")
        if spec.max_num_batched_tokens < spec.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({spec.max_num_batched_tokens}) must not be below max_num_seqs "
                f"({spec.max_num_seqs})")
        return spec


class MockWorker:
    """A worker that is being served. url: of its server. publisher: of KV events, if any. requests: answered so far."""

    def __init__(self, config: MockConfig, url: str, publisher: Publisher | None) -> None:
        self.config, self.url, self.publisher = config, url, publisher
        self.engine = Engine(
            config.spec(), speed=config.speed, publish=None if publisher is None else publisher.publish)
        self.faults = Faults()
        self.requests = 0
        self._reader = Reader(config.model, config.max_model_len, config.answer_tokens)
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(self.engine, config.model))
        self._created = int(time.time())
        self._routes: dict[str, dict[str, Callable[[Request], Awaitable[None]]]] = {
            "/v1/chat/completions": {"POST": self._chat}, "/v1/completions": {"POST": self._completion},
            "/v1/models": {"GET": self._models}, "/health": {"GET": self._health}, "/ping": {"GET": self._health},
            "/metrics": {"GET": self._metrics}, "/version": {"GET": self._version},
            "/tokenize": {"POST": self._tokenize}, "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset_cache},
            "/mock/faults": {"POST": self._add_faults, "DELETE": self._clear_faults},
            "/mock/events": {"POST": self._lose_events}, "/mock/state": {"GET": self._state},
        }

    async def handle(self, request: Request) -> None:
        """Answer one request."""
        methods = self._routes.get(request.path)
        if methods is None:
            await request.respond(404, _JSON, b'{"detail":"Not Found"}')
            return
        method = methods.get(request.method)
        if method is None:
            allow = (b"allow", ", ".join(methods).encode())
            await request.respond(405, [*_JSON, allow], b'{"detail":"Method Not Allowed"}')
            return
        try:
            await method(request)
        except Refused as refused:
            await request.respond(refused.status, _JSON, refusal(refused))
        except NeverFits as error:
            await request.respond(400, _JSON, refusal(Refused(400, str(error))))

    # Answers.

    async def _chat(self, request: Request) -> None:
        await self._generate(request, self._reader.chat)

    async def _completion(self, request: Request) -> None:
        await self._generate(request, self._reader.completion)

    async def _generate(self, request: Request, read: Callable[[bytes], Ask]) -> None:
        ask = read(await request.body())
        self.requests += 1
        fault = self._fault(request)
        if fault is not None and not fault.after:
            if await self._fails_at_once(request, fault):
                return
            fault = None
        request_id = request.header(b"x-request-id")
        words = Answerer(ask, self.config.model, None if request_id is None else request_id.decode("latin-1"))
        with self.engine.generate(ask.prompt, ask.output_tokens, ask.salt) as tokens:
            if ask.stream:
                async with request.stream(200, _EVENTS) as stream:
                    await stream.send(b"")      # the head, at once: vLLM does not wait for the engine either
                    await self._stream(stream, words, tokens, fault)
            else:
                text = await tokens.rest()
                body = words.whole(text, tokens.count, tokens.cached)
                if fault is None or not await self._fails_halfway(request, fault, body):
                    await request.respond(200, _JSON, body)
        if tokens.ended:
            self.engine.outcomes["stop" if ask.ends else "length"] += 1

    async def _stream(self, stream: Stream, words: Answerer, tokens: Tokens, fault: Fault | None) -> None:
        made = chunks = 0
        lead = words.role()
        while True:
            parts = await tokens.next()
            if fault is None:
                parts = [b"".join(parts)]       # else one by one, so that a failure comes where it was asked for
            for number, part in enumerate(parts, 1):
                made += len(part) // TOKEN_BYTES
                chunks += 1
                last = tokens.ended and number == len(parts)
                chunk = lead + words.chunk(part, made, last)
                lead = b""
                if last:
                    await stream.finish(chunk + words.end(made, tokens.cached))
                    return
                await stream.send(chunk)
                if fault is not None and chunks == fault.after:
                    await self._fail_stream(stream, fault)
                    if fault.kind is not Kind.STALL:
                        return

    # Faults.

    def _fault(self, request: Request) -> Fault | None:
        header = request.header(b"x-mock-fault")
        try:
            return self.faults.take(None if header is None else header.decode("latin-1"))
        except ValueError as error:
            raise Refused(400, str(error), param="x-mock-fault") from error

    async def _fails_at_once(self, request: Request, fault: Fault) -> bool:
        """What goes wrong before the engine has been asked. False: the request goes on."""
        match fault.kind:
            case Kind.STATUS:
                refused = Refused(fault.status, "this failure was asked for", "MockFault")
                await request.respond(fault.status, [*_JSON, (b"retry-after", b"1")], refusal(refused))
            case Kind.STALL:
                await trio.sleep(fault.seconds)
                return False
            case Kind.CUT:
                raise ClientGone("this cut was asked for")
            case Kind.GARBAGE:
                await request.respond(200, _JSON, _GARBAGE)
            case _:
                async with request.stream(200, _EVENTS) as stream:
                    await self._fail_stream(stream, fault)
        return True

    async def _fails_halfway(self, request: Request, fault: Fault, body: bytes) -> bool:
        """What goes wrong in an answer that is not streamed, after its beginning. False: it goes on."""
        if fault.kind is Kind.STALL:
            await trio.sleep(fault.seconds)
            return False
        if fault.kind not in (Kind.CUT, Kind.GARBAGE):
            return False
        async with request.stream(200, _JSON) as stream:
            await stream.send(body[:len(body) // 2])
            await self._fail_stream(stream, fault)
        return True

    async def _fail_stream(self, stream: Stream, fault: Fault) -> None:
        match fault.kind:
            case Kind.STALL:
                await trio.sleep(fault.seconds)
            case Kind.CUT | Kind.STATUS:
                raise ClientGone("this cut was asked for")
            case Kind.GARBAGE:
                await stream.finish(_GARBAGE)
            case Kind.NO_FINISH:
                await stream.finish(DONE)
            case Kind.ERROR_EVENT:
                error = refusal(Refused(500, "the engine has failed", "InternalServerError"))
                await stream.finish(b"data: " + error + b"\n\n" + DONE)

    # The rest.

    async def _models(self, request: Request) -> None:
        await request.respond(200, _JSON, models(self.config.model, self.config.max_model_len, self._created))

    async def _health(self, request: Request) -> None:
        await request.respond(200, [])

    async def _version(self, request: Request) -> None:
        await request.respond(200, _JSON, b'{"version":"0.32.0+mock"}')

    async def _metrics(self, request: Request) -> None:
        await request.respond(200, _TEXT, generate_latest(self._registry))

    async def _tokenize(self, request: Request) -> None:
        tokens = self._reader.tokenize(await request.body()).tolist()
        await request.respond(200, _JSON, _encode({
            "count": len(tokens), "max_model_len": self.config.max_model_len, "tokens": tokens, "token_strs": None}))

    async def _detokenize(self, request: Request) -> None:
        await request.respond(200, _JSON, _encode({"prompt": decode(self._reader.detokenize(await request.body()))}))

    async def _reset_cache(self, request: Request) -> None:
        await request.respond(200 if self.engine.model.clear_cache() else 409, [])

    async def _add_faults(self, request: Request) -> None:
        asked = self._object(await request.body())
        try:
            self.faults.add(parse(str(asked.get("fault"))), int(asked.get("times", 1)))
        except (ValueError, TypeError) as error:
            raise Refused(400, str(error)) from error
        await request.respond(200, _JSON, _encode({"waiting": len(self.faults)}))

    async def _clear_faults(self, request: Request) -> None:
        self.faults.clear()
        await request.respond(200, _JSON, b'{"waiting":0}')

    async def _lose_events(self, request: Request) -> None:
        lose = self._object(await request.body()).get("lose", 0)
        if self.publisher is None or not isinstance(lose, int) or lose < 0:
            raise Refused(400, "lose: how many messages of a worker that publishes", param="lose")
        self.publisher.lose = lose
        await request.respond(200, _JSON, _encode({"number": self.publisher.number, "lose": lose}))

    async def _state(self, request: Request) -> None:
        model = self.engine.model
        await request.respond(200, _JSON, _encode({
            "requests": self.requests, "running": len(model.running), "waiting": len(model.waiting),
            "outcomes": self.engine.outcomes, "free_blocks": model.cache.free, "named_blocks": model.cache.named,
            "prompt_tokens": model.totals.prompt_tokens, "cached_tokens": model.totals.hits,
            "output_tokens": model.totals.output_tokens, "faults": len(self.faults),
        }))

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(body or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise Refused(400, str(error)) from error


async def serve_mock(
    config: MockConfig, *, task_status: trio.TaskStatus[MockWorker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, which cuts what is under way. Tells task_status the worker.

    Raises: ValueError for a configuration that cannot be; OSError, zmq.ZMQError for an address that is taken.
    """
    spec = config.spec()
    with ExitStack() as stack:
        listeners = await listen(config.host, config.port)
        for listener in listeners:
            stack.callback(listener.socket.close)
        host, port = listeners[0].socket.getsockname()[:2]
        publisher = None
        if config.events is not None:
            publisher = stack.enter_context(open_publisher(
                config.events, config.replay, f"kv@{host}:{port}@{config.model}", spec.block_size,
                wide=config.wide_hashes, connect=config.connect_events))
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        worker = MockWorker(config, url, publisher)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.engine.run)
            if publisher is not None:
                nursery.start_soon(publisher.run)
            limits = Limits(connections=65_536, body_bytes=64 * 2**20)
            await nursery.start(serve_http, listeners, worker.handle, limits)
            task_status.started(worker)
