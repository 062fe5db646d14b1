"""The public API: which path is what, and one completion from its bytes to its last answer."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable

import msgspec

import kvcore
from kvcore.errors import InvalidEvent
from kvcore.request import Request

from ..http.request import Request as HttpRequest
from ..http.server import Server
from ..http.values import Answer, ClientGone, Headers, HttpError, UpstreamError
from ..protocol import DriverError, Rejected
from .bodies import Body, parse
from .echo import Echo, client_id
from .errors import Reason
from .figures import Figures
from .fleet import Worker
from .hints import Hints
from .metrics import Scraper
from .policy_desk import PolicyDesk
from .prompts import PromptMeter
from .proxy import Means, Passage
from .refusals import Refused, Trouble

JSON: Headers = [(b"content-type", b"application/json")]
#: Most answers that one request can ask for, as far as they are counted.
CHOICES_MAX = 128

log = logging.getLogger("kvcore.gateway")


class App:
    """Answers the public port. is_draining: nothing new is let in. inside: completions that are waiting or running.

    answered: responses by status; what ended otherwise is counted under 499.
    """

    def __init__(self, desk: PolicyDesk, means: Means, meter: PromptMeter, scrape: Scraper) -> None:
        self.means, self.fleet, self.scrape = means, means.fleet, scrape
        self.server: Server | None = None
        self.is_draining = False
        self.inside = 0
        self.answered: dict[int, int] = {}
        self.figures = Figures()
        self._desk, self._meter = desk, meter
        self._limits, self._models_served = desk.config.limits, desk.config.models
        self._prefix, self._count = secrets.token_hex(4), itertools.count(1)
        self._routes: dict[str, tuple[str, Callable[[HttpRequest], Awaitable[None]]]] = {
            "/v1/chat/completions": ("POST", self._chat), "/v1/completions": ("POST", self._complete),
            "/v1/models": ("GET", self._models), "/health": ("GET", self._health), "/live": ("GET", self._health),
            "/ready": ("GET", self._ready), "/metrics": ("GET", self._metrics), "/version": ("GET", self._version),
        }

    def refuse(self, error: HttpError) -> Answer:
        """Words what went wrong before there was a request."""
        what: Reason | HttpError = error
        if error.status == 503:
            what = Trouble.GATEWAY_FULL
        elif error.status == 500:
            what = Trouble.INTERNAL
        answer = self.means.errors.answer(what)
        self._note(answer.status)
        return answer.status, answer.headers + self._echo(None).headers(), answer.body

    def _echo(self, said: bytes | None) -> Echo:
        """Of a request that has just come. said: the id that its client gives it."""
        own_id = f"{self._prefix}-{next(self._count)}"
        return Echo(client_id(said, own_id), own_id)

    async def handle(self, request: HttpRequest) -> None:
        """One request, whatever it is."""
        method, handler = self._routes.get(request.path, ("", None))
        if handler is None and request.path.startswith("/v1/models/"):
            method, handler = "GET", self._model
        if handler is None:
            await self._answer(request, self.means.errors.answer(Trouble.UNKNOWN_PATH))
        elif request.method != method and not (method == "GET" and request.method == "HEAD"):
            status, headers, body = self.means.errors.answer(Trouble.WRONG_METHOD)
            await self._answer(request, (status, [*headers, (b"allow", method.encode())], body))
        else:
            await handler(request)

    # Completions.

    async def _chat(self, request: HttpRequest) -> None:
        await self._completion(request, chat=True)

    async def _complete(self, request: HttpRequest) -> None:
        await self._completion(request, chat=False)

    async def _completion(self, request: HttpRequest, *, chat: bool) -> None:
        echo = self._echo(request.header(b"x-request-id"))
        arrived_ns = self.means.router.now_ns()
        self.inside += 1
        status = 499
        try:
            status = await self._serve(request, echo, chat)
            if status == 200:
                first_ns = None if echo.first_ns is None else echo.first_ns - arrived_ns
                self.figures.answered(echo.policy_class, first_ns, self.means.router.now_ns() - arrived_ns)
        except ClientGone:
            raise
        except Exception as error:
            if request.started:
                raise
            if not isinstance(error, Refused | DriverError | UpstreamError | HttpError):
                log.exception("a request has failed", extra={"request_id": echo.own_id})
            if isinstance(error, DriverError):
                echo.queue_ns = echo.queue_ns or self.means.router.now_ns() - arrived_ns
            if isinstance(error, Rejected):
                echo.policy_class = self._desk.class_name(error.action.class_index) or echo.policy_class
            answer = self.means.errors.answer(error)
            status = answer.status
            await request.respond(status, answer.headers + echo.headers(), answer.body)
        finally:
            self.inside -= 1
            self._note(status)

    async def _serve(self, request: HttpRequest, echo: Echo, chat: bool) -> int:
        """Answer it; with which status."""
        limits = self._limits
        data = await request.body(limits.body_bytes)
        if self.is_draining:
            raise Refused(Trouble.DRAINING)
        if self.inside > limits.queue:
            raise Refused(Trouble.GATEWAY_FULL)
        body = parse(data)
        allowed = self._serving(body)
        hints = self._desk.hints.read(request.headers, body)
        echo.hints, echo.policy_class = hints, hints.policy_class
        measured = await self._meter.measure(body, chat=chat)
        echo.source = measured.source.value
        asked = self._asked(echo.own_id, measured.tokens, measured.hashes, hints, allowed)
        choices = min(body.n or 1, CHOICES_MAX)
        passage = Passage(self.means, request, asked, data, echo, choices)
        try:
            await passage.run()
        except InvalidEvent as error:
            raise Refused(Trouble.MALFORMED, "The request cannot be scheduled.") from error
        usage = passage.usage
        if usage is not None:
            self._meter.learn(measured, usage.prompt_tokens)
            self.figures.used(
                echo.policy_class, usage.prompt_tokens, echo.expected_cached, usage.cached_tokens, usage.output_tokens)
        return passage.status

    def _serving(self, body: Body) -> frozenset[int] | None:
        """The workers that may have it; None: all. Names are checked as far as they are known."""
        model, names = body.model, self._models_served
        if model is None:
            return None
        if names:
            if model not in names:
                raise Refused(Trouble.UNKNOWN_MODEL, f"The model {model[:128]!r} does not exist.", param="model")
            return None
        try:
            return self.fleet.serving(model)
        except KeyError:
            if not self.fleet.models or self.fleet.is_silent:
                return None
            raise Refused(
                Trouble.UNKNOWN_MODEL, f"The model {model[:128]!r} does not exist.", param="model") from None

    def _asked(
        self, own_id: str, tokens: int, hashes: tuple[int, ...], hints: Hints, allowed: frozenset[int] | None,
    ) -> Request:
        deadline_ns = None if hints.max_wait_ns is None else self.means.router.now_ns() + hints.max_wait_ns
        chosen = hints.allowed_workers
        if chosen is not None:
            allowed = chosen if allowed is None else chosen & allowed
        return Request(
            own_id, tokens, policy_class=hints.policy_class, strict_priority=hints.strict_priority,
            priority_jump=hints.priority_jump, deadline_ns=deadline_ns, do_not_queue=hints.do_not_queue,
            pinned=hints.pinned, allowed_workers=allowed, block_hashes=hashes, session_id=hints.session_id,
            expected_output_tokens=hints.expected_output_tokens)

    # The rest.

    async def _models(self, request: HttpRequest) -> None:
        rows = [_model(name) for name in self._model_names()]
        await self._answer(request, (200, JSON, msgspec.json.encode({"object": "list", "data": rows})))

    async def _model(self, request: HttpRequest) -> None:
        name = request.path.removeprefix("/v1/models/")
        if name in self._model_names():
            await self._answer(request, (200, JSON, msgspec.json.encode(_model(name))))
        else:
            await self._answer(request, self.means.errors.answer(Trouble.UNKNOWN_MODEL))

    def _model_names(self) -> tuple[str, ...]:
        return self._models_served or self.fleet.models

    async def _health(self, request: HttpRequest) -> None:
        await self._answer(request, (200, JSON, b'{"status":"ok"}'))

    async def _ready(self, request: HttpRequest) -> None:
        is_ready = self.fleet.is_ready and not self.is_draining
        body = msgspec.json.encode({
            "status": "draining" if self.is_draining else "ready" if is_ready else "no worker",
            "workers": [_state(worker) for worker in self.fleet]})
        await self._answer(request, (200 if is_ready else 503, JSON, body))

    async def _metrics(self, request: HttpRequest) -> None:
        text, kind = await self.scrape()
        await self._answer(request, (200, [(b"content-type", kind)], text))

    async def _version(self, request: HttpRequest) -> None:
        await self._answer(request, (200, JSON, msgspec.json.encode({"version": kvcore.__version__})))

    async def _answer(self, request: HttpRequest, answer: Answer) -> None:
        status, headers, body = answer
        self._note(status)
        await request.respond(status, headers, body)

    def _note(self, status: int) -> None:
        self.answered[status] = self.answered.get(status, 0) + 1


def _model(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "kvcore"}


def _state(worker: Worker) -> dict[str, int | str | bool]:
    """What anybody may know of a worker: not where it is."""
    return {"worker_id": worker.worker_id, "health": worker.health.value, "draining": worker.is_draining}
