"""A fleet, its callers and the core under one virtual clock: what the modes of bench_modes.py run in.

Callers ask, some go away before they are served, sessions ask again once they have been answered and have thought for
a while. The workers are those of `kvcore replay`. Everything is drawn from one seed; no real clock is read here.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvcore.drivers.replay._engine import Fleet
from kvcore.drivers.replay.presets import PRESETS

import kvcore as kv

MS = 1_000_000
SECOND = 1_000_000_000
ENGINE = PRESETS["generic"]
BLOCK_SIZE = 64
#: Whoever goes away does so within this time of asking; answers take several times as long.
PATIENCE_NS = 300 * MS
THINK_NS = 200 * MS


@dataclass(frozen=True)
class Mode:
    """One way to use a scheduler.

    sessions, turns: so many callers that ask so many times each. rate: sessions that begin per second; twice as many
        where half of all requests are cancelled.
    classes: names that requests are dealt to in turn, as (class, busy threshold of prompt tokens or None).
    waiting_min, live_min: what must wait, and be live, at the fullest moment, or the mode is not what it says.
    """

    workers: int
    sessions: int
    turns: int
    rate: float
    classes: tuple[tuple[str, int | None], ...]
    waiting_min: int
    live_min: int

    def profile(self) -> kv.PolicyProfile:
        """Its policy: one bucket, quanta that fall from class to class."""
        cells = tuple(
            kv.PolicyClass(name, 512 >> i, policy_family=name, cache_bucket="all", prefill_busy_threshold=threshold)
            for i, (name, threshold) in enumerate(self.classes))
        return kv.PolicyProfile(cells, (kv.CacheBucket("all", 0),), self.classes[0][0])


@dataclass
class Ask:
    """A request of one caller, and what became of it."""

    session: int
    turn: int
    request: kv.Request
    output_tokens: int
    leaves: bool
    arrived_ns: int = 0
    attempt: int = 0
    first_ns: int = -1


@dataclass
class Story:
    """What has happened. batches: all that the core was stepped through. Times in model nanoseconds."""

    batches: list[list[kv.AnyEvent]] = field(default_factory=list)
    ttft_ns: list[int] = field(default_factory=list)
    after_first_ns: list[int] = field(default_factory=list)
    asked: int = 0
    completed: int = 0
    cancelled: int = 0
    rejected: int = 0
    waiting_peak: int = 0
    live_peak: int = 0
    used: set[int] = field(default_factory=set)


def new_core(mode: Mode) -> kv.Scheduler:
    """A scheduler for the mode, without workers."""
    return kv.Scheduler(kv.SchedulerConfig(block_size=BLOCK_SIZE, profile=mode.profile(), seed=1))


class World:
    """One run. output: the core is told of output blocks. leave: half of all requests are cancelled."""

    def __init__(self, mode: Mode, output: bool, leave: bool) -> None:
        self.mode, self.output, self.leave = mode, output, leave
        self.core = new_core(mode)
        self.fleet = Fleet(mode.workers, ENGINE, BLOCK_SIZE)
        self.story = Story()
        self._draw = random.Random(1).random
        self._asks: dict[str, Ask] = {}
        self._parked: set[str] = set()
        # Arrivals and departures to come: (time, order, ask, does it arrive?)
        self._due: list[tuple[int, int, Ask, bool]] = []
        self._order = 0

    def run(self) -> Story:
        """From the first arrival to the last end."""
        limits = (ENGINE.max_num_batched_tokens, ENGINE.scaled(BLOCK_SIZE).kv_blocks, ENGINE.max_num_seqs)
        self._step([kv.WorkerUpserted(0, kv.WorkerConfig(i, 0, 1, *limits)) for i in range(self.mode.workers)], 0)
        begin_ns, rate = 0.0, self.mode.rate * (2 if self.leave else 1)
        for session in range(self.mode.sessions):
            begin_ns -= SECOND / rate * math.log(1.0 - self._draw())
            self._ask(session, 0, int(begin_ns))
        for now_ns in self._instants():
            batch = list(self._engine_facts(now_ns))
            while self._due and self._due[0][0] == now_ns:
                _, _, ask, arrives = heapq.heappop(self._due)
                batch += self._arrive(ask, now_ns) if arrives else self._leave(ask, now_ns)
            if batch or self.core.next_deadline_ns == now_ns:
                self._step(batch or [kv.TimerFired(now_ns)], now_ns)
        return self.story

    def _instants(self) -> Iterator[int]:
        while True:
            times = [self.fleet.next_ns, self.core.next_deadline_ns, self._due[0][0] if self._due else None]
            known = [time for time in times if time is not None]
            if not known:
                return
            yield min(known)

    def _ask(self, session: int, turn: int, at_ns: int) -> None:
        """Let a session ask, its next turn. Its prompt begins with all that was said before."""
        names = [name for name, _ in self.mode.classes]
        prompt = 512 + int(768 * self._draw()) + 512 * turn
        # Four blocks are one of 64 system prompts; the rest is the session's own, and later turns go on from there.
        path = [session % 64 << 40 | i for i in range(4)]
        path += [1 << 60 | session << 20 | i for i in range(prompt // BLOCK_SIZE - 4)]
        ask = Ask(session, turn, kv.Request(
            f"{session}.{turn}", prompt, names[session % len(names)], block_hashes=tuple(path),
            session_id=str(session)), 20 + int(120 * self._draw()), self.leave and self._draw() < 0.5)
        self._later(at_ns, ask, True)

    def _later(self, at_ns: int, ask: Ask, arrives: bool) -> None:
        self._order += 1
        heapq.heappush(self._due, (at_ns, self._order, ask, arrives))

    def _arrive(self, ask: Ask, now_ns: int) -> list[kv.AnyEvent]:
        ask.arrived_ns = now_ns
        self.story.asked += 1
        self._asks[ask.request.request_id] = ask
        if ask.leaves:
            self._later(now_ns + int(PATIENCE_NS * self._draw()), ask, False)
        return [kv.RequestArrived(now_ns, ask.request)]

    def _leave(self, ask: Ask, now_ns: int) -> list[kv.AnyEvent]:
        if ask.request.request_id not in self._asks:
            return []  # it was answered in time
        if ask.attempt:
            self.fleet.cancel(ask.request.request_id, now_ns)
        self.story.cancelled += 1
        self._end(ask, now_ns)
        return [kv.RequestCancelled(now_ns, ask.request.request_id)]

    def _end(self, ask: Ask, now_ns: int) -> None:
        del self._asks[ask.request.request_id]
        self._parked.discard(ask.request.request_id)
        if ask.turn + 1 < self.mode.turns:
            self._ask(ask.session, ask.turn + 1, now_ns + int(2 * THINK_NS * self._draw()) + 1)

    def _engine_facts(self, now_ns: int) -> Iterator[kv.AnyEvent]:
        """What the workers tell, less output blocks that nobody wants to hear of."""
        if self.fleet.next_ns != now_ns:
            return
        facts = self.fleet.advance(now_ns)
        for name, first_ns, finish_ns, _, _ in self.fleet.finished():
            ask = self._asks[name]
            self.story.completed += 1
            self.story.ttft_ns.append(first_ns - ask.arrived_ns)
            if ask.output_tokens > 1:
                self.story.after_first_ns.append((finish_ns - first_ns) // (ask.output_tokens - 1))
            self._end(ask, now_ns)
        for fact in facts:
            if self.output or not isinstance(fact, kv.OutputBlockAdded):
                yield fact

    def _step(self, batch: list[kv.AnyEvent], now_ns: int) -> None:
        self.story.batches.append(batch)
        for action in self.core.step_many(batch):
            match action:
                case kv.Dispatch():
                    self._dispatch(action, now_ns)
                case kv.Park():
                    self._parked.add(action.request_id)
                case kv.Reject():
                    self.story.rejected += 1
                    self._end(self._asks[action.request_id], now_ns)
                case _:
                    raise AssertionError(f"unexpected: {action}")
        self.story.waiting_peak = max(self.story.waiting_peak, len(self._parked))
        self.story.live_peak = max(self.story.live_peak, len(self._asks))

    def _dispatch(self, action: kv.Dispatch, now_ns: int) -> None:
        ask = self._asks[action.request_id]
        ask.attempt = action.attempt
        self._parked.discard(action.request_id)
        self.story.used.add(action.worker_id)
        self.fleet.submit(
            action.worker_id, action.request_id, action.attempt, ask.request.prompt_tokens, ask.output_tokens,
            ask.request.block_hashes, now_ns)


SIZES: dict[str, dict[str, Mode]] = {
    "large": {
        "queueing off": Mode(2_048, 20_000, 1, 10_000.0, (("all", None),), 0, 6_000),
        "queueing on": Mode(16, 6_000, 1, 1_000.0, (("all", 4_096),), 1_300, 1_300),
        "mixed classes": Mode(
            16, 6_000, 1, 800.0, (("premium", None), ("regular", 4_096), ("batch", 2_048)), 500, 1_300),
        "agent sessions": Mode(64, 6_144, 3, 20_000.0, (("agents", 8_192),), 1_300, 6_144),
    },
    "small": {
        "queueing off": Mode(64, 400, 1, 2_000.0, (("all", None),), 0, 200),
        "queueing on": Mode(2, 200, 1, 1_000.0, (("all", 4_096),), 50, 100),
        "mixed classes": Mode(2, 200, 1, 800.0, (("premium", None), ("regular", 4_096), ("batch", 2_048)), 20, 50),
        "agent sessions": Mode(4, 100, 3, 20_000.0, (("agents", 8_192),), 20, 100),
    },
}
