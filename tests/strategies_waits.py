"""Themes in which requests wait for more than room: a policy, an answer, a rank that is lost; and reloads."""

from __future__ import annotations

from hypothesis import strategies as st
from strategies_configs import admission, names_of, one_class, profiles
from strategies_flavour import CALM, FEATURES, PROMPTS, STRANGE_NAMES, Flavour

from kvcore.config import IndexMode, OnOverload, SchedulerConfig
from kvcore.policy import Arbitration, CacheBucket, Capacity, PolicyClass, PolicyProfile, QueuePolicy

SMALL = (8, 4, 5, 1, 2, 3, 9, 10, 12, 17)
SOON = (0, 0, 1, 1, 2, 3, 5)


def some(draw, *features: str) -> set[str]:
    """Each of them in a third of the plans."""
    return {feature for feature in features if draw(st.sampled_from((False, False, True)))}


@st.composite
def admissions(draw) -> Flavour:
    """Policies that defer, refuse, place and bypass, in classes that compete, of which caches choose one."""
    buckets = (CacheBucket("small", 0), CacheBucket("large", draw(st.sampled_from((5, 1, 9)))))
    buckets = buckets[: draw(st.sampled_from((2, 2, 1)))]
    classes = [
        PolicyClass(f"alpha-{bucket.name}", draw(st.sampled_from((10, 3, 1))),
                    draw(st.sampled_from(list(QueuePolicy))), "alpha", bucket.name,
                    prefill_busy_threshold=draw(st.sampled_from((0, 0, 10, None))),
                    request_queue_limit_per_worker=draw(st.sampled_from((None, None, None, 0, 1, 1))),
                    raw_isl_token_queue_limit_per_worker=draw(st.sampled_from((None, None, None, 30))),
                    admission=draw(admission(often=True)))
        for bucket in buckets]
    if draw(st.booleans()):
        classes.append(PolicyClass("solo", 5, prefill_busy_threshold=0, admission=draw(admission(often=True))))
    profile = PolicyProfile(tuple(classes), buckets, "alpha", draw(st.sampled_from(list(Arbitration))),
                            draw(st.sampled_from((Capacity.ADVISORY, Capacity.ADVISORY, Capacity.STRICT))))
    graces = {"pin_grace_ns": draw(st.sampled_from((3, 1))), "empty_fleet_wait_ns": draw(st.sampled_from((5, 0)))}
    config = SchedulerConfig(
        4, profile, on_overload=draw(st.sampled_from(list(OnOverload))), attempts_max=draw(st.sampled_from((8, 1))),
        overload_wait_ns=draw(st.sampled_from((3, 10))), booking_ttl_ns=draw(st.sampled_from((None, None, 10))),
        **(graces if draw(st.sampled_from((False, False, True))) else {}))
    kinds = {"arrive": 9, "prefill": 3, "finish": 4, "context": 2, "release": 2, "cancel": 2, "timer": 2,
             "accept": draw(st.integers(0, 1)), "fail": draw(st.integers(0, 2)), "output": draw(st.integers(0, 1)),
             "stored": draw(st.sampled_from((0, 6, 8))), "upsert": draw(st.integers(1, 3)),
             "remove": draw(st.sampled_from((0, 0, 1))), "status": draw(st.sampled_from((0, 0, 2))),
             "drain": draw(st.sampled_from((0, 0, 2))), "reload": draw(st.sampled_from((0, 0, 1)))}
    used = {"path", *some(draw, "session", "lifecycle", "pin", "allowed", "do_not_queue", "deadline", "strict", "jump",
                          "caps", "pool", "lease", "taints")}
    used |= draw(st.sampled_from(({"overlap"}, set())))
    return Flavour(config, names_of(config), (8, 9, 12, 5, 16, 4, 1, 17), kinds, FEATURES - used, SOON, 4, (1, 2, 3), 2)


@st.composite
def questions(draw) -> Flavour:
    """Heads that have waited, whose caches an outside index is asked about; answers in time, late, or none."""
    threshold, capacity = draw(st.sampled_from((0, 0, 10, None))), draw(st.sampled_from(list(Capacity)))
    profile = one_class(threshold, capacity, queue_policy=draw(st.sampled_from(list(QueuePolicy))),
                        request_queue_limit_per_worker=draw(st.sampled_from((None, None, 0, 2))),
                        max_overtake_tokens=draw(st.sampled_from((None, None, 9))),
                        admission=draw(admission()))
    config = SchedulerConfig(
        4, profile, index=IndexMode.OFF, refresh_after_ns=draw(st.sampled_from((1, 0, 3, 6))),
        refresh_timeout_ns=draw(st.sampled_from((5, 1, 20))), on_overload=draw(st.sampled_from(list(OnOverload))),
        overload_wait_ns=draw(st.sampled_from((3, 10))), pin_grace_ns=draw(st.sampled_from((0, 8))),
        empty_fleet_wait_ns=draw(st.sampled_from((0, 8))), booking_ttl_ns=draw(st.sampled_from((None, None, 10))))
    kinds = {"arrive": 8, "refreshed": 6, "prefill": 4, "finish": 3, "timer": 2, "cancel": draw(st.integers(0, 1)),
             "upsert": 1, "remove": draw(st.sampled_from((0, 1, 2))),
             "status": draw(st.sampled_from((0, 2))), "fail": draw(st.sampled_from((0, 1))),
             "drain": draw(st.sampled_from((0, 0, 1))), "reload": draw(st.sampled_from((0, 0, 1)))}
    used = {"path", "told", *some(draw, "overlap", "caps", "deadline", "do_not_queue", "pin", "allowed", "strict",
                                  "lease", "sequence")}
    return Flavour(config, ("alpha",), SMALL, kinds, FEATURES - used, SOON, 2, (1, 1, 2))


@st.composite
def absences(draw) -> Flavour:
    """Workers that come, go and are away; requests that wait for them, for so long and no longer."""
    profile = one_class(draw(st.sampled_from((0, None, 10))), draw(st.sampled_from(list(Capacity))),
                        queue_policy=draw(st.sampled_from(list(QueuePolicy))),
                        request_queue_limit_per_worker=draw(st.sampled_from((None, None, 0, 2))),
                        max_overtake_tokens=draw(st.sampled_from((None, None, 9))))
    graces = st.sampled_from((5, 3, 10, 0, 1, 50))
    config = SchedulerConfig(
        4, profile, pin_grace_ns=draw(graces), empty_fleet_wait_ns=draw(graces),
        on_overload=draw(st.sampled_from(list(OnOverload))), overload_wait_ns=draw(st.sampled_from((3, 10))),
        booking_ttl_ns=draw(st.sampled_from((None, None, 10))))
    kinds = {"arrive": 9, "upsert": 3, "remove": 5, "status": draw(st.sampled_from((0, 3))), "prefill": 2, "timer": 3,
             "finish": 1, "cancel": draw(st.integers(0, 1)), "fail": draw(st.integers(0, 2)),
             "drain": draw(st.sampled_from((0, 0, 1))), "reload": draw(st.sampled_from((0, 0, 1)))}
    used = {"pin", *some(draw, "allowed", "taints", "deadline", "do_not_queue", "lease", "strict", "caps")}
    return Flavour(config, ("alpha",), PROMPTS[:10], kinds, FEATURES - used, SOON, 2, (1, 1, 2, 3))


@st.composite
def reloads(draw) -> Flavour:
    """Classes that compete while their policy changes: credit, cursor, keys, limits, who is held back."""
    held_back = draw(st.booleans())
    config = SchedulerConfig(
        4, draw(profiles((5, 1, 2, 3, 10), held_back)), capacity=draw(st.sampled_from((None, None, *Capacity))),
        on_overload=draw(st.sampled_from(list(OnOverload))), overload_wait_ns=draw(st.sampled_from((3, 10))),
        **draw(st.sampled_from(({}, {}, {"index": IndexMode.OFF, "refresh_after_ns": 1, "refresh_timeout_ns": 5},
                                {"pin_grace_ns": 5, "empty_fleet_wait_ns": 5}))))
    kinds = {"arrive": 9, "reload": 3, "prefill": 5, "finish": 1, "cancel": draw(st.integers(0, 2)),
             "stored": draw(st.integers(0, 2)), "timer": 1, "fail": draw(st.integers(0, 1)),
             "release": int(held_back), "context": int(held_back),
             "refreshed": 0 if config.refresh_after_ns is None else 2,
             "status": draw(st.sampled_from((0, 1))), "upsert": draw(st.sampled_from((0, 1))),
             "remove": draw(st.sampled_from((0, 0, 1)))}
    used = {"path", *some(draw, "pin", "strict", "jump", "do_not_queue", "deadline", "caps", "overlap", "lease")}
    names = names_of(config) + (("extra", *STRANGE_NAMES) if draw(st.booleans()) else ())
    return Flavour(config, names, SMALL, kinds, FEATURES - used, draw(st.sampled_from((CALM, SOON))), 2, (1, 1, 2))
