"""Hypothesis strategies: configurations, and events that make sense in the state in which they arrive.

A run is drawn as a *plan*: a configuration and batches of letters. A letter is a few bytes, drawn in one go because
that is fast and shrinks byte by byte. `Resolver` (strategies_letters) turns a letter into an event by looking at an
Oracle that has seen everything before it, so that "finish the third running request" finds one. A third of the plans
are swarms, with only some kinds of letters and some features of requests, so that rare combinations become common; the
others have a theme: classes that compete, requests that overtake, a queue that is full, prefixes that come and go,
ranks that are full, overloaded or fading, choices among ranks, dispatches that fail, and those of strategies_waits:
policies that hold requests back, caches that are asked about, ranks that are lost, policies that are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from strategies_configs import configs, names_of, one_class
from strategies_flavour import (
    CALM,
    FAR_FUTURE,
    FEATURES,
    HUGE_PROMPTS,
    LETTER_BYTES,
    PROMPTS,
    RARE,
    SELDOM,
    STEADY,
    STRANGE_NAMES,
    UNREAD,
    WEIGHTS,
    WILD,
    Flavour,
)
from strategies_tables import COSTS
from strategies_waits import absences, admissions, questions, reloads

from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.policy import Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy


@dataclass(frozen=True)
class Plan:
    """A flavour and the batches of letters to play on it; the first batch is the fleet."""

    flavour: Flavour
    kinds: tuple[str, ...]
    start_ns: int
    batches: tuple[tuple[bytes, ...], ...]

    @property
    def config(self) -> SchedulerConfig:
        return self.flavour.config


@st.composite
def anything(draw, broken: bool = True, config: SchedulerConfig | None = None) -> Flavour:
    """Swarm: some kinds, some features, any configuration."""
    huge = config is None and draw(st.sampled_from((False,) * 9 + (True,)))
    unread = draw(st.sampled_from((False, False, False, True)))
    absent = {"arrive", *(() if broken else ("broken",)), *(() if unread else UNREAD)}
    kinds = ["arrive"] + [kind for kind in WEIGHTS if kind not in absent
                          and draw(st.integers(0, 3)) >= (2 if kind in RARE else 1)]
    config = config if config is not None else draw(configs(huge, unread))
    return Flavour(
        config,
        names_of(config) + (STRANGE_NAMES if draw(st.booleans()) else ()),
        HUGE_PROMPTS if huge else PROMPTS,
        {kind: WEIGHTS[kind] for kind in kinds},
        frozenset(f for f in sorted(FEATURES) if draw(st.integers(0, 5)) > (1 if f in SELDOM else 2)),
        draw(st.sampled_from((CALM, CALM, WILD))),
    )


@st.composite
def duels(draw, cancels: tuple[int, ...] = (0, 3, 5)) -> Flavour:
    """Classes that compete for one prompt at a time: what round robin makes of it. cancels: their weight."""
    quanta = st.sampled_from((1, 2, 3, 5, 10))
    names = ("alpha", "solo", "duo")[: draw(st.integers(2, 3))]
    classes = [PolicyClass(name, draw(quanta), prefill_busy_threshold=0) for name in names[1:]]
    cell = PolicyClass("cell", draw(quanta), policy_family="alpha", cache_bucket="all", prefill_busy_threshold=0)
    classes.insert(draw(st.integers(0, 2)), cell)
    arbitration = draw(st.sampled_from((Arbitration.EXACT, Arbitration.REFERENCE)))
    profile = PolicyProfile(tuple(classes), (CacheBucket("all", 0),), "alpha", arbitration)
    stored = draw(st.sampled_from((0, 0, 2)))
    kinds = {"arrive": 5, "prefill": 5, "cancel": draw(st.sampled_from(cancels)), "finish": 1, "stored": stored}
    plain = FEATURES - {"pin" if draw(st.booleans()) else "", "path" if stored else ""}
    return Flavour(SchedulerConfig(2, profile), names, (1, 2, 3, 4, 5, 8, 10, 12), kinds, plain, CALM, 1, (1,))


@st.composite
def detours(draw, lanes: bool = True) -> Flavour:
    """Classes in which better requests keep coming and may overtake only so much. lanes: some that fill and open."""
    policies = st.sampled_from((QueuePolicy.LCFS, QueuePolicy.LCFS, QueuePolicy.WSPT, QueuePolicy.EDF))
    bounds = st.sampled_from((9, 5, 15, 30, 0, None))
    classes = [
        PolicyClass(name, draw(st.sampled_from((5, 1, 20))), draw(policies), policy_family=name, cache_bucket="all",
                    prefill_busy_threshold=draw(st.sampled_from((0, 0, 5))), max_overtake_tokens=draw(bounds))
        for name in ("alpha", "beta")[: draw(st.sampled_from((2, 1)))]]
    arbitration = draw(st.sampled_from((Arbitration.EXACT, Arbitration.EXACT, Arbitration.REFERENCE)))
    profile = PolicyProfile(tuple(classes), (CacheBucket("all", 0),), "alpha", arbitration)
    kinds = {"arrive": 8, "prefill": 5, "finish": 1, "cancel": draw(st.sampled_from((0, 1, 3))),
             "upsert": draw(st.sampled_from((0, 0, 1))), "remove": draw(st.sampled_from((0, 0, 1)))}
    used = {f for f in ("pin", "pin", "allowed", "taints", "strict", "jump", "deadline") if draw(st.booleans())}
    used -= set() if lanes else {"pin", "allowed", "taints"}
    return Flavour(SchedulerConfig(2, profile), ("alpha", "beta"), (1, 2, 3, 4, 5, 8, 10, 12), kinds, FEATURES - used,
                   (0, 1, 1, 2), 2, (1, 2, 3))


@st.composite
def rushes(draw) -> Flavour:
    """One class, more arrivals than may wait: limits, and how long to stay away."""
    cell = PolicyClass(
        "cell", 100, draw(st.sampled_from(list(QueuePolicy))), policy_family="alpha", cache_bucket="all",
        prefill_busy_threshold=draw(st.sampled_from((0, 10, 200))),
        request_queue_limit_per_worker=draw(st.sampled_from((None, 1, 2, 5))),
        raw_isl_token_queue_limit_per_worker=draw(st.sampled_from((0, 40, None))),
    )
    config = SchedulerConfig(profile=PolicyProfile((cell,), (CacheBucket("all", 0),), "alpha"))
    kinds = {"arrive": 7, "prefill": 6, "finish": 1, "timer": 1, "upsert": draw(st.integers(0, 1))}
    return Flavour(config, ("alpha",), PROMPTS, kinds, FEATURES - {"do_not_queue", "overlap"}, STEADY, 1)


@st.composite
def caches(draw) -> Flavour:
    """Nothing waits, prefixes come and go: the index, shared blocks, output blocks that fade."""
    config = SchedulerConfig(draw(st.sampled_from((1, 2, 4))), booking_ttl_ns=draw(st.sampled_from((None, 20))))
    kinds = {"arrive": 6, "stored": 5, "removed": 4, "cleared": draw(st.integers(0, 1)), "finish": 2, "output": 4,
             "prefill": 1, "upsert": 1, "remove": draw(st.integers(0, 1))}
    plain = FEATURES - {"path", *(f for f in ("sequence", "overlap", "track") if draw(st.booleans()))}
    return Flavour(config, (None,), (8, 9, 12, 16, 32), kinds, plain, CALM)


@st.composite
def crowds(draw) -> Flavour:
    """Ranks with little room, under strict capacity mostly: what fits where, shared prompts, answers that grow."""
    orders = st.sampled_from((QueuePolicy.FCFS, QueuePolicy.FCFS, QueuePolicy.LCFS, QueuePolicy.WSPT))
    profile = one_class(draw(st.sampled_from((None, None, 0, 30))),
                        draw(st.sampled_from((Capacity.STRICT, Capacity.STRICT, Capacity.STRICT, Capacity.ADVISORY))),
                        queue_policy=draw(orders))
    config = SchedulerConfig(draw(st.sampled_from((1, 2, 3, 4))), profile,
                             reported_load_ttl_ns=draw(st.sampled_from((None, None, 4))))
    kinds = {"arrive": 8, "finish": 4, "output": 3, "prefill": 1, "upsert": draw(st.integers(0, 1)),
             "remove": draw(st.sampled_from((0, 0, 1))), "status": draw(st.sampled_from((0, 0, 1))),
             "report": draw(st.sampled_from((0, 0, 1))), "cancel": draw(st.integers(0, 1))}
    used = {"caps", *(f for f in ("path", "path", "sequence", "pin", "allowed", "taints") if draw(st.booleans()))}
    return Flavour(config, ("alpha",), (1, 2, 3, 4, 5, 8, 9, 12, 16), kinds, FEATURES - used, CALM)


@st.composite
def overloads(draw) -> Flavour:
    """Workers that are overloaded or out of reach, for good or for a while; requests that wait or do not."""
    profile = one_class(draw(st.sampled_from((5, 0, 20, None))), draw(st.sampled_from(list(Capacity))),
                        request_queue_limit_per_worker=draw(st.sampled_from((None, None, 0, 3))))
    waits = st.sampled_from((OnOverload.WAIT, OnOverload.WAIT, OnOverload.WAIT, OnOverload.REJECT))
    config = SchedulerConfig(4, profile, on_overload=draw(waits), overload_wait_ns=draw(st.sampled_from((3, 1, 2, 10))))
    kinds = {"arrive": 6, "finish": 3, "prefill": 2, "status": 6, "timer": 2, "upsert": draw(st.integers(0, 1)),
             "remove": draw(st.sampled_from((0, 0, 1))), "cancel": draw(st.integers(0, 1))}
    some = ("pin", "allowed", "taints", "deadline", "caps")
    used = {"lease", *(f for f in some if draw(st.sampled_from((False, False, True))))}
    return Flavour(config, ("alpha",), PROMPTS[:10], kinds, FEATURES - used, (0, 0, 1, 1, 2, 3, 5), 3, (1, 1, 2))


@st.composite
def fadings(draw) -> Flavour:
    """Prefill load that fades with time, and what engines report beyond it: when a rank is not busy any more."""
    fractions = st.sampled_from((None, None, 0.0, 0.5))
    profile = one_class(draw(st.sampled_from((20, 5, 0, 50, None))), prefill_busy_threshold_frac=draw(fractions))
    config = SchedulerConfig(
        4, profile, prefill_decay=PrefillDecay.LINEAR, reported_load_ttl_ns=draw(st.sampled_from((None, None, 5, 30))),
        booking_ttl_ns=draw(st.sampled_from((None, None, 40))),
        weights=draw(st.sampled_from((COSTS[0], COSTS[0], COSTS[2]))))
    kinds = {"arrive": 6, "prefill": 2, "finish": 3, "timer": 3, "cancel": 1, "report": draw(st.integers(0, 2)),
             "upsert": draw(st.integers(0, 1)), "remove": draw(st.sampled_from((0, 0, 1)))}
    used = {"rate", *(f for f in ("pin", "track", "overlap") if draw(st.booleans()))}
    return Flavour(config, ("alpha",), PROMPTS, kinds, FEATURES - used, (0, 1, 1, 2, 3, 5, 8, 13), 2, (1, 1, 2))


@st.composite
def choices(draw) -> Flavour:
    """Nothing waits: what a rank costs, with all weights, tiers, predictions and preferences, and who is taken."""
    source = draw(st.sampled_from(("told", "tier", "tier", "expected")))
    expected = draw(st.sampled_from((30, 3, 30, None))) if source == "expected" else None
    config = SchedulerConfig(
        draw(st.sampled_from((4, 1, 3, 16))), seed=draw(st.sampled_from((0, 42))),
        weights=draw(st.sampled_from(COSTS)), role=draw(st.sampled_from(list(Role))),
        index=draw(st.sampled_from(list(IndexMode))) if source == "expected" else IndexMode.EVENTS,
        predict_ttl_ns=expected, reported_load_ttl_ns=draw(st.sampled_from((None, 20))))
    kinds = {"arrive": 8, "stored": 8 if source == "tier" else 2, "removed": 1, "cleared": draw(st.integers(0, 1)),
             "finish": 2, "output": 1, "prefill": 1, "upsert": draw(st.integers(0, 1)),
             "report": draw(st.integers(0, 2)), "timer": 1}
    used = {"path", "tier", *(f for f in ("sequence", "track", "weights", "caps", "pin") if draw(st.booleans()))}
    used |= {"overlap", "told"} if source == "told" else set()
    used |= draw(st.sampled_from((set(), {"preferred", "taints"})))
    return Flavour(config, (None,), (32, 16, 8, 9, 12, 64, 100), kinds, FEATURES - used, CALM, 3, (1, 1, 1, 2))


@st.composite
def retries(draw) -> Flavour:
    """Dispatches that fail and come again, where requests compete, overtake, are refused, and workers come and go."""
    orders, bounds = draw(st.sampled_from((
        (tuple(QueuePolicy), (None,)), (tuple(QueuePolicy), (None, 0, 5, 15)), ((QueuePolicy.LCFS,), (5, 9, 15)))))
    names = ("alpha", "beta")[: draw(st.sampled_from((1, 2)))]
    classes = tuple(
        PolicyClass(name, draw(st.sampled_from((5, 1, 20))), draw(st.sampled_from(orders)),
                    policy_family=name, cache_bucket="all", prefill_busy_threshold=draw(st.sampled_from((0, 0, 5, 20))),
                    request_queue_limit_per_worker=draw(st.sampled_from((None, None, None, 0, 2))),
                    max_overtake_tokens=draw(st.sampled_from(bounds)))
        for name in names)
    profile = PolicyProfile(classes, (CacheBucket("all", 0),), "alpha",
                            draw(st.sampled_from((Arbitration.EXACT, Arbitration.REFERENCE))),
                            draw(st.sampled_from((Capacity.ADVISORY, Capacity.ADVISORY, Capacity.STRICT))))
    keys, used = draw(st.sampled_from((
        ({}, set()), ({}, {"deadline"}), ({"prefill_decay": PrefillDecay.LINEAR}, {"rate"}),
        ({"index": IndexMode.APPROXIMATE, "predict_ttl_ns": 4}, {"path"}))))
    config = SchedulerConfig(
        4, profile, attempts_max=draw(st.sampled_from((8, 8, 1, 2, 3))),
        on_overload=draw(st.sampled_from(list(OnOverload))), overload_wait_ns=draw(st.sampled_from((3, 10))),
        booking_ttl_ns=draw(st.sampled_from((None, None, 10))), **keys)
    kinds = {"arrive": 8, "fail": 6, "accept": 1, "prefill": 3, "finish": 1, "timer": 1, "hint": 1,
             "cancel": draw(st.integers(0, 1)), "status": draw(st.sampled_from((0, 2))), "upsert": 1,
             "remove": draw(st.sampled_from((0, 0, 1))), "drain": draw(st.sampled_from((0, 4)))}
    some = ("pin", "do_not_queue", "caps", "lease", "strict", "overlap")
    used = used | {f for f in some if draw(st.sampled_from((False, False, False, True)))}
    used |= draw(st.sampled_from((set(), set(), set(), {"allowed"}, {"taints"})))
    return Flavour(config, names, (4, 5, 8, 1, 2, 3, 10, 12), kinds, FEATURES - used, (0, 0, 1, 1, 2, 5), 2, (1, 1, 2))


def flavours(broken: bool = True, config: SchedulerConfig | None = None) -> st.SearchStrategy[Flavour]:
    """Any flavour; with a configuration given, swarms on it."""
    swarm = anything(broken, config)
    return swarm if config is not None else st.one_of(
        swarm, swarm, swarm, duels(), duels(), rushes(), caches(), detours(), detours(), crowds(), overloads(),
        fadings(), choices(), retries(), retries(), admissions(), admissions(), questions(), absences(), reloads(),
        reloads())


@st.composite
def plans(draw, flavour: st.SearchStrategy[Flavour] | None = None, most_batches: int = 60) -> Plan:
    """A flavour, a small fleet and up to most_batches batches of one to six letters."""
    chosen = draw(flavour if flavour is not None else flavours())
    letter = st.binary(min_size=LETTER_BYTES, max_size=LETTER_BYTES)
    fewest = chosen.fewest
    fleet = tuple(draw(st.lists(
        letter, min_size=draw(st.sampled_from((fewest, fewest, fewest, 0))), max_size=chosen.workers)))
    size = draw(st.sampled_from((1, 2, 6)))
    batch = letter.map(lambda one: (one,)) if size == 1 else st.lists(letter, min_size=1, max_size=size).map(tuple)
    fewest = draw(st.sampled_from((1, most_batches // 4, most_batches // 2)))
    return Plan(
        chosen,
        tuple(kind for kind, weight in chosen.kinds.items() for _ in range(weight)),
        draw(st.sampled_from((0, 0, 0, 1_000, FAR_FUTURE))),
        (fleet, *draw(st.lists(batch, min_size=fewest, max_size=most_batches))),
    )
