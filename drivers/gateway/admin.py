"""The administrators' interface: JSON over HTTP on a loopback listener of its own, never on the public port.

    GET    /admin/workers                 who is there, and how they are
    POST   /admin/workers                 {"url": "http://...", ...}: one more; keys as in a configuration file
    POST   /admin/workers/ID/drain        nothing new goes there; what runs may finish
    POST   /admin/workers/ID/resume       takes that back
    DELETE /admin/workers/ID              it is gone; what runs there is put back
    GET    /admin/queue?limit=N           what waits, without anything of its content
    GET    /admin/policy                  the policy in force, as a policy file
    POST   /admin/reload                  read the policy and the workers again; answers what has changed
    GET    /admin/config                  the effective configuration, and where each value came from
    GET    /admin/explain/ID              why this request is where it is (x-kvcore-request-id); ?format=text
    GET    /admin/decisions?limit=N       the last decisions, each with its score table
    GET    /admin/stats, /admin/loads     counters; load of every rank

A page in somebody's browser can reach loopback: whatever comes with `Origin`, from another site, or for a host that is
not this one by name is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import msgspec
import trio

from kvcore import explanation_text
from kvcore.errors import InvalidPolicy
from kvcore.scheduler import Scheduler

from ..http.request import Request
from ..http.values import HttpError
from ..trio import Router
from .config import dump
from .config_file import InvalidGatewayConfig, read_file
from .errors import Errors
from .fleet import Fleet, Worker
from .policy_desk import PolicyDesk, as_text
from .refusals import Refused, Trouble
from .reload import Reloader, report
from .upstreams import is_loopback

BODY_BYTES_MAX = 64 << 10
LIMIT_DEFAULT, LIMIT_MAX = 100, 10_000

log = logging.getLogger("kvcore.gateway")

#: What describes a worker: nothing deep.
_WISH = msgspec.json.Decoder(str | dict[str, str | int | float | bool | list[str] | None])

Call = Callable[[Request, str], Awaitable[Any]]


class PlainText(str):
    """An answer that is text."""

    __slots__ = ()


class Admin:
    """Handles the administrators' requests. places: where settings came from, by key."""

    def __init__(
        self, router: Router, fleet: Fleet, desk: PolicyDesk, errors: Errors, places: Mapping[str, str] | None = None,
        reloader: Reloader | None = None,
    ) -> None:
        self._reloader = reloader or Reloader(desk, router, fleet)
        self._router, self._fleet, self._desk, self._errors = router, fleet, desk, errors
        self._places = dict(places or {})
        self._calls: dict[tuple[str, str], Call] = {
            ("GET", "workers"): self._workers, ("POST", "workers"): self._add,
            ("GET", "queue"): self._queue, ("GET", "policy"): self._policy, ("POST", "reload"): self._reload,
            ("GET", "config"): self._config, ("GET", "explain/*"): self._explain,
            ("GET", "decisions"): self._decisions, ("GET", "stats"): self._stats, ("GET", "loads"): self._loads,
            ("POST", "workers/*/drain"): self._drain, ("POST", "workers/*/resume"): self._resume,
            ("DELETE", "workers/*"): self._remove,
        }

    async def handle(self, request: Request) -> None:
        """One request; every outcome is an answer."""
        try:
            check_origin(request)
            call, argument = self._route(request)
            result = await call(request, argument)
        except (Refused, HttpError, InvalidPolicy, InvalidGatewayConfig, ValueError) as error:
            if not isinstance(error, Refused | HttpError):
                error = Refused(Trouble.MALFORMED, str(error))
            await request.respond(*self._errors.answer(error))
            return
        if isinstance(result, PlainText):
            await request.respond(200, [(b"content-type", b"text/plain; charset=utf-8")], result.encode())
        else:
            await request.respond(200, [(b"content-type", b"application/json")], msgspec.json.encode(result))

    def _route(self, request: Request) -> tuple[Call, str]:
        prefix, _, rest = request.path.removeprefix("/").partition("/")
        parts = rest.split("/")
        argument = parts[1] if len(parts) > 1 else ""
        pattern = "/".join([parts[0], *["*"] * (len(parts) > 1), *parts[2:]])
        methods = {method: call for (method, known), call in self._calls.items() if known == pattern}
        if prefix != "admin" or not methods or (len(parts) > 1 and not argument):
            raise Refused(Trouble.UNKNOWN_PATH)
        if request.method not in methods:
            raise Refused(Trouble.WRONG_METHOD, f"Only {', '.join(sorted(methods))} can be asked of this path.")
        return methods[request.method], argument

    # Workers.

    async def _workers(self, request: Request, argument: str) -> Any:
        await trio.lowlevel.checkpoint()
        return {"workers": [_row(worker) for worker in self._fleet]}

    async def _add(self, request: Request, argument: str) -> Any:
        try:
            wish = _WISH.decode(await request.body(BODY_BYTES_MAX))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Refused(
                Trouble.MALFORMED, f"The body must be an address, or an object with its url: {error}") from error
        # JSON is YAML, so one reader checks what an administrator and what a file says of a worker.
        text = msgspec.json.encode({"workers": [wish]}).decode()
        (spec,) = read_file(text, "request", type(self._desk.config))["workers"].value
        try:
            worker = await self._fleet.add(spec)
        except ValueError as error:
            raise Refused(Trouble.CONFLICT, str(error)) from error
        log.info("worker %d added: %s", worker.worker_id, spec.url)
        return _row(worker)

    async def _drain(self, request: Request, argument: str) -> Any:
        return await self._change("drained", self._fleet.drain, argument)

    async def _resume(self, request: Request, argument: str) -> Any:
        return await self._change("resumed", partial(self._fleet.drain, draining=False), argument)

    async def _remove(self, request: Request, argument: str) -> Any:
        return await self._change("removed", self._fleet.remove, argument)

    async def _change(self, word: str, change: Callable[[int], Awaitable[bool]], argument: str) -> Any:
        worker_id = int(argument) if argument.isascii() and argument.isdigit() and len(argument) <= 20 else -1
        if not 0 <= worker_id < 2**64 or not await change(worker_id):
            raise Refused(Trouble.NOT_FOUND, "There is no such worker.")
        log.info("worker %d %s", worker_id, word)
        return {"id": worker_id, "is": word}

    # Policy and configuration.

    async def _policy(self, request: Request, argument: str) -> Any:
        await trio.lowlevel.checkpoint()
        return PlainText(as_text(self._desk.profile) or "# no policy: one class takes every request\n")

    async def _reload(self, request: Request, argument: str) -> Any:
        changes = await self._reloader()
        report(changes)
        return {
            "changed": bool(changes.diff or changes.workers), "generation": self._desk.generation,
            "diff": changes.diff, "workers": changes.workers, "needs_restart": changes.restart}

    async def _config(self, request: Request, argument: str) -> Any:
        await trio.lowlevel.checkpoint()
        return {"config": dump(self._desk.config), "given": self._places}

    # The scheduler.

    async def _queue(self, request: Request, argument: str) -> Any:
        entries = await self._router.queue_dump(_limit(request))
        return {"queue": [_plain(entry) for entry in entries]}

    async def _explain(self, request: Request, argument: str) -> Any:
        explanation = await self._router.explain(argument)
        if explanation.state == "unknown":
            raise Refused(Trouble.NOT_FOUND, "This request is not known, or not any more.")
        return PlainText(explanation_text(explanation)) if _wants_text(request) else _plain(explanation)

    async def _decisions(self, request: Request, argument: str) -> Any:
        decisions = await self._router.read(Scheduler.decisions)
        return {"decisions": [_plain(item) for item in decisions[-_limit(request):]]}

    async def _stats(self, request: Request, argument: str) -> Any:
        return _plain(await self._router.stats())

    async def _loads(self, request: Request, argument: str) -> Any:
        loads = await self._router.loads()
        names = loads.dtype.names or ()
        return {"loads": [dict(zip(names, row, strict=True)) for row in loads.tolist()]}


def check_origin(request: Request) -> None:
    """Refuse what a page in a browser could have sent. Raises: Refused(FORBIDDEN)."""
    host = (request.header(b"host") or b"").decode("latin-1")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    site = request.header(b"sec-fetch-site") or b"none"
    if request.header(b"origin") is not None or site != b"none" or not is_loopback(name):
        raise Refused(Trouble.FORBIDDEN)


def _row(worker: Worker) -> dict[str, Any]:
    """A worker as administrators see it; None: it has not said which models it serves."""
    return {
        "id": worker.worker_id, "url": worker.spec.url, "health": worker.health.value, "trouble": worker.trouble,
        "draining": worker.is_draining, "running": worker.running, "incarnation": worker.incarnation,
        "models": worker.models,
    }


def _plain(value: Any) -> Any:
    """Frozen values of the core as JSON has them."""
    return msgspec.to_builtins(value)


def _limit(request: Request) -> int:
    text = parse_qs(request.query).get("limit", [str(LIMIT_DEFAULT)])[-1]
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= LIMIT_MAX):
        raise Refused(Trouble.MALFORMED, f"limit must be 1..{LIMIT_MAX}", param="limit")
    return int(text)


def _wants_text(request: Request) -> bool:
    return parse_qs(request.query).get("format", ["json"])[-1] == "text"
