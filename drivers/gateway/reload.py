"""What a running gateway takes over when it is told to: its policy, and the workers of its configuration.

All is read and checked before anything changes. Of the workers only those that an earlier configuration named can go:
what an administrator has added stays. One that is not named any more gets nothing new and goes when nothing runs there;
one that is named anew comes; limits of a worker change in place, and what cannot change in place refuses the whole.
Every other setting counts from the start on: those that differ are told.

Never here: signals, HTTP.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import trio

from ..trio import Router
from .config import SETTINGS, GatewayConfig
from .config_file import InvalidGatewayConfig
from .fleet import Fleet
from .policy_desk import PolicyDesk
from .upstreams import UpstreamSpec

#: Reads every source of the configuration once more: it, and where each value came from. Raises: KvcoreError.
Again = Callable[[], tuple[GatewayConfig, Mapping[str, str]]]
#: What is known of a worker and can change while it is used.
IN_PLACE = frozenset({"max_requests", "max_batched_tokens", "total_kv_blocks", "prefill_tokens_per_s", "taints"})

log = logging.getLogger("kvcore.gateway")


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reload has brought. diff: of the policy. workers: a line for each. restart: keys that wait for one."""

    diff: list[str]
    workers: list[str]
    restart: list[str]


class Reloader:
    """Reloads one gateway, one at a time. again: None: there is nothing but the policy file."""

    def __init__(self, desk: PolicyDesk, router: Router, fleet: Fleet, again: Again | None = None) -> None:
        self._desk, self._router, self._fleet, self._again = desk, router, fleet, again
        self._started = desk.config
        self._named = {spec.url: spec for spec in desk.config.workers}
        self._reloading = trio.Lock()

    async def __call__(self) -> Changes:
        """Raises: InvalidPolicy, InvalidGatewayConfig; then nothing has changed."""
        async with self._reloading:
            if self._again is None:
                return Changes(await self._desk.reload(self._router), [], [])
            wanted, places = await trio.to_thread.run_sync(self._again)
            named = {spec.url: spec for spec in wanted.workers}
            for url in named.keys() & self._named.keys():
                self._check(self._named[url], named[url], places.get("workers", "configuration"))
            diff = [] if self._started.policy is None else await self._desk.reload(self._router)
            workers = await self._follow(named)
        return Changes(diff, workers, self._waiting(wanted))

    def _check(self, old: UpstreamSpec, new: UpstreamSpec, place: str) -> None:
        fixed = [name for name in _differing(old, new) if name not in IN_PLACE]
        if fixed:
            raise InvalidGatewayConfig(
                place, "workers", f"{new.url}: {', '.join(fixed)} cannot change while the worker is used: take it out, "
                "reload, and put it in again")

    async def _follow(self, named: Mapping[str, UpstreamSpec]) -> list[str]:
        said: list[str] = []
        for url in [url for url in self._named if url not in named]:
            worker = self._fleet.at(url)
            if worker is not None and await self._fleet.retire(worker.worker_id):
                said.append(f"- {url} (worker {worker.worker_id}, when nothing runs there)")
        for url, spec in named.items():
            worker = self._fleet.at(url)
            if worker is None:
                worker = await self._fleet.add(spec)
                said.append(f"+ {url} (worker {worker.worker_id})")
            elif worker.is_leaving:
                await self._fleet.drain(worker.worker_id, draining=False)
                said.append(f"+ {url} (worker {worker.worker_id}, stays)")
            changed = _differing(worker.spec, spec)
            if changed and IN_PLACE.issuperset(changed):
                await self._fleet.change(worker.worker_id, spec)
                said.append(f"  {url} (worker {worker.worker_id}): {', '.join(changed)}")
        self._named = dict(named)
        return said

    def _waiting(self, wanted: GatewayConfig) -> list[str]:
        keys = [item.key for item in SETTINGS] + ["hints.classes"]
        reads = [(key, operator.attrgetter(key)) for key in keys]
        return [key for key, read in reads if read(wanted) != read(self._started)]


def report(changes: Changes) -> None:
    """Write into the log what a reload has brought."""
    for line in changes.diff:
        log.info("policy: %s", line)
    for line in changes.workers:
        log.info("workers: %s", line)
    if changes.restart:
        log.warning("these settings differ and count after a restart only: %s", ", ".join(changes.restart))


def _differing(old: UpstreamSpec, new: UpstreamSpec) -> list[str]:
    return [item.name for item in fields(new) if getattr(old, item.name) != getattr(new, item.name)]
