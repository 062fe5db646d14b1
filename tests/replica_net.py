"""Several schedulers in front of the same workers, and a link between them that loses, repeats, delays and is cut.

`Net` drives them by method calls and keeps books of its own: what each router really runs, read off the actions that it
was given and the facts that it was told, never off what it says to the others. After `settle`, whatever the link has
done, every router must see all of it (`wanted` against `seen`).

A router that crashes takes its bookings with it; its name comes back with the next generation.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

from kvcore.actions import Dispatch, Evict, Publish
from kvcore.config import SchedulerConfig
from kvcore.events import (
    DispatchFailed,
    Outcome,
    OutputBlockAdded,
    PeerLost,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
    peer_event,
)
from kvcore.request import Request, WorkerConfig

BLOCK = 4
PATHS = ((), (11, 12, 13, 14), (11, 12, 23, 24), (11, 32), (91, 92, 93, 94))
RankName = tuple[int, int]
PROMPTS = (8, 3, 1, 4, 15, 16)
STEPS_NS = (0, 1, 5, 20)
#: What may happen, by how often it is chosen.
REQUESTS = ("arrive",) * 6 + ("progress",) * 7 + ("answer", "wait", "wait")
WORLD = (*REQUESTS, *REQUESTS, "sync", "sync", "part", "crash", "notice", "restart", "upsert", "remove", "blink")


@dataclass(frozen=True)
class Faults:
    """What the link does to a message: shares lost and repeated, and the longest way that one may take."""

    lost: float = 0.0
    repeated: float = 0.0
    longest_ns: int = 0


@dataclass
class Real:
    """A booking as it really is."""

    request: Request
    rank: RankName
    attempt: int
    prefill_tokens: int
    outputs: int = 0

    @property
    def names(self) -> tuple[int, ...]:
        return self.request.block_hashes[: self.request.prompt_tokens // BLOCK]

    @property
    def unnamed(self) -> int:
        return -(-self.request.prompt_tokens // BLOCK) - len(self.names)

    @property
    def reserve(self) -> int:
        return -(-(self.request.expected_output_tokens or 0) // BLOCK)


@dataclass
class Router:
    """One scheduler. running: by id. evicted: attempts that wait for an answer, by id. up: it has not crashed."""

    name: str
    core: object
    generation: int = 1
    running: dict[str, Real] = field(default_factory=dict)
    evicted: dict[str, int] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    up: bool = True


class Net:
    """Routers r0, r1, ... and the link between them."""

    def __init__(self, make, count: int, faults: Faults, seed: int = 0, **config) -> None:
        self.make, self.faults, self.random = make, faults, Random(seed)
        self.config = {"block_size": BLOCK, **config}
        self.now_ns = 0
        self.mail: list[tuple] = []            # (arrival, order, sender, receiver, what)
        self.said: list[tuple] = []            # (sender, receiver, what), arrived or not
        self.names = 0
        self.cut: set[frozenset[int]] = set()  # pairs that cannot hear each other
        self.workers: dict[int, WorkerUpserted] = {}
        self.routers = [Router(f"r{i}", self._core(f"r{i}", 1)) for i in range(count)]

    def _core(self, name: str, generation: int):
        return self.make(SchedulerConfig(replica=name, replica_generation=generation, **self.config))

    # What happens to routers.

    def step(self, number: int, *events):
        """Facts for one router, one by one; what it publishes is sent to all others."""
        if self.routers[number].up:
            self._tell(number, TimerFired(self.now_ns))        # what is due is due before them
            for event in events:
                self._tell(number, event)

    def _tell(self, number: int, event) -> None:
        router = self.routers[number]
        actions = router.core.step(event)
        assert router.core.audit() == []
        self._take_in(router, event)
        for action in actions:
            self._carry_out(router, action)
            if isinstance(action, Publish):
                self._send_all(number, action.fact)

    def _take_in(self, router: Router, event) -> None:
        """What a fact means for the bookings of a router."""
        if isinstance(event, RequestArrived):
            router.requests[event.request.request_id] = event.request
        real = router.running.get(getattr(event, "request_id", ""))
        if isinstance(event, (RequestFinished, RequestCancelled, DispatchFailed)):
            router.running.pop(event.request_id, None)
            router.evicted.pop(event.request_id, None)
        elif isinstance(event, PrefillCompleted) and real is not None:
            real.prefill_tokens = 0
        elif isinstance(event, OutputBlockAdded) and real is not None:
            real.outputs += 1

    def _carry_out(self, router: Router, action) -> None:
        """What an action means for them."""
        if isinstance(action, Dispatch):
            request = router.requests[action.request_id]
            rank = (action.worker_id, action.dp_rank)
            router.running[action.request_id] = Real(request, rank, action.attempt, action.prefill_tokens)
        elif isinstance(action, Evict):
            router.evicted[action.request_id] = router.running.pop(action.request_id).attempt

    def arrive(self, number: int, prompt: int, path: int = 0, expected: int | None = None) -> None:
        self.names += 1
        blocks = PATHS[path][: -(-prompt // BLOCK)]
        request = Request(f"q{self.names}", prompt, block_hashes=blocks, expected_output_tokens=expected)
        self.step(number, RequestArrived(self.now_ns, request))

    def progress(self, number: int, which: int, kind: int) -> None:
        """The prefill of a running request is over, or it grows, ends well, ends badly, is lost, is cancelled."""
        router = self.routers[number]
        if not router.running:
            return
        name = list(router.running)[which % len(router.running)]
        attempt = router.running[name].attempt
        self.step(number, (
            PrefillCompleted(self.now_ns, name, attempt),
            OutputBlockAdded(self.now_ns, name, attempt),
            RequestFinished(self.now_ns, name, attempt),
            RequestFinished(self.now_ns, name, attempt, Outcome.ABORTED),
            DispatchFailed(self.now_ns, name, attempt, retry=True),
            RequestCancelled(self.now_ns, name),
        )[kind % 6])

    def answer(self, number: int) -> None:
        """The oldest eviction of a router is answered."""
        router = self.routers[number]
        if router.evicted:
            name, attempt = next(iter(router.evicted.items()))
            self.step(number, DispatchFailed(self.now_ns, name, attempt, retry=True))

    def pass_time(self, ns: int) -> None:
        """Mail arrives in the order of its time of arrival."""
        until_ns = self.now_ns + ns
        while self.mail and self.mail[0][0] <= until_ns:
            self.now_ns, _, sender, receiver, told = heapq.heappop(self.mail)
            self.hear(sender, receiver, told)
        self.now_ns = until_ns

    def hear(self, sender: int, receiver: int, told) -> None:
        """A message arrives, if the two are not cut off from each other."""
        if frozenset((sender, receiver)) not in self.cut:
            self.step(receiver, peer_event(self.now_ns, told))

    def crash(self, number: int) -> None:
        """A router is gone, with all that it ran; its mail is still under way."""
        router = self.routers[number]
        router.up = False
        for books in (router.running, router.evicted, router.requests):
            books.clear()

    def notice(self, number: int) -> None:
        """Every other router notices that this one has crashed."""
        router = self.routers[number]
        for other in range(len(self.routers)):
            if other != number and not router.up:
                self.step(other, PeerLost(self.now_ns, router.name, router.generation))

    def restart(self, number: int) -> None:
        """A crashed router starts again, knowing the workers and nothing else."""
        old = self.routers[number]
        if not old.up:
            fresh = Router(old.name, self._core(old.name, old.generation + 1), old.generation + 1)
            self.routers[number] = fresh
            self.step(number, *[WorkerUpserted(self.now_ns, u.config, u.incarnation) for u in self.workers.values()])

    # Workers.

    def upsert(self, worker_id: int, ranks: int = 1, restarts: int = 0, **config) -> None:
        """All routers hear of a worker. restarts: how many times it has restarted since."""
        known = self.workers.get(worker_id)
        incarnation = restarts + (known.incarnation if known is not None else 0)
        self.workers[worker_id] = WorkerUpserted(
            self.now_ns, WorkerConfig(worker_id, dp_size=ranks, **config), incarnation)
        for number in range(len(self.routers)):
            self.step(number, WorkerUpserted(self.now_ns, self.workers[worker_id].config, incarnation))

    def remove(self, worker_id: int) -> None:
        if self.workers.pop(worker_id, None) is not None:
            for number in range(len(self.routers)):
                self.step(number, WorkerRemoved(self.now_ns, worker_id))

    def blink(self, number: int, worker_id: int) -> None:
        """One router loses sight of a worker for a moment, the others do not."""
        known = self.workers.get(worker_id)
        if known is not None:
            self.step(number, WorkerRemoved(self.now_ns, worker_id))
            self.step(number, WorkerUpserted(self.now_ns, known.config, known.incarnation))

    # The link.

    def _send_all(self, sender: int, told) -> None:
        for receiver in range(len(self.routers)):
            if receiver != sender:
                copies = self.random.random() >= self.faults.lost
                copies += self.random.random() < self.faults.repeated
                for _ in range(copies):
                    self.said.append((sender, receiver, told))
                    due_ns = self.now_ns + self.random.randint(0, self.faults.longest_ns)
                    heapq.heappush(self.mail, (due_ns, len(self.said), sender, receiver, told))

    def sync(self, number: int) -> None:
        """A router tells all that it has booked."""
        if self.routers[number].up:
            self._send_all(number, self.routers[number].core.replica_facts())

    def part(self, one: int, other: int) -> None:
        if one != other:
            self.cut ^= {frozenset((one, other))}

    def deliver(self) -> None:
        """All that is under way arrives, and what is due by then happens and is told."""
        while True:
            for number in range(len(self.routers)):
                self.step(number)
            if not self.mail:
                return
            self.pass_time(max(0, self.mail[0][0] - self.now_ns))

    def settle(self, sync: bool = True) -> None:
        """The link heals, what is under way arrives, and each router syncs once."""
        self.cut.clear()
        self.faults = Faults(longest_ns=self.faults.longest_ns)
        self.deliver()
        for number in range(len(self.routers)):
            if sync:
                self.sync(number)
        self.deliver()

    def end(self) -> None:
        """Everything that any router runs ends; waiting requests are cancelled."""
        for number, router in enumerate(self.routers):
            names = [name for name in router.requests if name not in router.running]
            for name in [*names, *list(router.running)]:
                self.step(number, RequestCancelled(self.now_ns, name))

    # The books.

    def wanted(self, number: int) -> dict[RankName, tuple[int, int, int, int]]:
        """By rank: requests, prefill tokens, active and held blocks. Outputs are seen by their own router only."""
        totals = {}
        for upsert in self.workers.values():
            for dp_rank in range(upsert.config.dp_size):
                rank = (upsert.config.worker_id, dp_rank)
                here = [(other == number, real) for other, router in enumerate(self.routers) if router.up
                        for real in router.running.values() if real.rank == rank]
                names = {name for _, real in here for name in real.names}
                outputs = [real.outputs if own else 0 for own, real in here]
                held = sum(real.unnamed + max(real.reserve, grown)
                           for (_, real), grown in zip(here, outputs, strict=True))
                totals[rank] = (len(here), sum(real.prefill_tokens for _, real in here), len(names) + sum(outputs),
                                len(names) + held)
        return totals

    def seen(self, number: int) -> dict[RankName, tuple[int, int, int, int]]:
        """The same as a router sees it."""
        return {
            (int(row["worker_id"]), int(row["dp_rank"])): (
                int(row["requests"]), int(row["prefill_tokens"]), int(row["active_blocks"]), int(row["held_blocks"]))
            for row in self.routers[number].core.loads()}

    def differences(self) -> list[str]:
        """Routers that see something else than there is."""
        return [f"{router.name} sees {self.seen(number)}, there is {self.wanted(number)}"
                for number, router in enumerate(self.routers)
                if router.up and self.seen(number) != self.wanted(number)]


def play(net: Net, letters, kinds) -> None:
    """Each letter does one thing to one router, or to all."""
    for worker_id in (1, 2):
        net.upsert(worker_id, worker_id, max_batched_tokens=40, total_kv_blocks=12, max_requests=4)
    for letter in letters:
        kind, number, first, second = letter
        happen(net, kinds[kind % len(kinds)], number % len(net.routers), first, second)


def happen(net: Net, kind: str, number: int, first: int, second: int) -> None:
    match kind:
        case "arrive":
            expected = (None, None, 8)[first % 3]
            net.arrive(number, PROMPTS[first % len(PROMPTS)], second % len(PATHS), expected)
        case "progress":
            net.progress(number, first, second)
        case "wait":
            net.pass_time(STEPS_NS[first % len(STEPS_NS)])
        case "part":
            net.part(number, first % len(net.routers))
        case "upsert":
            net.upsert(1 + first % 3, 1 + second % 2, restarts=second % 3 == 0, total_kv_blocks=12)
        case "remove":
            net.remove(1 + first % 3)
        case "blink":
            net.blink(number, 1 + first % 3)
        case _:
            getattr(net, kind)(number)
