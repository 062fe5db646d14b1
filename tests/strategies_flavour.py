"""What the runs of one sort are made of: palettes of prompts and of time, features of requests, kinds of events."""

from __future__ import annotations

from dataclasses import dataclass

from strategies_configs import NS_LAST

from kvcore.config import SchedulerConfig

FAR_FUTURE = NS_LAST - 10**13
PROMPTS = (1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 16, 17, 24, 32, 33, 40, 48, 64, 100, 200)
#: Only with quanta as large: the oracle's round robin goes one quantum at a time.
HUGE_PROMPTS = (2**53, 2**53 - 1, 2**52 + 1, 10**15, 10_000_001, 1, 2)
#: Steps of time, a palette per plan: calm runs build queues up, wild ones let deadlines and bookings run out.
CALM = (0, 0, 0, 0, 1, 1, 2, 3)
WILD = (0, 1, 2, 5, 10, 40, 1_000, 2_000_000, 10**9, 3 * 10**12)
STEADY = (0, 0, 500_000, 1_000_000, 7_000_000, 50_000_000)
STRANGE_NAMES = (None, "nobody", "", "alpha-small")
LETTER_BYTES = 20
FEATURES = frozenset((
    "strict", "jump", "deadline", "do_not_queue", "pin", "allowed", "path", "sequence", "overlap", "track", "pool",
    "taints", "told", "tier", "weights", "preferred", "caps", "rate", "lease", "session", "lifecycle",
))
#: Features that end requests early or are seldom used: on in a third of the plans, the others in half of them.
SELDOM = (
    "deadline", "do_not_queue", "pin", "allowed", "taints", "told", "tier", "weights", "preferred", "caps", "rate",
    "lifecycle",
)
#: How often a kind is chosen while it is enabled.
WEIGHTS = {
    "arrive": 10, "finish": 3, "prefill": 3, "output": 2, "cancel": 1, "upsert": 2, "remove": 1, "stored": 2,
    "removed": 1, "cleared": 1, "timer": 1, "broken": 1, "status": 2, "report": 2, "accept": 1, "fail": 3, "hint": 1,
    "drain": 1, "context": 2, "release": 2, "refreshed": 2, "reload": 1,
}
#: Kinds of events, and keys of a configuration, that few checkers can read: all of them in a quarter of the swarms.
UNREAD = ("context", "release", "refreshed", "reload")
RARE = ("remove", "broken", "status", "report", "accept", "fail", "hint", "drain")


@dataclass(frozen=True)
class Flavour:
    """What the runs of one sort are made of.

    names, prompts: what requests choose from. kinds: weight of each kind of letter. plain: features of requests that
    they do without. steps_ns: palette of time steps. workers: how many there are at most to begin with, fewest: at
    least, in most plans. dp_sizes: what their dp_size may be.
    """

    config: SchedulerConfig
    names: tuple[str | None, ...]
    prompts: tuple[int, ...]
    kinds: dict[str, int]
    plain: frozenset[str]
    steps_ns: tuple[int, ...]
    workers: int = 3
    dp_sizes: tuple[int, ...] = (1, 1, 2, 3)
    fewest: int = 1
