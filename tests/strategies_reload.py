"""Policies that may come into force while a plan is played: its own first, then others that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from strategies_configs import one_class
from strategies_tables import SPECS

from kvcore.errors import InvalidPolicy
from kvcore.policy import Arbitration, Capacity, PolicyClass, PolicyProfile, QueuePolicy

QUANTUM_MAX = 2**53
ORDERS = list(QueuePolicy)
BOUNDED = {"request_queue_limit_per_worker": 1, "cached_token_queue_limit_per_worker": None}
CLOSED = {"raw_isl_token_queue_limit_per_worker": 0}
FREE = {"request_queue_limit_per_worker": None, "raw_isl_token_queue_limit_per_worker": None,
        "cached_token_queue_limit_per_worker": None}


def each(profile: PolicyProfile, change: Callable[[PolicyClass, int], dict]) -> PolicyProfile:
    """With other values for some keys of every class."""
    classes = [replace(item, **change(item, index)) for index, item in enumerate(profile.classes)]
    return replace(profile, classes=tuple(classes))


def variants(profile: PolicyProfile) -> tuple[PolicyProfile, ...]:
    """The profile itself, and what can become of it."""
    quanta = [item.quantum for item in profile.classes]
    specs = (None, *SPECS)
    made = (
        profile,
        each(profile, lambda item, index: {"quantum": quanta[index - 1]}),
        each(profile, lambda item, index: {"quantum": min(QUANTUM_MAX, item.quantum * (2 + index))}),
        each(profile, lambda item, index: {"name": f"new {item.name}"} if index == 0 else {}),
        *with_other_classes(profile),
        replace(profile, classes=profile.classes[::-1]),
        each(profile, lambda item, index: {"queue_policy": ORDERS[(ORDERS.index(item.queue_policy) + 1) % 4]}),
        each(profile, lambda item, index: {"queue_policy": QueuePolicy.LCFS, "max_overtake_tokens": 9}),
        each(profile, lambda item, index: BOUNDED),
        each(profile, lambda item, index: CLOSED if index == 0 else FREE),
        each(profile, lambda item, index: {**FREE, "prefill_busy_threshold": 10}),
        each(profile, lambda item, index: {"prefill_busy_threshold": None, "prefill_busy_threshold_frac": None}),
        replace(profile, capacity=next(other for other in Capacity if other is not profile.capacity)),
        replace(profile, arbitration=next(other for other in Arbitration if other is not profile.arbitration)),
        each(profile, lambda item, index: {"admission": None}),
        each(profile, lambda item, index: {"admission": specs[index % len(specs)]}),
        each(profile, lambda item, index: {"admission": item.admission or SPECS[index % len(SPECS)]}),
        each(profile, lambda item, index: {"admission": SPECS[0]}),
    )
    return distinct(made)


def distinct(profiles: tuple[PolicyProfile, ...]) -> tuple[PolicyProfile, ...]:
    """Each once; they have no hash."""
    found: list[PolicyProfile] = []
    for profile in profiles:
        if profile not in found:
            found.append(profile)
    return tuple(found)


def with_other_classes(profile: PolicyProfile) -> Iterator[PolicyProfile]:
    """A class more, as the first or the last; classes less, one by one, and by family and bucket."""
    if profile.default_policy_family is None:
        yield replace(one_class(0), capacity=profile.capacity)
        return
    more = PolicyClass("extra", max(item.quantum for item in profile.classes), prefill_busy_threshold=0)
    yield replace(profile, classes=(more, *profile.classes))
    yield replace(profile, classes=(*profile.classes, replace(more, admission=SPECS[0])))
    others = [(lambda item, name=other.name: item.name != name, profile.buckets) for other in profile.classes]
    others += [(lambda item, name=name: item.policy_family != name, profile.buckets)
               for name in dict.fromkeys(item.policy_family for item in profile.classes)
               if name not in (None, profile.default_policy_family)]
    last = profile.buckets[-1]
    others.append((lambda item: item.cache_bucket != last.name, profile.buckets[:-1]))
    for stays, buckets in others:
        try:
            yield replace(profile, classes=tuple(filter(stays, profile.classes)), buckets=buckets)
        except InvalidPolicy:
            continue
