"""The composition: one configuration becomes a scheduler, a fleet, listeners; and an end in good order.

    await run(PolicyDesk(config), places)                # until SIGTERM or SIGINT: the program

    async with trio.open_nursery() as nursery:           # in a program of your own
        gateway = await nursery.start(serve, PolicyDesk(config))
        gateway.port, gateway.fleet, gateway.router
        gateway.stop()                                   # drains; serve returns when it is done

The end: /ready says 503, what waits and what comes is told 503, what runs may finish within timeouts.drain_s, then the
listeners close. A second signal cuts everything.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from kvcore.admission import Factory
from kvcore.config import IndexMode
from kvcore.errors import KvcoreError

from ..http.connection import Handler, Refuse
from ..http.server import Server, listen, serve_http
from ..http.values import Limits
from ..kvevents.feed import KvFeed, Source, open_feed
from ..kvevents.names import BlockNames
from ..kvevents.sockets import of_rank
from ..metrics import SchedulerCollector
from ..trio import Router, open_scheduler
from .admin import Admin
from .app import App
from .config import GatewayConfig
from .errors import Errors, Wait
from .fleet import Fleet, Worker
from .metrics import Scraper
from .policy_desk import PolicyDesk
from .prompts import PromptMeter
from .proxy import Means
from .reload import Again, Reloader, report
from .retry_after import SECOND_NS, Jitter, Pace

ADMIN_LIMITS = Limits(connections=64, body_bytes=2**20)
#: After a drain, how long answers that are still on their way may take.
LAST_WORDS_S = 5.0

log = logging.getLogger("kvcore.gateway")


class Following:
    """What tells the feed of KV events which workers there are."""

    def __init__(self, feed: KvFeed) -> None:
        self.feed = feed

    def follow(self, worker: Worker) -> None:
        """See Follower."""
        spec = worker.spec
        self.feed.add(Source(
            worker.worker_id, _of_rank_0(spec.kv_events, spec.dp_start),
            replay=_of_rank_0(spec.kv_replay, spec.dp_start), incarnation=worker.incarnation, dp_start=spec.dp_start,
            dp_size=spec.dp_size, bind=spec.kv_bind, capacity_blocks=spec.total_kv_blocks))

    def forget(self, worker_id: int) -> None:
        """See Follower."""
        self.feed.remove(worker_id)


def _of_rank_0(endpoint: str | None, dp_start: int) -> str | None:
    """The feed counts endpoints from rank 0, a specification from the worker's first rank."""
    return of_rank(endpoint, -dp_start) if endpoint is not None and dp_start else endpoint


class Gateway:
    """One that runs. port, admin_port: those that are listened on; None: no admin port. feed: of KV events, or None.
    reload: takes over what has changed in the files.
    """

    def __init__(
        self, desk: PolicyDesk, router: Router, fleet: Fleet, app: App, errors: Errors, feed: KvFeed | None,
    ) -> None:
        self.desk, self.router, self.fleet, self.app, self.errors, self.feed = desk, router, fleet, app, errors, feed
        self.reload = Reloader(desk, router, fleet)
        self.port = 0
        self.admin_port: int | None = None
        self._stopping = trio.Event()
        self._drained_ns: int | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether the end has begun."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Begin the end. Waits for nothing."""
        self.app.is_draining = True
        self._stopping.set()

    def left_ns(self) -> int | None:
        """How long the drain may still take; None: there is none."""
        return None if self._drained_ns is None else max(0, self._drained_ns - self.router.now_ns())

    async def until_drained(self) -> None:
        """Wait for the end to begin, and until nothing runs any more."""
        await self._stopping.wait()
        grace_ns = round(self.desk.config.timeouts.drain_s * SECOND_NS)
        self._drained_ns = self.router.now_ns() + grace_ns
        log.info("draining: %d requests inside", self.app.inside)
        await self.router.drain(grace_ns)


async def serve(
    desk: PolicyDesk, places: Mapping[str, str] | None = None, *,
    admission: Mapping[str, Factory] | None = None, again: Again | None = None,
    task_status: trio.TaskStatus[Gateway] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a gateway until it is stopped and drained. Tells task_status the Gateway. Raises OSError for its ports.

    places: where settings came from, for administrators. admission: see Scheduler. again: reads the configuration once
    more, for a reload; None: only the policy can be reloaded.
    """
    config = desk.config
    listeners = await listen(config.listen.host, config.listen.port)
    inner: Sequence[trio.SocketListener] = ()
    if config.admin.port is not None:
        try:
            inner = await listen(config.admin.host, config.admin.port)
        except BaseException:
            _close(listeners)
            raise
    try:
        async with _open(desk, admission) as gateway, trio.open_nursery() as nursery:
            gateway.port = _port_of(listeners)
            gateway.reload = Reloader(desk, gateway.router, gateway.fleet, again)
            public: Server = await nursery.start(
                _serve_http, listeners, gateway.app.handle, _limits(config), gateway.app.refuse)
            gateway.app.server = public
            if inner:
                gateway.admin_port = _port_of(inner)
                admin = Admin(gateway.router, gateway.fleet, desk, gateway.errors, places, gateway.reload)
                await nursery.start(_serve_http, inner, admin.handle, ADMIN_LIMITS, gateway.app.refuse)
            for warning in desk.warnings:
                log.warning("policy: %s", warning)
            log.info("listening on %s:%d", config.listen.host, gateway.port)
            if gateway.admin_port is not None:
                log.info("administration on %s:%d", config.admin.host, gateway.admin_port)
            if not config.workers:
                log.warning("no worker is named: nothing is answered until one is (--worker, POST /admin/workers)")
            task_status.started(gateway)
            await gateway.until_drained()
            public.stop()
            with trio.move_on_after(LAST_WORDS_S):
                await public.ended.wait()
            nursery.cancel_scope.cancel()
    finally:
        _close(listeners)
        _close(inner)


async def run(desk: PolicyDesk, places: Mapping[str, str] | None = None, again: Again | None = None) -> None:
    """The program: until SIGTERM or SIGINT, and the drain that follows; a second one ends it at once.

    SIGHUP reads the policy and the workers again.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            gateway: Gateway = await nursery.start(_serve_to_end, desk, places, again, nursery.cancel_scope)
            async for number in signals:
                if number == signal.SIGHUP:
                    nursery.start_soon(_reload, gateway)
                    continue
                if gateway.is_stopping:
                    nursery.cancel_scope.cancel()
                gateway.stop()


async def _serve_to_end(
    desk: PolicyDesk, places: Mapping[str, str] | None, again: Again | None, around: trio.CancelScope, *,
    task_status: trio.TaskStatus[Gateway],
) -> None:
    await serve(desk, places, again=again, task_status=task_status)
    around.cancel()


async def _reload(gateway: Gateway) -> None:
    try:
        changes = await gateway.reload()
    except (KvcoreError, OSError) as error:
        log.error("nothing is taken over, the policy stays as it is: %s", error)
        return
    report(changes)
    if not (changes.diff or changes.workers):
        log.info("policy: unchanged")
    for warning in gateway.desk.warnings if changes.diff else ():
        log.warning("policy: %s", warning)


@asynccontextmanager
async def _open(desk: PolicyDesk, admission: Mapping[str, Factory] | None) -> AsyncIterator[Gateway]:
    """Everything but the listeners."""
    config = desk.config
    scheduling = config.scheduler_config
    collector = SchedulerCollector(scheduling)
    pace = Pace(collector.tap)
    desk.then = pace.tap
    names = BlockNames(scheduling.block_size)
    timeouts = config.timeouts
    async with open_scheduler(
        scheduling, admission=admission, inbox_max=config.limits.inbox, tap=desk.tap,
    ) as router, _maybe_feed(router, names, scheduling.index) as feed, trio.open_nursery() as nursery:
        fleet = Fleet(
            router, nursery, connect_s=timeouts.connect_s, probe_s=timeouts.probe_s,
            interval_s=timeouts.probe_interval_s, follower=None if feed is None else Following(feed))
        gateway: Gateway
        estimates: dict[Wait, Callable[[], int | None]] = {
            Wait.PACE: lambda: pace.next_ns(router.now_ns()),
            Wait.PAUSE: lambda: fleet.pause_left_ns() or pace.next_ns(router.now_ns()),
            Wait.PROBE: lambda: round(timeouts.probe_interval_s * SECOND_NS),
            Wait.DRAIN: lambda: gateway.left_ns(),
        }
        errors = Errors(Jitter(scheduling.seed), estimates, overload_status=config.overload_status)
        means = Means(
            router, fleet, errors, timeouts, scheduling.block_size, desk.class_name,
            None if feed is None else feed.dispatched)
        meter = PromptMeter(config.tokenizer, names, fleet.ask)
        app = App(desk, means, meter, Scraper(router, collector))
        gateway = Gateway(desk, router, fleet, app, errors, feed)
        app.scrape.watch(app)
        for spec in config.workers:
            await fleet.add(spec)
        try:
            yield gateway
        finally:
            fleet.close()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _maybe_feed(router: Router, names: BlockNames, mode: IndexMode) -> AsyncIterator[KvFeed | None]:
    """In every other mode the core knows caches from dispatches, or not at all."""
    if mode is not IndexMode.EVENTS:
        yield None
        return
    async with open_feed(router, names) as feed:
        yield feed


async def _serve_http(
    listeners: Sequence[trio.SocketListener], handler: Handler, limits: Limits, refuse: Refuse, *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    await serve_http(listeners, handler, limits, refuse=refuse, task_status=task_status)


def _limits(config: GatewayConfig) -> Limits:
    limits, timeouts = config.limits, config.timeouts
    return Limits(
        connections=limits.connections, head_bytes=limits.header_bytes, body_bytes=limits.body_bytes,
        body_bytes_total=limits.body_bytes_total, idle_s=timeouts.keep_alive_s, head_s=timeouts.header_s,
        body_s=timeouts.body_s, write_s=timeouts.write_s)


def _port_of(listeners: Sequence[trio.SocketListener]) -> int:
    port: int = listeners[0].socket.getsockname()[1]
    return port


def _close(listeners: Sequence[trio.SocketListener]) -> None:
    for listener in listeners:
        listener.socket.close()
