"""Every sequence of a few letters on tiny ranks under strict capacity: no cap is exceeded, nothing that fits waits.

What is held is added up here from the events and from the Dispatches alone, in sets and sums; the core is asked for
nothing but its actions, and at the end of every sequence for what it believes to hold. A letter that finds nothing to
act on ends its sequence: without it the sequence is a shorter one, and that is the beginning of another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from capacity_stories import strict

from kvcore.actions import Dispatch, Evict, Park, Reject, RejectReason
from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    OutputBlockAdded,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler

#: What arrives: two blocks, one of them for the answer, no prefill load; three blocks; two named blocks and a third.
SMALL = {"prompt_tokens": 4, "expected_output_tokens": 3, "track_prefill": False}
LARGE = {"prompt_tokens": 12}
SHARED = {"prompt_tokens": 9, "block_hashes": (1, 2)}
ARRIVALS = {"small": SMALL, "large": LARGE, "shared": SHARED}
LETTERS = (*ARRIVALS, "finish", "cancel", "output", "caps", "leave")


@dataclass
class Booked:
    """What a running request holds, whole blocks. worker_id 0: evicted, it holds nothing."""

    request: Request
    attempt: int
    worker_id: int
    outputs: int = 0

    @property
    def names(self) -> tuple[int, ...]:
        return self.request.block_hashes[: self.request.prompt_tokens // 4]

    @property
    def own(self) -> int:
        """Blocks that nobody shares."""
        private = -(-self.request.prompt_tokens // 4) - len(self.names)
        return private + max(self.outputs, -(-(self.request.expected_output_tokens or 0) // 4))


@dataclass
class World:
    """What happened so far. caps: (blocks, requests) by present worker."""

    caps: dict[int, tuple[int, int]]
    wide: tuple[int, int]
    narrow: tuple[int, int]
    waiting: list[Request] = field(default_factory=list)
    running: list[Booked] = field(default_factory=list)
    arrived: int = 0

    def on(self, worker_id: int) -> list[Booked]:
        return [booked for booked in self.running if booked.worker_id == worker_id]

    def held(self, worker_id: int, *more: Booked) -> int:
        """Blocks of a worker, with more bookings."""
        all_of_them = [*self.on(worker_id), *more]
        return len({name for booked in all_of_them for name in booked.names}) + sum(b.own for b in all_of_them)

    def fits(self, request: Request, worker_id: int) -> bool:
        blocks, requests = self.caps[worker_id]
        return len(self.on(worker_id)) < requests and self.held(worker_id, Booked(request, 0, worker_id)) <= blocks

    def too_large(self, request: Request) -> bool:
        needed = Booked(request, 0, 0)
        return all(len(needed.names) + needed.own > blocks for blocks, _ in self.caps.values())

    def event(self, letter: str, now_ns: int) -> AnyEvent | None:
        """The event that a letter means now; None if there is nothing for it to act on."""
        if letter in ARRIVALS:
            return RequestArrived(now_ns, Request(f"r{self.arrived}", **ARRIVALS[letter]))
        if letter == "caps":
            if 1 not in self.caps:
                return None
            blocks, requests = self.narrow if self.caps[1] == self.wide else self.wide
            return WorkerUpserted(now_ns, WorkerConfig(1, total_kv_blocks=blocks, max_requests=requests))
        if letter == "leave":
            if 1 in self.caps:
                return WorkerRemoved(now_ns, 1)
            blocks, requests = self.wide
            return WorkerUpserted(now_ns, WorkerConfig(1, total_kv_blocks=blocks, max_requests=requests))
        if letter == "cancel":
            return RequestCancelled(now_ns, self.waiting[0].request_id) if self.waiting else None
        live = [b for b in self.running if letter == "finish" or b.worker_id]
        if not live:
            return None
        kind = RequestFinished if letter == "finish" else OutputBlockAdded
        return kind(now_ns, live[0].request.request_id, live[0].attempt)

    def apply(self, event: AnyEvent) -> None:
        """The fact itself."""
        match event:
            case RequestArrived():
                self.waiting.append(event.request)
                self.arrived += 1
            case RequestCancelled():
                del self.waiting[0]
            case RequestFinished():
                self.running = [b for b in self.running if b.attempt != event.attempt]
            case OutputBlockAdded():
                next(b for b in self.running if b.attempt == event.attempt).outputs += 1
            case WorkerUpserted():
                self.caps[1] = (event.config.total_kv_blocks, event.config.max_requests)
            case WorkerRemoved():
                del self.caps[1]

    def judge(self, actions: tuple) -> None:
        """Each action is right at its moment, and after the last one nothing waits that fits."""
        for action in actions:
            if isinstance(action, Dispatch):
                request = self.waiting.pop(0)
                assert action.request_id == request.request_id
                assert self.fits(request, action.worker_id)
                self.running.append(Booked(request, action.attempt, action.worker_id))
            elif isinstance(action, Reject):
                request = self.waiting.pop(0)
                assert action.request_id == request.request_id
                wanted = RejectReason.TOO_LARGE if self.caps else RejectReason.NO_WORKERS
                assert action.reason is wanted
                assert self.too_large(request)
            elif isinstance(action, Evict):
                booked = next(b for b in self.running if b.attempt == action.attempt)
                assert booked.worker_id == action.worker_id
                assert booked.worker_id not in self.caps
                booked.worker_id = 0
            else:
                assert isinstance(action, Park)
                assert action.request_id == self.waiting[-1].request_id
        assert all(b.worker_id in (0, *self.caps) for b in self.running)
        if self.waiting:
            assert not self.too_large(self.waiting[0])
            assert not any(self.fits(self.waiting[0], worker_id) for worker_id in self.caps)

    def compare(self, core: Scheduler) -> None:
        """The core's books against these."""
        rows = core.loads()
        assert rows["worker_id"].tolist() == sorted(self.caps)
        assert rows["held_blocks"].tolist() == [self.held(w) for w in sorted(self.caps)]
        assert rows["requests"].tolist() == [len(self.on(w)) for w in sorted(self.caps)]
        over = [w for w, (blocks, requests) in self.caps.items()
                if self.held(w) > blocks or len(self.on(w)) > requests]
        stats = core.stats()
        assert (stats.over_cap_ranks, stats.waiting_requests) == (len(over), len(self.waiting))
        assert core.audit() == []

    def copy(self) -> World:
        running = [replace(booked) for booked in self.running]
        return replace(self, caps=dict(self.caps), waiting=list(self.waiting), running=running)


class Walk:
    """All sequences of letters behind a beginning, depth first; the core is stepped anew for each of them."""

    def __init__(self, workers: int, wide: tuple[int, int], narrow: tuple[int, int], start: tuple[str, ...]) -> None:
        self.made = SchedulerConfig(4, strict(), index=IndexMode.OFF)
        self.sequences = self.waited = 0
        self.start = World(dict.fromkeys(range(1, workers + 1), wide), wide, narrow)
        self.letters: list[str] = []
        self.events: list[AnyEvent] = [
            WorkerUpserted(0, WorkerConfig(w, total_kv_blocks=wide[0], max_requests=wide[1]))
            for w in self.start.caps]
        for letter in start:
            self.letters.append(letter)
            self.events.append(self.start.event(letter, len(self.events)))
            self.start = self.step(self.start)

    def go(self, world: World, depth: int) -> None:
        """Every letter here, and all that may follow it."""
        for letter in LETTERS:
            event = world.event(letter, len(self.events))
            if event is None:
                continue
            self.letters.append(letter)
            self.events.append(event)
            after = self.step(world)
            if depth > 1:
                self.go(after, depth - 1)
            self.events.pop()
            self.letters.pop()

    def step(self, world: World) -> World:
        """The last event of the sequence with all checks, then the end of all that is live."""
        core, now_ns = Scheduler(self.made), len(self.events)
        for event in self.events[:-1]:
            core.step(event)
        after = world.copy()
        try:
            self.check(core, after, self.events[-1])
            rest = after.copy()
            while rest.waiting or rest.running:
                self.check(core, rest, rest.event("cancel" if rest.waiting else "finish", now_ns))
            assert core.stats().live_requests == 0
            assert core.loads()["active_blocks"].tolist() == [0] * len(rest.caps)
        except AssertionError as error:
            raise AssertionError(f"after {self.letters}: {error}") from error
        self.sequences += 1
        self.waited += bool(after.waiting)
        return after

    def check(self, core: Scheduler, world: World, event: AnyEvent) -> None:
        world.apply(event)
        world.judge(core.step(event))
        world.compare(core)


#: Workers, their caps (blocks, requests), and those that "caps" gives to the first one in turn with them.
FLEETS = {"one": (1, (5, 2), (4, 1)), "two": (2, (4, 2), (2, 2)), "requests": (2, (9, 1), (3, 1))}


@pytest.mark.parametrize(("start", "length"), [((), 5), (("shared", "small", "large"), 4)], ids=["idle", "busy"])
@pytest.mark.parametrize("fleet", FLEETS)
def test_every_sequence(fleet, start, length):
    walk = Walk(*FLEETS[fleet], start)
    walk.go(walk.start, length)
    assert walk.sequences > 3_000
    assert walk.waited > walk.sequences // 10
