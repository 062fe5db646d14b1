"""The fleet: which worker an id is, and what is known of it from outside the scheduler. One look-up per dispatch.

A worker has an id of its own for good: ids are counted and never used again. A probe asks each one for /health; one
that does not answer is marked unavailable in the scheduler under the source "health", until it answers again. A worker
that could not even be connected to has died: when it is back, it is another incarnation, with an empty cache.

Never here: loads and choices (the scheduler's), requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from enum import Enum
from typing import Protocol

import msgspec
import trio

from kvcore.events import WorkerStatusChanged

from ..http.client import Pool
from ..http.tls import trusting
from ..http.values import ConnectFailed, Headers, UpstreamError
from ..protocol import Closed
from ..trio import Router
from .upstreams import UpstreamSpec

#: Sources of marks: what the scheduler is told of a worker's state.
HEALTH, ADMIN = "health", "admin"
#: Probes between two looks at the models of a worker.
MODELS_EVERY = 6
_JSON: Headers = [(b"content-type", b"application/json")]

log = logging.getLogger("kvcore.gateway")


class Health(Enum):
    """What the last probe has found."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


class Follower(Protocol):
    """Whoever reads the workers' KV events."""

    def follow(self, worker: Worker) -> None:
        """A worker is there, or is another incarnation."""

    def forget(self, worker_id: int) -> None:
        """It is gone."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Worker:
    """One upstream. is_draining: it gets nothing new. models: that it says it serves; None: it has not said.

    running: requests that are under way there. trouble: why the last probe failed, or "". paused_until_s: until when
    it is to be left alone, by trio's clock. is_leaving: it is removed as soon as nothing runs there.
    """

    __slots__ = (
        "_look", "health", "incarnation", "is_draining", "is_leaving", "models", "paused_until_s", "pool", "probes",
        "running", "scope", "spec", "trouble", "was_refused", "worker_id",
    )

    def __init__(self, worker_id: int, spec: UpstreamSpec, connect_s: float) -> None:
        self.worker_id, self.spec, self.incarnation = worker_id, spec, 0
        tls = trusting(spec.ca_file) if spec.is_tls else None
        self.pool = Pool(*spec.address, connect_s=connect_s, tls=tls)
        self.health, self.is_draining, self.was_refused = Health.UNKNOWN, False, False
        self.is_leaving = False
        self.models: tuple[str, ...] | None = None
        self.running = self.probes = 0
        self.paused_until_s = 0.0
        self.trouble = ""
        self.scope = trio.CancelScope()
        self._look = trio.Event()

    def pause(self, pause_ns: int) -> int:
        """It is to be left alone for so long, which is also returned."""
        self.paused_until_s = max(self.paused_until_s, trio.current_time() + pause_ns / 1e9)
        return pause_ns

    def suspect(self, refused: bool = False) -> None:
        """Something has gone wrong there: probe it now. refused: nobody listens there."""
        self.was_refused |= refused
        self._look.set()

    async def until_looked_at(self, interval_s: float) -> None:
        """Sleep until the next probe is due."""
        with trio.move_on_after(interval_s):
            await self._look.wait()
        self._look = trio.Event()


class Fleet:
    """All workers by id. lookups: how often one was asked for: once per dispatch, whatever their number."""

    def __init__(
        self, router: Router, nursery: trio.Nursery, *, connect_s: float = 5.0, probe_s: float = 2.0,
        interval_s: float = 5.0, follower: Follower | None = None,
    ) -> None:
        self._router, self._nursery, self._follower = router, nursery, follower
        self._connect_s, self._probe_s, self._interval_s = connect_s, probe_s, interval_s
        self._workers: dict[int, Worker] = {}
        self._by_model: dict[str, frozenset[int] | None] = {}
        self._is_silent, self._is_stale = False, True
        self._urls: set[str] = set()
        self._turn = self._next_id = self.lookups = 0

    # Looking.

    def get(self, worker_id: int) -> Worker | None:
        """The worker of a decision; None: it has been removed since."""
        self.lookups += 1
        return self._workers.get(worker_id)

    def at(self, url: str) -> Worker | None:
        """The worker of an address. O(workers)."""
        return next((worker for worker in self._workers.values() if worker.spec.url == url), None)

    def __iter__(self) -> Iterator[Worker]:
        """All of them, in the order of their ids."""
        return iter(tuple(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def is_ready(self) -> bool:
        """Whether some worker takes requests, as far as is known."""
        return any(item.health is Health.UP and not item.is_draining for item in self._workers.values())

    @property
    def models(self) -> tuple[str, ...]:
        """All that some worker says it serves, in the order in which they became known."""
        return tuple(self._models())

    @property
    def is_silent(self) -> bool:
        """Whether some worker has not said what it serves."""
        self._models()
        return self._is_silent

    def serving(self, model: str) -> frozenset[int] | None:
        """The workers that serve a model; None: all of them. Raises KeyError for one that nobody serves."""
        return self._models()[model]

    def pause_left_ns(self) -> int | None:
        """How long until the first of the workers that are left alone may be used again; None: none is. O(workers)."""
        now = trio.current_time()
        left_s = [item.paused_until_s - now for item in self._workers.values() if item.paused_until_s > now]
        return round(min(left_s) * 1e9) if left_s else None

    # Changing.

    async def add(self, spec: UpstreamSpec) -> Worker:
        """One more. Raises ValueError where that address is there already."""
        if spec.url in self._urls:
            raise ValueError(f"{spec.url} is there already")
        worker = Worker(self._next_id, spec, self._connect_s)
        self._next_id += 1
        self._workers[worker.worker_id] = worker
        self._urls.add(spec.url)
        self._is_stale = True
        await self._router.upsert_worker(spec.worker(worker.worker_id), 0)
        if self._follower is not None:
            self._follower.follow(worker)
        self._nursery.start_soon(self._watch, worker)
        return worker

    async def remove(self, worker_id: int) -> bool:
        """It is gone: what runs there goes back to its place, if nothing of it has been answered. False: unknown."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return False
        self._urls.discard(worker.spec.url)
        self._is_stale = True
        worker.scope.cancel()
        if self._follower is not None:
            self._follower.forget(worker_id)
        worker.pool.close()
        await self._router.remove_worker(worker_id)
        return True

    async def drain(self, worker_id: int, draining: bool = True) -> bool:
        """Let it finish what runs, and give it nothing more; or take that back. False: unknown."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        worker.is_draining = draining
        worker.is_leaving &= draining
        await self._mark(worker, ADMIN, not draining)
        return True

    async def retire(self, worker_id: int) -> bool:
        """Give it nothing more, and remove it once nothing runs there, an interval of the probes later at most."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        worker.is_leaving = True
        await self.drain(worker_id)
        worker.suspect()
        return True

    async def change(self, worker_id: int, spec: UpstreamSpec) -> bool:
        """Something else is known of it; its address is the same."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return False
        worker.spec = spec
        await self._router.upsert_worker(spec.worker(worker_id), worker.incarnation)
        return True

    def close(self) -> None:
        """Probe no more, close what is idle."""
        for worker in self._workers.values():
            worker.scope.cancel()
            worker.pool.close()

    # Asking.

    async def ask(self, body: bytes) -> bytes | None:
        """What some worker's /tokenize answers; None: none does. They take turns."""
        candidates = [
            item for item in self._workers.values() if item.health is not Health.DOWN and not item.is_draining]
        self._turn += 1
        for offset in range(min(2, len(candidates))):
            worker = candidates[(self._turn + offset) % len(candidates)]
            try:
                status, _, answer = await worker.pool.fetch(
                    "POST", "/tokenize", _JSON, body, timeout_s=self._probe_s)
            except UpstreamError:
                continue
            return answer if status == 200 else None
        return None

    # Probing.

    async def _watch(self, worker: Worker) -> None:
        with worker.scope:
            while not worker.is_leaving or worker.running:
                try:
                    await self._probe(worker)
                except Closed:
                    return
                except Exception:
                    log.exception("a probe has failed", extra={"worker_id": worker.worker_id})
                await worker.until_looked_at(self._interval_s)
                worker.pool.sweep()
        if worker.is_leaving:
            log.info("worker %d (%s) has gone: nothing runs there any more", worker.worker_id, worker.spec.url)
            await self.remove(worker.worker_id)

    async def _probe(self, worker: Worker) -> None:
        worker.probes += 1
        try:
            status, _, _ = await worker.pool.fetch("GET", "/health", [], timeout_s=self._probe_s)
            worker.trouble = "" if status == 200 else f"/health answers {status}"
        except UpstreamError as error:
            worker.was_refused |= isinstance(error, ConnectFailed) and error.refused
            worker.trouble = str(error) or type(error).__name__
        if worker.trouble:
            if worker.health is not Health.DOWN:
                log.warning("worker %d (%s) is down: %s", worker.worker_id, worker.spec.url, worker.trouble)
                worker.health = Health.DOWN
                await self._mark(worker, HEALTH, False)
            return
        if worker.health is Health.DOWN or worker.was_refused:
            log.info("worker %d (%s) is up", worker.worker_id, worker.spec.url)
            await self._revive(worker)
        worker.health = Health.UP
        if worker.models is None or worker.probes % MODELS_EVERY == 0:
            await self._ask_models(worker)

    async def _revive(self, worker: Worker) -> None:
        if worker.was_refused:
            worker.was_refused = False
            worker.incarnation += 1
            await self._router.upsert_worker(worker.spec.worker(worker.worker_id), worker.incarnation)
            if worker.is_draining:
                await self._mark(worker, ADMIN, False)
            if self._follower is not None:
                self._follower.follow(worker)
        else:
            await self._mark(worker, HEALTH, True)

    async def _mark(self, worker: Worker, source: str, available: bool) -> None:
        await self._router.submit(
            WorkerStatusChanged, worker.worker_id, worker.incarnation, source=source, available=available)

    async def _ask_models(self, worker: Worker) -> None:
        try:
            status, _, body = await worker.pool.fetch("GET", "/v1/models", [], timeout_s=self._probe_s)
            models = tuple(item.id for item in msgspec.json.decode(body, type=_Models).data) if status == 200 else None
        except (UpstreamError, msgspec.MsgspecError):
            return
        if models != worker.models and self._workers.get(worker.worker_id) is worker:
            worker.models = models
            self._is_stale = True

    def _models(self) -> dict[str, frozenset[int] | None]:
        """Which model is served where, None: everywhere; made anew once after each change. A worker that does not say
        serves them all.
        """
        if not self._is_stale:
            return self._by_model
        self._is_stale = False
        silent = {item.worker_id for item in self._workers.values() if item.models is None}
        self._is_silent = bool(silent)
        where: dict[str, set[int]] = {}
        for worker in self._workers.values():
            for model in worker.models or ():
                where.setdefault(model, set(silent)).add(worker.worker_id)
        everywhere = set(self._workers)
        self._by_model = {
            model: None if ids == everywhere else frozenset(ids) for model, ids in where.items()}
        return self._by_model
