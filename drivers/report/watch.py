"""What a replay does over time, seen from its tap: queues, load, contention, what caches could give, explanations.

A report needs a run twice. The first run tells when it ends and which requests were slow; the second, the same to the
last bit, is watched, with the bins and the requests known beforehand. So nothing is held that is not shown: memory is
what is live, the names that workers have cached, and eight bytes a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvcore import (
    Action,
    AnyAction,
    AnyEvent,
    BlocksRemoved,
    BlocksStored,
    Dispatch,
    Evict,
    Park,
    ParkReason,
    PrefillCompleted,
    Reject,
    RequestArrived,
    RequestFinished,
    Scheduler,
    explanation_text,
)

from .meters import Grid, Meter

#: Rows of the heat maps: with more workers than this a row is the mean of several.
ROWS_MAX = 64
#: Decisions that the watched core keeps: enough for all of one step, or nearly.
DECISIONS_KEPT = 256


@dataclass
class _Live:
    """A request that has not ended. prefill: tokens of its prompt that its worker is still to compute."""

    index: int
    prompt: int
    names: tuple[int, ...]
    parked: int = -1
    row: int = -1
    prefill: int = 0


class Watch:
    """Looks at every step of one run; see simulate.simulate for the tap.

    classes: of the profile. slow: (request_id, when to look at it while it waits) of the requests to be explained.
    """

    def __init__(
        self, grid: Grid, classes: int, workers: int, block_size: int, slow: Iterable[tuple[str, int]] = ()
    ) -> None:
        self.grid = grid
        self.workers_per_row = -(-workers // ROWS_MAX)
        rows = -(-workers // self.workers_per_row)
        #: Workers in each row of the heat maps.
        self.row_sizes = [min(self.workers_per_row, workers - i * self.workers_per_row) for i in range(rows)]
        #: By class: requests and prompt tokens that wait. By row: requests that run, prompt tokens to be computed.
        self.queued = [Meter(grid) for _ in range(classes)]
        self.queued_tokens = [Meter(grid) for _ in range(classes)]
        self.running = [Meter(grid) for _ in range(rows)]
        self.prefill = [Meter(grid) for _ in range(rows)]
        #: By bin: what ReplayResult.contended counts.
        self.contended: list[dict[int, list[int]]] = [{} for _ in range(grid.count)]
        #: By request in order of arrival: tokens that the best worker had cached at its dispatch; -1: no dispatch.
        self.reachable = array("q")
        #: Texts by request_id: while it waited, and when it was dispatched.
        self.waited: dict[str, str] = {}
        self.chosen: dict[str, str] = {}
        #: Requests whose prompts' blocks have names.
        self.named = 0
        self._block_size = block_size
        self._waiting = 0
        self._live: dict[str, _Live] = {}
        self._holders: dict[int, int] = {}
        self._slow = dict(slow)
        self._looks = sorted(((at, name) for name, at in self._slow.items()), reverse=True)
        self._facts: dict[type[Any], Callable[[Any], None]] = {
            RequestArrived: self._arrived, BlocksStored: self._stored, BlocksRemoved: self._removed,
            PrefillCompleted: self._prefilled, RequestFinished: self._finished,
        }
        self._commands: dict[type[Action], Callable[[Any, int], None]] = {
            Dispatch: self._dispatched, Park: self._parked, Reject: self._rejected, Evict: self._evicted,
        }

    def tap(self, events: Sequence[AnyEvent], actions: Sequence[AnyAction], core: Scheduler) -> None:
        """One step."""
        now_ns = events[0].now_ns
        for event in events:
            fact = self._facts.get(type(event))
            if fact is not None:
                fact(event)
        for action in actions:
            command = self._commands.get(type(action))
            if command is not None:
                command(action, now_ns)
        if self._slow:
            self._explain(actions, core, now_ns)

    def finish(self, end_ns: int) -> None:
        """The run is over."""
        for meter in (*self.queued, *self.queued_tokens, *self.running, *self.prefill):
            meter.pass_time(end_ns)

    def _arrived(self, event: RequestArrived) -> None:
        request = event.request
        self._live[request.request_id] = _Live(len(self.reachable), request.prompt_tokens, request.block_hashes)
        self.reachable.append(-1)
        self.named += bool(request.block_hashes)

    def _stored(self, event: BlocksStored) -> None:
        bit, holders = 1 << event.worker_id, self._holders
        for name in event.block_hashes:
            holders[name] = holders.get(name, 0) | bit

    def _removed(self, event: BlocksRemoved) -> None:
        bit, holders = 1 << event.worker_id, self._holders
        for name in event.block_hashes:
            left = holders[name] & ~bit
            if left:
                holders[name] = left
            else:
                del holders[name]

    def _prefilled(self, event: PrefillCompleted) -> None:
        live = self._live.get(event.request_id)
        if live is not None and live.prefill:
            self.prefill[live.row].add(event.now_ns, -live.prefill)
            live.prefill = 0

    def _finished(self, event: RequestFinished) -> None:
        live = self._live.pop(event.request_id, None)
        if live is not None:
            self._leave(live, event.now_ns)

    def _leave(self, live: _Live, now_ns: int) -> None:
        """It runs no more."""
        self.running[live.row].add(now_ns, -1)
        if live.prefill:
            self.prefill[live.row].add(now_ns, -live.prefill)

    def _parked(self, action: Park, now_ns: int) -> None:
        live = self._live[action.request_id]
        self._unparked(live, now_ns)
        if action.reason is ParkReason.DEFERRED:
            return  # held back by an admission policy: it does not compete yet
        live.parked = action.class_index
        self._queue(live, now_ns, 1)

    def _unparked(self, live: _Live, now_ns: int) -> None:
        if live.parked >= 0:
            self._queue(live, now_ns, -1)
            live.parked = -1

    def _queue(self, live: _Live, now_ns: int, change: int) -> None:
        index = live.parked
        self.queued[index].add(now_ns, change)
        self.queued_tokens[index].add(now_ns, change * live.prompt)
        if self.queued[index].level:
            self._waiting |= 1 << index
        else:
            self._waiting &= ~(1 << index)

    def _dispatched(self, action: Dispatch, now_ns: int) -> None:
        live = self._live[action.request_id]
        uncached = live.prompt - action.cached_tokens
        waiting = self._waiting
        if waiting & (waiting - 1) and waiting >> action.class_index & 1:
            tokens = self.contended[self.grid.bin(now_ns)].setdefault(waiting, [0] * len(self.queued))
            tokens[action.class_index] += uncached
        self._unparked(live, now_ns)
        self.reachable[live.index] = self._reach(live)
        live.row, live.prefill = action.worker_id // self.workers_per_row, uncached
        self.running[live.row].add(now_ns, 1)
        self.prefill[live.row].add(now_ns, uncached)

    def _reach(self, live: _Live) -> int:
        """Tokens of the longest prefix that one worker has cached, of which an engine always computes the last token.

        Whoever holds a block holds what comes before it, or its engine could not use it: holders only get fewer.
        """
        blocks, holders = 0, -1
        for name in live.names[: (live.prompt - 1) // self._block_size]:
            holders &= self._holders.get(name, 0)
            if not holders:
                break
            blocks += 1
        return blocks * self._block_size

    def _rejected(self, action: Reject, now_ns: int) -> None:
        self._unparked(self._live.pop(action.request_id), now_ns)

    def _evicted(self, action: Evict, now_ns: int) -> None:
        live = self._live.pop(action.request_id, None)
        if live is not None:
            self._leave(live, now_ns)

    def _explain(self, actions: Sequence[AnyAction], core: Scheduler, now_ns: int) -> None:
        """Keep what the core says of slow requests: once they wait, again half-way, and where they went."""
        for action in actions:
            if isinstance(action, (Park, Dispatch)) and action.request_id in self._slow:
                texts = self.waited if isinstance(action, Park) else self.chosen
                texts[action.request_id] = explanation_text(core.explain(action.request_id))
        while self._looks and self._looks[-1][0] <= now_ns:
            name = self._looks.pop()[1]
            live = self._live.get(name)
            if live is not None and live.parked >= 0:
                self.waited[name] = explanation_text(core.explain(name))
