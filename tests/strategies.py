"""Hypothesis strategies: configurations, and events that make sense in the state in which they arrive.

A run is drawn as a *plan*: a configuration and batches of letters. A letter is a few bytes, drawn in one go because
that is fast and shrinks byte by byte; every byte chooses from a table whose first row is the simplest. `Resolver` turns
a letter into an event by looking at an Oracle that has seen everything before it, so that "finish the third running
request" finds one. Each plan uses only some kinds of letters and some features of requests (swarm testing): rare
combinations become common.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from strategies_broken import BREAKERS

from kvcore.config import IndexMode, SchedulerConfig
from kvcore.events import (
    AnyEvent,
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    Outcome,
    OutputBlockAdded,
    PrefillCompleted,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
    WorkerRemoved,
    WorkerUpserted,
)
from kvcore.policy import Arbitration, CacheBucket, PolicyClass, PolicyProfile, QueuePolicy
from kvcore.request import Overlap, Rank, Request, WorkerConfig

NS_LAST = 2**62 - 1
FAR_FUTURE = NS_LAST - 10**13
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
PROMPTS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 100, 200)
#: Only with quanta as large: the oracle's round robin goes one quantum at a time.
HUGE_PROMPTS = (2**53, 2**53 - 1, 2**52 + 1, 10**15, 10_000_001)
HUGE_QUANTA = (2**53, 2**50, 2**47 + 1)
JUMPS = (0.0, 0.0, 1e-9, 5e-9, 1e-7, 1.0, -3.0, 1e300, float("inf"), float("-inf"), float("nan"), 4e9, 0.5e-9)
#: Steps of time, a palette per plan: calm runs build queues up, wild ones let deadlines and bookings run out.
CALM = (0, 0, 0, 0, 1, 1, 2, 3)
WILD = (0, 1, 2, 5, 10, 40, 1_000, 2_000_000, 10**9, 3 * 10**12)
NAMES = (None, None, "alpha", "beta", "solo", "duo", "nobody", "", "alpha-small")


@dataclass(frozen=True)
class Plan:
    """A configuration and the batches of letters to play on it.

    kinds: what the first byte of a letter chooses from. plain: features of requests that this plan does without.
    """

    config: SchedulerConfig
    prompts: tuple[int, ...]
    kinds: tuple[str, ...]
    plain: frozenset[str]
    steps_ns: tuple[int, ...]
    start_ns: int
    batches: tuple[tuple[bytes, ...], ...]


# ---- configurations


@st.composite
def policy_classes(draw, name: str, family: str | None, bucket: str | None, quanta: tuple[int, ...]) -> PolicyClass:
    """One class with any order, thresholds and limits."""
    return PolicyClass(
        name,
        draw(st.sampled_from(quanta)),
        draw(st.sampled_from(list(QueuePolicy))),
        family,
        bucket,
        prefill_busy_threshold=draw(st.sampled_from((0, 0, 0, 1, 10, 40, None))),
        prefill_busy_threshold_frac=draw(st.sampled_from((None, None, None, None, 0.0, 0.5, 1.5))),
        request_queue_limit_per_worker=draw(st.sampled_from((None, None, None, None, None, 0, 1, 3))),
        raw_isl_token_queue_limit_per_worker=draw(st.sampled_from((None,) * 8 + (0, 2, 30))),
        cached_token_queue_limit_per_worker=draw(st.sampled_from((None,) * 8 + (0, 1, 8))),
    )


@st.composite
def profiles(draw, quanta: tuple[int, ...] = (1, 2, 3, 5, 8, 20, 100)) -> PolicyProfile:
    """Families x buckets, then explicit classes, in any order of arbitration."""
    families = ("alpha", "beta")[: draw(st.integers(1, 2))]
    buckets = (CacheBucket("small", 0), CacheBucket("large", draw(st.sampled_from((1, 8, 33)))))
    buckets = buckets[: draw(st.integers(1, 2))]
    cells = [(f"{family}-{bucket.name}", family, bucket.name) for family in families for bucket in buckets]
    cells += [(name, None, None) for name in ("solo", "duo")[: draw(st.integers(0, 2))]]
    classes = tuple(draw(policy_classes(*cell, quanta)) for cell in cells)
    arbitration = draw(st.sampled_from((Arbitration.EXACT, Arbitration.EXACT, Arbitration.REFERENCE)))
    return PolicyProfile(classes, buckets, draw(st.sampled_from(families)), arbitration)


@st.composite
def configs(draw, huge: bool = False) -> SchedulerConfig:
    """Any scheduler of this version; huge: quanta for prompts of up to 2^53 tokens."""
    synthetic = not huge and draw(st.sampled_from((False, False, False, True)))
    fracs = st.sampled_from((0.0, 0.0, None, 0.5, 2.0, float("inf")))
    return SchedulerConfig(
        block_size=draw(st.sampled_from((4, 1, 2, 16, 3))),
        profile=None if synthetic else draw(profiles(HUGE_QUANTA) if huge else profiles()),
        default_queue_policy=draw(st.sampled_from(list(QueuePolicy))) if synthetic else QueuePolicy.FCFS,
        default_busy_threshold_frac=draw(fracs) if synthetic else None,
        booking_ttl_ns=draw(st.sampled_from((None, None, 20, 5, 1_000, NS_LAST))),
        index=draw(st.sampled_from((IndexMode.EVENTS, IndexMode.EVENTS, IndexMode.OFF))),
        seed=draw(st.sampled_from((0, 42, 2**64 - 1))),
    )


# ---- plans

#: How often a kind is chosen while it is enabled.
WEIGHTS = {
    "arrive": 10, "finish": 3, "prefill": 3, "output": 2, "cancel": 1, "upsert": 2, "remove": 1, "stored": 2,
    "removed": 1, "cleared": 1, "timer": 1, "broken": 1,
}
RARE = ("remove", "broken")
FEATURES = (
    "strict", "jump", "deadline", "do_not_queue", "pin", "allowed", "path", "sequence", "overlap", "track", "pool",
)
#: Which request a fact is about.
TO_RUNNING = ("running",) * 9 + ("evicted", "waiting", "none")
TO_WAITING = ("waiting", "waiting", "waiting", "running", "evicted", "none")
LETTER_BYTES = 20


@st.composite
def plans(draw, most_batches: int = 60, broken: bool = True, config: SchedulerConfig | None = None) -> Plan:
    """A configuration, a small fleet and up to most_batches batches of one to six letters."""
    huge = config is None and draw(st.sampled_from((False,) * 9 + (True,)))
    kinds = ["arrive"] + [kind for kind in WEIGHTS if kind != "arrive" and (kind != "broken" or broken)
                          and draw(st.integers(0, 3)) >= (2 if kind in RARE else 1)]
    letter = st.binary(min_size=LETTER_BYTES, max_size=LETTER_BYTES)
    size = draw(st.sampled_from((1, 2, 6)))
    batch = letter.map(lambda one: (one,)) if size == 1 else st.lists(letter, min_size=1, max_size=size).map(tuple)
    fewest = draw(st.sampled_from((1, most_batches // 4, most_batches // 2)))
    fleet = tuple(draw(st.lists(letter, min_size=draw(st.sampled_from((1, 1, 1, 0))), max_size=3)))
    return Plan(
        config if config is not None else draw(configs(huge)),
        HUGE_PROMPTS + PROMPTS[:3] if huge else PROMPTS,
        tuple(kind for kind in kinds for _ in range(WEIGHTS[kind])),
        frozenset(feature for feature in FEATURES if draw(st.integers(0, 2))),
        draw(st.sampled_from((CALM, CALM, WILD))),
        draw(st.sampled_from((0, 0, 0, 1_000, FAR_FUTURE))),
        (fleet, *draw(st.lists(batch, min_size=fewest, max_size=most_batches))),
    )


# ---- from letters to events


class Resolver:
    """Turns the letters of one plan into events, by what the given oracle knows when their batch begins."""

    def __init__(self, plan: Plan, oracle) -> None:
        self.plan = plan
        self.oracle = oracle
        self.now_ns = plan.start_ns
        self.letter = iter(())
        self.names = 0
        self.used: list[str] = []

    def batches(self):
        """The batches of the plan, one by one; the first is the fleet."""
        for number, letters in enumerate(self.plan.batches):
            self.now_ns = max(self.now_ns, self.oracle.now_ns)
            if number or letters:
                yield tuple([self.event(letter, None if number else "upsert") for letter in letters])

    def event(self, letter: bytes, kind: str | None = None) -> AnyEvent:
        self.letter = iter(letter)
        chosen = self.pick(self.plan.kinds)
        self.now_ns = min(self.now_ns + self.pick(self.plan.steps_ns), NS_LAST)
        return getattr(self, kind or chosen)()

    def pick(self, options, feature: str | None = None):
        """The option that the next byte chooses; the first one where the plan does without the feature."""
        byte = next(self.letter)
        return options[0 if feature in self.plan.plain else byte % len(options)]

    def arrive(self) -> RequestArrived:
        return RequestArrived(self.now_ns, self.request())

    def request(self) -> Request:
        """A request; its deadline counts from now, its hashes fit its prompt."""
        pick, size = self.pick, self.plan.config.block_size
        number = pick(range(8))
        request_id = self.old_name(number) if pick((0, 0, 0, 0, 1), "pool") and self.used else self.new_name()
        prompt = pick(self.plan.prompts)
        path = pick(((), *PATHS), "path")[: min(1 + pick(range(8)), -(-prompt // size))]
        sequence = pick((None, None, None, (), *PATHS), "sequence")
        deadline = pick((None, None, None, None, None, 1, 2, 10, 50, 10**9, 0, -1), "deadline")
        pin = pick((None, None, True, True, False), "pin")
        allowed = pick((None, None, (1,), (2, 1), (0, 2), (2**64 - 1,), (), (1, 77)), "allowed")
        overlap = pick((None, None, 0, 1, 2, 5, 2**31 - 1), "overlap")
        return Request(
            request_id, prompt, pick(NAMES), pick((0, 0, 0, 1, 2**32 - 1), "strict"), pick(JUMPS, "jump"),
            None if deadline is None else max(0, min(self.now_ns + deadline, NS_LAST)),
            pick((False, False, False, True), "do_not_queue"),
            None if pin is None else self.rank(number, pin),
            None if allowed is None else frozenset(allowed),
            path,
            None if sequence is None else sequence[: prompt // size],
            None if overlap is None else Overlap(((self.rank(number, True), overlap), (Rank(1), 1))),
            None if number < 5 else number,
            pick((True, True, True, False), "track"),
        )

    def probe(self, letter: bytes) -> Request:
        """A request to ask about and not to send."""
        self.letter = iter(letter[::-1])
        return self.request()

    def new_name(self) -> str:
        self.names += 1
        self.used.append(f"r{self.names}")
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

    def incarnation(self, worker_id: int) -> int:
        known = self.oracle.workers.get(worker_id)
        return max(0, (0 if known is None else known.incarnation) + self.pick((0, 0, 0, 0, 1, -1)))

    def upsert(self) -> WorkerUpserted:
        worker_id = self.pick(WORKERS)
        config = WorkerConfig(worker_id, self.pick((0, 0, 0, *DP_STARTS)), 1 + self.pick((0, 0, 1, 2)),
                              self.pick((None, 10, 64, 1)))
        return WorkerUpserted(self.now_ns, config, self.incarnation(worker_id))

    def remove(self) -> WorkerRemoved:
        return WorkerRemoved(self.now_ns, self.pick(WORKERS))

    def place(self) -> tuple[int, int, int]:
        rank = self.rank(self.pick(range(8)), self.pick((True, True, True, False)))
        return rank.worker_id, rank.dp_rank, self.incarnation(rank.worker_id)

    def stored(self) -> BlocksStored:
        return BlocksStored(self.now_ns, *self.place(), self.pick(PATHS)[: 8 - self.pick(range(8))])

    def removed(self) -> BlocksRemoved:
        return BlocksRemoved(self.now_ns, *self.place(), self.pick(PATHS)[self.pick(range(8)) :])

    def cleared(self) -> BlocksCleared:
        return BlocksCleared(self.now_ns, *self.place())

    def timer(self) -> TimerFired:
        """Now, at the next deadline, or just before it."""
        due_ns, early = self.oracle.next_deadline_ns, self.pick((None, 0, 1))
        if early is not None and due_ns is not None:
            self.now_ns = max(self.now_ns, min(due_ns - early, NS_LAST))
        return TimerFired(self.now_ns)

    def broken(self):
        return self.pick(list(BREAKERS.values()))(self.now_ns)
