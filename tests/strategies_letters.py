"""From symbolic letters to events: every byte of a letter chooses from a table whose first row is the simplest.

The few choices beyond the end of a letter are made by its last bytes once more: longer ones would not fit into what
Hypothesis draws for a plan.
"""

from __future__ import annotations

from contextlib import suppress

from recording import Run
from strategies_broken import BREAKERS
from strategies_peer_letters import PeerLetters
from strategies_reload import variants
from strategies_tables import CAPS, LEASES, OPINIONS, OVERLAPS, PREFERRED, RATES, REPORTED, TIERS, WEIGHTS

from kvcore.errors import InvalidEvent
from kvcore.events import (
    AdmissionReleased,
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CapacityHinted,
    ContextAdvanced,
    DispatchAccepted,
    DispatchFailed,
    Drained,
    LoadReported,
    Outcome,
    OutputBlockAdded,
    OverlapRefreshed,
    PolicyReplaced,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tier,
    TimerFired,
    WorkerRemoved,
    WorkerStatusChanged,
    WorkerUpserted,
)
from kvcore.request import Overlap, Rank, Request, WorkerConfig

NS_LAST = 2**62 - 1
WORKERS = (1, 2, 0, 2**64 - 1)
DP_STARTS = (0, 1, 2**32 - 3)
#: Root-to-leaf paths of three prefix trees; equal prefixes are shared blocks. The last one is no path of any tree.
PATHS = (
    (11, 12, 13, 14, 15, 16, 17, 18),
    (11, 12, 23, 24, 25, 26),
    (11, 32, 33),
    (2**64 - 1, 42, 43, 44, 45, 46, 47, 48),
    (2**64 - 1, 42, 53),
    (0, 62, 63, 64),
    (11, 12, 12, 11, 42),
)
TAINTS = (frozenset(), frozenset({"a"}), frozenset({"a", "b"}), frozenset({"b"}))
JUMPS = (0.0, 0.0, 1e-9, 5e-9, 1e-7, 1.0, -3.0, 1e300, float("inf"), float("-inf"), float("nan"), 4e9, 0.5e-9)
#: Which request a fact is about.
TO_RUNNING = ("running",) * 9 + ("evicted", "waiting", "none")
TO_WAITING = ("waiting",) * 6 + ("running", "evicted", "none", "deferred", "deferred", "refreshing")
TO_DEFERRED = ("deferred",) * 9 + ("waiting", "running", "none")
TO_REFRESHING = ("refreshing",) * 12 + ("waiting", "running", "none")
TO_FAILING = ("running",) * 6 + ("evicted",) * 3 + ("waiting", "none")
#: Draining has no end: it begins in one of the last batches, if at all.
LAST_BATCHES = 8


class Resolver(PeerLetters):
    """Turns the letters of one plan into events, by what the given oracle knows when their batch begins."""

    paths = PATHS

    def __init__(self, plan, oracle, numbered: bool = False) -> None:
        """numbered: all ids are numbers."""
        self.plan = plan
        self.numbered = numbered
        self.flavour = plan.flavour
        self.oracle = oracle
        self.now_ns = plan.start_ns
        self.letter = iter(())
        self.names = 0
        self.used: list[str] = []
        self.late = False
        self.profiles = variants(plan.config.effective_profile())

    def batches(self):
        """The batches of the plan, one by one; the first is the fleet."""
        for number, letters in enumerate(self.plan.batches):
            self.now_ns = max(self.now_ns, self.oracle.now_ns)
            self.late = number >= len(self.plan.batches) - LAST_BATCHES
            if number or letters:
                yield tuple([self.event(letter, None if number else "upsert") for letter in letters])

    def event(self, letter: bytes, kind: str | None = None) -> AnyEvent:
        self.letter = iter(letter + letter[::-1])
        chosen = self.pick(self.plan.kinds)
        self.now_ns = min(self.now_ns + self.pick(self.flavour.steps_ns), NS_LAST)
        return getattr(self, kind or chosen)()

    def pick(self, options, feature: str | None = None):
        """The option that the next byte chooses; the first one where the plan does without the feature."""
        byte = next(self.letter)
        return options[0 if feature in self.flavour.plain else byte % len(options)]

    def arrive(self) -> RequestArrived:
        return RequestArrived(self.now_ns, self.request())

    def request(self) -> Request:
        """A request; its deadline counts from now, its hashes fit its prompt."""
        pick, size = self.pick, self.plan.config.block_size
        number = pick(range(8))
        request_id = self.old_name(number) if pick((0, 0, 0, 0, 1), "pool") and self.used else self.new_name()
        prompt = pick(self.flavour.prompts)
        path = pick(((), *PATHS), "path")[: min(1 + pick(range(8)), -(-prompt // size))]
        sequence = pick((None, None, None, (), *PATHS), "sequence")
        deadline = pick((None, None, None, None, None, 1, 2, 10, 50, 10**9, 0, -1), "deadline")
        pin = pick((None, None, True, True, False), "pin")
        allowed = pick((None, None, (1,), (2, 1), (0, 2), (2**64 - 1,), (), (1, 77)), "allowed")
        blocks = pick((None, None, 0, 1, 2, 5, 2**31 - 1), "overlap")
        rank = None if blocks is None else self.rank(number, True)
        return Request(
            request_id, prompt, pick(self.flavour.names), pick((0, 0, 0, 1, 2**32 - 1), "strict"), pick(JUMPS, "jump"),
            None if deadline is None else max(0, min(self.now_ns + deadline, NS_LAST)),
            pick((False, False, False, True), "do_not_queue"),
            None if pin is None else self.rank(number, pin),
            None if allowed is None else frozenset(allowed),
            path,
            None if sequence is None else sequence[: prompt // size],
            None if blocks is None else self.told(rank, blocks),
            None if number < 5 else number,
            pick((True, True, True, False), "track"),
            pick((TAINTS[0], *TAINTS, frozenset({"nobody's"})), "taints"),
            pick(PREFERRED, "preferred"),
            pick(WEIGHTS, "weights"),
            pick((None, "s", "session", ""), "session"),
            pick((True, True, True, False), "lifecycle"),
        )

    def told(self, rank: Rank, blocks: int) -> Overlap:
        """What a caller tells of caches: of this rank, of another one, and of worker 1."""
        other = self.rank(self.pick(range(8)), True)
        return self.pick(OVERLAPS, "told")(rank, other, blocks)

    def probe(self, letter: bytes) -> Request:
        """A request to ask about and not to send."""
        self.letter = iter(letter[::-1] + letter)
        return self.request()

    def new_name(self) -> str:
        """Every other one is a number, which the core keeps as such."""
        self.names += 1
        self.used.append(f"r{self.names}" if self.names % 2 and not self.numbered else str(self.names))
        return self.used[-1]

    def old_name(self, number: int) -> str:
        return self.used[-1 - number % len(self.used)]

    def rank(self, number: int, known: bool) -> Rank:
        ranks = [row[:2] for row in self.oracle.loads()]
        if known and ranks:
            return Rank(*ranks[number % len(ranks)])
        return Rank(WORKERS[number % len(WORKERS)], DP_STARTS[number % len(DP_STARTS)])

    def target(self, states: tuple[str, ...] = TO_RUNNING) -> tuple[str, int]:
        """A request, mostly in the first of these states, and an attempt, mostly its own."""
        state, number, error = self.pick(states), self.pick(range(8)), self.pick((0,) * 8 + (1, -1))
        everyone = list(self.oracle.live.values())
        live = [x for x in everyone if x.state == state] or everyone
        if state != "none" and live:
            chosen = live[number % len(live)]
            return chosen.request.request_id, max(1, chosen.attempt + error)
        if number == 7 or not self.used:
            return "ghost", 1 + number
        return self.old_name(number), max(1, self.oracle.next_attempt - number + error)

    def finish(self) -> RequestFinished:
        return RequestFinished(self.now_ns, *self.target(), self.pick(list(Outcome)), self.pick((None, 0, 100)))

    def prefill(self) -> PrefillCompleted:
        return PrefillCompleted(self.now_ns, *self.target())

    def output(self) -> OutputBlockAdded:
        return OutputBlockAdded(self.now_ns, *self.target(), self.pick((None, 0.5, None, 0.0, 0.25, 1.0, 1 / 3, 1e-9)))

    def cancel(self) -> RequestCancelled:
        return RequestCancelled(self.now_ns, self.target(TO_WAITING)[0])

    def accept(self) -> DispatchAccepted:
        return DispatchAccepted(self.now_ns, *self.target())

    def fail(self) -> DispatchFailed:
        return DispatchFailed(self.now_ns, *self.target(TO_FAILING), self.pick((True, True, True, False)))

    def context(self) -> ContextAdvanced:
        return ContextAdvanced(self.now_ns, *self.target(), self.pick((10, 11, 0, 60, 61, 1, 2**53)))

    def release(self) -> AdmissionReleased:
        request_id, _ = self.target(TO_DEFERRED)
        known, number = self.pick((None, None, True, True, True, False)), self.pick(range(8))
        return AdmissionReleased(self.now_ns, request_id, None if known is None else self.rank(number, known))

    def refreshed(self) -> OverlapRefreshed:
        request_id, _ = self.target(TO_REFRESHING)
        live = self.oracle.live.get(request_id)
        ticket = (1 if live is None else live.ticket) + self.pick((0,) * 8 + (1, -1))
        blocks, number = self.pick((None, 0, 1, 2, 5, 2**31 - 1)), self.pick(range(8))
        overlap = None if blocks is None else self.told(self.rank(number, True), blocks)
        return OverlapRefreshed(self.now_ns, request_id, max(1, ticket), overlap)

    def reload(self) -> PolicyReplaced:
        return PolicyReplaced(self.now_ns, self.pick(self.profiles))

    def hint(self) -> CapacityHinted:
        """Room on no, one or two ranks, one of which may be there no longer, or anywhere."""
        number, other = self.pick(range(8)), self.pick(range(8))
        ranks = self.pick(((True,), (True, True), (True, False), (False,), (), None))
        return CapacityHinted(self.now_ns, None if ranks is None else tuple(
            self.rank(which, known) for which, known in zip((number, other), ranks, strict=False)))

    def drain(self) -> Drained | TimerFired:
        grace_ns = self.pick((5, 1, 10, 20, 0, -1, 10**9, NS_LAST))
        if not self.late:
            return TimerFired(self.now_ns)
        return Drained(self.now_ns, max(0, min(self.now_ns + grace_ns, NS_LAST)))

    def incarnation(self, worker_id: int) -> int:
        known = self.oracle.workers.get(worker_id)
        return max(0, (0 if known is None else known.incarnation) + self.pick((0, 0, 0, 0, 1, -1)))

    def upsert(self) -> WorkerUpserted:
        worker_id, pick = self.pick(WORKERS), self.pick
        config = WorkerConfig(
            worker_id, pick((0, 0, 0, *DP_STARTS)), pick(self.flavour.dp_sizes), pick((None, 10, 64, 1)),
            taints=pick((TAINTS[2], *TAINTS), "taints"), total_kv_blocks=pick(CAPS, "caps"),
            max_requests=pick((None, None, 2, 3, 1, 10), "caps"), prefill_tokens_per_s=pick(RATES, "rate"))
        return WorkerUpserted(self.now_ns, config, self.incarnation(worker_id))

    def remove(self) -> WorkerRemoved:
        return WorkerRemoved(self.now_ns, self.pick(WORKERS))

    def place(self) -> tuple[int, int, int]:
        rank = self.rank(self.pick(range(8)), self.pick((True, True, True, False)))
        return rank.worker_id, rank.dp_rank, self.incarnation(rank.worker_id)

    def stored(self) -> BlocksStored:
        path, first = self.pick(PATHS), self.pick((0, 0, 0, 1, 2))
        place, blocks = self.place(), path[first : 8 - self.pick(range(7))]
        return BlocksStored(self.now_ns, *place, blocks, self.pick(TIERS, "tier"))

    def removed(self) -> BlocksRemoved:
        first = self.pick(range(7))
        place, blocks = self.place(), self.pick(PATHS)[first : first + 1 + self.pick((0, 0, 1, 7))]
        return BlocksRemoved(self.now_ns, *place, blocks, self.pick(TIERS, "tier"))

    def cleared(self) -> BlocksCleared:
        return BlocksCleared(self.now_ns, *self.place(), self.pick((None, None, *Tier), "tier"))

    def status(self) -> WorkerStatusChanged:
        worker_id = self.pick(WORKERS)
        known = sorted(self.oracle.workers)
        if known and self.pick((True, True, True, False)):
            worker_id = known[worker_id % len(known)]
        return WorkerStatusChanged(self.now_ns, worker_id, self.incarnation(worker_id), self.pick(("", "health")),
                                   *self.pick(OPINIONS), self.pick(LEASES, "lease"))

    def report(self) -> LoadReported:
        place, (tokens, blocks, requests) = self.place(), REPORTED
        load = self.oracle.loads_by_rank.get(place[:2])
        last = -1 if load is None or load.report is None else load.report.sequence
        sequence = max(0, min(last + self.pick((1, 1, 1, 5, 2**50, 0, -1)), 2**53))
        return LoadReported(self.now_ns, *place, sequence, self.pick(tokens), self.pick(blocks), self.pick(requests))

    def timer(self) -> TimerFired:
        """Now, at the next deadline, or just before it."""
        due_ns, early = self.oracle.next_deadline_ns, self.pick((None, 0, 1))
        if early is not None and due_ns is not None:
            self.now_ns = max(self.now_ns, min(due_ns - early, NS_LAST))
        return TimerFired(self.now_ns)

    def broken(self):
        return self.pick(list(BREAKERS.values()))(self.now_ns)


def resolved(plan, oracle) -> Run:
    """The run of a plan on an oracle; a batch with a broken event is left out."""
    run = Run(plan.config)
    for events in Resolver(plan, oracle).batches():
        with suppress(InvalidEvent):
            run.add(events, oracle.step_many(events))
    return run
