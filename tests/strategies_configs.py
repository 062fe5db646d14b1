"""Hypothesis strategies: configurations of a scheduler, from plain to strange."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies_tables import COSTS, SPECS

from kvcore.config import IndexMode, OnOverload, PrefillDecay, Role, SchedulerConfig
from kvcore.policy import (
    AdmissionSpec,
    Arbitration,
    CacheBucket,
    Capacity,
    PolicyClass,
    PolicyProfile,
    QueuePolicy,
)

NS_LAST = 2**62 - 1
QUANTA = (1, 2, 3, 5, 8, 20, 100)
HUGE_QUANTA = (2**53, 2**50, 2**47 + 1)


@st.composite
def class_keys(draw) -> dict:
    """Order, thresholds and limits of a class."""
    return {
        "queue_policy": draw(st.sampled_from(list(QueuePolicy))),
        "prefill_busy_threshold": draw(st.sampled_from((0, 0, 0, 1, 10, 40, None))),
        "prefill_busy_threshold_frac": draw(st.sampled_from((None, None, None, None, 0.0, 0.5, 1.5))),
        "request_queue_limit_per_worker": draw(st.sampled_from((None, None, None, None, None, 0, 1, 3))),
        "raw_isl_token_queue_limit_per_worker": draw(st.sampled_from((None,) * 8 + (0, 2, 30))),
        "cached_token_queue_limit_per_worker": draw(st.sampled_from((None,) * 8 + (0, 1, 8))),
        "max_overtake_tokens": draw(st.sampled_from((None,) * 6 + (0, 5, 50, 2**53))),
    }


@st.composite
def admission(draw, often: bool = False) -> AdmissionSpec | None:
    """Who holds requests of a class back; mostly nobody."""
    return draw(st.sampled_from(((None,) if often else (None,) * 20) + SPECS))


@st.composite
def profiles(draw, quanta: tuple[int, ...] = QUANTA, admitted: bool = False) -> PolicyProfile:
    """Families x buckets, then explicit classes; half of them alike but for their quanta, so that all compete.

    admitted: some classes have an admission policy.
    """
    families = ("alpha", "beta")[: draw(st.integers(1, 2))]
    buckets = (CacheBucket("small", 0), CacheBucket("large", draw(st.sampled_from((1, 8, 33)))))
    buckets = buckets[: draw(st.integers(1, 2))]
    cells = [(f"{family}-{bucket.name}", family, bucket.name) for family in families for bucket in buckets]
    cells += [(name, None, None) for name in ("solo", "duo")[: draw(st.integers(0, 2))]]
    alike = {"prefill_busy_threshold": 0} if draw(st.booleans()) else None
    classes = []
    for name, family, bucket in cells:
        keys = alike if alike is not None else draw(class_keys())
        quantum, spec = draw(st.sampled_from(quanta)), draw(admission()) if admitted else None
        classes.append(PolicyClass(name, quantum, policy_family=family, cache_bucket=bucket, admission=spec, **keys))
    arbitration = draw(st.sampled_from((Arbitration.EXACT, Arbitration.EXACT, Arbitration.REFERENCE)))
    capacity = draw(st.sampled_from((Capacity.ADVISORY, Capacity.ADVISORY, Capacity.STRICT)))
    return PolicyProfile(tuple(classes), buckets, draw(st.sampled_from(families)), arbitration, capacity)


@st.composite
def extras(draw) -> dict:
    """Keys of a configuration that most do without: each of them in a quarter of half of the plans."""
    if draw(st.booleans()):
        return {}
    options = {
        "weights": COSTS,
        "role": (Role.DECODE,),
        "on_overload": (OnOverload.WAIT,),
        "overload_wait_ns": (10, 1, 3, 1_000, NS_LAST),
        "prefill_decay": (PrefillDecay.LINEAR,),
        "predict_ttl_ns": (30, 1, 5, 10**9, NS_LAST),
        "reported_load_ttl_ns": (30, 1, 5, 10**9, NS_LAST),
        "index": (IndexMode.APPROXIMATE,),
        "attempts_max": (2, 1, 3),
    }
    return {name: draw(st.sampled_from(values)) for name, values in options.items() if draw(st.integers(0, 3)) == 3}


@st.composite
def unread_extras(draw) -> dict:
    """Keys that make requests wait for more than room: each of them in half of the plans that have them at all."""
    options = {
        "refresh_after_ns": (0, 5, 1, 2, 1_000, NS_LAST),
        "refresh_timeout_ns": (10, 1, 3, 1_000, NS_LAST),
        "pin_grace_ns": (10, 1, 3, 1_000, NS_LAST),
        "empty_fleet_wait_ns": (10, 1, 3, 1_000, NS_LAST),
    }
    return {name: draw(st.sampled_from(values)) for name, values in options.items() if draw(st.booleans())}


@st.composite
def configs(draw, huge: bool = False, unread: bool = False) -> SchedulerConfig:
    """Any scheduler of this version. huge: quanta for prompts of up to 2^53 tokens. unread: keys that few know."""
    synthetic = not huge and draw(st.sampled_from((False, False, False, True)))
    fracs = st.sampled_from((0.0, 0.0, None, 0.5, 2.0, float("inf")))
    indexes = st.sampled_from((IndexMode.EVENTS, IndexMode.EVENTS, IndexMode.OFF))
    return SchedulerConfig(**{
        "block_size": draw(st.sampled_from((4, 1, 2, 16, 3, 7))),
        "profile": None if synthetic else draw(profiles(HUGE_QUANTA if huge else QUANTA, unread)),
        "default_queue_policy": draw(st.sampled_from(list(QueuePolicy))) if synthetic else QueuePolicy.FCFS,
        "default_busy_threshold_frac": draw(fracs) if synthetic else None,
        "booking_ttl_ns": draw(st.sampled_from((None, None, 20, 5, 1_000, NS_LAST))),
        "index": draw(indexes),
        "seed": draw(st.sampled_from((0, 42, 2**64 - 1))),
        **draw(extras()),
        **(draw(unread_extras()) if unread else {}),
    })


def names_of(config: SchedulerConfig) -> tuple[str | None, ...]:
    """The class names that mean something to a profile."""
    return tuple(dict.fromkeys(item.policy_family or item.name for item in config.effective_profile().classes))


def one_class(threshold: int | None = None, capacity: Capacity = Capacity.ADVISORY, **keys) -> PolicyProfile:
    """A profile of one class."""
    cell = PolicyClass("cell", 100, policy_family="alpha", cache_bucket="all", prefill_busy_threshold=threshold, **keys)
    return PolicyProfile((cell,), (CacheBucket("all", 0),), "alpha", capacity=capacity)
